// score/dropout.cuh: which weights dropout keeps. The draws of a score are those of abi/philox.h, in every
// kernel family, in forward and backward.
//
// An MmaFragment has two rows of each 16, and two adjacent columns of each 8. A block of 16 x 16 scores thus holds 8 patches, each shared by four lanes, which differ in
// two bits of their numbers. Of four blocks, each of these lanes draws for one, and two shuffles bring each lane
// what is its own of all four: two calls of Philox for each 32 of a lane's scores, in S and in its transpose alike.
#pragma once
#include "abi/philox.h"
#include "ops/hook_types.cuh"
#include "score/fragment.cuh"

template <class Config>
struct Dropout {
  static constexpr bool any = Config::dropout_keep < LUATTN_KEEP_ALL;
  // The factor of a kept weight.
  static constexpr double factor = double(LUATTN_KEEP_ALL) / Config::dropout_keep;

  u64 key, counter;  // of the head at work

  // Loads the seed, for a head of a batch entry.
  __device__ __forceinline__ void enter_head(const LuattnParams &p, const Site &site) {
    const LuattnRandom &from = static_cast<const LuattnRandomParams &>(p).random;
    key = from.seed_at != nullptr ? __ldg(from.seed_at) : from.seed;
    const u64 more = from.offset_at != nullptr ? __ldg(from.offset_at) : 0;
    counter = dropout_counter(from.offset + more, site.b, from.heads, from.first_head + site.h);
  }

  // The position in the whole of the first query, and the first key, of a call's tensors.
  template <class Sequence>
  LUATTN_FN int first_q(const LuattnParams &p, const Sequence &site) {
    if constexpr (Config::offsets != 0)
      return offsets_of(p, site).q;
    else
      return 0;
  }
  template <class Sequence>
  LUATTN_FN int first_kv(const LuattnParams &p, const Sequence &site) {
    if constexpr (Config::offsets != 0)
      return offsets_of(p, site).kv;
    else
      return 0;
  }

  // Whether the score at q, kv is kept, drawn for it alone.
  __device__ __forceinline__ bool keeps(int q, int kv) const {
    return (draw(dropout_q_patch(q), dropout_kv_patch(kv)) >> dropout_bit(q, kv) & 1u) != 0;
  }
  __device__ __forceinline__ u32 draw(u32 q_patch, u32 kv_patch) const {
    return dropout_draw(key, counter, q_patch, kv_patch, Config::dropout_keep);
  }
};

// The type of what a kernel draws of a tile: DroppedBlocks, or over a grid that of score/box_dropout.cuh.
template <bool OverGrid>
struct DroppedOf;
template <class Config, class Fragment, bool Transposed, int Blocks, int RowBlocks = 1>
using DroppedKind =
    typename DroppedOf<requires { Config::axes; }>::template type<Config, Fragment, Transposed, Blocks, RowBlocks>;

// Which of a lane's scores dropout keeps, in blocks of 16 x 16 accumulators: RowBlocks rows of Blocks beside each
// other. Rows are queries and columns keys, or the other way round if Transposed.
template <class Config, class Fragment, bool Transposed, int Blocks, int RowBlocks = 1>
struct DroppedBlocks {
  static_assert(same_type<Fragment, MmaFragment>::value, "four lanes share a patch");
  static constexpr int all = Blocks * RowBlocks, words = (all + 3) / 4;
  u32 bits[words];

  // The bit of a lane's score in column `column` of its Blocks * 4, of the upper row of a row block or the one 8
  // below. Two adjacent columns of S lie in two bytes.
  LUATTN_FN constexpr int block_of(int column, int row_block) { return row_block * Blocks + column / 4; }
  LUATTN_FN constexpr int bit_of(int column, int half, int row_block) {
    const int block = block_of(column, row_block) % 4, beyond = column / 2 % 2, odd = column % 2;
    return Transposed ? block / 2 * 16 + block % 2 * 8 + odd * 4 + beyond * 2 + half
                      : block / 2 * 16 + odd * 8 + block % 2 * 4 + half * 2 + beyond;
  }
  __device__ __forceinline__ bool get(int column, int half, int row_block = 0) const {
    return (bits[words == 1 ? 0 : block_of(column, row_block) / 4] >> bit_of(column, half, row_block) & 1u) != 0;
  }
  // A mask for two adjacent columns of S, rounded to 16 bits and packed.
  __device__ __forceinline__ u32 mask_of_two(int column, int half) const {
    static_assert(!Transposed);
    const int bit = bit_of(column, half, 0);
    u32 mask;  // replicates the highest bits of two bytes
    asm("prmt.b32 %0, %1, %1, %2;"
        : "=r"(mask)
        : "r"(bits[column / 16] << (7 - bit % 8)), "r"(bit < 16 ? 0x9988u : 0xbbaau));
    return mask;
  }

