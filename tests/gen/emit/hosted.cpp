// hosted.cpp: compiles a generated spec.cuh for the host, with naive kernels in double around it: forward's
// with HOSTED_FORWARD, otherwise backward's. hosted_test.c loads the result and compares it with the CPU
// path, which evaluates the expressions before folding, hoisting and printing.
#include "host_cuda.hpp"

#include "score/merge_rows.cuh"
#include "score/online_rows.cuh"
#include "spec.cuh"
#include "work/positions.cuh"
#include "work/tile_walk.cuh"

static_assert(ValidSpec<Spec>);
#ifdef HOSTED_FORWARD
static_assert(ValidMerge<Spec>);
#endif
static_assert(sizeof(Spec::Real) == 8, "emitted for double");

static constexpr int D = Config::head_dim, DV = Config::head_dim_v, M = Config::tile_m, N = Config::tile_n;
enum { WHICH_Q, WHICH_K, WHICH_V };

static double *at(const LuattnTensor &t, int b, int h, int i) {
  return static_cast<double *>(t.data) + b * t.batch + h * t.head + i * t.seq;
}
// Splits a position into base and offset, as kernels do, with an arbitrary base.
static Position in_parts(int at) { return {at / 2, at - at / 2}; }

static bool in(Range r, int at) { return r.lo <= at && at < r.hi; }

// Returns the arguments at channel d of a mod that reads x[..]: elements of x and of g, the incoming gradient
// or null.
template <class Row>
static RowValues<double, Row::count> seen_from(const double *x, const double *g, int d) {
  RowValues<double, Row::count> row;
  for (int t = 0; t < Row::count; ++t) {
    row.d[t] = Row::vector(t, d / Row::width) * Row::width + Row::lane(t, d % Row::width);
    row.x[t] = x[row.d[t]];
    row.g[t] = g != nullptr ? g[row.d[t]] : NAN;
  }
  return row;
}

// Code common to both passes. Spec is a template parameter, as in kernels, so that absent hooks are not
// instantiated.
template <class Spec>
struct Hosted {
  using Head = typename Spec::Head;
  const LuattnParams &p;

  double mod(int which, int b, int h, int i, int d) const {
    const LineSite s{b, h, p.shape.q_len, p.shape.kv_len};
    const double *row = at(which == WHICH_Q ? p.tensors.q : which == WHICH_K ? p.tensors.k : p.tensors.v, b, h, i);
    const double x = row[d];
    if constexpr (Spec::has_query_mod)
      if (which == WHICH_Q) {
        if constexpr (QueryReadsRow<Spec>)
          return Spec::query_mod(p, s, x, seen_from<typename Spec::QueryRow>(row, nullptr, d), i, d);
        else
          return Spec::query_mod(p, s, x, i, d);
      }
    if constexpr (Spec::has_key_mod)
      if (which == WHICH_K) {
        if constexpr (KeyReadsRow<Spec>)
          return Spec::key_mod(p, s, x, seen_from<typename Spec::KeyRow>(row, nullptr, d), i, d);
        else
          return Spec::key_mod(p, s, x, i, d);
      }
    if constexpr (Spec::has_value_mod)
      if (which == WHICH_V) {
        if constexpr (ValueReadsRow<Spec>)
          return Spec::value_mod(p, s, x, seen_from<typename Spec::ValueRow>(row, nullptr, d), i, d);
        else
          return Spec::value_mod(p, s, x, i, d);
      }
    return x;
  }
  double dot(int b, int h, int q, int kv) const {
    double sum = 0;
    for (int d = 0; d < D; ++d) sum += mod(WHICH_Q, b, h, q, d) * mod(WHICH_K, b, h / p.shape.group, kv, d);
    return sum;
  }
  bool kept(const LineSite &s, const Head &head, int q, int kv) const {
    if constexpr (Spec::has_mask)
      return Spec::keep(p, s, head, Spec::row(p, s, head, q), Spec::col(p, s, head, kv), q, kv);
    return true;
  }
  double term(const LineSite &s, const Head &head, int q, int kv) const {
    if constexpr (Spec::has_distance_term) return Spec::distance_term(p, s, head, in_parts(q), in_parts(kv));
    return 0;
  }

