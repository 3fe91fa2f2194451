// linear/sm90/linear_producer.cuh: the warp that loads chunks of q, k and v, and T, by TMA.
#pragma once
#include "linear/sm90/linear_values.cuh"

// OnlyState: without q.
template <class Spec, class Config, bool OnlyState>
struct LinearProducer {
  using Shared = SharedLinear<Spec, Config>;
  using Values = LinearValues<Spec, Config, OnlyState>;
  static constexpr int last_chunks = 8;  // of sums: the next kernel finds theirs in L2

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const LinearChain<Config> &chain;

  template <L2Lines Lines>
  __device__ __forceinline__ void load(int stage, int chunk) const {
    const int bytes = (OnlyState ? 1 : 2) * Shared::layout.qk + (chain.of_map ? 0 : Shared::layout.v) +
                      (Shared::takes_inverse ? Shared::box : 0);
    const u32 full = shared.full(stage);
    const auto box = chain.box(chunk);
    barrier_arrive_expect(full, bytes);
#pragma unroll
    for (int i = 0; i < Shared::boxes_k; ++i) {
      tensor_load_as<Lines>(shared.k(stage) + i * Shared::box, maps.k, full, i * 64, box, chain.key_head());
      if constexpr (!OnlyState)
        tensor_load_as<Lines>(shared.q(stage) + i * Shared::box, maps.q, full, i * 64, box, chain.key_head());
    }
    if constexpr (Shared::takes_inverse)
      bulk_load(shared.taken_inverse(stage),
                static_cast<const unsigned char *>(p.inverses) + chain.slot(p, chunk) * Shared::box, Shared::box, full);
    if (chain.of_map) return;
#pragma unroll
    for (int i = 0; i < Shared::groups; ++i)
      if constexpr (Shared::two_heads)
        tensor_load_as<Lines>(shared.v(stage) + i * Shared::box, maps.v, full, 0, box, chain.value_head() + i);
      else
        tensor_load_as<Lines>(shared.v(stage) + i * Shared::box, maps.v, full, chain.first_value + i * 64, box,
                              chain.value_head());
  }
  // Where the kernel makes T itself, q and v have fewer stages than k.
  __device__ __forceinline__ void load_keys(int n) const {
    const int stage = n % Shared::stages;
    barrier_arrive_expect(shared.full(stage), Shared::layout.qk);
#pragma unroll
    for (int i = 0; i < Shared::boxes_k; ++i)
      tensor_load(shared.k(stage) + i * Shared::box, maps.k, shared.full(stage), i * 64, chain.box(chain.at(n)),
                  chain.key_head());
  }
  __device__ __forceinline__ void load_rows(int n) const {
    const int stage = n % Shared::pair_stages;
    const u32 full = shared.rows_full(stage);
    const auto box = chain.box(chain.at(n));
    barrier_arrive_expect(full, Shared::layout.qk + Shared::layout.v);
#pragma unroll
    for (int i = 0; i < Shared::boxes_k; ++i)
      tensor_load(shared.q(stage) + i * Shared::box, maps.q, full, i * 64, box, chain.key_head());
#pragma unroll
    for (int i = 0; i < Shared::groups; ++i)
      tensor_load(shared.v(stage) + i * Shared::box, maps.v, full, chain.first_value + i * 64, box, chain.value_head());
  }
  // Where o is written beside it, what is read is evicted last, which is a little faster; of sums, what nobody reads soon, first.
  __device__ __forceinline__ void load_as(int stage, int n) const {
    if constexpr (!Values::sums_turned)
      load<L2_AS_OTHERS>(stage, chain.at(n));
    else if constexpr (!OnlyState)
      load<L2_LAST>(stage, chain.at(n));
    else if (n + last_chunks >= chain.chunks())
      load<L2_AS_OTHERS>(stage, chain.at(n));
    else
      load<L2_FIRST>(stage, chain.at(n));
  }
  __device__ __forceinline__ void run() const {
    PipelineState<Config::stages> at(1);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      barrier_wait(shared.empty(at.stage), at.parity);
      if (elected()) load_as(at.stage, n);
      at.advance();
    }
  }
};
