// score/mask_runs.cuh: runs of keys, or of queries, for which a mask from data is the same: keys of one cell, or of one
// block. The mask is evaluated once for a run. Where a tile has many runs, that is not worth it.
#pragma once
#include "score/mask_intervals.cuh"

// The positions of a tile of Size at which a run begins, as bits of words. All lanes of a warp have the same.
template <int Size>
struct MaskRuns {
  static constexpr int words = (Size + 31) / 32;
  u32 begin[words];

  // differs(i): whether position i > 0 of the tile differs from the one before.
  template <class Differs>
  static __device__ __forceinline__ MaskRuns find(int lane, const Differs &differs) {
    MaskRuns runs;
#pragma unroll
    for (int w = 0; w < words; ++w) {
      const int i = w * 32 + lane;
      runs.begin[w] = __ballot_sync(0xffffffffu, i == 0 || (i < Size && differs(i)));
    }
    return runs;
  }
  // Few enough for a thread that has a column of each `Lanes`.
  template <int Lanes>
  __device__ __forceinline__ bool few() const {
    int count = 0;
#pragma unroll
    for (int w = 0; w < words; ++w) count += __popc(begin[w]);
    return count <= Size / (2 * Lanes);
  }
  // Calls run(first, end) for each, from the last to the first.
  template <class Run>
  __device__ __forceinline__ void each(const Run &run) const {
    int end = Size;
#pragma unroll 1
    for (int w = words - 1; w >= 0; --w) {
      u32 left = begin[0];
#pragma unroll
      for (int i = 1; i < words; ++i) left = w == i ? begin[i] : left;
#pragma unroll 1
      while (left != 0) {
        const int bit = 31 - __clz(int(left)), first = w * 32 + bit;
        run(first, end);
        end = first;
        left ^= 1u << bit;
      }
    }
  }
};

// Backward: calls run(first, bits) for each run of queries of a tile, with the thread's columns in it, up to `end`.
// False: there are too many.
template <class Spec, class Fragment, int Size, class RowAt, class Run>
__device__ __forceinline__ bool for_runs_of_queries(int lane, int end, const RowAt &row_at, const Run &run) {
  const auto runs = MaskRuns<Size>::find(lane, [&](int i) { return !Spec::same_row(row_at(i), row_at(i - 1)); });
  if (!runs.template few<Fragment::row_lanes>()) return false;
  const int behind = Fragment::column(lane);
  runs.each([&](int first, int last) {
    run(first, columns_between<Fragment>(first - behind, min_of(last, end) - behind, Size));
  });
  return true;
}

// Backward: calls `keep` once for each run of queries of a tile, and sets bit j of keep[half] where it keeps the thread's
// column j in that half. False: there are too many. `of`: the thread's place, as for ask_queries, and keeps(row, half, ..).
template <class Spec, class Fragment, int Size, class Bits, class Consumer>
__device__ __forceinline__ bool ask_query_runs(const Consumer &of, int q0, Bits (&keep)[2]) {
  static_assert(decltype(of.site)::is_line, "runs of queries end where positions do");
  const auto row = [&](int i) { return of.row_at(i); };
  return for_runs_of_queries<Spec, Fragment, Size>(of.lane, of.site.q_end(of.p) - q0, row, [&](int first, u32 bits) {
    const typename Spec::Row of_run = of.row_at(first);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (of.keeps(of_run, half, q0 + first, of.kv_of(half), of.site.kv_end(of.p))) keep[half].word[0] |= bits;
  });
}

// Backward: bits of the thread's columns whose queries `asks`. Each lane asks for the queries of its own number, so
// that a query is asked for once in a warp.
template <class Fragment, int Size, class Asks>
__device__ __forceinline__ u32 columns_that(int lane, const Asks &asks) {
  static_assert(Size % 32 == 0 && Size <= columns_of_word<Fragment>, "a word for the thread's columns");
  u32 mine = 0;
#pragma unroll 1
  for (int w = 0; w < Size / 32; ++w) {
    const u32 asked = __ballot_sync(0xffffffffu, asks(w * 32 + lane)) >> Fragment::column(lane);
#pragma unroll
    for (int j = 0; j < Fragment::columns(32); j += Fragment::adjacent)
      mine |= (asked >> Fragment::column_of(j) & ~0u >> (32 - Fragment::adjacent)) << (w * Fragment::columns(32) + j);
  }
  return mine;
}

// Backward, masks with keep_of_query: sets bit j of keep[half] if the mask keeps the thread's column j in that half,
// and reads the list of each query once. False: the warp's keys are not all the same to it. `of` has the call, the
// thread's place and its keys: p, site, head, lane, kv0, col, kv_of(half), row_at(i).
template <class Spec, class Fragment, int Size, class Bits, class Consumer>
__device__ __forceinline__ bool ask_queries(const Consumer &of, int q0, Bits (&keep)[2]) {
  static_assert(decltype(of.site)::is_line, "queries and keys exist up to where positions end");
  const auto of_all = Spec::col(of.p, of.site, of.head, min_of(of.kv0, of.site.kv_end(of.p) - 1));
  const bool same = Spec::same_column(of_all, of.col[0]) && Spec::same_column(of_all, of.col[1]);
  if (!__all_sync(0xffffffffu, same)) return false;
  const u32 listed = columns_that<Fragment, Size>(of.lane, [&](int i) {
    return Spec::keep_of_list(of.p, of.site, of.head, of.row_at(i), of_all, min_of(q0 + i, of.site.q_end(of.p) - 1));
  });
#pragma unroll 1
  for (int j = 0; j < Fragment::columns(Size); ++j) {
    const int at = q0 + Fragment::column(of.lane, j), kv_end = at < of.site.q_end(of.p) ? of.site.kv_end(of.p) : 0;
    const auto row = of.row_at(Fragment::column(of.lane, j));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bool kept = of.kv_of(half) < kv_end;
      if constexpr (Spec::has_keep_beside)
        kept = kept & Spec::keep_beside(of.p, of.site, of.head, row, of.col[half], at, of.kv_of(half));
      keep[half].set(j, kept);
    }
  }
  keep[0].word[0] &= listed, keep[1].word[0] &= listed;
  return true;
}

// Backward: sets bit j of keep[half] if the mask keeps the thread's column j in that half. Asks once for each run of queries
// or each query, if it can, else for every element: that loop is rolled, because a hook may be long. `of`: as for
// ask_query_runs and ask_queries, and ends().
template <class Spec, class Fragment, int Size, bool OnLine, class Bits, class Consumer>
__device__ __forceinline__ void ask_columns(const Consumer &of, int q0, Bits (&keep)[2]) {
  if constexpr (Spec::keep_by_row && OnLine)
    if (ask_query_runs<Spec, Fragment, Size>(of, q0, keep)) return;
  if constexpr (Spec::keep_of_query && OnLine)
    if (ask_queries<Spec, Fragment, Size>(of, q0, keep)) return;
#pragma unroll 1
  for (int j = 0; j < Fragment::columns(Size); ++j) {
    const int at = q0 + Fragment::column(of.lane, j);
    const auto keys = of.ends().keys_of(of.p, at);
    const typename Spec::Row row = of.row_at(Fragment::column(of.lane, j));
#pragma unroll
    for (int half = 0; half < 2; ++half) keep[half].set(j, of.keeps(row, half, at, of.kv_of(half), keys));
  }
}
