// spec.cuh: the spec 'alibi', written by luattn from alibi.lua. The names are those of contract/.
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
    Real mul_2;
    Real mul_3;
  };
  struct Row {};
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
    const Real t10 = t6 * Real(-1.4426950408889634);  // alibi.lua:4
    Head made;
    made.scale_0 = Real(p.scale);
    made.mul_1 = t8;
    made.mul_2 = t9;
    made.mul_3 = t10;
    return made;
  }
  LUATTN_FN Row row(const LuattnParams &p, const Site &s, const Head &head, int q) { return {}; }
  LUATTN_FN Col col(const LuattnParams &p, const Site &s, const Head &head, int kv) { return {}; }
};

struct Mask : Hoisted, NoDataPart, NoRowIntervals, NoBlockBounds, NoTileBits {
  static constexpr bool has_mask = true, keep_is_cheap = true, only_keep_reads_row = true;
  static constexpr int column_intervals = 1, column_period = 0;
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
  LUATTN_FN Range q_range(const LuattnParams &p, const Site &s, int kv0, int kv1) {
    const int t1 = -kv0;
    const int t2 = t1 - s.q_len;
    const int t3 = s.kv_len + t2;
    const int t4 = -t3;
    return clip_range(t4, s.q_len, s.q_len);
  }
  LUATTN_FN Range column_interval(const LuattnParams &p, const Site &s, int kv0) {
    const int t1 = -s.q_len;
    const int t2 = t1 - kv0;
    const int t3 = s.kv_len + t2;
    const int t4 = -t3;
    return clip_range(t4, s.q_len, s.q_len);
  }
};

struct Score : Hoisted, ScoreInGrad, NoDistanceTerm, NoBiasRow, NoScoreBounds {};

struct Online : Hoisted, NoOnline, NoSavedRows {
  static constexpr bool has_lse = true;
};

struct Grad : Hoisted, NoAccumulators, NoElementGrads, NoParameterSums {
  struct BwdRow { Real x[2]; };
  struct Acc { Real x[1]; };
  static constexpr bool has_grad = true, grad_reads_row = false, grad_is_light = true;
  static constexpr int num_bwd_rows = 2, prob_rows = 2;
  LUATTN_FN BwdRow prepare(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      int q, Real lse, const Real *saved, Real delta, Real dlse, Acc &acc) {
    const Real t1 = delta - dlse;
    const Real t2 = lse * Real(-1.4426950408889634);  // alibi.lua:4
    return {{t1, t2}};
  }
  template <bool with_inputs>
  LUATTN_FN void grad(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, const BwdRow &bwd, Real dot, Real dp,
      Position q, Position kv, Real term, Real &prob, Real &ds, Acc &acc) {
    const int t1 = s.kv_len + q.base;  // alibi.lua:8
    const int t2 = t1 - s.q_len;  // alibi.lua:8
    const int t3 = t2 - kv.base;  // alibi.lua:8
    const int t4 = q.offset - kv.offset;  // alibi.lua:8
    const Real t5 = Real(t3) + Real(t4);  // alibi.lua:8
    const Real t6 = op_abs(t5);  // alibi.lua:8
    const Real t7 = t6 * head.mul_3;  // alibi.lua:4
    const Real t8 = dot * head.mul_2;  // alibi.lua:4
    const Real t9 = bwd.x[1] + t7;  // alibi.lua:4
    const Real t10 = t8 + t9;  // alibi.lua:4
    const Real t11 = op_exp2(t10);  // alibi.lua:4
    const Real t12 = dp - bwd.x[0];
    const Real t13 = t11 * t12;
    prob = t11;
    ds = t13;
  }
};

struct Spec : Mask, Score, Online, Grad, NoMods {};
