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

struct Mask : Hoisted, NoDataPart, NoRowIntervals, NoBlockBounds, NoTileBits {
  static constexpr bool has_mask = true, keep_is_cheap = true, only_keep_reads_row = true;
  static constexpr int column_intervals = 1, column_period = 0;
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

struct Grad : Hoisted, NoAccumulators, NoElementGrads, NoParameterSums {
  struct BwdRow { Real x[2]; };
  struct Acc { Real x[1]; };
  static constexpr bool has_grad = true, grad_reads_row = false, grad_is_light = true;
  static constexpr int num_bwd_rows = 2, prob_rows = 2;
  LUATTN_FN BwdRow prepare(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      int q, Real lse, const Real *saved, Real delta, Real dlse, Acc &acc) {
    const Real t1 = delta - dlse;
    const Real t2 = lse * Real(-1.4426950408889634);  // causal.lua:4
    return {{t1, t2}};
  }
  template <bool with_inputs>
  LUATTN_FN void grad(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, const BwdRow &bwd, Real dot, Real dp,
      Position q, Position kv, Real term, Real &prob, Real &ds, Acc &acc) {
    const Real t1 = dot * head.mul_1;  // causal.lua:4
    const Real t2 = bwd.x[1] + t1;  // causal.lua:4
    const Real t3 = op_exp2(t2);  // causal.lua:4
    const Real t4 = dp - bwd.x[0];
    const Real t5 = t3 * t4;
    prob = t3;
    ds = t5;
  }
};

struct Spec : Mask, Score, Online, Grad, NoMods {};
