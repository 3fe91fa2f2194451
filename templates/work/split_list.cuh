// work/split_list.cuh: what the blocks of a decode kernel compute whose entries differ in length (LuattnSplitList). A
// block knows from one read of the list that luattn_split_list wrote which rows and which part of their keys it has, and
// that there is none for a number past the last one; without a list it finds that in the lengths
// (work/split_places.cuh). A grid has about as many blocks as run at once, each of which takes items until none is left:
// blocks that begin for nothing would take a microsecond each round.
#pragma once
#include "abi/workspace.h"
#include "ops/hook_types.cuh"

// A row of partial results: its place in a plane of `rows` of them (sink/partial_rows.cuh).
struct PartRow {
  i64 rows, row;
};

struct SplitList {
  const LuattnSplitList &list;

  __device__ __forceinline__ explicit SplitList(const LuattnParams &p)
      : list(static_cast<const LuattnSplitListParams &>(p).list) {}
  __device__ __forceinline__ bool known() const { return list.items != nullptr || list.in_place > 0; }
  __device__ __forceinline__ bool in_place() const { return list.items == nullptr; }  // if it is known

  // An item and one of its kv heads, which lie side by side, as block `number` of `all` takes it. No splits: it has
  // nothing to do.
  struct Block {
    LuattnSplitItem item;
    int h_kv;
    u32 all;
    __device__ __forceinline__ int splits() const { return int(item.split >> 16); }
    __device__ __forceinline__ int split() const { return int(item.split & 0xffff); }
  };
  __device__ __forceinline__ Block block(u32 number) const {
    const u32 heads = u32(list.heads_kv), at = number / heads, count = list.items->entry;
    const uint4 x = reinterpret_cast<const uint4 *>(list.items)[1 + at];  // on its way together with their number
    const bool any = at < count;
    return {{any ? x.x : 0, any ? x.y : 0, any ? x.z : 0, any ? x.w : 0},
            any ? int(number - at * heads) : 0,
            count * heads};
  }
  // The block's first number, and its next one: blocks that came first in a round come last in the next, as long items
  // come first.
  __device__ __forceinline__ static u32 first() { return blockIdx.x; }
  __device__ __forceinline__ static u32 after(u32 number) {
    const u32 round = number / gridDim.x;
    return (2 * round + 2) * gridDim.x - 1 - number;
  }

  // The splits of the tile that has a row of an entry.
  __device__ __forceinline__ LuattnTileSplits tile_of_row(int entry, int row) const {
    return list.of_tile[i64(entry) * list.tiles + row / list.tile_m];
  }
  // Row `row` of an entry, in a tile whose first split has place `first`.
  __device__ __forceinline__ PartRow part_row(u32 first, int h_kv, int row) const {
    const i64 rows = i64(list.heads_kv) * list.rows;
    return {rows, first * rows + h_kv * list.rows + row % list.tile_m};
  }
};
