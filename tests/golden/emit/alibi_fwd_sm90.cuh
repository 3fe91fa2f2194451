// spec.cuh: the spec 'alibi', written by luattn from alibi.lua. The names are those of contract/.
#pragma once
#define LUATTN_NO_GRADIENTS    // of inputs and scalars
#define LUATTN_SCORE_BOUNDS    // some tiles may have no weight
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
    Real scale_0;
    Real mul_1;
    Real mul_2;
  };
  struct Row {  // of one query position
    Real shift;  // of the tile at hand: the kernel's
  };
  struct Col {};
  LUATTN_FN Head head(const LuattnParams &p, const Site &s) {
    const int t1 = s.h + 1;  // alibi.lua:7
    const int t2 = t1 * (-8);  // alibi.lua:7
    const Real t3 = Real(t2);  // alibi.lua:7
    const Real t4 = Real(Site::heads(p));  // alibi.lua:7
    const Real t5 = op_div(t3, t4);  // alibi.lua:7
    const Real t6 = op_exp2(t5);  // alibi.lua:7
    const Real t7 = op_div(Real(1), Real(p.scale));
    const Real t8 = t6 * t7;
    const Real t9 = Real(p.scale) * Real(1.4426950408889634);  // alibi.lua:4
    Head made;
    made.scale_0 = Real(p.scale);
    made.mul_1 = t8;
    made.mul_2 = t9;
    return made;
  }
  LUATTN_FN Row row(const LuattnParams &p, const Site &s, const Head &head, int q) { return {}; }
  LUATTN_FN Col col(const LuattnParams &p, const Site &s, const Head &head, int kv) { return {}; }
};

struct Mask : Hoisted, NoDataPart, NoColumnIntervals, NoBlockBounds, NoTileBits {
  static constexpr bool has_mask = true, keep_is_cheap = true, only_keep_reads_row = false;
  static constexpr bool row_from_start = true;
  static constexpr int row_intervals = 1, row_period = 0;
  LUATTN_FN bool keep(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, int q, int kv) {
    const int t1 = q + s.kv_len;  // alibi.lua:8
    const int t2 = kv + s.q_len;  // alibi.lua:10
    const bool t3 = t2 <= t1;  // alibi.lua:10
    return t3;
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    const ivi b1 = ivi_add(ivi_make(q0, q1), ivi_point(s.kv_len));  // alibi.lua:8
    const ivi b2 = ivi_add(ivi_make(kv0, kv1), ivi_point(s.q_len));  // alibi.lua:10
    const tri b3 = ivi_le(b2, b1);  // alibi.lua:10
    return !b3.can_be_true ? TILE_EMPTY : b3.can_be_false ? TILE_PARTIAL : TILE_FULL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &p, const Site &s, int q0, int q1) {
    const int t1 = q1 - s.q_len;
    const int t2 = s.kv_len + t1;
    const int t3 = t2 + 1;
    return clip_range(0, t3, s.kv_len);
  }
  LUATTN_FN Range row_interval(const LuattnParams &p, const Site &s, int q0) {
    const int t1 = s.kv_len - s.q_len;
    const int t2 = q0 + t1;
    const int t3 = t2 + 1;
    return clip_range(0, t3, s.kv_len);
  }
};

