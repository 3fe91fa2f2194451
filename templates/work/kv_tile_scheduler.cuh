// work/kv_tile_scheduler.cuh: the order of kv tiles in the sm90 family's backward, whose persistent blocks
// draw one tile after another.
#pragma once
#include "arch/warp.cuh"
#include "contract/needs.cuh"
#include "work/dq_order.cuh"
#include "work/sequence.cuh"

// Tiles that fill the GPU (kv_block_of).
template <class Config>
inline constexpr u32 tiles_together = Config::head_dim <= 64 ? 256 : 128;

// Schedules the kv tiles of persistent blocks, or of clusters of `Together` blocks. They draw one tile after
// another from a counter at p.scratch.dq_order. One warp draws.
template <class Spec, class Config, int Together = 1>
struct KvTileScheduler {
  // A block may take a kv tile of all batches, which fixes the order of its additions to a gradient.
  static constexpr bool orders_batches = Config::deterministic && Needs<Spec, Config>::parameters &&
                                         (Spec::grad_adds || (Spec::parameter_sums & SUM_ELEMENT) != 0);

  const LuattnParams &p;
  const u32 kv_tiles, splits, tiles, batch, heads;  // of a head; shares of each, their product;
                                                    // batches and kv heads

  __device__ __forceinline__ explicit KvTileScheduler(const LuattnParams &params)
      : p(params),
        kv_tiles(u32(ceil_div(SequenceOf<Config>::kv_end(params), Together * Config::tile_n))),
        splits(u32(params.schedule.num_splits)),
        tiles(kv_tiles * splits),
        batch(orders_batches && params.schedule.batches_in_turn ? 1 : u32(params.shape.batch)),
        heads(u32(params.shape.heads_kv) * batch) {}
  __device__ __forceinline__ u32 draw_number() const {
    u32 drawn = 0;
    if (threadIdx.x % 32 == 0) drawn = atomicAdd(p.scratch.dq_order, 1u);
    return uniform(drawn);
  }
  __device__ __forceinline__ KvBlock draw() const { return block_at(draw_number()); }
  // Goes on to the next batch of the same draw. Returns false if there is none.
  __device__ __forceinline__ bool next(KvBlock &at) const {
    if constexpr (!orders_batches) return false;
    return p.schedule.batches_in_turn != 0 && ++at.b < p.shape.batch;
  }
  // Returns the block of a drawn. Tile -1: no tiles are left.
  __device__ __forceinline__ KvBlock block_at(u32 drawn) const {
    if (drawn >= tiles * heads) return {-1, 0, 0, 0};
    if constexpr (Spec::has_tile_bits)
      if (tile_order_of(p).tiles != nullptr) return block_in_order(tile_order_of(p), drawn);
    if constexpr (Needs<Spec, Config>::dq_in_order)
      return kv_block_of(drawn, kv_tiles, u32(p.shape.heads_kv), heads, splits, tiles_together<Config>);
    KvBlock at = block_of(drawn, tiles);
#ifdef LUATTN_GRID
    if constexpr (axes_of<Config> == 3 && Together == 1) at.tile = int(GridSideOf<true>::in_columns(p, u32(at.tile)));
#endif
    return at;
  }

 private:
  // Does the same in the order of work/tile_order.cuh.
  __device__ __forceinline__ KvBlock block_in_order(const LuattnTileOrder &o, u32 drawn) const {
    if constexpr (Needs<Spec, Config>::dq_in_order)
      return kv_block_in_order(o, drawn, u32(p.shape.heads_kv), heads, splits, tiles_together<Config>);
    const u32 begin = o.first * splits * heads;
    KvBlock at;
    u32 rank;
    if (drawn < begin) {
      const u32 row = drawn / heads;
      at = of_head(drawn - row * heads, row);
      rank = u32(at.tile);
    } else {
      at = block_of(drawn - begin, tiles - o.first * splits);
      rank = o.first + u32(at.tile);
    }
    at.tile = int(ranked_tiles(o, at.b, at.h)[rank]);
    return at;
  }
  // The heads that come together, the last ones: with a mask, of two tiles for each block. A mask from data may leave
  // long tiles anywhere, of which those that start late are fewer where more heads come together; sharers_least blocks
  // of a head still share its q, dO and dQ.
  __device__ __forceinline__ u32 heads_together(u32 tiles) const {
    constexpr u32 sharers_least = 16;
    if (!Spec::has_mask) return 0;
    u32 together = (2 * gridDim.x / Together + tiles - 1) / tiles;
    if (Spec::num_block_bounds > 0) together = max_of(together, u32(gridDim.x / Together / sharers_least));
    return min_of(heads, together);
  }
  // Heads come one after another, so that blocks that run together share q, dO and dQ in the L2 cache. Those that come
  // together have the first tile of each head first: a causal mask leaves most work for the first positions, and a
  // long tile that starts last would leave other multiprocessors idle.
  __device__ __forceinline__ KvBlock block_of(u32 drawn, u32 tiles) const {
    const u32 together = heads_together(tiles);
    const u32 alone = heads - together, first = alone * tiles;
    u32 head = drawn / tiles, tile = drawn - head * tiles;
    if (Spec::has_mask && drawn >= first) {
      tile = (drawn - first) / together;
      head = alone + (drawn - first - tile * together);
    }
    return of_head(head, tile);
  }
  // The share of a kv tile that has this number in its head. Batches come before heads, or after them if heads have
  // pair biases that all batches read and add to, which then also share the L2 cache.
  __device__ __forceinline__ KvBlock of_head(u32 head, u32 tile) const {
    constexpr bool pairs = (Spec::parameter_sums & SUM_ELEMENT) != 0 || Spec::bias_row_shared;
    const u32 inner = pairs ? batch : u32(p.shape.heads_kv), outer = head / inner, rest = head - outer * inner;
    return {int(tile / splits), int(pairs ? outer : rest), int(pairs ? rest : outer), int(tile % splits)};
  }
};

// The scheduler of a kernel: this one, or that of work/packed_kv_scheduler.cuh.
template <bool Packed>
struct KvTileSchedulerKind {
  template <class Spec, class Config, int Together>
  using type = KvTileScheduler<Spec, Config, Together>;
};
template <class Spec, class Config, int Together = 1>
using KvTileSchedulerOf = typename KvTileSchedulerKind<Config::packed>::template type<Spec, Config, Together>;

#ifdef LUATTN_TILE_TABLE
#include "work/packed_kv_scheduler.cuh"  // a specialisation, which whoever names the scheduler must have seen
#endif