  // Returns whether row and column intervals, if the spec has them, agree with the mask.
  bool row_keeps(const LineSite &s, int q, int kv, bool kept) const {
    bool holds = kept;
    if constexpr (Spec::has_mask && Spec::row_intervals > 0) {
      if (Spec::row_from_start && Spec::row_interval(p, s, q).lo != 0) return !kept;
      holds = in(Spec::row_interval(p, s, q), kv);
      if constexpr (Spec::row_intervals == 2) holds |= in(Spec::second_row_interval(p, s, q), kv);
      if constexpr (Spec::row_period > 0) holds &= in(Spec::row_remainders(p, s, q), kv % Spec::row_period);
    }
    return holds;
  }
  bool column_keeps(const LineSite &s, int q, int kv, bool kept) const {
    bool holds = kept;
    if constexpr (Spec::column_intervals > 0) {
      holds = in(Spec::column_interval(p, s, kv), q);
      if constexpr (Spec::column_intervals == 2) holds |= in(Spec::second_column_interval(p, s, kv), q);
      if constexpr (Spec::column_period > 0) holds &= in(Spec::column_remainders(p, s, kv), q % Spec::column_period);
    }
    return holds;
  }
  // Returns whether the data part of the mask keeps the whole tile.
  bool has_full_data(const LineSite &s, int q0, int q1, int kv0, int kv1) const {
    if constexpr (Spec::has_data_part) return Spec::data_class(p, s, q0, q1, kv0, kv1) == TILE_FULL;
    return true;
  }

  // Counts errors of the tile walk: skipped tiles that keep a pair, and full tiles that drop one.
  int wrong_tiles(const LineSite &s, const Head &head) const {
    int wrong = 0;
    for (int i = 0; i * M < p.shape.q_len; ++i) {
      std::vector<int> seen((p.shape.kv_len + N - 1) / N, TILE_EMPTY);
      KvTiles<Spec, M, N> walk(p, s, i);
      for (Tile t = walk.next(p, s); t.valid(); t = walk.next(p, s))
        seen[t.index] = t.masked ? TILE_PARTIAL : TILE_FULL;
      for (int q = i * M; q < std::min(p.shape.q_len, i * M + M); ++q)
        for (int kv = 0; kv < p.shape.kv_len; ++kv) {
          const bool k = kept(s, head, q, kv);
          wrong += (seen[kv / N] == TILE_EMPTY && k) || (seen[kv / N] == TILE_FULL && !k);
          const int q1 = std::min(p.shape.q_len, i * M + M) - 1, kv0 = kv / N * N,
                    kv1 = std::min(p.shape.kv_len, kv0 + N) - 1;
          const bool full = has_full_data(s, i * M, q1, kv0, kv1);
          if (full || !Spec::rows_need_full_data) wrong += k != row_keeps(s, q, kv, k);
          if (full || !Spec::columns_need_full_data) wrong += k != column_keeps(s, q, kv, k);
        }
    }
    return wrong;
  }
  int all_wrong_tiles() const {
    int wrong = 0;
    for (int b = 0; b < p.shape.batch; ++b)
      for (int h = 0; h < p.shape.heads; ++h) {
        const LineSite s{b, h, p.shape.q_len, p.shape.kv_len};
        wrong += wrong_tiles(s, Spec::head(p, s));
      }
    return wrong;
  }

  static int stat_value(const LuattnInput &in, int stat, size_t at) {
    if constexpr (requires { Spec::block_bounds_value(stat, in.data, at); })
      return Spec::block_bounds_value(stat, in.data, at);
    else
      return static_cast<const int *>(in.data)[at];
  }

  static void find_stats(LuattnParams *p) {
    if constexpr (Spec::num_block_bounds > 0)
      for (int i = 0; i < Spec::num_block_bounds; ++i) {
        const LuattnInput &in = p->inputs.input[Spec::block_bounds_input(i)];
        const int axis = Spec::block_bounds_axis(i), block = Spec::block_bounds_size(i),
                  blocks = (in.size[axis] + block - 1) / block;
        int rows = 1;
        for (int a = 0; a < axis; ++a) rows *= in.size[a];
        p->scratch.stats[i] = static_cast<int *>(malloc(size_t(rows) * blocks * 2 * sizeof(int)));
        for (int r = 0; r < rows; ++r)
          for (int j = 0; j < blocks; ++j) {
            int *low_high = p->scratch.stats[i] + (r * blocks + j) * 2;
            low_high[0] = INT_MAX, low_high[1] = INT_MIN;
            uint64_t set = 0;
            for (int at = j * block; at < std::min(in.size[axis], (j + 1) * block); ++at) {
              const int x = stat_value(in, i, size_t(r) * in.size[axis] + at);
              low_high[0] = std::min(low_high[0], x), low_high[1] = std::max(low_high[1], x), set |= 1ull << (x & 63);
            }
            if constexpr (requires { Spec::block_bounds_is_set(0); })
              if (Spec::block_bounds_is_set(i)) memcpy(low_high, &set, sizeof set);
          }
      }
  }
};

