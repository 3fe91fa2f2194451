// spec.cuh: phi = sigmoid(s + bias), O = sum phi v / (floor + sum phi), with floor = 0. No maximum, no lse,
// one saved row number. Rows below 5 keep nothing: their factor is infinite, and must reach nothing.
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
    Real scale, bias, floor;
  };
  struct Row {};
  struct Col {};
  struct State {
    Real x[1];
  };
  struct BwdRow {
    Real x[2];
  };
  struct Acc {
    Real x[2];
  };
  static constexpr bool has_mask = true, keep_is_cheap = true, keep_apart = false, row_for_keep = false, score_reads_col = true, row_from_start = false, columns_apart = false, grad_reads_row = true, grad_is_light = true, has_lse = false, has_rescale = false, has_distance_term = false, has_line = false, reads_columns = false, lines_shared = false, has_shift = false, lags = false, mask_by_inf = true, mask_by_zero = false, has_small = false, prob_is_sigmoid = false;
  static constexpr bool has_query_mod = false, has_key_mod = false, has_value_mod = false;
  static constexpr bool grad_adds = true;
  static constexpr int score_reads = 0, row_ranges = 0, row_period = 0, column_ranges = 0, column_period = 0, num_saved = 1, num_stats = 0, num_reductions = 1, num_state = 1, num_bwd_rows = 2, prob_rows = -1,
                       num_acc = 2, prob_term = 0, sums = 0, distance_step = 0, pairs_input = -1;
  static constexpr bool may_be_alike = false, has_score_bounds = false, pairs_in_line = false, pairs_pitched = false;
  static constexpr __device__ int reduction(int) { return REDUCE_SUM_DEFERRED; }
  static constexpr __device__ bool red_shifted(int) { return false; }
  static constexpr __device__ bool state_deferred(int) { return true; }
  static constexpr __device__ int stat_input(int) { return 0; }
  static constexpr __device__ int stat_axis(int) { return 0; }
  static constexpr __device__ int stat_block(int) { return 1; }
  static constexpr int walk_rows = Config::tile_m, walk_columns = Config::tile_n;
  LUATTN_FN Real sigmoid(Real x) {
    if constexpr (is_double)
      return 1 / (1 + exp(-x));
    else
      return 1 / (1 + expf(-x));
  }
  LUATTN_FN Head head(const LuattnParams &p, const Site &) {
    return {Real(p.scale), Real(p.scalar[0]), Real(p.scalar[1])};
  }
  LUATTN_FN Row row(const LuattnParams &p, const Site &, const Head &, int q) {
    if (q < 0 || q >= p.q_len) __trap();
    return {};
  }
  LUATTN_FN Col col(const LuattnParams &p, const Site &, const Head &, int kv) {
    if (kv < 0 || kv >= p.kv_len) __trap();
    return {};
  }
  LUATTN_FN Real score(const LuattnParams &, const Site &, const Head &h, const Row &, const Col &, Real dot,
                       int, int) {
    return h.scale * dot + h.bias;
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
    return q >= 5 && (q + kv + s.h) % 3 != 0;
  }
  LUATTN_FN State init(const LuattnParams &, const Site &, const Head &, const Row &) { return {{Real(0)}}; }
  template <int K>
  LUATTN_FN Real term(const LuattnParams &, const Site &, const Head &, const Row &, const State &,
                      const Real *, Real score, int) {
    return sigmoid(score);
  }
  LUATTN_FN Real prob(const LuattnParams &, const Site &, const Head &, const Row &, const State &,
                      const Real *, Real score, int) {
    return sigmoid(score);
  }
  LUATTN_FN Real rescale(const LuattnParams &, const Site &, const Head &, const Row &, const State &,
                         const Real *) {
    return Real(1);
  }
  LUATTN_FN State next(const LuattnParams &, const Site &, const Head &, const Row &, const State &old,
                       const Real *red) {
    return {{old.x[0] + red[0]}};
  }
  LUATTN_FN State raise(const LuattnParams &, const Site &, const Head &, const Row &, const State &old,
                        const Real *) {
    return old;
  }
  LUATTN_FN Real out_scale(const LuattnParams &, const Site &, const Head &h, const Row &, const State &st) {
    return 1 / (h.floor + st.x[0]);
  }
  LUATTN_FN Real lse(const LuattnParams &, const Site &, const Head &, const Row &, const State &) {
    return Real(0);
  }
  LUATTN_FN void save(const LuattnParams &, const Site &, const Head &h, const Row &, const State &st,
                      Real *out) {
    out[0] = 1 / (h.floor + st.x[0]);
  }
  LUATTN_FN BwdRow prepare(const LuattnParams &, const Site &, const Head &, const Row &, int, Real,
                           const Real *saved, Real delta, Real, Acc &acc) {
    acc.x[1] -= delta * saved[0];
    return {{saved[0], delta}};
  }
  template <bool WithInputs>
  LUATTN_FN void grad(const LuattnParams &p, const Site &s, const Head &h, const Row &r, const Col &c,
                      const BwdRow &b, Real dot, Real dp, int q, int kv, Real, Real &prob, Real &ds, Acc &acc) {
    const Real phi = sigmoid(score(p, s, h, r, c, dot, q, kv));
    prob = b.x[0] * phi;
    ds = b.x[0] * phi * (1 - phi) * (dp - b.x[1]);
    if (WithInputs) acc.x[0] += ds;
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
    for (int i = 0; i < 2; ++i) atomic_add(static_cast<Real *>(p.scalar_grad) + i, acc.x[i]);
  }
  LUATTN_FN Real query_mod(const LuattnParams &, const Site &, Real x, int, int) { return x; }
  LUATTN_FN Real key_mod(const LuattnParams &, const Site &, Real x, int, int) { return x; }
  LUATTN_FN Real value_mod(const LuattnParams &, const Site &, Real x, int, int) { return x; }
  LUATTN_FN Real query_mod_grad(const LuattnParams &, const Site &, Real, Real g, int, int, Acc &) {
    return g;
  }
  LUATTN_FN Real key_mod_grad(const LuattnParams &, const Site &, Real, Real g, int, int, Acc &) { return g; }
  LUATTN_FN Real value_mod_grad(const LuattnParams &, const Site &, Real, Real g, int, int, Acc &) {
    return g;
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &, const Site &, int, int q1, int, int) {
    return q1 < 5 ? TILE_EMPTY : TILE_PARTIAL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &, const Site &s, int, int) { return {0, s.kv_len}; }
  LUATTN_FN Range q_range(const LuattnParams &, const Site &s, int, int) {
    return {min_of(5, s.q_len), s.q_len};
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
