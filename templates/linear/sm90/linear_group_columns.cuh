// linear/sm90/linear_group_columns.cuh: a warpgroup of luattn_linear_group_rows that owns 64 channels of dq and dk, which it adds up
// over value heads, with tokens as rows:
//
//     dq += scale e^G do S'      dk += w e^(GC - G) v dS      and behind the last head      dq += Z k      dk += Z' q
//
// and that makes dv of every other head, with dw, the sum of dv / w times v:
//
//     dv = w (e^(GC - G) k dS' + P' do), and what skips
#pragma once
#include "arch/mma.cuh"
#include "arch/stmatrix.cuh"
#include "arch/wgmma.cuh"
#include "arch/wgmma_transposed.cuh"
#include "linear/sm90/group_rows_pipeline.cuh"
#include "source/cp_async_tile.cuh"

enum { GROUP_BOTH_COLUMNS = 4 };  // named barrier; 1 and 2 are the warpgroups' alone

template <class Spec, class Config>
struct GroupColumns {
  using Shared = SharedGroup<Spec, Config>;
  using Elem = typename Config::Elem;
  using Chain = LinearChain<Config>;
  using Fragment = MmaFragment;
  static constexpr bool decays = Shared::has_gates;

  const LuattnLinearParams &p;
  const LuattnLinearRowMaps &maps;
  const Shared shared;
  const int group, warp, lane;

