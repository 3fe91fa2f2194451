// tma/warp_q_boxes.cuh: the walk over boxes of queries of a backward producer over a grid.
#pragma once
#include "tma/warp_q_tiles.cuh"
#include "work/query_box_walk.cuh"

template <class Spec, int TileM, int TileN, bool Halves, bool Whole>
struct WarpQTilesKind<Spec, GridSequence, TileM, TileN, Halves, Whole> {
  using type = QueryBoxWalk<Spec, Halves, Whole>;
};
