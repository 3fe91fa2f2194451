// linear/sm90/linear_row_keys.cuh: the warpgroup of luattn_linear_rows that has keys as rows:
//
//     dA_ij = -dR_i U_j'                                       for j < i
//     dr = -e^G dR S' + (dA e^(G_i - G_j)) k                   S: before the chunk
//     dk = e^(GC - G) U dS + (dQ e^(..))' q + (dA e^(..))' r   dS: of the state behind it
//
// and of r, which is k times a number, the gradient of that is the sum of dr k, and dr times it is added to dk.
#pragma once
#include "linear/sm90/linear_row_group.cuh"

template <class Spec, class Config>
struct RowKeys : RowGroup<Spec, Config> {
  using Group = RowGroup<Spec, Config>;
  using Shared = typename Group::Shared;
  using Chain = typename Group::Chain;
  using Group::decays, Group::k_dim, Group::lane, Group::maps, Group::p, Group::shared, Group::warp;

  // Numbers of the thread's rows, loaded anew where they are used: registers are few.
  struct Factors {
    float key[2], read[2], since[2], until[2];  // k's factor; r / k; e^G; e^(GC - G)
  };
  __device__ __forceinline__ Factors load_factors(u32 numbers) const {
    Factors f;
    const float chunk = load_number(numbers + ROW_CHUNK);
    float sum[2];
    this->load_rows(f.key, numbers + ROW_KEY), this->load_rows(f.read, numbers + ROW_READ);
    this->load_rows(sum, numbers + ROW_SUM);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      f.since[r] = decays ? fast_exp2(sum[r]) : 1.f, f.until[r] = decays ? fast_exp2(chunk - sum[r]) : 1.f;
    return f;
  }
  // Pairs: z, which meets rows of k; sums over each row; ways.
  __device__ __forceinline__ void make_pairs(u32 (&z)[4][4], float (&sums)[2], u32 numbers, int done) const {
    const Factors f = load_factors(numbers);
    const float factor[2] = {f.read[0] * f.key[0], f.read[1] * f.key[1]};
    float s[32], d[32];
    this->await(ROW_K, done);
    this->template dots<k_dim>(s, ROW_K, ROW_K);
    this->await(ROW_VALUES, done), this->await(ROW_GRAD_VALUES, done);
    this->template dots<Shared::v_dim>(d, ROW_GRAD_VALUES, ROW_VALUES);
    wgmma_wait<0>();
    wgmma_arrived(s), wgmma_arrived(d);
#pragma unroll
    for (int i = 0; i < 32; ++i) d[i] = -d[i];
    this->template weigh<true>(z, sums, s, d, numbers, factor, f.read);
    fence_async();
    this->sync();
    if constexpr (decays) {
      barrier_wait(shared.ways_empty(), u32(done + 1) & 1);
      PairWays{warp, lane}.store(s, shared.ways() + WAYS_OF_PAIRS + (4 + warp) * 256);
    }
  }
  // x = r / k times the part of dr that meets the state before the chunk; the gradient of r / k, with sums over pairs.
  __device__ __forceinline__ void meet_first(float (&x)[k_dim / 2], const float (&sums)[2], u32 numbers,
                                             const Chain &chain, int chunk, int done) const {
    float to[2], of_read[2];
    this->await(ROW_STATE, done);
    this->meet(x, ROW_GRAD_VALUES, ROW_STATE);
    wgmma_wait<0>();
    wgmma_arrived(x);
    this->release(ROW_STATE);
    this->along(to, x, ROW_K);
    const Factors f = load_factors(numbers);
#pragma unroll
    for (int i = 0; i < k_dim / 2; ++i) x[i] *= -f.since[i / 2 % 2] * f.read[i / 2 % 2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      to[r] *= -f.since[r], of_read[r] = f.key[r] * (to[r] + sums[r]);
      to[r] *= f.read[r] * f.key[r];
    }
    this->store_rows(of_read, p.sums.read, chain, chunk);
    if constexpr (decays) this->store_rows(to, shared.ways() + WAYS_TO_READ);
  }
  // The part of dk that meets the gradient of the state behind the chunk, to which y is added.
  __device__ __forceinline__ void meet_last(float (&x)[k_dim / 2], const float (&y)[k_dim / 2], u32 numbers,
                                            int done) const {
    float from[2];
    this->await(ROW_GRAD_STATE, done);
    this->meet(x, ROW_VALUES, ROW_GRAD_STATE);
    wgmma_wait<0>();
    wgmma_arrived(x);
    this->release(ROW_VALUES), this->release(ROW_GRAD_STATE);
    this->along(from, x, ROW_K);
    const Factors f = load_factors(numbers);
    from[0] *= f.key[0] * f.until[0], from[1] *= f.key[1] * f.until[1];
    if constexpr (decays) {
      this->store_rows(from, shared.ways() + WAYS_FROM_KEY);
      __syncwarp();
      if (elected()) barrier_arrive(shared.ways_full());
    }
#pragma unroll
    for (int i = 0; i < k_dim / 2; ++i) x[i] = x[i] * f.until[i / 2 % 2] + y[i];
  }
  __device__ __forceinline__ void step(const Chain &chain, int chunk, int done) const {
    const u32 numbers = shared.numbers(done % 2);
    u32 z[4][4];
    float all[64];
    float(&x)[k_dim / 2] = reinterpret_cast<float(&)[k_dim / 2]>(all);
    barrier_wait(shared.numbers_full(done % 2), u32(done / 2) & 1);
    {
      float y[k_dim / 2], sums[2];
      make_pairs(z, sums, numbers, done);
      meet_first(y, sums, numbers, chain, chunk, done);
      meet_last(x, y, numbers, done);
    }
    this->join(x, z, ROW_K);
    this->join_columns(all, 1, ROW_K);
    this->await(ROW_Q, done);
    named_sync(ROWS_PAIRS_WRITTEN, 256);
    this->join_columns(all, 0, ROW_Q);
    wgmma_wait<0>();
    wgmma_arrived(x);
    named_arrive(ROWS_PAIRS_READ, 256);
    if constexpr (Spec::has_key_factor) {
      float of_factor[2];
      this->along(of_factor, x, ROW_K);
      this->store_rows(of_factor, p.sums.key_factor, chain, chunk);
    }
    float key[2];
    this->load_rows(key, numbers + ROW_KEY);
    __syncwarp();
    if (elected()) barrier_arrive(shared.numbers_empty(done % 2));
    this->release(ROW_Q), this->release(ROW_K);
    this->store(x, key, ROW_GRAD_VALUES, maps.dk, chain, chunk);
    this->release_stored(ROW_GRAD_VALUES);
  }
};
