// linear/sm90/linear_values.cuh: a warpgroup that owns 64 value channels of the state. S' [64, K] is an accumulator that
// never leaves registers, and every product has its A operand there, too:
//
//     O = S' Q'       A: S' rounded       B: Q, a row for each token
//     S' = a S' + U K A: U, weighed       B: K, transposed
//     O = e^G O + U P' A: U, from V by ldmatrix   B: P, a row for each query
//
// so no warp waits for another inside a chunk but where O goes to memory. Where an update erases, U is not V but
//
//     Y = S' K'              A: S' rounded          B: K, a row for each token
//     U = (w V - r Y) T'     A: that, rounded       B: T, a row for each token (linear_inverse.cuh)
//
// Where decays differ between channels, Q and K are tiles that have them (LinearTiles), and a differs between columns of S'.
#pragma once
#include "arch/mma.cuh"
#include "arch/stmatrix.cuh"
#include "arch/wgmma.cuh"
#include "arch/wgmma_transposed.cuh"
#include "linear/sm90/linear_states.cuh"
#include "linear/sm90/value_hooks.cuh"
#include "ops/math.cuh"
#include "source/cp_async_tile.cuh"

// Whether a pass for a gradient keeps the state of each chunk.
template <class Config>
concept KeepsWays = requires { requires Config::keeps_ways; };

template <class Spec, class Config, bool OnlyState>
struct LinearValues {
  using Shared = SharedLinear<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr int k_dim = Shared::k_dim;
  static constexpr bool decays = Shared::by_token;
  static constexpr bool by_key = decays || Shared::has_column_factor, has_scores = !OnlyState || Shared::by_channel;
  static constexpr int store_barrier = 1;  // and one more for each warpgroup
  // Whether sums of segments begin with the last chunk: what they read last is then what the next kernel reads first, and is in L2.
  // Not in half_t, in which what decays have left of a value may be 0 while it is all that a state has.
  static constexpr bool sums_turned =
      same_type<Elem, bf16_t>::value && !Spec::erases && !Shared::by_channel && Config::pass == LINEAR_FORWARD;

  const LuattnLinearParams &p;
  const LuattnTensorMaps &maps;
  const Shared shared;
  const LinearChain<Config> &chain;
  const int group, warp;
  int lane;
  PipelineState<Config::stages> in{0};
  PipelineState<Shared::number_stages> of_tokens{0};
  PipelineState<Shared::pair_stages> pairs{0};

  __device__ __forceinline__ int first_value() const { return Shared::two_heads ? 0 : chain.first_value + group * 64; }
  __device__ __forceinline__ StateRows<Config> rows() const {
    const int here = lane_anew();
    return {chain, first_value() + 16 * warp + Fragment::row(here), here};
  }

  __device__ __forceinline__ u32 inverse() const {
    return Shared::makes_inverse ? shared.made_inverse(pairs.stage) : shared.taken_inverse(in.stage);
  }
  // Of q and v.
  __device__ __forceinline__ int rows_stage() const { return Shared::makes_inverse ? pairs.stage : in.stage; }

  // ---- load ----

