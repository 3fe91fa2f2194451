// work/box_walk.cuh: walks the boxes of a grid that the mask keeps, as work/tile_walk.cuh walks tiles of a line: boxes of
// keys for one of queries (KvBoxes), or of queries for one of keys (QBoxes). Along each axis they go from the first box
// with a place of the mask's range to the last one, the innermost axis fastest.
#pragma once
#include "ops/grid_places.cuh"
#include "work/grid_sequence.cuh"
#include "work/tile_walk.cuh"

// The class of the scores of parts of boxes, which are boxes: `queries` from slot q on by `keys` from slot kv on.
template <class Spec>
LUATTN_FN TileClass class_of_parts(const LuattnParams &p, const Site &s, int q, int queries, int kv, int keys) {
  if constexpr (Spec::has_mask)
    return Spec::tile_class(p, s, q, q + queries - 1, kv, kv + keys - 1);
  else
    return TILE_FULL;
}
template <class Spec>
LUATTN_FN TileClass class_of_boxes(const LuattnParams &p, const Site &s, int q, int kv) {
  return class_of_parts<Spec>(p, s, q, GridSideOf<false>::rows, kv, GridSideOf<true>::rows);
}

template <class Spec, bool Keys>
struct BoxWalk {
  using Walked = GridSideOf<Keys>;
  using Own = GridSideOf<!Keys>;
  int own;  // first slot of the block's own box
  bool own_is_ragged;
  u32 span
      [LUATTN_GRID_AXES];  // along each axis the first box of the group, and how many there are in the upper 16 bits
  int group[LUATTN_GRID_AXES];  // of the block's own box; 0 where boxes do not step
  int todo, end;

  BoxWalk() = default;
  __device__ __forceinline__ int first(int axis) const { return int(span[axis] & 0xffffu); }
  __device__ __forceinline__ int count(int axis) const { return int(span[axis] >> 16); }
  __device__ __forceinline__ BoxWalk(const LuattnParams &p, const Site &s, int tile)
      : own(tile * Own::rows), own_is_ragged(!Own::has_all(p, own)), todo(0), end(1) {
    const GridRange kept = range(p, s);
    Own::each_corner(p, tile, [&](auto axis, int at) { group[axis.value] = Own::template group<axis.value>(at); });
    each_axis([&](auto of_axis) {
      constexpr int axis = of_axis.value;
      const int from = Walked::of(p, axis).first,
                lo = Walked::template in_group<axis>(max_of(kept.lo[axis], 0), group[axis]),
                hi = Walked::template in_group<axis>(min_of(kept.hi[axis], Walked::extent(p, axis)), group[axis]);
      const int begin = (lo - from) / Walked::box(axis), after = (hi - 1 - from) / Walked::box(axis) + 1;
      span[axis] = lo < hi ? u32(begin) | u32(after - begin) << 16 : 0;
      end *= count(axis);
    });
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
    return Keys ? class_of_boxes<Spec>(p, s, own, other) : class_of_boxes<Spec>(p, s, other, own);
  }

 public:
  // The number among all boxes of number `at` of the walk.
  __device__ __forceinline__ int number(const LuattnParams &p, int at) const {
    int tile = 0, boxes = 1;
#pragma unroll
    for (int axis = LUATTN_GRID_AXES - 1; axis >= Walked::first_axis; --axis) {
      const int outer = at / count(axis);
      tile += boxes * ((first(axis) + at - outer * count(axis)) * Walked::place_step(axis) + group[axis]);
      boxes *= int(Walked::of(p, axis).boxes.d);
      at = outer;
    }
    return tile;
  }
  // Whether a box is among those that the walk asks about, and its number there.
  __device__ __forceinline__ bool has(const LuattnParams &p, int tile) const {
    bool inside = end > 0;
    each_place(p, tile, [&](int axis, int at) {
      const int d = Walked::place_step(axis);
      inside = inside && (d == 1 || at % d == group[axis]) && u32(at / d - first(axis)) < u32(count(axis));
    });
    return inside;
  }
  __device__ __forceinline__ int rank(const LuattnParams &p, int tile) const {
    int at_walk = 0, boxes = 1;
    each_place(p, tile, [&](int axis, int at) {
      at_walk += boxes * (at / Walked::place_step(axis) - first(axis));
      boxes *= count(axis);
    });
    return at_walk;
  }
  // At most so many tiles.
  __device__ __forceinline__ int most() const { return end; }

 private:
  // Calls body(axis, number of the box along it), the innermost axis first.
  template <class Body>
  LUATTN_FN void each_place(const LuattnParams &p, int tile, const Body &body) {
    u32 rest = u32(tile);
#pragma unroll
    for (int axis = LUATTN_GRID_AXES - 1; axis >= Walked::first_axis; --axis) {
      const LuattnDivisor &boxes = Walked::of(p, axis).boxes;
      const u32 outer = axis > Walked::first_axis ? quotient(rest, boxes) : 0;
      body(axis, int(rest - outer * boxes.d));
      rest = outer;
    }
  }
};

// The walks of a GridSequence. Boxes of keys that begin anywhere have one of their own (work/key_box_walk.cuh).
#ifndef LUATTN_FREE_BOXES
template <class Spec, int TileM, int TileN>
struct KvTilesKind<Spec, GridSequence, TileM, TileN> {
  using type = BoxWalk<Spec, true>;
};
#endif
template <class Spec, int TileM, int TileN>
struct QTilesKind<Spec, GridSequence, TileM, TileN> {
  using type = BoxWalk<Spec, false>;
};
