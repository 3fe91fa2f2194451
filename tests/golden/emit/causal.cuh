// spec.cuh: the spec 'causal', written by luattn from causal.lua. The names are those of contract/contract.cuh.
#pragma once
#define LUATTN_NO_GRADIENTS    // of inputs and scalars
#define LUATTN_NO_REAL_BOUNDS  // the mask computes with integers
#define LUATTN_SMALL_BOUNDS    // of 32 bits, at every length
#include "config.cuh"
#include "contract/contract.cuh"
#include "ops/math.cuh"
#include "ops/input.cuh"
#include "ops/input_bounds.cuh"

#define LUATTN_NO_STATS  // nor an entry for them
#define LUATTN_NO_MODS   // of q, k and v, nor an entry for them

struct Spec {
  using Real = float;
  using LineElem = float;
  struct Head {  // the same for all of one (b, h)
    Real scale_0;
    Real mul_1;
  };
  struct Row {};
  struct Col {};
  struct State { Real x[2]; };
  struct BwdRow { Real x[2]; };
  struct Acc { Real x[1]; };

  // What a kernel has to know.
  static constexpr bool has_mask = true;
  static constexpr bool keep_is_cheap = true;
  static constexpr bool keep_apart = false;
  static constexpr bool row_for_keep = true;
  static constexpr bool row_from_start = true;
  static constexpr bool columns_apart = false;
  static constexpr bool score_reads_col = false;
  static constexpr bool grad_reads_row = false;
  static constexpr bool grad_is_light = true;
  static constexpr bool has_lse = true;
  static constexpr bool has_rescale = true;
  static constexpr bool has_distance_term = false;
  static constexpr bool has_line = false;
  static constexpr bool reads_columns = false;
  static constexpr bool lines_shared = false;
  static constexpr bool has_shift = false;
  static constexpr bool has_small = false;
  static constexpr bool lags = false;
  static constexpr bool prob_is_sigmoid = false;
  static constexpr bool mask_by_inf = true;
  static constexpr bool mask_by_zero = false;
  static constexpr bool has_query_mod = false;
  static constexpr bool has_key_mod = false;
  static constexpr bool has_value_mod = false;
  static constexpr bool grad_adds = false;
  static constexpr bool grad_adds_to_memory = false;
  static constexpr bool may_be_alike = false;
  static constexpr bool has_score_bounds = false;
  static constexpr bool pairs_in_line = false;
  static constexpr bool pairs_pitched = false;
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
  static constexpr int prob_rows = 2;
  static constexpr int num_acc = 0;
  static constexpr int prob_term = 1;
  static constexpr int sums = 0;
  static constexpr int distance_step = 0;
  static constexpr int pairs_input = -1;
  static constexpr __device__ int reduction(int i) { return i == 0 ? REDUCE_MAX : i == 1 ? REDUCE_SUM_DEFERRED : REDUCE_SUM; }
  static constexpr __device__ bool red_shifted(int i) { return false; }
  static constexpr __device__ bool state_deferred(int i) { return i == 0 ? true : i == 1 ? false : false; }
  static constexpr __device__ int stat_input(int i) { return 0; }
  static constexpr __device__ int stat_axis(int i) { return 0; }
  static constexpr __device__ int stat_block(int i) { return 1; }
  static constexpr int walk_rows = 64, walk_columns = 128;

  // Computed once per head, per row and per column.
  LUATTN_FN Head head(const LuattnParams &p, const Site &s) {
    const Real t1 = Real(p.scale) * Real(1.4426950408889634);  // causal.lua:4
    Head made;
    made.scale_0 = Real(p.scale);
    made.mul_1 = t1;
    return made;
  }
  LUATTN_FN Row row(const LuattnParams &p, const Site &s, const Head &head, int q) {
    return {};
  }
  LUATTN_FN Col col(const LuattnParams &p, const Site &s, const Head &head, int kv) {
    return {};
  }

