// work/split_places.cuh: finds a block's rows and keys from the lengths of all entries, where no list was made: of up to
// 32 entries, of which each lane of a warp reads one. All warps of a decode kernel come to the same result, in about a
// microsecond, where another kernel that makes a list would take five. In decoding, other kernels' data push the code of
// this one out of the L2 cache: loops are rolled and divisions by reciprocals, because each line of code comes from
// memory.
//
// Entries about as long as one another have as many blocks each, by a model of the time. Of others the keys of a block
// are as few as there is room for (LuattnSplitList.most_items), so that blocks run in few rounds of about as many keys.
// Blocks that share a tile with others come first. The first block of a tile writes its number of splits for
// luattn_merge.
#pragma once
#include "work/sequence.cuh"
#include "work/split_list.cuh"

template <class Sequence, int TileM>
struct SplitPlaces {
  static_assert(Sequence::is_line, "blocks share as many positions as the lengths say");
  static constexpr u32 all_lanes = 0xffffffffu;
  static constexpr int unit = 16;  // keys that are counted as one

  const LuattnSplitList &list;
  const int lane;
  int keys, tiles;  // of the lane's entry: tiles of rows
  int longest;
  float work, all_tiles;  // keys times tiles, and these, of all entries

  __device__ __forceinline__ static float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  __device__ __forceinline__ SplitPlaces(const LuattnParams &p, const LuattnSplitList &list)
      : list(list), lane(int(threadIdx.x) % 32), keys(0), tiles(0) {
    if (lane < list.in_place) {
      const Sequence site(p, lane, 0);
      keys = site.kv_len, tiles = ceil_div(site.q_len * Sequence::group(p), TileM);
    }
    work = float(unit) * float(__reduce_add_sync(all_lanes, u32(ceil_div(keys, unit)) * u32(tiles)));
    all_tiles = float(__reduce_add_sync(all_lanes, u32(tiles)));
    longest = __reduce_max_sync(all_lanes, tiles > 0 ? keys : 0);
  }

  // The share of memory's rate that so many blocks reach, as in common/call/kernel_time.c; but the grid has blocks behind
  // them that end at once, so that two of few blocks may have a multiprocessor.
  static constexpr float alone = TileM <= 16 ? 1.36f : TileM <= 32 ? 1.03f : 0.75f;
  __device__ __forceinline__ float rate(float blocks, float rounds) const {
    const float filled = blocks * reciprocal(list.multiprocessors);
    return filled <= 1.f ? min_of(alone * filled, 0.9f) : 0.65f + 0.35f * blocks * reciprocal(rounds * list.resident);
  }
  // The time with n blocks for each tile, in keys of a head that memory delivers meanwhile.
  __device__ __forceinline__ float time_of(float n) const {
    constexpr float next = TileM <= 16 ? 0.45f : TileM <= 32 ? 1.6f : 2.9f;  // of list.start, for each later round
    const float heads = float(list.heads_kv), blocks = all_tiles * heads * n;
    const float rounds = ceilf(blocks * reciprocal(list.resident));
    const float own = ceilf(float(longest) * reciprocal(n * 64.f)) * 64.f;
    return max_of(work * heads * reciprocal(rate(blocks, rounds)), own * list.multiprocessors * (1.f / alone)) +
           rounds * next * list.start + (n > 1.f ? 1.7f * list.start + blocks * list.part : 0.f);
  }
  // Lanes try a number of blocks each, and 32 more. Times are positive, so that their bits are ordered as they are.
  __device__ __forceinline__ int even_splits() const {
    u32 best = 0xffffffffu;
#pragma unroll 1
    for (int n = 1 + lane; n <= 64; n += 32)
      if (n == 1 || all_tiles * float(n) <= float(list.most_items))
        best = min_of(best, (__float_as_uint(time_of(float(n))) & ~63u) | u32(n - 1));
    return 1 + int(__reduce_min_sync(all_lanes, best) & 63u);
  }

  // How many blocks a tile of the lane's entry has, of `chunk` keys.
  __device__ __forceinline__ int splits_by(float chunk) const {
    return max_of(min_of(int(ceilf(float(keys) * reciprocal(chunk))), LUATTN_MAX_SPLITS), 1);
  }
  // One round of blocks, or more where each has over `round_keys` keys then. Entries have half a block more than their
  // keys fill, in the mean, and one at most: then there is room in any case. Where many short entries leave so little
  // room that blocks had to be half as long again, some begin after the round instead.
  __device__ __forceinline__ int uneven_splits() const {
    constexpr float round_keys = 640.f;
    const float heads = float(list.heads_kv), rounds = work * heads * reciprocal(list.resident * round_keys);
    const float wanted = max_of(rounds, 1.f) * list.resident * reciprocal(heads);
    const float most = min_of(max_of(wanted, all_tiles + 1.f), float(list.most_items));
    int first = 0, splits = 1;
    float longest_chunk = 0.f;
#pragma unroll 1
    for (float surplus = 0.5f; surplus <= 1.f; surplus += 0.25f) {
      const float blocks = most - surplus * all_tiles, chunk = max_of(work * reciprocal(blocks), 64.f) + 1.f;
      const bool is_some = blocks >= 1.f;
      splits = is_some ? splits_by(chunk) : 1;
      const float all = float(__reduce_add_sync(all_lanes, u32(splits) * u32(tiles)));
      if (first > 0 && (!is_some || chunk > longest_chunk)) return first;
      if (all <= most) return splits;
      if (first == 0 && all <= float(list.most_items)) first = splits, longest_chunk = 1.5f * chunk;
    }
    return first > 0 ? first : 1;
  }

  // How many blocks each tile of the lane's entry has.
  __device__ __forceinline__ int splits() const {
    return work * 8.f >= all_tiles * float(longest) * 7.f ? even_splits() : uneven_splits();
  }

  // Item `number` of each head: a sum over all entries before it.
  __device__ __forceinline__ LuattnSplitItem item(int splits, u32 number) const {
    u32 at = number;
#pragma unroll 1
    for (int alone = 0; alone < 2; ++alone) {
      const u32 mine = (splits == 1) == (alone == 1) ? u32(tiles) * u32(splits) : 0;
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
        const u32 count = u32(__shfl_sync(all_lanes, splits, from)), tile = within / count;
        const u32 split = within - tile * count;
        return {u32(from), tile, split | count << 16, alone ? 0 : number - split};
      }
      at -= all;
    }
    return {0, 0, 0, 0};
  }
};

// As SplitList::block. Called, so that its code does not lie in the way of blocks that have no use for it.
template <class Sequence, int TileM>
LUATTN_OUTLINED SplitList::Block find_split_place(const LuattnParams &p, u32 number) {
  const LuattnSplitList &list = SplitList(p).list;
  const SplitPlaces<Sequence, TileM> places(p, list);
  const int splits = places.splits();
  const u32 heads = u32(list.heads_kv), at = number / heads,
            all = __reduce_add_sync(places.all_lanes, u32(places.tiles) * u32(splits));
  const SplitList::Block mine{places.item(splits, at), int(number - at * heads), all * heads};
  if (mine.h_kv == 0 && mine.split() == 0 && mine.splits() > 0 && threadIdx.x == 0)
    list.of_tile[i64(mine.item.entry) * list.tiles + mine.item.tile] = {mine.item.first, u32(mine.splits())};
  return mine;
}
