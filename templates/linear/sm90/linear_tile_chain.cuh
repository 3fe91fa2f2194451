// linear/sm90/linear_tile_chain.cuh: the chains where decays differ between channels, of tiles that luattn_linear_tiles has made. A
// warpgroup owns 64 value channels of the state, S' [64, K], an accumulator. Forwards (LINEAR_STATES) the state before each
// chunk is kept, and of updates that erase U:
//
//     U = (w V - S' (r e^G)') T'     S' = S' e^GC + U (k e^(GC - G))     additive: U is V
//
// and backwards (LINEAR_GRAD_STATES), with dS' of the state behind it, dS', and dR, where V is the gradient of o:
//
//     dU = dS' (k e^(GC - G))' + V P     dR = dU T     dS' = dS' e^GC + V (scale q e^G) - dR (r e^G)
//
// Of additive updates dU is dv, and stored. linear_tile_forward.cuh makes o; linear_tile_segments.cuh keeps nothing.
//
// Config: as in fwd_linear_sm90.cuh. Threads: SharedChain::threads. A block has a warp that loads, and a warpgroup or two.
#pragma once
#include "arch/stmatrix.cuh"
#include "arch/warp.cuh"
#include "arch/wgmma.cuh"
#include "arch/wgmma_transposed.cuh"
#include "linear/sm90/linear_states.cuh"
#include "linear/sm90/value_hooks.cuh"
#include "source/cp_async_tile.cuh"
#include "tma/bulk_copies.cuh"
#include "tma/stages.cuh"
#include "tma/warp_roles.cuh"

// Sums: of what segments make of states; nothing is kept of a chunk.
template <class Spec, class Config, bool Sums>
struct SharedChain {
  static constexpr bool backwards = LinearChain<Config>::backwards, forward = Config::pass == LINEAR_FORWARD;
  static constexpr int leaves = backwards          ? LINEAR_CHAIN_BACK
                                : forward && !Sums ? LINEAR_CHAIN_OUT
                                                   : LINEAR_CHAIN_STATES;
  static constexpr LinearTilesLayout made = linear_tiles_layout(Config::k_dim, Spec::erases, !forward);
  static constexpr LinearChainLayout layout = linear_chain_layout(Config::k_dim, Config::v_block, Spec::erases, leaves);
  static constexpr int boxes_k = ceil_div(Config::k_dim, 64), k_dim = boxes_k * 64, groups = Config::v_block / 64,
                       stages = 2, bytes = layout.bytes, threads = 128 * (1 + groups), box = LINEAR_BOX,
                       first = leaves == LINEAR_CHAIN_STATES ? made.at_reads : 0;  // of what is loaded
  static_assert(forward || Config::pass == LINEAR_STATES || Config::pass == LINEAR_GRAD_STATES);
  static_assert(forward || (!Spec::has_value_mod && !Spec::has_skip), "gradients of mods of v have no kernel yet");
  static_assert(Config::k_dim % 8 == 0 && k_dim <= 128 && Config::v_dim % 8 == 0);
  static_assert(bytes <= LUATTN_SM90_SHARED_BYTES);

  u32 start;  // a multiple of 1024

  __device__ __forceinline__ u32 tile(int stage, int at) const { return start + stage * layout.stage + at - first; }
  __device__ __forceinline__ u32 pairs(int stage) const { return tile(stage, made.at_pairs); }
  __device__ __forceinline__ u32 queries(int stage) const { return tile(stage, made.at_queries); }
  __device__ __forceinline__ u32 reads(int stage) const { return tile(stage, made.at_reads); }
  __device__ __forceinline__ u32 inverse(int stage) const { return tile(stage, made.at_inverse); }
  __device__ __forceinline__ u32 keys(int stage) const { return tile(stage, made.at_keys); }
  __device__ __forceinline__ u32 numbers(int stage) const { return tile(stage, made.at_numbers); }
  __device__ __forceinline__ u32 v(int stage) const { return start + stage * layout.stage + layout.tiles; }
  // What a warpgroup leaves of a chunk: boxes of the state, and one of values; or o, of chunks in turns.
  __device__ __forceinline__ u32 kept(int group, int which) const {
    return start + layout.at_kept + (layout.boxes * group + which) * box;
  }
  __device__ __forceinline__ u32 full(int stage) const { return start + layout.at_barriers + stage * 16; }
  __device__ __forceinline__ u32 empty(int stage) const { return full(stage) + 8; }

  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < stages; ++i) barrier_init(full(i), 1), barrier_init(empty(i), 4 * groups);
    barrier_init_done();
  }
};

