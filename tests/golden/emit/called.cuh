// spec.cuh: the spec 'called', written by luattn from called.lua. The names are those of contract/.
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
    Real c_0;
    Real scale_1;
    Real mul_2;
    Real mul_3;
    Real mul_4;
    Real mul_5;
    Real mul_6;
    Real mul_7;
    Real mul_8;
  };
  struct Row {};
  struct Col {};
  LUATTN_FN Head head(const LuattnParams &p, const Site &s) {
    const Real t1 = Real(p.inputs.scalar[0]) * Real(2);  // called.lua:9
    const Real t2 = Real(p.inputs.scalar[0]) * Real(3);  // called.lua:9
    const Real t3 = Real(p.scale) * Real(2);  // called.lua:9
    const Real t4 = Real(p.scale) * Real(3);  // called.lua:9
    const Real t5 = Real(p.scale) * Real(1.4426950408889634);  // called.lua:3
    const Real t6 = Real(p.inputs.scalar[0]) * Real(1.4426950408889634);  // called.lua:3
    const Real t7 = Real(p.inputs.scalar[0]) * t2;  // called.lua:9
    Head made;
    made.c_0 = Real(p.inputs.scalar[0]);
    made.scale_1 = Real(p.scale);
    made.mul_2 = t1;
    made.mul_3 = t2;
    made.mul_4 = t3;
    made.mul_5 = t4;
    made.mul_6 = t5;
    made.mul_7 = t6;
    made.mul_8 = t7;
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
    const bool t1 = kv <= q;  // called.lua:12
    return t1;
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    const tri b1 = ivi_le(ivi_make(kv0, kv1), ivi_make(q0, q1));  // called.lua:12
    return !b1.can_be_true ? TILE_EMPTY : b1.can_be_false ? TILE_PARTIAL : TILE_FULL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &p, const Site &s, int q0, int q1) {
    const int t1 = q1 + 1;
    return clip_range(0, t1, s.kv_len);
  }
  LUATTN_FN Range q_range(const LuattnParams &p, const Site &s, int kv0, int kv1) {
    return clip_range(kv0, s.q_len, s.q_len);
  }
  LUATTN_FN Range column_interval(const LuattnParams &p, const Site &s, int kv0) {
    return clip_range(kv0, s.q_len, s.q_len);
  }
};

struct Score : Hoisted, ScoreInGrad, NoDistanceTerm, NoBiasRow, NoScoreBounds {};

struct Online : Hoisted, NoOnline, NoSavedRows {
  static constexpr bool has_lse = true;
};

