// hosted.cpp: a generated spec.cuh compiled for the host, and the kernels written out naively around it in double. What hosted_test.c
// loads, it compares with the CPU path, which evaluates the expressions before they were folded, hoisted and printed.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#define __device__
#define __forceinline__
#define __noinline__
#define asm(...) (void)0 // conversions of half types, approximations of float: not used in double

template <class T> static T __ldg(const T *p) { return *p; }
// One thread is all there is.
template <class T> static T __shfl_xor_sync(unsigned, T x, int) { return x; }
static unsigned __match_all_sync(unsigned, long long, int *same) { *same = 0; return 1; }
static unsigned __activemask() { return 1; }
static unsigned __ballot_sync(unsigned, bool x) { return x; }
static bool __any_sync(unsigned, bool x) { return x; }
static int __reduce_add_sync(unsigned, int x) { return x; }
template <class T> static T __shfl_sync(unsigned, T x, int) { return x; }
static int __ffs(int x) { return __builtin_ffs(x); }
static const struct { unsigned x; } threadIdx = {0};
static double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static float __fdividef(float x, float y) { return x / y; }
static float __fdiv_rn(float x, float y) { return x / y; }
static float __fsqrt_rn(float x) { return sqrtf(x); }
static float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
static int __float2int_rz(float x) { return int(x); }
static int __float2int_rd(float x) { return int(floorf(x)); }
static int __double2int_rz(double x) { return int(x); }
static int __double2int_rd(double x) { return int(floor(x)); }
static int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static void atomicAdd(float *p, float x) { *p += x; }
static void atomicAdd(double *p, double x) { *p += x; }
static void atomicAdd(unsigned long long *p, unsigned long long x) { *p += x; }
static unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
static long long min(long long a, long long b) { return a < b ? a : b; }
static long long max(long long a, long long b) { return a > b ? a : b; }

#include "score/online_rows.cuh"
#include "spec.cuh"
#include "work/tile_walk.cuh"

static_assert(ValidSpec<Spec>);
static_assert(sizeof(Spec::Real) == 8, "emitted for double");

static constexpr int D = Config::head_dim, DV = Config::head_dim_v, M = Config::tile_m, N = Config::tile_n;
enum { WHICH_Q, WHICH_K, WHICH_V };

static double *at(const LuattnTensor &t, int b, int h, int i) {
  return static_cast<double *>(t.data) + b * t.batch + h * t.head + i * t.seq;
}
// As the kernels have positions, with any base.
static Position in_parts(int at) { return {at / 2, at - at / 2}; }
static double mod(const LuattnParams &p, int which, int b, int h, int i, int d) {
  const Site s{b, h, p.q_len, p.kv_len};
  if (which == WHICH_Q) return Spec::query_mod(p, s, at(p.q, b, h, i)[d], i, d);
  if (which == WHICH_K) return Spec::key_mod(p, s, at(p.k, b, h, i)[d], i, d);
  return Spec::value_mod(p, s, at(p.v, b, h, i)[d], i, d);
}
static double dot(const LuattnParams &p, int b, int h, int q, int kv) {
  double sum = 0;
  for (int d = 0; d < D; ++d) sum += mod(p, WHICH_Q, b, h, q, d) * mod(p, WHICH_K, b, h / p.group, kv, d);
  return sum;
}
static double dout_dot(const LuattnParams &p, int b, int h, int q, int kv) {
  double sum = 0;
  for (int d = 0; d < DV; ++d) sum += at(p.dout, b, h, q)[d] * mod(p, WHICH_V, b, h / p.group, kv, d);
  return sum;
}
static bool kept(const LuattnParams &p, const Site &s, const Spec::Head &head, int q, int kv) {
  if (!Spec::has_mask) return true;
  return Spec::keep(p, s, head, Spec::row(p, s, head, q), Spec::col(p, s, head, kv), q, kv);
}

static bool in(Range r, int at) { return r.lo <= at && at < r.hi; }
static bool holds(int ranges, Range first, Range second, int at, int period, Range rest) {
  return (in(first, at) || (ranges == 2 && in(second, at))) && (period == 0 || in(rest, at % period));
}

