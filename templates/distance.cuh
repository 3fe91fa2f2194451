// distance.cuh: what scores take from the distance between query and key alone, for a warp that holds rows
// and columns as mma.m16n8k16 and wgmma leave them.
//
// Of a warp's 8 * Rows rows, a lane has rows lane / 4 + 8 * r, of a tile's columns lane % 4 * 2 + 8 * n and
// the one after it. So the distances of its elements lie 8 apart, those of all lanes side by side. Each lane
// computes the terms of every 32nd distance and gets its own from the others: there are 8 * (Distances - 1) +
// 15 of them for the warp, but 2 * Distances for each lane.
#pragma once
#include "contract.cuh"

// term[n - r + Rows - 1][odd] is of row r and column 8 * n + odd of this lane. `last`: kv - q of the tile's
// first column and the warp's last row.
template <class Spec, int Distances>
LUATTN_FN void distance_terms(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                              int last, int lane, typename Spec::Real (&term)[Distances][2]) {
  constexpr int shares = ceil_div(8 * (Distances - 1) + 15, 32);
  const int number = lane % 4 * 2 - lane / 4 + 7;
  typename Spec::Real share[shares];
#pragma unroll
  for (int i = 0; i < shares; ++i)
    share[i] = Spec::distance_term(p, site, head, Position{0, 0}, Position{last + lane, 32 * i});
#pragma unroll
  for (int i = 0; i < Distances; ++i) {  // lanes ask for 8 i .. 8 i + 14, which lie in one share or in two
    const int at = i / 4, next = i / 4 + 1 < shares ? i / 4 + 1 : i / 4;
    const typename Spec::Real x = i % 4 < 3 || lane >= 24 ? share[at] : share[next];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) term[i][odd] = __shfl_sync(0xffffffffu, x, 8 * i + number + odd & 31);
  }
}
