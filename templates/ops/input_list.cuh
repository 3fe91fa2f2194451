// ops/input_list.cuh: whether a number is in a list that an input has, such as the blocks of keys that a query has
// chosen. For generated code. Of Count entries along axis Axis, from First on; the indices are those of the other axes,
// and clamped as in ops/input.cuh.
#pragma once
#include "ops/input_bounds.cuh"

// The address of entry 0.
template <class Stored, int Axis, class... Index>
LUATTN_FN u64 list_at(const LuattnInput &in, Index... index) {
  u64 at = reinterpret_cast<u64>(in.data);
  int axis = 0;
  ((axis += axis == Axis, at += u64(in.stride[axis]) * sizeof(Stored) * u32(clamp_index(index, in.size[axis])), ++axis),
   ...);
  return at;
}

// An entry of 64 bits is compared as such, with a number of 32.
template <class Stored>
LUATTN_FN int list_entry(const Stored *entry) {
  return read_input(entry);
}
LUATTN_FN i64 list_entry(const i64 *entry) { return __ldg(entry); }

// Rolled: an entry costs a read and a comparison, and a list has no registers of its own. Entries of 32 bits are read
// four at a time where they lie side by side.
template <class Stored, int Axis, int First, int Count, class... Index>
LUATTN_FN bool is_listed(const LuattnInput &in, int x, Index... index) {
  const u64 list = list_at<Stored, Axis>(in, index...);
  const i64 step = i64(in.stride[Axis]) * int(sizeof(Stored));
  bool found = false;
  if constexpr (same_type<Stored, int>::value && First % 4 == 0 && Count % 4 == 0)
    if (step == 4 && list % 16 == 0 && in.size[Axis] >= First + Count) {
#pragma unroll 2
      for (int i = First; i < First + Count; i += 4) {
        const int4 four = __ldg(reinterpret_cast<const int4 *>(list) + i / 4);
        found |= four.x == x | four.y == x | four.z == x | four.w == x;
      }
      return found;
    }
#pragma unroll 1
  for (int i = First; i < First + Count; ++i)
    found |= list_entry(reinterpret_cast<const Stored *>(list + step * clamp_index(i, in.size[Axis]))) == x;
  return found;
}

// Bounds of it for a cell: of the list itself where the places are one, otherwise anything.
template <class Stored, int Axis, int First, int Count, class... Places>
LUATTN_FN tri listed_bounds(const LuattnInput &in, ivi x, Places... at) {
  int axis = 0;
  if (!((axis += axis == Axis, is_one_place(at, in.size[axis++])) && ...)) return tri_all();
  const u64 list = list_at<Stored, Axis>(in, int(max_of(min_of(at.lo, ivi_end(2147483647)), ivi_end(0)))...);
  const i64 step = i64(in.stride[Axis]) * int(sizeof(Stored));
  tri found = tri_point(false);
#pragma unroll 1
  for (int i = First; i < First + Count; ++i) {
    const auto entry = list_entry(reinterpret_cast<const Stored *>(list + step * clamp_index(i, in.size[Axis])));
    if (int(entry) == entry) found = tri_or(found, ivi_eq(x, ivi_point(int(entry))));
  }
  return found;
}