// Tiles that the walk leaves out keep nothing; tiles that it calls full drop nothing; a row's or a column's
// range is what it keeps, where the spec says so. Counts what is wrong.
static int wrong_tiles(const LuattnParams &p, const Site &s, const Spec::Head &head) {
  int wrong = 0;
  for (int i = 0; i * M < p.q_len; ++i) {
    std::vector<int> seen((p.kv_len + N - 1) / N, TILE_EMPTY);
    KvTiles<Spec, M, N> walk(p, s, i);
    for (Tile t = walk.next(p, s); t.valid(); t = walk.next(p, s)) seen[t.index] = t.masked ? TILE_PARTIAL : TILE_FULL;
    for (int q = i * M; q < std::min(p.q_len, i * M + M); ++q)
      for (int kv = 0; kv < p.kv_len; ++kv) {
        const bool k = kept(p, s, head, q, kv);
        wrong += (seen[kv / N] == TILE_EMPTY && k) || (seen[kv / N] == TILE_FULL && !k);
        const int q1 = std::min(p.q_len, i * M + M) - 1, kv0 = kv / N * N, kv1 = std::min(p.kv_len, kv0 + N) - 1;
        const bool rest = Spec::rest_class(p, s, i * M, q1, kv0, kv1) == TILE_FULL;
        wrong += Spec::row_from_start && Spec::row_range(p, s, q).lo != 0;
        if (Spec::row_ranges > 0 && (rest || !Spec::keep_apart))
          wrong += k != holds(Spec::row_ranges, Spec::row_range(p, s, q), Spec::row_second(p, s, q), kv,
                              Spec::row_period, Spec::row_rest(p, s, q));
        if (Spec::column_ranges > 0 && (rest || !Spec::columns_apart))
          wrong += k != holds(Spec::column_ranges, Spec::column_range(p, s, kv), Spec::column_second(p, s, kv), q,
                              Spec::column_period, Spec::column_rest(p, s, kv));
      }
  }
  return wrong;
}

extern "C" void hosted_stats(LuattnParams *p) {
  for (int i = 0; i < Spec::num_stats; ++i) {
    const LuattnInput &in = p->input[Spec::stat_input(i)];
    const int axis = Spec::stat_axis(i), block = Spec::stat_block(i), blocks = (in.size[axis] + block - 1) / block;
    int rows = 1;
    for (int a = 0; a < axis; ++a) rows *= in.size[a];
    p->stats[i] = static_cast<int *>(malloc(size_t(rows) * blocks * 2 * sizeof(int)));
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < blocks; ++j) {
        const int *x = static_cast<const int *>(in.data) + size_t(r) * in.size[axis];
        const int *end = x + std::min(in.size[axis], (j + 1) * block);
        p->stats[i][(r * blocks + j) * 2] = *std::min_element(x + j * block, end);
        p->stats[i][(r * blocks + j) * 2 + 1] = *std::max_element(x + j * block, end);
      }
  }
}

