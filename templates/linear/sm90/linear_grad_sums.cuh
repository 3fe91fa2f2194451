// linear/sm90/linear_grad_sums.cuh: two warps of luattn_linear_grads that add up what others have found of a chunk: gradients of
// decays (linear_ways.cuh), of r / k, of what is written, and of k's factor.
#pragma once
#include "linear/sm90/grads_pipeline.cuh"
#include "linear/sm90/linear_ways.cuh"

template <class Spec, class Config>
struct GradSums {
  using Shared = SharedGrads<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  static constexpr bool decays = Shared::has_gates;

  const LuattnLinearParams &p;
  const Shared shared;
  const int which, lane;  // of the two

  // The warp's half of the way from state to state, the sum over all of e^GC S dS.
  __device__ __forceinline__ void add_across(int n) const {
    const u32 at = u32(which) * (2 * Shared::box) + u32(lane) * 16;
    float sum[2] = {0, 0};
    barrier_wait(shared.full(GRAD_OF_STATE), u32(n) & 1);
    barrier_wait(shared.full(GRAD_STATE), u32(n) & 1);
#pragma unroll 2
    for (int i = 0; i < 2 * Shared::box; i += 512) {
      const uint4 s = load_shared_16(shared.at(GRAD_STATE) + at + i),
                  d = load_shared_16(shared.at(GRAD_OF_STATE) + at + i);
      const u32 a[4] = {s.x, s.y, s.z, s.w}, b[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int j = 0; j < 2; ++j) sum[j] += half_of<Elem>(a[m], j) * half_of<Elem>(b[m], j);
    }
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(GRAD_OF_STATE)), barrier_arrive(shared.empty(GRAD_STATE));
    float all = sum[0] + sum[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
    all *= load_number(shared.numbers(n % 2) + GRAD_CHUNK);
    barrier_wait(shared.empty(GRAD_SUMS), u32(n + 1) & 1);
    if (lane == 0) store_number(shared.sums() + SUMS_ACROSS + 4 * which, all);
  }
  __device__ __forceinline__ static float2 both(u32 at) {
    const float2 x = load_pair(at), y = load_pair(at + 256);
    return {x.x + y.x, x.y + y.y};
  }
  __device__ __forceinline__ void store(float *to, const Chain &chain, int t, float2 x) const {
    if (to != nullptr && chain.has(t)) to[chain.token(p, t)] = x.x;
    if (to != nullptr && chain.has(t + 1)) to[chain.token(p, t + 1)] = x.y;
  }
  // Ways to queries and to keys that read.
  __device__ __forceinline__ float2 sum_ways(u32 at, float2 query, float2 read) const {
    const TokenSums tokens{lane};
    const float2 to = tokens.suffix({query.x + read.x, query.y + read.y}),
                 from = tokens.prefix(both(at + SUMS_FROM_KEY));
    const float across = load_number(shared.sums() + SUMS_ACROSS) + load_number(shared.sums() + SUMS_ACROSS + 4);
    const float2 pairs = PairWayParts::total(lane, shared.sums() + SUMS_OF_WAYS, shared.sums() + SUMS_OF_DIAGONAL);
    return {to.x + from.x + across + pairs.x, to.y + from.y + across + pairs.y};
  }
  // Of additive updates the gradient of k's factor is that of the factor times w.
  __device__ __forceinline__ void store_factor(const Chain &chain, int t, float2 of_factor, float2 write) const {
    float2 key = {1, 1};
    if constexpr (!Spec::erases && Spec::has_key_factor) {
      if (chain.has(t)) key.x = Spec::key_factor(p, chain.site, t);
      if (chain.has(t + 1)) key.y = Spec::key_factor(p, chain.site, t + 1);
    }
    if constexpr (!Spec::erases)
      store(p.sums.write, chain, t, {of_factor.x * key.x, of_factor.y * key.y});
    else
      write = {1, 1};
    if constexpr (Spec::has_key_factor)
      store(p.sums.key_factor, chain, t, {of_factor.x * write.x, of_factor.y * write.y});
  }
  __device__ __forceinline__ void add_up(const Chain &chain, int n) const {
    const int t = chain.at(n) * LUATTN_CHUNK + 2 * lane;
    const u32 at = shared.sums() + 8 * u32(lane), numbers = shared.numbers(n % 2) + 8 * u32(lane);
    const float2 key = load_pair(numbers + ROW_KEY), read = load_pair(numbers + ROW_READ),
                 write = load_pair(numbers + ROW_WRITE);
    float2 dg = {0, 0}, of_factor = {0, 0}, of_read = {0, 0}, of_write = {0, 0}, to = {0, 0};
    float2 query = load_pair(numbers + ROW_QUERY), of_query = {0, 0};
    barrier_wait(shared.full(GRAD_SUMS), u32(n) & 1);
    if constexpr (decays || Spec::has_query_factor) {
      const float2 from = both(at + SUMS_TO_QUERY);
      if constexpr (Spec::has_query_factor) {
        const float2 pairs = load_pair(at + SUMS_OF_QUERY);
        of_query = {(pairs.x + from.x) * p.scale, (pairs.y + from.y) * p.scale};
      }
      query.x *= from.x, query.y *= from.y;
    }
    if constexpr (Spec::erases) {
      const float2 pairs = load_pair(at + SUMS_OF_READ);
      to = both(at + SUMS_TO_READ), of_write = both(at + SUMS_OF_WRITE);
      of_read = {key.x * (to.x + pairs.x), key.y * (to.y + pairs.y)};
      to.x *= read.x * key.x, to.y *= read.y * key.y;
    }
    if constexpr (decays) dg = sum_ways(at, query, to);
    if constexpr (Shared::has_factor) of_factor = both(at + SUMS_OF_FACTOR);
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(GRAD_SUMS));
    if constexpr (Spec::erases) store(p.sums.read, chain, t, of_read), store(p.sums.write, chain, t, of_write);
    if constexpr (decays) store(p.sums.decay, chain, t, dg);
    if constexpr (Spec::has_query_factor) store(p.sums.query_factor, chain, t, of_query);
    if constexpr (Shared::has_factor) store_factor(chain, t, of_factor, write);
  }
  __device__ __forceinline__ void run(const Chain &chain) const {
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      barrier_wait(shared.full(GRAD_NUMBERS + n % 2), u32(n / 2) & 1);
      if constexpr (decays) add_across(n);
      if (which == 0) add_up(chain, n);
      // Without decays the second warp has nothing to add, and must not arrive for a chunk before the last one's sums are read.
      if (!decays && which == 1) barrier_wait(shared.empty(GRAD_SUMS), u32(n + 1) & 1);
      __syncwarp();
      if (which == 1 && elected()) barrier_arrive(shared.full(GRAD_SUMS));
      if (elected()) barrier_arrive(shared.empty(GRAD_NUMBERS + n % 2));
    }
  }
};
