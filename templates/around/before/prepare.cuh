// around/before/prepare.cuh: luattn_prepare: computes delta = rowsum(dO * O) and the row numbers that backward
// reads, and zeroes what luattn_dkdv adds to.
//
// Grid (ceil(q_len / aux_tile), heads, batch); aux_threads threads.
#pragma once
#include "around/before/block_bounds.cuh"
#include "grads/flush.cuh"
#include "sink/dq_state.cuh"
#include "arch/tensor.cuh"
#include "sink/padding.cuh"

LUATTN_FN constexpr int lanes_for(int units) {
  int lanes = 2;
  while (lanes < 32 && lanes < units) lanes *= 2;
  return lanes;
}
template <int Width, int N>
constexpr int lanes_for_width = lanes_for(Width / N);

// Computes delta[r] = sum over d of dO * O of the block's row r, N elements at a time; O is `of`, of type Out. A thread issues its
// loads for several rows before it waits for the first; rows past the end load the last row. With Once, loads
// bypass the L1 cache, which pays if nothing is stored meanwhile (bench/journal.md).
template <class Elem, class Out, int Width, int N, bool Once, class Sequence, class Real>
LUATTN_FN void row_dots(const LuattnParams &p, const LuattnTensor &of, const Sequence &site, int first, Real *delta) {
  constexpr int lanes = lanes_for_width<Width, N>, groups = aux_threads / lanes, steps = aux_tile / groups,
                rows = steps % 4 == 0 ? 4 : 1;
  static_assert(Width % N == 0);
  if (first >= site.q_end(p)) return;  // no queries
  const int lane = int(threadIdx.x) % lanes;
  const auto dout = site.template q_rows<const Elem>(p, p.tensors.dout).from(first);
  const auto o = site.template q_rows<const Out>(p, of).from(first);
#pragma unroll 1
  for (int r = int(threadIdx.x) / lanes; r < aux_tile; r += groups * rows) {
    Real sum[rows] = {};
#pragma unroll
    for (int d0 = 0; d0 < Width; d0 += lanes * N) {
      const int d = d0 + lane * N;
      if (d0 + lanes * N > Width && d >= Width) continue;
      Pack<Elem, N> x[rows];
      Pack<Out, N> y[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const int row = dout.clamped(r + i * groups);
        if constexpr (Once) {
          x[i].load_once(dout.element(row, d, p.tensors.dout.seq));
          y[i].load_once(o.element(row, d, of.seq));
        } else {
          x[i].load(dout.element(row, d, p.tensors.dout.seq));
          y[i].load(o.element(row, d, of.seq));
        }
      }
      // ptxas would otherwise wait for the first rows before it issues the last loads. Code before a branch
      // stays before it, even if the branch is hardly ever taken.
      if (rows > 1 && Sequence::longest_q(p) < 0) __nanosleep(0);
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

LUATTN_FN void zero_work_counter(const LuattnParams &p) {
  if (p.scratch.dq_order != nullptr && blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0) *p.scratch.dq_order = 0;
}

// Zeroes what the sm90 family's luattn_dkdv adds to: the block's rows of dq_acc, or the semaphore or
// first-store state of its q tile; and the work counter of kv tiles.
template <class Spec, class Config, class RowOrder>
LUATTN_FN void prepare_sums(const LuattnParams &p, const SequenceOf<Config> &site, int first) {
  constexpr int width = Config::head_dim;
  using Need = Needs<Spec, Config>;
  static_assert(!Need::dq_first_store || Config::tile_m == aux_tile);
  bool stores = Need::dq_in_order;
  if constexpr (Need::dq_first_store)
    stores = first < site.kept_q_end(p) && pays_to_store_first<Spec, Config>(p, site, first);
  if constexpr (Need::dq_in_order || Need::dq_first_store) {
    if (threadIdx.x < dq_orders_of_tile<Config> && first < site.kept_q_end(p))
      dq_state_of<Config>(p, site.b, site.h, first)[threadIdx.x] = stores ? UNCLAIMED : STORED;
  }
  if (Need::dq && !stores) {
    const int rows = RowOrder::head_rows(site.kept_q_end(p)), count = min_of(aux_tile, rows - first) * width / 4;
    float4 *to = reinterpret_cast<float4 *>(
        site.template q_acc_row<RowOrder, width, float>(p, p.scratch.dq_acc, site.b, site.h, first));
#pragma unroll 1
    for (int i = int(threadIdx.x); i < count; i += aux_threads) to[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  zero_work_counter(p);
}

// Zeroes the numbers that a row without weight cannot give.
template <class Spec>
LUATTN_FN typename Spec::BwdRow without_nan(typename Spec::BwdRow row) {
#pragma unroll
  for (int i = 0; i < Spec::num_bwd_rows; ++i)
    if (row.x[i] != row.x[i]) row.x[i] = 0;
  return row;
}

// What row passes have left for the rows of a block: a delta for each pass, in shared memory, and sums.
template <class Spec, class Config>
struct PassedRows {
  LUATTN_FN const LuattnRowPasses &of(const LuattnParams &p) {
    return static_cast<const LuattnRowPassParams &>(p).passes;
  }
  template <class Real>
  LUATTN_FN void dots(const LuattnParams &p, const SequenceOf<Config> &site, int first, Real (*delta)[aux_tile]) {
    using Elem = typename Config::Elem;
#pragma unroll 1
    for (int i = 0; i < Spec::num_passes; ++i)
      row_dots<Elem, Elem, Config::head_dim_v, per_access<Elem>, false>(p, of(p).o[i], site, first, delta[i]);
  }
  template <class Real>
  LUATTN_FN void numbers(const LuattnParams &p, const Real (*delta)[aux_tile], i64 plane, i64 at, Real *out) {
#pragma unroll
    for (int i = 0; i < Spec::num_passes; ++i) out[i] = delta[i][threadIdx.x];
#pragma unroll
    for (int i = 0; i < Spec::num_sums; ++i)
      out[Spec::num_passes + i] = static_cast<const Real *>(of(p).sums)[i * plane + at];
  }
};
template <class Spec, class Config>
using PrepareParamsOf = ConditionalOf<HasRowPasses<Spec>, LuattnRowPassParams, ParamsOf<Config>>;

// Computes delta = sum over d of dO * O, then the row numbers that the main kernels read. A row without
// weight keeps nothing, or all its scores are -inf; its lse is -inf. It gets the numbers of an lse of +inf
// instead, which make all its weights 0 whatever its scores are, and no dlse. Its part of parameter gradients
// is 0. Without an lse, such a row cannot be recognised, but it has O = 0, and a delta of 0 leaves parameter
// gradients unchanged, since they are linear in delta. RowOrder says how many rows of a head have numbers;
// rows without a query get zeros. If RowOrder `zeroes` (sm90 family), the kernel also computes block minima and
// maxima, unless luattn_tile_bitmap or luattn_tile_bits has already read them.
template <class Spec, class Config, class RowOrder = PlainRows>
LUATTN_FN void aux_prepare(const LuattnParams &p) {
  static_assert(BackwardSpec<Spec>);
  using Real = typename Spec::Real;
  using Elem = typename Config::Elem;
  constexpr int width = Config::head_dim_v;
  const RowBlock block = row_block<Config>(p, int(blockIdx.z));
  SequenceOf<Config> site(p, block.entry, int(blockIdx.y));
  const int first = block.first;
  site.enter_queries(p, first);
  if constexpr (RowOrder::zeroes && Spec::num_block_bounds > 0 && !Spec::has_score_bounds && !Spec::has_tile_bits)
    find_stats<Spec>(p);
  if (block.none) {
    if constexpr (RowOrder::zeroes) zero_work_counter(p);
    return;
  }
  if constexpr (RowOrder::zeroes) prepare_sums<Spec, Config, RowOrder>(p, site, first);
  if (site.packed && first >= RowOrder::head_rows(site.kept_q_end(p))) return;  // the grid is for the longest entry
  __shared__ Real delta[aux_tile];
  row_dots<Elem, OutOf<Config>, width, per_access<Elem>, Needs<Spec, Config>::dq_first_store>(p, p.tensors.o, site,
                                                                                              first, delta);
  constexpr int passed = row_pass_numbers<Spec>;
  __shared__ Real passed_delta[LUATTN_MAX_PASSES][passed > 0 ? aux_tile : 1];
  if constexpr (HasRowPasses<Spec>) PassedRows<Spec, Config>::dots(p, site, first, passed_delta);
  __syncthreads();

  typename Spec::Acc acc = zero_acc<typename Spec::Acc>();
  const typename Spec::Head head = Spec::head(p, site);
  const int q = first + int(threadIdx.x), rows = RowOrder::head_rows(site.kept_q_end(p));
  const i64 row_plane = site.template q_acc_rows<RowOrder>(p, rows),
            row_at = site.template q_acc_index<RowOrder>(p, rows, q);
  typename Spec::BwdRow out = {};
  if (threadIdx.x < aux_tile && q < site.queries(p)) {
    const i64 plane = site.q_count(p), at = site.q_index(p, q);
    Real lse = 0, dlse = 0, saved[Spec::num_saved + passed > 0 ? Spec::num_saved + passed : 1];
    bool any = true;
    if constexpr (Spec::has_lse) {
      lse = *site.template q_row<const Real>(p, p.tensors.lse, q);
      if (p.tensors.dlse.data != nullptr) dlse = *site.template q_row<const Real>(p, p.tensors.dlse, q);
      any = lse != -infinity<Real>();
      if (!any) lse = infinity<Real>(), dlse = 0;
    }
#pragma unroll
    for (int i = 0; i < Spec::num_saved; ++i) saved[i] = static_cast<const Real *>(p.tensors.saved)[i * plane + at];
    if constexpr (HasRowPasses<Spec>)
      PassedRows<Spec, Config>::numbers(p, passed_delta, plane, at, saved + Spec::num_saved);
    out = Spec::prepare(p, site, head, Spec::row(p, site, head, q), q, lse, saved, delta[threadIdx.x], dlse, acc);
    if (!any) out = without_nan<Spec>(out);
    if (!any || (!Spec::has_lse && delta[threadIdx.x] == Real(0))) acc = zero_acc<typename Spec::Acc>();
  }
  if (threadIdx.x < aux_tile && q < rows) {
#pragma unroll
    for (int i = 0; i < Spec::num_bwd_rows; ++i)
      static_cast<Real *>(p.scratch.bwd_rows)[i * row_plane + row_at] = out.x[i];
  }
  if constexpr (Needs<Spec, Config>::parameters) flush_block<Spec, aux_threads>(p, site, head, acc);
}
