// spec.cuh: causal softmax, written by hand: an example of what gen/emit writes, for an editor and for nvcc.
//
//   score = scale * q.k,  kept where kv_idx <= q_idx
//   m' = max(m, max score),  p = exp(score - m'),  l' = l exp(m - m') + sum p,  O = sum p v / l,  lse = m + log l
//
// score() hands the unscaled dot on. The scale and log2(e) are folded into one factor, so an element costs one FFMA and
// one MUFU.EX2.
#pragma once
#include "config.cuh"
#include "contract/contract.cuh"

struct Spec {
  static constexpr bool is_double = sizeof(Config::Elem) == 8;
  template <bool B, class T, class F> struct pick { using type = F; };
  template <class T, class F> struct pick<true, T, F> { using type = T; };
  using Real = pick<is_double, double, float>::type;
  using LineElem = float;

  struct Head { Real scale, scale_log2; };
  struct Row {};
  struct Col {};
  struct State { Real x[2]; };   // m, l
  struct BwdRow { Real x[2]; };  // lse * log2(e), delta - dlse
  struct Acc { Real x[1]; };

  static constexpr bool has_mask = true;
  static constexpr bool keep_is_cheap = true;
  static constexpr bool keep_apart = false;
  static constexpr bool row_for_keep = true;
  static constexpr bool score_reads_col = false;
  static constexpr bool row_from_start = true;
  static constexpr bool columns_apart = false;
  static constexpr bool grad_reads_row = false;
  static constexpr bool grad_is_light = true;
  static constexpr bool has_lse = true;
  static constexpr bool has_rescale = true;
  static constexpr bool has_distance_term = false;
  static constexpr bool has_line = false, reads_columns = false, lines_shared = false;
  static constexpr bool has_shift = false;
  static constexpr bool lags = false;
  static constexpr bool mask_by_inf = true;
  static constexpr bool mask_by_zero = false;
  static constexpr bool has_small = false;
  static constexpr bool prob_is_sigmoid = false;
  static constexpr bool has_query_mod = false;
  static constexpr bool has_key_mod = false;
  static constexpr bool has_value_mod = false;
  static constexpr bool grad_adds = false, grad_adds_to_memory = false;
  static constexpr int score_reads = 0;
  static constexpr int row_ranges = 1;
  static constexpr int row_period = 0;
  static constexpr int column_ranges = 1;
  static constexpr int column_period = 0;
  static constexpr int num_saved = 0;
  static constexpr int num_stats = 0;
  static constexpr int num_reductions = 2;
  static constexpr int num_state = 2;
  static constexpr int num_bwd_rows = 2;
  static constexpr int prob_rows = 1;
  static constexpr int num_acc = 0;
  static constexpr int prob_term = 1;
  static constexpr int sums = 0;
  static constexpr bool may_be_alike = false, has_score_bounds = false;
  static constexpr bool pairs_in_line = false, pairs_pitched = false;
  static constexpr int distance_step = 0, pairs_input = -1;
  static constexpr __device__ int reduction(int k) { return k == 0 ? REDUCE_MAX : REDUCE_SUM_DEFERRED; }
  static constexpr __device__ bool red_shifted(int) { return false; }
  static constexpr __device__ bool state_deferred(int i) { return i == 1; }
  static constexpr __device__ int stat_input(int) { return 0; }
  static constexpr __device__ int stat_axis(int) { return 0; }
  static constexpr __device__ int stat_block(int) { return 1; }
  static constexpr int walk_rows = Config::tile_m, walk_columns = Config::tile_n;

  LUATTN_FN double power_of_two(double x) { return exp2(x); }
  LUATTN_FN float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

  LUATTN_FN Head head(const LuattnParams &p, const Site &) {
    Head h;
    h.scale = Real(p.scale);
    h.scale_log2 = Real(p.scale * 1.4426950408889634);
    return h;
  }
  LUATTN_FN Row row(const LuattnParams &, const Site &, const Head &, int) { return {}; }
  LUATTN_FN Col col(const LuattnParams &, const Site &, const Head &, int) { return {}; }

