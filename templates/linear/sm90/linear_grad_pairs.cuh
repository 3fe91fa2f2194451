// linear/sm90/linear_grad_pairs.cuh: the warpgroup of luattn_linear_grads that has a chunk's pairs, with tokens as rows:
//
//     P_ij = scale q_i k_j' e^(G_i - G_j)     dQ_ij = do_i U_j'     for j <= i
//     dA_ij = -dR_i U_j'                                            for j < i
//
// The chains take P, and then gradients of pairs, for dq and dk.
#pragma once
#include "linear/sm90/grads_pipeline.cuh"
#include "linear/sm90/linear_row_group.cuh"

template <class Spec, class Config>
struct GradPairs : RowGroup<Spec, Config, SharedGrads<Spec, Config>> {
  using Group = RowGroup<Spec, Config, SharedGrads<Spec, Config>>;
  using Shared = typename Group::Shared;
  using Elem = typename Group::Elem;
  using Chain = typename Group::Chain;
  using Fragment = MmaFragment;
  using Group::decays, Group::k_dim, Group::lane, Group::maps, Group::p, Group::row, Group::shared, Group::warp;

  // P of products of q and k, rounded.
  __device__ __forceinline__ void find_weights(u32 (&stored)[4][4], const float (&s)[32], u32 numbers,
                                               const float (&factor)[2]) const {
    const u32 columns_at = numbers + Fragment::column(lane) * 4;
    float row_sum[2];
    this->load_rows(row_sum, numbers + ROW_SUM);
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2, e = 8 * n + 2 * i, column = 16 * n + i / 2 * 8;
        const float2 sum = load_pair(columns_at + ROW_SUM + column * 4);
        float2 key = {factor[r], factor[r]};
        if constexpr (Shared::has_factor) {
          const float2 of_key = load_pair(columns_at + ROW_KEY + column * 4);
          key.x *= of_key.x, key.y *= of_key.y;
        }
        const int behind = row(r) - Fragment::column(lane) - column;  // the row less the first column
        const float x = behind >= 0 ? s[e] * key.x * this->decay_between(row_sum[r], sum.x) : 0.f,
                    y = behind >= 1 ? s[e + 1] * key.y * this->decay_between(row_sum[r], sum.y) : 0.f;
        stored[n][i] = pack<Elem>(x, y);
        asm volatile("" : "+r"(stored[n][i]));  // else NVVM moves all this behind the wait that follows
      }
  }
  __device__ __forceinline__ void stage(u32 to, const u32 (&x)[4][4]) const {
    to += box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) stmatrix_x4(to ^ u32((2 * i + lane / 16) * 16), x[i][0], x[i][1], x[i][2], x[i][3]);
  }
  __device__ __forceinline__ void tell(u32 barrier) const {
    fence_async();
    barrier_arrive(barrier);
  }
  __device__ __forceinline__ void make_weights(float (&s)[32], u32 numbers, const float (&factor)[2], int n) const {
    const int of_rows = n % 2 * 2;
    u32 weights[4][4];
    barrier_wait(shared.full(GRAD_Q + of_rows), u32(n / 2) & 1);
    this->template dots<k_dim>(s, GRAD_Q + of_rows, GRAD_K + of_rows);
    wgmma_wait<0>();
    wgmma_arrived(s);
    find_weights(weights, s, numbers, factor);
    barrier_wait(shared.empty(GRAD_P), u32(n + 1) & 1);
    stage(shared.at(GRAD_P), weights);
    tell(shared.full(GRAD_P));
  }
  __device__ __forceinline__ void store_ways(const float (&s)[32]) const {
    if constexpr (decays)
      PairWayParts{warp, lane}.store(s, shared.sums() + SUMS_OF_WAYS, shared.sums() + SUMS_OF_DIAGONAL);
  }
  // Gradients of pairs of q, and ways of these.
  __device__ __forceinline__ void make_pairs(float (&s)[32], u32 numbers, const float (&factor)[2], int n) const {
    float d[32], sums[2];
    u32 unused[4][4];
    this->await(GRAD_VALUES, n), this->await(GRAD_DOUT, n);
    this->template dots<128>(d, GRAD_DOUT, GRAD_VALUES);
    wgmma_wait<0>();
    wgmma_arrived(d);
    this->template weigh<false>(unused, sums, s, d, numbers, factor, {1.f, 1.f});
    tell(shared.full(GRAD_PAIRS));
    if constexpr (!Spec::erases || Spec::has_query_factor) await_sums(n);
    if constexpr (Spec::has_query_factor) this->store_rows(sums, shared.sums() + SUMS_OF_QUERY);
    if constexpr (!Spec::erases) store_ways(s);
  }
  // Behind what others wait for: ptxas leaves what follows behind it.
  __device__ __forceinline__ void await_sums(int n) const { barrier_wait(shared.empty(GRAD_SUMS), u32(n + 1) & 1); }
  __device__ __forceinline__ void release_rows(int n) const {
    this->release(GRAD_VALUES), this->release(GRAD_Q + n % 2 * 2);
  }
  // Those of k, whose ways are added to those of q.
  __device__ __forceinline__ void make_key_pairs(const float (&ways)[32], u32 numbers, int n) const {
    const int of_rows = n % 2 * 2;
    float s[32], d[32], key[2], read[2], sums[2];
    u32 z[4][4];
    this->template dots<k_dim>(s, GRAD_K + of_rows, GRAD_K + of_rows);
    barrier_wait(shared.full(GRAD_OF_R), u32(n) & 1);
    this->template dots<128>(d, GRAD_OF_R, GRAD_VALUES);
    this->load_rows(key, numbers + ROW_KEY), this->load_rows(read, numbers + ROW_READ);
    wgmma_wait<0>();
    wgmma_arrived(s), wgmma_arrived(d);
    release_rows(n);
#pragma unroll
    for (int i = 0; i < 32; ++i) d[i] = -d[i];
    this->template weigh<true>(z, sums, s, d, numbers, {read[0] * key[0], read[1] * key[1]}, read);
    stage(shared.at(GRAD_INVERSE), z);
    tell(shared.pairs_full());
    await_sums(n);
    this->store_rows(sums, shared.sums() + SUMS_OF_READ);
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] += ways[i];
    store_ways(s);
  }
  __device__ __forceinline__ void run(const Chain &chain) const {
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      const u32 numbers = shared.numbers(n % 2);
      float s[32], factor[2];
      barrier_wait(shared.full(GRAD_NUMBERS + n % 2), u32(n / 2) & 1);
      this->load_rows(factor, numbers + ROW_QUERY);
      make_weights(s, numbers, factor, n);
      make_pairs(s, numbers, factor, n);
      if constexpr (Spec::erases)
        make_key_pairs(s, numbers, n);
      else
        release_rows(n);
      __syncwarp();
      if (elected()) barrier_arrive(shared.full(GRAD_SUMS)), barrier_arrive(shared.empty(GRAD_NUMBERS + n % 2));
    }
  }
};