#ifdef HOSTED_FORWARD
template <class Spec>
struct Forward : Hosted<Spec> {
  using Base = Hosted<Spec>;
  using Base::p;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;

  // Computes the row from the tiles t with t % parts == part. O of a part that keeps nothing is poison.
  RowPart<Spec> run_part(const LineSite &s, const Head &head, const Row (&row)[1], int q, int part, int parts,
                         std::vector<double> &o) const {
    OnlineRows<Spec, 1, N, 1, 1> online;
    online.init(p, s, head, row);
    KvTiles<Spec, M, N> walk(p, s, q / M);
    for (Tile t = walk.next(p, s); t.valid(); t = walk.next(p, s)) {
      if (t.index % parts != part) continue;
      double score[1][N], scale[1];
      KeepBits<N> keep[1] = {KeepBits<N>::none()};
      for (int j = 0; j < N; ++j) {
        const int kv = t.index * N + j;
        const bool k = !t.masked || (kv < p.shape.kv_len && this->kept(s, head, q, kv));
        keep[0].set(j, k);
        score[0][j] = Spec::mask_by_inf ? -INFINITY : 0;
        if (k)
          score[0][j] = score_of<Spec>(p, s, head, row[0], Spec::col(p, s, head, kv), this->dot(s.b, s.h, q, kv),
                                       in_parts(q), in_parts(kv), this->term(s, head, q, kv));
      }
      if (t.masked && Spec::mask_by_zero) {
        online.kept.bits |= online.kept_rows(keep);
        online.step_by_inf(p, s, head, row, score, scale);
      } else if (t.masked)
        online.template step<true>(p, s, head, row, score, keep, scale);
      else
        online.template step<false>(p, s, head, row, score, keep, scale);
      for (int d = 0; d < DV; ++d) {
        o[d] *= scale[0];
        for (int j = 0; j < N; ++j)
          if (keep[0].get(j)) o[d] += score[0][j] * this->mod(WHICH_V, s.b, s.h / p.shape.group, t.index * N + j, d);
      }
    }
    online.finish();
    if (!online.kept[0]) o.assign(DV, NAN);
    return {online.state[0], online.kept[0]};
  }
  // Queries in turn: in one part, in two, and in three.
  RowPart<Spec> run_parts(const LineSite &s, const Head &head, const Row (&row)[1], int q,
                          std::vector<double> &o) const {
    if constexpr (!Spec::has_merge) return run_part(s, head, row, q, 0, 1, o);
    const int parts = 1 + q % 3;
    RowPart<Spec> whole = run_part(s, head, row, q, 0, parts, o);
    if constexpr (Spec::has_merge)
      for (int i = 1; i < parts; ++i) {
        std::vector<double> other(DV, 0.0);
        const RowPart<Spec> part = run_part(s, head, row, q, i, parts, other);
        const MergeFactors<double> f = merge_part<Spec>(p, s, head, row[0], whole, part);
        for (int d = 0; d < DV; ++d) o[d] = merged_value(o[d], f.mine, other[d], f.theirs);
      }
    return whole;
  }
  void run_row(const LineSite &s, const Head &head, int q) const {
    const Row row[1] = {Spec::row(p, s, head, q)};
    std::vector<double> o(DV, 0.0);
    const RowPart<Spec> whole = run_parts(s, head, row, q, o);
    const bool any = whole.kept;
    const double factor = any ? Spec::out_scale(p, s, head, row[0], whole.state) : 0;
    for (int d = 0; d < DV; ++d) at(p.tensors.o, s.b, s.h, q)[d] = factor == 0 ? 0 : factor * o[d];
    if constexpr (Spec::has_lse)
      *at(p.tensors.lse, s.b, s.h, q) = any ? Spec::lse(p, s, head, row[0], whole.state) : -INFINITY;
    if constexpr (Spec::num_saved > 0) {
      double saved[Spec::num_saved];
      Spec::save(p, s, head, row[0], whole.state, saved);
      const long long plane = 1ll * p.shape.batch * p.shape.heads * p.shape.q_len,
                      i = (1ll * s.b * p.shape.heads + s.h) * p.shape.q_len + q;
      for (int j = 0; j < Spec::num_saved; ++j)
        static_cast<double *>(p.tensors.saved)[j * plane + i] = any ? saved[j] : 0;
    }
  }
  void run() const {
    for (int b = 0; b < p.shape.batch; ++b)
      for (int h = 0; h < p.shape.heads; ++h) {
        const LineSite s{b, h, p.shape.q_len, p.shape.kv_len};
        for (int q = 0; q < p.shape.q_len; ++q) run_row(s, Spec::head(p, s), q);
      }
  }
};
using Pass = Forward<Spec>;
#else
template <class Spec>
struct Backward : Hosted<Spec> {
  using Base = Hosted<Spec>;
  using Base::p;
  using Head = typename Spec::Head;
  using Acc = typename Spec::Acc;
  using BwdRow = typename Spec::BwdRow;

