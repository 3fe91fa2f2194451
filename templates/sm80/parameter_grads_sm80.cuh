// sm80/parameter_grads_sm80.cuh: parameter gradients from sums of dS (contract/grad.cuh), in the sm80
// backward kernel.
//
// The sums are computed with dQ, from the rounded dS tile in shared memory: there a warp has spare registers,
// and the whole tile is available. Groups of 16 keys, or parts of them, are distributed over the warps; for
// row sums, a warp has 16 queries. Gradients that take a multiply-add for each element, and those of pair
// biases, are added by grad. Unlike the sm90 kernels, this code does not test whether all distances of a tile
// add to one gradient. The test would take longer to compile than all the sums, and a warp combines its
// additions to one gradient anyway (add_distance).
#pragma once
#include "contract/needs.cuh"
#include "grads/parameter_grads.cuh"
#include "score/fragment.cuh"
#include "work/sequence.cuh"

template <class Spec, class Config>
struct SumsSm80 {
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Acc = typename Spec::Acc;
  static constexpr int M = Config::tile_m, N = Config::tile_n, warps = Config::threads / 32;
  using Wanted = SharedSums<Spec, Config>;
  static constexpr bool any = Wanted::any, cols = Wanted::cols, rows = Wanted::rows, distances = Wanted::distances;

  // Groups of 16 keys; if there are more warps than groups, parts of a group's queries.
  static constexpr int spare = warps * 16 / N, parts = spare < 1 ? 1 : spare < M / 16 ? spare : M / 16;
  static constexpr int span = M / parts;
  static constexpr int side_by_side = warps / parts, strips = ceil_div(N / 16, side_by_side);
  static_assert(M % (parts * 16) == 0 && warps % parts == 0);
  using Distances = DistanceSums<span / 8>;

  // The warp's position. `ds` is the address of dS^T, the tile of keys by queries in shared memory.
  struct At {
    const LuattnParams &p;
    const SequenceOf<Config> &site;
    const typename Spec::Head &head;
    Acc &acc;
    int q0, kv0, warp, lane;
    u32 ds;

    __device__ __forceinline__ int part() const { return warp % parts * span; }
    __device__ __forceinline__ int strip(int i) const { return (warp / parts + i * side_by_side) * 16; }
  };

  float col[cols ? strips : 1][2];  // sums of keys g and g + 8 of each group, in lanes 4g

  __device__ __forceinline__ void enter_head() {
    if constexpr (cols)
#pragma unroll
      for (int i = 0; i < strips; ++i) col[i][0] = col[i][1] = 0.f;
  }
  __device__ __forceinline__ void leave_head(const At &at) const {
    if constexpr (cols)
#pragma unroll
      for (int i = 0; i < strips; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int n = at.strip(i) + Fragment::row(at.lane, half), kv = at.kv0 + n;
          if (Fragment::first_in_row(at.lane) && n < N && at.site.reread().has_key(at.p, kv))
            Spec::add_col(at.p, at.site, at.head, kv, col[i][half], at.acc);
        }
  }

  // ---- groups of keys ----

  // Returns dS of key g + 8 * half and query 8 * octet + 2t + i.
  LUATTN_FN float element(const u32 (&ds)[span / 16][4], int octet, int half, int i) {
    return to_real(Elem{(unsigned short)(ds[octet / 2][octet % 2 * 2 + half] >> i * 16)});
  }
  __device__ __forceinline__ void add_distances(const At &at, int strip, const u32 (&ds)[span / 16][4]) {
    const Distances sums([&](int octet, int half, int i) { return element(ds, octet, half, i); }, at.lane);
#pragma unroll 1
    for (int i = 0; i < Distances::count; ++i)
      Spec::add_distance(at.p, at.site, at.head, at.q0 + at.part() + Distances::distance(i, at.lane), at.kv0 + strip,
                         sums.get(i), at.acc);
  }
  __device__ __forceinline__ void add_keys(int lane, float (&sum)[2], const u32 (&ds)[span / 16][4]) const {
    const QuerySums<Elem, span, false> sums(ds, lane);
    sum[0] += sums.sum[0];
    sum[1] += sums.sum[1];
  }
  __device__ __forceinline__ void add_strips(const At &at) {
    const LanePointer<M, false> a_lane{u32(at.lane)};
#pragma unroll(cols ? strips : 1)  // col lies in registers
    for (int i = 0; i < strips; ++i) {
      if (N % (side_by_side * 16) != 0 && at.strip(i) >= N) break;
      u32 ds[span / 16][4];
#pragma unroll
      for (int k = 0; k < span / 16; ++k)
        ldmatrix_x4(ds[k], a_lane.at(at.ds, u32(at.strip(i)), u32(at.part() + k * 16)));
      if constexpr (distances) add_distances(at, at.strip(i), ds);
      if constexpr (cols) add_keys(at.lane, col[i], ds);
    }
  }

  // ---- rows ----

  // Computes row sums by products with ones: every column of C is the sum, so each lane that shares a row takes another
  // of its rows.
  __device__ __forceinline__ void add_rows(const At &at) const {
    const LanePointer<M, true> a_lane{u32(at.lane)};
    const u32 ones = pack<Elem>(1.f, 1.f);
#pragma unroll 1
    for (int m = at.warp * 16; m < M; m += warps * 16) {
      float c[4] = {};
#pragma unroll
      for (int n = 0; n < N; n += 16) {
        u32 a[4];
        ldmatrix_x4_turned(a, a_lane.at(at.ds, u32(n), u32(m)));
        mma_16x8x16<Elem>(c, a, ones, ones);
      }
      const int mine = Fragment::lane_in_row(at.lane),
                q = at.q0 + m + mine * Fragment::row_of(1) + Fragment::row(at.lane);
      const float sum = Fragment::first_in_row(at.lane) ? c[Fragment::element(0, 0)] : c[Fragment::element(1, 0)];
      if (Fragment::lane_in_row(at.lane) < 2 && at.site.reread().has_query(at.p, q) && sum != 0.f)
        Spec::add_row(at.p, at.site, at.head, q, sum, at.acc);
    }
  }

  // Adds a tile, once all of its dS is in shared memory.
  __device__ __forceinline__ void add(const At &at) {
    if constexpr (cols || distances) add_strips(at);
    if constexpr (rows) add_rows(at);
  }
};
