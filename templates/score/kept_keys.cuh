// score/kept_keys.cuh: the bits of a thread's columns of a box of keys that a mask over a grid keeps (box_bits.cuh). What a row
// keeps along each axis is computed once for a box of queries, and read from shared memory where a box is kept in part:
// registers would hold it through all others.
#pragma once
#include "arch/mma.cuh"
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

// The range of a warp's row along an axis, its ends in 16 bits each, in places of its group: cut to the extents, and none if
// hi is 0.
struct RowRanges {
  static constexpr int rows = 16;
  LUATTN_FN u32 address(u32 ranges, int row, int a) { return ranges + (a * rows + row) * 4; }

  // Stores those of `query`, the warp's query of row `lane` % 16, which exists. Called by all lanes.
  template <class Spec, class Sequence>
  LUATTN_FN void store(const LuattnParams &p, const Sequence &s, int query, int lane, u32 ranges) {
    using Keys = GridSideOf<true>;
    if constexpr (Spec::has_mask && Spec::row_intervals > 0) {
      const GridRange kept = Spec::row_box_range(p, s, query);
      __syncwarp();
      each_axis([&](auto axis) {
        constexpr int a = axis.value;
        const int group = Keys::place_step(a) > 1 ? Keys::group<a>(GridSideOf<false>::at<a>(p, query)) : 0;
        const int lo = Keys::in_group<a>(max_of(kept.lo[a], 0), group),
                  hi = Keys::in_group<a>(min_of(kept.hi[a], Keys::extent(p, a)), group);
        if (lane < rows)
          store_shared(address(ranges, lane, a - Keys::first_axis), lo < hi ? u32(lo) | u32(hi) << 16 : 0);
      });
      __syncwarp();
    }
  }
  LUATTN_FN u32 load(u32 ranges, int row, int a) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address(ranges, row, a)));  // each time anew
    return x;
  }
};

// The boxes of keys of a warp's q tile (BoxesOfRange), next to the ranges of its rows.
struct WarpBoxes {
  LUATTN_FN u32 address(u32 ranges) { return ranges + Config::axes * RowRanges::rows * 4; }
  // Keeps what the producer told with a q tile, whose place it may use again once lane 0 has released Q.
  LUATTN_FN void store(u32 told, int lane, u32 ranges) {
    __syncwarp();
    if (lane == 0) BoxesOfRange::load(told).store(address(ranges));
    __syncwarp();
  }
  // Finds a box again, for scores that read its keys or are computed anew. Not volatile: other scores have no use for it.
  // `number` as an operand keeps the load where it is.
  LUATTN_FN NumberedBox box(u32 ranges, int number) {
    BoxesOfRange boxes;
    u32 x[4];
    asm("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];  // %5"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
        : "r"(address(ranges)), "r"(number));
    boxes.from = {{x[0], x[1]}};
    boxes.across = {{x[2], x[3]}};
    return {boxes.box(number), number};
  }
};

// The bits of the lane's two rows of the warp; `first` is its first column. A loop over the rows is not unrolled: ptxas would
// copy all scores ahead of straight code, which takes as many registers.
template <class Spec, class Fragment, class Keep>
LUATTN_FN void find_kept_keys(const LuattnParams &p, u32 ranges, int lane, const BoxKey &first, Keep (&keep)[2]) {
  using Keys = GridSideOf<true>;
  using Bits = BoxBits<Fragment, typename KeyGridBox<Config::axes>::type>;
#pragma unroll 1
  for (int r = 0; r < 2; ++r) {
    int lo[Config::axes], hi[Config::axes];
    u32 word[Bits::words];
    each_axis([&](auto axis) {
      constexpr int a = axis.value - Keys::first_axis;
      constexpr int d = Keys::place_step(axis.value);
      const int begin = first.box.first(axis.value) / d;
      if constexpr (Spec::has_mask) {
        const u32 kept = RowRanges::load(ranges, Fragment::row(lane, r), a);
        lo[a] = int(kept & 0xffffu) - begin;
        hi[a] = int(kept >> 16) - begin;
      } else {
        lo[a] = 0;
        const int group = first.box.first(axis.value) - begin * d;
        hi[a] = Keys::in_group<axis.value>(Keys::extent(p, axis.value), group) - begin;
      }
    });
    Bits::of_row(lane, lo, hi, word);
#pragma unroll
    for (int w = 0; w < Bits::words; ++w) {
      keep[0].word[w] = r == 0 ? word[w] : keep[0].word[w];
      keep[1].word[w] = word[w];
    }
  }
}
