// contract/absent.cuh: types for what a spec lacks. A generated struct has each one that applies as a base,
// so that absence is explicit. The types hold only constants: an absent hook does not exist, and a kernel
// that calls it without testing its constant does not compile.
#pragma once

// ---- mask ----

// No mask: a row keeps the interval [0, kv_len), and a kernel need not call a hook for it.
struct EveryKv {
  static constexpr bool has_mask = false, keep_is_cheap = true, only_keep_reads_row = false;
  static constexpr bool row_from_start = true;
  static constexpr bool has_data_part = false, rows_need_full_data = false, columns_need_full_data = false;
  static constexpr int row_intervals = 1, row_period = 0, column_intervals = 0, column_period = 0;
  static constexpr int num_block_bounds = 0;
  static constexpr bool has_tile_bits = false, has_cell_class = false, has_flag_line = false, has_keep_beside = false;
  static constexpr bool flag_is_data_part = false, keep_by_column = false, keep_by_row = false, keep_of_query = false;
};
// No flag of each score that lies in a line of a query's flags.
struct NoFlagLine {
  static constexpr bool has_flag_line = false, has_keep_beside = false, flag_is_data_part = false;
};
// The mask reads positions themselves, or is not evaluated: it is not the same for runs of them.
struct NoRuns {
  static constexpr bool keep_by_column = false, keep_by_row = false, keep_of_query = false;
};
// Ranges and minima classify tiles: the mask is never evaluated ahead of the main kernel.
struct NoTileBits : NoFlagLine, NoRuns {
  static constexpr bool has_tile_bits = false, has_cell_class = false;
};
// No part of the mask reads memory along positions.
struct NoDataPart {
  static constexpr bool has_data_part = false, rows_need_full_data = false, columns_need_full_data = false;
};
// No mask intervals: only `keep` decides, or no kernel of the pass uses intervals.
struct NoRowIntervals {
  static constexpr int row_intervals = 0, row_period = 0;
  static constexpr bool row_from_start = false;
};
struct NoColumnIntervals {
  static constexpr int column_intervals = 0, column_period = 0;
};
// The mask reads no integer input with block minima and maxima.
struct NoBlockBounds {
  static constexpr int num_block_bounds = 0;
};

// ---- score ----

// Backward: scores are a part of `grad`.
struct ScoreInGrad {
  static constexpr bool has_score = false, has_row_shift = false;
};
// No distance term: no long part of a score depends only on the distance, over a grid along each axis.
struct NoDistanceTerm {
  static constexpr bool has_distance_term = false, has_displacement_term = false;
  static constexpr bool adds_displacement_term = false;
};
// No bias row. The type is for buffers, which are then empty.
struct NoBiasRow {
  static constexpr bool has_bias_row = false, bias_row_shared = false;
  using BiasElem = float;
};
// No row shift: scores are complete.
struct NoRowShift {
  static constexpr bool has_row_shift = false;
};
// No bound of scores proves that a tile is negligible.
struct NoScoreBounds {
  static constexpr bool has_score_bounds = false;
};

// ---- online function ----

// Backward: forward has run the online function.
struct NoOnline {
  static constexpr bool has_online = false;
};
// O is never rescaled.
struct NoRescale {
  static constexpr bool has_rescale = false;
};
// No lazy rescaling: the maximum is updated with each tile, or there is none.
struct NoLazyRescaling {
  static constexpr bool lazy_rescaling = false;
};
// No fast path of the soft cap for tiles where all dot products are small.
struct NoSoftcapPoly {
  static constexpr bool has_softcap_poly = false;
};
// A row has no lse, and forward saves nothing for backward.
struct NoLse {
  static constexpr bool has_lse = false;
};
struct NoSavedRows {
  static constexpr int num_saved = 0;
};

// The online function's partial results do not merge: one thread group computes all keys of a row.
struct NoMerge {
  static constexpr bool has_merge = false, merge_weighs = false;
};

// ---- gradients ----

// No gradients: a forward image.
struct NoGrad {
  static constexpr bool has_grad = false;
};
// No gradient of a parameter is summed in Acc.
struct NoAccumulators {
  static constexpr int num_acc = 0;
};
// `grad` adds to no parameter gradient.
struct NoElementGrads {
  static constexpr bool grad_adds = false, grad_adds_to_memory = false;
};
// Distance sums: no tile adds all of them to one gradient, and their gradients do not lie in a row.
struct NoSameBucket {
  static constexpr bool may_be_same_bucket = false;
};
struct NoDistanceGradRow {
  static constexpr int distance_step = 0;
};
// Gradients of pair biases do not lie in rows along the keys.
struct NoPairGradRow {
  static constexpr bool pair_grads_in_rows = false, pair_grads_pitched = false;
  static constexpr int pair_grads_input = -1;
};
// No gradient of a parameter is a sum of dS.
struct NoParameterSums : NoSameBucket, NoDistanceGradRow, NoPairGradRow {
  static constexpr int parameter_sums = 0;
};

// ---- input mods ----

struct NoQueryMod {
  static constexpr bool has_query_mod = false;
};
struct NoKeyMod {
  static constexpr bool has_key_mod = false;
};
struct NoValueMod {
  static constexpr bool has_value_mod = false;
};
struct NoMods : NoQueryMod, NoKeyMod, NoValueMod {};
