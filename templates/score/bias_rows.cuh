// score/bias_rows.cuh: loads bias rows ahead for gradients (contract/score.cuh), for a thread of the sm90
// backward kernels, whose warps hold 16 keys, two a thread, by the columns of a q tile. Rows are loaded as soon as QK^T is
// in flight: later loads would cost a memory latency for every few of them. They are kept as stored, because
// a conversion would wait for the load.
#pragma once
#include "contract/contract.cuh"
#include "score/bias_row_loads.cuh"
#include "score/fragment.cuh"

// Prefetches to the L2 cache what BiasRowTerms will load for queries q0 .. q0 + Rows - 1 and keys kv0 .. kv0
// + Keys - 1, if rows are dense. Called by a warp of the producer, ahead of the consumers.
template <class Spec, int Rows, int Keys, class Sequence>
LUATTN_FN void prefetch_bias_rows(const LuattnParams &p, const Sequence &site, const typename Spec::Head &head, int q0,
                                  int kv0, int lane) {
  constexpr int size = int(sizeof(typename Spec::BiasElem));
  if constexpr (Spec::has_bias_row) {
    static_assert(Sequence::is_line, "a query that does not exist is replaced by the last one");
#pragma unroll 1
    for (int r = lane; r < Rows; r += 32) {
      const auto line = Spec::bias_row(p, site, head, min_of(q0 + r, site.q_len - 1), kv0);
      const int first = max_of(line.index, 0), end = min_of(line.index + Keys, line.size);
      const u64 from = u64(__cvta_generic_to_global(line.row + first)) & ~u64(127),
                to = u64(__cvta_generic_to_global(line.row + end));
      if (line.stride != 1) continue;
#pragma unroll
      for (int at = 0; at < Keys * size + 128; at += 128)
        if (from + at < to) prefetch_l2(from + at);
    }
  }
}

// Loads the columns in Parts steps, each while elements of the previous one are computed, to limit registers.
template <class Spec, class Fragment, int Octets, int Parts>
struct BiasRowTerms {
  using Stored = typename Spec::BiasElem;
  static constexpr bool any = Spec::has_bias_row;
  static constexpr int cols = any ? 2 * Octets : 1, part = ceil_div(cols, Parts);  // columns in all, in a part
  u32 stored[2][cols];
  static_assert(!any || (part * Parts == cols && part % 2 == 0), "parts of two columns or more, all alike");

  // Loads the part that begins at the thread's column `first`, if one begins there: of queries from q0 on, and of its
  // two keys from kv0 on. A query that does not exist gives 0.
  template <class Sequence>
  __device__ __forceinline__ void load(const LuattnParams &p, const Sequence &site, const typename Spec::Head &head,
                                       int q0, int kv0, int lane, int first) {
    if constexpr (any) load_there(p, site, head, q0, kv0, lane, first);
  }
  template <class Sequence>
  __device__ __forceinline__ void load_there(const LuattnParams &p, const Sequence &site,
                                             const typename Spec::Head &head, int q0, int kv0, int lane, int first) {
    static_assert(Sequence::is_line, "the queries from q0 on exist up to q_len");
    if (first < cols && first % part == 0) {
      const int q = q0 + Fragment::column(lane, first), left = site.q_len - q;  // part is even
      const auto line = Spec::bias_row(p, site, head, min_of(q, site.q_len - 1), kv0 + Fragment::row(lane));
      const Stored *at[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        at[half] = line.row + i64(max_of(min_of(line.index + Fragment::row_of(half), line.size - 1), 0)) * line.stride;
#pragma unroll
      for (int j = 0; j < part; ++j) {
        const i64 further = line.pitch * Fragment::column_of(j);
        read_stored(stored[0][first + j], stored[1][first + j], at[0] + further, at[1] + further,
                    Fragment::column_of(j) < left);
      }
    }
  }
  __device__ __forceinline__ float get(int half, int octet, int odd) const {
    const u32 x = stored[half][octet * 2 + odd];
    if constexpr (sizeof(Stored) == 4)
      return __uint_as_float(x);
    else
      return to_real(Stored{(unsigned short)(x)});
  }
};