// A score is handed on divided by the scale.
struct Score : Hoisted, NoDistanceTerm, NoBiasRow {
  static constexpr bool has_score = true, score_reads_col = false, reads_columns = false, has_row_shift = true;
  static constexpr bool has_score_bounds = true;
  static constexpr int score_reads = 0;
  LUATTN_FN Real score(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, Real dot, Position q, Position kv) {
    const int t1 = -kv.offset;  // alibi.lua:8
    const Real t2 = Real(t1);
    const Real t3 = head.mul_1 * t2;
    const Real t4 = dot - t3;
    return t4;
  }
  LUATTN_FN Real row_shift(const LuattnParams &p, const Site &s, const Head &head, const Row &row, Position q, Position kv) {
    const int t1 = s.kv_len + q.base;  // alibi.lua:8
    const int t2 = t1 - s.q_len;  // alibi.lua:8
    const int t3 = t2 - kv.base;  // alibi.lua:8
    const Real t4 = Real(t3) + Real(q.offset);
    const Real t5 = head.mul_1 * t4;
    const Real t6 = -t5;
    return t6;
  }
  LUATTN_FN iv score_bounds(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1, double least, double most) {
    const int t1 = s.h + 1;  // alibi.lua:7
    const int t2 = t1 * (-8);  // alibi.lua:7
    const Real t3 = Real(t2);  // alibi.lua:7
    const Real t4 = Real(Site::heads(p));  // alibi.lua:7
    const Real t5 = op_div(t3, t4);  // alibi.lua:7
    const Real t6 = op_exp2(t5);  // alibi.lua:7
    const ivi b7 = ivi_add(ivi_make(q0, q1), ivi_point(s.kv_len));  // alibi.lua:8
    const ivi b8 = ivi_sub(b7, ivi_point(s.q_len));  // alibi.lua:8
    const ivi b9 = ivi_sub(b8, ivi_make(kv0, kv1));  // alibi.lua:8
    const ivi b10 = ivi_abs(b9);  // alibi.lua:8
    const iv b11 = ivi_to_real(b10);  // alibi.lua:8
    const iv b12 = iv_mul(iv_point(t6), b11);  // alibi.lua:8
    const iv b13 = iv_sub(iv_make(least, most, !(most < IV_INF)), b12);  // alibi.lua:8
    return b13;
  }
};

struct Online : Hoisted, NoSavedRows, NoSoftcapPoly {
  struct State { Real x[2]; };
  static constexpr bool has_online = true, has_lse = true, has_rescale = true, lazy_rescaling = true;
  static constexpr bool mask_by_inf = true, mask_by_zero = false, prob_is_sigmoid = false;
  static constexpr int num_state = 2, num_reductions = 2, prob_term = 1;
  static constexpr __device__ int reduction(int i) { return i == 0 ? REDUCE_MAX : i == 1 ? REDUCE_SUM_DEFERRED : REDUCE_SUM; }
  static constexpr __device__ bool red_shifted(int i) { return i == 0 ? true : i == 1 ? false : false; }
  static constexpr __device__ bool state_deferred(int i) { return i == 0 ? true : i == 1 ? false : false; }
  LUATTN_FN State init(const LuattnParams &p, const Site &s, const Head &head, const Row &row) {
    return {{Real(0), Real(-1e+37)}};
  }
  template <int K>
  LUATTN_FN Real term(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red, Real score, int element) {
    if constexpr (K == 0) {
      return score;
    } else if constexpr (K == 1) {
      const Real t1 = head.scale_0 * row.shift;
      const Real t2 = score * head.mul_2;  // alibi.lua:4
      const Real t3 = t1 - old.x[1];  // alibi.lua:4
      const Real t4 = t3 * Real(1.4426950408889634);  // alibi.lua:4
      const Real t5 = t2 + t4;  // alibi.lua:4
      const Real t6 = op_exp2(t5);  // alibi.lua:4
      return t6;
    }
  }
  LUATTN_FN Real rescale(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = red[0] * head.scale_0;
    const Real t2 = op_max(old.x[1], t1);  // alibi.lua:4
    const Real t3 = old.x[1] - t2;  // alibi.lua:4
    const Real t4 = t3 * Real(1.4426950408889634);  // alibi.lua:4
    const Real t5 = op_exp2(t4);  // alibi.lua:4
    return t5;
  }
  LUATTN_FN State next(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = old.x[0] + red[1];
    return {{t1, old.x[1]}};
  }
  LUATTN_FN State raise_max(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = red[0] * head.scale_0;
    const Real t2 = op_max(old.x[1], t1);  // alibi.lua:4
    const Real t3 = old.x[1] - t2;  // alibi.lua:4
    const Real t4 = t3 * Real(1.4426950408889634);  // alibi.lua:4
    const Real t5 = op_exp2(t4);  // alibi.lua:4
    const Real t6 = old.x[0] * t5;  // alibi.lua:4
    return {{t6, t2}};
  }
  LUATTN_FN Real out_scale(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const bool t1 = state.x[0] == Real(0);  // alibi.lua:4
    const Real t2 = op_div(Real(1), state.x[0]);  // alibi.lua:4
    const Real t3 = t1 ? Real(0) : t2;  // alibi.lua:4
    return t3;
  }
  LUATTN_FN Real lse(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const Real t1 = op_log(state.x[0]);  // alibi.lua:4
    const Real t2 = state.x[1] + t1;  // alibi.lua:4
    return t2;
  }
};

struct Spec : Mask, Score, Online, NoGrad, NoMods {};
