// aux.cuh: the small kernels around attention, the same for every family: stats, mod, prepare, finish, round.
//
// Each has its own fixed shape, whatever the tiles of the main kernels: aux_threads threads (luattn_stats:
// stats_threads), aux_tile positions a block, no dynamic shared memory.
//
//     luattn_stats    grid (blocks, rows, num_stats), each the largest that any stat has (see contract.cuh)
//     luattn_mod      grid (ceil(max(q_len, kv_len) / aux_tile), heads, 3 * batch),
//                     blockIdx.z = 3 * b + which, which = 0: q, 1: k, 2: v
//     luattn_prepare  grid (ceil(q_len / aux_tile), heads, batch)
//     luattn_finish   grid as luattn_mod, or (.., batch) where nothing but dq has to be written
//     luattn_round    grid (ceil(most elements / aux_threads), inputs + 1), the last for the scalars
//
// They are bound by memory. A thread accesses 16 bytes of 16-bit elements at once, or one number of f32 or
// f64: then tensors may lie anywhere, and a mod stands in a kernel once, not once for each number of an
// access and again for tensors that do not allow it.
#pragma once
#include "exact.cuh"
#include "rows.cuh"
#include "tensors.cuh"

static constexpr int aux_threads = 128, aux_tile = 64, stats_threads = 32;

// What a backward image computes. The parameters of an input mod get their gradients in finish, from the
// gradient of the modified tensor, whether or not the caller wants that of the tensor itself.
template <class Spec, class Config>
struct Needs {
  static constexpr bool parameters = Config::wants_inputs || Config::wants_scalars;
  static constexpr bool dq = Config::wants_dq || (Spec::has_query_mod && parameters);
  static constexpr bool dk = Config::wants_dk || (Spec::has_key_mod && parameters);
  static constexpr bool dv = Config::wants_dv || (Spec::has_value_mod && parameters);
  static constexpr bool dkdv = dk || dv || parameters || (dq && Config::accumulates_dq);
  static constexpr bool dq_alone = dq && !Config::accumulates_dq;                       // luattn_dq
  static constexpr bool turns = dq && Config::accumulates_dq && Config::deterministic;  // turns.cuh
  static constexpr bool claims = dq && Config::accumulates_dq && Config::claims;        // sm90_claims.cuh
  static constexpr bool finish_q = dq && (Spec::has_query_mod || Config::accumulates_dq);
  static constexpr bool finish_k = dk && Spec::has_key_mod, finish_v = dv && Spec::has_value_mod;
};

// Which gradients of parameters are sums of dS that a kernel makes from the tile of dS in shared memory
// (sm80_sums.cuh, simt_sums.cuh).
template <class Spec, class Config>
struct SharedSums {
  static constexpr int wanted = Needs<Spec, Config>::parameters ? Spec::sums : 0;
  static constexpr bool any = wanted != 0;
  static constexpr bool cols = (wanted & SUM_COL) != 0, rows = (wanted & SUM_ROW) != 0,
                        distances = (wanted & SUM_DISTANCE) != 0;
  static_assert((wanted & (SUM_HERE | SUM_LINEAR)) == 0, "grad adds these");
};

// A row's numbers in shared memory, aligned so that one load brings as many as possible.
template <class T>
struct alignas(sizeof(T) % 16 == 0  ? 16
               : sizeof(T) % 8 == 0 ? 8
                                    : alignof(T)) SharedRow {
  T value;
};

// A barrier of the block's threads from First on; with some of them left out, named barrier 15.
template <int Threads, int First>
LUATTN_FN void sync_threads() {
  if constexpr (First == 0)
    __syncthreads();
  else
    asm volatile("barrier.cta.sync.aligned 15, %0;" ::"n"(Threads) : "memory");
}

