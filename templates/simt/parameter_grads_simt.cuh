// simt/parameter_grads_simt.cuh: parameter gradients from sums of dS (contract/grad.cuh), in the simt family.
//
// The dS tile is in shared memory for dk's product. One thread sums a diagonal or a column of it, and 16
// lanes sum a row; neighbouring threads of a warp read neighbouring words. So a tile adds tile_m + tile_n - 1
// numbers to a table by distance, where grad would add tile_m * tile_n.
#pragma once
#include "contract/needs.cuh"
#include "simt/tile_products.cuh"
#include "work/sequence.cuh"

template <class Spec, class Config>
struct SumsSimt {
  using T = Simt<Spec, Config>;
  using Real = typename Spec::Real;
  using Acc = typename Spec::Acc;
  static constexpr int M = T::tile_m, N = T::tile_n;
  using Wanted = SharedSums<Spec, Config>;
  static constexpr bool any = Wanted::any, cols = Wanted::cols, rows = Wanted::rows, distances = Wanted::distances;

  // If there are more threads than columns, several share one, each with some of its rows.
  static constexpr int sharers = T::threads > N ? T::threads / N : 1, share = ceil_div(M, sharers);
  static constexpr int columns = ceil_div(N, T::threads);

  // The block's position.
  struct At {
    const LuattnParams &p;
    const SequenceOf<Config> &site;
    const typename Spec::Head &head;
    Acc &acc;
    int q0, kv0;
    const Real *ds;
  };

  Real col[cols ? columns : 1];

  __device__ __forceinline__ void enter_head() {
    if constexpr (cols)
#pragma unroll
      for (int i = 0; i < columns; ++i) col[i] = Real(0);
  }
  __device__ __forceinline__ void leave_head(const At &at) const {
    if constexpr (cols)
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const int n = int(threadIdx.x) % N + i * T::threads, kv = at.kv0 + n;
        if (n < N && at.site.reread().has_key(at.p, kv)) Spec::add_col(at.p, at.site, at.head, kv, col[i], at.acc);
      }
  }

  __device__ __forceinline__ void add_distances(const At &at) const {
    constexpr int all = ceil_div(M + N - 1, 32) * 32;  // whole warps call add_distance
#pragma unroll 1
    for (int i = int(threadIdx.x); i < all; i += T::threads) {
      const int apart = i - (N - 1);  // q - kv, from q0 - kv0 on
      Real sum = 0;
#pragma unroll 4
      for (int m = 0; m < M; ++m)
        if (u32(m - apart) < u32(N)) sum += at.ds[m * T::weight_stride + m - apart];
      Spec::add_distance(at.p, at.site, at.head, at.q0 + apart, at.kv0, sum, at.acc);
    }
  }
  __device__ __forceinline__ void add_columns(const At &at) {
    const int first = int(threadIdx.x) / N * share;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      const int n = int(threadIdx.x) % N + i * T::threads;
#pragma unroll 4
      for (int m = first; m < first + share; ++m)
        if (m < M && n < N) col[i] += at.ds[m * T::weight_stride + n];
    }
  }
  __device__ __forceinline__ void add_rows(const T &t, const At &at) const {
#pragma unroll 1
    for (int r = 0; r < T::rows; ++r) {
      const int m = t.row_at(r), q = at.q0 + m;
      Real sum = 0;
#pragma unroll
      for (int c = 0; c < T::cols; ++c) sum += at.ds[m * T::weight_stride + t.col_at(c)];
#pragma unroll
      for (int i = T::lanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
      if (t.lane == 0 && at.site.reread().has_query(at.p, q) && sum != Real(0))
        Spec::add_row(at.p, at.site, at.head, q, sum, at.acc);
    }
  }

  // Adds a tile, once all of its dS is in shared memory.
  __device__ __forceinline__ void add(const T &t, const At &at) {
    if constexpr (distances) add_distances(at);
    if constexpr (cols) add_columns(at);
    if constexpr (rows) add_rows(t, at);
  }
};
