// around/around.cuh: the block shape of the small kernels around attention, which does not depend on the
// tiles of the main kernels.
//
// These kernels are memory-bound. A thread accesses 16 bytes of 16-bit elements at once, or one f32 or f64
// element. Single elements need no aligned tensors, and the code of a mod then has one copy, not one for each
// element of an access and more for unaligned tensors.
#pragma once
#include "contract/contract.cuh"
#include "work/sequence.cuh"
#ifdef LUATTN_TILE_TABLE
#include "work/tile_table.cuh"
#endif

static constexpr int aux_threads = 128, aux_tile = 64, stats_threads = 32;

// The queries of a block: aux_tile of an entry's, from `first` on, or none.
struct RowBlock {
  int entry, first;
  bool none;
};
// `entry`: by the grid, whose x is for the longest entry. With a tile table and no axis z, x counts the tiles of all
// sequences.
template <class Config>
LUATTN_FN RowBlock row_block(const LuattnParams &p, int entry) {
#ifdef LUATTN_TILE_TABLE
  const TileTable table = TileTable::of<false, aux_tile>(p);
  if (table.known() && gridDim.z == 1) {
    if (blockIdx.x >= table.count()) return {0, 0, true};
    const LuattnPackedTile at = table[blockIdx.x];
    return {int(at.entry), int(at.tile) * aux_tile, false};
  }
#endif
  return {entry, int(blockIdx.x) * aux_tile, false};
}

enum { WHICH_Q = 0, WHICH_K = 1, WHICH_V = 2 };

template <class Spec, int Which>
constexpr bool has_mod = Which == WHICH_Q   ? bool(Spec::has_query_mod)
                         : Which == WHICH_K ? bool(Spec::has_key_mod)
                                            : bool(Spec::has_value_mod);

// Rows of a sequence's head in a tensor, where the head is one of that tensor.
template <int Which, class Elem, class Sequence>
LUATTN_FN auto rows_of(const LuattnParams &p, const Sequence &site, const LuattnTensor &t) {
  if constexpr (Which == WHICH_Q)
    return site.template q_rows<Elem>(p, t);
  else
    return site.template kv_rows<Elem>(p, t, site.h);
}
template <int Which, class Elem, class Sequence>
LUATTN_FN Elem *row_in(const LuattnParams &p, const Sequence &site, const LuattnTensor &t, int position) {
  if constexpr (Which == WHICH_Q)
    return site.template q_row<Elem>(p, t, position);
  else
    return site.template kv_row<Elem>(p, t, site.h, position);
}
// The tensor's heads, and where its positions end.
template <int Which, class Sequence>
LUATTN_FN int heads_of(const LuattnParams &p) {
  return Which == WHICH_Q ? Sequence::heads(p) : Sequence::heads_kv(p);
}
template <int Which, class Sequence>
LUATTN_FN int end_of(const LuattnParams &p, const Sequence &site) {
  return Which == WHICH_Q ? site.q_end(p) : site.kv_end(p);
}

// Enters the chunk of the block's positions.
template <int Which, class Sequence>
LUATTN_FN void enter_rows(const LuattnParams &p, Sequence &site) {
  if constexpr (Which == WHICH_Q)
    site.enter_queries(p, int(blockIdx.x) * aux_tile);
  else
    site.enter_keys(p, int(blockIdx.x) * aux_tile);
}

// Calls body(position, channel) for every N-th channel of the block's positions before `end`, spread over the threads,
// that exist in `rows`.
template <int Width, int N, class Rows, class Body>
LUATTN_FN void for_each_element(const Rows &rows, int end, const Body &body) {
  static_assert(Width % N == 0);
  constexpr int per_row = Width / N;
  const int first = int(blockIdx.x) * aux_tile;
  const int count = min_of(aux_tile, end - first) * per_row;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < count; i += aux_threads)
    if (Rows::is_line || rows.has(first + i / per_row)) body(first + i / per_row, i % per_row * N);
}