// Sums acc over the block's threads from First on, Threads of them, and adds it to memory. All of them call
// it.
template <class Spec, int Threads, int First = 0>
LUATTN_FN void flush_block(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                           typename Spec::Acc &acc) {
  if constexpr (Spec::num_acc > 0) {
    using Real = typename Spec::Real;
    __shared__ Real part[Threads / 32][Spec::num_acc];
    const int thread = int(threadIdx.x) - First;
    sync_threads<Threads, First>();  // part may still be read by the call before
#pragma unroll
    for (int i = 0; i < Spec::num_acc; ++i) {
      const Real sum = lanes_sum<32>(acc.x[i]);
      if (thread % 32 == 0) part[thread / 32][i] = sum;
    }
    sync_threads<Threads, First>();
    if (thread == 0) {
#pragma unroll
      for (int i = 0; i < Spec::num_acc; ++i) {
        acc.x[i] = Real(0);
        for (int w = 0; w < Threads / 32; ++w) acc.x[i] += part[w][i];
      }
      Spec::flush(p, site, head, acc);
    }
  }
}

// The same for a warp by itself, which waits for no other.
template <class Spec>
LUATTN_FN void flush_warp(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                          typename Spec::Acc &acc) {
#pragma unroll
  for (int i = 0; i < Spec::num_acc; ++i) acc.x[i] = lanes_sum<32>(acc.x[i]);
  if (threadIdx.x % 32 == 0) Spec::flush(p, site, head, acc);
}

template <class Acc>
LUATTN_FN Acc zero_acc() {
  Acc acc;
#pragma unroll
  for (unsigned i = 0; i < sizeof(acc.x) / sizeof(acc.x[0]); ++i) acc.x[i] = 0;
  return acc;
}

// P and dS of an element in place of its dot and dP, and zeros where it is not kept. Where grad may, it is
// tried for all of them: behind a branch each element would wait for the one before it.
template <class Spec, bool WithInputs, bool Masked>
LUATTN_FN void grad_where(bool kept, const LuattnParams &p, const Site &s, const typename Spec::Head &head,
                          const typename Spec::Row &row, const typename Spec::Col &col,
                          const typename Spec::BwdRow &bwd, Position q, Position kv, typename Spec::Real term,
                          typename Spec::Real &x, typename Spec::Real &y, typename Spec::Acc &acc) {
  typename Spec::Real prob = 0, ds = 0;
  typename Spec::Acc sum = acc;
  if (!Masked || !Spec::grad_adds_to_memory || kept)
    Spec::template grad<WithInputs>(p, s, head, row, col, bwd, x, y, q, kv, term, prob, ds, sum);
  x = !Masked || kept ? prob : 0;
  y = !Masked || kept ? ds : 0;
#pragma unroll
  for (int i = 0; i < Spec::num_acc; ++i) acc.x[i] = !Masked || kept ? sum.x[i] : acc.x[i];
}

// Rows of a stat, which are the positions along the axes before its own, and blocks of each.
template <class Spec>
LUATTN_FN void stat_shape(const LuattnParams &p, int stat, i64 &rows, int &blocks) {
  const LuattnInput &in = p.input[Spec::stat_input(stat)];
  const int axis = Spec::stat_axis(stat);
  rows = 1;
  for (int a = 0; a < axis; ++a) rows *= in.size[a];
  blocks = ceil_div(in.size[axis], Spec::stat_block(stat));
}
// Minimum and maximum of one block of one row of an integer input; a warp.
template <class Spec>
LUATTN_FN void find_stat(const LuattnParams &p, int stat, i64 row, int block, int blocks) {
  const int axis = Spec::stat_axis(stat), size = Spec::stat_block(stat), lane = int(threadIdx.x) % 32;
  const LuattnInput &in = p.input[Spec::stat_input(stat)];
  i64 at = 0, rest = row;
  for (int a = axis - 1; a >= 0; --a) {
    at += rest % in.size[a] * in.stride[a];
    rest /= in.size[a];
  }
  const int *data = static_cast<const int *>(in.data) + at;
  const int lo = block * size, hi = min_of(lo + size, in.size[axis]);
  int low = 0x7fffffff, high = int(0x80000000u);
#pragma unroll 1
  for (int i = lo + lane; i < hi; i += 32) {
    const int x = data[i * in.stride[axis]];
    low = min_of(low, x);
    high = max_of(high, x);
  }
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  if (lane == 0) {
    int *out = p.stats[stat] + (row * blocks + block) * 2;
    out[0] = low;
    out[1] = high;
  }
}
template <class Spec>
LUATTN_FN void aux_stats(const LuattnParams &p) {
  static_assert(ValidSpec<Spec>);
  if constexpr (Spec::num_stats > 0) {
    const int stat = int(blockIdx.z), block = int(blockIdx.x);
    i64 rows;
    int blocks;
    stat_shape<Spec>(p, stat, rows, blocks);
    // The grid is as large as the largest stat needs.
    if (block < blocks && blockIdx.y < rows) find_stat<Spec>(p, stat, blockIdx.y, block, blocks);
  }
}
// All of them, by the warps of a grid of aux_threads.
template <class Spec>
LUATTN_FN void find_stats(const LuattnParams &p) {
  constexpr int warps = aux_threads / 32;
  const u32 number = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x,
            all = gridDim.x * gridDim.y * gridDim.z * warps;
#pragma unroll 1
  for (int stat = 0; stat < Spec::num_stats; ++stat) {
    i64 rows;
    int blocks;
    stat_shape<Spec>(p, stat, rows, blocks);
#pragma unroll 1
    for (i64 i = number * warps + threadIdx.x / 32; i < rows * blocks; i += all)
      find_stat<Spec>(p, stat, i / blocks, int(i % blocks), blocks);
  }
}

