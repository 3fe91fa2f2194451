// sm90_turns.cuh: deterministic backward of the sm90 family: a warp that takes dQ from shared memory to
// dq_acc when it is the block's turn.
//
// It is the second warp of the producer's warpgroup. Consumers leave their parts of a tile's dQ in shared
// memory and arrive at `dq_full`; waiting for the turn, and for the additions to have been made before it is
// passed on, is the writer's alone. When the copy engine has read the parts it arrives at `dq_empty`. Which
// tiles they are the producer's notes say, kept for it a few tiles longer.
#pragma once
#include "sm90_bwd.cuh"
#include "turns.cuh"

template <class Spec, class Config>
struct DqWriterSm90 {
  using Shared = SharedBwdSm90<Spec, Config>;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n;

  const LuattnParams &p;
  const Shared shared;
  const int lane;
  Site site;
  u32 parity, num_tiles;  // of the next part of dQ; q tiles before it

  __device__ __forceinline__ DqWriterSm90(const LuattnParams &params, const Shared &s)
      : p(params),
        shared(s),
        lane(int(threadIdx.x) % 32),
        site{0, 0, params.q_len, params.kv_len},
        parity(0),
        num_tiles(0) {}

  // A lane for the part of each consumer warp: 16 rows, and all channels or half of them. Whoever is the
  // first of a tile has nothing to add to.
  __device__ __forceinline__ void add(int tile, int h, bool is_first) const {
    const int group = lane / 4, row = tile * tile_m + (Shared::splits_rows ? group * 64 : 0) + lane % 4 * 16;
    const int d0 = Shared::splits_rows ? 0 : group * Shared::dq_cols,
              width = min_of(Shared::dq_cols, Config::head_dim - d0);
    const i64 head_rows = ResultGroups::head_rows(p.q_len);
    float *head = static_cast<float *>(p.dq_acc) + (i64(site.b) * p.heads + h) * head_rows * Config::head_dim;
    const bool there = lane < Shared::warps && width > 0 && row < p.q_len;
    float *to = head + i64(row) * Config::head_dim + d0 * 16;
    fence_async_global();
    bulk_store(to, shared.dq(lane), width * 64, there && is_first);
    bulk_add(to, shared.dq(lane), width * 64, there && !is_first);
    bulk_commit();
  }

  // A tile, its number in memory, and whom it comes after.
  struct Turn {
    TileNote tile;
    u32 *number;
    u32 before;
  };
  // Of the next tile. That consumers have had it, or dQ of the one before it where dQ lags, is known.
  __device__ __forceinline__ Turn next_turn(int kv_tile) {
    const TileNote tile = TileNote::load(shared.turn_note(num_tiles++));
    site.h = int(tile.head);
    return {tile, turn_of<Config>(p, site.b, site.h, 0) + tile.index(),
            turn_before<Spec, tile_m, tile_n>(p, site, tile.index(), kv_tile)};
  }

  __device__ __forceinline__ void run() {
    u32 turn = 0;
#pragma unroll 1
    for (BlockNote note = shared.await_block(0); note.state != BlockNote::END;
         note = shared.await_block(++turn)) {
      barrier_arrive(shared.kv_empty());
      site.b = note.at.b;
      if (note.state == BlockNote::SOME) add_block(note.at.tile);
    }
  }
  __device__ __forceinline__ void await_dq() {
    barrier_wait(shared.dq_full(), parity);
    parity ^= 1;
  }
  __device__ __forceinline__ void add_block(int kv_tile) {
    await_dq();
    Turn turn = next_turn(kv_tile);
    bool passed = false;
#pragma unroll 1
    for (;;) {
      if (!passed) turn_await(turn.number, turn.before);
      add(turn.tile.index(), int(turn.tile.head), turn.before == 0);
      bulk_wait_read();
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.dq_empty());
      const bool ends = turn.tile.ends_block();
      if (Shared::lags && !ends) {
        const Turn next = next_turn(kv_tile);  // while it is added
        passed = turn_pass(turn.number, kv_tile, next.number, next.before, [] { bulk_wait(); });
        turn = next;
        await_dq();
      } else {
        bulk_wait();
        turn_pass(turn.number, kv_tile);
        if (ends) break;
        await_dq();
        turn = next_turn(kv_tile);
        passed = false;
      }
    }
  }
};
