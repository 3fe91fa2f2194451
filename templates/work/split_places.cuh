// work/split_places.cuh: finds a block's rows and keys from the lengths of all entries, where no list was made: each
// warp of a decode kernel reads them and comes to the same result, in less time than another kernel takes to start.
//
// Entries about as long as one another have as many blocks each, by a model of the time. Of others a chunk of keys is
// as much as fills the room that the grid has beside one block a tile (LuattnSplitList.most_items), so that blocks run
// in few rounds of about as many keys. Blocks that share a tile with others come first. The first block of a tile
// writes its number of splits for luattn_merge.
#pragma once
#include "work/sequence.cuh"
#include "work/split_list.cuh"

template <class Sequence, int TileM>
struct SplitPlaces {
  static constexpr u32 all_lanes = 0xffffffffu;
  static constexpr int least = 128, unit = 16;  // keys of a chunk; keys that are counted as one

  const LuattnParams &p;
  const LuattnSplitList &list;
  const int lane;
  u32 work, tiles;  // keys / unit times tiles of rows, and these, of all entries
  int longest;

  __device__ __forceinline__ SplitPlaces(const LuattnParams &p, const LuattnSplitList &list)
      : p(p), list(list), lane(int(threadIdx.x) % 32), work(0), tiles(0), longest(0) {
#pragma unroll 1
    for (int base = 0; base < list.in_place; base += 32) {
      const EntryTiles e = read(base);
      work += u32(ceil_div(e.keys, unit)) * u32(e.tiles), tiles += u32(e.tiles);
      longest = max_of(longest, e.tiles > 0 ? e.keys : 0);
    }
    work = __reduce_add_sync(all_lanes, work), tiles = __reduce_add_sync(all_lanes, tiles);
    longest = __reduce_max_sync(all_lanes, longest);
  }

  // This lane's entry of 32 from `base` on.
  __device__ __forceinline__ EntryTiles read(int base) const {
    const int entry = base + lane;
    if (entry >= list.in_place) return {0, 0};
    const Sequence site(p, entry, 0);
    return {site.kv_len, ceil_div(site.q_len * Sequence::group(p), TileM)};
  }

  // The share of memory's rate that so many blocks reach, as in common/kernel_time.c; of keys in pages.
  LUATTN_FN float rate(const LuattnSplitList &list, float blocks) {
    constexpr float alone = TileM <= 16 ? 1.28f : TileM <= 32 ? 1.f : 0.75f;
    const float filled = blocks / list.multiprocessors;
    if (filled <= 1.f) return min_of(alone * filled, 1.f);
    const float rounds = float(ceil_div(int(min_of(blocks, 1e9f)), int(list.resident)));
    return 1.f - 0.35f * (1.f - blocks / (rounds * list.resident));
  }
  // The time with n blocks for each tile, in keys of a head that memory delivers meanwhile.
  __device__ __forceinline__ float time_of(float keys, int n) const {
    const float heads = float(list.heads_kv), blocks = float(tiles) * heads * float(n);
    const float own = float(ceil_div(ceil_div(longest, n), 64) * 64);
    const float rounds = float(ceil_div(int(min_of(blocks, 1e9f)), int(list.resident)));
    return max_of(keys * heads / rate(list, blocks), own / rate(list, 1.f)) + rounds * list.start +
           (n > 1 ? blocks * list.part : 0.f);
  }
  // Lanes try a number of blocks each, and 32 more.
  __device__ __forceinline__ int even_chunk(float keys) const {
    u32 best = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = 1 + lane + 32 * i;
      if (n > 1 && u64(tiles) * u32(n) > list.most_items) continue;
      best = min_of(best, (__float_as_uint(time_of(keys, n)) & ~63u) | u32(n - 1));  // positive: ordered as integers
    }
    const int n = 1 + int(__reduce_min_sync(all_lanes, best) & 63u);
    return max_of(ceil_div(longest, n), 1);
  }
  __device__ __forceinline__ int chunk() const {
    const float keys = float(work) * float(unit);
    if (keys * 8.f >= float(tiles) * float(longest) * 7.f) return even_chunk(keys);
    // Entries have half a block more than their keys fill, in the mean, and one at most: for that there is room.
    const float room = max_of(float(list.most_items) - float(tiles), 1.f);
    const float blocks = max_of(room - 0.5f * float(tiles), 0.5f * room);
    return max_of(int(min_of(keys / blocks, 1e9f)) + 1, least);
  }

  // The item of block `number` of each head. Lanes have an entry each, and a sum over all before it.
  __device__ __forceinline__ LuattnSplitItem item(u32 number) const {
    const int keys = chunk();
    u32 at = number;
#pragma unroll 1
    for (int alone = 0; alone < 2; ++alone)
#pragma unroll 1
      for (int base = 0; base < list.in_place; base += 32) {
        const EntrySplits s(read(base), keys);
        const u32 mine = alone ? s.items - s.parts : s.parts;
        u32 through = mine;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
          const u32 before = __shfl_up_sync(all_lanes, through, u32(d));
          through += lane >= d ? before : 0;
        }
        const u32 all = __shfl_sync(all_lanes, through, 31);
        if (at < all) {
          const int from = __ffs(int(__ballot_sync(all_lanes, through > at))) - 1;
          const u32 within = at - __shfl_sync(all_lanes, through - mine, from);
          const u32 splits = u32(__shfl_sync(all_lanes, s.splits, from)), tile = within / splits;
          const u32 split = within - tile * splits;
          return {u32(base + from), tile, split | splits << 16, alone ? 0 : number - split};
        }
        at -= all;
      }
    return {0, 0, 0, 0};
  }
};

// As SplitList::block.
template <class Sequence, int TileM>
__device__ __forceinline__ SplitList::Block find_split_place(const LuattnParams &p, const SplitList &of) {
  const LuattnSplitList &list = of.list;
  const u32 number = blockIdx.x / u32(list.heads_kv);
  const SplitPlaces<Sequence, TileM> places(p, list);
  const SplitList::Block mine{places.item(number), int(blockIdx.x - number * u32(list.heads_kv))};
  if (mine.h_kv == 0 && mine.split() == 0 && mine.splits() > 0 && threadIdx.x == 0)
    list.of_tile[i64(mine.item.entry) * list.tiles + mine.item.tile] = {mine.item.first, u32(mine.splits())};
  return mine;
}
