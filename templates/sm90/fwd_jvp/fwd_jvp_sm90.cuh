// sm90/fwd_jvp/fwd_jvp_sm90.cuh: forward together with the tangents of O and lse: f16 or bf16, wgmma with f32
// accumulation, TMA, one producer and two consumer warpgroups. sm_90a only.
//
// Grid, tiles and messages are those of sm90/fwd/fwd_sm90.cuh. Of a tile of keys a consumer computes
//   S = Q K^T and S' = Q' K^T + Q K'^T; a step of the online function on both (score/dual_rows.cuh), which makes P and
//   P' in place; A += P V and B += P V' + P' V, both in registers of their own (sm90/fwd_jvp/dual_wgmma.cuh).
// What has no tangent has no product. It issues S and S' of the next tile before A and B of this one, and runs the step
// while these are in flight; P and P' are packed once the products that read the ones before have ended.
//
// Tangents of scores are centred (score/dual_centres.cuh).
//
// Config: head_dim and head_dim_v are multiples of 8 up to 128. tile_m is 128, threads 384. tile_n is a multiple of 16: at
// head_dim_v 128 registers have room for 48, at 96 for 64, at 80 for 80. Dynamic shared memory: FwdJvpSm90Layout.
#pragma once
#include "arch/warp.cuh"
#include "arch/wgmma.cuh"
#include "score/dropout.cuh"
#include "score/dual_centres.cuh"
#include "score/dual_rows.cuh"
#include "score/fragment.cuh"
#include "sink/dual_out.cuh"
#include "sink/padding.cuh"
#include "sm90/fwd/mask.cuh"
#include "sm90/fwd_jvp/dual_pipeline.cuh"
#include "sm90/fwd_jvp/dual_wgmma.cuh"
#include "source/cp_async_tile.cuh"

template <class Spec, class Config>
struct DualConsumerSm90 {
  using Sequence = SequenceOf<Config>;
  using Key = typename Sequence::Key;
  using KvMessage = KvTileMessage<typename Sequence::KeyTile>;
  using Shared = SharedDualSm90<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  using Head = typename Spec::Head;
  using Row = typename Spec::Row;
  static_assert(same_type<typename Spec::Real, float>::value && sizeof(Elem) == 2, "f16 or bf16, accumulated in f32");

  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, stages = Config::stages;
  static constexpr int dim = padded_dim(Config::head_dim), dim_v = padded_dim(Config::head_dim_v);
  static constexpr int rows = Fragment::rows(16), cols = Fragment::columns(tile_n), scores = tile_n / 2;
  static constexpr bool has_dots = Spec::tangent_of_q || Spec::tangent_of_k;  // S' has products
  static constexpr bool has_sums = Spec::has_prob_tangent || Spec::tangent_of_v;
  // Masked scores are -inf, and no others need a test: P, P' and sums of both are then 0.
  static constexpr bool by_inf = Spec::mask_by_inf && Spec::centres;
  static constexpr int blocks = dim_v / 16;
  using Out = OutOf<Config>;
  using Online = DualRows<Spec, rows, cols, Fragment::row_lanes>;
  using Mask = MaskSm90<Spec, Sequence, Online, Fragment, tile_n, false>;
  using Drops = Dropout<Config>;
  using Kept = DroppedKind<Config, Fragment, false, tile_n / 16>;

  enum { K_FULL, V_FULL };  // indices of barrier peeks
  enum { ping_pong_barrier = 1 };
  static_assert(Shared::groups == 2);

  const TangentParams &p;
  const Shared shared;
  const int group, warp, lane;
  Sequence site;
  int first_row;  // the warp's first query
  Head head;
  Row row[rows];
  Online online;
  DualCentres<Spec, rows, cols, Fragment::row_lanes> centres;
  PipelineState<stages> k, v;
  PipelineState<1> q;
  u32 v_back;                                        // the barrier that releases V of the sums in flight
  u32 probs[tile_n / 4], prob_tangents[tile_n / 4];  // P and P', as A operands
  Dual<float> scale[rows];                           // rescales A and B before the next sums are added
  Drops dropout;

  __device__ __forceinline__ DualConsumerSm90(const TangentParams &params, const Shared &s, int g)
      : p(params),
        shared(s),
        group(g),
        warp(int(uniform(threadIdx.x / 32 % 4))),
        lane(int(threadIdx.x) % 32),
        k(0),
        v(0),
        q(0) {}