// Calls body(position, channel) for every N-th channel of the block's positions, spread over the threads.
template <int Width, int N, class Body>
LUATTN_FN void for_each_element(int len, const Body &body) {
  static_assert(Width % N == 0);
  constexpr int per_row = Width / N;
  const int first = int(blockIdx.x) * aux_tile;
  const int count = min_of(aux_tile, len - first) * per_row;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < count; i += aux_threads) body(first + i / per_row, i % per_row * N);
}

enum { WHICH_Q = 0, WHICH_K = 1, WHICH_V = 2 };

template <class Spec, int Which, class Real>
LUATTN_FN Real apply_mod(const LuattnParams &p, const Site &s, Real x, int i, int d) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod(p, s, x, i, d);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod(p, s, x, i, d);
  else
    return Spec::value_mod(p, s, x, i, d);
}
template <class Spec, int Which, class Real>
LUATTN_FN Real apply_mod_grad(const LuattnParams &p, const Site &s, Real x, Real g, int i, int d,
                              typename Spec::Acc &acc) {
  if constexpr (Which == WHICH_Q)
    return Spec::query_mod_grad(p, s, x, g, i, d, acc);
  else if constexpr (Which == WHICH_K)
    return Spec::key_mod_grad(p, s, x, g, i, d, acc);
  else
    return Spec::value_mod_grad(p, s, x, g, i, d, acc);
}
template <class Spec, int Which>
constexpr bool has_mod = Which == WHICH_Q   ? bool(Spec::has_query_mod)
                         : Which == WHICH_K ? bool(Spec::has_key_mod)
                                            : bool(Spec::has_value_mod);

template <class Spec, class Elem, int Which, int Width, int N>
LUATTN_FN void mod_elements(const LuattnParams &p, const Site &site, const LuattnTensor &src,
                            const LuattnTensor &dst, int len) {
  for_each_element<Width, N>(len, [&](int i, int d) {
    Pack<Elem, N> x, y;
    x.load(row_of<const Elem>(src, site.b, site.h, i) + d);
#pragma unroll
    for (int j = 0; j < N; ++j)
      y[j] = from_real<Elem>(apply_mod<Spec, Which>(p, site, to_real(x[j]), i, d + j));
    y.store(row_of<Elem>(dst, site.b, site.h, i) + d);
  });
}

template <class Spec, class Config, int Which, int Width>
LUATTN_FN void mod_tensor(const LuattnParams &p, int b, const LuattnTensor &src, const LuattnTensor &dst,
                          int heads, int len) {
  if constexpr (has_mod<Spec, Which>) {
    using Elem = typename Config::Elem;
    const Site site{b, int(blockIdx.y), p.q_len, p.kv_len};
    if (site.h < heads) mod_elements<Spec, Elem, Which, Width, per_access<Elem>>(p, site, src, dst, len);
  }
}

