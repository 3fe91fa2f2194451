// contract/mask.cuh: the mask: which elements count, and what a kernel can know about rows, columns and tiles
// without evaluating the mask for each element.
//
// Elements that are not kept have no influence on anything. (v must be finite, and in backward also q, k and
// dO: in a partly kept tile, a weight of 0 times infinity is NaN.)
#pragma once
#include "contract/absent.cuh"
#include "contract/keys.cuh"
#include "ops/hook_types.cuh"

// Constants
//   has_mask             false: EveryKv
//   keep_is_cheap        keep takes a few instructions and no memory: worth unrolling
//   only_keep_reads_row  in forward, only keep reads Row, and a few instructions fill it
//   row_intervals        mask intervals of a row. 0: only keep decides. 1: a row keeps row_interval. 2: it
//                        also keeps second_row_interval
//   row_from_start       row_interval begins at 0
//   row_period           0, or a row keeps only those kv of its intervals whose remainder modulo row_period
//                        lies in row_remainders
//   column_intervals, column_period
//                        the same for the q that a column keeps
//   has_data_part        one part of the mask reads memory along positions (data_class), the other does not
//                        (position_class)
//   rows_need_full_data, columns_need_full_data
//                        row and column intervals hold only in tiles whose data_class is FULL
//   num_block_bounds     block bounds: minima and maxima of blocks of the integer inputs that the mask reads.
//                        Number i covers input block_bounds_input(i) along its last axis,
//                        block_bounds_axis(i), in blocks of block_bounds_size(i). The axes before it,
//                        flattened, are the rows of params.scratch.stats[i]; an axis of size 1 has index 0,
//                        whatever b or h is. {min, max} of block j of row r is at [(r * blocks + j) * 2]
//   has_tile_bits        tiles have the classes of their cells, where luattn_tile_bits has run
//   (around/before/tile_bits.cuh) cell_rows, cell_columns
//                        with tile bits: the part of the mask that reads data, or all of it if there is no
//                        has_data_part, is constant on aligned blocks of so many q by so many kv
//   has_cell_class       with tile bits: cells have tighter bounds than tiles (cell_class), because some of what the
//                        mask reads is the same for all of a cell, or lies at one place where its index has one value
//   has_flag_line        with tile bits: an element is kept only if its flag is set, in input flag_input of flag_axes
//                        axes, at kv along the last one
//   has_keep_beside      with a flag line or keep_of_query: that does not suffice: keep_beside is the rest of the mask
//   flag_is_data_part    what is kept by position_class is kept if its flag is set
//   keep_by_column       forward, with tile bits: keep reads of kv only what same_column compares
//   keep_by_row          backward: keep reads of q only what same_row compares
//   keep_of_query        backward, with tile bits: keep_of_list, a part of the mask, reads of kv only what same_column
//                        compares, and of a query a list
//   walk_rows, walk_columns
//                        with block bounds, tile functions are called for one tile of this size or a part of
//                        it, in a grid that begins at position 0
//
// Hooks
//   keep                 whether an element is kept. For positions past the ends the result is dropped (simt
//                        does not call it there)
//   flag_line            the address of the flags of query q, of kv 0
//   keep_beside          whether an element is kept if its flag is set, or if keep_of_list holds
//   same_column, same_row
//                        whether keep has one value for two columns in any row, for two rows in any column
//   over_grid            positions are slots of a grid of several axes, and the ranges are those of boxes: of the box
//                        of the slot, along each axis (ops/grid_places.cuh). Left out along a line. row_intervals
//                        is then 1 where a row keeps row_box_range, which is exact, but for the extents; likewise column_intervals
//                        and column_box_range. In backward tile_class is also asked about parts of boxes, which are boxes
//   tile_class           bounds are inclusive and inside the lengths. An EMPTY tile keeps nothing, a FULL one
//                        drops nothing
//   kv_range             every kept kv of these rows lies inside, and inside [0, kv_len)
//   q_range              backward: the same for every kept q of these columns
//   data_class, position_class
//                        the classes of the two parts of the mask; the mask is their conjunction
//   cell_class           the class of a cell, bounds as for tile_class. A PARTIAL one may be anything
//   row_interval, second_row_interval, column_interval, second_column_interval
//                        inside the lengths
//   row_remainders, column_remainders
//                        ranges of remainders of positions modulo the period; may reach outside [0, period)
//   row_phase, column_phase
//                        added to a position before the remainder is taken: at least 0, below the period
//   block_bounds_is_set  whether block bounds i are the set of a block's numbers instead; left out if none are
//   block_bounds_value   one element of the input of block bounds i, as an int; left out if all inputs are
//                        int
template <class S>
concept OverGrid = requires { S::over_grid; };
template <class S>
concept ValidMask =
    requires(const LuattnParams &p, const Site &s, const typename S::Head &head, const typename S::Row &row,
             const typename S::Col &col, int q, int kv, HookKey key, HookKeyBox box) {
      requires S::has_mask == requires { bool(S::keep(p, s, head, row, col, q, key)); };
      requires S::has_mask == requires { TileClass(S::tile_class(p, s, q, q, box, box)); };
      requires(S::has_mask && !OverGrid<S>) == requires { Range(S::kv_range(p, s, q, q)); };
      requires(S::has_mask && S::has_grad && !OverGrid<S>) == requires { Range(S::q_range(p, s, kv, kv)); };
      requires OverGrid<S> == requires { S::kv_box_range(p, s, q).lo[0]; };
      requires(OverGrid<S> && S::has_grad) == requires { S::q_box_range(p, s, kv).lo[0]; };
      requires S::has_data_part == requires { TileClass(S::data_class(p, s, q, q, box, box)); };
      requires S::has_data_part == requires { TileClass(S::position_class(p, s, q, q, box, box)); };
      requires S::has_data_part || !(S::rows_need_full_data || S::columns_need_full_data);
      requires(S::has_mask && S::row_intervals > 0 && !OverGrid<S>) == requires { Range(S::row_interval(p, s, q)); };
      requires(S::row_intervals > 0 && OverGrid<S>) == requires { S::row_box_range(p, s, q).lo[0]; };
      requires(S::row_intervals == 2) == requires { Range(S::second_row_interval(p, s, q)); };
      requires(S::row_period > 0) == requires { Range(S::row_remainders(p, s, q)); };
      requires(S::row_period > 0) == requires { int(S::row_phase(p, s)); };
      requires(S::column_intervals > 0 && !OverGrid<S>) == requires { Range(S::column_interval(p, s, kv)); };
      requires(S::column_intervals > 0 && OverGrid<S>) == requires { S::column_box_range(p, s, kv).lo[0]; };
      requires(S::column_intervals == 2) == requires { Range(S::second_column_interval(p, s, kv)); };
      requires(S::column_period > 0) == requires { Range(S::column_remainders(p, s, kv)); };
      requires(S::column_period > 0) == requires { int(S::column_phase(p, s)); };
      requires(S::num_block_bounds > 0) ==
                  requires { S::block_bounds_input(0) + S::block_bounds_axis(0) + S::block_bounds_size(0); };
      requires(S::num_block_bounds > 0) == requires { S::walk_rows + S::walk_columns; };
      requires S::has_tile_bits == requires { S::cell_rows + S::cell_columns; };
      requires S::has_cell_class == requires { TileClass(S::cell_class(p, s, q, q, kv, kv)); };
      requires S::has_flag_line == requires { u64(S::flag_line(p, s, head, q)) + S::flag_input + S::flag_axes; };
      requires S::has_keep_beside == requires { bool(S::keep_beside(p, s, head, row, col, q, kv)); };
      requires(S::keep_by_column || S::keep_of_query) == requires { bool(S::same_column(col, col)); };
      requires S::keep_of_query == requires { bool(S::keep_of_list(p, s, head, row, col, q)); };
      requires S::keep_by_row == requires { bool(S::same_row(row, row)); };
      requires S::has_tile_bits || !(S::has_flag_line || S::keep_by_column || S::keep_by_row || S::keep_of_query);
      requires S::has_flag_line || S::keep_of_query || !S::has_keep_beside;
      requires S::has_flag_line || !S::flag_is_data_part;
      requires S::has_data_part || !S::flag_is_data_part;
      { S::keep_is_cheap &&S::only_keep_reads_row &&S::row_from_start };
    };

// The kv that rows q0 .. q1 may keep, and the q of columns kv0 .. kv1; also defined without a mask.
template <class Spec>
LUATTN_FN Range kept_keys(const LuattnParams &p, const Site &s, int q0, int q1) {
  if constexpr (Spec::has_mask)
    return Spec::kv_range(p, s, q0, q1);
  else
#ifdef LUATTN_CHUNKS
    return s.kv_chunk;
#else
    return {0, s.kv_len};
#endif
}
template <class Spec>
LUATTN_FN Range kept_queries(const LuattnParams &p, const Site &s, int kv0, int kv1) {
  if constexpr (Spec::has_mask)
    return Spec::q_range(p, s, kv0, kv1);
  else
#ifdef LUATTN_CHUNKS
    return s.q_chunk;
#else
    return {0, s.q_len};
#endif
}
