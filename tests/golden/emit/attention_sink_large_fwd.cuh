// spec.cuh: the spec 'attention_sink', written by luattn from attention_sink.lua. The names are those of contract/.
#pragma once
#define LUATTN_NO_REAL_BOUNDS  // the mask computes with integers
#define LUATTN_SMALL_BOUNDS    // of 32 bits, at every length
#define LUATTN_NO_STATS        // nor an entry for them
#define LUATTN_NO_MODS         // of q, k and v, nor an entry for them
#include "config.cuh"
#include "contract/contract.cuh"
#include "ops/math.cuh"
#include "ops/input.cuh"
#include "ops/input_bounds.cuh"

struct Hoisted {
  using Real = float;
  struct Head {  // the same for all of one (b, h)
    Real sinks_0;
    Real scale_1;
  };
  struct Row {};
  struct Col {};
  LUATTN_FN Head head(const LuattnParams &p, const Site &s) {
    const Real t1 = load_input<Real, float>(p.inputs.input[0], s.h);  // attention_sink.lua:12
    Head made;
    made.sinks_0 = t1;
    made.scale_1 = Real(p.scale);
    return made;
  }
  LUATTN_FN Row row(const LuattnParams &p, const Site &s, const Head &head, int q) { return {}; }
  LUATTN_FN Col col(const LuattnParams &p, const Site &s, const Head &head, int kv) { return {}; }
};

struct Mask : Hoisted, NoDataPart, NoColumnIntervals, NoBlockBounds, NoTileBits {
  static constexpr bool has_mask = true, keep_is_cheap = true, only_keep_reads_row = true;
  static constexpr bool row_from_start = false;
  static constexpr int row_intervals = 1, row_period = 0;
  LUATTN_FN bool keep(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, int q, int kv) {
    const bool t1 = kv <= q;  // attention_sink.lua:9
    const int t2 = kv + 127;  // attention_sink.lua:9
    const bool t3 = q <= t2;  // attention_sink.lua:9
    const bool t4 = t1 && t3;  // attention_sink.lua:9
    return t4;
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    const tri b1 = ivi_le(ivi_make(kv0, kv1), ivi_make(q0, q1));  // attention_sink.lua:9
    const ivi b2 = ivi_add(ivi_make(kv0, kv1), ivi_point(127));  // attention_sink.lua:9
    const tri b3 = ivi_le(ivi_make(q0, q1), b2);  // attention_sink.lua:9
    const tri b4 = tri_and(b1, b3);  // attention_sink.lua:9
    return !b4.can_be_true ? TILE_EMPTY : b4.can_be_false ? TILE_PARTIAL : TILE_FULL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &p, const Site &s, int q0, int q1) {
    const int t1 = q1 + 1;
    const int t2 = q0 - 127;
    return clip_range(t2, t1, s.kv_len);
  }
  LUATTN_FN Range row_interval(const LuattnParams &p, const Site &s, int q0) {
    const int t1 = q0 - 127;
    const int t2 = q0 + 1;
    return clip_range(t1, t2, s.kv_len);
  }
};

struct Score : Hoisted, NoDistanceTerm, NoBiasRow, NoRowShift, NoScoreBounds {
  static constexpr bool has_score = true, score_reads_col = false, reads_columns = false;
  static constexpr int score_reads = 0;
  LUATTN_FN Real score(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, Real dot, Position q, Position kv) {
    const Real t1 = op_product(dot, head.scale_1);
    return t1;
  }
};

struct Online : Hoisted, NoLazyRescaling, NoSoftcapPoly {
  struct State { Real x[2]; };
  static constexpr bool has_online = true, has_lse = true, has_rescale = true, mask_by_inf = true;
  static constexpr bool mask_by_zero = false, prob_is_sigmoid = false;
  static constexpr int num_saved = 2, num_state = 2, num_reductions = 2, prob_term = 1;
  static constexpr __device__ int reduction(int i) { return i == 0 ? REDUCE_MAX : i == 1 ? REDUCE_SUM_DEFERRED : REDUCE_SUM; }
  static constexpr __device__ bool state_deferred(int i) { return i == 0 ? true : i == 1 ? false : false; }
  LUATTN_FN State init(const LuattnParams &p, const Site &s, const Head &head, const Row &row) {
    return {{Real(0), head.sinks_0}};
  }
  template <int K>
  LUATTN_FN Real term(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red, Real score, int element) {
    if constexpr (K == 0) {
      return score;
    } else if constexpr (K == 1) {
      const Real t1 = op_max(old.x[1], red[0]);  // attention_sink.lua:15
      const Real t2 = op_difference(score, t1);
      const Real t3 = op_product(t2, Real(1.4426950408889634));  // attention_sink.lua:17
      const Real t4 = op_exp2(t3);  // attention_sink.lua:17
      return t4;
    }
  }
  LUATTN_FN Real rescale(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = op_max(old.x[1], red[0]);  // attention_sink.lua:15
    const Real t2 = op_difference(old.x[1], t1);
    const Real t3 = op_product(t2, Real(1.4426950408889634));  // attention_sink.lua:16
    const Real t4 = op_exp2(t3);  // attention_sink.lua:16
    return t4;
  }
  LUATTN_FN State next(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = op_max(old.x[1], red[0]);  // attention_sink.lua:15
    const Real t2 = op_difference(old.x[1], t1);
    const Real t3 = op_product(t2, Real(1.4426950408889634));  // attention_sink.lua:16
    const Real t4 = op_exp2(t3);  // attention_sink.lua:16
    const Real t5 = op_product(old.x[0], t4);  // attention_sink.lua:18
    const Real t6 = red[1] + t5;  // attention_sink.lua:18
    return {{t6, t1}};
  }
  LUATTN_FN Real out_scale(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const Real t1 = op_difference(head.sinks_0, state.x[1]);
    const Real t2 = op_exp(t1);  // attention_sink.lua:21
    const Real t3 = state.x[0] + t2;  // attention_sink.lua:21
    const Real t4 = op_div(Real(1), t3);  // attention_sink.lua:22
    return t4;
  }
  LUATTN_FN Real lse(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const Real t1 = op_difference(head.sinks_0, state.x[1]);
    const Real t2 = op_exp(t1);  // attention_sink.lua:21
    const Real t3 = state.x[0] + t2;  // attention_sink.lua:21
    const Real t4 = op_log(t3);  // attention_sink.lua:22
    const Real t5 = state.x[1] + t4;  // attention_sink.lua:22
    return t5;
  }
  LUATTN_FN void save(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state, Real *out) {
    const Real t1 = op_difference(head.sinks_0, state.x[1]);
    const Real t2 = op_exp(t1);  // attention_sink.lua:21
    const Real t3 = state.x[0] + t2;  // attention_sink.lua:21
    const Real t4 = op_log(t3);  // attention_sink.lua:22
    out[0] = state.x[1];
    out[1] = t4;
  }
};

struct Spec : Mask, Score, Online, NoGrad, NoMods {};
