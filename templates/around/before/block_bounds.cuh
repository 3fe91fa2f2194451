// around/before/block_bounds.cuh: luattn_stats: computes minima and maxima of blocks of the integer inputs that a
// mask reads, or the sets of their numbers (ops/input_bounds.cuh).
//
// Grid (blocks, rows, num_stats), each the largest that any stat has (contract/contract.cuh); stats_threads
// threads.
#pragma once
#include "around/around.cuh"

// Rows of a stat, the positions along the axes before its own, and blocks of each.
template <class Spec>
LUATTN_FN void stat_shape(const LuattnParams &p, int stat, i64 &rows, int &blocks) {
  const LuattnInput &in = p.inputs.input[Spec::block_bounds_input(stat)];
  const int axis = Spec::block_bounds_axis(stat);
  rows = 1;
  for (int a = 0; a < axis; ++a) rows *= in.size[a];
  blocks = ceil_div(in.size[axis], Spec::block_bounds_size(stat));
}
// Computes the minimum and maximum, or the set, of one block of one row of an integer input, with one warp.
template <class Spec>
LUATTN_FN void find_stat(const LuattnParams &p, int stat, i64 row, int block, int blocks) {
  const int axis = Spec::block_bounds_axis(stat), size = Spec::block_bounds_size(stat);
  const int lane = int(threadIdx.x) % 32;
  const LuattnInput &in = p.inputs.input[Spec::block_bounds_input(stat)];
  i64 at = 0, rest = row;
  for (int a = axis - 1; a >= 0; --a) {
    at += rest % in.size[a] * in.stride[a];
    rest /= in.size[a];
  }
  const int *data = static_cast<const int *>(in.data) + at;  // if inputs are all int
  const int lo = block * size, hi = min_of(lo + size, in.size[axis]);
  int low = 0x7fffffff, high = int(0x80000000u);
  [[maybe_unused]] u64 set = 0;
#pragma unroll 1
  for (int i = lo + lane; i < hi; i += 32) {
    int x;
    if constexpr (requires { Spec::block_bounds_value(stat, in.data, at); })
      x = Spec::block_bounds_value(stat, in.data, at + i * in.stride[axis]);
    else
      x = data[i * in.stride[axis]];
    low = min_of(low, x);
    high = max_of(high, x);
    if constexpr (requires { Spec::block_bounds_is_set(0); }) set |= u64(1) << (x & 63);
  }
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  if constexpr (requires { Spec::block_bounds_is_set(0); })
    if (Spec::block_bounds_is_set(stat)) {
      low = int(__reduce_or_sync(0xffffffffu, u32(set)));
      high = int(__reduce_or_sync(0xffffffffu, u32(set >> 32)));
    }
  if (lane == 0) {
    int *out = p.scratch.stats[stat] + (row * blocks + block) * 2;
    out[0] = low;
    out[1] = high;
  }
}
template <class Spec>
LUATTN_FN void aux_stats(const LuattnParams &p) {
  static_assert(ValidSpec<Spec>);
  if constexpr (Spec::num_block_bounds > 0) {
    const int stat = int(blockIdx.z), block = int(blockIdx.x);
    i64 rows;
    int blocks;
    stat_shape<Spec>(p, stat, rows, blocks);
    // The grid is as large as the largest stat needs.
    if (block < blocks && blockIdx.y < rows) find_stat<Spec>(p, stat, blockIdx.y, block, blocks);
  }
}
// Computes all block bounds, with the warps of a grid of aux_threads.
template <class Spec>
LUATTN_FN void find_stats(const LuattnParams &p) {
  constexpr int warps = aux_threads / 32;
  const u32 number = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x,
            all = gridDim.x * gridDim.y * gridDim.z * warps;
#pragma unroll 1
  for (int stat = 0; stat < Spec::num_block_bounds; ++stat) {
    i64 rows;
    int blocks;
    stat_shape<Spec>(p, stat, rows, blocks);
#pragma unroll 1
    for (i64 i = number * warps + threadIdx.x / 32; i < rows * blocks; i += all)
      find_stat<Spec>(p, stat, i / blocks, int(i % blocks), blocks);
  }
}
