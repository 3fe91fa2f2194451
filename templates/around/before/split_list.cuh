// around/before/split_list.cuh: luattn_split_list: cuts the keys of entries that differ in length into blocks of a
// decode kernel, of about as many keys each, the longest first (LuattnSplitList). One block makes the list.
//
// A tile of rows has as many blocks as `chunk` goes into its entry's keys, LUATTN_MAX_SPLITS at most. Where the chunk
// is not given, it is a quarter of what a block's place has to do if all of those that run at once have as much; blocks
// that start last then end almost together. Of entries about as long as one another, 1 / n of the longest is tried for
// each n, and a model of the time chooses. The list depends on lengths alone, and comes out the same each time. Entries
// up to split_list_kept are read once.
#pragma once
#include "around/around.cuh"
#include "work/sequence.cuh"
#include "work/split_list.cuh"

static constexpr int split_list_threads = 256, split_list_levels = 64, split_list_kept = 1024, split_list_least = 1024;

// An entry's keys and tiles of rows.
struct EntryTiles {
  int keys, tiles;
};

// How the tiles of an entry are cut.
struct EntrySplits {
  int splits, keys;  // of a tile; of a block, at most
  u32 items, parts;  // blocks of all tiles; those that share a tile with others
  __device__ __forceinline__ EntrySplits(const EntryTiles &e, int chunk) {
    splits = e.keys <= chunk ? 1 : min_of(ceil_div(e.keys, chunk), LUATTN_MAX_SPLITS);
    keys = ceil_div(e.keys, splits);
    items = u32(e.tiles) * u32(splits);
    parts = splits > 1 ? items : 0;
  }
  // 0 for the longest blocks. Those up to 1/64 of a chunk, and empty ones, are of the last level.
  __device__ __forceinline__ int level(int chunk) const {
    const int steps = int(float(keys) * float(split_list_levels) / (float(chunk) + 1.f));
    return split_list_levels - 1 - min_of(steps, split_list_levels - 1);
  }
};

template <class Config>
struct SplitListWriter {
  static_assert(SequenceOf<Config>::is_line, "splits share as many positions as the lengths say");
  enum : int {
    threads = split_list_threads,
    levels = split_list_levels,
    most = LUATTN_MAX_SPLITS,
    groups = threads / most
  };
  static_assert(threads % most == 0 && levels <= threads);

  struct Shared {
    EntryTiles kept[split_list_kept];
    u64 work[threads];
    u32 tiles[threads];
    int longest[threads];
    u32 items[groups][most], parts[groups][most];
    int keys[groups][most];
    float time[most];
    u32 next[levels], parts_before;
    int level_of[threads];
    u32 items_of[threads], parts_of[threads];
  };

  const LuattnParams &p;
  const LuattnSplitList &list;
  Shared &shared;
  const int batch, thread;

  __device__ __forceinline__ SplitListWriter(const LuattnParams &p, Shared &shared)
      : p(p), list(SplitList(p).list), shared(shared), batch(SequenceOf<Config>::batch(p)), thread(int(threadIdx.x)) {}

  __device__ __forceinline__ EntryTiles read(int entry) const {
    const SequenceOf<Config> site(p, entry, 0);
    return {site.kv_len, ceil_div(site.q_len * SequenceOf<Config>::group(p), list.tile_m)};
  }
  __device__ __forceinline__ EntryTiles of(int entry) const {
    return entry < split_list_kept ? shared.kept[entry] : read(entry);
  }

