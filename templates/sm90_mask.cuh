// sm90_mask.cuh: which scores of a masked tile count, in the sm90 forward. A consumer's thread has two rows
// of it, and two columns of each eight.
#pragma once
#include "rows.cuh"
#include "sm90.cuh"

// Puts -inf, or 0 without Spec::mask_by_inf, in place of the scores that do not count, and notes in `keep`
// which do, and in `online` which rows have kept one.
template <class Spec, class Online, int TileN>
struct MaskSm90 {
  static constexpr int rows = 2, cols = TileN / 4, tile_n = TileN;
  using Keep = KeepBits<cols>;
  const LuattnParams &p;
  const Site &site;
  const typename Spec::Head &head;
  const typename Spec::Row (&row)[rows];
  const int first_row, lane;

  // As in ConsumerSm90.
  __device__ __forceinline__ int query(int r) const {
    return min_of(int(Position{first_row + lane / 4, r * 8}), site.q_len - 1);
  }
  __device__ __forceinline__ void apply(KvNote tile, int kv0, float (&x)[rows][cols], Keep (&keep)[rows],
                                        Online &online) const {
    if constexpr (Spec::keep_period > 0) return by_grid(kv0, x, keep, online);
    if constexpr (Spec::keep_range > 0)
      if (!Spec::keep_apart || tile.by_range()) return by_interval(kv0, x, keep, online);
#pragma unroll
    for (int r = 0; r < rows; ++r) keep[r] = Keep::none();
    if constexpr (!Spec::keep_is_cheap) find_kept(kv0, keep);
#pragma unroll
    for (int j = 0; j < cols; ++j) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const bool kept = Spec::keep_is_cheap ? keeps(r, kv0 + j / 2 * 8 + j % 2) : keep[r].get(j);
        if (Spec::keep_is_cheap && kept)
          keep[r].word[Spec::mask_by_inf ? 0 : j / 32] |= Spec::mask_by_inf ? 1 : 1u << j % 32;
        x[r][j] = kept ? x[r][j] : Spec::mask_by_inf ? -infinity<float>() : 0.f;
      }
    }
    if constexpr (Spec::mask_by_inf) online.kept.bits |= online.kept_rows(keep);
  }
  // The same where a row keeps an interval: an element costs a comparison with a constant, or two, and a
  // select.
  __device__ __forceinline__ void by_interval(int kv0, float (&x)[rows][cols], Keep (&keep)[rows],
                                              Online &online) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const Range kept = Spec::kv_range(p, site, query(r), query(r));
      const int lo = kept.lo - kv0, hi = kept.hi - kv0, tile = lane % 4 * -2;
      keep[r] = Keep::none();
      // If one of the row's four threads keeps something, all may say that they do.
      if constexpr (Spec::mask_by_inf) online.kept.raise(r, max_of(lo, tile) < min_of(hi, tile + tile_n));
#pragma unroll
      for (int j = 0; j < cols; ++j) {
        const int column = j / 2 * 8 + j % 2;
        const bool inside = column < hi && (Spec::keep_range == 1 || column >= lo);
        if constexpr (!Spec::mask_by_inf) keep[r].set(j, inside);
        x[r][j] = inside ? x[r][j] : Spec::mask_by_inf ? -infinity<float>() : 0.f;
      }
    }
  }
  // Where it keeps an interval in each row of a grid: bits of the columns that this thread has of them, and
  // for an element the test of its bit and a select.
  __device__ __forceinline__ void by_grid(int kv0, float (&x)[rows][cols], Keep (&keep)[rows],
                                          Online &online) const {
    constexpr int period = Spec::keep_period > 0 ? Spec::keep_period : 1;
    const int tile0 = kv0 - lane % 4 * 2;
    Range kept[rows], rest[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      kept[r] = Spec::kv_range(p, site, query(r), query(r));
      rest[r] = Spec::rest_range(p, site, query(r));
      keep[r] = Keep::none();
    }
#pragma unroll 1
    for (int line = tile0 / period * period; line < tile0 + tile_n; line += period) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const int lo = max_of(kept[r].lo, line + max_of(rest[r].lo, 0)) - kv0,
                  hi = min_of(kept[r].hi, line + min_of(rest[r].hi, period)) - kv0;
#pragma unroll
        for (int w = 0; w < (cols + 31) / 32; ++w)
          keep[r].word[w] |= columns_below(hi - 128 * w) & ~columns_below(lo - 128 * w);
      }
    }
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int j = 0; j < cols; ++j)
        x[r][j] = keep[r].get(j) ? x[r][j] : Spec::mask_by_inf ? -infinity<float>() : 0.f;
    if constexpr (Spec::mask_by_inf) online.kept.bits |= online.kept_rows(keep);
  }
  __device__ __forceinline__ bool keeps(int r, int kv) const {
    bool kept = kv < site.kv_len;
    if constexpr (Spec::has_mask)
      kept = kept & Spec::keep(p, site, head, row[r], Spec::col(p, site, head, kv), query(r), kv);
    return kept;
  }
  __device__ __forceinline__ void find_kept(int kv0, Keep (&keep)[rows]) const {
#pragma unroll
    for (int w = 0; w < (cols + 31) / 32; ++w) {
#pragma unroll 1
      for (int j = 0; j < 32 && 32 * w + j < cols; j += 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int r = 0; r < rows; ++r)
            keep[r].word[w] |= u32(keeps(r, kv0 + (32 * w + j) * 4 + i / 2 * 8 + i % 2)) << (j + i);
      }
    }
  }
};
