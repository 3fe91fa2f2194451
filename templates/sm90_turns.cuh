// sm90_turns.cuh: deterministic backward of the sm90 family: a warp that takes dQ from shared memory to
// dq_acc when it is the block's turn.
//
// It is the second warp of the producer's warpgroup. Consumers leave their parts of a tile's dQ in shared
// memory and arrive at `dq_full`; waiting for the turn, and for the additions to have been made before it is
// passed on, is the writer's alone. When the copy engine has read the parts it arrives at `dq_empty`. It
// walks the tiles by itself, in the same order as the producer.
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
  u32 parity;  // of the next part of dQ

  __device__ __forceinline__ DqWriterSm90(const LuattnParams &params, const Shared &s)
      : p(params),
        shared(s),
        lane(int(threadIdx.x) % 32),
        site{0, 0, params.q_len, params.kv_len},
        parity(0) {}

  // A lane for the part of each consumer warp: 16 rows, and all channels or half of them. Whoever is the
  // first of a tile has nothing to add to.
  __device__ __forceinline__ void add(int tile, bool is_first) const {
    const int group = lane / 4, row = tile * tile_m + (Shared::splits_rows ? group * 64 : 0) + lane % 4 * 16;
    const int d0 = Shared::splits_rows ? 0 : group * Shared::dq_cols,
              width = min_of(Shared::dq_cols, Config::head_dim - d0);
    const i64 head_rows = ResultGroups::head_rows(p.q_len);
    float *head =
        static_cast<float *>(p.dq_acc) + (i64(site.b) * p.heads + site.h) * head_rows * Config::head_dim;
    const bool there = lane < Shared::warps && width > 0 && row < p.q_len;
    float *to = head + i64(row) * Config::head_dim + d0 * 16;
    fence_async_global();
    bulk_store(to, shared.dq(lane), width * 64, there && is_first);
    bulk_add(to, shared.dq(lane), width * 64, there && !is_first);
    bulk_commit();
  }

  __device__ __forceinline__ u32 before_me(Tile tile, int kv_tile) const {
    return turn_before<Spec, tile_m, tile_n>(p, site, tile.index, kv_tile);
  }

  __device__ __forceinline__ void run() {
    u32 turn = 0;
#pragma unroll 1
    for (BlockNote note = shared.await_block(0); note.state != BlockNote::END;
         note = shared.await_block(++turn)) {
      barrier_arrive(shared.kv_empty());
      add_block(note.at);
    }
  }
  __device__ __forceinline__ void add_block(const KvBlock &at) {
    const int first = at.h * p.group, kv_tile = at.tile;
    const QShare share{at.split};
    site.b = at.b;
#pragma unroll 1
    for (int h = first + share.first(p); h < first + share.end(p); ++h) {
      site.h = h;
      u32 *turns = turn_of<Config>(p, site.b, h, 0);
      WarpQTiles<Spec, tile_m, tile_n> walk(p, site, kv_tile, share);
      Tile tile = walk.next(p, site);
      u32 before = tile.valid() ? before_me(tile, kv_tile) : 0;
      bool passed = false;
#pragma unroll 1
      while (tile.valid()) {
        u32 *turn = turns + tile.index;
        if (!passed) turn_await(turn, before);
        barrier_wait(shared.dq_full(), parity);
        add(tile.index, before == 0);
        bulk_wait_read();
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.dq_empty());
        parity ^= 1;
        const Tile next = walk.next(p, site);  // while it is added
        if (next.valid()) {
          before = before_me(next, kv_tile);
          passed = turn_pass(turn, kv_tile, turns + next.index, before, [] { bulk_wait(); });
        } else {
          bulk_wait();
          turn_pass(turn, kv_tile);
        }
        tile = next;
      }
    }
  }
};
