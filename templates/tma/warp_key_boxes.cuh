// tma/warp_key_boxes.cuh: the walk of a producer over boxes of keys that begin anywhere, for one of queries: a warp walks for
// its whole block, as in WarpKvTiles, and its lanes classify 32 boxes at a time.
//
// Boxes begin where the range of the queries' box does, so that none lies across its lower ends. The walk begins in their
// middle, whose keys most rows keep: the maxima of its first box are always taken.
#pragma once
#include "tma/warp_kv_tiles.cuh"
#include "work/grid_sequence.cuh"

template <class Spec>
struct WarpKeyBoxes {
  using Keys = GridSideOf<true>;
  int own, todo, end, start;
  FreeBox from;    // where the range begins
  FreeBox across;  // how many boxes along each axis
  FreeBox mine;    // this lane's of the 32 at hand
  u32 present, masked;

  template <class Sequence>
  __device__ __forceinline__ WarpKeyBoxes(const LuattnParams &p, const Sequence &s, int q_tile)
      : own(q_tile * GridSideOf<false>::rows),
        todo(0),
        end(1),
        start(0),
        from{{0, 0}},
        across{{0, 0}},
        mine(FreeBox::none()),
        present(0),
        masked(0) {
    GridRange kept = {};
    if constexpr (Spec::has_mask) kept = Spec::kv_box_range(p, s, own);
#pragma unroll
    for (int axis = Keys::first_axis; axis < LUATTN_GRID_AXES; ++axis) {
      const int extent = Keys::extent(p, axis), lo = Spec::has_mask ? max_of(kept.lo[axis], 0) : 0,
                hi = Spec::has_mask ? min_of(kept.hi[axis], extent) : extent;
      const int count = lo < hi ? ceil_div(hi - lo, Keys::box(axis)) : 0;
      start = start * count + count / 2;
      end *= count;
      if (lo < hi) from.set(axis, lo);
      across.set(axis, count);
    }
  }

  __device__ __forceinline__ TileOf<FreeBox> next(const LuattnParams &p, const Site &s) {
    while (present == 0) {
      if (todo >= end) return {FreeBox::none(), false};
      const int at = todo + int(threadIdx.x) % 32;
      mine = box(start + at - (start + at >= end ? end : 0));
      TileClass c = at < end ? TILE_FULL : TILE_EMPTY;
      if constexpr (Spec::has_mask)
        if (at < end) c = Spec::tile_class(p, s, own, own, mine, mine);
      bool inside = true;
#pragma unroll
      for (int axis = Keys::first_axis; axis < LUATTN_GRID_AXES; ++axis)
        inside = inside & (mine.first(axis) + Keys::box(axis) <= Keys::extent(p, axis));
      present = __ballot_sync(0xffffffffu, c != TILE_EMPTY);
      masked = __ballot_sync(0xffffffffu, c == TILE_PARTIAL || !inside);
      todo += 32;
    }
    const int i = __ffs(int(present)) - 1;
    present &= present - 1;
    return {{{__shfl_sync(0xffffffffu, mine.at[0], i), __shfl_sync(0xffffffffu, mine.at[1], i)}},
            ((masked >> i) & 1u) != 0};
  }

 private:
  // Number `at` of all, the innermost axis fastest.
  __device__ __forceinline__ FreeBox box(int at) const {
    FreeBox found{{0, 0}};
    u32 rest = u32(at);
#pragma unroll
    for (int axis = LUATTN_GRID_AXES - 1; axis >= Keys::first_axis; --axis) {
      const u32 count = u32(across.first(axis)), outer = axis > Keys::first_axis ? rest / count : 0;
      found.set(axis, from.first(axis) + int(rest - outer * count) * Keys::box(axis));
      rest = outer;
    }
    return found;
  }
};

template <class Spec, int TileM, int TileN>
struct WarpKvTilesKind<Spec, GridSequence, TileM, TileN> {
  using type = WarpKeyBoxes<Spec>;
};
