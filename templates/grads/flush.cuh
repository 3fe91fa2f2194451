// grads/flush.cuh: sums threads' parameter gradients over a block or a warp and adds them to memory.
#pragma once
#include "score/online_rows.cuh"

// Synchronises the block's threads from First on. Uses named barrier 15 unless First is 0.
template <int Threads, int First>
LUATTN_FN void sync_threads() {
  if constexpr (First == 0)
    __syncthreads();
  else
    asm volatile("barrier.cta.sync.aligned 15, %0;" ::"n"(Threads) : "memory");
}

// Sums acc over Threads threads of the block, from First on, and adds the sums to memory. All of these
// threads call it.
template <class Spec, int Threads, int First = 0>
LUATTN_FN void flush_block(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                           typename Spec::Acc &acc) {
  if constexpr (Spec::num_acc > 0) {
    using Real = typename Spec::Real;
    __shared__ Real part[Threads / 32][Spec::num_acc];
    const int thread = int(threadIdx.x) - First;
    sync_threads<Threads, First>();  // the previous call may still read part
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

// Sums acc over one warp, without waiting for other warps.
template <class Spec>
LUATTN_FN void flush_warp(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                          typename Spec::Acc &acc) {
#pragma unroll
  for (int i = 0; i < Spec::num_acc; ++i) acc.x[i] = lanes_sum<32>(acc.x[i]);
  if (threadIdx.x % 32 == 0) Spec::flush(p, site, head, acc);
}

// Sums the lanes of acc over the block's warps, and adds them to memory. All of its threads call it.
template <class Spec, int Threads>
LUATTN_FN void flush_lanes(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                           const typename Spec::Acc &acc) {
  using Real = typename Spec::Real;
  constexpr int count = decltype(acc.lanes)::count, registers = decltype(acc.lanes)::registers;
  __shared__ Real part[Threads / 32][registers * 32];
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  __syncthreads();  // the previous call may still read part
#pragma unroll
  for (int k = 0; k < registers; ++k) part[warp][k * 32 + lane] = acc.lanes.x[k];
  __syncthreads();
  for (int i = int(threadIdx.x); i < count; i += Threads)
    for (int w = 1; w < Threads / 32; ++w) part[0][i] += part[w][i];
  __syncthreads();
  if (threadIdx.x == 0) Spec::flush_lanes(p, site, head, part[0]);
}

template <class Acc>
LUATTN_FN Acc zero_acc() {
  Acc acc;
  if constexpr (requires { acc.lanes; }) acc.lanes = {};
#pragma unroll
  for (unsigned i = 0; i < sizeof(acc.x) / sizeof(acc.x[0]); ++i) acc.x[i] = 0;
  return acc;
}
