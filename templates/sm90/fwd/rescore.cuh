// sm90/fwd/rescore.cuh: recomputes scores from global memory for the few kv tiles that need a second softmax
// step under lazy rescaling. By then their first scores are overwritten and K is released.
#pragma once
#include "arch/mma.cuh"
#include "score/fragment.cuh"
#include "source/cp_async_tile.cuh"
#include "work/sequence.cuh"
#include "work/tile_scheduler.cuh"

// The same where each row has to be asked for. Rows that do not exist are replaced by others: the mask drops their scores.
template <class Elem, int Dim, int TileN, class Sequence>
LUATTN_FN void scores_of_rows(const LuattnParams &p, const Sequence &site, const Position (&query)[2],
                              const typename Sequence::Key &first, int lane, float (&s)[TileN / 2]) {
  const int h_kv = BlockSite::kv_head(p, site.h), column = MmaFragment::column(lane);
  const Elem *of_q[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) of_q[r] = site.template nearest_q_row<Elem>(p, p.tensors.q, query[r]) + column;
  // Else the scores from before were read below, and all would be copied ahead of each softmax step.
#pragma unroll
  for (int i = 0; i < TileN / 2; ++i) s[i] = 0;
#pragma unroll 1
  for (int n = 0; n < TileN / 8; ++n) {
    const auto key = site.clamped_key(p, first + (MmaFragment::row(lane) + n * 8));
    const Elem *of_k = site.template kv_row<Elem>(p, p.tensors.k, h_kv, key) + column;
    float sum[4] = {};
#pragma unroll 1
    for (int d = 0; d < Dim; d += 8) {
      u32 a[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) a[r] = *reinterpret_cast<const u32 *>(of_q[r] + d);
      mma_16x8x8<Elem>(sum, a, *reinterpret_cast<const u32 *>(of_k + d));
    }
#pragma unroll
    for (int i = 0; i < TileN / 2; ++i) s[i] = i / 4 == n ? sum[i % 4] : s[i];
  }
}

// All rows of the tile exist, because the ragged tile at the end of K comes first and its maxima are taken at
// once. `query` holds the thread's two rows, clamped; K's rows are those of a B operand, transposed. The asm statements step from one row of K to the next;
// the compiler would multiply for each row, which takes registers and compile time.
template <class Elem, int Dim, int TileN, class Sequence>
LUATTN_FN void scores_of_line(const LuattnParams &p, const Sequence &site, const int (&query)[2], int tile, int lane,
                              float (&s)[TileN / 2]) {
  const Elem *const of_q = site.template q_row<Elem>(p, p.tensors.q, 0) + MmaFragment::column(lane);
  const int h_kv = BlockSite::kv_head(p, site.h);
  const Elem *const first_k = site.template kv_row<Elem>(
      p, p.tensors.k, h_kv, Sequence::template first_key<TileN>(tile) + MmaFragment::row(lane));
  u64 of_k = u64(__cvta_generic_to_global(first_k + MmaFragment::column(lane)));
  const i64 step = p.tensors.k.seq * 8 * i64(sizeof(Elem)), next = 8 * i64(sizeof(Elem)) - step * (TileN / 8);
#pragma unroll
  for (int i = 0; i < TileN / 2; ++i) s[i] = 0;
#pragma unroll 1
  for (int d = 0; d < Dim; d += 8) {
    u32 a[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) a[r] = *reinterpret_cast<const u32 *>(of_q + query[r] * p.tensors.q.seq + d);
#pragma unroll
    for (int n = 0; n < TileN / 8; ++n) {
      u32 b;
      asm volatile("ld.global.b32 %0, [%1];\nadd.s64 %1, %1, %2;" : "=r"(b), "+l"(of_k) : "l"(step));
      mma_16x8x8<Elem>(s + n * 4, a, b);
    }
    of_k += next;
  }
}

template <class Elem, int Dim, int TileN, class Sequence>
LUATTN_FN void scores_from_memory(const LuattnParams &p, const Sequence &site, const int (&query)[2],
                                  const typename Sequence::KeyTile &tile, int lane, float (&s)[TileN / 2]) {
  scores_of_line<Elem, Dim, TileN>(p, site, query, tile, lane, s);
}

// The same of keys in pages, which hold whole groups of 8 rows. A group's channels come in a loop of their own, so that
// one address is enough.
template <class Elem, int Dim, int TileN, class Queries>
LUATTN_FN void scores_from_memory(const LuattnParams &p, const PagedSequence<Queries> &site, const int (&query)[2],
                                  int tile, int lane, float (&s)[TileN / 2]) {
  const Elem *const of_q = site.template q_row<Elem>(p, p.tensors.q, 0) + MmaFragment::column(lane);
  const auto keys = site.template kv_rows<const Elem>(p, p.tensors.k, BlockSite::kv_head(p, site.h));
#pragma unroll
  for (int n = 0; n < TileN / 8; ++n) {
    const Elem *of_k = keys.row(anew(tile * TileN + MmaFragment::row(lane)) + n * 8) + MmaFragment::column(lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n * 4 + i] = 0;
#pragma unroll 1
    for (int d = 0; d < Dim; d += 8, of_k += 8) {
      u32 a[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) a[r] = *reinterpret_cast<const u32 *>(of_q + query[r] * p.tensors.q.seq + d);
      mma_16x8x8<Elem>(s + n * 4, a, *reinterpret_cast<const u32 *>(of_k));
    }
  }
}
