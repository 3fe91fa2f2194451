// sm90/fwd/mask.cuh: applies the mask to a tile of scores in registers (sm90 forward). A thread of a consumer
// has two rows of the tile, and two of every eight columns.
#pragma once
#include "arch/mma.cuh"
#include "arch/warp.cuh"
#include "score/flag_lines.cuh"
#include "score/fragment.cuh"
#ifdef LUATTN_FREE_BOXES
#include "score/kept_keys.cuh"
#endif
#include "score/mask_runs.cuh"
#include "score/online_rows.cuh"
#include "sm90/pipeline.cuh"
#include "tma/forward_messages.cuh"

// Replaces scores that the mask drops by -inf, or by 0 without Spec::mask_by_inf. Records in `keep` which
// scores count, and in `online` which rows have kept one. With a mask interval, an element costs one or two
// comparisons with a constant, and a select. With only a cheap predicate, an element costs the predicate and
// a select. In all other cases the code first sets a bit for each element that counts, from intervals with
// remainders or by loops over the predicate, which compile fast; an element then costs a bit test and a
// select.
//
// OwnLength: an entry's length comes from memory. Without a mask it would be all that comparisons need, the same number
// in the whole warp, and ptxas would keep it, the tile's message and parities in uniform registers, whose moves
// lengthen the loop of two consumers. A row's number beside it prevents that.
template <class Spec, class Sequence, class Online, class Fragment, int TileN, bool OwnLength>
struct MaskSm90 {
  using Key = typename Sequence::Key;
  using KvMessage = KvTileMessage<typename Sequence::KeyTile>;
  static constexpr int rows = Fragment::rows(16), cols = Fragment::columns(TileN), tile_n = TileN,
                       words = (cols + 31) / 32, of_word = columns_of_word<Fragment>;
  using Keep = KeepBits<cols>;
  const LuattnParams &p;
  const Sequence &site;
  const typename Spec::Head &head;
  const typename Spec::Row (&row)[rows];
  const int first_row, lane;
  const u32 row_ranges;  // over a grid: of the warp, in shared memory

