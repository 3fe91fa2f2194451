// score/mask_intervals.cuh: turns mask intervals and remainders into bits for a thread's columns of a
// fragment. A word has bits for 32 columns: bit j is the column at 8 * (j / 2) + j % 2 from the word's first
// one.
#pragma once
#include "contract/contract.cuh"

// A period below this is handled by testing each remainder, a longer one by stepping over its multiples,
// where the rows of a grid begin.
constexpr int short_period = 16;

// Bits below x.
LUATTN_FN u32 columns_below(int x) {
  const int inside = min_of(max_of(x, 0), 128);
  return u32((1ull << (inside / 8 * 2 + min_of(inside % 8, 2))) - 1);
}

// Bits from lo to hi - 1, below `end`.
LUATTN_FN u32 columns_between(int lo, int hi, int end) {
  const int width = min_of(end, 128);
  const int from = min_of(max_of(lo, 0), width), to = min_of(max_of(hi, 0), width);
  const int first = from / 8 * 2 + min_of(from % 8, 2), last = to / 8 * 2 + min_of(to % 8, 2);
  u32 bits;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(first), "r"(max_of(last - first, 0)));
  return bits;
}

// Bits of word w that are `residue` modulo period, counted from word 0's first.
LUATTN_FN constexpr u32 columns_of_residue(int period, int residue, int w) {
  u32 bits = 0;
  for (int j = 0; j < 32; ++j) bits |= (128 * w + j / 2 * 8 + j % 2) % period == residue ? 1u << j : 0;
  return bits;
}

// Bits whose position modulo Period (a short period) lies in `rest`. Word 0 begins at `first` >= 0.
template <int Period, int Words>
LUATTN_FN void columns_of_residues(u32 (&word)[Words], int first, Range rest) {
  const int begin = int(u32(first) % Period);
#pragma unroll
  for (int w = 0; w < Words; ++w) word[w] = 0;
#pragma unroll
  for (int residue = 0; residue < Period; ++residue) {
    const int at = begin + residue - (begin + residue < Period ? 0 : Period);
    const bool inside = rest.lo <= at && at < rest.hi;
#pragma unroll
    for (int w = 0; w < Words; ++w) word[w] |= inside ? columns_of_residue(Period, residue, w) : 0;
  }
}
