// score/kept_box_queries.cuh: backward over a grid: bits of a thread's queries that keep its keys, and exist, from the
// places that a key keeps along each axis.
#pragma once
#include "arch/mma.cuh"
#include "ops/grid_places.cuh"
#include "score/box_bits.cuh"
#include "score/kept_queries.cuh"
#include "score/online_rows.cuh"

// The places of queries along each axis, in the key's group, that a key may keep, which exist: where they begin, and in the
// upper 16 bits where they end. Exact where the mask is a product of axes. Of unused axes 0.
struct KeptPlaces {
  u32 along[LUATTN_GRID_AXES];

  template <class Spec, class Sequence>
  LUATTN_FN KeptPlaces of_key(const LuattnParams &p, const Sequence &s, int key) {
    using Queries = GridSideOf<false>;
    KeptPlaces made = {};
    GridRange kept = {};
    const bool exists = s.has_key(p, key);
    if constexpr (Spec::column_intervals > 0) kept = Spec::column_box_range(p, s, key);
    each_axis([&](auto of_axis) {
      constexpr int axis = of_axis.value;
      const int group = Queries::place_step(axis) > 1 ? Queries::group<axis>(GridSideOf<true>::at<axis>(p, key)) : 0;
      int lo = 0, hi = Queries::extent(p, axis);
      if constexpr (Spec::column_intervals > 0) lo = max_of(kept.lo[axis], 0), hi = min_of(kept.hi[axis], hi);
      lo = Queries::in_group<axis>(lo, group), hi = Queries::in_group<axis>(hi, group);
      made.along[axis] = exists && lo < hi ? u32(lo) | u32(hi) << 16 : 0;
    });
    return made;
  }
};

// Bits of a thread's queries in the box from q0 on that exist and, where the mask is a product of axes, keep its two keys,
// which keep `kept`. Of other masks these bits are what may be kept.
template <class Fragment, class Config, int Cols>
LUATTN_FN void find_kept_box_queries(const LuattnParams &p, const KeptPlaces (&kept)[2], int q0,
                                     KeepBits<Cols> (&keep)[2]) {
  using Queries = GridSideOf<false>;
  using Box = GridBox<Config::q_box(0), Config::q_box(1), Config::q_box(2), Config::q_box(3)>;
  static_assert(Cols <= 32);
  int from[LUATTN_GRID_AXES] = {};
  Queries::each_corner(p, q0 / Queries::rows, [&](auto axis, int at) {
    from[axis.value] = Queries::in_group<axis.value>(at, Queries::group<axis.value>(at));
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int lo[LUATTN_GRID_AXES] = {}, hi[LUATTN_GRID_AXES] = {1, 1, 1, 1};
#pragma unroll
    for (int axis = Queries::first_axis; axis < LUATTN_GRID_AXES; ++axis) {
      lo[axis] = int(kept[half].along[axis] & 0xffffu) - from[axis];
      hi[axis] = int(kept[half].along[axis] >> 16) - from[axis];
    }
    BoxBits<Fragment, Box>::of_row(int(threadIdx.x) % 32, lo, hi, keep[half].word);
  }
}

// The same exactly, where `scores` are a thread's: a mask that is no product is asked for what may be kept.
template <class Spec, class Fragment, class Config, class Scores, int Cols>
LUATTN_FN void find_kept_of_grid(const Scores &scores, const KeptPlaces (&kept)[2], int q0, KeepBits<Cols> (&keep)[2]) {
  find_kept_box_queries<Fragment, Config>(scores.p, kept, q0, keep);
  if constexpr (Spec::has_mask && Spec::column_intervals == 0) {
#pragma unroll 1
    for (int j = 0; j < Cols; ++j) {
      const int column = Fragment::column(scores.lane, j);
      const auto row = scores.row_at(column);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (keep[half].get(j) &&
            !Spec::keep(scores.p, scores.site, scores.head, row, scores.col[half], q0 + column, scores.kv_of(half)))
          keep[half].word[0] &= ~(1u << j);
    }
  }
}

// What is kept of a warp's 16 keys, at `address` in shared memory, computed once for all boxes of queries of a head.
template <>
struct BoxPlaces<true> {
  static constexpr int first_axis = GridSideOf<false>::first_axis;
  u32 address;

  template <class Spec, class Sequence>
  __device__ __forceinline__ void store(const LuattnParams &p, const Sequence &s, int first_key, int lane) const {
    const KeptPlaces of = KeptPlaces::of_key<Spec>(p, s, opaque(first_key) + lane % 16);
    __syncwarp();  // others may still read those of another head
#pragma unroll
    for (int axis = first_axis; axis < LUATTN_GRID_AXES; ++axis)
      if (lane < 16) store_shared(address + ((axis - first_axis) * 16 + lane) * 4, of.along[axis]);
    __syncwarp();
  }
  __device__ __forceinline__ KeptPlaces load(int key) const {
    KeptPlaces of = {};
#pragma unroll
    for (int axis = first_axis; axis < LUATTN_GRID_AXES; ++axis)
      of.along[axis] = load_shared(address + ((axis - first_axis) * 16 + key) * 4);
    return of;
  }
  // Sets the bits of a thread's queries, in the box from q0 on, that keep its keys.
  template <class Spec, class Fragment, class Config, class Scores, int Cols>
  __device__ __forceinline__ void find(const Scores &scores, int q0, KeepBits<Cols> (&keep)[2]) const {
    const KeptPlaces kept[2] = {load(Fragment::row(scores.lane, 0)), load(Fragment::row(scores.lane, 1))};
    find_kept_of_grid<Spec, Fragment, Config>(scores, kept, q0, keep);
  }
  // The same in a kernel that keeps no places.
  template <class Spec, class Fragment, class Config, class Scores, int Cols>
  LUATTN_FN void find_anew(const Scores &scores, int q0, KeepBits<Cols> (&keep)[2]) {
    const int kv = opaque(int(scores.kv_of(0)));  // values common to all tiles would take registers
    const KeptPlaces kept[2] = {KeptPlaces::of_key<Spec>(scores.p, scores.site, kv),
                                KeptPlaces::of_key<Spec>(scores.p, scores.site, kv + Fragment::row_of(1))};
    find_kept_of_grid<Spec, Fragment, Config>(scores, kept, q0, keep);
  }
};
