// linear/sm90/linear_row_queries.cuh: the warpgroup of luattn_linear_rows that has queries as rows:
//
//     dQ_ij = do_i U_j'                                 for j <= i
//     dq = scale [e^G do S' + (dQ e^(G_i - G_j)) k]     S: before the chunk
//     dv = w dR                                         with dw, the sum of dR v
#pragma once
#include "linear/sm90/linear_row_group.cuh"

template <class Spec, class Config>
struct RowQueries : RowGroup<Spec, Config> {
  using Group = RowGroup<Spec, Config>;
  using Shared = typename Group::Shared;
  using Elem = typename Group::Elem;
  using Chain = typename Group::Chain;
  using Group::decays, Group::k_dim, Group::lane, Group::maps, Group::p, Group::shared, Group::warp;

  // dv in the place of v, and dw: half of a row's channels for each thread.
  __device__ __forceinline__ void make_dv(const Chain &chain, int chunk, u32 numbers) const {
    const int token = 16 * warp + lane / 2, half = lane % 2, t = chunk * LUATTN_CHUNK + token;
    const float write = load_number(numbers + ROW_WRITE + token * 4);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Shared::boxes_v * 4; ++i) {
      const u32 at = i / 4 * Shared::box + box_place(token, (i % 4 + 4 * half) * 8);
      const uint4 r = load_shared_16(shared.at(ROW_GRAD_VALUES) + at), v = load_shared_16(shared.at(ROW_V) + at);
      const u32 from[4] = {r.x, r.y, r.z, r.w}, of[4] = {v.x, v.y, v.z, v.w};
      u32 to[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float a = half_of<Elem>(from[n], 0), b = half_of<Elem>(from[n], 1);
        sum += a * half_of<Elem>(of[n], 0) + b * half_of<Elem>(of[n], 1);
        to[n] = pack<Elem>(a * write, b * write);
      }
      store_shared_16(shared.at(ROW_V) + at, __uint_as_float(to[0]), __uint_as_float(to[1]), __uint_as_float(to[2]),
                      __uint_as_float(to[3]));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (p.sums.write != nullptr && half == 0 && chain.has(t)) p.sums.write[chain.token(p, t)] = sum;
  }
  // The way from state to state: the sum over all of e^GC S dS, of the warp.
  __device__ __forceinline__ void make_way_across(u32 numbers) const {
    const u32 at = (32 * warp + lane) * 16;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < Shared::layout.state; i += 128 * 16) {
      const uint4 s = load_shared_16(shared.at(ROW_STATE) + at + i),
                  d = load_shared_16(shared.at(ROW_GRAD_STATE) + at + i);
      const u32 a[4] = {s.x, s.y, s.z, s.w}, b[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int n = 0; n < 4; ++n)
        sum += half_of<Elem>(a[n], 0) * half_of<Elem>(b[n], 0) + half_of<Elem>(a[n], 1) * half_of<Elem>(b[n], 1);
    }
    sum *= fast_exp2(load_number(numbers + ROW_CHUNK));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) store_number(shared.ways() + WAYS_ACROSS + 4 * warp, sum);
  }
  // Pairs: z, which meets rows of k; sums over each row; ways.
  __device__ __forceinline__ void make_pairs(u32 (&z)[4][4], float (&sums)[2], u32 numbers, const float (&factor)[2],
                                             int done) const {
    float s[32], d[32];
    this->await(ROW_K, done), this->await(ROW_Q, done);
    this->template dots<k_dim>(s, ROW_Q, ROW_K);
    this->await(ROW_VALUES, done), this->await(ROW_DOUT, done);
    this->template dots<Shared::v_dim>(d, ROW_DOUT, ROW_VALUES);
    wgmma_wait<0>();
    wgmma_arrived(s), wgmma_arrived(d);
    this->release(ROW_VALUES);
    if (done > 0) named_sync(ROWS_PAIRS_READ, 256);
    this->template weigh<false>(z, sums, s, d, numbers, factor, {1.f, 1.f});
    fence_async();
    if constexpr (decays) {
      barrier_wait(shared.ways_empty(), u32(done + 1) & 1);
      PairWays{warp, lane}.store(s, shared.ways() + WAYS_OF_PAIRS + warp * 256);
    }
  }
  __device__ __forceinline__ void step(const Chain &chain, int chunk, int done) const {
    const u32 numbers = shared.numbers(done % 2);
    u32 z[4][4];
    float x[k_dim / 2], factor[2], since[2], sums[2], inter[2];
    barrier_wait(shared.numbers_full(done % 2), u32(done / 2) & 1);
    this->load_rows(factor, numbers + ROW_QUERY), this->load_rows(since, numbers + ROW_SUM);
    make_pairs(z, sums, numbers, factor, done);
    this->await(ROW_GRAD_VALUES, done), this->await(ROW_V, done);
    make_dv(chain, chunk, numbers);
    this->store_place(ROW_V, Shared::boxes_v, maps.dv, chain, chunk);
    named_arrive(ROWS_PAIRS_WRITTEN, 256);
    this->await(ROW_STATE, done);
    this->meet(x, ROW_DOUT, ROW_STATE);
    wgmma_wait<0>();
    wgmma_arrived(x);
    this->along(inter, x, ROW_Q);
#pragma unroll
    for (int r = 0; r < 2; ++r) since[r] = decays ? fast_exp2(since[r]) : 1.f, inter[r] *= since[r];
#pragma unroll
    for (int i = 0; i < k_dim / 2; ++i) x[i] *= since[i / 2 % 2];
    this->join(x, z, ROW_K);
    this->await(ROW_GRAD_STATE, done);
    if constexpr (decays) make_way_across(numbers);
    wgmma_wait<0>();
    wgmma_arrived(x);
    this->release(ROW_Q), this->release(ROW_K), this->release(ROW_STATE), this->release(ROW_GRAD_STATE);
    finish(chain, chunk, done, x, factor, sums, inter);
  }
  __device__ __forceinline__ void finish(const Chain &chain, int chunk, int done, const float (&x)[k_dim / 2],
                                         const float (&factor)[2], const float (&sums)[2],
                                         const float (&inter)[2]) const {
    const float ways[2] = {inter[0] * factor[0], inter[1] * factor[1]},
                of_factor[2] = {(sums[0] + inter[0]) * p.scale, (sums[1] + inter[1]) * p.scale};
    if constexpr (decays) {
      this->store_rows(ways, shared.ways() + WAYS_TO_QUERY);
      __syncwarp();
      if (elected()) barrier_arrive(shared.ways_full());
    }
    if (elected()) barrier_arrive(shared.numbers_empty(done % 2));
    if constexpr (Spec::has_query_factor) this->store_rows(of_factor, p.sums.query_factor, chain, chunk);
    this->store(x, factor, ROW_DOUT, maps.dq, chain, chunk);
    this->release_stored(ROW_V), this->release_stored(ROW_DOUT);
  }
};
