// score/kept_queries.cuh: backward, masks with column intervals: bits of a thread's queries that keep its keys.
#pragma once
#include "arch/mma.cuh"
#include "score/mask_intervals.cuh"
#include "score/online_rows.cuh"

template <bool OverGrid>
struct BoxPlaces;  // score/kept_box_queries.cuh: over a grid

// Returns the bits of the queries that keep a key, in the tile from q0 on: the queries in `kept` and, with a
// long period, only those in each row of the grid. The thread's first query is `first`.
template <class Spec, class Fragment, int TileM>
LUATTN_FN u32 queries_in(Range kept, Range rest, int phase, int q0, int first) {
  constexpr int period = Spec::column_period;
  if constexpr (period < short_period) {
    return columns_below<Fragment>(kept.hi - first) & ~columns_below<Fragment>(kept.lo - first);
  } else {
    u32 bits = 0;
#pragma unroll 1
    for (int line = (q0 + phase) / period * period - phase; line < q0 + TileM; line += period) {
      const int lo = max_of(kept.lo, line + max_of(rest.lo, 0)), hi = min_of(kept.hi, line + min_of(rest.hi, period));
      bits |= columns_below<Fragment>(hi - first) & ~columns_below<Fragment>(lo - first);
    }
    return bits;
  }
}
// For a thread's two keys, the first of which is kv, sets the bits of the thread's queries in the tile from q0 on that keep
// them. For a key, these queries are one or two intervals, or a part of each period of those.
template <class Spec, class Fragment, int TileM, class Sequence, int Cols>
LUATTN_FN void find_kept_queries(const LuattnParams &p, const Sequence &s, int kv, int q0, KeepBits<Cols> (&keep)[2]) {
  static_assert(Sequence::is_line, "keys exist up to kv_len");
  static_assert(Cols <= 32);
  constexpr int period = Spec::column_period;
  const int first = q0 + Fragment::column(int(threadIdx.x));
  kv = opaque(kv);  // values common to all tiles would take registers
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = kv + half * Fragment::row_of(1);
    const bool exists = key < s.kv_len;
    const Range kept = exists ? Spec::column_interval(p, s, key) : Range{0, 0};
    Range rest = {0, 0};
    int phase = 0;
    if constexpr (period > 0) {
      rest = Spec::column_remainders(p, s, key);
      phase = Spec::column_phase(p, s);
    }
    u32 &bits = keep[half].word[0];
    bits = queries_in<Spec, Fragment, TileM>(kept, rest, phase, q0, first);
    if constexpr (Spec::column_intervals == 2)
      bits |= queries_in<Spec, Fragment, TileM>(exists ? Spec::second_column_interval(p, s, key) : Range{0, 0}, rest,
                                                phase, q0, first);
    if constexpr (period > 0 && period < short_period) {
      u32 of_rest[1];
      columns_of_residues<Fragment, period>(of_rest, first + phase, rest);
      bits &= of_rest[0];
    }
  }
}
