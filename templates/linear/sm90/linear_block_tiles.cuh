// linear/sm90/linear_block_tiles.cuh: tiles of q and k with decays that differ between channels, of blocks of 16 tokens. With G
// the sum of a block's decays up to a token, and E that of all:
//
//     q: q e^G     k: k e^(E - G)
//
// No exponent is above 0. Between two blocks a pair is a product of rows of these, times e^E of the blocks between them, a factor
// of each channel. In a narrow block, whose decays are less than block_limit in each channel, its own pairs are the same,
// times e^-E; in others they are cut (linear_triangles.cuh, decayed_rows.cuh). In a narrow chunk, of which that holds as a whole,
// G and E are sums from its beginning on.
#pragma once
#include "linear/sm90/linear_triangles.cuh"

// To the base of 2. Rows of k in a tile keep all digits of Elem, and e^-E stays in the range of bf16.
template <class Elem>
inline constexpr float block_limit = (same_type<Elem, half_t>::value ? 3.f : 60.f) * op_log2_e;

// What is left of decays: arrays of 128 floats for each block, over it, over those before it and behind it, and the inverse of the
// first. Of a narrow chunk: in the first array of each kind all of its decays, as they are, and what they leave; LEFT_BEFORE has
// decays as they are, too.
enum { LEFT_OVER = 0, LEFT_BEFORE = 4 * 512, LEFT_BEHIND = 8 * 512, LEFT_INVERSE = 12 * 512 };

// Factors of a chunk's tokens, arrays of LUATTN_CHUNK floats: scale and q's factor; k's factor, of additive updates also w; of
// erasing ones r's factor, and w.
enum { FACTOR_QUERY = 0, FACTOR_KEY = 256, FACTOR_READ = 512, FACTOR_WRITE = 768 };

// Of KDim channels from `first` on.
template <class Elem, int RowBytes, int KDim>
struct BlockTiles {
  static constexpr int block = 16, lanes = KDim / 4, rows = 32 / lanes;  // of a row of 4 channels a lane; at once

  const u32 gates, left;
  const int lane, first = 0;

  __device__ __forceinline__ int channel() const { return first + lane % lanes * 4; }
  // Of a lane's channels the decays of all blocks.
  __device__ __forceinline__ void load_totals(float (&all)[4][4]) const {
#pragma unroll
    for (int b = 0; b < 4; ++b) load_four(all[b], gates + (b * block + block - 1) * RowBytes + channel() * 4);
  }
  __device__ __forceinline__ static void sum(float (&before)[4], float (&behind)[4], const float (&all)[4][4],
                                             int which) {
#pragma unroll
    for (int n = 0; n < 4; ++n) before[n] = behind[n] = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b)
#pragma unroll
      for (int n = 0; n < 4; ++n) before[n] += b < which ? all[b][n] : 0.f, behind[n] += b > which ? all[b][n] : 0.f;
  }
  __device__ __forceinline__ static void store(u32 to, const float (&x)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
  }
  // Of a block of tokens what is added to a sum of decays for tiles of q, and from what it is taken for those of k. Returns whether
  // the chunk is narrow, which warps of all blocks must find alike: by the same sum.
  __device__ __forceinline__ bool find_references(float (&begin)[4], float (&end)[4], int which) const {
    float all[4][4], behind[4];
    bool narrow = true;
    load_totals(all);
    sum(begin, behind, all, which);
    load_four(end, gates + (which * block + block - 1) * RowBytes + channel() * 4);
#pragma unroll
    for (int n = 0; n < 4; ++n) narrow = narrow && all[0][n] + all[1][n] + all[2][n] + all[3][n] > -block_limit<Elem>;
    narrow = __all_sync(0xffffffffu, narrow);
#pragma unroll
    for (int n = 0; n < 4; ++n) begin[n] = narrow ? begin[n] : 0.f, end[n] += narrow ? behind[n] : 0.f;
    return narrow;
  }
  __device__ __forceinline__ void store_sums(int which) const {
    float all[4][4], before[4], behind[4], sums[4], over[4];
    load_totals(all);
    sum(before, behind, all, which);
    const u32 to = left + channel() * 4;
    if (lane >= lanes) return;
    store(to + LEFT_BEFORE + which * 512, before);
    if (which > 0) return;
#pragma unroll
    for (int n = 0; n < 4; ++n) sums[n] = all[0][n] + behind[n], over[n] = fast_exp2(sums[n]);
    store(to + LEFT_OVER, sums), store(to + LEFT_BEHIND, over);
  }
  // What is left over a block, by a warp. Returns whether the block is narrow.
  __device__ __forceinline__ bool store_left(int which) const {
    float all[4][4], before[4], behind[4], over[4], inverse[4];
    load_totals(all);
    sum(before, behind, all, which);
    bool narrow = true;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float own = all[0][n];
#pragma unroll
      for (int b = 1; b < 4; ++b) own = b == which ? all[b][n] : own;
      narrow = narrow && own > -block_limit<Elem>;
      over[n] = fast_exp2(own), inverse[n] = fast_exp2(min_of(-own, block_limit<Elem>));
      before[n] = fast_exp2(before[n]), behind[n] = fast_exp2(behind[n]);
    }
    narrow = __all_sync(0xffffffffu, narrow);
    const u32 to = left + which * 512 + channel() * 4;
    if (lane < lanes) {
      store(to + LEFT_OVER, over), store(to + LEFT_BEFORE, before);
      store(to + LEFT_BEHIND, behind), store(to + LEFT_INVERSE, inverse);
    }
    return narrow;
  }
  // Of two adjacent channels.
  __device__ __forceinline__ float2 of(int what, int which, int channel) const {
    return load_pair(left + what + which * 512 + channel * 4);
  }
  // Multiplies the columns of an A operand of 16 channels.
  __device__ __forceinline__ void scale(u32 (&a)[4], int what, int which, int step) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 by = of(what, which, step * 16 + j * 8 + MmaFragment::column(lane));
#pragma unroll
      for (int r = 0; r < 2; ++r) a[2 * j + r] = scaled(a[2 * j + r], by.x, by.y);
    }
  }
  __device__ __forceinline__ static u32 scaled(u32 two, float low, float high) {
    return pack<Elem>(to_real(Elem{u16(two)}) * low, to_real(Elem{u16(two >> 16)}) * high);
  }
  __device__ __forceinline__ static u64 scaled(u64 four, const float (&by)[4]) {
    return u64(scaled(u32(four), by[0], by[1])) | u64(scaled(u32(four >> 32), by[2], by[3])) << 32;
  }
};

LUATTN_FN u64 load_four_halves(u32 from) {
  u64 x;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(from) : "memory");
  return x;
}
LUATTN_FN void store_four_halves(u32 to, u64 x) {
  asm volatile("st.shared.b64 [%0], %1;" ::"r"(to), "l"(x) : "memory");
}
