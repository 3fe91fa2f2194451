// ops/free_boxes.cuh: boxes of keys that begin at any place of a grid (LUATTN_FREE_BOXES): those of forward in the sm90
// family, which begin where the range of a box of queries does. A key is known by its box and its column there.
#pragma once
#include "ops/grid_places.cuh"

struct FreeBox {
  u32 at[2];  // the coordinates of its first place, 16 bits each, axis 0 in the lowest

  __device__ __forceinline__ bool valid() const { return at[1] != ~0u; }
  LUATTN_FN constexpr FreeBox none() { return {{~0u, ~0u}}; }
  __device__ __forceinline__ int first(int axis) const { return int(at[axis / 2] >> axis % 2 * 16 & 0xffffu); }
  // Of one that has 0 there.
  __device__ __forceinline__ void set(int axis, int to) { at[axis / 2] |= u32(to) << axis % 2 * 16; }
};

// A box among those of a range, and its number there, the innermost axis fastest. What the producer of a block tells about a
// box is its number: consumers, who seldom ask, find it again.
struct NumberedBox {
  FreeBox box;
  int number;

  __device__ __forceinline__ bool valid() const { return number >= 0; }
  LUATTN_FN constexpr NumberedBox none() { return {FreeBox::none(), -1}; }
};

// The boxes that cover the keys which a box of queries may keep: where they begin, and how many there are along each axis.
struct BoxesOfRange {
  FreeBox from, across;
  int count;

  template <class Spec>
  LUATTN_FN BoxesOfRange of(const LuattnParams &p, const Site &s, int own) {
    using Side = GridSideOf<true>;
    BoxesOfRange x{{{0, 0}}, {{0, 0}}, 1};
    GridRange kept = {};
    if constexpr (Spec::has_mask) kept = Spec::kv_box_range(p, s, own);
#pragma unroll
    for (int axis = Side::first_axis; axis < LUATTN_GRID_AXES; ++axis) {
      const int extent = Side::extent(p, axis), lo = Spec::has_mask ? max_of(kept.lo[axis], 0) : 0,
                hi = Spec::has_mask ? min_of(kept.hi[axis], extent) : extent;
      const int along = lo < hi ? ceil_div(hi - lo, Side::box(axis)) : 0;
      x.count *= along;
      if (lo < hi) x.from.set(axis, lo);
      x.across.set(axis, along);
    }
    return x;
  }
  // Number `at`.
  __device__ __forceinline__ FreeBox box(int at) const {
    using Side = GridSideOf<true>;
    FreeBox found{{0, 0}};
    u32 rest = u32(at);
#pragma unroll
    for (int axis = LUATTN_GRID_AXES - 1; axis >= Side::first_axis; --axis) {
      const u32 along = u32(across.first(axis)), outer = axis > Side::first_axis ? rest / along : 0;
      found.set(axis, from.first(axis) + int(rest - outer * along) * Side::box(axis));
      rest = outer;
    }
    return found;
  }
  // The number of the one in their middle.
  __device__ __forceinline__ int middle() const {
    int at = 0;
#pragma unroll
    for (int axis = GridSideOf<true>::first_axis; axis < LUATTN_GRID_AXES; ++axis)
      at = at * across.first(axis) + across.first(axis) / 2;
    return at;
  }
};

struct BoxKey {
  using Side = GridSideOf<true>;
  FreeBox box;
  int column;

  __device__ __forceinline__ BoxKey operator+(int more) const { return {box, column + more}; }
  LUATTN_FN int within(u32 column, int axis) { return int(column / u32(Side::step(axis)) % u32(Side::box(axis))); }
  __device__ __forceinline__ int at(int axis) const { return box.first(axis) + within(u32(column), axis); }
  __device__ __forceinline__ bool exists(const LuattnParams &p) const {
    bool inside = true;
#pragma unroll
    for (int axis = Side::first_axis; axis < LUATTN_GRID_AXES; ++axis)
      inside = inside & (at(axis) < Side::extent(p, axis));
    return inside;
  }
  // This key, or the nearest one of its box.
  __device__ __forceinline__ BoxKey clamped(const LuattnParams &p) const {
    BoxKey to = *this;
#pragma unroll
    for (int axis = Side::first_axis; axis < LUATTN_GRID_AXES; ++axis)
      to.column -= max_of(at(axis) - (Side::extent(p, axis) - 1), 0) * Side::step(axis);
    return to;
  }
};

// A key for hooks of scores. `base` is the first one of a thread's columns, an even one of the first eight, and `offset`
// a constant with remainder 0 or 1 by 8.
struct BoxKeyPlace {
  using Side = GridSideOf<true>;
  BoxKey base;
  int offset;

  __device__ __forceinline__ operator BoxKey() const { return base + offset; }
  // Takes a column's coordinate apart, so that what `offset` gives is a constant.
  template <int Axis>
  __device__ __forceinline__ int at() const {
    constexpr int step = Side::step(Axis), box = Side::box(Axis);
    const int first = base.box.first(Axis);
    if constexpr (step % 8 == 0)
      return first + BoxKey::within(u32(offset), Axis);
    else if constexpr (step == 1 && box % 8 == 0)
      return first + offset % box + base.column;
    else if constexpr (step == 4 && box % 2 == 0)
      return first + offset / 4 % box + base.column / 4;
    else
      return BoxKey(*this).at(Axis);
  }
};

template <int A>
LUATTN_FN int kv_at(const LuattnParams &, const BoxKey &kv) {
  return kv.at(GridSideOf<true>::first_axis + A);
}
template <int A>
LUATTN_FN int kv_at(const LuattnParams &, const BoxKeyPlace &kv) {
  return kv.template at<GridSideOf<true>::first_axis + A>();
}
template <int A>
LUATTN_FN int kv_first(const LuattnParams &, const FreeBox &kv) {
  return kv.first(GridSideOf<true>::first_axis + A);
}
template <int A>
LUATTN_FN int kv_last(const LuattnParams &p, const FreeBox &kv) {
  using Side = GridSideOf<true>;
  return min_of(kv.first(Side::first_axis + A) + Side::box(Side::first_axis + A), kv_extent<A>(p)) - 1;
}
