// spec.cuh: causal softmax, an example by hand of the file that gen/emit writes, for editors and for nvcc.
//
//   score = scale * q.k,  kept where kv_idx <= q_idx
//   m' = max(m, max score),  p = exp(score - m'),  l' = l exp(m - m') + sum p
//   O = sum p v / l,  lse = m + log l
//
// score() returns the unscaled dot product. The scale and log2(e) are folded into one factor, so an element
// costs one FFMA and one MUFU.EX2.
#pragma once
#include "config.cuh"
#include "contract/contract.cuh"

template <bool B, class T, class F>
struct pick {
  using type = F;
};
template <class T, class F>
struct pick<true, T, F> {
  using type = T;
};

// Values for both passes. A generated Spec has them for one.
struct Hoisted {
  using Real = pick<sizeof(Config::Elem) == 8, double, float>::type;
  struct Head {
    Real scale, scale_log2;
  };
  struct Row {};
  struct Col {};
  LUATTN_FN Head head(const LuattnParams &p, const Site &) {
    return {Real(p.scale), Real(p.scale * 1.4426950408889634)};
  }
  LUATTN_FN Row row(const LuattnParams &, const Site &, const Head &, int) { return {}; }
  LUATTN_FN Col col(const LuattnParams &, const Site &, const Head &, int) { return {}; }

  LUATTN_FN double power_of_two(double x) { return exp2(x); }
  LUATTN_FN float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
};

struct Mask : Hoisted, NoDataPart, NoBlockBounds, NoTileBits {
  static constexpr bool has_mask = true, keep_is_cheap = true, only_keep_reads_row = true;
  static constexpr bool row_from_start = true;
  static constexpr int row_intervals = 1, row_period = 0, column_intervals = 1, column_period = 0;
  LUATTN_FN bool keep(const LuattnParams &, const Site &, const Head &, const Row &, const Col &, int q, int kv) {
    return kv <= q;
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &, const Site &, int q0, int q1, int kv0, int kv1) {
    if (kv0 > q1) return TILE_EMPTY;
    return kv1 <= q0 ? TILE_FULL : TILE_PARTIAL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &, const Site &s, int, int q1) { return {0, min_of(s.kv_len, q1 + 1)}; }
  LUATTN_FN Range q_range(const LuattnParams &, const Site &s, int kv0, int) { return {min_of(kv0, s.q_len), s.q_len}; }
  LUATTN_FN Range row_interval(const LuattnParams &, const Site &s, int q) { return {0, min_of(s.kv_len, q + 1)}; }
  LUATTN_FN Range column_interval(const LuattnParams &, const Site &s, int kv) {
    return {min_of(kv, s.q_len), s.q_len};
  }
};

struct Score : Hoisted, NoDistanceTerm, NoBiasRow, NoRowShift, NoScoreBounds {
  static constexpr bool has_score = true, score_reads_col = false, reads_columns = false;
  static constexpr int score_reads = 0;
  LUATTN_FN Real score(const LuattnParams &, const Site &, const Head &, const Row &, const Col &, Real dot, Position,
                       Position) {
    return dot;
  }
};

struct Online : Hoisted, NoSavedRows, NoLazyRescaling, NoSoftcapPoly {
  struct State {
    Real x[2];
  };  // m, l
  static constexpr bool has_online = true, has_lse = true, has_rescale = true;
  static constexpr bool mask_by_inf = true, mask_by_zero = false, prob_is_sigmoid = false;
  static constexpr int num_state = 2, num_reductions = 2, prob_term = 1;
  static constexpr __device__ int reduction(int k) { return k == 0 ? REDUCE_MAX : REDUCE_SUM_DEFERRED; }
  static constexpr __device__ bool state_deferred(int i) { return i == 1; }
  // m is finite: see mask_by_inf.
  LUATTN_FN State init(const LuattnParams &, const Site &, const Head &, const Row &) {
    return {{Real(-1e+37), Real(0)}};
  }
  template <int K>
  LUATTN_FN Real term(const LuattnParams &, const Site &, const Head &head, const Row &, const State &old,
                      const Real *red, Real score, int) {
    if constexpr (K == 0) {
      return score;
    } else {
      const Real m = max_of(old.x[0], head.scale * red[0]);
      return power_of_two(score * head.scale_log2 - m * Real(1.4426950408889634));
    }
  }
  LUATTN_FN Real rescale(const LuattnParams &, const Site &, const Head &head, const Row &, const State &old,
                         const Real *red) {
    const Real m = max_of(old.x[0], head.scale * red[0]);
    return power_of_two((old.x[0] - m) * Real(1.4426950408889634));
  }
  LUATTN_FN State next(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &old,
                       const Real *red) {
    return {{max_of(old.x[0], head.scale * red[0]), old.x[1] * rescale(p, s, head, row, old, red) + red[1]}};
  }
  LUATTN_FN Real out_scale(const LuattnParams &, const Site &, const Head &, const Row &, const State &state) {
    return Real(1) / state.x[1];
  }
  LUATTN_FN Real lse(const LuattnParams &, const Site &, const Head &, const Row &, const State &state) {
    return state.x[0] + log(state.x[1]);
  }
};

struct Grad : Hoisted, NoAccumulators, NoElementGrads, NoParameterSums {
  struct BwdRow {
    Real x[2];
  };  // lse * log2(e), delta - dlse
  struct Acc {
    Real x[1];
  };
  static constexpr bool has_grad = true, grad_reads_row = false, grad_is_light = true;
  static constexpr int num_bwd_rows = 2, prob_rows = 1;
  LUATTN_FN BwdRow prepare(const LuattnParams &, const Site &, const Head &, const Row &, int, Real lse, const Real *,
                           Real delta, Real dlse, Acc &) {
    return {{lse * Real(1.4426950408889634), delta - dlse}};
  }
  template <bool WithInputs>
  LUATTN_FN void grad(const LuattnParams &, const Site &, const Head &head, const Row &, const Col &, const BwdRow &row,
                      Real dot, Real dp, Position, Position, Real, Real &prob, Real &ds, Acc &) {
    prob = power_of_two(dot * head.scale_log2 - row.x[0]);
    ds = prob * (dp - row.x[1]);
  }
};

struct Spec : Mask, Score, Online, Grad, NoMods {};