  // The query of the thread's row r, as in ConsumerSm90.
  __device__ __forceinline__ int query(int r) const {
    return site.clamped_query(p, Position{first_row + Fragment::row(lane), Fragment::row_of(r)});
  }
  // kv0 is the position of the thread's first column.
  __device__ __forceinline__ void apply(const KvMessage &tile, const Key &kv0, float (&x)[rows][cols],
                                        Keep (&keep)[rows], Online &online) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) keep[r] = Keep::none();
    constexpr bool by_row = Spec::row_intervals > 0 && !Spec::rows_need_full_data;
    if constexpr (Spec::mask_by_inf && by_row && Spec::row_intervals == 1 && Spec::row_period == 0 && Sequence::is_line)
      return by_interval(kv0, x, online);
    if constexpr (Spec::mask_by_inf && Spec::row_intervals == 0 && Spec::keep_is_cheap && !Spec::keep_by_column)
      return by_predicate(kv0, x, online);
    find_bits(tile, kv0, keep, online);
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int j = 0; j < cols; j += 4)
        keep_4(x[r][j], x[r][j + 1], x[r][j + 2], x[r][j + 3], keep[r].word[j / 32] >> j % 32, gone());
  }
  __device__ __forceinline__ void find_bits(const KvMessage &tile, const Key &kv0, Keep (&keep)[rows],
                                            Online &online) const {
    if constexpr (Spec::row_intervals > 0) {
      if constexpr (!Sequence::is_line) {
#ifdef LUATTN_FREE_BOXES
        find_kept_keys<Spec, Fragment>(p, row_ranges, lane, kv0, keep);
#else  // an overload of the Sequence
        const int queries[rows] = {query(0), query(1)};
        find_kept_keys<Spec, Fragment, tile_n>(p, site, queries, kv0, keep);
#endif
        return note(keep, online);
      } else if (!Spec::rows_need_full_data || tile.by_range()) {
        return bits_of_row(kv0, keep, online);
      }
    }
    if constexpr (Spec::has_flag_line && tile_n % 64 == 0 && Sequence::is_line) {
      const int first = kv0 - Fragment::column(lane);
      if (site.has_keys(p, first, tile_n) && flags_are_wide<Spec>(p, first + tile_n))
        bits_of_flag_lines(kv0, keep);
      else
        bits_of_predicate<false>(kv0, keep);
    } else if constexpr (Spec::keep_by_column && Sequence::is_line) {
      if (!bits_of_runs(kv0, keep)) bits_of_predicate<false>(kv0, keep);
    } else if constexpr (lanes_read_keys && Sequence::is_line) {
      bits_of_lanes(kv0, keep);
    } else {
      bits_of_predicate<false>(kv0, keep);
    }
    note(keep, online);
  }
  // Whether a key has one number for the mask, an integer whose minima are known: each lane then reads those of every
  // 32nd key, once in a tile, and hands them on. Else each thread would read its own keys' numbers, a few at a time,
  // from the L2 cache, beside whose latency a tile's products are short.
  static constexpr bool lanes_read_keys = Spec::num_block_bounds > 0 &&
                                          sizeof(typename Spec::Col) == sizeof(u32) && tile_n % 32 == 0 && words == 1;
  __device__ __forceinline__ void bits_of_lanes(const Key &kv0, Keep (&keep)[rows]) const {
    constexpr int of_lanes = tile_n / 32, each = Fragment::columns(32);
    const int tile0 = kv0 - Fragment::column(lane);
    typename Spec::Col col[of_lanes];
#pragma unroll
    for (int w = 0; w < of_lanes; ++w) col[w] = Spec::col(p, site, head, site.clamped_key(p, tile0 + 32 * w + lane));
#pragma unroll 1
    for (int w = 0; w < of_lanes; ++w) {
      u32 bits[rows] = {};
#pragma unroll
      for (int j = 0; j < each; ++j) {
        const int column = Fragment::column_of(j), kv = kv0 + 32 * w + column;
        const typename Spec::Col of_key = of_lane(col[0], Fragment::column(lane) + column);
#pragma unroll
        for (int r = 0; r < rows; ++r) bits[r] |= Spec::keep(p, site, head, row[r], of_key, query(r), kv) ? 1u << j : 0;
      }
#pragma unroll
      for (int r = 0; r < rows; ++r) keep[r].word[0] = keep[r].word[0] >> each | bits[r] << (32 - each);
#pragma unroll
      for (int i = 0; i + 1 < of_lanes; ++i) col[i] = col[i + 1];
    }
    Keep inside = Keep::none();
    add(inside, tile0 - kv0, site.keys(p) - kv0);
#pragma unroll
    for (int r = 0; r < rows; ++r) keep[r].word[0] = keep[r].word[0] >> (32 - cols) & inside.word[0];
  }
  // False: there are too many.
  __device__ __forceinline__ bool bits_of_runs(const Key &kv0, Keep (&keep)[rows]) const {
    const int tile0 = kv0 - Fragment::column(lane);
    const auto col = [&](int i) { return Spec::col(p, site, head, site.clamped_key(p, tile0 + i)); };
    const auto runs = MaskRuns<tile_n>::find(lane, [&](int i) { return !Spec::same_column(col(i), col(i - 1)); });
    if (!runs.template few<Fragment::row_lanes>()) return false;
    runs.each([&](int first, int end) {
      const int kv = site.clamped_key(p, tile0 + first);
      const typename Spec::Col of_run = Spec::col(p, site, head, kv);
#pragma unroll
      for (int r = 0; r < rows; ++r)
        if (Spec::keep(p, site, head, row[r], of_run, query(r), kv))
          add(keep[r], tile0 + first - kv0, min_of(tile0 + end, site.keys(p)) - kv0);
    });
    return true;
  }
  // The interval of keys that row r keeps, or the first one of two.
  __device__ __forceinline__ Range range_of(int r) const {
    if constexpr (Spec::has_mask)
      return Spec::row_interval(p, site, query(r));
    else
      return {0, OwnLength ? min_of(site.keys(p), site.keys(p) + query(r)) : site.keys(p)};
  }
  // Records which rows keep something of the tile. If one of a row's four threads does, all four may record
  // it.
  __device__ __forceinline__ void note(const Keep (&keep)[rows], Online &online) const {
    if constexpr (Spec::mask_by_inf) online.kept.bits |= online.kept_rows(keep);
  }
  __device__ __forceinline__ void note(int r, const Key &kv0, Range kept, Online &online) const {
    const int lo = kept.lo - kv0, hi = kept.hi - kv0, tile = Fragment::lane_in_row(lane) * -Fragment::adjacent;
    if constexpr (Spec::mask_by_inf) online.kept.raise(r, max_of(lo, tile) < min_of(hi, tile + tile_n));
  }
  static __device__ __forceinline__ float gone() { return Spec::mask_by_inf ? -infinity<float>() : 0.f; }
  __device__ __forceinline__ void by_interval(const Key &kv0, float (&x)[rows][cols], Online &online) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const Range kept = range_of(r);
      const int lo = kept.lo - kv0, hi = kept.hi - kv0;
      note(r, kv0, kept, online);
#pragma unroll
      for (int j = 0; j < cols; ++j) {
        const int column = Fragment::column_of(j);
        const bool inside = column < hi && (Spec::row_from_start || column >= lo);
        x[r][j] = inside ? x[r][j] : gone();
      }
    }
  }
  __device__ __forceinline__ void by_predicate(const Key &kv0, float (&x)[rows][cols], Online &online) const {
    bool any[rows] = {false, false};
#pragma unroll
    for (int j = 0; j < cols; ++j)
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const bool kept = keeps(r, kv0 + Fragment::column_of(j));
        any[r] |= kept;
        x[r][j] = kept ? x[r][j] : gone();
      }