  // Elements. A score is handed on divided by the scale.
  LUATTN_FN Real score(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, Real dot, Position q, Position kv) {
    return dot;
  }
  LUATTN_FN Real distance_term(const LuattnParams &p, const Site &s, const Head &head, Position q, Position kv) {
    return Real(0);
  }
  LUATTN_FN Real score_with(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, Real dot, Position q, Position kv, Real term) {
    return score(p, s, head, row, col, dot, q, kv);
  }
  LUATTN_FN InputLine<LineElem> score_line(const LuattnParams &p, const Site &s, const Head &head, int q, int kv) {
    return {};
  }
  LUATTN_FN Real shift(const LuattnParams &p, const Site &s, const Head &head, const Row &row, Position q, Position kv) {
    return Real(0);
  }
  LUATTN_FN bool keep(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const Col &col, int q, int kv) {
    const bool t1 = kv <= q;  // causal.lua:6
    return t1;
  }
  LUATTN_FN Real small_limit(const LuattnParams &p, const Site &s, const Head &head) {
    return Real(0);
  }
  LUATTN_FN Real small_weight(const LuattnParams &p, const Site &s, const Head &head, Real dot, Real term) {
    return Real(0);
  }

  // Online function.
  LUATTN_FN State init(const LuattnParams &p, const Site &s, const Head &head, const Row &row) {
    State made;
    made.x[0] = Real(0);
    made.x[1] = Real(-1e+37);
    return made;
  }
  template <int K>
  LUATTN_FN Real term(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red, Real score, int turn) {
    if constexpr (K == 0) {
      return score;
    } else if constexpr (K == 1) {
      const Real t1 = red[0] * head.scale_0;
      const Real t2 = op_max(old.x[1], t1);  // causal.lua:4
      const Real t3 = t2 * Real(-1.4426950408889634);  // causal.lua:4
      const Real t4 = score * head.mul_1;  // causal.lua:4
      const Real t5 = t3 + t4;  // causal.lua:4
      const Real t6 = op_exp2(t5);  // causal.lua:4
      return t6;
    }
  }
  LUATTN_FN Real prob(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red, Real score, int turn) {
    const Real t1 = red[0] * head.scale_0;
    const Real t2 = op_max(old.x[1], t1);  // causal.lua:4
    const Real t3 = t2 * Real(-1.4426950408889634);  // causal.lua:4
    const Real t4 = score * head.mul_1;  // causal.lua:4
    const Real t5 = t3 + t4;  // causal.lua:4
    const Real t6 = op_exp2(t5);  // causal.lua:4
    return t6;
  }
  LUATTN_FN Real rescale(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = red[0] * head.scale_0;
    const Real t2 = op_max(old.x[1], t1);  // causal.lua:4
    const Real t3 = old.x[1] - t2;  // causal.lua:4
    const Real t4 = t3 * Real(1.4426950408889634);  // causal.lua:4
    const Real t5 = op_exp2(t4);  // causal.lua:4
    return t5;
  }
  LUATTN_FN State next(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    const Real t1 = red[0] * head.scale_0;
    const Real t2 = op_max(old.x[1], t1);  // causal.lua:4
    const Real t3 = old.x[1] - t2;  // causal.lua:4
    const Real t4 = t3 * Real(1.4426950408889634);  // causal.lua:4
    const Real t5 = op_exp2(t4);  // causal.lua:4
    const Real t6 = old.x[0] * t5;  // causal.lua:4
    const Real t7 = red[1] + t6;  // causal.lua:4
    State made;
    made.x[0] = t7;
    made.x[1] = t2;
    return made;
  }
  LUATTN_FN State raise(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      const State &old, const Real *red) {
    return old;
  }
  LUATTN_FN Real out_scale(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const bool t1 = state.x[0] == Real(0);  // causal.lua:4
    const Real t2 = op_div(Real(1), state.x[0]);  // causal.lua:4
    const Real t3 = t1 ? Real(0) : t2;  // causal.lua:4
    return t3;
  }
  LUATTN_FN Real lse(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state) {
    const Real t1 = op_log(state.x[0]);  // causal.lua:4
    const Real t2 = state.x[1] + t1;  // causal.lua:4
    return t2;
  }
  LUATTN_FN void save(const LuattnParams &p, const Site &s, const Head &head, const Row &row, const State &state, Real *out) {
  }

