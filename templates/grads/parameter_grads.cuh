// grads/parameter_grads.cuh: sums over a warp's part of dS, for parameter gradients (contract/grad.cuh).
//
// A warp has dS^T, 16 keys by some octets of queries, as an MmaFragment: lane 4g + t has keys g and g + 8, and
// queries 2t and 2t + 1 of each octet. Rounded and packed, dS^T is an A operand of mma.m16n8k16. Every sum has a
// fixed order.
#pragma once
#include "arch/mma.cuh"
#include "score/fragment.cuh"

// Sums dS of 16 keys by Octets * 8 queries along its diagonals.
//
// The 8 x 8 blocks form diagonals of blocks. A lane first sums its elements along each diagonal of blocks.
// Diagonals n and n + 1 share the 8 distances from 8n on; `part` adds the lane's column of one diagonal to
// that of the other. Four such rows of distances are then summed over all lanes at a time, so that lane t of
// a quad ends with row t: one number per lane for 32 distances.
template <int Octets>
struct DistanceSums {
  using Fragment = MmaFragment;
  static constexpr int count = (Octets + 5) / 4;  // numbers per lane, for distances from -16 on
  float x[count];

  // The distance of this lane's number i, between the first query and the first key.
  LUATTN_FN int distance(int i, int lane) { return i * 32 - 16 + distance_in_octets(lane); }
  // That of its number among those of four rows of distances.
  LUATTN_FN int distance_in_octets(int lane) {
    return Fragment::lane_in_row(lane) * 8 + ((Fragment::column(lane) - Fragment::row(lane)) & 7);
  }

  LUATTN_FN float pick(bool first, float a, float b) { return first ? a : b; }
  // Sums column 2t + i along block diagonal n.
  template <class Get>
  LUATTN_FN float on_diagonal(const Get &ds, int n, int i) {
    return (n >= 0 && n < Octets ? ds(n, 0, i) : 0.f) + (n >= -1 && n < Octets - 1 ? ds(n + 1, 1, i) : 0.f);
  }
  template <class Get>
  LUATTN_FN float part(const Get &ds, int n, int lane) {
    const int g = Fragment::row(lane), t = Fragment::lane_in_row(lane);
    const float left = pick(2 * t >= g, on_diagonal(ds, n, 0), on_diagonal(ds, n + 1, 0));
    const float right = pick(2 * t + 1 >= g, on_diagonal(ds, n, 1), on_diagonal(ds, n + 1, 1));
    return left + __shfl_sync(0xffffffffu, right, (lane + 4) & 31);
  }
  // Sums four rows over the lanes; p0 .. p3 are the lane's parts of them.
  LUATTN_FN float gather(float p0, float p1, float p2, float p3, int lane) {
    gather_halves(p0, p1, p2, p3, lane);
    return gather_pairs(p0, p1, lane);
  }
  // Its two steps.
  LUATTN_FN void gather_halves(float &p0, float &p1, float p2, float p3, int lane) {
    const bool low = Fragment::lane_in_row(lane) < 2;
    p0 = pick(low, p0, p2) + __shfl_xor_sync(0xffffffffu, pick(low, p2, p0), 18);
    p1 = pick(low, p1, p3) + __shfl_xor_sync(0xffffffffu, pick(low, p3, p1), 18);
  }
  LUATTN_FN float gather_pairs(float p0, float p1, int lane) {
    const bool even = lane % 2 == 0;
    return pick(even, p0, p1) + __shfl_sync(0xffffffffu, pick(even, p1, p0), (even ? lane + 9 : lane - 9) & 31);
  }
  // ds(octet, half, i) returns dS of key g + 8 * half and query 2t + i of the octet.
  template <class Get>
  __device__ __forceinline__ DistanceSums(const Get &ds, int lane) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int n = 4 * i - 2;
      const bool whole = n + 2 < Octets;  // the last rows may be past all queries
      x[i] = gather(part(ds, n, lane), part(ds, n + 1, lane), whole ? part(ds, n + 2, lane) : 0.f,
                    whole ? part(ds, n + 3, lane) : 0.f, lane);
    }
  }
  __device__ __forceinline__ float get(int i) const {
    float y = x[0];
#pragma unroll
    for (int k = 1; k < count; ++k) y = i == k ? x[k] : y;
    return y;
  }
};

// Computes two sums for each key of a warp's dS (16 keys by TileM queries, rounded for the products that
// follow): over the queries and, with WithQueries, weighted by the query's index in the tile. Both are matrix
// products, with ones and with these indices, which are exact in the half types. Lane 4g holds the sums of
// keys g and g + 8; other lanes hold zeros.
template <class Elem, int TileM, bool WithQueries>
struct QuerySums {
  float sum[2], by_query[2];

  LUATTN_FN u32 add_pairs(u32 a, u32 b) {
    u32 c;
    if constexpr (same_type<Elem, half_t>::value)
      asm("add.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    else
      asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  }
  __device__ __forceinline__ QuerySums(const u32 (&ds)[TileM / 16][4], int lane) {
    const int column = MmaFragment::row(lane);  // of B, which is transposed
    const float first = float(MmaFragment::column(lane));
    const u32 ones = pack<Elem>(1.f, 1.f), step = column == 1 ? pack<Elem>(16.f, 16.f) : 0;
    u32 b0 = column == 0 ? ones : 0, b1 = b0;
    if (WithQueries && column == 1) b0 = pack<Elem>(first, first + 1.f), b1 = pack<Elem>(first + 8.f, first + 9.f);
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < TileM / 16; ++i) {
      mma_16x8x16<Elem>(c, ds[i], b0, b1);
      if constexpr (WithQueries) b0 = add_pairs(b0, step), b1 = add_pairs(b1, step);
    }
    sum[0] = c[0], by_query[0] = c[1], sum[1] = c[2], by_query[1] = c[3];
  }
};