#pragma unroll
    for (int r = 0; r < rows; ++r) online.kept.raise(r, any[r]);
  }
  static __device__ __forceinline__ void add(Keep &keep, int lo, int hi) {
#pragma unroll
    for (int w = 0; w < words; ++w)
      keep.word[w] |= columns_between<Fragment>(lo - of_word * w, hi - of_word * w, tile_n - of_word * w);
  }
  __device__ __forceinline__ void bits_of_row(const Key &kv0, Keep (&keep)[rows], Online &online) const {
    constexpr bool one = Spec::row_intervals == 1 && Spec::row_period == 0;
    Range kept[rows], rest[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      kept[r] = range_of(r);
      if constexpr (one) note(r, kv0, kept[r], online);
      if constexpr (Spec::row_from_start) kept[r].lo = kv0;  // or any lower number
      if constexpr (Spec::row_period > 0) rest[r] = Spec::row_remainders(p, site, query(r));
    }
    bits_of_range(kv0, kept, rest, keep);
    if constexpr (Spec::row_intervals == 2) {
#pragma unroll
      for (int r = 0; r < rows; ++r) kept[r] = Spec::second_row_interval(p, site, query(r));
      bits_of_range(kv0, kept, rest, keep);
    }
    if constexpr (Spec::row_period > 0 && Spec::row_period < short_period) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        u32 of_rest[words];
        columns_of_residues<Fragment, Spec::row_period>(of_rest, kv0 + Spec::row_phase(p, site), rest[r]);
#pragma unroll
        for (int w = 0; w < words; ++w) keep[r].word[w] &= of_rest[w];
      }
    }
    if constexpr (!one) note(keep, online);
  }
  // Sets the bits of an interval or, with a long period, of its part in each row of the grid.
  __device__ __forceinline__ void bits_of_range(const Key &kv0, const Range (&kept)[rows], const Range (&rest)[rows],
                                                Keep (&keep)[rows]) const {
    constexpr int period = Spec::row_period;
    if constexpr (period < short_period) {
#pragma unroll
      for (int r = 0; r < rows; ++r) add(keep[r], kept[r].lo - kv0, kept[r].hi - kv0);
    } else {
      const int tile0 = kv0 - Fragment::column(lane), phase = Spec::row_phase(p, site);
#pragma unroll 1
      for (int line = (tile0 + phase) / period * period - phase; line < tile0 + tile_n; line += period)
#pragma unroll
        for (int r = 0; r < rows; ++r)
          add(keep[r], max_of(kept[r].lo, line + max_of(rest[r].lo, 0)) - kv0,
              min_of(kept[r].hi, line + min_of(rest[r].hi, period)) - kv0);
    }
  }
  // Beside: only the part of the mask that is no flag.
  template <bool Beside = false>
  __device__ __forceinline__ bool keeps(int r, const Key &kv) const {
    if constexpr (Beside) return Spec::keep_beside(p, site, head, row[r], Spec::col(p, site, head, kv), query(r), kv);
    bool kept = site.has_key(p, kv);
    if constexpr (Spec::has_mask)
      kept = kept & Spec::keep(p, site, head, row[r], Spec::col(p, site, head, kv), query(r), kv);
    return kept;
  }
  // In a tile inside the lengths.
  __device__ __forceinline__ void bits_of_flag_lines(const Key &kv0, Keep (&keep)[rows]) const {
    const u32 first = u32(kv0 - Fragment::column(lane));
    u32 bits[tile_n / 64];
    flags_of_two_rows<Fragment>(Spec::flag_line(p, site, head, query(0)) + first,
                                Spec::flag_line(p, site, head, query(1)) + first, lane, bits);
    Keep beside[rows] = {Keep::none(), Keep::none()};
    if constexpr (Spec::has_keep_beside) bits_of_predicate<true>(kv0, beside);
#pragma unroll
    for (int i = 0; i < tile_n / 64; ++i) {
      keep[0].word[i / 2] |= (bits[i] & 0xffffu) << i % 2 * 16;
      keep[1].word[i / 2] |= bits[i] >> 16 << i % 2 * 16;
    }
    if constexpr (Spec::has_keep_beside)
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int w = 0; w < words; ++w) keep[r].word[w] &= beside[r].word[w];
  }
  template <bool Beside>
  __device__ __forceinline__ void bits_of_predicate(const Key &kv0, Keep (&keep)[rows]) const {
    constexpr int step = 4;
#pragma unroll
    for (int w = 0; w < words; ++w) {
#pragma unroll 1
      for (int j = 0; j < 32 && 32 * w + j < cols; j += step) {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          u32 bits = 0;
#pragma unroll
          for (int i = 0; i < step; ++i)
            bits |= keeps<Beside>(r, kv0 + (32 * w + j) * 4 + Fragment::column_of(i)) ? 1u << i : 0;
          keep[r].word[w] |= bits << j;
        }
      }
    }
  }
};