  static Acc zero() {
    Acc acc;
    memset(&acc, 0, sizeof acc);
    return acc;
  }
  void flush(const LineSite &s, const Head &head, const Acc &acc) const {
    if constexpr (Spec::num_acc > 0) Spec::flush(p, s, head, acc);
  }
  double dout_dot(int b, int h, int q, int kv) const {
    double sum = 0;
    for (int d = 0; d < DV; ++d)
      sum += at(p.tensors.dout, b, h, q)[d] * this->mod(WHICH_V, b, h / p.shape.group, kv, d);
    return sum;
  }
  void prepare(const LineSite &s, const Head &head, std::vector<BwdRow> &rows) const {
    Acc acc = zero();
    const long long plane = 1ll * p.shape.batch * p.shape.heads * p.shape.q_len;
    for (int q = 0; q < p.shape.q_len; ++q) {
      double delta = 0, saved[Spec::num_saved + 1];
      for (int d = 0; d < DV; ++d) delta += at(p.tensors.o, s.b, s.h, q)[d] * at(p.tensors.dout, s.b, s.h, q)[d];
      const long long i = (1ll * s.b * p.shape.heads + s.h) * p.shape.q_len + q;
      for (int j = 0; j < Spec::num_saved; ++j) saved[j] = static_cast<double *>(p.tensors.saved)[j * plane + i];
      const double lse = Spec::has_lse ? *at(p.tensors.lse, s.b, s.h, q) : 0,
                   dlse = Spec::has_lse ? *at(p.tensors.dlse, s.b, s.h, q) : 0;
      memset(&rows[q], 0, sizeof rows[q]);
      if (lse == -INFINITY) continue;
      const Acc before = acc;
      rows[q] = Spec::prepare(p, s, head, Spec::row(p, s, head, q), q, lse, saved, delta, dlse, acc);
      if (!Spec::has_lse && delta == 0) acc = before;
    }
    flush(s, head, acc);
  }

  // Treats a single element as a sum. For a distance sum, any pair at that distance represents it.
  void add_sums(const LineSite &s, const Head &head, int q, int kv, double ds, Acc &acc) const {
    static_assert((Spec::parameter_sums & (SUM_ELEMENT | SUM_LINEAR)) == 0, "grad adds these");
    if constexpr ((Spec::parameter_sums & SUM_DISTANCE) != 0) Spec::add_distance(p, s, head, q - kv, 0, ds, acc);
    if constexpr ((Spec::parameter_sums & SUM_ROW) != 0) Spec::add_row(p, s, head, q, ds, acc);
    if constexpr ((Spec::parameter_sums & SUM_COL) != 0) Spec::add_col(p, s, head, kv, ds, acc);
  }