  // Rounds columns 16 step .. 16 step + 15 of an accumulator to an A operand.
  template <int N>
  __device__ __forceinline__ static void round(u32 (&a)[4], const float (&x)[N], int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack<Elem>(x[8 * step + 2 * i], x[8 * step + 2 * i + 1]);
  }
  // V' as an A operand: value channels by tokens.
  __device__ __forceinline__ void load_values(u32 (&v)[4][4]) const {
    const u32 from = shared.v(rows_stage()) + group * Shared::box +
                     box_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8);
#pragma unroll
    for (int s = 0; s < 4; ++s) ldmatrix_x4_turned(v[s], from + s * 16 * 128);
  }

  // ---- products ----

  // S' times rows of q or of k.
  __device__ __forceinline__ static void read_state(float (&x)[32], const u32 (&state)[k_dim / 16][4], u32 rows) {
    WgmmaKept<Elem>::template dots64<true>(x, state, wgmma_operand(rows, 0));
    if constexpr (k_dim == 128)
      WgmmaKept<Elem>::template dots64<false>(x, state + 4, wgmma_operand(rows + Shared::box, 0));
    wgmma_commit();
  }
  __device__ __forceinline__ void write_state(float (&state)[k_dim / 2], u32 (&u)[4][4]) const {
    Wgmma<Elem, k_dim>::sums64(state, u[0], u[1], u[2], u[3], wgmma_operand(shared.k(in.stage), Shared::box));
    wgmma_commit();
  }
  // U times the factors of its tokens, and times `left`.
  template <bool HasLeft = false>
  __device__ __forceinline__ void weigh(u32 (&weighed)[4][4], const u32 (&u)[4][4], float left = 1) const {
    const u32 from = shared.numbers(of_tokens.stage) + OF_KEY + Fragment::column(lane) * 4;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float2 factor = {1, 1};
      if constexpr (by_key) factor = load_pair(from + c * 32);
      if constexpr (HasLeft) factor.x *= left, factor.y *= left;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const u32 x = u[c / 2][c % 2 * 2 + r];
        u32 &to = weighed[c / 2][c % 2 * 2 + r];
        if constexpr (by_key)
          to = pack<Elem>(half_of<Elem>(x, 0) * factor.x, half_of<Elem>(x, 1) * factor.y);
        else
          to = x;
      }
    }
  }
  // w V - r Y, as an A operand.
  __device__ __forceinline__ void subtract(u32 (&left)[4][4], const u32 (&v)[4][4], const float (&y)[32]) const {
    const u32 from = shared.numbers(of_tokens.stage) + Fragment::column(lane) * 4;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float2 read = load_pair(from + OF_READ + c * 32);
      float2 write = {1, 1};
      if constexpr (Spec::has_write) write = load_pair(from + OF_WRITE + c * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        u32 &x = left[c / 2][c % 2 * 2 + r];
        const u32 of_v = v[c / 2][c % 2 * 2 + r];
        const int e = 4 * c + 2 * r;
        x = pack<Elem>(write.x * half_of<Elem>(of_v, 0) - read.x * y[e],
                       write.y * half_of<Elem>(of_v, 1) - read.y * y[e + 1]);
      }
    }
  }
  // U in two roundings: as it meets P, and as it joins the state.
  __device__ __forceinline__ void round_values(u32 (&u)[4][4], u32 (&weighed)[4][4], const float (&x)[32]) const {
    const u32 from = shared.numbers(of_tokens.stage) + OF_KEY + Fragment::column(lane) * 4;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float2 factor = load_pair(from + c * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int s = c / 2, i = c % 2 * 2 + r, e = 4 * c + 2 * r;
        u[s][i] = pack<Elem>(x[e], x[e + 1]);
        weighed[s][i] = pack<Elem>(x[e] * factor.x, x[e + 1] * factor.y);
      }
    }
  }
  __device__ __forceinline__ void decay_state(float (&state)[k_dim / 2]) const {
    if constexpr (decays) {
      const float left = load_number(shared.numbers(of_tokens.stage) + OF_CHUNK);
#pragma unroll
      for (int i = 0; i < k_dim / 2; ++i) state[i] *= left;
    }
  }
  // Multiplies columns by one of the arrays of LinearTiles.
  __device__ __forceinline__ void scale_columns(float (&state)[k_dim / 2], u32 factors) const {
#pragma unroll
    for (int j = 0; j < k_dim / 4; j += 2) {
      const float2 factor = load_pair(factors + Fragment::column(lane, j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        state[Fragment::element(r, j)] *= factor.x, state[Fragment::element(r, j + 1)] *= factor.y;
    }
  }
  __device__ __forceinline__ void scale_rows(float (&o)[32]) const {
    const u32 from = shared.numbers(of_tokens.stage) + OF_QUERY + Fragment::column(lane) * 4;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float2 factor = load_pair(from + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) o[Fragment::element(r, j)] *= factor.x, o[Fragment::element(r, j + 1)] *= factor.y;
    }
  }
  __device__ __forceinline__ ValueHooks<Spec, Config> hooks() const {
    return {p, chain, first_value() + 16 * warp, lane};
  }
  // v is loaded again: registers are few.
  __device__ __forceinline__ void skip_values(float (&o)[32], int chunk) const {
    u32 v[4][4];
    load_values(v);
    hooks().skip(o, v, chunk);
  }
  __device__ __forceinline__ void modify(u32 (&v)[4][4], int chunk) const { hooks().modify(v, chunk); }

  // ---- o ----

  // Rounded rows of 64 tokens, in a box.
  __device__ __forceinline__ void stage_rows(u32 box, const u32 (&x)[16]) const {
    const u32 to = box + box_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      stmatrix_x4_turned(to + s * 16 * 128, x[4 * s], x[4 * s + 1], x[4 * s + 2], x[4 * s + 3]);
  }
  // All that the warpgroup has staged before has been read.
  __device__ __forceinline__ void await_boxes() const {
    if (warp == 0 && elected()) bulk_wait_read();
    named_sync(store_barrier + group, 128);
  }
  // Stages o, rounded, and stores it by TMA. A box is free once the store before the last one has read it, or the last one.
  __device__ __forceinline__ void store_rows(const u32 (&o)[16], int chunk) const {
    const u32 box = shared.o(group, chunk % Shared::layout.boxes_o);
    if (Shared::layout.boxes_o == 1 || keeps()) await_boxes();
    stage_rows(box, o);
    fence_async();
    const bool first = warp == 0 && elected();
    if (first) bulk_wait_read();
    named_sync(store_barrier + group, 128);
    if (first) {
      tensor_store(box, maps.o, first_value(), chain.box(chunk), chain.site.hv);
      bulk_commit();
    }
  }
  __device__ __forceinline__ void await_stores() const {
    if (warp == 0 && elected()) bulk_wait_read();  // TMA still reads the block's shared memory
  }
  __device__ __forceinline__ void store_nothing() const {
    const u32 none[16] = {};
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) store_rows(none, chain.at(n));
    await_stores();
  }

  // ---- what is kept for backward ----

  __device__ __forceinline__ bool keeps() const { return Shared::may_keep && p.kept.states != nullptr; }
  __device__ __forceinline__ void stage_state(const u32 (&state)[k_dim / 16][4]) const {
    const u32 at = box_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) {
      const u32 to = shared.kept(group, s / 4) + (at ^ u32((16 * (s % 4) + lane / 16 * 8) / 8 * 16));
      stmatrix_x4(to, state[s][0], state[s][1], state[s][2], state[s][3]);
    }
  }
  // Copies `boxes` of those staged to the place of a chunk. Value channels that do not exist have none.
  __device__ __forceinline__ void copy(void *kept, u32 from, int boxes, int n) const {
    const i64 place = (chain.slot(p, chain.at(n)) * ceil_div(Config::v_dim, 64) + first_value() / 64) * boxes;
    bulk_store(static_cast<unsigned char *>(kept) + place * Shared::box, from, boxes * Shared::box,
               first_value() < Config::v_dim);
  }
  // The state before chunk number n, by way of boxes of o.
  __device__ __forceinline__ void keep_state(const u32 (&state)[k_dim / 16][4], int n) const {
    await_boxes();
    stage_state(state);
    fence_async();
    named_sync(store_barrier + group, 128);
    if (warp == 0 && elected()) copy(p.kept.states, shared.kept(group, 0), Shared::boxes_k, n), bulk_commit();
  }
  // U, in the place of the chunk's values, of which each warp has read what it overwrites.
  __device__ __forceinline__ void keep_values(const u32 (&u)[4][4], int n) const {
    const u32 box = shared.v(in.stage) + group * Shared::box;
    u32 x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = u[i / 4][i % 4];
    stage_rows(box, x);
    fence_async();
    named_sync(store_barrier + group, 128);
    if (warp == 0 && elected()) copy(p.kept.values, box, 1, n), bulk_commit();
  }

  // ---- chunks ----

  __device__ __forceinline__ void await_numbers() const {
    barrier_wait(shared.numbers_full(of_tokens.stage), of_tokens.parity);
  }
  __device__ __forceinline__ void await_pairs() const { barrier_wait(shared.told(pairs.stage), pairs.parity); }
  // Where the kernel makes T itself: of a stage of P.
  __device__ __forceinline__ void release_early(u32 barrier) const {
    __syncwarp();
    if (elected()) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (elected()) {
      if (warp == 0 && keeps()) bulk_wait_read();
      barrier_arrive(shared.empty(in.stage));
      barrier_arrive(shared.numbers_empty(of_tokens.stage));
      if constexpr (has_scores) barrier_arrive(shared.read(pairs.stage));
      if constexpr (Shared::makes_inverse && Spec::has_skip) barrier_arrive(shared.rows_empty(pairs.stage));
    }
    in.advance(), of_tokens.advance(), pairs.advance();
    if constexpr (Shared::two_heads) of_tokens.advance(), pairs.advance();
  }
  // The state as an operand, and as what keys join: products would wait for it, so both before the first of them.
  __device__ __forceinline__ void round_state(u32 (&rounded)[k_dim / 16][4], float (&state)[k_dim / 2]) const {
    const u32 factors = shared.factors(pairs.stage);
    if constexpr (Shared::by_channel) {
      barrier_wait(shared.tiled(pairs.stage), pairs.parity);
      scale_columns(state, factors + OF_BEFORE);
    }
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) round(rounded[s], state, s);
    await_numbers();
    decay_state(state);
    if constexpr (Shared::by_channel) scale_columns(state, factors + OF_WITHIN);
  }
  // Keeps the state before the chunk, or that behind it, as registers have it, for number_grads.cuh.
  __device__ __forceinline__ void keep_rounded(const u32 (&state)[k_dim / 16][4], int n) const {
    if (first_value() >= Config::v_dim) return;
    const i64 at = chain.slot(p, chain.at(n)) * ceil_div(Config::v_dim, 64) + first_value() / 64;
    uint4 *const to = static_cast<uint4 *>(LinearChain<Config>::backwards ? p.kept.grad_states : p.kept.states) +
                      at * (k_dim / 16 * 128) + warp * 32 + lane;
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) to[s * 128] = {state[s][0], state[s][1], state[s][2], state[s][3]};
  }
  // What derives from the thread's number is computed anew in each chunk: the loop has no registers to keep it.
  __device__ __forceinline__ void step(float (&state)[k_dim / 2], u32 (&done)[16], int n) {
    const int chunk = chain.at(n);
    float o[32];
    u32 rounded[k_dim / 16][4], v[4][4], weighed[4][4];
    lane = lane_anew();
    round_state(rounded, state);
    if constexpr (KeepsWays<Config>) keep_rounded(rounded, n);
    barrier_wait(shared.full(in.stage), in.parity);
    wgmma_fence();
    read_state(o, rounded, shared.q(in.stage));
    load_values(v);
    modify(v, chunk);
    weigh(weighed, v);
    wgmma_fence();
    write_state(state, weighed);
    if (n > 0) store_rows(done, chain.at(n - 1));
    await_pairs();
    wgmma_wait<1>();
    wgmma_arrived(o);
    scale_rows(o);
    wgmma_fence();
    WgmmaKept<Elem>::template dots64<false>(o, v, wgmma_operand(shared.pairs(pairs.stage), 0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(state), wgmma_arrived(o);
    if constexpr (Spec::has_skip) skip_values(o, chunk);
    release();
#pragma unroll
    for (int i = 0; i < 16; ++i) done[i] = pack<Elem>(o[2 * i], o[2 * i + 1]);
  }
  __device__ __forceinline__ void step_erasing(float (&state)[k_dim / 2], u32 (&done)[16], int n) {
    const int chunk = chain.at(n);
    float o[32], u[32];
    {
      u32 rounded[k_dim / 16][4], v[4][4];
      round_state(rounded, state);
      if (keeps()) keep_state(rounded, n);
      barrier_wait(shared.full(in.stage), in.parity);
      if constexpr (Shared::makes_inverse) barrier_wait(shared.rows_full(pairs.stage), pairs.parity);
      wgmma_fence();
      read_state(u, rounded, shared.k(in.stage));
      read_state(o, rounded, shared.q(rows_stage()));
      if (n > 0) store_rows(done, chain.at(n - 1));
      wgmma_wait<0>();  // for o, too, whose operand would have no registers beside what comes
      wgmma_arrived(u), wgmma_arrived(o);
      load_values(v);
      if constexpr (Shared::makes_inverse && !Spec::has_skip) release_early(shared.rows_empty(pairs.stage));
      modify(v, chunk);
      subtract(v, v, u);
      if constexpr (Shared::makes_inverse) barrier_wait(shared.inverse_told(pairs.stage), pairs.parity);
      wgmma_fence();
      WgmmaKept<Elem>::template dots64<true>(u, v, wgmma_operand(inverse(), 0));
      wgmma_commit();
    }
    scale_rows(o);
    if constexpr (!Shared::makes_inverse) await_pairs();
    wgmma_wait<0>();
    wgmma_arrived(u);
    if constexpr (Shared::makes_inverse) release_early(shared.inverse_read(pairs.stage));
    u32 rounded[4][4], weighed[4][4];
    round_values(rounded, weighed, u);
    if constexpr (Shared::makes_inverse) await_pairs();
    if (keeps()) keep_values(rounded, n);
    wgmma_fence();
    write_state(state, weighed);
    WgmmaKept<Elem>::template dots64<false>(o, rounded, wgmma_operand(shared.pairs(pairs.stage), 0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(state), wgmma_arrived(o);
    if constexpr (Spec::has_skip) skip_values(o, chunk);
    release();
#pragma unroll
    for (int i = 0; i < 16; ++i) done[i] = pack<Elem>(o[2 * i], o[2 * i + 1]);
  }
  // The same without o. Turned, the state stays as it is, and what joins it decays over all that is behind it: those are in `total`.
  __device__ __forceinline__ void step_state(float (&state)[k_dim / 2], float &total, int chunk) {
    u32 v[4][4], weighed[4][4];
    barrier_wait(shared.full(in.stage), in.parity);
    load_values(v);
    modify(v, chunk);
    await_numbers();
    if constexpr (!sums_turned) decay_state(state);
    weigh<sums_turned && decays>(weighed, v, fast_exp2(total));
    total += load_number(shared.numbers(of_tokens.stage) + OF_CHUNK + 4);
    wgmma_fence();
    write_state(state, weighed);
    wgmma_wait<0>();
    wgmma_arrived(state);
    release();
  }
  // What the last chunk leaves of the state: numbers that no other chunk has overwritten.
  __device__ __forceinline__ void leave_last(float (&state)[k_dim / 2]) const {
    const int last = (pairs.stage + Shared::pair_stages - 1) % Shared::pair_stages;
    if (chain.chunks() > 0) scale_columns(state, shared.factors(last) + OF_AFTER);
  }
  // Of two heads, whose numbers and pairs come in turns, the second one's come behind the first one's.
  __device__ __forceinline__ void begin_of_two() {
    if (group == 1) of_tokens.advance(), pairs.advance();
  }
  __device__ __forceinline__ void run() {
    float state[k_dim / 2];
    u32 done[16];
    if (p.segments.count > 1)
      rows().template load_segment<Spec::erases>(state, p);
    else
      rows().load_first(state, p);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      if constexpr (!Shared::by_channel && Config::pass == LINEAR_FORWARD) rows().store_between(state, p, chain.at(n));
      if constexpr (Spec::erases)
        step_erasing(state, done, n);
      else
        step(state, done, n);
    }
    if constexpr (Shared::by_channel) leave_last(state);
    if (chain.chunks() > 0) store_rows(done, chain.at(chain.chunks() - 1));
    if (chain.segment == p.segments.count - 1) rows().store_last(state, p);
    await_stores();
  }
  // What the segment adds to 0, and the first one to the first state, which is copied. Nothing is left of a state if it forgets
  // (linear_segment_end.cuh).
  __device__ __forceinline__ void run_state(bool forgets) {
    float state[k_dim / 2], total = forgets && !sums_turned ? -infinity<float>() : 0.f;
    if constexpr (sums_turned)
      rows().load_unit(state);  // 0
    else
      rows().begin_sums(state, p, forgets);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) step_state(state, total, chain.at(n));
    if constexpr (sums_turned) rows().add_first(state, p, forgets ? 0.f : fast_exp2(total));
    rows().store(state, rows().slot(p, chain.segment + 1));
    if (chain.first_value == 0 && group == 0 && warp == 0 && lane == 0)
      p.segments.decays[chain.number(p, chain.segment)] = forgets ? -infinity<float>() : total;
  }
};
