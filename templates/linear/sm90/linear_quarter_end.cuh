// linear/sm90/linear_quarter_end.cuh: how many chunks before a segment decide alone what it begins with, from decays and keys. Then
// luattn_linear takes these, from a state of 0, before the segment's own; where that is so of no number of chunks, tiles of all
// chunks are made, and maps of segments (linear_tile_segments.cuh, which says why). All segments of a call do the same.
//
// Two rules say so. Each token leaves at most as much as of the channel that keeps most, which is proved by the gates alone. Where
// that is too much the last chunks' sums of decays of each channel say how many may be enough, which is a guess, as keys may move
// what lies in one channel to another, and chunks before may decay less: so the map of that many chunks is computed, and its norm
// measured (linear_quarter_map.cuh).
#pragma once
#include "arch/early_launch.cuh"
#include "arch/warp.cuh"
#include "linear/sm90/linear_pipeline.cuh"
#include "linear/sm90/linear_quarter_map.cuh"
#include "ops/math.cuh"
#include "tma/warp_roles.cuh"

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
// The same, of kernels behind luattn_linear: then they have nothing to do, and end beside it, all but one block, which others behind
// them wait for. luattn_linear has waited for luattn_linear_end before it lets them start.
template <class Config>
__device__ __forceinline__ bool is_done(const LuattnLinearParams &p) {
  let_next_start();
  const bool done = begins_early<Config>(p);
  if (!done || is_first_block()) wait_for_previous();
  return done;
}

// A block has a segment of an entry and value head, but for its first one.
template <class Spec, class Config>
struct QuarterEnd {
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  static constexpr int tokens = LINEAR_QUARTER, k_dim = 128, apart = k_dim / 32,
                       warps = LINEAR_QUARTER_END_THREADS / 32, at_once = warps / 4,
                       least_looked = 16;  // of chunks: as many as the shortest segments have; and twice as many
  static constexpr float least = -40,      // of what is left, to the base of 2
      least_guess = -44;                   // the norm of a square is up to 2^3.5 times what it does to a vector

  // Of each quarter of some chunks what its decays leave of a state at most, to the base of 2, and whether its tokens make no
  // vector longer; and of each channel.
  struct Memory {
    float of_channel[warps][k_dim];
    float left[warps];
    bool good[warps];
  };
  // How many chunks; negative: no number of them.
  struct Found {
    int count;
    bool proved;
  };

  const LuattnLinearParams &p;
  const Chain &chain;
  const int segment;
  Memory &memory;
  const int warp, lane;

  // Chunks of a segment, but for one that some have more; the segment's first chunk, as LinearChain has it.
  __device__ __forceinline__ int each() const { return int(u32(chain.end) / u32(p.segments.count)); }
  __device__ __forceinline__ int begin() const {
    const int more = chain.end - each() * p.segments.count;
    return segment * each() + min_of(segment, more);
  }
  // More would take longer than maps of segments.
  __device__ __forceinline__ int most() const { return max_of(least_looked, min_of(2 * least_looked, each())); }

  // ---- quarters ----

