// work/box_walk.cuh: walks the boxes of a grid that the mask keeps, as work/tile_walk.cuh walks tiles of a line: boxes of
// keys for one of queries (KvBoxes), or of queries for one of keys (QBoxes). Along each axis they go from the first box
// with a place of the mask's range to the last one, the innermost axis fastest.
#pragma once
#include "ops/grid_places.cuh"
#include "work/grid_sequence.cuh"
#include "work/tile_walk.cuh"

template <class Spec, bool Keys>
struct BoxWalk {
  using Walked = GridSideOf<Keys>;
  using Own = GridSideOf<!Keys>;
  int own;  // first slot of the block's own box
  bool own_is_ragged;
  int first[LUATTN_GRID_AXES], count[LUATTN_GRID_AXES];  // boxes along each axis
  int todo, end;

  __device__ __forceinline__ BoxWalk(const LuattnParams &p, const Site &s, int tile)
      : own(tile * Own::rows), own_is_ragged(!Own::has_all(p, own)), todo(0), end(1) {
    const GridRange kept = range(p, s);
#pragma unroll
    for (int axis = Walked::first_axis; axis < LUATTN_GRID_AXES; ++axis) {
      const int from = Walked::of(p, axis).first, lo = max_of(kept.lo[axis], 0),
                hi = min_of(kept.hi[axis], Walked::extent(p, axis));
      first[axis] = (lo - from) / Walked::box(axis);
      count[axis] = lo < hi ? (hi - 1 - from) / Walked::box(axis) + 1 - first[axis] : 0;
      end *= count[axis];
    }
  }

  // Of keys, a tile is unmasked if every query that exists keeps all of it; of queries, if all of both exist, too.
  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &s) {
    for (; todo < end; ++todo) {
      const int tile = number(p, todo), other = tile * Walked::rows;
      const TileClass c = class_at(p, s, other);
      if (c == TILE_EMPTY) continue;
      ++todo;
      return Tile{tile, c == TILE_PARTIAL || (!Keys && own_is_ragged) || !Walked::has_all(p, other)};
    }
    return Tile{-1, false};
  }

 private:
  __device__ __forceinline__ GridRange range(const LuattnParams &p, const Site &s) const {
    if constexpr (!Spec::has_mask) {
      GridRange all = {};
#pragma unroll
      for (int axis = 0; axis < LUATTN_GRID_AXES; ++axis) all.hi[axis] = Walked::extent(p, axis);
      return all;
    } else if constexpr (Keys) {
      return Spec::kv_box_range(p, s, own);
    } else {
      return Spec::q_box_range(p, s, own);
    }
  }
  __device__ __forceinline__ TileClass class_at(const LuattnParams &p, const Site &s, int other) const {
    if constexpr (!Spec::has_mask)
      return TILE_FULL;
    else if constexpr (Keys)
      return Spec::tile_class(p, s, own, own, other, other);
    else
      return Spec::tile_class(p, s, other, other, own, own);
  }
  // The number among all boxes of number `at` of the walk.
  __device__ __forceinline__ int number(const LuattnParams &p, int at) const {
    int tile = 0, boxes = 1;
#pragma unroll
    for (int axis = LUATTN_GRID_AXES - 1; axis >= Walked::first_axis; --axis) {
      const int outer = at / count[axis];
      tile += boxes * (first[axis] + at - outer * count[axis]);
      boxes *= int(Walked::of(p, axis).boxes.d);
      at = outer;
    }
    return tile;
  }
};

// The walks of a GridSequence.
template <class Spec, int TileM, int TileN>
struct KvTilesKind<Spec, GridSequence, TileM, TileN> {
  using type = BoxWalk<Spec, true>;
};
template <class Spec, int TileM, int TileN>
struct QTilesKind<Spec, GridSequence, TileM, TileN> {
  using type = BoxWalk<Spec, false>;
};
