// linear/sm90/linear_quarter_chain.cuh: the chain of updates that erase where decays differ between channels, of quarters of chunks
// whose tiles other warps of the block make (linear_quarter_maker.cuh). A warpgroup owns 64 value channels of the state,
// S' [64, K], an accumulator:
//
//     U = (w V - S' (r e^G)') T'     O' = (S' (q e^G)' + U P') scale     S' = S' e^E + U (k e^(E - G))
//
// Where a segment begins early (linear_quarter_end.cuh), chunks before its own have no o.
#pragma once
#include "arch/stmatrix.cuh"
#include "arch/warp.cuh"
#include "arch/wgmma_narrow.cuh"
#include "linear/sm90/linear_quarters.cuh"
#include "linear/sm90/linear_states.cuh"
#include "linear/sm90/value_hooks.cuh"
#include "source/cp_async_tile.cuh"

template <class Spec, class Config>
struct QuarterChain {
  using Shared = SharedQuarters<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr int k_dim = Shared::k_dim;

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const LinearChain<Config> &chain;
  const int group, warp, early;  // early: chunks before the segment's own
  int lane;

  __device__ __forceinline__ int first_value() const { return chain.first_value + group * 64; }
  __device__ __forceinline__ StateRows<Config> rows() const {
    return {chain, first_value() + 16 * warp + Fragment::row(lane), lane};
  }
  __device__ __forceinline__ ValueHooks<Spec, Config> hooks() const {
    return {p, chain, first_value() + 16 * warp, lane};
  }
  __device__ __forceinline__ void sync() const { named_sync(QUARTER_VALUES + group, 128); }

  // ---- values ----

