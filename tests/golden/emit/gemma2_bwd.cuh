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
    Real neg_2;
    Real mul_3;
    Real mul_4;
    Real mul_5;
    Real mul_6;
  };
  struct Row {};
  struct Col {};
  LUATTN_FN Head head(const LuattnParams &p, const Site &s) {
    const Real t1 = op_div(Real(1), Real(p.inputs.scalar[0]));  // gemma2.lua:9
    const Real t2 = Real(p.inputs.scalar[0]) * Real(2);  // gemma2.lua:9
    const Real t3 = -Real(p.inputs.scalar[0]);  // gemma2.lua:9
    const Real t4 = Real(p.scale) * t1;  // gemma2.lua:9
    const Real t5 = t4 * Real(2.8853900817779268);  // gemma2.lua:9
    const Real t6 = t2 * Real(1.4426950408889634);  // gemma2.lua:6
    const Real t7 = Real(p.inputs.scalar[0]) * t1;  // gemma2.lua:9
    const Real t8 = Real(p.inputs.scalar[0]) * t4;  // gemma2.lua:9
    const Real t9 = t1 * t8;  // gemma2.lua:9
    Head made;
    made.cap_0 = Real(p.inputs.scalar[0]);
    made.mul_1 = t2;
    made.neg_2 = t3;
    made.mul_3 = t5;
    made.mul_4 = t6;
    made.mul_5 = t7;
    made.mul_6 = t9;
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
  LUATTN_FN Range q_range(const LuattnParams &p, const Site &s, int kv0, int kv1) {
    const int t1 = kv1 + 4096;
    return clip_range(kv0, t1, s.q_len);
  }
  LUATTN_FN Range column_interval(const LuattnParams &p, const Site &s, int kv0) {
    const int t1 = kv0 + 4096;
    return clip_range(kv0, t1, s.q_len);
  }
};

struct Score : Hoisted, ScoreInGrad, NoDistanceTerm, NoBiasRow, NoScoreBounds {};

struct Online : Hoisted, NoOnline, NoSavedRows {
  static constexpr bool has_lse = true;
};

struct Grad : Hoisted, NoParameterSums {
  struct BwdRow { Real x[2]; };
  struct Acc { Real x[1]; };
  static constexpr bool has_grad = true, grad_reads_row = false, grad_is_light = true, grad_adds = true;
  static constexpr bool grad_adds_to_memory = false;
  static constexpr int num_bwd_rows = 2, prob_rows = -1, num_acc = 1;
  LUATTN_FN BwdRow prepare(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      int q, Real lse, const Real *saved, Real delta, Real dlse, Acc &acc) {
    const Real t1 = delta - dlse;
    const Real t2 = head.neg_2 - lse;  // gemma2.lua:6
    const Real t3 = t2 * Real(1.4426950408889634);  // gemma2.lua:6
    return {{t1, t3}};
  }
  template <bool with_inputs>
  LUATTN_FN void grad(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, const BwdRow &bwd, Real dot, Real dp,
      Position q, Position kv, Real term, Real &prob, Real &ds, Acc &acc) {
    const Real t1 = dot * head.mul_3;  // gemma2.lua:9
    const Real t2 = op_sigmoid2(t1);  // gemma2.lua:9
    const Real t3 = t2 * head.mul_4;  // gemma2.lua:6
    const Real t4 = t2 * Real(2);  // gemma2.lua:9
    const Real t5 = t4 + Real(-1);  // gemma2.lua:9
    const Real t6 = t5 * t5;  // gemma2.lua:9
    const Real t7 = Real(1) - t6;  // gemma2.lua:9
    const Real t8 = bwd.x[1] + t3;  // gemma2.lua:6
    const Real t9 = op_exp2(t8);  // gemma2.lua:6
    const Real t10 = dp - bwd.x[0];
    const Real t11 = t9 * t10;
    const Real t12 = t7 * t11;  // gemma2.lua:9
    const Real t13 = head.mul_5 * t12;  // gemma2.lua:9
    prob = t9;
    ds = t13;
    if constexpr (with_inputs) {
      const Real t14 = t5 * t11;  // gemma2.lua:9
      const Real t15 = dot * t12;  // gemma2.lua:9
      const Real t16 = head.mul_6 * t15;  // gemma2.lua:9
      const Real t17 = t14 - t16;  // gemma2.lua:9
      acc.x[0] += t17;
    }
  }
  LUATTN_FN void flush(const LuattnParams &p, const Site &s, const Head &head, const Acc &acc) {
    if (const Real g = acc.x[0]; g != Real(0)) {
      add_scalar_grad(p, 0, g);  // cap
    }
  }
};

struct Spec : Mask, Score, Online, Grad, NoMods {};
