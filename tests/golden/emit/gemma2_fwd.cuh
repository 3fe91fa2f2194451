// spec.cuh: the spec 'gemma2', written by luattn from gemma2.lua. The names are those of contract/.
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
    Real cap_0;
    Real mul_1;
  };
  struct Row {};
  struct Col {};
  LUATTN_FN Head head(const LuattnParams &p, const Site &s) {
    const Real t1 = op_div(Real(1), Real(p.inputs.scalar[0]));  // gemma2.lua:9
    const Real t2 = Real(p.scale) * t1;  // gemma2.lua:9
    Head made;
    made.cap_0 = Real(p.inputs.scalar[0]);
    made.mul_1 = t2;
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
    const bool t1 = kv <= q;  // gemma2.lua:10
    const int t2 = kv + 4095;  // gemma2.lua:10
    const bool t3 = q <= t2;  // gemma2.lua:10
    const bool t4 = t1 && t3;  // gemma2.lua:10
    return t4;
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    const tri b1 = ivi_le(ivi_make(kv0, kv1), ivi_make(q0, q1));  // gemma2.lua:10
    const ivi b2 = ivi_add(ivi_make(kv0, kv1), ivi_point(4095));  // gemma2.lua:10
    const tri b3 = ivi_le(ivi_make(q0, q1), b2);  // gemma2.lua:10
    const tri b4 = tri_and(b1, b3);  // gemma2.lua:10
    return !b4.can_be_true ? TILE_EMPTY : b4.can_be_false ? TILE_PARTIAL : TILE_FULL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &p, const Site &s, int q0, int q1) {
    const int t1 = q1 + 1;
    const int t2 = q0 - 4095;
    return clip_range(t2, t1, s.kv_len);
  }
  LUATTN_FN Range row_interval(const LuattnParams &p, const Site &s, int q0) {
    const int t1 = q0 - 4095;
    const int t2 = q0 + 1;
    return clip_range(t1, t2, s.kv_len);
  }
};

struct Score : Hoisted, NoDistanceTerm, NoBiasRow, NoRowShift, NoScoreBounds {
  static constexpr bool has_score = true, score_reads_col = false, reads_columns = false;
  static constexpr int score_reads = 0;
  LUATTN_FN Real score(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, Real dot, Position q, Position kv) {
    const Real t1 = dot * head.mul_1;  // gemma2.lua:9
    const Real t2 = op_rough_tanh(t1);  // gemma2.lua:9
    const Real t3 = head.cap_0 * t2;  // gemma2.lua:9
    return t3;
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
      const Real t1 = op_max(old.x[1], red[0]);  // gemma2.lua:6
      const Real t2 = t1 * Real(-1.4426950408889634);  // gemma2.lua:6
      const Real t3 = score * Real(1.4426950408889634);  // gemma2.lua:6
      const Real t4 = t2 + t3;  // gemma2.lua:6
      const Real t5 = op_exp2(t4);  // gemma2.lua:6
      return t5;
    }
  }
  LUATTN_FN Real rescale(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = op_max(old.x[1], red[0]);  // gemma2.lua:6
    const Real t2 = old.x[1] - t1;  // gemma2.lua:6
    const Real t3 = t2 * Real(1.4426950408889634);  // gemma2.lua:6
    const Real t4 = op_exp2(t3);  // gemma2.lua:6
    return t4;
  }
  LUATTN_FN State next(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = op_max(old.x[1], red[0]);  // gemma2.lua:6
    const Real t2 = old.x[1] - t1;  // gemma2.lua:6
    const Real t3 = t2 * Real(1.4426950408889634);  // gemma2.lua:6
    const Real t4 = op_exp2(t3);  // gemma2.lua:6
    const Real t5 = old.x[0] * t4;  // gemma2.lua:6
    const Real t6 = red[1] + t5;  // gemma2.lua:6
    return {{t6, t1}};
  }
  LUATTN_FN Real out_scale(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const bool t1 = state.x[0] == Real(0);  // gemma2.lua:6
    const Real t2 = op_div(Real(1), state.x[0]);  // gemma2.lua:6
    const Real t3 = t1 ? Real(0) : t2;  // gemma2.lua:6
    return t3;
  }
  LUATTN_FN Real lse(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const Real t1 = op_log(state.x[0]);  // gemma2.lua:6
    const Real t2 = state.x[1] + t1;  // gemma2.lua:6
    return t2;
  }
};

struct Spec : Mask, Score, Online, NoGrad, NoMods {};