  // Reads all entries: their work, keys times tiles; their tiles; and the longest one.
  __device__ __forceinline__ void read_all(u64 &work, u32 &tiles, int &longest) const {
    u64 mine = 0;
    u32 mine_tiles = 0;
    int most_keys = 0;
#pragma unroll 1
    for (int i = thread; i < batch; i += threads) {
      const EntryTiles e = read(i);
      if (i < split_list_kept) shared.kept[i] = e;
      mine += u64(u32(e.keys)) * u32(e.tiles);
      mine_tiles += u32(e.tiles);
      if (e.tiles > 0) most_keys = max_of(most_keys, e.keys);
    }
    shared.work[thread] = mine, shared.tiles[thread] = mine_tiles, shared.longest[thread] = most_keys;
    __syncthreads();
#pragma unroll 1
    for (int i = threads / 2; i > 0; i /= 2) {
      if (thread < i) {
        shared.work[thread] += shared.work[thread + i], shared.tiles[thread] += shared.tiles[thread + i];
        shared.longest[thread] = max_of(shared.longest[thread], shared.longest[thread + i]);
      }
      __syncthreads();
    }
    work = shared.work[0], tiles = shared.tiles[0], longest = shared.longest[0];
  }

  // The share of memory's rate that so many blocks of equal length reach, as in common/call/kernel_time.c;
  // of keys in pages, one block on each multiprocessor does not reach all of it.
  __device__ __forceinline__ float rate(float blocks) const {
    const float filled = blocks / list.multiprocessors;
    if (filled <= 1.f) return filled < 0.72f ? 0.92f / 0.72f * filled : 0.92f + 0.02f / 0.28f * (filled - 0.72f);
    const float rounds = float(ceil_div(int(min_of(blocks, 1e9f)), int(list.resident)));
    return 1.f - 0.35f * (1.f - blocks / (rounds * list.resident));
  }
  // The time for `work` keys of a head in so many blocks of each head, of which the longest has `keys`.
  __device__ __forceinline__ float time_of(float work, float items, float parts, float keys) const {
    const float all = work * float(list.heads_kv), blocks = items * float(list.heads_kv),
                equal = all / max_of(keys, 1.f);
    const float rounds = float(ceil_div(int(min_of(blocks, 1e9f)), int(list.resident)));
    return max_of(all / rate(max_of(equal, 1.f)), keys / rate(1.f)) + rounds * list.start +
           parts * float(list.heads_kv) * list.part;
  }

  __device__ __forceinline__ int chunk_of(int longest, int splits) const {
    return max_of(ceil_div(longest, splits), 1);
  }

  // Whether the mean of all tiles' keys is at least 7/8 of the most; tiles: of all entries.
  __device__ __forceinline__ bool are_even(u64 work, u32 tiles, int longest) const {
    return work * 8 >= u64(tiles) * u32(longest) * 7;
  }
  // A quarter of the keys for each block that runs at once. Parts stay below PARTS_RESIDENT of
  // runtime/parts/split_list.c.
  __device__ __forceinline__ int quarter(u64 work) const {
    const float each = float(work) * float(list.heads_kv) / (4.f * list.resident);
    return max_of(int(min_of(each, 1e9f)) + 1, split_list_least);
  }

  // Each thread adds up what one number of splits of the longest entry makes of every groups-th entry.
  __device__ __forceinline__ int choose_chunk(u64 work, int longest) const {
    const int n = thread % most, group = thread / most, chunk = chunk_of(longest, n + 1);
    u32 items = 0, parts = 0;
    int keys = 0;
#pragma unroll 1
    for (int i = group; i < batch; i += groups) {
      const EntryTiles e = of(i);
      if (e.tiles == 0) continue;
      const EntrySplits s(e, chunk);
      items += s.items, parts += s.parts, keys = max_of(keys, s.keys);
    }
    shared.items[group][n] = items, shared.parts[group][n] = parts, shared.keys[group][n] = keys;
    __syncthreads();
    if (thread < most) {
#pragma unroll 1
      for (int g = 1; g < groups; ++g)
        items += shared.items[g][n], parts += shared.parts[g][n], keys = max_of(keys, shared.keys[g][n]);
      const bool fits = parts <= list.most_parts;  // one split each always does
      shared.time[n] = fits ? time_of(float(work), float(items), float(parts), float(keys)) : infinity<float>();
    }
    __syncthreads();
    int best = 0;
    float least = shared.time[0];
#pragma unroll 8
    for (int i = 1; i < most; ++i) {
      const float time = shared.time[i];
      if (time < least) best = i, least = time;
    }
    return chunk_of(longest, best + 1);
  }

