// sm90/bwd_d256/d256_dq_in_order.cuh: the warp that waits for the block's place in the dQ order and passes
// the semaphore on (deterministic sm90 backward for head dims above 128).
//
// It is the third warp of the loading warpgroup. Each block of a cluster adds its own channels of dQ, from
// registers, so each block has its own semaphores. One tile ahead of the tile's dQ, the sender of dS names
// the next tile at `order_told`. When the semaphore reaches the awaited value, this warp arrives at `order_ready`.
// The threads of the scores' warpgroup then add their dQ, or store it if they are the first, and arrive at
// `dq_added`. This warp waits until their additions are in memory, while they compute the next tile.
#pragma once
#include "sm90/bwd_d256/d256_pipeline.cuh"
#include "tma/cluster.cuh"
#include "tma/mbarrier.cuh"
#include "tma/stages.cuh"
#include "work/dq_order.cuh"

template <class Spec, class Config>
struct DqInOrderD256 {
  using Shared = SharedD256<Spec, Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = 2 * Config::tile_n;

  // A q tile, its semaphore, and the value to wait for.
  struct DqOrder {
    D256Message tile;
    u32 *semaphore;
    u32 before;
  };

  const LuattnParams &p;
  const Shared shared;
  const int rank;
  PipelineState<2> message;
  u32 parity;  // of dq_added

  __device__ __forceinline__ DqInOrderD256(const LuattnParams &params, const Shared &s)
      : p(params), shared(s), rank(cluster_rank()), message(0), parity(0) {}

  __device__ __forceinline__ DqOrder await_tile() {
    barrier_wait(shared.order_told(message.stage), message.parity);
    const D256Message tile = D256Message::load(shared.order_message(message.stage));
    barrier_arrive(shared.order_read(message.stage));
    message.advance();
    if (!tile.is(D256Message::TILE)) return {tile, nullptr, 0};
    const SequenceOf<Config> site(p, int(tile.b), int(tile.head));
    return {tile, dq_state_of<Config>(p, site.b, site.h, tile.index() * tile_m) + rank,
            dq_order_before<Spec, tile_m, tile_n>(p, site, tile.index(), tile.kv_tile())};
  }
  __device__ __forceinline__ void give(const DqOrder &order) const {
    if (threadIdx.x % 32 == 0) {  // the thread that has waited for the semaphore
      store_shared(shared.is_first(), order.before == 0);
      barrier_arrive(shared.order_ready());
    }
  }
  __device__ __forceinline__ void await_added() {
    barrier_wait(shared.dq_added(), parity);
    parity ^= 1;
  }

  __device__ __forceinline__ void run() {
    bool passed = false;
#pragma unroll 1
    for (DqOrder order = await_tile(); order.tile.is(D256Message::TILE);) {
      if (!passed) semaphore_wait(order.semaphore, order.before);
      give(order);
      const int kv_tile = order.tile.kv_tile();
      if (order.tile.ends_block()) {  // the next tile's dS comes when this one's dQ has been added
        await_added();
        semaphore_release(order.semaphore, kv_tile);
        order = await_tile();
        passed = false;
      } else {
        const DqOrder next = await_tile();
        await_added();
        passed = semaphore_release(order.semaphore, kv_tile, next.semaphore, next.before);
        order = next;
      }
    }
  }
};