// q', k', v' from q, k, v.
template <class Spec, class Config>
LUATTN_FN void aux_mod(const LuattnParams &p) {
  static_assert(ValidSpec<Spec>);
  const int which = int(blockIdx.z) % 3, b = int(blockIdx.z) / 3;
  if (which == WHICH_Q)
    mod_tensor<Spec, Config, WHICH_Q, Config::head_dim>(p, b, p.src_q, p.q, p.heads, p.q_len);
  if (which == WHICH_K)
    mod_tensor<Spec, Config, WHICH_K, Config::head_dim>(p, b, p.src_k, p.k, p.heads_kv, p.kv_len);
  if (which == WHICH_V)
    mod_tensor<Spec, Config, WHICH_V, Config::head_dim_v>(p, b, p.src_v, p.v, p.heads_kv, p.kv_len);
}

LUATTN_FN constexpr int lanes_for(int units) {
  int lanes = 2;
  while (lanes < 32 && lanes < units) lanes *= 2;
  return lanes;
}
template <int Width, int N>
constexpr int lanes_for_width = lanes_for(Width / N);

// delta[r] = sum over d of dO * O of the block's row r, N elements at a time. A thread asks for what it needs
// of several rows before it waits for the first; of the last row in place of those that do not exist. Once:
// past the L1 cache, which pays where nothing is stored meanwhile (bench/journal.md).
template <class Elem, int Width, int N, bool Once, class Real>
LUATTN_FN void row_dots(const LuattnParams &p, int b, int h, int first, int len, Real *delta) {
  constexpr int lanes = lanes_for_width<Width, N>, groups = aux_threads / lanes, steps = aux_tile / groups,
                rows = steps % 4 == 0 ? 4 : 1;
  static_assert(Width % N == 0);
  if (first >= len) return;  // no queries
  const int lane = int(threadIdx.x) % lanes;
  const Elem *dout = row_of<const Elem>(p.dout, b, h, first), *o = row_of<const Elem>(p.o, b, h, first);
#pragma unroll 1
  for (int r = int(threadIdx.x) / lanes; r < aux_tile; r += groups * rows) {
    Real sum[rows] = {};
#pragma unroll
    for (int d0 = 0; d0 < Width; d0 += lanes * N) {
      const int d = d0 + lane * N;
      if (d0 + lanes * N > Width && d >= Width) continue;
      Pack<Elem, N> x[rows], y[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const int row = min_of(r + i * groups, len - 1 - first);
        if constexpr (Once) {
          x[i].load_once(dout + row * p.dout.seq + d);
          y[i].load_once(o + row * p.o.seq + d);
        } else {
          x[i].load(dout + row * p.dout.seq + d);
          y[i].load(o + row * p.o.seq + d);
        }
      }
      // ptxas would rather wait for the first rows before it asks for the last: what is before a branch,
      // hardly ever taken, stays before it.
      if (rows > 1 && p.q_len < 0) __nanosleep(0);
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j) sum[i] += to_real(x[i][j]) * to_real(y[i][j]);
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const Real dot = lanes_sum<lanes>(sum[i]);
      if (lane == 0) delta[r + i * groups] = dot;
    }
  }
}

// How many numbers of p.turns a q tile has: of the sm90 family's kernel for wide head dims, whose kv tiles
// are of 64 positions, one for each block of a pair.
template <class Config>
inline constexpr int turns_of_tile = Config::tile_n == 64 ? 2 : 1;
// The first of them for the q tile of row `first`. Each says whose turn has passed, or what has become of the
// tile's claim.
template <class Config>
LUATTN_FN u32 *turn_of(const LuattnParams &p, int b, int h, int first) {
  return p.turns + LUATTN_TURNS_FIRST +
         ((i64(b) * p.heads + h) * ceil_div(p.q_len, Config::tile_m) + first / Config::tile_m) *
             turns_of_tile<Config>;
}

// What has become of a q tile's claim (sm90_claims.cuh). 0 also says that nobody has had a turn (turns.cuh).
enum : u32 { UNCLAIMED = 0, CLAIMED = 1, STORED = 2 };
// Where a q tile has few kv tiles: what is saved, once a q tile, is less in long rows than what is waited
// for, in each of their tiles. A mask that reads memory may leave few of many.
template <class Spec, class Config>
LUATTN_FN bool pays_to_claim(const LuattnParams &p, const Site &site, int q0) {
  const Range kept = Spec::kv_range(p, site, q0, min_of(q0 + Config::tile_m, site.q_len) - 1);
  return Spec::num_stats > 0 || kept.hi - kept.lo <= 10 * Config::tile_n;
}