  // Backward.
  LUATTN_FN BwdRow prepare(const LuattnParams &p, const Site &s, const Head &head, const Row &row,
      int q, Real lse, const Real *saved, Real delta, Real dlse, Acc &acc) {
    const Real t1 = delta - dlse;
    const Real t2 = lse * Real(-1.4426950408889634);  // causal.lua:4
    BwdRow made;
    made.x[0] = t1;
    made.x[1] = t2;
    return made;
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
  LUATTN_FN void add_distance(const LuattnParams &p, const Site &s, const Head &head, int q, int kv, Real g, Acc &acc) {
  }
  LUATTN_FN void add_row(const LuattnParams &p, const Site &s, const Head &head, int q, Real g, Acc &acc) {
  }
  LUATTN_FN void add_col(const LuattnParams &p, const Site &s, const Head &head, int kv, Real g, Acc &acc) {
  }
  LUATTN_FN void add_here(const LuattnParams &p, const Site &s, const Head &head, Position q, Position kv, Real g, Acc &acc) {
  }
  LUATTN_FN void add_linear(const LuattnParams &p, const Site &s, const Head &head, int q, int kv, Real g, Real g_by_q, Acc &acc) {
  }
  LUATTN_FN GradLine<Real> distance_line(const LuattnParams &p, const Site &s, const Head &head, int q, int kv) {
    return {};
  }
  LUATTN_FN GradLine<Real> pair_line(const LuattnParams &p, const Site &s, const Head &head, int q, int kv) {
    return {};
  }
  LUATTN_FN void flush(const LuattnParams &p, const Site &s, const Head &head, const Acc &acc) {
  }

  // Elements of q, k and v.
  LUATTN_FN Real query_mod(const LuattnParams &p, const Site &s, Real x, int i, int d) {
    return x;
  }
  LUATTN_FN Real query_mod_grad(const LuattnParams &p, const Site &s, Real x, Real g, int i, int d, Acc &acc) {
    return g;
  }
  LUATTN_FN Real key_mod(const LuattnParams &p, const Site &s, Real x, int i, int d) {
    return x;
  }
  LUATTN_FN Real key_mod_grad(const LuattnParams &p, const Site &s, Real x, Real g, int i, int d, Acc &acc) {
    return g;
  }
  LUATTN_FN Real value_mod(const LuattnParams &p, const Site &s, Real x, int i, int d) {
    return x;
  }
  LUATTN_FN Real value_mod_grad(const LuattnParams &p, const Site &s, Real x, Real g, int i, int d, Acc &acc) {
    return g;
  }

  // Tiles.
  LUATTN_FN TileClass rest_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    return TILE_FULL;
  }
  LUATTN_FN TileClass bounds_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    const tri b1 = ivi_le(ivi_make(kv0, kv1), ivi_make(q0, q1));  // causal.lua:6
    return !b1.can_be_true ? TILE_EMPTY : b1.can_be_false ? TILE_PARTIAL : TILE_FULL;
  }
  LUATTN_FN TileClass tile_class(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    return bounds_class(p, s, q0, q1, kv0, kv1);
  }
  LUATTN_FN bool alike(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
    return false;
  }
  LUATTN_FN Range kv_range(const LuattnParams &p, const Site &s, int q0, int q1) {
    const int t1 = q1 + 1;
    return clip_range(0, t1, s.kv_len);
  }
  LUATTN_FN Range q_range(const LuattnParams &p, const Site &s, int kv0, int kv1) {
    return clip_range(kv0, s.q_len, s.q_len);
  }
  LUATTN_FN Range row_range(const LuattnParams &p, const Site &s, int q0) {
    const int t1 = q0 + 1;
    return clip_range(0, t1, s.kv_len);
  }
  LUATTN_FN Range row_second(const LuattnParams &p, const Site &s, int q0) {
    return {0, s.kv_len};
  }
  LUATTN_FN Range row_rest(const LuattnParams &p, const Site &s, int q0) {
    return {0, 0};
  }
  LUATTN_FN Range column_range(const LuattnParams &p, const Site &s, int kv0) {
    return clip_range(kv0, s.q_len, s.q_len);
  }
  LUATTN_FN Range column_second(const LuattnParams &p, const Site &s, int kv0) {
    return {0, s.q_len};
  }
  LUATTN_FN Range column_rest(const LuattnParams &p, const Site &s, int kv0) {
    return {0, 0};
  }
};
