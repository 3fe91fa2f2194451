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

struct Mask : Hoisted, NoDataPart, NoRowIntervals, NoBlockBounds, NoTileBits {
  static constexpr bool has_mask = true, keep_is_cheap = true, only_keep_reads_row = true;
  static constexpr int column_intervals = 1, column_period = 0;
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
  LUATTN_FN Range q_range(const LuattnParams &p, const Site &s, int kv0, int kv1) {
    const int t1 = kv1 + 128;
    return clip_range(kv0, t1, s.q_len);
  }
  LUATTN_FN Range column_interval(const LuattnParams &p, const Site &s, int kv0) {
    const int t1 = kv0 + 128;
    return clip_range(kv0, t1, s.q_len);
  }
};

struct Score : Hoisted, ScoreInGrad, NoDistanceTerm, NoBiasRow, NoScoreBounds {};

struct Online : Hoisted, NoOnline {
  static constexpr bool has_lse = true;
  static constexpr int num_saved = 2;
};

struct Grad : Hoisted, NoElementGrads, NoParameterSums {
  struct BwdRow { Real x[3]; };
  struct Acc { Real x[1]; };
  static constexpr bool has_grad = true, grad_reads_row = false, grad_is_light = true;
  static constexpr int num_bwd_rows = 3, prob_rows = 5, num_acc = 1;
  LUATTN_FN BwdRow prepare(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      int q, Real lse, const Real *saved, Real delta, Real dlse, Acc &acc) {
    const bool t1 = lse == infinity<Real>();
    const Real t2 = t1 ? Real(0) : saved[0];
    const Real t3 = t1 ? infinity<Real>() : saved[1];
    const Real t4 = op_difference(head.sinks_0, t2);
    const Real t5 = t4 - t3;
    const Real t6 = op_exp(t5);
    const Real t7 = op_product(delta, t6);
    const Real t8 = op_product(dlse, t6);
    const Real t9 = t8 - t7;
    acc.x[0] += t9;
    const Real t10 = delta - dlse;
    const Real t11 = op_product(t3, Real(-1.4426950408889634));  // attention_sink.lua:25
    return {{t2, t10, t11}};
  }
  template <bool with_inputs>
  LUATTN_FN void grad(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, const BwdRow &bwd, Real dot, Real dp,
      Position q, Position kv, Real term, Real &prob, Real &ds, Acc &acc) {
    const Real t1 = dp - bwd.x[1];
    const Real t2 = op_product(dot, head.scale_1);
    const Real t3 = op_difference(t2, bwd.x[0]);
    const Real t4 = op_fma(Real(1.4426950408889634), t3, bwd.x[2]);  // attention_sink.lua:25
    const Real t5 = op_exp2(t4);  // attention_sink.lua:25
    const Real t6 = op_product(t1, t5);
    prob = t5;
    ds = t6;
  }
  LUATTN_FN void flush(const LuattnParams &p, const Site &s, const Head &head, const Acc &acc) {
    if (const Real g = acc.x[0]; g != Real(0)) {
      add_input_grad(p.inputs.input[0], g, s.h);  // sinks
    }
  }
};

struct Spec : Mask, Score, Online, Grad, NoMods {};