static void forward_row(const LuattnParams &p, const Site &s, const Spec::Head &head, int q) {
  using Rows = OnlineRows<Spec, 1, N, 1>;
  const Spec::Row row[1] = {Spec::row(p, s, head, q)};
  std::vector<double> o(DV, 0.0);
  Rows online;
  online.init(p, s, head, row);
  KvTiles<Spec, M, N> walk(p, s, q / M);
  for (Tile t = walk.next(p, s); t.valid(); t = walk.next(p, s)) {
    double score[1][N], scale[1];
    KeepBits<N> keep[1] = {KeepBits<N>::none()};
    for (int j = 0; j < N; ++j) {
      const int kv = t.index * N + j;
      const bool k = !t.masked || (kv < p.kv_len && kept(p, s, head, q, kv));
      keep[0].set(j, k);
      score[0][j] = Spec::mask_by_inf ? -INFINITY : 0;
      if (k)
        score[0][j] = Spec::score_with(p, s, head, row[0], Spec::col(p, s, head, kv), dot(p, s.b, s.h, q, kv), in_parts(q),
                                       in_parts(kv), Spec::distance_term(p, s, head, in_parts(q), in_parts(kv)));
    }
    if (t.masked && Spec::mask_by_zero) {
      online.kept.bits |= online.kept_rows(keep);
      online.step_by_inf(p, s, head, row, score, scale);
    } else if (t.masked) online.template step<true>(p, s, head, row, score, keep, scale);
    else online.template step<false>(p, s, head, row, score, keep, scale);
    for (int d = 0; d < DV; ++d) {
      o[d] *= scale[0];
      for (int j = 0; j < N; ++j)
        if (keep[0].get(j)) o[d] += score[0][j] * mod(p, WHICH_V, s.b, s.h / p.group, t.index * N + j, d);
    }
  }
  online.finish();
  const double factor = online.kept[0] ? Spec::out_scale(p, s, head, row[0], online.state[0]) : 0;
  for (int d = 0; d < DV; ++d) at(p.o, s.b, s.h, q)[d] = factor == 0 ? 0 : factor * o[d];
  if (Spec::has_lse) *at(p.lse, s.b, s.h, q) = online.kept[0] ? Spec::lse(p, s, head, row[0], online.state[0]) : -INFINITY;
  double saved[Spec::num_saved + 1];
  Spec::save(p, s, head, row[0], online.state[0], saved);
  const long long plane = 1ll * p.batch * p.heads * p.q_len, i = (1ll * s.b * p.heads + s.h) * p.q_len + q;
  for (int j = 0; j < Spec::num_saved; ++j) static_cast<double *>(p.saved)[j * plane + i] = online.kept[0] ? saved[j] : 0;
}

// Returns how many elements are in a tile that was classified wrongly.
extern "C" int hosted_forward(const LuattnParams *params) {
  const LuattnParams &p = *params;
  int wrong = 0;
  for (int b = 0; b < p.batch; ++b)
    for (int h = 0; h < p.heads; ++h) {
      const Site s{b, h, p.q_len, p.kv_len};
      const Spec::Head head = Spec::head(p, s);
      wrong += wrong_tiles(p, s, head);
      for (int q = 0; q < p.q_len; ++q) forward_row(p, s, head, q);
    }
  return wrong;
}

static Spec::Acc zero() {
  Spec::Acc acc;
  memset(&acc, 0, sizeof acc);
  return acc;
}

static void prepare(const LuattnParams &p, const Site &s, const Spec::Head &head, std::vector<Spec::BwdRow> &rows) {
  Spec::Acc acc = zero();
  const long long plane = 1ll * p.batch * p.heads * p.q_len;
  for (int q = 0; q < p.q_len; ++q) {
    double delta = 0, saved[Spec::num_saved + 1];
    for (int d = 0; d < DV; ++d) delta += at(p.o, s.b, s.h, q)[d] * at(p.dout, s.b, s.h, q)[d];
    const long long i = (1ll * s.b * p.heads + s.h) * p.q_len + q;
    for (int j = 0; j < Spec::num_saved; ++j) saved[j] = static_cast<double *>(p.saved)[j * plane + i];
    const double lse = Spec::has_lse ? *at(p.lse, s.b, s.h, q) : 0, dlse = Spec::has_lse ? *at(p.dlse, s.b, s.h, q) : 0;
    memset(&rows[q], 0, sizeof rows[q]);
    if (lse == -INFINITY) continue;
    const Spec::Acc before = acc;
    rows[q] = Spec::prepare(p, s, head, Spec::row(p, s, head, q), q, lse, saved, delta, dlse, acc);
    if (!Spec::has_lse && delta == 0) acc = before;
  }
  Spec::flush(p, s, head, acc);
}

// One element is a sum, too; and another pair as far apart stands for it.
static void add_sums(const LuattnParams &p, const Site &s, const Spec::Head &head, int q, int kv, double ds, Spec::Acc &acc) {
  static_assert((Spec::sums & (SUM_HERE | SUM_LINEAR)) == 0, "grad adds these");
  if (Spec::sums & SUM_DISTANCE) Spec::add_distance(p, s, head, q - kv, 0, ds, acc);
  if (Spec::sums & SUM_ROW) Spec::add_row(p, s, head, q, ds, acc);
  if (Spec::sums & SUM_COL) Spec::add_col(p, s, head, kv, ds, acc);
}