  LUATTN_FN Real score(const LuattnParams &, const Site &, const Head &, const Row &, const Col &, Real dot, Position,
                       Position) {
    return dot;
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
  LUATTN_FN bool keep(const LuattnParams &, const Site &, const Head &, const Row &, const Col &, int q, int kv) {
    return kv <= q;
  }

  LUATTN_FN State init(const LuattnParams &, const Site &, const Head &, const Row &) {
    State next;
    next.x[0] = Real(-1e+37);  // finite: see mask_by_inf
    next.x[1] = Real(0);
    return next;
  }
  template <int K>
  LUATTN_FN Real term(const LuattnParams &, const Site &, const Head &head, const Row &, const State &old, const Real *red,
                      Real score, int) {
    if constexpr (K == 0) {
      return score;
    } else {
      const Real m = max_of(old.x[0], head.scale * red[0]);
      return power_of_two(score * head.scale_log2 - m * Real(1.4426950408889634));
    }
  }
  LUATTN_FN Real prob(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &old,
                      const Real *red, Real score, int turn) {
    return term<1>(p, s, head, row, old, red, score, turn);
  }
  LUATTN_FN Real rescale(const LuattnParams &, const Site &, const Head &head, const Row &, const State &old,
                         const Real *red) {
    const Real m = max_of(old.x[0], head.scale * red[0]);
    return power_of_two((old.x[0] - m) * Real(1.4426950408889634));
  }
  LUATTN_FN State next(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &old,
                       const Real *red) {
    State next;
    next.x[0] = max_of(old.x[0], head.scale * red[0]);
    next.x[1] = old.x[1] * rescale(p, s, head, row, old, red) + red[1];
    return next;
  }
  LUATTN_FN State raise(const LuattnParams &, const Site &, const Head &, const Row &, const State &old,
                        const Real *) {
    return old;
  }
  LUATTN_FN Real out_scale(const LuattnParams &, const Site &, const Head &, const Row &, const State &state) {
    return Real(1) / state.x[1];
  }
  LUATTN_FN Real lse(const LuattnParams &, const Site &, const Head &, const Row &, const State &state) {
    return state.x[0] + log(state.x[1]);
  }
  LUATTN_FN void save(const LuattnParams &, const Site &, const Head &, const Row &, const State &, Real *) {}

  LUATTN_FN BwdRow prepare(const LuattnParams &, const Site &, const Head &, const Row &, int, Real lse, const Real *,
                           Real delta, Real dlse, Acc &) {
    BwdRow row;
    row.x[0] = lse * Real(1.4426950408889634);
    row.x[1] = delta - dlse;
    return row;
  }
  template <bool WithInputs>
  LUATTN_FN void grad(const LuattnParams &, const Site &, const Head &head, const Row &, const Col &, const BwdRow &row,
                      Real dot, Real dp, Position, Position, Real, Real &prob, Real &ds, Acc &) {
    prob = power_of_two(dot * head.scale_log2 - row.x[0]);
    ds = prob * (dp - row.x[1]);
  }
  LUATTN_FN void add_distance(const LuattnParams &, const Site &, const Head &, int, int, Real, Acc &) {}
  LUATTN_FN void add_row(const LuattnParams &, const Site &, const Head &, int, Real, Acc &) {}
  LUATTN_FN void add_col(const LuattnParams &, const Site &, const Head &, int, Real, Acc &) {}
  LUATTN_FN void add_here(const LuattnParams &, const Site &, const Head &, Position, Position, Real, Acc &) {}
  LUATTN_FN void add_linear(const LuattnParams &, const Site &, const Head &, int, int, Real, Real, Acc &) {}
  LUATTN_FN GradLine<Real> distance_line(const LuattnParams &, const Site &, const Head &, int, int) { return {}; }
  LUATTN_FN GradLine<Real> pair_line(const LuattnParams &, const Site &, const Head &, int, int) { return {}; }
  LUATTN_FN bool alike(const LuattnParams &, const Site &, int, int, int, int) { return false; }
  LUATTN_FN void flush(const LuattnParams &, const Site &, const Head &, const Acc &) {}

  LUATTN_FN Real query_mod(const LuattnParams &, const Site &, Real x, int, int) { return x; }
  LUATTN_FN Real key_mod(const LuattnParams &, const Site &, Real x, int, int) { return x; }
  LUATTN_FN Real value_mod(const LuattnParams &, const Site &, Real x, int, int) { return x; }
  LUATTN_FN Real query_mod_grad(const LuattnParams &, const Site &, Real, Real g, int, int, Acc &) { return g; }
  LUATTN_FN Real key_mod_grad(const LuattnParams &, const Site &, Real, Real g, int, int, Acc &) { return g; }
  LUATTN_FN Real value_mod_grad(const LuattnParams &, const Site &, Real, Real g, int, int, Acc &) { return g; }

  LUATTN_FN TileClass tile_class(const LuattnParams &, const Site &, int q0, int q1, int kv0, int kv1) {
    if (kv0 > q1) return TILE_EMPTY;
    return kv1 <= q0 ? TILE_FULL : TILE_PARTIAL;
  }
  LUATTN_FN Range kv_range(const LuattnParams &, const Site &s, int, int q1) { return {0, min_of(s.kv_len, q1 + 1)}; }
  LUATTN_FN Range q_range(const LuattnParams &, const Site &s, int kv0, int) { return {min_of(kv0, s.q_len), s.q_len}; }
  LUATTN_FN Range row_range(const LuattnParams &, const Site &s, int q) { return {0, min_of(s.kv_len, q + 1)}; }
  LUATTN_FN Range row_second(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range row_rest(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range column_range(const LuattnParams &, const Site &s, int kv) { return {min_of(kv, s.q_len), s.q_len}; }
  LUATTN_FN Range column_second(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN Range column_rest(const LuattnParams &, const Site &, int) { return {0, 0}; }
  LUATTN_FN TileClass rest_class(const LuattnParams &, const Site &, int, int, int, int) { return TILE_FULL; }
  LUATTN_FN TileClass bounds_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    return tile_class(p, s, q0, q1, kv0, kv1);
  }
};