  // Values of chunk number n, if there is one.
  __device__ __forceinline__ void load_chunk(int n) const {
    if (n >= chain.chunks()) return;
    const u32 full = shared.v_full(group, n % 2);
    barrier_arrive_expect(full, Shared::box);
    tensor_load(shared.v(group, n % 2), maps.v, full, first_value(), chain.box(chain.at(n)), chain.site.hv);
  }
  // V' of a quarter as an A operand: value channels by tokens.
  __device__ __forceinline__ void load_values(u32 (&v)[4], int n, int quarter) const {
    if (quarter == 0) barrier_wait(shared.v_full(group, n % 2), u32(n / 2) & 1);
    ldmatrix_x4_turned(v, shared.v(group, n % 2) + box_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8) +
                              quarter * (LINEAR_QUARTER * 128));
  }
  __device__ __forceinline__ int token(int n, int quarter, int j) const {
    return hooks().token(chain.at(n), j) + quarter * LINEAR_QUARTER;
  }
  __device__ __forceinline__ void modify(u32 (&v)[4], int n, int quarter) const {
    if constexpr (Spec::has_value_mod)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int t = token(n, quarter, i / 2 * 2 + e);
          x[e] = chain.has(t) ? float(Spec::value_mod(p, chain.site, half_of<Elem>(v[i], e), t, hooks().value(i % 2)))
                              : 0.f;
        }
        v[i] = pack<Elem>(x[0], x[1]);
      }
  }
  __device__ __forceinline__ void skip(float *o, int n, int quarter) const {
    if constexpr (Spec::has_skip) {
      u32 v[4];
      load_values(v, n, quarter);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int i = Fragment::element(r, j), t = chain.clamped(token(n, quarter, j));
          o[i] += Spec::skip(p, chain.site, half_of<Elem>(v[i / 2], i % 2), t, hooks().value(r));
        }
    }
  }

  // ---- products ----

  // An accumulator of 16 columns as an A operand.
  __device__ __forceinline__ static void round(u32 (&a)[4], const float *x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack<Elem>(x[2 * i], x[2 * i + 1]);
  }
  __device__ __forceinline__ void decay(float (&state)[k_dim / 2], int slot) const {
    const u32 left = shared.left(slot) + Fragment::column(lane) * 4;
#pragma unroll
    for (int j = 0; j < k_dim / 4; j += 2) {
      const float2 by = load_pair(left + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) state[Fragment::element(r, j)] *= by.x, state[Fragment::element(r, j + 1)] *= by.y;
    }
  }
  // Numbers of tokens of a lane's columns.
  struct Numbers {
    float2 of[2];
    __device__ __forceinline__ Numbers() : of{{0, 0}, {0, 0}} {}
    __device__ __forceinline__ Numbers(u32 from, int lane)
        : of{load_pair(from + Fragment::column(lane) * 4), load_pair(from + Fragment::column(lane) * 4 + 32)} {}
  };
  // w V - r y, as an A operand.
  __device__ __forceinline__ static void subtract(u32 (&v)[4], const float *y, const Numbers &writes,
                                                  const Numbers &reads) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 write = writes.of[i / 2], read = reads.of[i / 2];
      v[i] = pack<Elem>(write.x * half_of<Elem>(v[i], 0) - read.x * y[2 * i],
                        write.y * half_of<Elem>(v[i], 1) - read.y * y[2 * i + 1]);
    }
  }
  // 16 rows of 16 numbers; x += a b' with these as b.
  __device__ __forceinline__ void load_square(u32 (&rows)[4], u32 from) const {
    ldmatrix_x4(rows, from + (lane % 8 + lane / 16 * 8) * 32 + lane / 8 % 2 * 16);
  }
  __device__ __forceinline__ static void add_product(float *x, const u32 (&a)[4], const u32 (&rows)[4]) {
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(x[0]), a, rows[0], rows[1]);
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(x[4]), a, rows[2], rows[3]);
  }

  // ---- o ----

  __device__ __forceinline__ void stage(const u32 (&o)[4], int n, int quarter) const {
    stmatrix_x4_turned(shared.o(group, n % 2) + box_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8) +
                           quarter * (LINEAR_QUARTER * 128),
                       o[0], o[1], o[2], o[3]);
  }
  // Stores a chunk's o, and loads values in the place of its own. A box is free once the store before the last one has read it.
  __device__ __forceinline__ void finish_chunk(int n) const {
    const bool first = warp == 0 && elected();
    fence_async();
    if (first) bulk_wait_read();
    sync();
    if (!first) return;
    load_chunk(n + 2);
    if (n < early) return;
    tensor_store(shared.o(group, n % 2), maps.o, first_value(), chain.box(chain.at(n)), chain.site.hv);
    bulk_commit();
  }
  __device__ __forceinline__ void store_nothing() const {
    const u32 none[4] = {};
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) stage(none, n, quarter);
      const bool first = warp == 0 && elected();
      fence_async();
      if (first) bulk_wait_read();
      sync();
      if (!first) continue;
      tensor_store(shared.o(group, n % 2), maps.o, first_value(), chain.box(chain.at(n)), chain.site.hv);
      bulk_commit();
    }
    if (warp == 0 && elected()) bulk_wait_read();
  }

  // ---- quarters ----

  __device__ __forceinline__ void step(float (&state)[k_dim / 2], int n, int quarter) {
    const int slot = n % 2 * 4 + quarter;
    u32 rounded[k_dim / 16][4], v[4], inverse[4], out[4];
    float x[16], u[8] = {};
    lane = lane_anew();
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) round(rounded[s], state + 8 * s);
    barrier_wait(shared.full(slot), u32(n / 2) & 1);
    wgmma_fence();
    WgmmaNarrow<Elem>::dots128(x, rounded, wgmma_operand(shared.rows(slot), 0),
                               wgmma_operand(shared.rows(slot) + Shared::rows_box, 0));
    wgmma_commit();
    load_values(v, n, quarter);
    modify(v, n, quarter);
    load_square(inverse, shared.inverse(slot));
    const Numbers writes(shared.writes(slot), lane), reads(shared.reads(slot), lane);
    decay(state, slot);
    wgmma_arrived(state);  // now, while the product is under way
    wgmma_wait<0>();
    wgmma_arrived(x);
    subtract(v, x, writes, reads);
    add_product(u, v, inverse);
    round(v, u);
    wgmma_fence();
    WgmmaNarrow<Elem>::sums16(state, v, wgmma_operand(shared.keys(slot), Shared::keys_box));
    wgmma_commit();
    load_square(inverse, shared.pairs(slot));
    const Numbers queries(shared.queries(slot), lane);
    add_product(x + 8, v, inverse);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[8 + i] *= i % 2 == 0 ? queries.of[i / 4].x : queries.of[i / 4].y;
    skip(x + 8, n, quarter);
    round(out, x + 8);
    stage(out, n, quarter);
    wgmma_wait<0>();
    wgmma_arrived(state);
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(slot));
  }
  __device__ __forceinline__ void take(float (&state)[k_dim / 2]) {
    if (warp == 0 && elected()) load_chunk(0), load_chunk(1);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      if (n >= early) rows().store_between(state, p, chain.at(n));
#pragma unroll 1
      for (int quarter = 0; quarter < 4; ++quarter) step(state, n, quarter);
      finish_chunk(n);
    }
  }
  __device__ __forceinline__ void run() {
    float state[k_dim / 2];
    if (chain.begin == 0) {
      rows().load_first(state, p);
    } else {
#pragma unroll
      for (int i = 0; i < k_dim / 2; ++i) state[i] = 0;
    }
    take(state);
    if (chain.segment == p.segments.count - 1) rows().store_last(state, p);
    if (warp == 0 && elected()) bulk_wait_read();
  }
};