struct Grad : Hoisted, NoParameterSums {
  struct BwdRow { Real x[2]; };
  struct Acc { Real x[1]; };
  static constexpr bool has_grad = true, grad_reads_row = false, grad_is_light = false, grad_adds = true;
  static constexpr bool grad_adds_to_memory = true;
  static constexpr int num_bwd_rows = 2, prob_rows = -1, num_acc = 1;
  LUATTN_FN BwdRow prepare(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      int q, Real lse, const Real *saved, Real delta, Real dlse, Acc &acc) {
    const Real t1 = delta - dlse;
    const Real t2 = lse * Real(-1.4426950408889634);  // called.lua:3
    return {{t1, t2}};
  }
  template <bool with_inputs>
  LUATTN_OUTLINED Results<Real, 3> grad_outlined(const LuattnParams &p, int q, int kv, Real head_c_0, Real dp, Real bwd_x_0, Real bwd_x_1, Real dot, Real head_scale_1) {
    const Real t1 = load_input<Real, float>(p.inputs.input[0], q, kv);  // called.lua:8
    const Real t2 = dot * head_scale_1;
    const Real t3 = head_c_0 * Real(2);  // called.lua:9
    const Real t4 = t1 * Real(2);  // called.lua:9
    const Real t5 = head_c_0 * Real(3);  // called.lua:9
    const Real t6 = t1 * Real(3);  // called.lua:9
    const Real t7 = t1 + t2;  // called.lua:8
    const Real t8 = op_sin(t7);  // called.lua:9
    const Real t9 = head_scale_1 * Real(2);  // called.lua:9
    const Real t10 = t3 * t8;  // called.lua:9
    const Real t11 = dot * t9;  // called.lua:9
    const Real t12 = t10 + t11;  // called.lua:9
    const Real t13 = t4 + t12;  // called.lua:9
    const Real t14 = op_sin(t13);  // called.lua:9
    const Real t15 = head_scale_1 * Real(3);  // called.lua:9
    const Real t16 = t5 * t14;  // called.lua:9
    const Real t17 = t5 * t8;  // called.lua:9
    const Real t18 = t16 + t17;  // called.lua:9
    const Real t19 = dot * t15;  // called.lua:9
    const Real t20 = t18 + t19;  // called.lua:9
    const Real t21 = t6 + t20;  // called.lua:9
    const Real t22 = op_sin(t21);  // called.lua:9
    const Real t23 = op_cos(t7);  // called.lua:9
    const Real t24 = head_scale_1 * Real(1.4426950408889634);  // called.lua:3
    const Real t25 = head_c_0 * Real(1.4426950408889634);  // called.lua:3
    const Real t26 = t22 * t25;  // called.lua:3
    const Real t27 = t14 * t25;  // called.lua:3
    const Real t28 = t8 * t25;  // called.lua:3
    const Real t29 = dot * t24;  // called.lua:3
    const Real t30 = t1 * Real(1.4426950408889634);  // called.lua:3
    const Real t31 = op_cos(t21);  // called.lua:9
    const Real t32 = op_cos(t13);  // called.lua:9
    const Real t33 = head_c_0 * t5;  // called.lua:9
    const Real t34 = bwd_x_1 + t26;  // called.lua:3
    const Real t35 = t27 + t34;  // called.lua:3
    const Real t36 = t28 + t35;  // called.lua:3
    const Real t37 = t29 + t36;  // called.lua:3
    const Real t38 = t30 + t37;  // called.lua:3
    const Real t39 = op_exp2(t38);  // called.lua:3
    const Real t40 = dp - bwd_x_0;
    const Real t41 = t39 * t40;
    const Real t42 = t31 * t41;  // called.lua:9
    const Real t43 = t33 * t42;  // called.lua:9
    const Real t44 = head_c_0 * t41;  // called.lua:9
    const Real t45 = t43 + t44;  // called.lua:9
    const Real t46 = t32 * t45;  // called.lua:9
    const Real t47 = t3 * t46;  // called.lua:9
    const Real t48 = t43 + t47;  // called.lua:9
    const Real t49 = t44 + t48;  // called.lua:9
    const Real t50 = t23 * t49;  // called.lua:9
    const Real t51 = t5 * t42;  // called.lua:9
    const Real t52 = t46 * Real(2);  // called.lua:9
    const Real t53 = t50 + t52;  // called.lua:9
    const Real t54 = t51 + t53;  // called.lua:9
    const Real t55 = t41 + t54;  // called.lua:9
    Results<Real, 3> made = {};
    made.x[0] = t39;
    made.x[1] = t55;
    if constexpr (with_inputs) {
      const Real t56 = t22 * t41;  // called.lua:9
      const Real t57 = t41 + t51;  // called.lua:9
      const Real t58 = t14 * t57;  // called.lua:9
      const Real t59 = t51 + t52;  // called.lua:9
      const Real t60 = t41 + t59;  // called.lua:9
      const Real t61 = t8 * t60;  // called.lua:9
      const Real t62 = t58 + t61;  // called.lua:9
      const Real t63 = t56 + t62;  // called.lua:9
      add_input_grad<Real>(p.inputs.input[0], t55, q, kv);
      made.x[2] += t63;
    }
    return made;
  }
  template <bool with_inputs>
  LUATTN_FN void grad(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, const BwdRow &bwd, Real dot, Real dp,
      Position q, Position kv, Real term, Real &prob, Real &ds, Acc &acc) {
    const Results<Real, 3> made = grad_outlined<with_inputs>(p, q, kv, head.c_0, dp, bwd.x[0], bwd.x[1], dot, head.scale_1);
    prob = made.x[0];
    ds = made.x[1];
    if constexpr (with_inputs) {
      acc.x[0] += made.x[2];
    }
  }
  LUATTN_FN void flush(const LuattnParams &p, const Site &s, const Head &head, const Acc &acc) {
    if (const Real g = acc.x[0]; g != Real(0)) {
      add_scalar_grad(p, 0, g);  // c
    }
  }
};

struct Spec : Mask, Score, Online, Grad, NoMods {};
