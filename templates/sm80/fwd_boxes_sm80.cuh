// sm80/fwd_boxes_sm80.cuh: what a warp of the sm80 forward does over a grid: which keys of a box its rows keep, from ranges in
// shared memory (score/kept_keys.cuh), and terms by displacement from tables, of which its block fills the next one while it
// computes a tile. `Kernel`: ForwardSm80.
#pragma once
#include "score/box_dropout.cuh"
#include "score/displacement_terms.cuh"
#include "score/kept_keys.cuh"
#include "source/box_tile.cuh"
#include "work/key_box_walk.cuh"

template <class Spec, class Config>
struct ForwardBoxesSm80 {
  using Queries = GridSideOf<false>;
  using Pair = BoxPair<GridSideOf<true>::rows>;
  using Tile = TileOf<NumberedBox>;
  static constexpr int axes = Config::axes, displacements = Spec::has_displacement_term ? Pair::count() : 0;

  // ---- rows ----

  // The ranges of the rows of fragment m.
  template <class Kernel>
  LUATTN_FN u32 ranges(const Kernel &k, int m) {
    return k.q_shared + Kernel::layout.at_row_ranges + (k.warp_row / 16 + m) * Kernel::layout.row_ranges;
  }
  template <class Kernel>
  LUATTN_FN void store_ranges(const Kernel &k) {
#pragma unroll 1
    for (int m = 0; m < Kernel::m_tiles; ++m)
      RowRanges::store<Spec>(k.p, k.site,
                             k.site.clamped_query(k.p, k.q_tile * Kernel::tile_m + k.warp_row + m * 16 + k.lane % 16),
                             k.lane, ranges(k, m));
  }
  template <class Kernel, class Keep>
  LUATTN_FN void find_kept(const Kernel &k, const BoxKey &kv0, int lane, Keep (&keep)[Kernel::rows]) {
#pragma unroll
    for (int m = 0; m < Kernel::m_tiles; ++m) {
      Keep of_two[2];
      find_kept_keys<Spec, typename Kernel::Fragment>(k.p, ranges(k, m), lane, kv0, of_two);
      keep[2 * m] = of_two[0], keep[2 * m + 1] = of_two[1];
    }
  }

  // ---- terms by displacement ----

  template <class Kernel>
  LUATTN_FN u32 table(const Kernel &k, int slot) {
    return k.q_shared + Kernel::layout.at_terms + slot * Kernel::layout.terms;
  }
  // This thread's numbers of a tile's table.
  template <class Kernel>
  LUATTN_FN auto numbers(const Kernel &k, const Tile &tile) {
    Displacement from = {};
    if (tile.valid())
      Queries::each_corner(k.p, u32(k.q_tile), [&](auto axis, int at) {
        from.at[axis.value - Queries::first_axis] = tile.index.box.first(axis.value) - at;
      });
    return DisplacementTable<Spec, Pair, Config::threads>(k.p, k.site, k.head, from, int(threadIdx.x));
  }
  // Those of a thread's rows, from a table.
  template <class Kernel>
  struct Terms {
    using Two = DisplacementTerms<typename Kernel::Fragment, Pair, Kernel::cols / 2, false>;
    const Two of[2];
    __device__ __forceinline__ Terms(const Kernel &k, int slot)
        : of{Two(table(k, slot), k.warp_row, k.lane),
             Two(table(k, slot), k.warp_row + (Kernel::m_tiles - 1) * 16, k.lane)} {}
    __device__ __forceinline__ float get(int r, int octet, int odd) const { return of[r / 2].get(r % 2, octet, odd); }
  };
};
