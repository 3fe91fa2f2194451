// linear/sm90/linear_gates.cuh: the same three warps where decays differ between channels: they also write, for each block of
// 16 tokens, sums of its decays up to each token, to the base of 2.
#pragma once
#include "linear/sm90/linear_numbers.cuh"

// A part of a chunk: 16 tokens and 64 channels, of which a lane has two that are adjacent. RowBytes: of a row of sums.
template <class Spec, class Config, int RowBytes>
struct GateSums {
  static constexpr int block = 16, at_once = 16;  // tokens: as registers allow

  const LuattnLinearParams &p;
  const LinearChain<Config> &chain;
  const int lane;

  // Hooks are asked about tokens and channels that exist, without branches: their loads are under way together. Whole: all
  // exist, which saves most of the instructions.
  template <bool Whole>
  __device__ __forceinline__ void load(float (&g)[at_once][2], int t, int d) const {
#pragma unroll
    for (int i = 0; i < at_once; ++i)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float x = Whole ? Spec::decay(p, chain.site, t + i, d + n)
                              : Spec::decay(p, chain.site, chain.clamped(t + i), min_of(d + n, Config::k_dim - 1));
        const bool has = Whole || (chain.has(t + i) && d + n < Config::k_dim);
        g[i][n] = has ? decay_within(x) * op_log2_e : 0.f;
      }
  }
  __device__ __forceinline__ static void store_sums(float (&sum)[2], const float (&g)[at_once][2], u32 to) {
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      sum[0] += g[i][0], sum[1] += g[i][1];
      store_pair(to + i * RowBytes, sum);
    }
  }
  // Waits, by `wait`, when decays have been loaded.
  template <class Wait>
  __device__ __forceinline__ void write(u32 to, int chunk, int part, const Wait &wait) const {
    const int first = part % 4 * block, d = part / 4 * 64 + 2 * lane;
    float g[at_once][2], sum[2] = {0, 0};
#pragma unroll 1
    for (int i = 0; i < block; i += at_once) {
      const int t = chunk * LUATTN_CHUNK + first + i;
      if (Config::k_dim % 64 == 0 && chain.has(t + at_once - 1))
        load<true>(g, t, d);
      else
        load<false>(g, t, d);
      if (i == 0) wait();
      store_sums(sum, g, to + (first + i) * RowBytes + d * 4);
    }
  }
};

template <class Spec, class Config>
struct LinearGates {
  using Shared = SharedLinear<Spec, Config>;
  using Sums = GateSums<Spec, Config, linear_gate_row(Config::k_dim)>;
  static constexpr int warps = LinearNumbers<Spec, Config>::warps;

  const LuattnLinearParams &p;
  const Shared shared;
  const LinearChain<Config> &chain;
  const int turn, lane;

  __device__ __forceinline__ void step(int n, int part) const {
    constexpr int stages = Shared::gate_stages;
    const int stage = n % stages;
    Sums{p, chain, lane}.write(shared.gates(stage), chain.at(n), part,
                               [&] { barrier_wait(shared.gates_empty(stage), u32(n / stages + 1) & 1); });
    barrier_arrive(shared.gates_full(stage));
  }
  __device__ __forceinline__ void run() const {
    constexpr int parts = Shared::gate_parts;
    int next = turn;  // the warp's next part, of the chunk and those behind it
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      if (n % warps == turn) LinearNumbers<Spec, Config>{{p, chain, lane}, shared, turn}.step(n);
#pragma unroll 1
      for (; next < parts; next += warps) step(n, next);
      next -= parts;
    }
  }
};
