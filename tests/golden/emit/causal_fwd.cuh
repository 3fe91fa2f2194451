// spec.cuh: the spec 'causal', written by luattn from causal.lua. The names are those of contract/.
#pragma once
#define LUATTN_NO_GRADIENTS    // of inputs and scalars
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
    Real scale_0;
    Real mul_1;
  };
  struct Row {};
  struct Col {};
  LUATTN_FN Head head(const LuattnParams &p, const Site &s) {
    const Real t1 = Real(p.scale) * Real(1.4426950408889634);  // causal.lua:4
    Head made;
    made.scale_0 = Real(p.scale);
    made.mul_1 = t1;
    return made;
  }
  LUATTN_FN Row row(const LuattnParams &p, const Site &s, const Head &head, int q) { return {}; }
  LUATTN_FN Col col(const LuattnParams &p, const Site &s, const Head &head, int kv) { return {}; }
};

struct Mask : Hoisted, NoDataPart, NoColumnIntervals, NoBlockBounds, NoTileBits {
  static constexpr bool has_mask = true, keep_is_cheap = true, only_keep_reads_row = true;
  static constexpr bool row_from_start = true;
  static constexpr int row_intervals = 1, row_period = 0;
  LUATTN_FN bool keep(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, int q, int kv) {
    const bool t1 = kv <= q;  // causal.lua:6
    return t1;
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    const tri b1 = ivi_le(ivi_make(kv0, kv1), ivi_make(q0, q1));  // causal.lua:6
    return !b1.can_be_true ? TILE_EMPTY : b1.can_be_false ? TILE_PARTIAL : TILE_FULL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &p, const Site &s, int q0, int q1) {
    const int t1 = q1 + 1;
    return clip_range(0, t1, s.kv_len);
  }
  LUATTN_FN Range row_interval(const LuattnParams &p, const Site &s, int q0) {
    const int t1 = q0 + 1;
    return clip_range(0, t1, s.kv_len);
  }
};

// A score is handed on divided by the scale.
struct Score : Hoisted, NoDistanceTerm, NoBiasRow, NoRowShift, NoScoreBounds {
  static constexpr bool has_score = true, score_reads_col = false, reads_columns = false;
  static constexpr int score_reads = 0;
  LUATTN_FN Real score(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, Real dot, Position q, Position kv) {
    return dot;
  }
};

struct Online : Hoisted, NoSavedRows, NoLazyRescaling, NoSoftcapPoly {
  struct State { Real x[2]; };
  static constexpr bool has_online = true, has_lse = true, has_rescale = true, mask_by_inf = true;
  static constexpr bool mask_by_zero = false, prob_is_sigmoid = false;
  static constexpr int num_state = 2, num_reductions = 2, prob_term = 1;
  static constexpr __device__ int reduction(int i) { return i == 0 ? REDUCE_MAX : i == 1 ? REDUCE_SUM_DEFERRED : REDUCE_SUM; }
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
      const Real t1 = red[0] * head.scale_0;
      const Real t2 = op_max(old.x[1], t1);  // causal.lua:4
      const Real t3 = t2 * Real(-1.4426950408889634);  // causal.lua:4
      const Real t4 = score * head.mul_1;  // causal.lua:4
      const Real t5 = t3 + t4;  // causal.lua:4
      const Real t6 = op_exp2(t5);  // causal.lua:4
      return t6;
    }
  }
  LUATTN_FN Real rescale(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = red[0] * head.scale_0;
    const Real t2 = op_max(old.x[1], t1);  // causal.lua:4
    const Real t3 = old.x[1] - t2;  // causal.lua:4
    const Real t4 = t3 * Real(1.4426950408889634);  // causal.lua:4
    const Real t5 = op_exp2(t4);  // causal.lua:4
    return t5;
  }
  LUATTN_FN State next(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = red[0] * head.scale_0;
    const Real t2 = op_max(old.x[1], t1);  // causal.lua:4
    const Real t3 = old.x[1] - t2;  // causal.lua:4
    const Real t4 = t3 * Real(1.4426950408889634);  // causal.lua:4
    const Real t5 = op_exp2(t4);  // causal.lua:4
    const Real t6 = old.x[0] * t5;  // causal.lua:4
    const Real t7 = red[1] + t6;  // causal.lua:4
    return {{t7, t2}};
  }
  LUATTN_FN Real out_scale(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const bool t1 = state.x[0] == Real(0);  // causal.lua:4
    const Real t2 = op_div(Real(1), state.x[0]);  // causal.lua:4
    const Real t3 = t1 ? Real(0) : t2;  // causal.lua:4
    return t3;
  }
  LUATTN_FN Real lse(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const Real t1 = op_log(state.x[0]);  // causal.lua:4
    const Real t2 = state.x[1] + t1;  // causal.lua:4
    return t2;
  }
};

struct Spec : Mask, Score, Online, NoGrad, NoMods {};
