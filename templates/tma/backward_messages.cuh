// tma/backward_messages.cuh: messages about q tiles and kv tiles from the backward producer.
#pragma once
#include "arch/warp.cuh"
#include "work/kv_tile_scheduler.cuh"
#include "work/tile_walk.cuh"

// The message of a q tile, which the producer writes before it arrives at `q_full`: the members of Tile, the
// q head, whether the tile is the last of this head and of the kv tile, and WarpQTiles::halves. END: there
// are no more q tiles.
struct TileMessage {
  u32 bits, head;
  LUATTN_FN TileMessage of(Tile tile, bool last, int head, bool ends = false, u32 halves = 0) {
    return {u32(tile.index) << 9 | u32(tile.by_range) << 8 | u32(tile.same_bucket) << 7 | halves << 3 | u32(ends) << 2 |
                u32(tile.masked) << 1 | u32(last),
            u32(head)};
  }
  LUATTN_FN TileMessage end() { return {~0u, 0}; }
  __device__ __forceinline__ int index() const { return int(bits >> 9); }
  __device__ __forceinline__ bool by_range() const { return (bits & 256) != 0; }
  __device__ __forceinline__ bool same_bucket() const { return (bits & 128) != 0; }
  __device__ __forceinline__ bool masked() const { return (bits & 2) != 0; }
  __device__ __forceinline__ bool ends_block() const { return (bits & 4) != 0; }
  __device__ __forceinline__ bool keeps_nothing(int half) const { return (bits >> (3 + half) & 1) != 0; }
  __device__ __forceinline__ bool masked(int half) const { return masked() && (bits >> (5 + half) & 1) == 0; }
  __device__ __forceinline__ bool last() const { return (bits & 1) != 0; }

  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(bits), "r"(head) : "memory");
  }
  LUATTN_FN TileMessage load(u32 address) {
    TileMessage x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.bits), "=r"(x.head) : "r"(address) : "memory");
    return {uniform(x.bits), uniform(x.head)};
  }
};

// The message of a kv tile, which the producer writes before it arrives at `kv_full`: its KvBlock, and
// whether it has q tiles. END: there are no more kv tiles.
struct BlockMessage {
  enum State { END, EMPTY, SOME };
  KvBlock at;
  u32 state;

  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(at.tile), "r"(at.h), "r"(at.b),
                 "r"(u32(at.split) << 2 | state)
                 : "memory");
  }
  LUATTN_FN BlockMessage load(u32 address) {
    u32 x[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
    const u32 rest = uniform(x[3]);
    return {{int(uniform(x[0])), int(uniform(x[1])), int(uniform(x[2])), int(rest >> 2)}, rest & 3};
  }
};