template <class Spec, class Config, bool Sums>
struct ChainProducer {
  using Shared = SharedChain<Spec, Config, Sums>;

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const LinearChain<Config> &chain;

  __device__ __forceinline__ void load(int stage, int chunk) const {
    constexpr int bytes = Shared::layout.tiles;
    const u32 full = shared.full(stage);
    barrier_arrive_expect(full, chain.of_map ? bytes : Shared::layout.stage);
    bulk_load(
        shared.start + stage * Shared::layout.stage,
        static_cast<const unsigned char *>(p.kept.tiles) + chain.slot(p, chunk) * Shared::made.bytes + Shared::first,
        bytes, full);
    if (chain.of_map) return;
#pragma unroll
    for (int i = 0; i < Shared::groups; ++i)
      tensor_load(shared.v(stage) + i * Shared::box, maps.v, full, chain.first_value + i * 64, chain.box(chunk),
                  chain.site.hv);
  }
  __device__ __forceinline__ void run() const {
    PipelineState<Shared::stages> at(1);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      barrier_wait(shared.empty(at.stage), at.parity);
      if (elected()) load(at.stage, chain.at(n));
      __syncwarp();
      at.advance();
    }
  }
};

template <class Spec, class Config, bool Sums>
struct TileChain {
  using Shared = SharedChain<Spec, Config, Sums>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr int k_dim = Shared::k_dim, boxes_k = Shared::boxes_k, boxes_v = ceil_div(Config::v_dim, 64),
                       barrier = 1;  // and one more for each warpgroup
  static constexpr bool backwards = Shared::backwards, keeps_values = Spec::erases || backwards;

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const LinearChain<Config> &chain;
  const int group, warp;
  int lane;
  PipelineState<Shared::stages> in{0};

  __device__ __forceinline__ int first_value() const { return chain.first_value + group * 64; }
  __device__ __forceinline__ StateRows<Config> rows() const {
    return {chain, first_value() + 16 * warp + Fragment::row(lane), lane};
  }

  // ---- load ----