// Gradients with respect to q', k', v' go to the accumulators; finish takes them through the mods.
static void main_tile(const LuattnParams &p, const Site &s, const Spec::Head &head, const std::vector<Spec::BwdRow> &rows,
                      int tile_n) {
  double *dq = static_cast<double *>(p.dq_acc), *dk = static_cast<double *>(p.dk_acc), *dv = static_cast<double *>(p.dv_acc);
  const int hkv = s.h / p.group;
  Spec::Acc acc = zero();
  QTiles<Spec, M, N> walk(p, s, tile_n);
  for (Tile t = walk.next(p, s); t.valid(); t = walk.next(p, s))
    for (int q = t.index * M; q < std::min(p.q_len, t.index * M + M); ++q)
      for (int kv = tile_n * N; kv < std::min(p.kv_len, tile_n * N + N); ++kv) {
        if (t.masked && !kept(p, s, head, q, kv)) continue;
        double prob, ds;
        Spec::grad<true>(p, s, head, Spec::row(p, s, head, q), Spec::col(p, s, head, kv), rows[q], dot(p, s.b, s.h, q, kv),
                         dout_dot(p, s.b, s.h, q, kv), in_parts(q), in_parts(kv),
                         Spec::distance_term(p, s, head, in_parts(q), in_parts(kv)), prob, ds, acc);
        add_sums(p, s, head, q, kv, ds, acc);
        const long long iq = (1ll * s.b * p.heads + s.h) * p.q_len + q, ik = (1ll * s.b * p.heads_kv + hkv) * p.kv_len + kv;
        for (int d = 0; d < D; ++d) {
          dq[iq * D + d] += p.scale * ds * mod(p, WHICH_K, s.b, hkv, kv, d);
          dk[ik * D + d] += p.scale * ds * mod(p, WHICH_Q, s.b, s.h, q, d);
        }
        for (int d = 0; d < DV; ++d) dv[ik * DV + d] += prob * at(p.dout, s.b, s.h, q)[d];
      }
  Spec::flush(p, s, head, acc);
}

template <class Grad>
static void finish(const LuattnParams &p, const LuattnTensor &x, const LuattnTensor &dx, const void *from, int heads, int len,
                   int dim, const Grad &grad) {
  for (int b = 0; b < p.batch; ++b)
    for (int h = 0; h < heads; ++h) {
      const Site s{b, h, p.q_len, p.kv_len};
      Spec::Acc acc = zero();
      for (int i = 0; i < len; ++i)
        for (int d = 0; d < dim; ++d) {
          const double g = static_cast<const double *>(from)[((1ll * b * heads + h) * len + i) * dim + d];
          at(dx, b, h, i)[d] = grad(s, at(x, b, h, i)[d], g, i, d, acc);
        }
      Spec::flush(p, s, Spec::head(p, s), acc);
    }
}

extern "C" void hosted_backward(const LuattnParams *params) {
  const LuattnParams &p = *params;
  for (int b = 0; b < p.batch; ++b)
    for (int h = 0; h < p.heads; ++h) {
      const Site s{b, h, p.q_len, p.kv_len};
      const Spec::Head head = Spec::head(p, s);
      std::vector<Spec::BwdRow> rows(p.q_len);
      prepare(p, s, head, rows);
      for (int n = 0; n * N < p.kv_len; ++n) main_tile(p, s, head, rows, n);
    }
  finish(p, p.q, p.dq, p.dq_acc, p.heads, p.q_len, D, [&](const Site &s, double x, double g, int i, int d, Spec::Acc &acc) {
    return Spec::query_mod_grad(p, s, x, g, i, d, acc);
  });
  finish(p, p.k, p.dk, p.dk_acc, p.heads_kv, p.kv_len, D, [&](const Site &s, double x, double g, int i, int d, Spec::Acc &acc) {
    return Spec::key_mod_grad(p, s, x, g, i, d, acc);
  });
  finish(p, p.v, p.dv, p.dv_acc, p.heads_kv, p.kv_len, DV, [&](const Site &s, double x, double g, int i, int d, Spec::Acc &acc) {
    return Spec::value_mod_grad(p, s, x, g, i, d, acc);
  });
}