  // Of 2 N numbers of each lane those that have the bit N of its number, or lack it as it does, of both lanes.
  template <int N, class Join>
  __device__ __forceinline__ void halve(float (&x)[tokens], const Join &join) const {
    const bool upper = (lane & N) != 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float kept = upper ? x[i + N] : x[i], given = upper ? x[i] : x[i + N];
      x[i] = join(kept, __shfl_xor_sync(0xffffffffu, given, N));
    }
    if constexpr (N > 1) halve<N / 2>(x, join);
  }
  // Of 16 numbers of each lane what all lanes together have of number lane % 16.
  template <class Join>
  __device__ __forceinline__ float across(float (&x)[tokens], const Join &join) const {
    halve<tokens / 2>(x, join);
    return join(x[0], __shfl_xor_sync(0xffffffffu, x[0], tokens));
  }
  // The lane's channels of all tokens: four that lie side by side in an input, or every 32nd. All loads are under way together,
  // without branches. Channels that do not exist have what another one has.
  __device__ __forceinline__ bool load_fours(float (&g)[tokens][apart], int first) const {
    if constexpr (DecayHasPlace<Spec>) {
      const auto place = [&](int t, int d) -> const float * {
        return Spec::decay_place(p, chain.site, chain.clamped(t), d);
      };
      const float *const at = place(first, 0);
      const bool in_fours = place(first, 1) - at == 1 && reinterpret_cast<u64>(at) % 16 == 0 &&
                            (place(0, 0) - at) % 4 == 0 && (place(first + 1, 0) - at) % 4 == 0;
      if (!__all_sync(0xffffffffu, in_fours)) return false;
#pragma unroll
      for (int i = 0; i < tokens; ++i) {
        const float4 x =
            __ldg(reinterpret_cast<const float4 *>(place(first + i, 0) + min_of(4 * lane, Config::k_dim - 4)));
        g[i][0] = x.x, g[i][1] = x.y, g[i][2] = x.z, g[i][3] = x.w;
      }
      return true;
    }
    return false;
  }
  __device__ __forceinline__ void load(float (&g)[tokens][apart], int first) const {
    if (load_fours(g, first)) return;
#pragma unroll
    for (int i = 0; i < tokens; ++i)
#pragma unroll
      for (int n = 0; n < apart; ++n)
        g[i][n] = Spec::decay(p, chain.site, chain.clamped(first + i), min_of(lane + 32 * n, Config::k_dim - 1));
#pragma unroll
    for (int i = 0; i < tokens * apart; ++i) asm volatile("" : "+f"(g[i / apart][i % apart]));
  }
  // Of each token the decay of the channel that keeps most, added up. Stores sums of channels.
  __device__ __forceinline__ float add_up(float (&g)[tokens][apart], int first) const {
    float most_left[tokens], sum[apart] = {};
#pragma unroll
    for (int i = 0; i < tokens; ++i) {
      const bool has = chain.has(first + i);
#pragma unroll
      for (int n = 0; n < apart; ++n) {
        const float x = has ? decay_within(g[i][n]) : 0.f;
        most_left[i] = n == 0 ? x : greater_of(most_left[i], x);
        sum[n] += x;
      }
    }
#pragma unroll
    for (int n = 0; n < apart; ++n) memory.of_channel[warp][lane + 32 * n] = sum[n] * op_log2_e;
    float all = across(most_left, [](float x, float y) { return greater_of(x, y); });
#pragma unroll
    for (int n = tokens / 2; n > 0; n /= 2) all += __shfl_xor_sync(0xffffffffu, all, n);
    return all * op_log2_e;
  }
  // Four of the lane's channels of keys.
  __device__ __forceinline__ void load_keys(u64 (&x)[tokens], int first) const {
    const Elem *const rows = static_cast<const Elem *>(p.k.data) + (Config::packed ? 0 : chain.entry * p.k.batch) +
                             chain.site.h * p.k.head + min_of(4 * lane, Config::k_dim - 4);
#pragma unroll
    for (int i = 0; i < tokens; ++i)
      x[i] = __ldg(
          reinterpret_cast<const unsigned long long *>(rows + i64(chain.start + chain.clamped(first + i)) * p.k.seq));
  }
  // r' k of each token lies in [0, 2].
  __device__ __forceinline__ bool is_shrinking(const u64 (&x)[tokens], int first) const {
    const int channel = 4 * lane, t = first + lane % tokens, exists = chain.clamped(t);
    float square[tokens];
#pragma unroll
    for (int i = 0; i < tokens; ++i) {
      square[i] = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float e = to_real(Elem{u16(x[i] >> n * 16)});
        square[i] += channel < Config::k_dim ? e * e : 0.f;
      }
    }
    float sum = across(square, [](float a, float b) { return a + b; }) * float(Spec::read(p, chain.site, exists));
    if constexpr (Spec::has_key_factor) {
      const float by = Spec::key_factor(p, chain.site, exists);
      sum *= by * by;
    }
    return __all_sync(0xffffffffu, !chain.has(t) || ((sum >= 0) & (sum <= 2)));
  }

  // ---- chunks ----

  // What the chunks so far leave: by tokens, of the lane's channels, and whether all tokens make no vector longer.
  struct Left {
    float all = 0, of_channel[apart] = {};
    bool good = true;
  };
  __device__ __forceinline__ void add(Left &left, int i) const {
#pragma unroll
    for (int part = 4 * i; part < 4 * i + 4; ++part) {
      left.good = left.good && memory.good[part], left.all += memory.left[part];
#pragma unroll
      for (int n = 0; n < apart; ++n) left.of_channel[n] += memory.of_channel[part][lane + 32 * n];
    }
  }
  __device__ __forceinline__ static float of_slowest(const Left &left) {
    const float(&x)[apart] = left.of_channel;
    return greatest_of_warp(greater_of(greater_of(x[0], x[1]), greater_of(x[2], x[3])));
  }
  // Of the warp's quarter of the chunks that are looked at.
  __device__ __forceinline__ void look(int chunk) const {
    const int first = chunk * LUATTN_CHUNK + warp % 4 * tokens;
    float g[tokens][apart];
    u64 keys[tokens];
    load(g, first), load_keys(keys, first);
    const float of_quarter = add_up(g, first);
    const bool shrinks = is_shrinking(keys, first);
    if (lane == 0) memory.left[warp] = of_quarter, memory.good[warp] = shrinks;
  }
  // How many chunks like these may leave as little as is wanted, where these leave so much of the slowest channel; -1: too many.
  // Maps in half_t lose what is below 2^-25 between products, so that their norm proves nothing.
  __device__ __forceinline__ static int guess(float slowest, int looked_at, int most) {
    if constexpr (same_type<Elem, half_t>::value) return -1;
    return slowest * most <= least_guess * looked_at ? int(ceilf(least_guess * looked_at / slowest)) : -1;
  }
  // From the last chunk on, as long as tokens leave little. An entry's beginning is as good: its state is there.
  __device__ __forceinline__ Found find(int before) const {
    Left left;
    const int most = this->most();
    int guessed = -1;
    if (before == 0) return {0, true};
#pragma unroll 1
    for (int done = 0; done < min_of(most, before); done += at_once) {
      const int count = min_of(at_once, before - done);
      __syncthreads();
      if (warp / 4 < count) look(before - 1 - done - warp / 4);
      __syncthreads();
      for (int i = 0; i < count; ++i) {
        add(left, i);
        if (left.good && left.all < least) return {done + i + 1, true};
      }
      guessed = guess(of_slowest(left), done + count, most);
      // Twice as many chunks like these would not prove it.
      if (!(left.good && left.all * most <= least / 2 * (done + count)) || guessed > 0) break;
    }
    return guessed > 0 && guessed < before ? Found{guessed, false}
           : before <= most                ? Found{before, true}
                                           : Found{-1, true};
  }
};

