// score/kept_keys.cuh: the bits of a thread's columns of a box of keys that a mask over a grid keeps (box_bits.cuh).
#pragma once
#include "ops/free_boxes.cuh"
#include "score/box_bits.cuh"
#include "score/mask_intervals.cuh"

// The box of keys of a tile, as box_bits.cuh takes it.
template <int Axes>
struct KeyGridBox;
template <>
struct KeyGridBox<2> {
  using type = GridBox<Config::kv_box(2), Config::kv_box(3)>;
};
template <>
struct KeyGridBox<3> {
  using type = GridBox<Config::kv_box(1), Config::kv_box(2), Config::kv_box(3)>;
};
template <>
struct KeyGridBox<4> {
  using type = GridBox<Config::kv_box(0), Config::kv_box(1), Config::kv_box(2), Config::kv_box(3)>;
};

// `first` is the thread's first column, `query` its two queries, which exist.
template <class Spec, class Fragment, int TileN, class Sequence, class Keep>
LUATTN_FN void find_kept_keys(const LuattnParams &p, const Sequence &s, const int (&query)[2], const BoxKey &first,
                              Keep (&keep)[2]) {
  using Keys = GridSideOf<true>;
  using Bits = BoxBits<Fragment, typename KeyGridBox<Config::axes>::type>;
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    GridRange kept = {};
    if constexpr (Spec::has_mask) kept = Spec::row_box_range(p, s, query[r]);
    int lo[Config::axes], hi[Config::axes];
#pragma unroll
    for (int a = 0; a < Config::axes; ++a) {
      const int axis = Keys::first_axis + a, begin = first.box.first(axis), extent = Keys::extent(p, axis);
      lo[a] = Spec::has_mask ? kept.lo[axis] - begin : 0;
      hi[a] = (Spec::has_mask ? min_of(kept.hi[axis], extent) : extent) - begin;
    }
    Bits::of_row(lane, lo, hi, keep[r].word);
  }
}
