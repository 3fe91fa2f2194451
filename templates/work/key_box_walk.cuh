// work/key_box_walk.cuh: the walk over boxes of keys that begin anywhere (LUATTN_FREE_BOXES), for one of queries, by a warp: its
// lanes classify 32 boxes at a time. A producer walks for its block (tma/warp_kv_tiles.cuh); where warps have no producer each
// of them walks (KvTilesOf).
//
// Boxes begin where the range of the queries' box does, so that none lies across its lower ends. The walk begins in their
// middle, whose keys most rows keep: the maxima of its first box are always taken.
#pragma once
#include "work/grid_sequence.cuh"
#include "work/tile_walk.cuh"

template <class Spec>
struct KeyBoxWalk {
  using Keys = GridSideOf<true>;
  int own, todo, start;
  BoxesOfRange boxes;
  NumberedBox mine;  // this lane's of the 32 at hand
  u32 present, masked;

  template <class Sequence>
  __device__ __forceinline__ KeyBoxWalk(const LuattnParams &p, const Sequence &s, int q_tile)
      : own(q_tile * GridSideOf<false>::rows),
        todo(0),
        boxes(BoxesOfRange::of<Spec>(p, s, own)),
        mine(NumberedBox::none()),
        present(0),
        masked(0) {
    start = boxes.middle();
  }

  __device__ __forceinline__ TileOf<NumberedBox> next(const LuattnParams &p, const Site &s) {
    while (present == 0) {
      if (todo >= boxes.count) return {NumberedBox::none(), false};
      const int at = todo + int(threadIdx.x) % 32;
      mine.number = start + at - (start + at >= boxes.count ? boxes.count : 0);
      mine.box = boxes.box(mine.number);
      TileClass c = at < boxes.count ? TILE_FULL : TILE_EMPTY;
      if constexpr (Spec::has_mask)
        if (at < boxes.count) c = Spec::tile_class(p, s, own, own, mine.box, mine.box);
      bool inside = true;
      each_axis([&](auto axis) { inside = inside & Keys::is_whole<axis.value>(p, mine.box.first(axis.value)); });
      present = __ballot_sync(0xffffffffu, c != TILE_EMPTY);
      masked = __ballot_sync(0xffffffffu, c == TILE_PARTIAL || !inside);
      todo += 32;
    }
    const int i = __ffs(int(present)) - 1;
    present &= present - 1;
    NumberedBox found;
#pragma unroll
    for (int w = 0; w < 2; ++w) found.box.at[w] = __shfl_sync(0xffffffffu, mine.box.at[w], i);
    found.number = __shfl_sync(0xffffffffu, mine.number, i);
    return {found, ((masked >> i) & 1u) != 0};
  }
};

template <class Spec, int TileM, int TileN>
struct KvTilesKind<Spec, GridSequence, TileM, TileN> {
  using type = KeyBoxWalk<Spec>;
};
