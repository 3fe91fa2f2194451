// linear/sm90/linear_segment_end.cuh: where decays are of tokens, or of heads: how much of a segment decides what becomes of a
// state.
//
// What lies before chunks over which a state decays by 2^-40 adds less to it than float rounds away from what it was. So what a
// segment adds is found from its last chunks alone, and its map counts as 0. An update that erases by (I - b k k') with b k'k in
// [0, 2] makes no vector longer, so that is so for it, too, and luattn_linear_inverses says of each chunk whether all of its
// updates are of that kind; where one is not, no chunk is left out. Found from the gates of the call, never assumed.
#pragma once
#include "linear/sm90/linear_numbers.cuh"

template <class Spec, class Config>
struct TokenSegmentEnd {
  using Shared = SharedLinear<Spec, Config>;
  static constexpr int most = 32;  // chunks that are looked at: a lane has one
  static constexpr float least = -40;

  const LuattnLinearParams &p;
  const LinearChain<Config> &chain;
  const Shared shared;
  const int warp, lane;

  __device__ __forceinline__ int looked_at() const { return min_of(chain.chunks(), most); }
  // The sum of decays of the segment's chunk that a lane has, the last one first; of updates that add by the block's warps, which
  // ask hooks for them.
  __device__ __forceinline__ float load() const {
    const int last = chain.chunks() - 1;
    if constexpr (Spec::erases) return lane <= last ? p.chunk_decays[chain.slot(p, chain.at(last - lane))] : 0.f;
    const u32 to = shared.numbers(0);
#pragma unroll 1
    for (int i = warp; i < looked_at(); i += Shared::threads / 32) {
      const auto x = TokenNumbers<Spec, Config>{p, chain, lane}.of_tokens(chain.at(last - i));
      if (lane == 31) store_number(to + 4 * i, x.sum[1]);
    }
    __syncthreads();
    const float left = lane <= last ? load_number(to + 4 * lane) : 0.f;
    __syncthreads();  // others write numbers there
    return left;
  }
  // How many of the last chunks, in the order of the pass, decide what becomes of a state; -1: all. By all warps of the block.
  __device__ __forceinline__ int find() const {
    float left = load();
    const u32 longer = __ballot_sync(0xffffffffu, !(left <= 0));  // or the sum is no number
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float later = __shfl_up_sync(0xffffffffu, left, step);
      left += lane >= step ? later : 0.f;
    }
    const u32 gone = __ballot_sync(0xffffffffu, lane < looked_at() && left < least);
    if (gone == 0) return -1;
    const int count = __ffs(int(gone));
    return (longer & (0xffffffffu >> (32 - count))) == 0 ? count : -1;
  }
};