  // Gradients with respect to q', k', v' go to the accumulators; finish passes them through the mods.
  void run_tile(const LineSite &s, const Head &head, const std::vector<BwdRow> &rows, int tile_n) const {
    double *dq = static_cast<double *>(p.scratch.dq_acc), *dk = static_cast<double *>(p.scratch.dk_acc),
           *dv = static_cast<double *>(p.scratch.dv_acc);
    const int hkv = s.h / p.shape.group;
    Acc acc = zero();
    QTiles<Spec, M, N> walk(p, s, tile_n);
    for (Tile t = walk.next(p, s); t.valid(); t = walk.next(p, s))
      for (int q = t.index * M; q < std::min(p.shape.q_len, t.index * M + M); ++q)
        for (int kv = tile_n * N; kv < std::min(p.shape.kv_len, tile_n * N + N); ++kv) {
          if (t.masked && !this->kept(s, head, q, kv)) continue;
          double prob, ds;
          Spec::template grad<true>(p, s, head, Spec::row(p, s, head, q), Spec::col(p, s, head, kv), rows[q],
                                    this->dot(s.b, s.h, q, kv), dout_dot(s.b, s.h, q, kv), in_parts(q), in_parts(kv),
                                    this->term(s, head, q, kv), prob, ds, acc);
          add_sums(s, head, q, kv, ds, acc);
          const long long iq = (1ll * s.b * p.shape.heads + s.h) * p.shape.q_len + q,
                          ik = (1ll * s.b * p.shape.heads_kv + hkv) * p.shape.kv_len + kv;
          for (int d = 0; d < D; ++d) {
            dq[iq * D + d] += p.scale * ds * this->mod(WHICH_K, s.b, hkv, kv, d);
            dk[ik * D + d] += p.scale * ds * this->mod(WHICH_Q, s.b, s.h, q, d);
          }
          for (int d = 0; d < DV; ++d) dv[ik * DV + d] += prob * at(p.tensors.dout, s.b, s.h, q)[d];
        }
    flush(s, head, acc);
  }

  double mod_grad(int which, const LineSite &s, const double *x, const double *g, int i, int d, Acc &acc) const {
    if constexpr (Spec::has_query_mod)
      if (which == WHICH_Q) {
        if constexpr (QueryReadsRow<Spec>)
          return Spec::query_mod_grad(p, s, x[d], g[d], seen_from<typename Spec::QueryRow>(x, g, d), i, d, acc);
        else
          return Spec::query_mod_grad(p, s, x[d], g[d], i, d, acc);
      }
    if constexpr (Spec::has_key_mod)
      if (which == WHICH_K) {
        if constexpr (KeyReadsRow<Spec>)
          return Spec::key_mod_grad(p, s, x[d], g[d], seen_from<typename Spec::KeyRow>(x, g, d), i, d, acc);
        else
          return Spec::key_mod_grad(p, s, x[d], g[d], i, d, acc);
      }
    if constexpr (Spec::has_value_mod)
      if (which == WHICH_V) {
        if constexpr (ValueReadsRow<Spec>)
          return Spec::value_mod_grad(p, s, x[d], g[d], seen_from<typename Spec::ValueRow>(x, g, d), i, d, acc);
        else
          return Spec::value_mod_grad(p, s, x[d], g[d], i, d, acc);
      }
    return g[d];
  }
  void finish(int which, const LuattnTensor &x, const LuattnTensor &dx, const void *from, int heads, int len,
              int dim) const {
    for (int b = 0; b < p.shape.batch; ++b)
      for (int h = 0; h < heads; ++h) {
        const LineSite s{b, h, p.shape.q_len, p.shape.kv_len};
        Acc acc = zero();
        for (int i = 0; i < len; ++i)
          for (int d = 0; d < dim; ++d) {
            const double *g = static_cast<const double *>(from) + ((1ll * b * heads + h) * len + i) * dim;
            at(dx, b, h, i)[d] = mod_grad(which, s, at(x, b, h, i), g, i, d, acc);
          }
        flush(s, Spec::head(p, s), acc);
      }
  }
  void run() const {
    for (int b = 0; b < p.shape.batch; ++b)
      for (int h = 0; h < p.shape.heads; ++h) {
        const LineSite s{b, h, p.shape.q_len, p.shape.kv_len};
        const Head head = Spec::head(p, s);
        std::vector<BwdRow> rows(p.shape.q_len);
        prepare(s, head, rows);
        for (int n = 0; n * N < p.shape.kv_len; ++n) run_tile(s, head, rows, n);
      }
    finish(WHICH_Q, p.tensors.q, p.tensors.dq, p.scratch.dq_acc, p.shape.heads, p.shape.q_len, D);
    finish(WHICH_K, p.tensors.k, p.tensors.dk, p.scratch.dk_acc, p.shape.heads_kv, p.shape.kv_len, D);
    finish(WHICH_V, p.tensors.v, p.tensors.dv, p.scratch.dv_acc, p.shape.heads_kv, p.shape.kv_len, DV);
  }
};
using Pass = Backward<Spec>;
#endif

#define SHOWN extern "C" __attribute__((visibility("default")))
SHOWN void hosted_stats(LuattnParams *p) { Pass::find_stats(p); }

// Returns the number of elements in wrongly classified tiles.
SHOWN int hosted_run(const LuattnParams *p) {
  const Pass pass{{*p}};
  pass.run();
  return pass.all_wrong_tiles();
}