  // Counts the items of each level, and turns that into the number of items before it; returns that of all.
  __device__ __forceinline__ u32 count_levels(int chunk) const {
    if (thread < levels) shared.next[thread] = 0;
    if (thread == 0) shared.parts_before = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = thread; i < batch; i += threads) {
      const EntrySplits s(of(i), chunk);
      if (s.items > 0) atomicAdd(&shared.next[s.level(chunk)], s.items);
    }
    __syncthreads();
    u32 before = 0, all = 0;
#pragma unroll 8
    for (int i = 0; i < levels; ++i) {
      if (i == thread) before = all;
      all += shared.next[i];
    }
    __syncthreads();
    if (thread < levels) shared.next[thread] = before;
    return all;
  }

  __device__ __forceinline__ void write_entry(int entry, const EntryTiles &e, const EntrySplits &s, u32 at,
                                              u32 first) const {
#pragma unroll 1
    for (int tile = 0; tile < list.tiles; ++tile) {
      const bool exists = tile < e.tiles;
      const u32 place = s.splits > 1 ? first + u32(tile * s.splits) : 0;
      // There is room for the tiles of entries that share no rows. Of others, which cu_seqlens must not hold, some are
      // left out.
      const bool fits =
          (s.splits == 1 || place + u32(s.splits) <= list.most_parts) && at + u32(s.splits) <= list.most_items;
      list.of_tile[i64(entry) * list.tiles + tile] = {exists && fits ? place : 0, exists && fits ? u32(s.splits) : 0};
      for (int split = 0; exists && split < s.splits; ++split, ++at)
        if (at < list.most_items)
          list.items[1 + at] = {u32(entry), u32(tile), fits ? u32(split) | u32(s.splits) << 16 : 0, place};
    }
  }

  // Writes the entries in sets of `threads`: those of a level in the order of their numbers.
  __device__ __forceinline__ void write(int chunk) const {
    const u32 all = count_levels(chunk);
    if (thread == 0) list.items[0] = {min_of(all, list.most_items), 0, 0, 0};
#pragma unroll 1
    for (int base = 0; base < batch; base += threads) {
      const int entry = base + thread;
      const EntryTiles e = entry < batch ? of(entry) : EntryTiles{0, 0};
      const EntrySplits s(e, chunk);
      const int level = s.level(chunk);
      shared.level_of[thread] = level, shared.items_of[thread] = s.items, shared.parts_of[thread] = s.parts;
      __syncthreads();
      u32 at = shared.next[level], first = shared.parts_before;
#pragma unroll 4
      for (int i = 0; i < min_of(thread, batch - base); ++i) {
        at += shared.level_of[i] == level ? shared.items_of[i] : 0;
        first += shared.parts_of[i];
      }
      if (entry < batch) write_entry(entry, e, s, at, first);
      __syncthreads();
      if (s.items > 0) atomicAdd(&shared.next[level], s.items);
      if (s.parts > 0) atomicAdd(&shared.parts_before, s.parts);
      __syncthreads();
    }
  }
};

template <class Config>
LUATTN_FN void write_split_list(const LuattnParams &p) {
  __shared__ typename SplitListWriter<Config>::Shared shared;
  const SplitListWriter<Config> writer(p, shared);
  u64 work;
  u32 tiles;
  int longest;
  writer.read_all(work, tiles, longest);
  const int given = writer.list.chunk;
  writer.write(given > 0                               ? given
               : writer.are_even(work, tiles, longest) ? writer.choose_chunk(work, longest)
                                                       : writer.quarter(work));
}
