// spec.cuh: softmax with one of everything: documents told apart by block minima and maxima, a bias for each
// key with gradient, a slope, a sink, all three input mods, dlse, a saved number, sums over the row at every
// step.
#pragma once
#include "config.cuh"
#include "contract.cuh"
struct Spec {
  static constexpr bool is_double = sizeof(Config::Elem) == 8;
  template <bool B, class T, class F>
  struct pick {
    using type = F;
  };
  template <class T, class F>
  struct pick<true, T, F> {
    using type = T;
  };
  using Real = pick<is_double, double, float>::type;
  using LineElem = float;
  struct Head {
    Real scale, slope, sink;
    const Real *bias;
  };
  struct Row {};
  struct Col {
    Real bias;
  };
  struct State {
    Real x[2];
  };
  struct BwdRow {
    Real x[2];
  };
  struct Acc {
    Real x[5];
  };
  static constexpr bool has_mask = true, keep_is_cheap = true, keep_apart = false, row_for_keep = false, score_reads_col = true, row_from_start = false, columns_apart = false, grad_reads_row = true, grad_is_light = true, has_lse = true, has_rescale = true, has_distance_term = false, has_line = false, reads_columns = false, lines_shared = false, has_shift = false, lags = false, mask_by_inf = false, mask_by_zero = false, has_small = false, prob_is_sigmoid = false;
  static constexpr bool has_query_mod = true, has_key_mod = true, has_value_mod = true;
  static constexpr bool grad_adds = true;
  static constexpr int score_reads = 0, row_ranges = 0, row_period = 0, column_ranges = 0, column_period = 0, num_saved = 1, num_stats = 1, num_reductions = 2, num_state = 2, num_bwd_rows = 2, prob_rows = -1,
                       num_acc = 5, prob_term = -1, sums = 0, distance_step = 0, pairs_input = -1;
  static constexpr bool may_be_alike = false, has_score_bounds = false, pairs_in_line = false, pairs_pitched = false;
  static constexpr __device__ int reduction(int k) { return k == 0 ? REDUCE_MAX : REDUCE_SUM; }
  static constexpr __device__ bool red_shifted(int) { return false; }
  static constexpr __device__ bool state_deferred(int) { return false; }
  static constexpr __device__ int stat_input(int) { return 0; }
  static constexpr __device__ int stat_axis(int) { return 1; }
  static constexpr __device__ int stat_block(int) { return 32; }
  static constexpr int walk_rows = Config::tile_m, walk_columns = Config::tile_n;
  LUATTN_FN float ex(float x) { return expf(x); }
  LUATTN_FN double ex(double x) { return exp(x); }
  LUATTN_FN int doc(const LuattnParams &p, int b, int i) {
    if (i < 0 || i >= p.input[0].size[1]) __trap();
    return static_cast<const int *>(p.input[0].data)[b * p.input[0].stride[0] + i * p.input[0].stride[1]];
  }
  LUATTN_FN Head head(const LuattnParams &p, const Site &s) {
    return {Real(p.scale), Real(p.scalar[0]), Real(p.scalar[1]),
            static_cast<const Real *>(p.input[1].data) + s.h * p.input[1].stride[0]};
  }
  LUATTN_FN Row row(const LuattnParams &p, const Site &s, const Head &, int q) {
    if (q < 0 || q >= p.q_len) __trap();
    return {};
  }
  LUATTN_FN Col col(const LuattnParams &p, const Site &, const Head &h, int kv) {
    if (kv < 0 || kv >= p.kv_len) __trap();
    return {h.bias[kv]};
  }
  LUATTN_FN Real score(const LuattnParams &, const Site &, const Head &h, const Row &, const Col &c, Real dot,
                       int q, int kv) {
    return h.scale * dot + h.slope * Real(0.01) * Real(kv - q) + c.bias;
  }
  LUATTN_FN Real distance_term(const LuattnParams &, const Site &, const Head &, Position, Position) { return Real(0); }
  LUATTN_FN InputLine<LineElem> score_line(const LuattnParams &, const Site &, const Head &, int, int) { return {}; }
  LUATTN_FN Real score_with(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const Col &col, Real dot,
                            Position q, Position kv, Real) {
    return score(p, s, head, row, col, dot, q, kv);
  }
  LUATTN_FN Real shift(const LuattnParams &, const Site &, const Head &, const Row &, Position, Position) { return Real(0); }
  LUATTN_FN Real small_limit(const LuattnParams &, const Site &, const Head &) { return Real(0); }
  LUATTN_FN Real small_weight(const LuattnParams &, const Site &, const Head &, Real, Real) { return Real(0); }
  LUATTN_FN bool keep(const LuattnParams &p, const Site &s, const Head &, const Row &, const Col &, int q,
                      int kv) {
    if (q >= p.q_len || kv >= p.kv_len) __trap();
    return doc(p, s.b, q) == doc(p, s.b, kv) && kv <= q + 7;
  }
  LUATTN_FN State init(const LuattnParams &, const Site &, const Head &h, const Row &) {
    return {{h.sink, Real(1)}};
  }
  template <int K>
  LUATTN_FN Real term(const LuattnParams &, const Site &, const Head &, const Row &, const State &old,
                      const Real *red, Real score, int) {
    if constexpr (K == 0)
      return score;
    else
      return ex(score - max_of(old.x[0], red[0]));
  }
  LUATTN_FN Real prob(const LuattnParams &p, const Site &s, const Head &h, const Row &r, const State &old,
                      const Real *red, Real score, int turn) {
    return term<1>(p, s, h, r, old, red, score, turn);
  }
  LUATTN_FN Real rescale(const LuattnParams &, const Site &, const Head &, const Row &, const State &old,
                         const Real *red) {
    return ex(old.x[0] - max_of(old.x[0], red[0]));
  }
  LUATTN_FN State next(const LuattnParams &p, const Site &s, const Head &h, const Row &r, const State &old,
                       const Real *red) {
    return {{max_of(old.x[0], red[0]), old.x[1] * rescale(p, s, h, r, old, red) + red[1]}};
  }
  LUATTN_FN State raise(const LuattnParams &, const Site &, const Head &, const Row &, const State &old,
                        const Real *) {
    return old;
  }
  LUATTN_FN Real out_scale(const LuattnParams &, const Site &, const Head &, const Row &, const State &st) {
    return Real(1) / st.x[1];
  }
  LUATTN_FN Real lse(const LuattnParams &, const Site &, const Head &, const Row &, const State &st) {
    return st.x[0] + log(st.x[1]);
  }
  LUATTN_FN void save(const LuattnParams &, const Site &, const Head &, const Row &, const State &st,
                      Real *out) {
    out[0] = (st.x[0] + log(st.x[1])) / 2;
  }
  LUATTN_FN BwdRow prepare(const LuattnParams &, const Site &, const Head &h, const Row &, int, Real lse,
                           const Real *saved, Real delta, Real dlse, Acc &acc) {
    acc.x[1] += ex(h.sink - lse) * (dlse - delta);
    return {{lse / 2 + saved[0], delta - dlse}};
  }
  template <bool WithInputs>
  LUATTN_FN void grad(const LuattnParams &p, const Site &s, const Head &h, const Row &r, const Col &c,
                      const BwdRow &b, Real dot, Real dp, int q, int kv, Real, Real &prob, Real &ds, Acc &acc) {
    if (q >= p.q_len || kv >= p.kv_len) __trap();
    prob = ex(score(p, s, h, r, c, dot, q, kv) - b.x[0]);
    ds = prob * (dp - b.x[1]);
    if (WithInputs) {
      acc.x[0] += ds * Real(0.01) * Real(kv - q);
      if (p.input[1].grad)
        atomic_add(static_cast<Real *>(p.input[1].grad) + i64(s.h) * p.input[1].size[1] + kv, ds);
    }
  }
  LUATTN_FN void add_distance(const LuattnParams &, const Site &, const Head &, int, int, Real, Acc &) {}
  LUATTN_FN void add_row(const LuattnParams &, const Site &, const Head &, int, Real, Acc &) {}
  LUATTN_FN void add_col(const LuattnParams &, const Site &, const Head &, int, Real, Acc &) {}
  LUATTN_FN void add_here(const LuattnParams &, const Site &, const Head &, Position, Position, Real, Acc &) {}
  LUATTN_FN void add_linear(const LuattnParams &, const Site &, const Head &, int, int, Real, Real, Acc &) {}
  LUATTN_FN GradLine<Real> distance_line(const LuattnParams &, const Site &, const Head &, int, int) { return {}; }
  LUATTN_FN GradLine<Real> pair_line(const LuattnParams &, const Site &, const Head &, int, int) { return {}; }
  LUATTN_FN bool alike(const LuattnParams &, const Site &, int, int, int, int) { return false; }
  LUATTN_FN void flush(const LuattnParams &p, const Site &, const Head &, const Acc &acc) {
    for (int i = 0; i < 5; ++i) atomic_add(static_cast<Real *>(p.scalar_grad) + i, acc.x[i]);
  }
  LUATTN_FN Real query_mod(const LuattnParams &p, const Site &, Real x, int, int d) {
    return x * (1 + Real(p.scalar[2]) * Real(d % 3));
  }
  LUATTN_FN Real key_mod(const LuattnParams &p, const Site &, Real x, int i, int) {
    return x + Real(p.scalar[3]) * Real(i % 5);
  }
  LUATTN_FN Real value_mod(const LuattnParams &p, const Site &, Real x, int, int) {
    return x * Real(p.scalar[4]);
  }
  LUATTN_FN Real query_mod_grad(const LuattnParams &p, const Site &, Real x, Real g, int, int d, Acc &acc) {
    acc.x[2] += g * x * Real(d % 3);
    return g * (1 + Real(p.scalar[2]) * Real(d % 3));
  }
  LUATTN_FN Real key_mod_grad(const LuattnParams &, const Site &, Real, Real g, int i, int, Acc &acc) {
    acc.x[3] += g * Real(i % 5);
    return g;
  }
  LUATTN_FN Real value_mod_grad(const LuattnParams &p, const Site &, Real x, Real g, int, int, Acc &acc) {
    acc.x[4] += g * x;
    return g * Real(p.scalar[4]);
  }
  LUATTN_FN void span(const LuattnParams &p, int b, int i0, int i1, int &lo, int &hi) {
    const int blocks = ceil_div(p.input[0].size[1], 32);
    lo = 0x7fffffff;
    hi = -0x7fffffff;
    for (int j = i0 / 32; j <= i1 / 32; ++j) {
      lo = min_of(lo, p.stats[0][(b * blocks + j) * 2]);
      hi = max_of(hi, p.stats[0][(b * blocks + j) * 2 + 1]);
    }
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    if (q1 >= p.q_len || kv1 >= p.kv_len) __trap();
    int ql, qh, kl, kh;
    span(p, s.b, q0, q1, ql, qh);
    span(p, s.b, kv0, kv1, kl, kh);
    if (kv0 > q1 + 7 || qh < kl || kh < ql) return TILE_EMPTY;
    return ql == qh && kl == kh && ql == kl && kv1 <= q0 + 7 ? TILE_FULL : TILE_PARTIAL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &, const Site &s, int, int q1) {
    return {0, min_of(s.kv_len, q1 + 8)};
  }
  LUATTN_FN Range q_range(const LuattnParams &, const Site &s, int kv0, int) {
    return {min_of(max_of(kv0 - 7, 0), s.q_len), s.q_len};
  }
  LUATTN_FN Range row_range(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range row_second(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range row_rest(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range column_range(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range column_second(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range column_rest(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN TileClass rest_class(const LuattnParams &, const Site &, int, int, int, int) { return TILE_FULL; }
  LUATTN_FN TileClass bounds_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    return tile_class(p, s, q0, q1, kv0, kv1);
  }
};
