// around/around.cuh: the block shape of the small kernels around attention, which does not depend on the
// tiles of the main kernels.
//
// These kernels are memory-bound. A thread accesses 16 bytes of 16-bit elements at once, or one f32 or f64
// element. Single elements need no aligned tensors, and the code of a mod then has one copy, not one for each
// element of an access and more for unaligned tensors.
#pragma once
#include "contract/contract.cuh"
#ifdef LUATTN_TILE_TABLE
#include "work/tile_table.cuh"
#endif

// The sizes of a call, which these kernels may read.
struct AroundParams {
  LUATTN_FN int batch(const LuattnParams &p) { return p.shape.batch; }
  LUATTN_FN int heads(const LuattnParams &p) { return p.shape.heads; }
  LUATTN_FN int heads_kv(const LuattnParams &p) { return p.shape.heads_kv; }
  LUATTN_FN int group(const LuattnParams &p) { return p.shape.group; }
  LUATTN_FN int q_len(const LuattnParams &p) { return p.shape.q_len; }
  LUATTN_FN int kv_len(const LuattnParams &p) { return p.shape.kv_len; }
  LUATTN_FN Site site(const LuattnParams &p, int b, int h) {
    Site made(b, h, p.shape.q_len, p.shape.kv_len);
    made.load_offsets(p);
    return made;
  }
  LUATTN_FN int num_splits(const LuattnParams &p) { return p.schedule.num_splits; }
};

// An entry of a batch whose entries have equal lengths.
struct DenseEntry {
  enum : bool { packed = false, paged = false };
  int b;
};
// The Site of a head. `entry` is a sequence or a DenseEntry.
template <class Sequence>
LUATTN_FN Site site_of_head(const LuattnParams &p, const Sequence &entry, int h) {
  if constexpr (Sequence::packed || Sequence::paged) {
    Site site = entry;
    site.h = h;
    return site;
  } else {
    return AroundParams::site(p, entry.b, h);
  }
}
// A packed entry's rows, from the first of `rows` before them, as a tensor of an entry of its own.
template <class Elem>
LUATTN_FN LuattnTensor entry_tensor(LuattnTensor t, int rows) {
  if (t.data != nullptr) t.data = static_cast<Elem *>(t.data) + rows * t.seq;
  return t;
}

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

// Calls body(position, channel) for every N-th channel of the block's positions, spread over the threads.
template <int Width, int N, class Body>
LUATTN_FN void for_each_element(int len, const Body &body) {
  static_assert(Width % N == 0);
  constexpr int per_row = Width / N;
  const int first = int(blockIdx.x) * aux_tile;
  const int count = min_of(aux_tile, len - first) * per_row;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < count; i += aux_threads) body(first + i / per_row, i % per_row * N);
}

enum { WHICH_Q = 0, WHICH_K = 1, WHICH_V = 2 };

template <class Spec, int Which>
constexpr bool has_mod = Which == WHICH_Q   ? bool(Spec::has_query_mod)
                         : Which == WHICH_K ? bool(Spec::has_key_mod)
                                            : bool(Spec::has_value_mod);
