// linear/sm90/linear_quarter_end.cuh: how many chunks before a segment decide alone what it begins with, from decays and keys. Then
// luattn_linear takes these, from a state of 0, before the segment's own; where that is so of no number of chunks, tiles of all
// chunks are made, and maps of segments (linear_tile_segments.cuh, which says why). All segments of a call do the same.
#pragma once
#include "arch/warp.cuh"
#include "linear/sm90/linear_pipeline.cuh"
#include "ops/math.cuh"

// The number for a segment, negative where there is none: behind what chains of tiles say of segments.
template <class Config>
__device__ __forceinline__ float *chunks_before(const LuattnLinearParams &p, i64 number) {
  return p.segments.decays + i64(p.entries) * p.heads_v * p.segments.count + number;
}
template <class Config>
__device__ __forceinline__ bool begins_early(const LuattnLinearParams &p) {
  const int count = p.segments.count;
  bool all = true;
  for (int i = int(threadIdx.x % 32); i < p.entries * p.heads_v * count; i += 32)
    all = all && (i % count == 0 || *chunks_before<Config>(p, i) >= 0);
  return __all_sync(0xffffffffu, all);
}

// A block has a segment of an entry and value head, but for its first one.
template <class Spec, class Config>
struct QuarterEnd {
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  static constexpr int tokens = LINEAR_QUARTER, k_dim = 128, apart = k_dim / 32,
                       warps = LINEAR_QUARTER_END_THREADS / 32, at_once = warps / 4,
                       most = 16;      // of chunks: as many as the shortest segments have
  static constexpr float least = -40;  // of what is left, to the base of 2

  // Of each quarter of some chunks what its decays leave of a state at most, to the base of 2, and whether its tokens make no
  // vector longer.
  struct Memory {
    float left[warps];
    bool good[warps];
  };

  const LuattnLinearParams &p;
  const Chain &chain;
  const int segment;
  Memory &memory;
  const int warp, lane;

  // The segment's first chunk, as LinearChain has it.
  __device__ __forceinline__ int begin() const {
    const int each = int(u32(chain.end) / u32(p.segments.count)), more = chain.end - each * p.segments.count;
    return segment * each + min_of(segment, more);
  }
  // Of each token the decay of the channel that keeps most, added up. All loads are under way together, without branches.
  __device__ __forceinline__ float add_up(int first) const {
    float g[tokens][apart], sum = 0;
#pragma unroll
    for (int i = 0; i < tokens; ++i)
#pragma unroll
      for (int n = 0; n < apart; ++n)
        g[i][n] = Spec::decay(p, chain.site, chain.clamped(first + i), min_of(lane + 32 * n, Config::k_dim - 1));
#pragma unroll
    for (int i = 0; i < tokens; ++i) {
#pragma unroll
      for (int n = 0; n < apart; ++n) {
        asm volatile("" : "+f"(g[i][n]));
        g[i][0] = n == 0 ? g[i][0] : greater_of(g[i][0], g[i][n]);
      }
      const float most_left = greatest_of_warp(decay_within(g[i][0])) * op_log2_e;
      sum += chain.has(first + i) ? most_left : 0.f;
    }
    return sum;
  }
  // r' k of each token lies in [0, 2]; two lanes have one.
  __device__ __forceinline__ bool is_shrinking(int first) const {
    const int t = first + lane / 2, exists = chain.clamped(t);
    const Elem *at = static_cast<const Elem *>(p.k.data) + (Config::packed ? 0 : chain.entry * p.k.batch) +
                     chain.site.h * p.k.head + i64(chain.start + exists) * p.k.seq;
    constexpr int loads = Config::k_dim / 8;
    u64 x[loads];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < loads; ++i)
      x[i] = __ldg(reinterpret_cast<const unsigned long long *>(at + 8 * i + lane % 2 * 4));
#pragma unroll
    for (int i = 0; i < 4 * loads; ++i) {
      const float e = to_real(Elem{u16(x[i / 4] >> i % 4 * 16)});
      sum += e * e;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum *= float(Spec::read(p, chain.site, exists));
    if constexpr (Spec::has_key_factor) {
      const float by = Spec::key_factor(p, chain.site, exists);
      sum *= by * by;
    }
    return __all_sync(0xffffffffu, !chain.has(t) || ((sum >= 0) & (sum <= 2)));
  }
  // Adds up what the next chunk has, and says whether nothing is left.
  __device__ __forceinline__ bool is_gone(float &all, bool &good, int i) const {
#pragma unroll
    for (int part = 4 * i; part < 4 * i + 4; ++part) good = good && memory.good[part], all += memory.left[part];
    return good && all < least;
  }
  // From the last chunk on. An entry's beginning is as good: its state is there.
  __device__ __forceinline__ int find(int before) const {
    float all = 0;
    bool good = true;
    int found = before == 0 ? 0 : -1;
#pragma unroll 1
    for (int done = 0; done < min_of(most, before) && found < 0; done += at_once) {
      const int chunk = before - 1 - done - warp / 4, first = chunk * LUATTN_CHUNK + warp % 4 * tokens;
      __syncthreads();
      if (chunk >= 0) {
        const float left = add_up(first);
        const bool shrinks = is_shrinking(first);
        if (lane == 0) memory.left[warp] = left, memory.good[warp] = shrinks;
      }
      __syncthreads();
      for (int i = 0; i < at_once && done + i < before && found < 0; ++i)
        if (is_gone(all, good, i)) found = done + i + 1;
      // Gives up where `most` chunks like these would leave far more.
      if (!good || all * most > least / 2 * (done + at_once)) break;
    }
    return found < 0 && before <= most ? before : found;
  }
  // Of a state in place no segment begins early: one could read what another has written.
  __device__ __forceinline__ void run() const {
    const bool in_place = p.first.data != nullptr && p.first.data == p.last.data;
    const int found = chain.state_row(p) < 0 ? 0 : in_place ? -1 : find(begin());
    if (threadIdx.x == 0) *chunks_before<Config>(p, chain.number(p, segment)) = float(found);
  }
};

template <class Spec, class Config>
LUATTN_FN void linear_quarter_end(const LuattnLinearParams &p) {
  __shared__ typename QuarterEnd<Spec, Config>::Memory memory;
  const LaterSegment<Config> of(p);
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  QuarterEnd<Spec, Config>{p, of.chain, of.segment, memory, warp, lane}.run();
}