  __device__ __forceinline__ ValueHooks<Spec, Config> hooks() const {
    return {p, chain, first_value() + 16 * warp, lane};
  }
  // V' as an A operand: value channels by tokens. A map has none.
  __device__ __forceinline__ void load_values(u32 (&v)[4][4]) const {
    const u32 from =
        shared.v(in.stage) + group * Shared::box + box_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8);
#pragma unroll
    for (int s = 0; s < 4; ++s) ldmatrix_x4_turned(v[s], from + s * 16 * 128);
    if constexpr (Sums)
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i / 4][i % 4] = chain.of_map ? 0 : v[i / 4][i % 4];
  }
  template <int Steps, int N>
  __device__ __forceinline__ static void round(u32 (&a)[Steps][4], const float (&x)[N]) {
    static_assert(N == 8 * Steps);
#pragma unroll
    for (int i = 0; i < 4 * Steps; ++i) a[i / 4][i % 4] = pack<Elem>(x[2 * i], x[2 * i + 1]);
  }

  // ---- products ----

  // x = S' times rows of a tile; committed.
  __device__ __forceinline__ static void meet(float (&x)[32], const u32 (&state)[k_dim / 16][4], u32 tile) {
    WgmmaKept<Elem>::template dots64<true>(x, state, wgmma_operand(tile, 0));
    if constexpr (k_dim == 128)
      WgmmaKept<Elem>::template dots64<false>(x, state + 4, wgmma_operand(tile + Shared::box, 0));
    wgmma_commit();
  }
  // S' += u times a tile; committed.
  __device__ __forceinline__ static void join(float (&state)[k_dim / 2], u32 (&u)[4][4], u32 tile) {
    Wgmma<Elem, k_dim>::sums64(state, u[0], u[1], u[2], u[3], wgmma_operand(tile, Shared::box));
    wgmma_commit();
  }
  __device__ __forceinline__ void decay(float (&state)[k_dim / 2]) const {
    const u32 left = shared.numbers(in.stage);
#pragma unroll
    for (int j = 0; j < k_dim / 4; j += 2) {
      const float2 by = load_pair(left + Fragment::column(lane, j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) state[Fragment::element(r, j)] *= by.x, state[Fragment::element(r, j + 1)] *= by.y;
    }
  }
  // w V - y, as an A operand.
  __device__ __forceinline__ void subtract(u32 (&v)[4][4], const float (&y)[32]) const {
    const u32 writes = shared.numbers(in.stage) + LINEAR_TILE_WRITES + Fragment::column(lane) * 4;
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int e = 8 * s + 2 * i;
        float2 write = {1, 1};
        if constexpr (Spec::has_write) write = load_pair(writes + (16 * s + i / 2 * 8) * 4);
        v[s][i] =
            pack<Elem>(write.x * half_of<Elem>(v[s][i], 0) - y[e], write.y * half_of<Elem>(v[s][i], 1) - y[e + 1]);
      }
  }

  // ---- finish: what is kept ----

  __device__ __forceinline__ void stage_state(const u32 (&state)[k_dim / 16][4]) const {
    const u32 at = box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) {
      const u32 to = shared.kept(group, s / 4) + (at ^ u32((16 * (s % 4) + lane / 16 * 8) / 8 * 16));
      stmatrix_x4(to, state[s][0], state[s][1], state[s][2], state[s][3]);
    }
  }
  __device__ __forceinline__ void stage_values(const u32 (&x)[4][4]) const {
    const u32 to = shared.kept(group, boxes_k) + box_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8);
