// tma/warp_key_boxes.cuh: the walk of a producer over boxes of keys that begin anywhere.
#pragma once
#include "tma/warp_kv_tiles.cuh"
#include "work/key_box_walk.cuh"

template <class Spec, int TileM, int TileN>
struct WarpKvTilesKind<Spec, GridSequence, TileM, TileN> {
  using type = KeyBoxWalk<Spec>;
};
