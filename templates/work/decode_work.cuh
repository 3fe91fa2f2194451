// work/decode_work.cuh: which rows and keys a block of the decode kernel has, and the tiles of keys that its warps
// take.
#pragma once
#include "work/sequence.cuh"
#include "work/split_list.cuh"
#include "work/split_places.cuh"
#include "work/tile_walk.cuh"

// A row of a tile: its query, clamped to the last one, and its query head.
struct RowPlace {
  int q, h;
  bool exists;
};

// Entries have equal lengths, or may have a list of splits (work/split_list.cuh). Without a list, splits of a tile lie
// side by side in the grid, so that they run at the same time.
template <class Sequence, int TileM>
struct DecodeBlock {
  static_assert(Sequence::is_line, "a tile's rows are the next queries of a line");
  enum : bool { may_be_listed = Sequence::packed || Sequence::paged };
  int first_row, split, splits, h_kv, b;
  u32 first_part;  // listed: the place of the tile's first split

  // Of the grid.
  __device__ __forceinline__ explicit DecodeBlock(const LuattnSplitsParams &p)
      : splits(p.splits.count), h_kv(int(blockIdx.y)), b(int(blockIdx.z)), first_part(0) {
    const int tile = int(blockIdx.x) / splits;
    split = int(blockIdx.x) - tile * splits;
    first_row = tile * TileM;
  }
  __device__ __forceinline__ explicit DecodeBlock(const SplitList::Block &mine)
      : first_row(int(mine.item.tile) * TileM),
        split(mine.split()),
        splits(mine.splits()),
        h_kv(mine.h_kv),
        b(int(mine.item.entry)),
        first_part(mine.item.first) {}
  // Block `number` of a list, or of the grid, where there is none and no other block follows.
  __device__ __forceinline__ static SplitList::Block find(const LuattnSplitsParams &p, u32 number) {
    const SplitList list(p);
    if (list.known()) return list.in_place() ? find_split_place<Sequence, TileM>(p, number) : list.block(number);
    const DecodeBlock mine(p);
    return {{u32(mine.b), u32(mine.first_row / TileM), u32(mine.split) | u32(mine.splits) << 16, 0}, mine.h_kv, 0};
  }
  __device__ __forceinline__ bool has_rows(const LuattnParams &p, const Sequence &site) const {
    return first_row < site.q_len * Sequence::group(p) && (!may_be_listed || splits > 0);
  }
  // Listed: where partial results of a row of the tile are.
  __device__ __forceinline__ PartRow part_row(const SplitList &list, int r) const {
    return list.part_row(first_part, h_kv, first_row + r);
  }
  __device__ __forceinline__ RowPlace place(const LuattnParams &p, const Sequence &site, int r) const {
    const int group = Sequence::group(p), at = first_row + r, q = at / group;
    return {min_of(q, site.q_len - 1), h_kv * group + (at - q * group), q < site.q_len};
  }
  // The queries of the tile, and the heads of its rows: so many, from one on, around the end of the group.
  __device__ __forceinline__ int last_row(const LuattnParams &p, const Sequence &site) const {
    return min_of(first_row + TileM, site.q_len * Sequence::group(p)) - 1;
  }
};

// A tile of keys, in one register: its number and whether some score of it may be dropped, or none.
struct KeyTile {
  int code;
  __device__ __forceinline__ bool valid() const { return code >= 0; }
  __device__ __forceinline__ int index() const { return code >> 1; }
  __device__ __forceinline__ bool masked() const { return (code & 1) != 0; }
};

// The tiles of Keys keys that one of Warps warps of a block takes, upwards: of the tiles of the block's split, every
// Warps-th from its own number on. A split has an equal part of the tiles between the first and the last key that some
// row of some head may keep. Lanes ask for the heads of the tile's rows, one each, or two of 64 rows. The warp stays
// converged.
template <class Spec, class Sequence, int TileM, int Keys, int Warps>
struct DecodeWalk {
  static_assert(Sequence::is_line, "tiles of keys are cut from positions 0 to kv_len");
  Sequence site;  // of the head for which the lane asks
  int second;     // the other head, of more than 32 rows
  int q0, q1, at, end;

  __device__ __forceinline__ DecodeWalk(const LuattnParams &p, const Sequence &group_site,
                                        const DecodeBlock<Sequence, TileM> &block, int lane, int warp)
      : site(group_site) {
    const int group = Sequence::group(p), last = block.last_row(p, group_site);
    const int heads = min_of(last - block.first_row + 1, group);  // at most TileM
    static_assert(TileM <= 64);
    q0 = block.first_row / group;
    q1 = last / group;
    Range tiles;
    if constexpr (Spec::has_mask) {
      site.h = group_site.h + (block.first_row + lane % heads) % group;
      Range kept = kept_keys<Spec>(p, site, q0, q1);
      if constexpr (TileM > 32) {
        second = group_site.h + (block.first_row + (lane + 32) % heads) % group;
        const Range more = kept_keys<Spec>(p, of_second(), q0, q1);
        if (kept.lo >= kept.hi)
          kept = more;
        else if (more.lo < more.hi)
          kept = {min_of(kept.lo, more.lo), max_of(kept.hi, more.hi)};
      }
      const bool some = kept.lo < kept.hi;
      tiles = tiles_of({int(__reduce_min_sync(0xffffffffu, some ? kept.lo : 0x7fffffff)),
                        int(__reduce_max_sync(0xffffffffu, some ? kept.hi : 0))},
                       site.kv_len, Keys);
    } else {
      tiles = tiles_of({0, site.kv_len}, site.kv_len, Keys);
    }
    const int count = tiles.hi - tiles.lo;
    at = tiles.lo + int(i64(count) * block.split / block.splits) + warp;
    end = tiles.lo + int(i64(count) * (block.split + 1) / block.splits);
  }

  __device__ __forceinline__ Sequence of_second() const {
    Sequence other = site;
    other.h = second;
    return other;
  }
  __device__ __forceinline__ KeyTile next(const LuattnParams &p) {
    for (; at < end; at += Warps) {
      const int kv0 = at * Keys, kv1 = min_of(kv0 + Keys, site.kv_len) - 1;
      bool masked = kv0 + Keys > site.kv_len;
      if constexpr (Spec::has_mask) {
        TileClass c = class_of<Spec>(p, site, q0, q1, kv0, kv1);
        if constexpr (TileM > 32)
          if (class_of<Spec>(p, of_second(), q0, q1, kv0, kv1) != c) c = TILE_PARTIAL;
        if (!__any_sync(0xffffffffu, c != TILE_EMPTY)) continue;
        masked |= !__all_sync(0xffffffffu, c == TILE_FULL);
      }
      const KeyTile tile{at * 2 + int(masked)};
      at += Warps;
      return tile;
    }
    return KeyTile{-1};
  }
};
