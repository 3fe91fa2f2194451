// linear/sm90/linear_row_group.cuh: what both warpgroups of luattn_linear_rows do. A warpgroup has 64 tokens as rows of its
// accumulators.
#pragma once
#include "arch/stmatrix.cuh"
#include "arch/wgmma.cuh"
#include "arch/wgmma_transposed.cuh"
#include "linear/sm90/linear_ways.cuh"
#include "ops/math.cuh"
#include "source/cp_async_tile.cuh"

enum { ROWS_PAIRS_WRITTEN = 3, ROWS_PAIRS_READ = 4 };  // named barriers of both warpgroups; 1 and 2 are theirs alone

template <class Spec, class Config, class SharedOf = SharedRows<Spec, Config>>
struct RowGroup {
  using Shared = SharedOf;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  static constexpr int k_dim = Shared::k_dim, v_dim = Shared::v_dim, columns = k_dim / 2;
  // by_key: whether columns of pairs have factors.
  static constexpr bool decays = Shared::has_gates, by_key = Spec::has_key_factor || (Spec::has_write && !Spec::erases);

  const LuattnLinearParams &p;
  const LuattnLinearRowMaps &maps;
  const Shared shared;
  const int barrier, warp, lane;  // warp: of the warpgroup

  // ---- load ----

