// score/distance_terms.cuh: computes score terms that depend only on the distance between query and key, for
// a warp with an MmaFragment.
//
// A warp has 8 * Rows rows, and a lane every eighth of them, and two adjacent columns of every eight. So the
// distances of a lane's elements are 8 apart, and those of all lanes are adjacent. Each lane computes the terms of every 32nd distance and gets the others from other lanes: the
// warp has 8 * (count - 1) + 15 terms, whereas each lane needs 2 * count.
#pragma once
#include "arch/mma.cuh"
#include "contract/contract.cuh"
#include "score/fragment.cuh"

// Rows are queries and columns keys. With Turned, rows are keys and columns queries. Empty if the spec has no
// distance term.
template <class Spec, class Fragment, int Rows, int Octets, bool Turned = false>
struct DistanceTerms {
  static_assert(same_type<Fragment, MmaFragment>::value, "lanes share terms whose distances are octets");
  using Real = typename Spec::Real;
  static constexpr bool any = Spec::has_distance_term;
  static constexpr int count = any ? Octets + Rows - 1 : 1, shares = ceil_div(8 * (count - 1) + 15, 32);
  Real term[count][2];

  // `last` is the position of the tile's first column minus that of the warp's last row. Called by all lanes
  // of a warp.
  __device__ __forceinline__ DistanceTerms(const LuattnParams &p, const Site &site, const typename Spec::Head &head,
                                           int last, int lane) {
    if constexpr (any) {
      const int number = Fragment::column(lane) - Fragment::row(lane) + 7;
      Real share[shares];
#pragma unroll
      for (int i = 0; i < shares; ++i) {
        const Position row{0, 0}, column{last + lane, 32 * i};
        share[i] = Spec::distance_term(p, site, head, Turned ? column : row, Turned ? row : column);
      }
#pragma unroll
      for (int i = 0; i < count; ++i) {  // lanes ask for 8 i .. 8 i + 14, which lie in one share or in two
        const int at = i / 4, next = i / 4 + 1 < shares ? i / 4 + 1 : i / 4;
        const Real x = i % 4 < 3 ? share[at] : select(lane >= 24, share[at], share[next]);
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) term[i][odd] = __shfl_sync(0xffffffffu, x, 8 * i + number + odd & 31);
      }
    }
  }

  // The term of row r and column 8 * octet + odd of this lane.
  __device__ __forceinline__ Real get(int r, int octet, int odd) const {
    return term[any ? octet - r + Rows - 1 : 0][odd];
  }
};
