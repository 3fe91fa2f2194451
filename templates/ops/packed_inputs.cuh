// ops/packed_inputs.cuh: where inputs with an axis q or kv are read for one entry of packed sequences. An input's
// packed axis (common/call/packed_axis.h) has the rows of all entries, its other axes q and kv a place for each position of
// the longest entry. Positions outside of the entry are clamped to it, so that no entry reads what belongs to another.
// Only packed kernels of specs that have such inputs use this; a Site then says where its entry's rows are.
#pragma once
#include "ops/hook_types.cuh"
#include "ops/input.cuh"
#include "ops/interval.cuh"

struct EntryRows {
  int first_q, first_kv, q_len, kv_len;
};
LUATTN_FN EntryRows entry_rows_of(const Site &s) { return {s.first_q, s.first_kv, s.q_len, s.kv_len}; }

// `first`: where the entry's positions begin on the axis; `len`: how many there are.
LUATTN_FN int entry_index(int index, int first, int len) { return first + clamp_index(index, len); }

LUATTN_FN ivi entry_bounds(ivi at, int first, int len) {
  const ivi_end last = max_of(len - 1, 0), least = 0;
  return ivi_make(max_of(min_of(at.lo, last), least) + first, max_of(min_of(at.hi, last), least) + first);
}

// Ends a row at the entry's end, for who reads beyond.
template <class Stored>
LUATTN_FN InputRow<Stored> end_row(InputRow<Stored> row, int len) {
  row.size = min_of(row.size, len);
  return row;
}