  __device__ __forceinline__ int row(int r) const { return 16 * warp + Fragment::row(lane, r); }
  __device__ __forceinline__ void await(int tensor, int done) const {
    barrier_wait(shared.full(tensor), u32(done) & 1);
  }
  __device__ __forceinline__ void release(int tensor) const {
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(tensor));
  }
  __device__ __forceinline__ void sync() const { named_sync(barrier, 128); }
  // Numbers of the thread's two rows.
  __device__ __forceinline__ void load_rows(float (&x)[2], u32 numbers) const {
    x[0] = load_number(numbers + row(0) * 4), x[1] = load_number(numbers + row(1) * 4);
  }
  // The sum over channels of each row of x times that of a tensor.
  __device__ __forceinline__ void along(float (&sum)[2], const float (&x)[columns], int tensor) const {
    const u32 from = shared.at(tensor) + Fragment::column(lane) * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 at = from + box_place(row(r), 0);
      float all = 0;
#pragma unroll
      for (int j = 0; j < k_dim / 4; j += 2) {
        const u32 two = load_shared((at ^ u32(j / 2 % 8 * 16)) + j / 16 * Shared::box);
        const int e = Fragment::element(r, j);
        all += x[e] * to_real(Elem{u16(two)}) + x[e + 1] * to_real(Elem{u16(two >> 16)});
      }
      sum[r] = row_total(all);
    }
  }

  // ---- compute ----

  // x = a b', over N channels; committed.
  template <int N>
  __device__ __forceinline__ void dots(float (&x)[32], int a, int b) const {
    const u64 rows = wgmma_operand(shared.at(a), 0), others = wgmma_operand(shared.at(b), 0);
    wgmma_fence();
    if constexpr (N == 128)
      Wgmma<Elem, 64>::first128(x, rows, others);
    else
      Wgmma<Elem, 64>::first64(x, rows, others);
    wgmma_commit();
  }
  // x = rows times a state, over value channels; committed.
  __device__ __forceinline__ void meet(float (&x)[columns], int rows, int state) const {
#pragma unroll
    for (int i = 0; i < columns; ++i) x[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < Shared::boxes_v; ++i)
      Wgmma<Elem, k_dim>::turned64(x, wgmma_operand(shared.at(rows) + i * Shared::box, 0),
                                   wgmma_operand(shared.at(state) + i * Shared::boxes_k * Shared::box, Shared::box), 1);
    wgmma_commit();
  }
  // x += z k; committed.
  __device__ __forceinline__ void join(float (&x)[columns], u32 (&z)[4][4], int tensor) const {
    wgmma_fence();
    Wgmma<Elem, k_dim>::sums64(x, z[0], z[1], z[2], z[3], wgmma_operand(shared.at(tensor), Shared::box));
    wgmma_commit();
  }
  // x += pairs' rows; committed.
  __device__ __forceinline__ void join_columns(float (&x)[64], int pairs, int tensor) const {
    wgmma_fence();
    WgmmaOuter<Elem, k_dim>::sums64(x, wgmma_operand(shared.pairs(pairs), 0),
                                    wgmma_operand(shared.at(tensor), Shared::box));
    wgmma_commit();
  }
  __device__ __forceinline__ static float decay_between(float later, float sooner) {
    return decays ? fast_exp2(later - sooner) : 1.f;
  }
  // Of pairs s = rows k', with gradients d, e = d e^(G_i - G_j) where j <= i, or with Below j < i: z = e times k's factor
  // and the row's `of_z` meets rows of k; e times the row's factor meets rows of q or k, for dk, and is stored. s becomes
  // e s times both factors, the way of the pair, and sums are that without the row's. Pairs are selected, never multiplied
  // by 0.
  template <bool Below>
  __device__ __forceinline__ void weigh(u32 (&z)[4][4], float (&sums)[2], float (&s)[32], const float (&d)[32],
                                        u32 numbers, const float (&factor)[2], const float (&of_z)[2]) const {
    const u32 columns_at = numbers + Fragment::column(lane) * 4,
              to = shared.pairs(Below) + box_place(16 * warp + lane % 16, 0);
    float row_sum[2];
    load_rows(row_sum, numbers + ROW_SUM);
    sums[0] = sums[1] = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      u32 stored[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2, e = 8 * n + 2 * i, column = 16 * n + i / 2 * 8;
        const float2 sum = load_pair(columns_at + ROW_SUM + column * 4);
        float2 key = {1, 1};
        if constexpr (by_key) key = load_pair(columns_at + ROW_KEY + column * 4);
        const int behind = row(r) - Fragment::column(lane) - column;  // the row less the first column
        const float x = behind >= Below ? d[e] * decay_between(row_sum[r], sum.x) : 0.f,
                    y = behind >= Below + 1 ? d[e + 1] * decay_between(row_sum[r], sum.y) : 0.f;
        const float zx = x * key.x, zy = y * key.y, wx = behind >= Below ? zx * s[e] : 0.f,
                    wy = behind >= Below + 1 ? zy * s[e + 1] : 0.f;
        sums[r] += wx + wy;
        s[e] = wx * factor[r], s[e + 1] = wy * factor[r];
        z[n][i] = pack<Elem>(zx * of_z[r], zy * of_z[r]);
        stored[i] = pack<Elem>(x * factor[r], y * factor[r]);
      }
      stmatrix_x4(to ^ u32((2 * n + lane / 16) * 16), stored[0], stored[1], stored[2], stored[3]);
    }
    sums[0] = row_total(sums[0]), sums[1] = row_total(sums[1]);
  }

  // ---- finish ----

  // Stores a number of each row to memory, or to sums of ways.
  __device__ __forceinline__ void store_rows(const float (&x)[2], u32 to) const {
    if (Fragment::first_in_row(lane)) store_number(to + row(0) * 4, x[0]), store_number(to + row(1) * 4, x[1]);
  }
  __device__ __forceinline__ void store_rows(const float (&x)[2], float *to, const Chain &chain, int chunk) const {
    if (to == nullptr || !Fragment::first_in_row(lane)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = chunk * LUATTN_CHUNK + row(r);
      if (chain.has(t)) to[chain.token(p, t)] = x[r];
    }
  }
  // Stages x, times a factor of each row, in the place of a tensor that all have read, and stores it. One thread waits until
  // TMA has read it, and releases the place.
  __device__ __forceinline__ void store(const float (&x)[columns], const float (&factor)[2], int place,
                                        const LuattnTensorMap &map, const Chain &chain, int chunk) const {
    const u32 to = shared.at(place) + box_place(16 * warp + lane % 16, 0);
    sync();
#pragma unroll
    for (int n = 0; n < k_dim / 16; ++n) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] = pack<Elem>(x[8 * n + 2 * i] * factor[i % 2], x[8 * n + 2 * i + 1] * factor[i % 2]);
      stmatrix_x4((to ^ u32((2 * n % 8 + lane / 16) * 16)) + n / 4 * Shared::box, a[0], a[1], a[2], a[3]);
    }
    store_place(place, Shared::boxes_k, map, chain, chunk);
  }
  __device__ __forceinline__ void store_place(int place, int boxes, const LuattnTensorMap &map, const Chain &chain,
                                              int chunk) const {
    fence_async();
    sync();
    if (warp == 0 && elected()) {
      for (int i = 0; i < boxes; ++i)
        tensor_store(shared.at(place) + i * Shared::box, map, i * 64, chain.box(chunk), chain.site.hv);
      bulk_commit();
    }
  }
  __device__ __forceinline__ void release_stored(int place) const {
    if (warp == 0 && elected()) {
      bulk_wait_read();
      barrier_arrive(shared.empty(place));
    }
  }
};
