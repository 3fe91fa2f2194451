// linear/sm90/linear_gates.cuh: the same three warps where decays differ between channels: they also write, for each block of
// 16 tokens, sums of its decays up to each token, to the base of 2.
#pragma once
#include "linear/sm90/linear_numbers.cuh"

template <class Spec, class Config>
struct LinearGates {
  using Shared = SharedLinear<Spec, Config>;
  static constexpr int block = 16;

  const LuattnLinearParams &p;
  const Shared shared;
  const LinearChain<Config> &chain;
  const int turn, lane;

  // A part is a block's 64 channels, of which a lane has two that are adjacent.
  __device__ __forceinline__ static int first_token(int part) { return part % 4 * block; }
  __device__ __forceinline__ int channel(int part) const { return part / 4 * 64 + 2 * lane; }

  // Hooks are asked about tokens and channels that exist, without branches: their loads are under way together.
  __device__ __forceinline__ void load(float (&g)[block][2], int chunk, int part) const {
#pragma unroll
    for (int i = 0; i < block; ++i)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int t = chunk * LUATTN_CHUNK + first_token(part) + i, d = channel(part) + n;
        const float x = Spec::decay(p, chain.site, chain.clamped(t), min_of(d, Config::k_dim - 1));
        g[i][n] = chain.has(t) && d < Config::k_dim ? max_of(x, least_decay) * op_log2_e : 0.f;
      }
  }
  __device__ __forceinline__ void store_sums(const float (&g)[block][2], u32 to) const {
    float sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < block; ++i) {
      sum[0] += g[i][0], sum[1] += g[i][1];
      store_pair(to + i * (Shared::k_dim * 4), sum);
    }
  }
  __device__ __forceinline__ void step(int n, int part) const {
    constexpr int stages = Shared::gate_stages;
    const int stage = n % stages;
    float g[block][2];
    load(g, chain.at(n), part);
    barrier_wait(shared.gates_empty(stage), u32(n / stages + 1) & 1);
    store_sums(g, shared.gates(stage) + (first_token(part) * Shared::k_dim + channel(part)) * 4);
    barrier_arrive(shared.gates_full(stage));
  }
  __device__ __forceinline__ void run() const {
    constexpr int warps = LinearNumbers<Spec, Config>::warps, parts = Shared::gate_parts;
    int next = turn;  // the warp's next part, of the chunk and those behind it
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      if (n % warps == turn) LinearNumbers<Spec, Config>{p, shared, chain, turn, lane}.step(n);
#pragma unroll 1
      for (; next < parts; next += warps) step(n, next);
      next -= parts;
    }
  }
};
