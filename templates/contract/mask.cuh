// contract/mask.cuh: the mask: which elements count, and what is known of rows, columns and tiles without
// evaluating it for each element.
//
// Elements that are not kept have no influence on anything. (v must be finite, in backward also q, k and dO:
// in a tile that is partly kept, a weight of 0 times infinity is NaN.)
#pragma once
#include "contract/absent.cuh"
#include "ops/hook_types.cuh"

// Constants
//   has_mask             false: EveryKv
//   keep_is_cheap        keep takes a few instructions and no memory: worth unrolling
//   only_keep_reads_row  in forward, only keep reads Row, and a few instructions fill it
//   row_intervals        mask intervals of a row: 0, only keep decides; 1, all of row_interval; 2, also
//                        all of second_row_interval
//   row_from_start       row_interval begins at 0
//   row_period           0, or: of these only the kv whose remainder mod row_period lies in row_remainders
//   column_intervals, column_period
//                        the q that a column keeps, likewise
//   has_data_part        a part of the mask reads memory along positions (data_class), another does not
//                        (position_class)
//   rows_need_full_data, columns_need_full_data
//                        row and column intervals hold only in tiles whose data_class is FULL
//   num_block_bounds     block bounds: minima and maxima of blocks of the integer inputs that the mask reads.
//                        Number i covers input block_bounds_input(i) along its last axis,
//                        block_bounds_axis(i), in blocks of block_bounds_size(i). The axes before it,
//                        flattened, are the rows of params.scratch.stats[i]; an axis of size 1 has index 0,
//                        whatever b or h is. {min, max} of block j of row r is at [(r * blocks + j) * 2]
//   walk_rows, walk_columns
//                        with block bounds, tile functions are called for one tile of this size or a part of
//                        it, in a grid that begins at position 0
//
// Hooks
//   keep                 for positions past the ends the result is dropped (simt calls it for none)
//   tile_class           bounds are inclusive and inside the lengths. An EMPTY tile keeps nothing, a FULL one
//                        drops nothing
//   kv_range             every kept kv of these rows lies inside, and inside [0, kv_len)
//   q_range              backward: likewise every kept q of these columns
//   data_class, position_class
//                        of the two parts of the mask, whose conjunction is the mask
//   row_interval, second_row_interval, column_interval, second_column_interval
//                        inside the lengths
//   row_remainders, column_remainders
//                        of positions modulo the period; may reach outside [0, period)
//   row_phase, column_phase
//                        what to add to a position first: at least 0, below the period
//   block_bounds_value   of the input of block bounds i, the element at a place, as an int; left out where they
//                        all are int
template <class S>
concept ValidMask =
    requires(const LuattnParams &p, const Site &s, const typename S::Head &head, const typename S::Row &row,
             const typename S::Col &col, int q, int kv) {
      requires S::has_mask == requires { bool(S::keep(p, s, head, row, col, q, kv)); };
      requires S::has_mask == requires { TileClass(S::tile_class(p, s, q, q, kv, kv)); };
      requires S::has_mask == requires { Range(S::kv_range(p, s, q, q)); };
      requires(S::has_mask && S::has_grad) == requires { Range(S::q_range(p, s, kv, kv)); };
      requires S::has_data_part == requires { TileClass(S::data_class(p, s, q, q, kv, kv)); };
      requires S::has_data_part == requires { TileClass(S::position_class(p, s, q, q, kv, kv)); };
      requires S::has_data_part || !(S::rows_need_full_data || S::columns_need_full_data);
      requires(S::has_mask && S::row_intervals > 0) == requires { Range(S::row_interval(p, s, q)); };
      requires(S::row_intervals == 2) == requires { Range(S::second_row_interval(p, s, q)); };
      requires(S::row_period > 0) == requires { Range(S::row_remainders(p, s, q)); };
      requires(S::row_period > 0) == requires { int(S::row_phase(p, s)); };
      requires(S::column_intervals > 0) == requires { Range(S::column_interval(p, s, kv)); };
      requires(S::column_intervals == 2) == requires { Range(S::second_column_interval(p, s, kv)); };
      requires(S::column_period > 0) == requires { Range(S::column_remainders(p, s, kv)); };
      requires(S::column_period > 0) == requires { int(S::column_phase(p, s)); };
      requires(S::num_block_bounds > 0) ==
          requires { S::block_bounds_input(0) + S::block_bounds_axis(0) + S::block_bounds_size(0); };
      requires(S::num_block_bounds > 0) == requires { S::walk_rows + S::walk_columns; };
      { S::keep_is_cheap && S::only_keep_reads_row && S::row_from_start };
    };

// The kv that rows q0 .. q1 may keep, and the q of columns kv0 .. kv1; also defined without a mask.
template <class Spec>
LUATTN_FN Range kept_keys(const LuattnParams &p, const Site &s, int q0, int q1) {
  if constexpr (Spec::has_mask) return Spec::kv_range(p, s, q0, q1);
  else return {0, s.kv_len};
}
template <class Spec>
LUATTN_FN Range kept_queries(const LuattnParams &p, const Site &s, int kv0, int kv1) {
  if constexpr (Spec::has_mask) return Spec::q_range(p, s, kv0, kv1);
  else return {0, s.q_len};
}
