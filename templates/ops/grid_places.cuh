// ops/grid_places.cuh: places of a grid, for kernels and generated code of a spec with several axes (Config::axes).
//
// A place of queries, or of keys, is known by its slot: the number of its box times the rows of a box, and its row there.
// A box reaches past the ends of axes, and slots there have no place. Boxes are numbered, and rows of a box are, with the
// innermost axis fastest. Axes are those of LuattnGrid, of which a grid of fewer axes has the last ones.
#pragma once
#include "abi/params.h"
#include "abi/philox.h"
#include "arch/divisor.cuh"
#include "ops/hook_types.cuh"

// Half-open ranges of places along each axis.
struct GridRange {
  int lo[LUATTN_GRID_AXES], hi[LUATTN_GRID_AXES];
};

template <bool Keys>
struct GridSideOf {
  static constexpr int first_axis = LUATTN_GRID_AXES - Config::axes,
                       rows = Keys ? Config::kv_box(0) * Config::kv_box(1) * Config::kv_box(2) * Config::kv_box(3)
                                   : Config::q_box(0) * Config::q_box(1) * Config::q_box(2) * Config::q_box(3);

  static constexpr __device__ int box(int axis) { return Keys ? Config::kv_box(axis) : Config::q_box(axis); }
  // From a row of a box to the next one along the axis.
  static constexpr __device__ int step(int axis) {
    int rows_within = 1;
    for (int a = LUATTN_GRID_AXES - 1; a > axis; --a) rows_within *= box(a);
    return rows_within;
  }
  LUATTN_FN const LuattnGridSide &of(const LuattnParams &p, int axis) {
    const LuattnGridAxis &both = static_cast<const LuattnGridParams &>(p).grid.axis[axis];
    return Keys ? both.kv : both.q;
  }
  LUATTN_FN int extent(const LuattnParams &p, int axis) { return of(p, axis).extent; }

  // Calls body(axis, coordinate) for the first place of a box, the innermost axis first.
  template <class Body>
  LUATTN_FN void each_corner(const LuattnParams &p, int tile, const Body &body) {
    u32 rest = u32(tile);
#pragma unroll
    for (int axis = LUATTN_GRID_AXES - 1; axis >= first_axis; --axis) {
      const u32 outer = axis > first_axis ? quotient(rest, of(p, axis).boxes) : 0;
      body(axis, of(p, axis).first + int(rest - outer * of(p, axis).boxes.d) * box(axis));
      rest = outer;
    }
  }
  LUATTN_FN int corner(const LuattnParams &p, int tile, int axis) {
    int found = 0;
    each_corner(p, tile, [&](int a, int at) { found = a == axis ? at : found; });
    return found;
  }
  LUATTN_FN int within(int slot, int axis) { return slot / step(axis) % box(axis); }

  // Of a slot in two parts that have no bit in common, the second a constant: where a kernel asks about all of a thread's
  // scores, the box is found once, and what is left of each is a constant.
  LUATTN_FN int at(const LuattnParams &p, const Position &slot, int axis) {
    if constexpr ((rows & (rows - 1)) == 0)
      return corner(p, slot.base / rows, axis) + within(slot.base, axis) + within(slot.offset, axis);
    else
      return at(p, int(slot), axis);
  }
  // The coordinate of a slot along the axis; the first and the last one of its box, of those that exist.
  LUATTN_FN int at(const LuattnParams &p, int slot, int axis) {
    return corner(p, slot / rows, axis) + within(slot, axis);
  }
  LUATTN_FN int first(const LuattnParams &p, int slot, int axis) { return max_of(corner(p, slot / rows, axis), 0); }
  LUATTN_FN int last(const LuattnParams &p, int slot, int axis) {
    return min_of(corner(p, slot / rows, axis) + box(axis), extent(p, axis)) - 1;
  }