// Zeros to what the sm90 family's luattn_dkdv adds to: the block's rows of dq_acc, or the turn or the claim
// of its q tile, and the counter that kv tiles are drawn from.
template <class Spec, class Config, class RowOrder>
LUATTN_FN void prepare_sums(const LuattnParams &p, const Site &site, int first) {
  constexpr int width = Config::head_dim;
  using Need = Needs<Spec, Config>;
  static_assert(!Need::claims || Config::tile_m == aux_tile);
  bool stores = Need::turns;
  if constexpr (Need::claims) stores = first < site.q_len && pays_to_claim<Spec, Config>(p, site, first);
  if constexpr (Need::turns || Need::claims) {
    if (threadIdx.x < turns_of_tile<Config> && first < site.q_len)
      turn_of<Config>(p, site.b, site.h, first)[threadIdx.x] = stores ? UNCLAIMED : STORED;
  }
  if (Need::dq && !stores) {
    const int rows = RowOrder::head_rows(site.q_len), count = min_of(aux_tile, rows - first) * width / 4;
    float4 *to =
        reinterpret_cast<float4 *>(acc_row<width, float>(p.dq_acc, p.heads, rows, site.b, site.h, first));
#pragma unroll 1
    for (int i = int(threadIdx.x); i < count; i += aux_threads) to[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  if (p.turns != nullptr && blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0) *p.turns = 0;
}

// What a row without weight cannot say is 0.
template <class Spec>
LUATTN_FN typename Spec::BwdRow without_nan(typename Spec::BwdRow row) {
#pragma unroll
  for (int i = 0; i < Spec::num_bwd_rows; ++i)
    if (row.x[i] != row.x[i]) row.x[i] = 0;
  return row;
}

// delta = sum over d of dO * O, then the row numbers that the main kernels read. A row without weight, of
// which nothing is kept or all scores are -inf, has an lse of -inf; for that it gets the numbers of an lse of
// +inf, by which all of its weights are 0, whatever is in its scores, and no dlse. Its part of parameter
// gradients is 0. Where there is no lse to tell such a row by, it has O = 0, and parameter gradients, linear
// in delta, are left alone where delta is 0.
// RowOrder: how many rows of a head have numbers; those past q_len have zeros. Where it `zeroes`, in the sm90
// family, block minima and maxima too, unless luattn_reach has read them already.
template <class Spec, class Config, class RowOrder = PlainRows>
LUATTN_FN void aux_prepare(const LuattnParams &p) {
  static_assert(ValidSpec<Spec>);
  using Real = typename Spec::Real;
  using Elem = typename Config::Elem;
  constexpr int width = Config::head_dim_v;
  const Site site{int(blockIdx.z), int(blockIdx.y), p.q_len, p.kv_len};
  const int first = int(blockIdx.x) * aux_tile;
  if constexpr (RowOrder::zeroes && Spec::num_stats > 0 && !Spec::has_score_bounds) find_stats<Spec>(p);
  if constexpr (RowOrder::zeroes) prepare_sums<Spec, Config, RowOrder>(p, site, first);
  __shared__ Real delta[aux_tile];
  row_dots<Elem, width, per_access<Elem>, Needs<Spec, Config>::claims>(p, site.b, site.h, first, site.q_len,
                                                                       delta);
  __syncthreads();

  typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
  const typename Spec::Head head = Spec::head(p, site);
  const int q = first + int(threadIdx.x), rows = RowOrder::head_rows(site.q_len);
  const i64 row_plane = i64(p.batch) * p.heads * rows, row_at = (i64(site.b) * p.heads + site.h) * rows + q;
  typename Spec::BwdRow out = {};
  if (threadIdx.x < aux_tile && q < site.q_len) {
    const i64 plane = i64(p.batch) * p.heads * site.q_len,
              at = (i64(site.b) * p.heads + site.h) * site.q_len + q;
    Real lse = 0, dlse = 0, saved[Spec::num_saved > 0 ? Spec::num_saved : 1];
    bool any = true;
    if constexpr (Spec::has_lse) {
      lse = *row_of<const Real>(p.lse, site.b, site.h, q);
      if (p.dlse.data != nullptr) dlse = *row_of<const Real>(p.dlse, site.b, site.h, q);
      any = lse != -infinity<Real>();
      if (!any) lse = infinity<Real>(), dlse = 0;
    }
#pragma unroll
    for (int i = 0; i < Spec::num_saved; ++i) saved[i] = static_cast<const Real *>(p.saved)[i * plane + at];
    out = Spec::prepare(p, site, head, Spec::row(p, site, head, q), q, lse, saved, delta[threadIdx.x],
                        dlse, acc);
    if (!any) out = without_nan<Spec>(out);
    if (!any || (!Spec::has_lse && delta[threadIdx.x] == Real(0))) acc = zero_acc<typename Spec::Acc>();
  }
  if (threadIdx.x < aux_tile && q < rows) {
#pragma unroll
    for (int i = 0; i < Spec::num_bwd_rows; ++i)
      static_cast<Real *>(p.bwd_rows)[i * row_plane + row_at] = out.x[i];
  }
  if constexpr (Needs<Spec, Config>::parameters) flush_block<Spec, aux_threads>(p, site, head, acc);
}

// Row numbers of one row, as prepare wrote them.
template <class Spec>
LUATTN_FN typename Spec::BwdRow load_bwd_row(const LuattnParams &p, const Site &site, int q) {
  typename Spec::BwdRow row = {};
  const i64 plane = i64(p.batch) * p.heads * site.q_len,
            at = (i64(site.b) * p.heads + site.h) * site.q_len + q;
#pragma unroll
  for (int i = 0; i < Spec::num_bwd_rows; ++i)
    row.x[i] = static_cast<const typename Spec::Real *>(p.bwd_rows)[i * plane + at];
  return row;
}

template <class Spec, class Elem, int Which, int Width, int N, class Order>
LUATTN_FN void finish_elements(const LuattnParams &p, const Site &site, void *from, const LuattnTensor &src,
                               const LuattnTensor &dst, int heads, int len, const u32 *claim,
                               typename Spec::Acc &acc) {
  using Real = typename Spec::Real;
  const Real scale = Which == WHICH_V ? Real(1) : Real(p.scale);
  const bool there = claim == nullptr || *claim != 0;
  const Real *acc_head = acc_row<Width, const Real>(from, heads, Order::head_rows(len), site.b, site.h, 0);
  for_each_element<Width, N>(len, [&](int i, int d) {
    Pack<Real, N> g;
    Order::template load<Width>(g, acc_head, len, i, d);
    if constexpr (Order::writes && Which == WHICH_Q) {
#pragma unroll
      for (int j = 0; j < N; ++j) g[j] = there ? g[j] : Real(0);
    }
    if constexpr (Order::writes && Which != WHICH_Q) {  // what blocks have left that shared the queries
      for (int split = 1; split < p.num_splits; ++split) {
        Pack<Real, N> more;
        Order::template load<Width>(
            more, acc_head + split * (i64(p.batch) * heads * Order::head_rows(len) * Width), len, i, d);
#pragma unroll
        for (int j = 0; j < N; ++j) g[j] += more[j];
      }
    }
    Pack<Elem, N> x, y;
    if constexpr (has_mod<Spec, Which>) x.load(row_of<const Elem>(src, site.b, site.h, i) + d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      Real value = g[j] * scale;
      if constexpr (has_mod<Spec, Which>)
        value = apply_mod_grad<Spec, Which>(p, site, to_real(x[j]), value, i, d + j, acc);
      y[j] = from_real<Elem>(value);
    }
    if (dst.data != nullptr) y.store(row_of<Elem>(dst, site.b, site.h, i) + d);
  });
}

// claim: of dq_claim.
template <class Spec, class Config, int Which, int Width, class Order = PlainRows>
LUATTN_FN void finish_tensor(const LuattnParams &p, int b, void *from, const LuattnTensor &src,
                             const LuattnTensor &dst, int heads, int len, const u32 *claim = nullptr) {
  using Elem = typename Config::Elem;
  const Site site{b, int(blockIdx.y), p.q_len, p.kv_len};
  if (site.h >= heads || from == nullptr) return;
  typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
  finish_elements<Spec, Elem, Which, Width, per_access<Elem>, Order>(p, site, from, src, dst, heads, len,
                                                                     claim, acc);
  if constexpr (has_mod<Spec, Which> && Needs<Spec, Config>::parameters)
    flush_block<Spec, aux_threads>(p, site, Spec::head(p, site), acc);
}

// Deterministic backward: gradients of inputs and scalars from their exact sums. What is there already is a
// sum of infinities and NaN, or 0.
template <class Spec>
LUATTN_FN void round_sums(void *grad, const u64 *exact, i64 count) {
  using Real = typename Spec::Real;
  const i64 at = i64(blockIdx.x) * aux_threads + int(threadIdx.x);
  if (grad != nullptr && exact != nullptr && at < count)
    static_cast<Real *>(grad)[at] += exact_value<Real>(exact + at, count);
}
template <class Spec, class Config>
LUATTN_FN void aux_round(const LuattnParams &p) {
  if constexpr (Config::deterministic && Needs<Spec, Config>::parameters) {
    const bool scalars = blockIdx.y + 1 == gridDim.y;
    const LuattnInput &in = p.input[scalars ? 0 : blockIdx.y];
    round_sums<Spec>(scalars ? p.scalar_grad : in.grad, scalars ? p.scalar_exact : in.exact,
                     scalars ? p.num_scalars : in.count);
  }
}

// In the sm90 family, where blocks take turns or claim q tiles: the number that is 0 if nobody has, so that
// there is nothing in dq_acc for the block's rows. Else null.
template <class Spec, class Config>
LUATTN_FN const u32 *dq_claim(const LuattnParams &p, int b) {
  const int h = int(blockIdx.y), first = int(blockIdx.x) * aux_tile;
  if constexpr (Needs<Spec, Config>::turns || Needs<Spec, Config>::claims)
    if (h < p.heads && first < p.q_len) return turn_of<Config>(p, b, h, first);
  return nullptr;
}

// dq, dk, dv from dq_acc, dk_acc, dv_acc: times scale (q and k), through the derivative of the mod, to the
// storage type. DqOrder, KvOrder: how the family's main kernel orders these. Where it `writes`, it writes
// tensors without a mod itself, dk and dv too if luattn_dkdv has not.
template <class Spec, class Config, class DqOrder = PlainRows, class KvOrder = PlainRows>
LUATTN_FN void aux_finish(const LuattnParams &p) {
  static_assert(ValidSpec<Spec>);
  using Need = Needs<Spec, Config>;
  const bool q_alone = int(gridDim.z) == p.batch;
  // The last heads first: what has just been added to them is still in the cache.
  const int which = q_alone ? WHICH_Q : int(blockIdx.z) % 3,
            b = p.batch - 1 - (q_alone ? int(blockIdx.z) : int(blockIdx.z) / 3);
  const u32 *claim = nullptr;
  if constexpr (DqOrder::writes) {
    if (Need::dq && which == WHICH_Q) claim = dq_claim<Spec, Config>(p, b);
    const bool has_mod = which == WHICH_Q   ? Spec::has_query_mod
                         : which == WHICH_K ? Spec::has_key_mod
                                            : Spec::has_value_mod;
    if (!has_mod) return DqOrder::template write<Config>(p, which, b, claim);
  }
  if constexpr (Need::finish_q && !(DqOrder::writes && !Spec::has_query_mod))
    if (which == WHICH_Q)
      finish_tensor<Spec, Config, WHICH_Q, Config::head_dim, DqOrder>(p, b, p.dq_acc, p.src_q, p.dq, p.heads,
                                                                      p.q_len, claim);
  if constexpr (Need::finish_k)
    if (which == WHICH_K)
      finish_tensor<Spec, Config, WHICH_K, Config::head_dim, KvOrder>(p, b, p.dk_acc, p.src_k, p.dk,
                                                                      p.heads_kv, p.kv_len);
  if constexpr (Need::finish_v)
    if (which == WHICH_V)
      finish_tensor<Spec, Config, WHICH_V, Config::head_dim_v, KvOrder>(p, b, p.dv_acc, p.src_v, p.dv,
                                                                        p.heads_kv, p.kv_len);
}
