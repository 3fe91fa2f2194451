// linear/sm90/linear_segments.cuh: chunks of updates that erase, without o, and what a segment of them is: a map of the state,
//
//     S <- M S + N
//
// N is what the segment makes of 0, and M, [K, K], what it makes of the unit matrix where nothing is written. So blocks of
// luattn_linear_states for channels of the map are like those for value channels; the first segment begins with the first
// state, and has no map. linear_join.cuh makes states of them. Where decays are great N is found from the segment's last chunks
// alone, and M counts as 0 (linear_segment_end.cuh).
#pragma once
#include "linear/sm90/linear_values.cuh"

template <class Spec, class Config, bool OnlyState>
struct ErasingChain : LinearValues<Spec, Config, OnlyState> {
  using Values = LinearValues<Spec, Config, OnlyState>;
  using Elem = typename Values::Elem;
  using Values::chain, Values::in, Values::k_dim, Values::lane, Values::p, Values::shared;

  // x = S' K'. Meanwhile `meanwhile` has S' rounded.
  template <class Meanwhile>
  __device__ __forceinline__ void read_keys(float (&x)[32], float (&state)[k_dim / 2],
                                            const Meanwhile &meanwhile) const {
    u32 rounded[k_dim / 16][4];
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) Values::round(rounded[s], state, s);
    this->await_numbers();
    this->decay_state(state);
    barrier_wait(shared.full(in.stage), in.parity);
    wgmma_fence();
    Values::read_state(x, rounded, shared.k(in.stage));
    meanwhile(rounded);
    wgmma_wait<0>();
    wgmma_arrived(x);
  }
  // A chunk forwards; u becomes U, rounded.
  template <class Meanwhile>
  __device__ __forceinline__ void advance(u32 (&v)[4][4], float (&state)[k_dim / 2], int chunk,
                                          const Meanwhile &meanwhile) {
    float u[32];
    u32 weighed[4][4];
    lane = lane_anew();
    read_keys(u, state, meanwhile);
    this->load_values(v);
    this->modify(v, chunk);
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i / 4][i % 4] = chain.of_map ? 0 : v[i / 4][i % 4];
    this->subtract(v, v, u);
    wgmma_fence();
    WgmmaKept<Elem>::template dots64<true>(u, v, wgmma_operand(shared.taken_inverse(in.stage), 0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(u);
    this->round_values(v, weighed, u);
    wgmma_fence();
    this->write_state(state, weighed);
    wgmma_wait<0>();
    wgmma_arrived(state);
    this->release();
  }
  __device__ __forceinline__ void load_begin(float (&state)[k_dim / 2]) const {
    if (p.segments.count > 1)
      this->rows().template load_segment<Spec::erases>(state, p);
    else
      this->rows().load_first(state, p);
  }
};

// N or M of a segment. All that a chunk needs beside the state is in registers before it does, and half of the channels of K are
// rounded, and meet the next chunk's keys, while the other half is summed up.
template <class Spec, class Config>
struct SegmentChain : ErasingChain<Spec, Config, true> {
  using Values = LinearValues<Spec, Config, true>;
  using Shared = typename Values::Shared;
  using Elem = typename Values::Elem;
  using Fragment = MmaFragment;
  using Values::chain, Values::group, Values::in, Values::k_dim, Values::lane, Values::of_tokens, Values::p,
      Values::shared;
  static constexpr int halves = k_dim / 64;

  // Of a chunk: S' K', w V, and r of the thread's columns.
  struct Chunk {
    float reads[32], written[32];
    float2 read[8];
  };

  __device__ __forceinline__ static float (&half(float (&state)[k_dim / 2], int h))[32] {
    return reinterpret_cast<float(&)[32]>(state[32 * h]);
  }
  __device__ __forceinline__ u32 keys(int h) const { return shared.k(in.stage) + h * Shared::box; }

  // ---- load ----

