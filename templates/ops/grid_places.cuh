// ops/grid_places.cuh: places of a grid, for kernels and generated code of a spec with several axes (Config::axes).
//
// A place of queries, or of keys, is known by its slot: the number of its box times the rows of a box, and its row there.
// A box reaches past the ends of axes, and slots there have no place. Boxes are numbered, and rows of a box are, with the
// innermost axis fastest. Axes are those of LuattnGrid, of which a grid of fewer axes has the last ones.
//
// Where the mask has a dilation d along an axis (Config::place_step), a box takes every d-th place. Its first one's
// remainder by d is its group. Boxes of all groups that begin at the same place of their group have numbers one after
// another, so that the last numbers are of boxes without a place, and do not exist. Coordinates are true ones throughout
// but for those `in_group`, which count the places of a group.
#pragma once
#include "abi/params.h"
#include "abi/philox.h"
#include "arch/divisor.cuh"
#include "ops/hook_types.cuh"

// Half-open ranges of places along each axis.
struct GridRange {
  int lo[LUATTN_GRID_AXES], hi[LUATTN_GRID_AXES];
};

// An axis as a type. Loops over axes are calls for each of them: unrolling took a fifth of a forward kernel's compile time.
template <int Axis>
struct GridAxis {
  static constexpr int value = Axis;
};
// Calls body(GridAxis) for each axis of the spec, the outermost first.
template <int Axis = LUATTN_GRID_AXES - Config::axes, class Body>
LUATTN_FN void each_axis(const Body &body) {
  body(GridAxis<Axis>{});
  if constexpr (Axis + 1 < LUATTN_GRID_AXES) each_axis<Axis + 1>(body);
}

// From a place to the next one along the axis in a tensor.
template <int Axis>
LUATTN_FN i64 step_in(const LuattnTensor &t, const LuattnGridSteps &steps) {
  if constexpr (Axis == LUATTN_GRID_AXES - 1)
    return t.seq;
  else
    return steps.outer[Axis];
}

template <bool Keys>
struct GridSideOf {
  static constexpr bool of_keys = Keys;
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
  // From a place of a box to the next one along the axis.
  static constexpr __device__ int place_step(int axis) { return Config::place_step(axis); }
  template <int Axis>
  static constexpr int box_of = box(Axis);
  template <int Axis>
  static constexpr int step_of = step(Axis);
  LUATTN_FN const LuattnGridSide &of(const LuattnParams &p, int axis) {
    const LuattnGridAxis &both = static_cast<const LuattnGridParams &>(p).grid.axis[axis];
    return Keys ? both.kv : both.q;
  }
  LUATTN_FN int extent(const LuattnParams &p, int axis) { return of(p, axis).extent; }

  // Whether the groups of a far axis (LuattnFarPlaces) are among the units of TMA descriptors.
  static constexpr __device__ bool is_far(int axis) {
    const int q = Config::q_box(axis), kv = Config::kv_box(axis);
    return axis > 0 && grid_step_is_far(place_step(axis), q > kv ? q : kv);
  }

  // The group of a coordinate, and the coordinate's number there, rounded up; of places from -255 * d on.
  template <int Axis>
  LUATTN_FN int group(int at) {
    constexpr int d = place_step(Axis);
    if constexpr (d == 1) return 0;
    return int(u32(at + 256 * d) % u32(d));
  }
  template <int Axis>
  LUATTN_FN int in_group(int at, int group) {
    constexpr int d = place_step(Axis);
    if constexpr (d == 1) return at;
    return int(u32(at - group + d - 1 + 256 * d) / u32(d)) - 256;
  }
  // The first place of a box by its number along the axis.
  template <int Axis>
  LUATTN_FN int begin_of(const LuattnGridSide &side, u32 number) {
    constexpr u32 d = u32(place_step(Axis));
    if constexpr (d == 1) return side.first + int(number) * box_of<Axis>;
    return (side.first + int(number / d) * box_of<Axis>)*int(d) + int(number % d);
  }
  // Whether all places of a box exist whose first one is `at`.
  template <int Axis>
  LUATTN_FN bool is_whole(const LuattnParams &p, int at) {
    return at + ((box_of<Axis> - 1) * place_step(Axis) + 1) <= extent(p, Axis);
  }
  // The last place of such a box that exists.
  template <int Axis>
  LUATTN_FN int last_from(const LuattnParams &p, int at) {
    constexpr int d = place_step(Axis);
    const int end = extent(p, Axis), of = group<Axis>(at);
    if constexpr (d == 1) return min_of(at + box_of<Axis>, end) - 1;
    return min_of(at + (box_of<Axis> - 1) * d, of + (in_group<Axis>(end, of) - 1) * d);
  }

