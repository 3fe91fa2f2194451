// ops/free_boxes.cuh: boxes of keys that begin at any place of a grid (LUATTN_FREE_BOXES): those of forward in the
// sm80 and sm90 families, which begin where the range of a box of queries does. A key is known by its box and its column there.
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

  // In 16 bytes of shared memory: where they begin, and how many there are.
  __device__ __forceinline__ void store(u32 address) const {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(from.at[0]), "r"(from.at[1]),
                 "r"(across.at[0]), "r"(across.at[1])
                 : "memory");
  }
  // All but their count.
  LUATTN_FN BoxesOfRange load(u32 address) {
    BoxesOfRange x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.from.at[0]), "=r"(x.from.at[1]), "=r"(x.across.at[0]), "=r"(x.across.at[1])
                 : "r"(address)
                 : "memory");
    return x;
  }
  template <class Spec>
  LUATTN_FN BoxesOfRange of(const LuattnParams &p, const Site &s, int own) {
    using Side = GridSideOf<true>;
    BoxesOfRange x{{{0, 0}}, {{0, 0}}, 1};
    GridRange kept = {};
    if constexpr (Spec::has_mask) kept = Spec::kv_box_range(p, s, own);
    each_axis([&](auto axis) {
      constexpr int a = axis.value;
      constexpr int d = Side::place_step(a);
      const int group = d > 1 ? Side::template group<a>(GridSideOf<false>::template at<a>(p, own)) : 0;
      const int extent = Side::extent(p, a),
                lo = Side::template in_group<a>(Spec::has_mask ? max_of(kept.lo[a], 0) : 0, group),
                hi = Side::template in_group<a>(Spec::has_mask ? min_of(kept.hi[a], extent) : extent, group);
      const int along = lo < hi ? ceil_div(hi - lo, Side::template box_of<a>) : 0;
      x.count *= along;
      if (lo < hi) x.from.set(a, lo * d + group);
      x.across.set(a, along);
    });
    return x;
  }
  // Number `at`.
  __device__ __forceinline__ FreeBox box(int at) const {
    FreeBox found{{0, 0}};
    find<LUATTN_GRID_AXES - 1>(found, u32(at));
    return found;
  }
  // The number of the one in their middle.
  __device__ __forceinline__ int middle() const {
    int at = 0;
    each_axis([&](auto axis) { at = at * across.first(axis.value) + across.first(axis.value) / 2; });
    return at;
  }

 private:
  // Its coordinates along `Axis` and those further out; `rest` counts boxes along these.
  template <int Axis>
  __device__ __forceinline__ void find(FreeBox &found, u32 rest) const {
    using Side = GridSideOf<true>;
    constexpr bool outermost = Axis == Side::first_axis;
    const u32 along = u32(across.first(Axis)), outer = outermost ? 0 : rest / along;
    found.set(Axis, from.first(Axis) + int(rest - outer * along) * (Side::box_of<Axis> * Side::place_step(Axis)));
    if constexpr (!outermost) find<Axis - 1>(found, outer);
  }
};

struct BoxKey {
  using Side = GridSideOf<true>;
  FreeBox box;
  int column;

  __device__ __forceinline__ BoxKey operator+(int more) const { return {box, column + more}; }
  template <int Axis>
  LUATTN_FN int within(u32 column) {
    return int(column / u32(Side::step_of<Axis>) % u32(Side::box_of<Axis>));
  }
  template <int Axis>
  __device__ __forceinline__ int at() const {
    return box.first(Axis) + within<Axis>(u32(column)) * Side::place_step(Axis);
  }
  __device__ __forceinline__ bool exists(const LuattnParams &p) const {
    bool inside = true;
    each_axis([&](auto axis) { inside = inside & (at<axis.value>() < Side::extent(p, axis.value)); });
    return inside;
  }
  // The number by which it draws (abi/philox.h).
  __device__ __forceinline__ int drawn_at(const LuattnParams &p) const {
    int place[Config::axes], extents[Config::axes];
    each_axis([&](auto axis) {
      constexpr int a = axis.value;
      place[a - Side::first_axis] = at<a>();
      extents[a - Side::first_axis] = Side::extent(p, a);
    });
    return dropout_place(place, extents, Config::axes);
  }
  // This key, or the nearest one of its box.
  __device__ __forceinline__ BoxKey clamped(const LuattnParams &p) const {
    BoxKey to = *this;
    each_axis([&](auto axis) {
      constexpr int a = axis.value;
      to.column -= ceil_div(max_of(at<a>() - (Side::extent(p, a) - 1), 0), Side::place_step(a)) * Side::step_of<a>;
    });
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
    constexpr int step = Side::step(Axis), box = Side::box(Axis), d = Side::place_step(Axis);
    const int first = base.box.first(Axis);
    if constexpr (step % 8 == 0)
      return first + BoxKey::within<Axis>(u32(offset)) * d;
    else if constexpr (step == 1 && box % 8 == 0)
      return first + offset % box * d + base.column * d;
    else if constexpr (step == 4 && box % 2 == 0)
      return first + offset / 4 % box * d + base.column / 4 * d;
    else
      return BoxKey(*this).template at<Axis>();
  }
};

template <int A>
LUATTN_FN int kv_at(const LuattnParams &, const BoxKey &kv) {
  return kv.template at<GridSideOf<true>::first_axis + A>();
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
  return Side::last_from<Side::first_axis + A>(p, kv.first(Side::first_axis + A));
}