  // `row` and `column`: positions in the whole of the blocks' first row and column. Without offsets, these are
  // multiples of 16.
  LUATTN_FN DroppedBlocks draw(const Dropout<Config> &from, int row, int column, int lane) {
    DroppedBlocks made;
#pragma unroll
    for (int w = 0; w < words; ++w) made.bits[w] = draw_word(from, row, column, lane, w);
    return made;
  }
  // The same for word w of `bits`, which has the blocks from 4 w on.
  LUATTN_FN u32 draw_word(const Dropout<Config> &from, int row, int column, int lane, int w) {
    if constexpr (Config::offsets != 0)
      if ((row | column) & 15) return draw_each(from, row, column, lane, w);
    // Row and column of the lane's patch in its block: an even one's, and a multiple of 4.
    const int r = lane / 8 * 2, c = Fragment::column(lane), q = Transposed ? c : r, kv = Transposed ? r : c;
    const int block = w * 4 + (lane >> 2 & 1) + (Transposed ? lane >> 3 & 1 : lane & 1) * 2;
    const u32 across = u32((column >> 4) + (RowBlocks > 1 ? block % Blocks : block)) * 4,
              down = u32((row >> 4) + (RowBlocks > 1 ? block / Blocks : 0)) * 4;
    return exchange(from.draw((Transposed ? across : down) + dropout_q_patch(q),
                              (Transposed ? down : across) + dropout_kv_patch(kv)),
                    lane);
  }

 private:
  // Lanes that share patches exchange what they have drawn, so that each has the bits of its own row (and column) of
  // all four blocks.
  LUATTN_FN u32 exchange(u32 drawn, int lane) {
    drawn = Transposed ? exchange_with<4, 8>(drawn, lane) : exchange_with<4, 4>(drawn, lane);
    return Transposed ? exchange_with<8, 16>(drawn, lane) : exchange_with<1, 16>(drawn, lane);
  }
  // The lanes that differ in bit Lane: the one without it takes the bits of both whose numbers lack Bit, the other one
  // those that have it. In the result, Bit says which of the two has drawn them.
  template <u32 Lane, u32 Bit>
  LUATTN_FN u32 exchange_with(u32 drawn, int lane) {
    constexpr u32 without = Bit == 16 ? 0x0000ffffu : Bit == 8 ? 0x00ff00ffu : 0x0f0f0f0fu;
    const bool has = (u32(lane) & Lane) != 0;
    const u32 own = has ? ~without : without, other = __shfl_xor_sync(0xffffffffu, drawn, Lane);
    const u32 turned = __funnelshift_l(other, other, has ? 32 - Bit : Bit);
    return (drawn & own) | (turned & ~own);
  }
  // Draws for each score alone, where an offset splits patches between lanes.
  LUATTN_FN u32 draw_each(const Dropout<Config> &from, int row, int column, int lane, int w) {
    u32 drawn = 0;
#pragma unroll 1
    for (int bit = 0; bit < 32; ++bit) {
      const int high = bit >> 3 & 1, low = bit >> 2 & 1, block = w * 4 + bit / 16 * 2 + (Transposed ? high : low);
      const int odd = Transposed ? low : high, half = Transposed ? bit & 1 : bit >> 1 & 1,
                beyond = Transposed ? bit >> 1 & 1 : bit & 1;
      const int r = row + (RowBlocks > 1 ? block / Blocks * 16 : 0) + Fragment::row(lane, half),
                c = column + (RowBlocks > 1 ? block % Blocks : block) * 16 + Fragment::column(lane, beyond * 2 + odd);
      drawn |= u32(Transposed ? from.keeps(c, r) : from.keeps(r, c)) << bit;
    }
    return drawn;
  }
};

template <>
struct DroppedOf<false> {
  template <class Config, class Fragment, bool Transposed, int Blocks, int RowBlocks>
  using type = DroppedBlocks<Config, Fragment, Transposed, Blocks, RowBlocks>;
};