  LUATTN_FN bool has(const LuattnParams &p, int slot) {
    bool exists = true;
    each_corner(p, slot / rows,
                [&](int axis, int at) { exists = exists && u32(at + within(slot, axis)) < u32(extent(p, axis)); });
    return exists;
  }
  // Whether all slots of the box do.
  LUATTN_FN bool has_all(const LuattnParams &p, int slot) {
    bool exist = true;
    each_corner(p, slot / rows,
                [&](int axis, int at) { exist = exist && at >= 0 && at + box(axis) <= extent(p, axis); });
    return exist;
  }
  // The slot, or that of the nearest place of its box.
  LUATTN_FN int clamped(const LuattnParams &p, int slot) {
    int to = slot;
    each_corner(p, slot / rows, [&](int axis, int at) {
      const int row = within(slot, axis), inside = max_of(min_of(row, extent(p, axis) - 1 - at), -at);
      to += (max_of(inside, 0) - row) * step(axis);
    });
    return to;
  }
  // The slots of all boxes.
  LUATTN_FN int slots(const LuattnParams &p) {
    int boxes = 1;
#pragma unroll
    for (int axis = first_axis; axis < LUATTN_GRID_AXES; ++axis) boxes *= int(of(p, axis).boxes.d);
    return boxes * rows;
  }
  // The row-major number of a place among all, and how many there are.
  LUATTN_FN i64 number(const LuattnParams &p, int slot) {
    i64 place = 0, places = 1;
    each_corner(p, slot / rows, [&](int axis, int at) {
      place += places * (at + within(slot, axis));
      places *= extent(p, axis);
    });
    return place;
  }
  LUATTN_FN i64 count(const LuattnParams &p) {
    i64 places = 1;
#pragma unroll
    for (int axis = first_axis; axis < LUATTN_GRID_AXES; ++axis) places *= extent(p, axis);
    return places;
  }
  // The number by which a place draws (abi/philox.h).
  LUATTN_FN int drawn_at(const LuattnParams &p, int slot) {
    int at[Config::axes], extents[Config::axes];
    each_corner(p, slot / rows, [&](int axis, int corner) {
      at[axis - first_axis] = corner + within(slot, axis);
      extents[axis - first_axis] = extent(p, axis);
    });
    return dropout_place(at, extents, Config::axes);
  }
  // From the first place of all to this one in a tensor.
  LUATTN_FN i64 offset(const LuattnParams &p, const LuattnTensor &t, const LuattnGridSteps &steps, int slot) {
    i64 from_first = 0;
    each_corner(p, slot / rows, [&](int axis, int at) {
      from_first += (at + within(slot, axis)) * (axis == LUATTN_GRID_AXES - 1 ? t.seq : steps.outer[axis]);
    });
    return from_first;
  }
};

// As generated code names them: along axis A of the spec's, from 0.
template <int A>
LUATTN_FN int q_at(const LuattnParams &p, int q) {
  return GridSideOf<false>::at(p, q, GridSideOf<false>::first_axis + A);
}
template <int A>
LUATTN_FN int q_at(const LuattnParams &p, const Position &q) {
  return GridSideOf<false>::at(p, q, GridSideOf<false>::first_axis + A);
}
template <int A>
LUATTN_FN int kv_at(const LuattnParams &p, const Position &kv) {
  return GridSideOf<true>::at(p, kv, GridSideOf<true>::first_axis + A);
}
template <int A>
LUATTN_FN int kv_at(const LuattnParams &p, int kv) {
  return GridSideOf<true>::at(p, kv, GridSideOf<true>::first_axis + A);
}
template <int A>
LUATTN_FN int q_first(const LuattnParams &p, int q) {
  return GridSideOf<false>::first(p, q, GridSideOf<false>::first_axis + A);
}
template <int A>
LUATTN_FN int q_last(const LuattnParams &p, int q) {
  return GridSideOf<false>::last(p, q, GridSideOf<false>::first_axis + A);
}
template <int A>
LUATTN_FN int kv_first(const LuattnParams &p, int kv) {
  return GridSideOf<true>::first(p, kv, GridSideOf<true>::first_axis + A);
}
template <int A>
LUATTN_FN int kv_last(const LuattnParams &p, int kv) {
  return GridSideOf<true>::last(p, kv, GridSideOf<true>::first_axis + A);
}
// Of the part of a box from one slot to another, which is a box: where it begins, and its last place, of those that exist.
template <int A>
LUATTN_FN int q_from(const LuattnParams &p, int q) {
  return max_of(q_at<A>(p, q), 0);
}
template <int A>
LUATTN_FN int q_to(const LuattnParams &p, int q) {
  return min_of(q_at<A>(p, q), GridSideOf<false>::extent(p, GridSideOf<false>::first_axis + A) - 1);
}
template <int A>
LUATTN_FN int kv_from(const LuattnParams &p, int kv) {
  return max_of(kv_at<A>(p, kv), 0);
}
template <int A>
LUATTN_FN int kv_to(const LuattnParams &p, int kv) {
  return min_of(kv_at<A>(p, kv), GridSideOf<true>::extent(p, GridSideOf<true>::first_axis + A) - 1);
}
template <int A>
LUATTN_FN int q_extent(const LuattnParams &p) {
  return GridSideOf<false>::extent(p, GridSideOf<false>::first_axis + A);
}
template <int A>
LUATTN_FN int kv_extent(const LuattnParams &p) {
  return GridSideOf<true>::extent(p, GridSideOf<true>::first_axis + A);
}
