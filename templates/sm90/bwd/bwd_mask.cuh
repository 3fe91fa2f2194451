// sm90/bwd/bwd_mask.cuh: applies the mask to a tile of P and dS in registers (sm90 backward), as sm90/fwd/mask.cuh does to
// scores. Scores are transposed: a thread has two keys, the halves, and two of every eight queries, the columns.
#pragma once
#include "score/flag_lines.cuh"
#include "score/fragment.cuh"
#include "score/kept_queries.cuh"
#include "score/mask_runs.cuh"
#include "tma/backward_messages.cuh"
#ifdef LUATTN_GRID
#include "score/kept_box_queries.cuh"
#endif

// `of`: the consumer, with the thread's place and its keys: p, shared, site, head, group, warp, lane, kv0, col, kv_of(half),
// row_at(column), keeps(row, half, ..), ends().
template <class Spec, class Config, class Consumer>
struct MaskBwdSm90 {
  using Fragment = MmaFragment;
  static constexpr int tile_m = Config::tile_m, tile_n = Config::tile_n, cols = Fragment::columns(tile_m);
  static constexpr bool on_line = SequenceOf<Config>::is_line, over_grid = HasAxes<Config>;
  // Whether bits of the elements are set first: where intervals decide, and where the mask is long. If it is cheap, and
  // needs data too, intervals decide in tiles by_range alone, and elsewhere it is asked for each element at once.
  static constexpr bool asks_data_at_once = Spec::keep_is_cheap && Spec::columns_need_full_data && on_line;
  static constexpr bool drops_by_bits =
      over_grid || (Spec::has_mask &&
                    ((Spec::column_intervals > 0 && !asks_data_at_once) || !Spec::keep_is_cheap || Spec::keep_by_row));
  using Keep = KeepBits<cols>;

  const Consumer &of;
  const TileMessage tile;
  const int q0;  // the tile's first query

  // Sets bit j of keep[half] if the mask keeps column j of the thread in that half.
  __device__ __forceinline__ void find_kept(Keep (&keep)[2]) const {
    if constexpr (over_grid) {
      const BoxPlaces<over_grid> places{of.shared.places(of.group * 4 + of.warp)};
      places.template find<Spec, Fragment, Config>(of, q0, keep);
    } else if constexpr (Spec::column_intervals > 0) {
      if (!Spec::columns_need_full_data || tile.by_range())
        find_kept_queries<Spec, Fragment, tile_m>(of.p, of.site, int(of.kv_of(0)), q0, keep);
      else
        ask(keep);
    } else {
      ask(keep);
    }
  }
  // Applies the mask and, in tiles at the ends, the bounds of the lengths. The two are separate because most
  // masked tiles are not at an end.
  __device__ __forceinline__ void drop(float (&s)[tile_m / 2], float (&dp)[tile_m / 2]) const {
    Keep keep[2] = {Keep::none(), Keep::none()};
    if constexpr (drops_by_bits) {
      find_kept(keep);
      drop_by_bits(s, dp, keep);
    } else {
      if constexpr (Spec::column_intervals > 0) {
        if (tile.by_range()) {
          find_kept_queries<Spec, Fragment, tile_m>(of.p, of.site, int(of.kv_of(0)), q0, keep);
          return drop_by_bits(s, dp, keep);
        }
      }
      if constexpr (Spec::has_mask)
        select(s, dp, [&](int j, int half) {
          return Spec::keep(of.p, of.site, of.head, of.row_at(Fragment::column(of.lane, j)), of.col[half], query(j),
                            of.kv_of(half));
        });
      if (!of.ends().has_queries(of.p, q0, tile_m) || !of.ends().has_keys(of.p, of.kv0 / tile_n * tile_n, tile_n))
        select(s, dp, [&](int j, int half) {
          return of.ends().has_query(of.p, query(j)) && of.ends().has_key(of.p, of.kv_of(half));
        });
    }
  }

 private:
  __device__ __forceinline__ int query(int j) const { return q0 + Fragment::column(of.lane, j); }

  // Calls `keep` for every element, but for flags.
  __device__ __forceinline__ void ask(Keep (&keep)[2]) const {
    if constexpr (Spec::has_flag_line && on_line) {
      if (of.ends().has_keys(of.p, of.kv0, 16) && of.ends().has_queries(of.p, q0, tile_m) &&
          flags_are_wide<Spec>(of.p, of.kv0 + 16))
        return read_flag_lines(keep);
    }
    ask_columns<Spec, Fragment, tile_m, on_line>(of, q0, keep);
  }
  // In a tile inside the lengths.
  __device__ __forceinline__ void read_flag_lines(Keep (&keep)[2]) const {
    read_query_flags<Spec, Fragment, tile_m>(of, q0, of.kv0, keep);
    if constexpr (Spec::has_keep_beside) {
      Keep beside[2] = {Keep::none(), Keep::none()};
#pragma unroll 1
      for (int j = 0; j < cols; ++j) {
        const typename Spec::Row row = of.row_at(Fragment::column(of.lane, j));
#pragma unroll
        for (int half = 0; half < 2; ++half)
          beside[half].set(j, Spec::keep_beside(of.p, of.site, of.head, row, of.col[half], query(j), of.kv_of(half)));
      }
#pragma unroll
      for (int w = 0; w < (cols + 31) / 32; ++w)
        keep[0].word[w] &= beside[0].word[w], keep[1].word[w] &= beside[1].word[w];
    }
  }
  // Zeroes P and dS of the elements for which `kept` (of the thread's column and half) is false.
  template <class Kept>
  LUATTN_FN void select(float (&s)[tile_m / 2], float (&dp)[tile_m / 2], const Kept &kept) {
#pragma unroll
    for (int j = 0; j < cols; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = Fragment::element(half, j);
        const bool stays = kept(j, half);
        s[e] = stays ? s[e] : 0.f;
        dp[e] = stays ? dp[e] : 0.f;
      }
  }
  LUATTN_FN void drop_by_bits(float (&s)[tile_m / 2], float (&dp)[tile_m / 2], const Keep (&keep)[2]) {
    if constexpr (!over_grid) return select(s, dp, [&](int j, int half) { return keep[half].get(j); });
    // Tests a bit by one instruction, where NVVM would take three and a register.
#pragma unroll
    for (int j = 0; j < cols; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = Fragment::element(half, j);
        asm("{\n.reg .pred p;\n.reg .b32 t;\nand.b32 t, %2, %3;\nsetp.ne.b32 p, t, 0;\nselp.f32 %0, %0, 0f00000000, "
            "p;\n"
            "selp.f32 %1, %1, 0f00000000, p;\n}"
            : "+f"(s[e]), "+f"(dp[e])
            : "r"(keep[half].word[0]), "r"(1u << j));
      }
  }
};