#pragma unroll
    for (int s = 0; s < 4; ++s) stmatrix_x4_turned(to + s * 16 * 128, x[s][0], x[s][1], x[s][2], x[s][3]);
  }
  // Value channels that do not exist have no boxes.
  __device__ __forceinline__ void copy(void *kept, int first, int boxes, int n) const {
    const i64 place = (chain.slot(p, chain.at(n)) * boxes_v + first_value() / 64) * boxes;
    bulk_store(static_cast<unsigned char *>(kept) + place * Shared::box, shared.kept(group, first), boxes * Shared::box,
               first_value() < Config::v_dim);
  }
  __device__ __forceinline__ void copy_values(int n) const {
    if constexpr (Spec::erases)
      copy(backwards ? p.kept.grad_values : p.kept.values, boxes_k, 1, n);
    else
      tensor_store(shared.kept(group, boxes_k), maps.o, first_value(), chain.box(chain.at(n)), chain.site.hv);
  }
  // Keeps the state of chunk number n, if there is one, and values of the one before it.
  __device__ __forceinline__ void keep(const u32 (&state)[k_dim / 16][4], const u32 (&values)[4][4], int n,
                                       bool has_state) const {
    if constexpr (Sums) return;
    const bool first = warp == 0 && elected(), has_values = keeps_values && n > 0;
    if (first) bulk_wait_read();
    named_sync(barrier + group, 128);  // boxes are free
    if (has_state) stage_state(state);
    if (has_values) stage_values(values);
    fence_async();
    named_sync(barrier + group, 128);
    if (first) {
      if (has_state) copy(backwards ? p.kept.grad_states : p.kept.states, 0, boxes_k, n);
      if (has_values) copy_values(n - 1);
      bulk_commit();
    }
  }

  // ---- chunks ----

  __device__ __forceinline__ void release() {
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(in.stage));
    in.advance();
  }
  // Forwards; done becomes U.
  __device__ __forceinline__ void step(float (&state)[k_dim / 2], u32 (&done)[4][4], int n) {
    u32 rounded[k_dim / 16][4], v[4][4];
    float x[32];
    lane = lane_anew();
    round(rounded, state);
    barrier_wait(shared.full(in.stage), in.parity);
    if constexpr (Spec::erases) {
      wgmma_fence();
      meet(x, rounded, shared.reads(in.stage));
    }
    keep(rounded, done, n, true);
    load_values(v);
    if constexpr (Shared::forward) hooks().modify(v, chain.at(n));
    decay(state);
    if constexpr (Spec::erases) {
      wgmma_wait<0>();
      wgmma_arrived(x);
      subtract(v, x);
      wgmma_fence();
      WgmmaKept<Elem>::template dots64<true>(x, v, wgmma_operand(shared.inverse(in.stage), 0));
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_arrived(x);
      round(v, x);
    }
    wgmma_fence();
    join(state, v, shared.keys(in.stage));
    wgmma_wait<0>();
    wgmma_arrived(state);
    release();
#pragma unroll
    for (int i = 0; i < 16; ++i) done[i / 4][i % 4] = v[i / 4][i % 4];
  }
  // Backwards; done becomes dR, or dv.
  __device__ __forceinline__ void step_back(float (&state)[k_dim / 2], u32 (&done)[4][4], int n) {
    u32 rounded[k_dim / 16][4], v[4][4];
    float x[32];
    lane = lane_anew();
    round(rounded, state);
    barrier_wait(shared.full(in.stage), in.parity);
    wgmma_fence();
    meet(x, rounded, shared.keys(in.stage));
    keep(rounded, done, n, true);
    load_values(v);
    decay(state);
    wgmma_wait<0>();
    wgmma_arrived(x);
    wgmma_fence();
    Wgmma<Elem, 64>::sums64(x, v[0], v[1], v[2], v[3], wgmma_operand(shared.pairs(in.stage), 0));
    wgmma_commit();
    join(state, v, shared.queries(in.stage));
    wgmma_wait<1>();
    wgmma_arrived(x);
    round(done, x);
    if constexpr (Spec::erases) {
#pragma unroll
      for (int i = 0; i < 32; ++i) x[i] = 0;
      wgmma_fence();
      Wgmma<Elem, 64>::sums64(x, done[0], done[1], done[2], done[3], wgmma_operand(shared.inverse(in.stage), 0));
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_arrived(x), wgmma_arrived(state);
      round(done, x);
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i / 4][i % 4] = done[i / 4][i % 4] ^ 0x80008000u;  // less
      wgmma_fence();
      join(state, v, shared.reads(in.stage));
    }
    wgmma_wait<0>();
    wgmma_arrived(state);
    release();
  }
  __device__ __forceinline__ void take_step(float (&state)[k_dim / 2], u32 (&done)[4][4], int n) {
    if constexpr (backwards)
      step_back(state, done, n);
    else
      step(state, done, n);
  }
  // The state that the segment begins with.
  __device__ __forceinline__ void load_begin(float (&state)[k_dim / 2]) const {
    if (p.segments.count == 1)
      rows().load_first(state, p);
    else if constexpr (Spec::erases)
      rows().template load_segment<true>(state, p);
    else
      rows().load_decayed(state, p);
  }
  __device__ __forceinline__ void store_end(const float (&state)[k_dim / 2]) const {
    if (chain.segment == p.segments.count - 1) rows().store_last(state, p);
    if (warp == 0 && elected()) bulk_wait_read();
  }
  __device__ __forceinline__ void run() {
    float state[k_dim / 2];
    u32 done[4][4], none[k_dim / 16][4] = {};
    load_begin(state);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) take_step(state, done, n);
    if (keeps_values && chain.chunks() > 0) keep(none, done, chain.chunks(), false);
    store_end(state);
  }
};

// Of a thread of each warpgroup. A block has what its threads get at its launch: 168 each of 384, 255 of 256.
template <int Groups>
struct ChainRegisters {
  static constexpr int load = 40, values = 232;
  static_assert(Groups == 1 || load + Groups * values <= 3 * 168, "registers_up would wait for ever");
};