  // Calls body(axis, coordinate) for the first place of a box, the innermost axis first.
  template <int Axis = LUATTN_GRID_AXES - 1, class Body>
  LUATTN_FN void each_corner(const LuattnParams &p, u32 tile, const Body &body) {
    const LuattnGridSide &side = of(p, Axis);
    if constexpr (Axis > first_axis) {
      const u32 outer = quotient(tile, side.boxes);
      body(GridAxis<Axis>{}, begin_of<Axis>(side, tile - outer * side.boxes.d));
      each_corner<Axis - 1>(p, outer, body);
    } else {
      body(GridAxis<Axis>{}, begin_of<Axis>(side, tile));
    }
  }
  template <int Axis, int From = LUATTN_GRID_AXES - 1>
  LUATTN_FN int corner(const LuattnParams &p, u32 tile) {
    const LuattnGridSide &side = of(p, From);
    const u32 outer = From > first_axis ? quotient(tile, side.boxes) : 0;
    if constexpr (From > Axis)
      return corner<Axis, From - 1>(p, outer);
    else
      return begin_of<Axis>(side, tile - outer * side.boxes.d);
  }
  // Of three axes: the box that comes at `number` if columns of boxes along the outermost axis follow each other, and these in
  // bands of three, the middle axis fastest. Boxes that are at work together then have few neighbours, which is what L2 holds:
  // a layer of boxes would have all of several layers.
  LUATTN_FN u32 in_columns(const LuattnParams &p, u32 number) {
    constexpr int axis = LUATTN_GRID_AXES - 3;
    constexpr u32 wide = 3;
    const LuattnDivisor &along = of(p, axis).boxes;
    const u32 rows = of(p, axis + 1).boxes.d, columns = of(p, axis + 2).boxes.d;
    const u32 column = quotient(number, along), at = number - column * along.d, band = column / (wide * columns),
              width = min_of(wide, rows - band * wide), in_band = column - band * wide * columns, x = in_band / width;
    return (at * rows + band * wide + (in_band - x * width)) * columns + x;
  }
  template <int Axis>
  LUATTN_FN int within(int slot) {
    return slot / step_of<Axis> % box_of<Axis>;
  }
  // The same in places of the axis.
  template <int Axis>
  LUATTN_FN int along(int slot) {
    return within<Axis>(slot) * place_step(Axis);
  }

  // Of a slot in two parts that have no bit in common, the second a constant: where a kernel asks about all of a thread's
  // scores, the box is found once, and what is left of each is a constant.
  template <int Axis>
  LUATTN_FN int at(const LuattnParams &p, const Position &slot) {
    if constexpr ((rows & (rows - 1)) == 0)
      return corner<Axis>(p, slot.base / rows) + along<Axis>(slot.base) + along<Axis>(slot.offset);
    else
      return at<Axis>(p, int(slot));
  }
  // The coordinate of a slot along the axis; the first and the last one of its box, of those that exist.
  template <int Axis>
  LUATTN_FN int at(const LuattnParams &p, int slot) {
    return corner<Axis>(p, slot / rows) + along<Axis>(slot);
  }
  template <int Axis>
  LUATTN_FN int first(const LuattnParams &p, int slot) {
    const int at = corner<Axis>(p, slot / rows);
    return max_of(at, group<Axis>(at));
  }
  template <int Axis>
  LUATTN_FN int last(const LuattnParams &p, int slot) {
    return last_from<Axis>(p, corner<Axis>(p, slot / rows));
  }