  __device__ __forceinline__ void await_chunk() const {
    this->await_numbers();
    barrier_wait(shared.full(in.stage), in.parity);
  }
  __device__ __forceinline__ void load_tokens(Chunk &x, int chunk) const {
    const u32 from = shared.numbers(of_tokens.stage) + Fragment::column(lane) * 4;
    u32 written = chain.of_map ? 0 : 0xffffffffu;
    asm volatile("" : "+r"(written));  // else NVVM branches for each pair
    u32 v[4][4];
    this->load_values(v);
    this->modify(v, chunk);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float2 write = {1, 1};
      if constexpr (Spec::has_write) write = load_pair(from + OF_WRITE + c * 32);
      x.read[c] = load_pair(from + OF_READ + c * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const u32 two = v[c / 2][c % 2 * 2 + r] & written;
        x.written[4 * c + 2 * r] = write.x * half_of<Elem>(two, 0);
        x.written[4 * c + 2 * r + 1] = write.y * half_of<Elem>(two, 1);
      }
    }
  }

  // ---- products ----

  __device__ __forceinline__ static void round_half(u32 (&rounded)[4][4], float (&state)[k_dim / 2], int h) {
#pragma unroll
    for (int s = 0; s < 4; ++s) Values::round(rounded[s], half(state, h), s);
  }
  template <bool First>
  __device__ __forceinline__ void read_half(Chunk &x, const u32 (&rounded)[4][4], int h) const {
    wgmma_fence();
    WgmmaKept<Elem>::template dots64<First>(x.reads, rounded, wgmma_operand(keys(h), 0));
    wgmma_commit();
  }
  // What is left of a chunk once its keys are under way: other loads, and decays.
  __device__ __forceinline__ void prepare(Chunk &x, float (&state)[k_dim / 2], int n) {
    lane = lane_anew();
    load_tokens(x, chain.at(n));
    this->decay_state(state);
    wgmma_wait<0>();
    wgmma_arrived(x.reads);
  }
  // U of a chunk, weighed.
  __device__ __forceinline__ void make_values(u32 (&weighed)[4][4], const Chunk &x) const {
    u32 left[4][4];
    float u[32];
    float2 factor[8];
#pragma unroll
    for (int i = 0; i < 16; ++i)
      left[i / 4][i % 4] = pack<Elem>(x.written[2 * i] - x.read[i / 2].x * x.reads[2 * i],
                                      x.written[2 * i + 1] - x.read[i / 2].y * x.reads[2 * i + 1]);
    wgmma_fence();
    WgmmaKept<Elem>::template dots64<true>(u, left, wgmma_operand(shared.taken_inverse(in.stage), 0));
    wgmma_commit();
    const u32 from = shared.numbers(of_tokens.stage) + OF_KEY + Fragment::column(lane) * 4;
#pragma unroll
    for (int c = 0; c < 8; ++c) factor[c] = load_pair(from + c * 32);
    wgmma_wait<0>();
    wgmma_arrived(u);
#pragma unroll
    for (int i = 0; i < 16; ++i)
      weighed[i / 4][i % 4] = pack<Elem>(u[2 * i] * factor[i / 2].x, u[2 * i + 1] * factor[i / 2].y);
  }
  __device__ __forceinline__ void add_half(float (&state)[k_dim / 2], u32 (&u)[4][4], int h) const {
    Wgmma<Elem, 64>::sums64(half(state, h), u[0], u[1], u[2], u[3], wgmma_operand(keys(h), Shared::box));
    wgmma_commit();
  }

  // ---- chunks ----

  __device__ __forceinline__ void begin(Chunk &x, float (&state)[k_dim / 2]) {
    u32 rounded[halves][4][4];
    await_chunk();
#pragma unroll
    for (int h = 0; h < halves; ++h) round_half(rounded[h], state, h);
    read_half<true>(x, rounded[0], 0);
    if constexpr (halves == 2) read_half<false>(x, rounded[1], 1);
    prepare(x, state, 0);
  }
  // Adds a chunk to the state, and begins the next one.
  __device__ __forceinline__ void step(Chunk &x, float (&state)[k_dim / 2], int n) {
    u32 weighed[4][4], rounded[halves][4][4];
    make_values(weighed, x);
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < halves; ++h) add_half(state, weighed, h);
    const int stage = in.stage;
    __syncwarp();
    if (elected()) barrier_arrive(shared.numbers_empty(of_tokens.stage));
    in.advance(), of_tokens.advance();
    await_chunk();
    wgmma_wait<halves - 1>();
    wgmma_arrived(half(state, 0));
    round_half(rounded[0], state, 0);
    read_half<true>(x, rounded[0], 0);
    if constexpr (halves == 2) {
      wgmma_wait<1>();
      wgmma_arrived(half(state, 1));
      round_half(rounded[1], state, 1);
      read_half<false>(x, rounded[1], 1);
    }
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(stage));
    prepare(x, state, n);
  }
  __device__ __forceinline__ void end(const Chunk &x, float (&state)[k_dim / 2]) const {
    u32 weighed[4][4];
    make_values(weighed, x);
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < halves; ++h) add_half(state, weighed, h);
    wgmma_wait<0>();
    wgmma_arrived(state);
  }
  __device__ __forceinline__ void run(bool forgets) {
    float state[k_dim / 2];
    this->rows().begin_sums(state, p, forgets);
    if (chain.chunks() > 0) {
      Chunk x;
      begin(x, state);
#pragma unroll 1
      for (int n = 1; n < chain.chunks(); ++n) step(x, state, n);
      end(x, state);
    }
    if (chain.of_map)
      this->rows().store(state, this->rows().map(p, chain.segment));
    else
      this->rows().store(state, this->rows().slot(p, chain.segment + 1));
  }
};
