// around/before/tile_table.cuh: luattn_tile_table: lists the tiles of packed sequences, the longest sequence first
// (LuattnTileTable). A block writes the tiles of one sequence: it compares the sequence with all others and adds up the
// tiles of those that come before. One more block writes the number of all tiles.
//
// What takes longest is a tile's walk along the other side, so lengths there count first: those of keys for tiles of
// queries. Sequences that are equally long stay in their order. In a sequence the last queries come first, and the
// first keys: with a causal mask they take longest.
#pragma once
#include "around/around.cuh"
#include "work/sequence.cuh"
#include "work/tile_table.cuh"

static constexpr int tile_table_threads = 128;

struct SequenceLengths {
  int q, kv;
};

// Whether sequence i comes before sequence j, in sets of queries or of keys.
LUATTN_FN bool comes_before(bool keys, int i, const SequenceLengths &a, int j, const SequenceLengths &b) {
  const int a_walk = keys ? a.q : a.kv, b_walk = keys ? b.q : b.kv, a_own = keys ? a.kv : a.q,
            b_own = keys ? b.kv : b.q;
  if (a_walk != b_walk) return a_walk > b_walk;
  return a_own != b_own ? a_own > b_own : i < j;
}

// Sums of all threads, in every thread.
template <int N>
LUATTN_FN void add_up(u32 (&x)[N]) {
  __shared__ u32 of_warp[tile_table_threads / 32][N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x[n] += __shfl_xor_sync(0xffffffffu, x[n], i);
    of_warp[threadIdx.x / 32][n] = x[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    x[n] = 0;
#pragma unroll
    for (int w = 0; w < tile_table_threads / 32; ++w) x[n] += of_warp[w][n];
  }
}

template <class Config>
LUATTN_FN void write_tile_table(const LuattnParams &p) {
  static_assert(SequenceOf<Config>::is_line, "an entry has as many tiles as its lengths say");
  const int batch = SequenceOf<Config>::batch(p), sequence = int(blockIdx.x), thread = int(threadIdx.x);
  const auto lengths_of = [&](int i) -> SequenceLengths {
    if (i >= batch) return {-1, -1};  // all come before it
    const SequenceOf<Config> site(p, i, 0);
    return {site.q_len, site.kv_len};
  };
  const SequenceLengths mine = lengths_of(sequence);
  constexpr int sizes = LUATTN_TABLE_SIZES;
  const auto tiles_of = [](const SequenceLengths &x, int n) {
    return u32(ceil_div(n >= sizes ? x.kv : x.q, workspace_table_size(n % sizes)));
  };
  // The tiles that come before mine, of queries and of keys, all tiles of keys, and sequences behind mine with other
  // numbers of these.
  u32 sums[4 * sizes] = {};
#pragma unroll 1
  for (int i = thread; i < batch; i += tile_table_threads) {
    const SequenceLengths other = lengths_of(i);
#pragma unroll
    for (int n = 0; n < 2 * sizes; ++n) {
      const u32 tiles = tiles_of(other, n);
      const bool before = comes_before(n >= sizes, i, other, sequence, mine);
      if (before) sums[n] += tiles;
      if (n < sizes) continue;
      sums[sizes + n] += tiles;
      if (!before && tiles != 0 && tiles != tiles_of(mine, n)) ++sums[2 * sizes + n];
    }
  }
  add_up(sums);
#pragma unroll
  for (int n = 0; n < 2 * sizes; ++n) {
    const bool keys = n >= sizes;
    LuattnPackedTile *set = TileTable::all(p).sets[keys][n % sizes];
    if (set == nullptr) continue;
    // The set has room for the tiles of sequences that share no rows. Of others, which cu_seqlens must not hold, the
    // last are left out.
    const int room = SequenceOf<Config>::most_tiles(p, keys, workspace_table_size(n % sizes)),
              before = min_of(int(sums[n]), room),
              count = sequence < batch ? min_of(int(tiles_of(mine, n)), room - before) : 0;
    LuattnPackedHead *head = reinterpret_cast<LuattnPackedHead *>(set);
    if (sequence == batch && thread == 0) {
      head->count = u32(before);
      if (!keys || before == 0) head->rows = head->columns = 1, head->last = 0;
    }
    if (keys && count > 0 && thread == 0) {
      const int at_end = int(TileTable::all(p).at_end), from_here = int(sums[sizes + n]) - before;
      if (from_here - count < at_end &&
          (from_here >= at_end || before == 0)) {  // the last sequences begin with this one
        const bool equal = sums[2 * sizes + n] == 0;
        head->rows = equal ? u32(from_here / count) : 1, head->columns = u32(count), head->last = u32(from_here);
      }
    }
    for (int i = thread; i < count; i += tile_table_threads)
      set[1 + before + i] = {u32(sequence), u32(keys ? i : count - 1 - i), u32(count), 0};
  }
}