  __device__ __forceinline__ Position position(int r) const {
    return {first_row + Fragment::row(lane), Fragment::row_of(r)};
  }
  __device__ __forceinline__ void release(u32 barrier) const {
    if (lane == 0) barrier_arrive(barrier);
  }

  // ---- products ----

  // The stage, as votes that ptxas knows to be the same in the whole warp: it then makes descriptors once for the warp, in
  // place of two moves and three additions a product.
  LUATTN_FN int voted(int stage) {
    static_assert(stages <= 4);
    return (__any_sync(0xffffffffu, stage & 1) ? 1 : 0) | (__any_sync(0xffffffffu, stage & 2) ? 2 : 0);
  }
  // d = a b^T, or d + a b^T: rows of Q or its tangent by keys, or their tangents.
  template <bool Add>
  __device__ __forceinline__ void dots(float (&d)[scores], u64 a, u64 b) const {
    using Product = Wgmma<Elem, tile_n>;
    if constexpr (!Add && dim >= 128)
      Product::first128(d, a, b);
    else if constexpr (!Add && dim >= 64)
      Product::first64(d, a, b);
#pragma unroll
    for (int i = Add ? 0 : dim >= 128 ? 2 : 1; i < dim / 64; ++i)
      Product::dots64(d, a + (i * 64 * 128 >> 4), b + (i * tile_n * 128 >> 4), 1);
#pragma unroll
    for (int i = dim / 64 * 4; i < dim / 16; ++i)
      Product::dots16(d, a + (i / 4 * 64 * 128 + i % 4 * 32 >> 4), b + (i / 4 * tile_n * 128 + i % 4 * 32 >> 4),
                      Add || i > 0);
  }
  __device__ __forceinline__ void issue_scores(float (&s)[scores], float (&st)[scores]) {
    const u64 a = wgmma_operand(shared.q(group), 0), b = wgmma_operand(shared.k(voted(k.stage)), 0);
    constexpr u64 q_tangent = Shared::q_bytes >> 4, k_tangent = Shared::k_bytes >> 4;
    dots<false>(s, a, b);
    if constexpr (Spec::tangent_of_q) dots<false>(st, a + q_tangent, b);
    if constexpr (Spec::tangent_of_k) dots<Spec::tangent_of_q>(st, a, b + k_tangent);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_values() {
    barrier_wait_peeked<V_FULL>(shared.v_full(v.stage), v.parity);
    v_back = shared.v_empty(v.stage);
    wgmma_fence();
    const u64 b = wgmma_operand(shared.v(v.stage), tile_n * 128);
    out_sums<Elem, 0, dim_v, tile_n>(probs, b);
    if constexpr (Spec::tangent_of_v) out_sums<Elem, dual_block, dim_v, tile_n>(probs, b + (Shared::v_bytes >> 4));
    if constexpr (Spec::has_prob_tangent) out_sums<Elem, dual_block, dim_v, tile_n>(prob_tangents, b);
    wgmma_commit();
    v.advance();
  }
  __device__ __forceinline__ void rescale() {
    if constexpr (Spec::has_rescale) {
      if (!__any_sync(0xffffffffu, scale[0].x != 1.f || scale[1].x != 1.f || scale[0].d != 0.f || scale[1].d != 0.f))
        return;
      if constexpr (has_sums) scale_dual_out<blocks>(scale[0].x, scale[1].x);
      if constexpr (Spec::has_rescale_tangent) add_scaled_out<0, dual_block, blocks>(scale[0].d, scale[1].d);
      scale_out<0, blocks>(scale[0].x, scale[1].x);
    }
  }

  // ---- the step ----

  // Turns S and S' into P and P', in `x` and `xt`, and finds the factors for what has been summed.
  __device__ __forceinline__ void step(const float (&s)[scores], const float (&st)[scores], const KvMessage &tile,
                                       float (&x)[rows][cols], float (&xt)[rows][cols]) {
    const Key kv0 = Sequence::template first_key<tile_n>(tile.tile()) + Fragment::column(lane);
    KeepBits<cols> keep[rows];
    const float unit = float(p.scale);
    const auto tangent_of = [&](int r, int j) { return has_dots ? st[Fragment::element(r, j)] : 0.f; };
    online.score(
        p, site, head, row,
        [&](int r, int j) { return Dual<float>{s[Fragment::element(r, j)], unit * tangent_of(r, j)}; },
        [&](int r) { return position(r); },
        [&](int j) { return typename Sequence::KeyPlace{kv0, Fragment::column_of(j)}; }, x, xt);
    if (tile.masked()) {
      const Mask mask{p, site, head, row, first_row, lane, 0};
      mask.apply(tile, kv0, x, keep, online);
      if constexpr (Spec::mask_by_inf && !by_inf)
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          keep[r] = KeepBits<cols>::none();
#pragma unroll
          for (int j = 0; j < cols; ++j) keep[r].set(j, x[r][j] != -infinity<float>());
        }
    } else {
      online.kept.bits = Online::all;
    }
    centres.take_off(unit, tangent_of, x, xt);
    if (Spec::mask_by_inf && tile.masked()) {
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int j = 0; j < cols; ++j) xt[r][j] = x[r][j] == -infinity<float>() ? 0.f : xt[r][j];
    }
    if (by_inf || !tile.masked())
      online.step_by_inf(p, site, head, row, x, xt, scale);
    else
      online.template step<true>(p, site, head, row, x, xt, keep, scale);
  }
  // ptxas would move the wait for the sums above the exponentials, which are to hide them. It moves no vote past a branch,
  // and this one needs the row's sums, which need them all. The branch is never taken: its number is no sum's.
  __device__ __forceinline__ void hold_step() const {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int i = 0; i < Spec::num_state; ++i) sum += online.state[r].x[i] + online.tangent[r].x[i];
    if (__any_sync(0xffffffffu, __float_as_int(sum) == 0x7fedcba9)) asm volatile("nanosleep.u32 0;");
  }
  __device__ __forceinline__ void pack_tile(const float (&x)[rows][cols], u32 (&to)[tile_n / 4]) const {
#pragma unroll
    for (int i = 0; i < tile_n / 4; ++i) {
      const int r = i % 2, j = i / 4 * 4 + i % 4 / 2 * 2;
      to[i] = pack<Elem>(x[r][j], x[r][j + 1]);
    }
  }
  __device__ __forceinline__ void keep_probs(const KvMessage &tile, const float (&x)[rows][cols],
                                             const float (&xt)[rows][cols]) {
    pack_tile(x, probs);
    if constexpr (Spec::has_prob_tangent) pack_tile(xt, prob_tangents);
    if constexpr (Drops::any) {
      Kept kept;
      const int q0 = first_row + dropout.first_q(p, site), kv0 = tile.tile() * tile_n + dropout.first_kv(p, site);
#pragma unroll
      for (int w = 0; w < Kept::words; ++w) kept.bits[w] = Kept::draw_word(dropout, q0, kv0, lane, w);
#pragma unroll
      for (int i = 0; i < tile_n / 4; ++i) {
        const u32 mask = kept.mask_of_two(i / 4 * 4 + i % 4 / 2 * 2, i % 2);
        probs[i] &= mask, prob_tangents[i] &= mask;
      }
    }
  }

  // Ping-pong: consumers alternate in issuing products, so that one's step overlaps the other's products.
  __device__ __forceinline__ void ping_pong_wait() const { named_sync(ping_pong_barrier + group, 256); }
  __device__ __forceinline__ void ping_pong_pass() const { named_arrive(ping_pong_barrier + 1 - group, 256); }

  // ---- a q tile ----

  __device__ __forceinline__ KvMessage await_k() const {
    barrier_wait_peeked<K_FULL>(shared.k_full(k.stage), k.parity);
    return KvMessage::load(shared.k_message(k.stage));
  }
  __device__ __forceinline__ void release_k() {
    release(shared.k_empty(k.stage));
    k.advance();
    barrier_peek<K_FULL>(shared.k_full(k.stage), k.parity);
    barrier_peek<V_FULL>(shared.v_full(v.stage), v.parity);
  }
  __device__ __forceinline__ void release_q() {
    release(shared.q_empty(group));
    q.advance();
  }
  __device__ __forceinline__ void begin(const QTileMessage &message) {
    site = {p, message.b, message.h};
    first_row = message.q_tile * tile_m + group * 64 + warp * 16;
    head = Spec::head(p, site);
#pragma unroll
    for (int r = 0; r < rows; ++r) row[r] = Spec::row(p, site, head, site.clamped_query(p, position(r)));
    centres.init();
    online.init(p, site, head, row);
    if constexpr (Drops::any) dropout.enter_head(p, site);
    zero_out<16>();
  }
  __device__ __forceinline__ void all_tiles() {
    float s[scores], st[scores];
    KvMessage tile = await_k();
    wgmma_fence();
    issue_scores(s, st);
    tile = tile.shared();
    wgmma_wait<0>();
    wgmma_arrived(s);
    if constexpr (has_dots) wgmma_arrived(st);
    release_k();
    if (tile.last()) release_q();
    float x[rows][cols], xt[rows][cols];
    step(s, st, tile, x, xt);
    keep_probs(tile, x, xt);
    scale[0] = scale[1] = {1.f, 0.f};  // there is nothing yet
#pragma unroll 1
    while (!tile.last()) {
      const KvMessage message = await_k();
      ping_pong_wait();
      wgmma_fence();
      issue_scores(s, st);
      rescale();
      issue_values();
      ping_pong_pass();
      tile = message.shared();
      wgmma_wait<1>();
      wgmma_arrived(s);
      if constexpr (has_dots) wgmma_arrived(st);
      release_k();
      if (tile.last()) release_q();
      step(s, st, tile, x, xt);
      hold_step();
      wgmma_wait<0>();
      release(v_back);
      keep_probs(tile, x, xt);
    }
    rescale();
    issue_values();
    wgmma_wait<0>();
    release(v_back);
  }

  // ---- finish ----

  // Stores the accumulator from block First on, in its type, times the rows' factors.
  template <int First>
  __device__ __forceinline__ void write(const LuattnTensor &to, const float (&factor)[rows]) const {
    constexpr bool is_f32 = same_type<Out, float>::value;
    OutRow of[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const Out *at = site.template q_row<Out>(p, to, position(r)) +
                      (is_f32 ? Fragment::column(lane) : gathered_column(lane)) - First * 16;
      of[r] = {u64(__cvta_generic_to_global(at)), factor[r], site.has_query(p, position(r))};
    }
    if constexpr (is_f32)
      store_outs_f32<First * 16 + Config::head_dim_v, First * 2>(of);
    else
      store_outs<Elem, First * 16 + Config::head_dim_v, First>(of, lane);
  }
  __device__ __forceinline__ void finish() {
    online.finish();
    const LuattnTangents &to = p.tangents;
    DualOut<rows> out;
    out.template find<Spec, Drops>(p, site, head, row, online, centres);
    write<0>(p.tensors.o, out.of_o);
    if (to.o.data != nullptr) {
      scale_dual_out<blocks>(out.of_b[0], out.of_b[1]);
      add_scaled_out<0, dual_block, blocks>(out.of_a[0], out.of_a[1]);
      write<dual_block>(to.o, out.of_kept);
    }
    const int mine = lane % 2;
    if (Fragment::lane_in_row(lane) >= rows || !site.has_query(p, position(mine))) return;
    const Row my_row = mine == 0 ? row[0] : row[1];
    const typename Spec::State state = mine == 0 ? online.state[0] : online.state[1],
                               tangent = mine == 0 ? online.tangent[0] : online.tangent[1];
    write_dual_numbers<Spec>(p, site, head, my_row, state, tangent, position(mine), online.kept[mine]);
  }

  __device__ __forceinline__ void run() {
    barrier_peeks_init();
    declare_out();
    if (group == 1) named_arrive(ping_pong_barrier, 256);
    for (;;) {
      barrier_wait(shared.q_full(group), q.parity);
      const QTileMessage message = QTileMessage::load(shared.q_message(group));
      if (message.state == QTileMessage::END) break;
      begin(message);
      if (message.state == QTileMessage::SOME)
        all_tiles();
      else
        release_q();
      finish();
    }
  }
};

template <class Spec, class Config>
LUATTN_FN void fwd_jvp_sm90(const TangentParams &p, const LuattnTangentMaps &maps, void *memory) {
  using Shared = SharedDualSm90<Spec, Config>;
  static_assert(TangentSpec<Spec> && has_shared<Config, Shared::bytes>());
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int group = int(uniform(threadIdx.x / 128)) - 1;
  if (group < 0) {
    registers_down<40>();
    if (threadIdx.x >= 32) return;
    DualProducer<Spec, Config>(p, maps, shared).run();
    write_padding_by_warp<Spec, Config>(p);  // consumers are still at the last tile
    write_tangent_padding_by_warp<Spec, Config>(p);
  } else {
    registers_up<232>();
    DualConsumerSm90<Spec, Config>(p, shared, group).run();
  }
}