template <class Spec, class Config>
struct QuarterNorm {
  using Shared = SharedQuarters<Spec, Config>;
  using Map = QuarterMap<Spec, Config>;
  static_assert(Shared::threads == LINEAR_QUARTER_END_THREADS);
  static constexpr float least = 1.f / (1ll << 40);

  // Whether the map of the chain's chunks leaves less than that of any state, by all threads; sums: of warps.
  __device__ static bool is_gone(const LuattnLinearParams &p, const LinearChain<Config> &chain, const Shared &shared,
                                 float *sums) {
    const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
    constexpr int values = 4 * Shared::groups;
    if (threadIdx.x == 0) shared.init_barriers();
    __syncthreads();
    float sum = 0;
    if (warp >= values) {
      registers_down<QUARTER_MAKER_REGISTERS>();
      const int maker = warp - values;
      QuarterMaker<Spec, Config, true>{p, shared, chain, maker / 2, maker % 2, lane}.run();
    } else {
      registers_up<QUARTER_VALUE_REGISTERS>();
      // No tensors are loaded or stored.
      const LuattnTensorMaps none = {};
      sum = Map{{p, none, shared, chain, warp / 4, warp % 4, 0, lane}}.run();
    }
    __syncthreads();
    if (warp < values && lane == 0) sums[warp] = sum;
    __syncthreads();
    float all = 0;
    for (int i = 0; i < values; ++i) all += sums[i];
    return all < least * least;
  }
};

template <class Spec, class Config>
LUATTN_FN void linear_quarter_end(const LuattnLinearParams &p, void *memory) {
  using End = QuarterEnd<Spec, Config>;
  let_next_start();
  typename End::Memory &own = *static_cast<typename End::Memory *>(memory);
  const LaterSegment<Config> of(p);
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  const End end{p, of.chain, of.segment, own, warp, lane};
  // Of a state in place no segment begins early: one could read what another has written.
  const bool in_place = p.first.data != nullptr && p.first.data == p.last.data;
  const bool left_alone = of.chain.state_row(p) < 0;
  auto found = left_alone ? typename End::Found{0, true}
               : in_place ? typename End::Found{-1, true}
                          : end.find(end.begin());
  const int guessed = int(uniform(!found.proved && found.count > 0 ? u32(found.count) : 0u));
  if (guessed > 0) {
    LinearChain<Config> chain = of.chain;
    chain.end = end.begin(), chain.begin = chain.end - guessed;
    __syncthreads();
    const SharedQuarters<Spec, Config> shared{shared_address(memory)};
    if (!QuarterNorm<Spec, Config>::is_gone(p, chain, shared, own.left))
      found.count = end.begin() <= end.most() ? end.begin() : -1;
  }
  if (threadIdx.x == 0) *chunks_before<Config>(p, of.chain.number(p, of.segment)) = float(found.count);
}
