// linear/sm90/linear_join.cuh: the state at the beginning of each segment of updates that erase, M S + N one after another.
// Backwards, with the maps of forward, its gradient behind each segment, M' dS + N, from the last one.
//
// A block has 16 value channels of an entry and value head; each of its warps has 16 channels of K, as columns of S'. Numbers
// are taken in two halves each, so that a state keeps its digits over many segments.
#pragma once
#include "arch/early_launch.cuh"
#include "arch/mma.cuh"
#include "linear/sm90/linear_states.cuh"

template <class Spec, class Config>
struct SegmentJoin {
  static constexpr int rows = LINEAR_JOIN_VALUES, steps = ceil_div(Config::k_dim, 16);  // steps: of 16 channels
  static constexpr bool turned = LinearChain<Config>::backwards;
  static_assert(rows == 16 && steps * 32 <= LINEAR_JOIN_THREADS);

  const LuattnLinearParams &p;
  const LinearChain<Config> chain;
  const int first, warp, lane;  // first: of the block's value channels

  struct Halves {
    u32 upper, lower;
  };
  __device__ __forceinline__ static Halves split(float a, float b) {
    const u32 upper = pack<bf16_t>(a, b);
    return {upper, pack<bf16_t>(a - __uint_as_float(upper << 16), b - __uint_as_float(upper & 0xffff0000u))};
  }
  __device__ __forceinline__ static bool has(int value, int key) {
    return value < Config::v_dim && key < Config::k_dim;
  }
  __device__ __forceinline__ float *slot(int segment) const {
    return p.segments.states + chain.number(p, segment) * (Config::v_dim * Config::k_dim);
  }
  // Element i of 8 of an accumulator of two groups of 8 columns.
  __device__ __forceinline__ int value(int i) const { return first + MmaFragment::row(lane, i / 2 % 2); }
  __device__ __forceinline__ int key(int i) const { return 16 * warp + MmaFragment::column(lane) + i / 4 * 8 + i % 2; }

  // ---- load ----

  __device__ __forceinline__ void load(float (&x)[8], int segment) const {
    const float *const from = slot(segment);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = has(value(i), key(i)) ? from[value(i) * Config::k_dim + key(i)] : 0.f;
  }
  // The map's rows of the warp's channels, as B operands of two groups of 8 columns: pairs along its columns. It leads to
  // the state of segment `to`, in the order of the pass.
  __device__ __forceinline__ void load_map(float2 (&m)[steps][4], int to) const {
    const int segment = turned ? p.segments.count - to : to - 1;
    const float *const from = p.segments.maps + chain.number(p, segment) * (Config::k_dim * Config::k_dim);
#pragma unroll
    for (int s = 0; s < steps; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * warp + MmaFragment::row(lane) + i / 2 * 8,
                  column = 16 * s + MmaFragment::column(lane) + i % 2 * 8;
        const bool there = row < Config::k_dim && column < Config::k_dim;
        m[s][i] = float2{0, 0};
        if (there && turned)
          m[s][i] = {from[column * Config::k_dim + row], from[(column + 1) * Config::k_dim + row]};
        else if (there)
          m[s][i] = *reinterpret_cast<const float2 *>(from + row * Config::k_dim + column);
      }
  }

  // Bits of states `to` which a map leads to. Where there are decays it may count as 0.
  __device__ __forceinline__ u32 find_maps() const {
    const bool inner = lane >= 2 && lane < p.segments.count;
    bool has = inner;
    if constexpr (Spec::decay_of != DECAY_NONE)
      has = inner && p.segments.decays[chain.number(p, turned ? p.segments.count - lane : lane - 1)] != 0;
    return __ballot_sync(0xffffffffu, has);
  }

  // ---- compute ----

  __device__ __forceinline__ static void add(float *sum, const u32 (&a)[2][4], Halves b0, Halves b1) {
    float(&x)[4] = *reinterpret_cast<float(*)[4]>(sum);
    mma_16x8x16<bf16_t>(x, a[1], b0.upper, b1.upper);
    mma_16x8x16<bf16_t>(x, a[0], b0.lower, b1.lower);
    mma_16x8x16<bf16_t>(x, a[0], b0.upper, b1.upper);
  }
  // x += S' M', with S' in shared memory: a word of each half for two channels.
  __device__ __forceinline__ void apply(float (&x)[8], const float2 (&m)[steps][4],
                                        const u32 (*s)[rows][steps * 8 + 4]) const {
#pragma unroll
    for (int n = 0; n < steps; ++n) {
      u32 a[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          a[half][i] = s[half][MmaFragment::row(lane, i % 2)][8 * n + MmaFragment::column(lane) / 2 + i / 2 * 4];
      add(x, a, split(m[n][0].x, m[n][0].y), split(m[n][1].x, m[n][1].y));
      add(x + 4, a, split(m[n][2].x, m[n][2].y), split(m[n][3].x, m[n][3].y));
    }
  }

  // ---- finish ----

  __device__ __forceinline__ void store(const float (&x)[8], int segment, u32 (*s)[rows][steps * 8 + 4]) const {
    float *const to = slot(segment);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (has(value(i), key(i))) to[value(i) * Config::k_dim + key(i)] = x[i];
    share(x, s);
  }
  __device__ __forceinline__ void share(const float (&x)[8], u32 (*s)[rows][steps * 8 + 4]) const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const Halves h = split(x[i], x[i + 1]);
      const int row = MmaFragment::row(lane, i / 2 % 2), at = key(i) / 2;
      s[0][row][at] = h.upper, s[1][row][at] = h.lower;
    }
  }
  // Slots of states hold N of the segment before them; that of the second segment is a state already.
  __device__ __forceinline__ void run(u32 (*shared)[2][rows][steps * 8 + 4]) const {
    float x[8];
    float2 m[2][steps][4];
    const bool has_columns = warp < steps;
    const u32 maps = find_maps();
    if (maps == 0) return;
    if (has_columns) {
      load(x, 1), share(x, shared[0]);
      if (maps >> 2 & 1) load_map(m[0], 2);
    }
#pragma unroll 1
    for (int i = 2; i < p.segments.count; i += 2) {
      step(i, maps >> i, m[0], m[1], shared[0], shared[1], has_columns);
      if (i + 1 < p.segments.count) step(i + 1, maps >> (i + 1), m[1], m[0], shared[1], shared[0], has_columns);
    }
  }
  // The state of segment i, by its map, if there is one: bit 0 of maps; the next one's is loaded meanwhile.
  __device__ __forceinline__ void step(int i, u32 maps, const float2 (&m)[steps][4], float2 (&next)[steps][4],
                                       u32 (*from)[rows][steps * 8 + 4], u32 (*to)[rows][steps * 8 + 4],
                                       bool has_columns) const {
    float x[8];
    if (has_columns) {
      load(x, i);
      if (maps & 2) load_map(next, i + 1);
    }
    __syncthreads();
    if (!has_columns) return;
    if (maps & 1) apply(x, m, from);
    store(x, i, to);
  }
};

// Blocks: one for each 16 value channels of each entry and value head.
template <class Spec, class Config>
LUATTN_FN void linear_join(const LuattnLinearParams &p) {
  using Join = SegmentJoin<Spec, Config>;
  let_next_start();
  wait_for_previous();
  __shared__ u32 states[2][2][Join::rows][Join::steps * 8 + 4];
  const JoinBlock<Config> block(p);
  if (block.chain.state_row(p) < 0) return;
  Join{p, block.chain, block.first, int(threadIdx.x / 32), int(threadIdx.x % 32)}.run(states);
}
