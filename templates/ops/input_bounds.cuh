// ops/input_bounds.cuh: bounds of an integer input over a tile, from the block minima and maxima that
// luattn_stats wrote, and range helpers. Generated tile functions call them.
#pragma once
#include "ops/hook_types.cuh"
#include "ops/input.cuh"
#include "ops/interval.cuh"

// Bounds the input's values at positions `at` of axis number `axis`, the last one. `row` is the row-major
// index over the axes before it.
LUATTN_FN ivi stat_bounds(const int *stat, const LuattnInput &in, int axis, int block, i64 row, ivi at) {
  const ivi_end last = in.size[axis] - 1, first = 0;
  const int blocks = ceil_div(in.size[axis], block);
  const int from = int(max_of(min_of(at.lo, last), first)) / block,
            to = int(max_of(min_of(at.hi, last), first)) / block;
  ivi bounds = ivi_make(IVI_INF, -IVI_INF);
#pragma unroll 1
  for (int j = from; j <= to; ++j) {
    const int *low_high = stat + (row * blocks + j) * 2;
    bounds = ivi_make(min_of(bounds.lo, ivi_end(low_high[0])), max_of(bounds.hi, ivi_end(low_high[1])));
  }
  return bounds;
}

// Same as stat_bounds for the positions of one tile, which are not negative and lie in one block. Positions
// past the end of the axis read its last value, as with clamp_index, so they use the last block. No axis is
// empty if there are tiles.
struct alignas(8) LowHigh {
  int low, high;
};
LUATTN_FN ivi block_bounds(const int *stat, const LuattnInput &in, int axis, int block, i64 row, ivi at) {
  const int size = in.size[axis];
  const u32 j = u32(min_of(int(at.lo), size - 1)) / u32(block);
  const LowHigh bounds = reinterpret_cast<const LowHigh *>(stat)[row * ceil_div(size, block) + j];
  return ivi_make(bounds.low, bounds.high);
}

// Which numbers the input has at these positions, a bit for each remainder by 64: numbers that are equal have the same
// bit. Two sets that have no bit in common have no number in common, whatever lies between their least and greatest.
LUATTN_FN u64 stat_set(const int *stat, const LuattnInput &in, int axis, int block, i64 row, ivi at) {
  const ivi_end last = in.size[axis] - 1, first = 0;
  const int blocks = ceil_div(in.size[axis], block);
  const int from = int(max_of(min_of(at.lo, last), first)) / block,
            to = int(max_of(min_of(at.hi, last), first)) / block;
  u64 set = 0;
#pragma unroll 1
  for (int j = from; j <= to; ++j) set |= reinterpret_cast<const u64 *>(stat)[row * blocks + j];
  return set;
}
LUATTN_FN u64 block_set(const int *stat, const LuattnInput &in, int axis, int block, i64 row, ivi at) {
  const int size = in.size[axis];
  const u32 j = u32(min_of(int(at.lo), size - 1)) / u32(block);
  return reinterpret_cast<const u64 *>(stat)[row * ceil_div(size, block) + j];
}
// Bounds of a comparison of two such numbers.
LUATTN_FN tri equal_if_met(tri by_bounds, u64 x, u64 y) {
  return tri_make(by_bounds.can_be_false, by_bounds.can_be_true && (x & y) != 0);
}

// Returns whether clamp_index maps all indices in `at` to one element of an axis of this size.
LUATTN_FN bool is_one_place(ivi at, int size) {
  const ivi_end last = max_of(size - 1, 0), first = 0;
  return max_of(min_of(at.lo, last), first) == max_of(min_of(at.hi, last), first);
}

// The first of these places, as clamp_index maps it.
LUATTN_FN int first_place(ivi at, int size) { return int(max_of(min_of(at.lo, ivi_end(size - 1)), ivi_end(0))); }

// Bounds of flags, which count as 0 and 1.
LUATTN_FN tri tri_of(ivi x) { return tri_make(x.lo <= 0, x.hi > 0); }

// Bounds of an integer, or of a flag, that is read at these places: itself where they are one, otherwise anything.
template <class Stored, class... Places>
LUATTN_FN ivi place_bounds(const LuattnInput &in, Places... at) {
  int axis = 0, of = 0;
  if (!(is_one_place(at, in.size[axis++]) && ...)) return ivi_all();
  if constexpr (sizeof(Stored) == 8)
    return ivi_point(load_wide(in, first_place(at, in.size[of++])...));
  else
    return ivi_point(load_input<int, Stored>(in, first_place(at, in.size[of++])...));
}

// Clips [lo, hi) to [0, len). A reversed range becomes empty.
LUATTN_FN Range clip_range(int lo, int hi, int len) {
  const int first = max_of(min_of(lo, len), 0);
  return {first, max_of(min_of(hi, len), first)};
}
