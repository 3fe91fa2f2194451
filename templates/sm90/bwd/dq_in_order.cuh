// sm90/bwd/dq_in_order.cuh: two warps that add dQ from shared memory to dq_acc in the dQ order, each for
// every other q tile (deterministic backward of the sm90 family).
//
// They are the second and the fourth warp of the producer's warpgroup. To add a tile and let the next block
// proceed takes a warp about as long as computing a tile takes. Consumers leave their parts of a tile's dQ in
// shared memory and arrive at `dq_full`. Only the writer waits for the semaphore, and it passes the semaphore
// on once its additions are complete. It arrives at `dq_empty` when TMA has read the parts. The producer's
// messages, which are kept a few tiles longer for the writers, say which tiles these are.
#pragma once
#include "sm90/bwd/bwd_pipeline.cuh"
#include "tma/backward_messages.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/mbarrier.cuh"
#include "work/dq_order.cuh"

template <class Spec, class Config>
struct DqWriterSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n;

  const LuattnParams &p;
  const Shared shared;
  const int lane;
  const u32 which;  // 0 or 1: which writer this is
  SequenceOf<Config> site;
  u32 num_tiles;  // q tiles before this one

  __device__ __forceinline__ DqWriterSm90(const LuattnParams &params, const Shared &s, u32 w)
      : p(params), shared(s), lane(int(threadIdx.x) % 32), which(w), site(params, 0, 0), num_tiles(0) {}

  // Adds dQ of a tile with one lane for the part of each consumer warp: 16 rows, and all channels or half of
  // them. The first kv tile of a q tile stores instead of adding.
  __device__ __forceinline__ void add(int tile, int h, bool is_first) const {
    const int warp = lane, group = warp / 4;
    const int row = tile * tile_m + (Shared::splits_rows ? group * 64 : 0) + warp % 4 * 16;
    const int d0 = Shared::splits_rows ? 0 : group * Shared::dq_cols,
              width = min_of(Shared::dq_cols, Config::head_dim - d0);
    float *head = site.template q_acc_head<ResultGroups, Config::head_dim, float>(p, p.scratch.dq_acc, site.b, h);
    const bool there = lane < Shared::warps && width > 0 && site.has_q_acc(p, row);
    float *to = head + i64(row) * Config::head_dim + d0 * 16;
    fence_async_global();
    bulk_store(to, shared.dq(lane), width * 64, there && is_first);
    bulk_add(to, shared.dq(lane), width * 64, there && !is_first);
    bulk_commit();
  }

  // A q tile, its semaphore, and the value to wait for.
  struct DqOrder {
    TileMessage tile;
    u32 *semaphore;
    u32 before;
  };
  __device__ __forceinline__ DqOrder order_of(TileMessage tile, int kv_tile) {
    site.h = int(tile.head);
    return {tile, dq_state_of<Config>(p, site.b, site.h, 0) + tile.index(),
            dq_order_before<Spec, tile_m, tile_n>(p, site, tile.index(), kv_tile)};
  }
  __device__ __forceinline__ TileMessage message(u32 tile) const {
    return TileMessage::load(shared.order_message(tile));
  }
  // Waits for dQ of the next tile, even if it is the other writer's. dq_full cannot get ahead by two phases,
  // because the tile after the next is this writer's.
  __device__ __forceinline__ void await_dq() const { barrier_wait(shared.dq_full(num_tiles), num_tiles / 2 & 1); }

  __device__ __forceinline__ void run() {
    u32 blocks = 0;
#pragma unroll 1
    for (BlockMessage message = shared.await_block(0); message.state != BlockMessage::END;
         message = shared.await_block(++blocks)) {
      barrier_arrive(shared.kv_empty());
      site.move_to(p, message.at.b, site.h);
      if (message.state == BlockMessage::SOME) add_block(message.at.tile);
    }
  }
  __device__ __forceinline__ void add_block(int kv_tile) {
    DqOrder order;
    bool awaited = false;  // the semaphore has the awaited value
#pragma unroll 1
    for (bool ends = false; !ends; ++num_tiles) {
      await_dq();
      const TileMessage tile = message(num_tiles);
      ends = tile.ends_block();
      if (num_tiles % 2 == which) {
        if (!awaited) {
          order = order_of(tile, kv_tile);
          semaphore_wait(order.semaphore, order.before);
        }
        add(tile.index(), int(tile.head), order.before == 0);
        bulk_wait_read();
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.dq_empty());
        bulk_wait();
        semaphore_release(order.semaphore, kv_tile);
        awaited = false;
      } else if (Shared::lags && !ends) {  // consumers have also passed the next tile
        order = order_of(message(num_tiles + 1), kv_tile);
        semaphore_wait(order.semaphore, order.before);
        awaited = true;
      }
    }
  }
};