  __device__ __forceinline__ int row(int r) const { return 16 * warp + Fragment::row(lane, r); }
  __device__ __forceinline__ void load_rows(float (&x)[2], u32 numbers) const {
    x[0] = load_number(numbers + row(0) * 4), x[1] = load_number(numbers + row(1) * 4);
  }
  __device__ __forceinline__ void sync() const { named_sync(1 + group, 128); }
  __device__ __forceinline__ bool first() const { return warp == 0 && elected(); }
  // The sum over 64 channels of each row of x times that of a box.
  __device__ __forceinline__ void along(float (&sum)[2], const float (&x)[32], u32 box) const {
    const u32 from = box + Fragment::column(lane) * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 at = from + box_place(row(r), 0);
      float all = 0;
#pragma unroll
      for (int j = 0; j < 16; j += 2) {
        const u32 two = load_shared(at ^ u32(j / 2 * 16));
        const int e = Fragment::element(r, j);
        all += x[e] * half_of<Elem>(two, 0) + x[e + 1] * half_of<Elem>(two, 1);
      }
      sum[r] = row_total(all);
    }
  }
  // to += rows of a box times the group's channels of a state, each by a number of its row; sums: those along a box of q or k.
  __device__ __forceinline__ void add_state(float (&to)[32], float (&sums)[2], u32 rows, u32 state, u32 box,
                                            u32 factors) const {
    float x[32], by[2];
    const u64 a = wgmma_operand(rows, 0), b = wgmma_operand(state + group * Shared::box, Shared::box);
    wgmma_fence();
    Wgmma<Elem, 64>::turned64(x, a, b, 0);
    wgmma_commit();
    load_rows(by, factors);
    wgmma_wait<0>();
    wgmma_arrived(x);
#pragma unroll
    for (int i = 0; i < 32; ++i) to[i] += x[i] * by[i / 2 % 2];
    if constexpr (!decays) return;
    along(sums, x, box + group * Shared::box);
    sums[0] *= by[0], sums[1] *= by[1];
  }
  // The way from state to state, of the group's channels and 16 of v: the sum of e^GC S dS, which is the diagonal of S dS'.
  __device__ __forceinline__ void store_across(u32 numbers, u32 to, int from) const {
    float x[32];
    const u64 a = wgmma_operand(shared.at(from, GROUP_STATE + group), 0),
              b = wgmma_operand(shared.at(from, GROUP_GRAD_STATE + group), 0);
    wgmma_fence();
    Wgmma<Elem, 64>::first64(x, a, b);
    wgmma_commit();
    const float left = load_number(numbers + STEP_CHUNK);
    wgmma_wait<0>();
    wgmma_arrived(x);
    const int on_diagonal = Fragment::row(lane);  // the column of the thread's first row in its block of 8
    const bool odd = on_diagonal % 2 != 0, has = on_diagonal - on_diagonal % 2 == Fragment::column(lane);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int e = Fragment::element(n % 2, 2 * n);
      sum += n / 2 == warp ? (odd ? x[e + 1] : x[e]) : 0.f;
    }
    sum = has ? sum * left : 0.f;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) store_number(to + STEP_ACROSS + 16 * group + 4 * warp, sum);
  }
  // Stages rows in a box, which TMA has read; others see them behind `sync`.
  __device__ __forceinline__ void stage(u32 box, const float (&x)[32]) const {
    const u32 to = box + box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const float *const e = x + 8 * s;
      stmatrix_x4(to ^ u32((2 * s + lane / 16) * 16), pack<Elem>(e[0], e[1]), pack<Elem>(e[2], e[3]),
                  pack<Elem>(e[4], e[5]), pack<Elem>(e[6], e[7]));
    }
    fence_async();
  }
  __device__ __forceinline__ void store_written(const float (&dw)[2], const Chain &chain, int chunk) const {
    if (p.sums.write == nullptr || !Fragment::first_in_row(lane)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = chunk * LUATTN_CHUNK + row(r);
      if (chain.has(t)) p.sums.write[chain.token(p, t)] = dw[r];
    }
  }
  // Adds what skips has to dv, and its terms to gradients of inputs.
  __device__ __forceinline__ void add_skip(float (&x)[32], const Chain &chain, int chunk, u32 of_v, u32 of_dout) const {
    using Skip = typename Shared::Skip;
    const u32 column = Fragment::column(lane) * 2;
    float run[Skip::runs + 1] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = chunk * LUATTN_CHUNK + row(r), t = chain.clamped(at);
      const u32 place = box_place(row(r), 0) + column;
      float of_row[Skip::rows + 1] = {};
#pragma unroll
      for (int j = 0; j < 16; j += 2) {
        const u32 v = load_shared((of_v + place) ^ u32(j / 2 * 16)),
                  g = load_shared((of_dout + place) ^ u32(j / 2 * 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int d = Fragment::column(lane) + Fragment::column_of(j) + i;
          const float of = half_of<Elem>(v, i), by = half_of<Elem>(g, i);
          if (!chain.has(at) || (Config::v_dim < 64 && d >= Config::v_dim)) continue;
          x[Fragment::element(r, j) + i] += Skip::dx(p, chain.site, of, by, t, d, nullptr, nullptr);
          if constexpr (Skip::has_terms) Skip::add(p, chain.site, of, by, t, d, nullptr, nullptr, run, of_row);
        }
      }
      if constexpr (Skip::rows > 0) {
#pragma unroll
        for (int i = 0; i < Skip::rows; ++i) of_row[i] = row_total(of_row[i]);
        if (Fragment::first_in_row(lane) && chain.has(at)) Skip::add_rows(p, chain.site, t, of_row);
      }
    }
    if constexpr (Skip::runs > 0) {
      sum_over_warp(run);
      if (lane == 0)
#pragma unroll
        for (int i = 0; i < Skip::runs; ++i) store_number(shared.runs(group) + (warp * Skip::runs + i) * 4, run[i]);
    }
  }
  // Sums over all rows of terms of what skips: once all warps have stored theirs.
  __device__ __forceinline__ void add_runs(const Chain &chain) const {
    using Skip = typename Shared::Skip;
    float run[Skip::runs + 1] = {};
    if constexpr (Skip::runs > 0) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
#pragma unroll
        for (int i = 0; i < Skip::runs; ++i) run[i] += load_number(shared.runs(group) + (w * Skip::runs + i) * 4);
      Skip::add_runs(p, chain.site, run);
    }
  }
  // told: the number of P among those that the pairs have told of.
  __device__ __forceinline__ void make_dv(const Chain &chain, int chunk, int stage_of, u32 numbers, int told) const {
    float all[64], by[2], dw[2];
    float(&x)[32] = reinterpret_cast<float(&)[32]>(all);
    const u64 keys = wgmma_operand(shared.k(), 0), state = wgmma_operand(shared.at(stage_of, GROUP_GRAD_STATE), 0),
              pairs = wgmma_operand(shared.pairs(told % 2), 0),
              dout = wgmma_operand(shared.at(stage_of, GROUP_DOUT), Shared::box);
    wgmma_fence();
    Wgmma<Elem, 64>::first128(x, keys, state);
    wgmma_commit();
    load_rows(by, numbers + STEP_UNTIL);
    wgmma_wait<0>();
    wgmma_arrived(x);
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] *= by[i / 2 % 2];
    barrier_wait(shared.pairs_full(told % 2), u32(told / 2) & 1);
    wgmma_fence();
    WgmmaOuter<Elem, 64>::sums64(all, pairs, dout);
    wgmma_commit();
    load_rows(by, numbers + STEP_WRITE);
    if (first()) bulk_wait_read();
    sync();
    wgmma_wait<0>();
    wgmma_arrived(x);
    if constexpr (Spec::has_write) {
      along(dw, x, shared.at(stage_of, GROUP_V));
      store_written(dw, chain, chunk);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] *= by[i / 2 % 2];
    if constexpr (Shared::skips)
      add_skip(x, chain, chunk, shared.at(stage_of, GROUP_V), shared.at(stage_of, GROUP_DOUT));
    stage(shared.dv(group), x);
    sync();
    if (first()) {
      tensor_store(shared.dv(group), maps.dv, 0, chain.box(chunk), chain.site.hv);
      bulk_commit();
      if constexpr (Shared::skips) add_runs(chain);
    }
  }
  __device__ __forceinline__ void step(float (&dq)[32], float (&dk)[32], const Chain &chain, int chunk, int n,
                                       int told) const {
    const int from = n % Shared::stages, of_numbers = n % Shared::number_stages;
    const u32 numbers = shared.numbers(of_numbers);
    float to_query[2], from_key[2];
    barrier_wait(shared.numbers_full(of_numbers), u32(n / Shared::number_stages) & 1);
    barrier_wait(shared.full(from), u32(n / Shared::stages) & 1);
    add_state(dq, to_query, shared.at(from, GROUP_DOUT), shared.at(from, GROUP_STATE), shared.q(),
              numbers + STEP_QUERY);
    add_state(dk, from_key, shared.at(from, GROUP_V), shared.at(from, GROUP_GRAD_STATE), shared.k(),
              numbers + STEP_KEY);
    if constexpr (decays) {
      const u32 sums = shared.sums(n % 2) + 256 * group;
      barrier_wait(shared.sums_empty(n % 2), u32(n / 2 + 1) & 1);
      store_across(numbers, shared.sums(n % 2), from);
      if (Fragment::first_in_row(lane))
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          store_number(sums + STEP_TO_QUERY + row(r) * 4, to_query[r]);
          store_number(sums + STEP_FROM_KEY + row(r) * 4, from_key[r]);
        }
      __syncwarp();
      if (elected()) barrier_arrive(shared.sums_full(n % 2));
    }
    if (n % 2 == group)
      make_dv(chain, chunk, from, numbers, told);
    else
      barrier_wait(shared.pairs_full(told % 2), u32(told / 2) & 1);
    __syncwarp();
    if (elected()) {
      barrier_arrive(shared.empty(from)), barrier_arrive(shared.numbers_empty(of_numbers));
      barrier_arrive(shared.pairs_empty(told % 2));
    }
  }
  // Adds pairs, and stores dq and dk by way of the places of q and k.
  __device__ __forceinline__ void finish(float (&dq)[32], float (&all)[64], const Chain &chain, int chunk,
                                         int told) const {
    float(&dk)[32] = reinterpret_cast<float(&)[32]>(all);
    const u32 q = shared.q() + group * Shared::box, k = shared.k() + group * Shared::box,
              pairs = shared.pairs(told % 2);
    barrier_wait(shared.pairs_full(told % 2), u32(told / 2) & 1);
    wgmma_fence();
    Wgmma<Elem, 64>::turned64(dq, wgmma_operand(pairs, 0), wgmma_operand(k, Shared::box), 1);
    WgmmaOuter<Elem, 64>::sums64(all, wgmma_operand(pairs, 0), wgmma_operand(q, Shared::box));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(dq), wgmma_arrived(dk);
    if (elected()) barrier_arrive(shared.pairs_empty(told % 2));
    named_sync(GROUP_BOTH_COLUMNS, 256);  // both have read k
    stage(q, dq), stage(k, dk);
    sync();
    if (!first()) return;
    tensor_store(q, maps.dq, group * 64, chain.box(chunk), chain.site.h);
    tensor_store(k, maps.dk, group * 64, chain.box(chunk), chain.site.h);
    bulk_commit();
    bulk_wait_read();
    barrier_arrive(shared.rows_empty());
  }
  __device__ __forceinline__ void run() const {
    float dq[32], all[64];
    float(&dk)[32] = reinterpret_cast<float(&)[32]>(all);
    int told = 0;
    for_each_step<Config>(
        p,
        [&](const Chain &, int, int done) {
          barrier_wait(shared.rows_full(), u32(done) & 1);
#pragma unroll
          for (int i = 0; i < 32; ++i) dq[i] = dk[i] = 0;
        },
        [&](const Chain &chain, int chunk, int n, int) { step(dq, dk, chain, chunk, n, told++); },
        [&](const Chain &chain, int chunk, int) { finish(dq, all, chain, chunk, told++); });
    if (first()) bulk_wait_read();
  }
};
