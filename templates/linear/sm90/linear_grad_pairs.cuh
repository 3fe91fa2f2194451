// linear/sm90/linear_grad_pairs.cuh: the warpgroup of luattn_linear_grads that has a chunk's pairs, and dq, with tokens as rows:
//
//     P_ij = scale q_i k_j' e^(G_i - G_j)     dQ_ij = do_i U_j'     for j <= i
//     dA_ij = -dR_i U_j'                                            for j < i
//     dq = scale [e^G do S' + (dQ e^(G_i - G_j)) k]                 S: before the chunk
//
// The chains take P, and then gradients of pairs, for dk.
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

  // P of products of q and k.
  __device__ __forceinline__ void store_weights(const float (&s)[32], u32 numbers, const float (&factor)[2]) const {
    const u32 columns_at = numbers + Fragment::column(lane) * 4,
              to = shared.at(GRAD_P) + box_place(16 * warp + lane % 16, 0);
    float row_sum[2];
    this->load_rows(row_sum, numbers + ROW_SUM);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      u32 stored[4];
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
        stored[i] = pack<Elem>(x, y);
      }
      stmatrix_x4(to ^ u32((2 * n + lane / 16) * 16), stored[0], stored[1], stored[2], stored[3]);
    }
  }
  __device__ __forceinline__ void make_weights(float (&s)[32], u32 numbers, const float (&factor)[2], int n) const {
    const int stage = n % 2 * 2;
    barrier_wait(shared.full(GRAD_Q + stage), u32(n / 2) & 1);
    this->template dots<k_dim>(s, GRAD_Q + stage, GRAD_K + stage);
    wgmma_wait<0>();
    wgmma_arrived(s);
    barrier_wait(shared.empty(GRAD_P), u32(n + 1) & 1);
    store_weights(s, numbers, factor);
    fence_async();
    barrier_arrive(shared.full(GRAD_P));
  }
  __device__ __forceinline__ void tell() const {
    fence_async();
    barrier_arrive(shared.pairs_full());
  }
  __device__ __forceinline__ void store_ways(const float (&s)[32]) const {
    if constexpr (decays) PairWays{warp, lane}.store(s, shared.sums() + SUMS_OF_WAYS + warp * 256);
  }
  // Gradients of pairs of q: z, which meets rows of k; sums over each row; ways.
  __device__ __forceinline__ void make_pairs(u32 (&z)[4][4], float (&sums)[2], float (&s)[32], u32 numbers,
                                             const float (&factor)[2], int n) const {
    float d[32];
    this->await(GRAD_VALUES, n), this->await(GRAD_DOUT, n);
    this->template dots<128>(d, GRAD_DOUT, GRAD_VALUES);
    wgmma_wait<0>();
    wgmma_arrived(d);
    this->template weigh<false>(z, sums, s, d, numbers, factor, {1.f, 1.f});
    barrier_wait(shared.empty(GRAD_SUMS), u32(n + 1) & 1);
    if constexpr (!Spec::erases) tell();
    if constexpr (!Spec::erases) store_ways(s);
  }
  __device__ __forceinline__ void make_dq(const Chain &chain, u32 (&z)[4][4], const float (&sums)[2], u32 numbers,
                                          const float (&factor)[2], int n) const {
    const int chunk = chain.at(n), stage = n % 2 * 2;
    float x[k_dim / 2], since[2], inter[2];
    this->await(GRAD_STATE, n);
    this->meet(x, GRAD_DOUT, GRAD_STATE);
    this->load_rows(since, numbers + ROW_SUM);
    wgmma_wait<0>();
    wgmma_arrived(x);
    this->release(GRAD_STATE);
    this->along(inter, x, GRAD_Q + stage);
#pragma unroll
    for (int r = 0; r < 2; ++r) since[r] = decays ? fast_exp2(since[r]) : 1.f, inter[r] *= since[r];
#pragma unroll
    for (int i = 0; i < k_dim / 2; ++i) x[i] *= since[i / 2 % 2];
    this->join(x, z, GRAD_K + stage);
    const float ways[2] = {inter[0] * factor[0], inter[1] * factor[1]},
                of_factor[2] = {(sums[0] + inter[0]) * p.scale, (sums[1] + inter[1]) * p.scale};
    if constexpr (decays) this->store_rows(ways, shared.sums() + SUMS_TO_QUERY);
    if constexpr (Spec::has_query_factor) this->store_rows(of_factor, p.sums.query_factor, chain, chunk);
    wgmma_wait<0>();
    wgmma_arrived(x);
    barrier_wait(shared.dout_read(), u32(n) & 1);
    this->store(x, factor, GRAD_DOUT, maps.dq, chain, chunk);
    this->release_stored(GRAD_DOUT);
  }
  __device__ __forceinline__ void release_rows(int n) const {
    this->release(GRAD_VALUES), this->release(GRAD_Q + n % 2 * 2);
  }
  // Those of k, whose ways are added to those of q.
  __device__ __forceinline__ void make_key_pairs(const float (&ways)[32], u32 numbers, int n) const {
    const int stage = n % 2 * 2;
    float s[32], d[32], key[2], read[2], sums[2];
    u32 z[4][4];
    this->template dots<k_dim>(s, GRAD_K + stage, GRAD_K + stage);
    barrier_wait(shared.full(GRAD_OF_R), u32(n) & 1);
    this->template dots<128>(d, GRAD_OF_R, GRAD_VALUES);
    this->load_rows(key, numbers + ROW_KEY), this->load_rows(read, numbers + ROW_READ);
    wgmma_wait<0>();
    wgmma_arrived(s), wgmma_arrived(d);
    release_rows(n);
#pragma unroll
    for (int i = 0; i < 32; ++i) d[i] = -d[i];
    this->template weigh<true>(z, sums, s, d, numbers, {read[0] * key[0], read[1] * key[1]}, read);
    const u32 to = shared.at(GRAD_INVERSE) + box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) stmatrix_x4(to ^ u32((2 * i + lane / 16) * 16), z[i][0], z[i][1], z[i][2], z[i][3]);
    tell();
    this->store_rows(sums, shared.sums() + SUMS_OF_READ);
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] += ways[i];
    store_ways(s);
  }
  __device__ __forceinline__ void run(const Chain &chain) const {
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      const u32 numbers = shared.numbers(n % 2);
      float s[32], factor[2], sums[2];
      u32 z[4][4];
      barrier_wait(shared.full(GRAD_NUMBERS + n % 2), u32(n / 2) & 1);
      this->load_rows(factor, numbers + ROW_QUERY);
      make_weights(s, numbers, factor, n);
      make_pairs(z, sums, s, numbers, factor, n);
      make_dq(chain, z, sums, numbers, factor, n);
      if constexpr (Spec::erases)
        make_key_pairs(s, numbers, n);
      else
        release_rows(n);
      __syncwarp();
      if (elected()) barrier_arrive(shared.full(GRAD_SUMS)), barrier_arrive(shared.empty(GRAD_NUMBERS + n % 2));
    }
    if (warp == 0 && elected()) bulk_wait_read();
  }
};
