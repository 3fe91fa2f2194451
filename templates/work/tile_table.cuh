// work/tile_table.cuh: the tiles of packed sequences in the order in which blocks take them (LuattnTileTable, which
// luattn_tile_table writes). A block knows from one read which tile it has, without a length, and that there is none
// for a number past the last one.
#pragma once
#include "abi/workspace.h"
#include "ops/hook_types.cuh"

struct TileTable {
  const LuattnPackedTile *set;  // nullptr: there is none

  // Of tiles of Size queries or, with Keys, keys.
  template <bool Keys, int Size>
  LUATTN_FN TileTable of(const LuattnParams &p) {
    static_assert(workspace_table_slot(Size) >= 0);
    return {all(p).sets[Keys][workspace_table_slot(Size)]};
  }
  LUATTN_FN const LuattnTileTable &all(const LuattnParams &p) {
    return static_cast<const LuattnPackedTileParams &>(p).table;
  }
  __device__ __forceinline__ bool known() const { return set != nullptr; }
  // All tiles of a head.
  __device__ __forceinline__ u32 count() const { return head().count; }
  __device__ __forceinline__ const LuattnPackedHead &head() const {
    return *reinterpret_cast<const LuattnPackedHead *>(set);
  }
  __device__ __forceinline__ LuattnPackedTile operator[](u32 index) const {
    const uint4 x = reinterpret_cast<const uint4 *>(set)[1 + index];
    return {x.x, x.y, x.z, x.w};
  }
};
