// score/mask_intervals.cuh: turns mask intervals and remainders into bits for a thread's columns of a
// fragment. A word has bits for 32 of them: bit j is column number j from the word's first one. Positions are counted
// from there, too.
#pragma once
#include "score/fragment.cuh"

// A period below this is handled by testing each remainder, a longer one by stepping over its multiples,
// where the rows of a grid begin.
constexpr int short_period = 16;

// The columns of a tile in which a thread has 32.
template <class Fragment>
inline constexpr int columns_of_word = 32 * Fragment::row_lanes;

// `count` bits from bit `first` on, up to bit 31. Neither is negative.
LUATTN_FN u32 bit_run(int first, int count) {
#ifdef __CUDA_ARCH__
  u32 bits;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(first), "r"(count));
  return bits;
#else
  return first > 31 ? 0 : u32((1ull << min_of(count, 32)) - 1) << first;
#endif
}

// Bits below x.
template <class Fragment>
LUATTN_FN u32 columns_below(int x) {
  const int inside = min_of(max_of(x, 0), columns_of_word<Fragment>);
  return u32((1ull << Fragment::columns_below(inside)) - 1);
}

// Bits from lo to hi - 1, below `end`.
template <class Fragment>
LUATTN_FN u32 columns_between(int lo, int hi, int end) {
  const int width = min_of(end, columns_of_word<Fragment>);
  const int from = min_of(max_of(lo, 0), width), to = min_of(max_of(hi, 0), width);
  const int first = Fragment::columns_below(from), last = Fragment::columns_below(to);
  return bit_run(first, max_of(last - first, 0));
}

// Bits of word w that are `residue` modulo period, counted from word 0's first.
template <class Fragment>
LUATTN_FN constexpr u32 columns_of_residue(int period, int residue, int w) {
  u32 bits = 0;
  for (int j = 0; j < 32; ++j) bits |= Fragment::column_of(32 * w + j) % period == residue ? 1u << j : 0;
  return bits;
}

// Bits whose position modulo Period (a short period) lies in `rest`. Word 0 begins at `first` >= 0.
template <class Fragment, int Period, int Words>
LUATTN_FN void columns_of_residues(u32 (&word)[Words], int first, Range rest) {
  const int begin = int(u32(first) % Period);
#pragma unroll
  for (int w = 0; w < Words; ++w) word[w] = 0;
#pragma unroll
  for (int residue = 0; residue < Period; ++residue) {
    const int at = begin + residue - (begin + residue < Period ? 0 : Period);
    const bool inside = rest.lo <= at && at < rest.hi;
#pragma unroll
    for (int w = 0; w < Words; ++w) word[w] |= inside ? columns_of_residue<Fragment>(Period, residue, w) : 0;
  }
}