  LUATTN_FN bool has(const LuattnParams &p, int slot) {
    bool exists = true;
    each_corner(p, slot / rows, [&](auto axis, int at) {
      exists = exists && u32(at + along<axis.value>(slot)) < u32(extent(p, axis.value));
    });
    return exists;
  }
  // Whether all slots of the box do.
  LUATTN_FN bool has_all(const LuattnParams &p, int slot) {
    bool exist = true;
    each_corner(p, slot / rows, [&](auto axis, int at) { exist = exist && at >= 0 && is_whole<axis.value>(p, at); });
    return exist;
  }
  // The place, of a box whose first one is `at`, or the nearest one of that box.
  template <int Axis>
  LUATTN_FN int nearest(const LuattnParams &p, int at, int place) {
    if constexpr (place_step(Axis) == 1) return max_of(min_of(place, extent(p, Axis) - 1), max_of(at, 0));
    return max_of(min_of(place, last_from<Axis>(p, at)), max_of(at, group<Axis>(at)));
  }
  // The slot, or that of the nearest place of its box.
  LUATTN_FN int clamped(const LuattnParams &p, int slot) {
    int to = slot;
    each_corner(p, slot / rows, [&](auto axis, int at) {
      constexpr int a = axis.value;
      to += (nearest<a>(p, at, at + along<a>(slot)) - at - along<a>(slot)) / place_step(a) * step_of<a>;
    });
    return to;
  }
  // From the first place of all to this one in a tensor, or to the nearest one of its box.
  LUATTN_FN i64 nearest_offset(const LuattnParams &p, const LuattnTensor &t, const LuattnGridSteps &steps,
                               const Position &slot) {
    static_assert((rows & (rows - 1)) == 0);
    i64 from_first = 0;
    each_corner(p, slot.base / rows, [&](auto axis, int corner) {
      constexpr int a = axis.value;
      from_first += nearest<a>(p, corner, corner + along<a>(slot.base) + along<a>(slot.offset)) * step_in<a>(t, steps);
    });
    return from_first;
  }
  // The slots of all boxes.
  LUATTN_FN int slots(const LuattnParams &p) {
    int boxes = 1;
    each_axis([&](auto axis) { boxes *= int(of(p, axis.value).boxes.d); });
    return boxes * rows;
  }
  // The row-major number of a place among all, and how many there are.
  LUATTN_FN i64 number(const LuattnParams &p, int slot) {
    i64 place = 0, places = 1;
    each_corner(p, slot / rows, [&](auto axis, int at) {
      place += places * (at + along<axis.value>(slot));
      places *= extent(p, axis.value);
    });
    return place;
  }
  LUATTN_FN i64 count(const LuattnParams &p) {
    i64 places = 1;
    each_axis([&](auto axis) { places *= extent(p, axis.value); });
    return places;
  }
  // The number by which a place draws (abi/philox.h).
  LUATTN_FN int drawn_at(const LuattnParams &p, int slot) {
    int at[Config::axes], extents[Config::axes];
    each_corner(p, slot / rows, [&](auto axis, int corner) {
      at[axis.value - first_axis] = corner + along<axis.value>(slot);
      extents[axis.value - first_axis] = extent(p, axis.value);
    });
    return dropout_place(at, extents, Config::axes);
  }
  // From the first place of all to this one in a tensor.
  LUATTN_FN i64 offset(const LuattnParams &p, const LuattnTensor &t, const LuattnGridSteps &steps, int slot) {
    i64 from_first = 0;
    each_corner(p, slot / rows, [&](auto axis, int at) {
      from_first += (at + along<axis.value>(slot)) * step_in<axis.value>(t, steps);
    });
    return from_first;
  }
};

// kv - q along each axis of the spec's, from 0, for hooks that depend on nothing else: the query is the origin, and the key
// lies there.
struct Origin {};
struct Displacement {
  int at[Config::axes];
};
template <int A>
LUATTN_FN int q_at(const LuattnParams &, Origin) {
  return 0;
}
template <int A>
LUATTN_FN int kv_at(const LuattnParams &, const Displacement &kv) {
  return kv.at[A];
}

// As generated code names them: along axis A of the spec's, from 0.
template <int A>
LUATTN_FN int q_at(const LuattnParams &p, int q) {
  return GridSideOf<false>::at<GridSideOf<false>::first_axis + A>(p, q);
}
template <int A>
LUATTN_FN int q_at(const LuattnParams &p, const Position &q) {
  return GridSideOf<false>::at<GridSideOf<false>::first_axis + A>(p, q);
}
template <int A>
LUATTN_FN int kv_at(const LuattnParams &p, const Position &kv) {
  return GridSideOf<true>::at<GridSideOf<true>::first_axis + A>(p, kv);
}
template <int A>
LUATTN_FN int kv_at(const LuattnParams &p, int kv) {
  return GridSideOf<true>::at<GridSideOf<true>::first_axis + A>(p, kv);
}
template <int A>
LUATTN_FN int q_first(const LuattnParams &p, int q) {
  return GridSideOf<false>::first<GridSideOf<false>::first_axis + A>(p, q);
}
template <int A>
LUATTN_FN int q_last(const LuattnParams &p, int q) {
  return GridSideOf<false>::last<GridSideOf<false>::first_axis + A>(p, q);
}
template <int A>
LUATTN_FN int kv_first(const LuattnParams &p, int kv) {
  return GridSideOf<true>::first<GridSideOf<true>::first_axis + A>(p, kv);
}
template <int A>
LUATTN_FN int kv_last(const LuattnParams &p, int kv) {
  return GridSideOf<true>::last<GridSideOf<true>::first_axis + A>(p, kv);
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
