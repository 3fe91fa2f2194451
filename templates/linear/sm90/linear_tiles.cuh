// linear/sm90/linear_tiles.cuh: tiles of q and k with decays that differ between channels, in the place of q and k, and what
// columns of the state are multiplied by to meet them. With G the sum of a chunk's decays up to a token, GC all of it and
// GM that of the first half:
//
//     chunk    q           k           state, before it meets q; before k joins it; behind the chunk
//     narrow   e^(G - GM)  e^(GM - G)  e^GM, 1, e^(GC - GM)
//     wide     e^G         e^(GC - G)  1, e^GC, 1
//
// A chunk is narrow where neither half decays by more than half of the limit in its fastest channel: then q' k of these tiles
// are its pairs, too, and exponents above 0 stay in the range of Elem. In a wide one no exponent is above 0.
#pragma once
#include "arch/mma.cuh"
#include "linear/sm90/linear_pipeline.cuh"
#include "ops/math.cuh"

// By how much decays may differ in a tile whose reference lies inside it, to the base of 2: e^80, of which bf16 and float
// keep all digits, and for half_t e^7, whose range has room for keys up to 59.
template <class Elem>
inline constexpr float tile_limit = (same_type<Elem, half_t>::value ? 7.f : 80.f) * op_log2_e;

template <class Spec, class Config>
struct LinearTiles {
  using Shared = SharedLinear<Spec, Config>;
  using Elem = typename Config::Elem;
  static constexpr int k_dim = Shared::k_dim, block = 16;
  static constexpr int barrier = 2 + Shared::groups;  // behind those of linear_values.cuh and linear_inverse.cuh
  static constexpr int row_bytes = linear_gate_row(k_dim), block_bytes = block * row_bytes;
  static constexpr int lanes = k_dim / 4, rows = 32 / lanes;  // of a row of 4 channels a lane; at once

  const Shared shared;
  const int warp, lane;

  __device__ __forceinline__ static void sync() { named_sync(barrier, 128); }
  // Of a block of 16 tokens: all its decays lie in the last row of its sums.
  __device__ __forceinline__ static u32 total(u32 gates, int b) { return gates + b * block_bytes + 15 * row_bytes; }

  // ---- factors of columns ----

  // A thread for each channel, which also has what the chunk before has left of its column: in that one's stage.
  static constexpr int stages = Shared::pair_stages;
  __device__ __forceinline__ int own() const { return (warp * 32 + lane) % k_dim; }
  __device__ __forceinline__ void begin() const {
    if (warp * 32 + lane < k_dim) store_number(shared.factors(stages - 1) + OF_AFTER + 4 * own(), 1);
  }
  // Returns whether the chunk is narrow.
  __device__ __forceinline__ bool find_factors(u32 gates, int stage) const {
    const u32 all = gates + 4 * own(), to = shared.factors(stage) + 4 * own();
    const float first = load_number(total(all, 0)) + load_number(total(all, 1)),
                second = load_number(total(all, 2)) + load_number(total(all, 3));
    const bool narrow = all_narrow(min_of(first, second) > -0.5f * tile_limit<Elem>);
    if (warp * 32 + lane < k_dim) {
      const float left = load_number(shared.factors((stage + stages - 1) % stages) + OF_AFTER + 4 * own());
      store_number(to + OF_BEFORE, left * (narrow ? fast_exp2(first) : 1.f));
      store_number(to + OF_WITHIN, narrow ? 1.f : fast_exp2(first + second));
      store_number(to + OF_AFTER, narrow ? fast_exp2(second) : 1.f);
    }
    return narrow;
  }
  __device__ __forceinline__ bool all_narrow(bool mine) const {
    const u32 flags = shared.factors(0) + OF_NARROW;
    const bool warps = __all_sync(0xffffffffu, mine);
    float of_warp[4];
    if (lane == 0) store_number(flags + 4 * warp, warps ? 1.f : 0.f);
    sync();
    load_four(of_warp, flags);
    return of_warp[0] + of_warp[1] + of_warp[2] + of_warp[3] == 4.f;
  }

  // ---- tiles ----

  // Exponents of rows of q less their sums, and of k with them, in the warp's block.
  __device__ __forceinline__ void find_offsets(float (&of_q)[4], float (&of_k)[4], u32 gates, bool narrow) const {
    float t[4][4];
#pragma unroll
    for (int b = 0; b < 4; ++b) load_four(t[b], total(gates, b) + lane % lanes * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float behind = warp > 1 ? (warp > 2 ? t[2][i] : 0.f) : (warp > 0 ? -t[1][i] : -(t[0][i] + t[1][i])),
                  begin = (warp > 0 ? t[0][i] : 0.f) + (warp > 1 ? t[1][i] : 0.f) + (warp > 2 ? t[2][i] : 0.f),
                  end = t[3][i] + (warp < 3 ? t[2][i] : 0.f) + (warp < 2 ? t[1][i] : 0.f) + (warp < 1 ? t[0][i] : 0.f);
      of_q[i] = narrow ? behind : begin, of_k[i] = narrow ? -behind : end;
    }
  }
  __device__ __forceinline__ static u64 scaled(u64 four, const float (&by)[4]) {
    const u32 low = u32(four), high = u32(four >> 32);
    return u64(pack<Elem>(half_of<Elem>(low, 0) * by[0], half_of<Elem>(low, 1) * by[1])) |
           u64(pack<Elem>(half_of<Elem>(high, 0) * by[2], half_of<Elem>(high, 1) * by[3])) << 32;
  }
  __device__ __forceinline__ static u64 load(u32 from) {
    u64 x;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(from) : "memory");
    return x;
  }
  __device__ __forceinline__ static void store(u32 to, u64 x) {
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(to), "l"(x) : "memory");
  }
  // The warp's 16 rows of q and k.
  __device__ __forceinline__ void make(u32 q, u32 k, u32 gates, bool narrow) const {
    const int channel = lane % lanes * 4;
    const u32 box = channel / 64 * Shared::box + channel % 8 * 2;
    float of_q[4], of_k[4];
    find_offsets(of_q, of_k, gates, narrow);
#pragma unroll 4
    for (int i = 0; i < block; i += rows) {
      const int token = warp * block + i + lane / lanes;
      const u32 at = box + box_place(token, channel % 64);
      float sum[4], up[4], down[4];
      load_four(sum, gates + token * row_bytes + channel * 4);
      const u64 of_query = load(q + at), of_key = load(k + at);
#pragma unroll
      for (int n = 0; n < 4; ++n) up[n] = fast_exp2(sum[n] + of_q[n]), down[n] = fast_exp2(of_k[n] - sum[n]);
      store(q + at, scaled(of_query, up)), store(k + at, scaled(of_key, down));
    }
  }
};
