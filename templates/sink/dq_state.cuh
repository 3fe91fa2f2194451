// sink/dq_state.cuh: the number in memory of each q tile of dq_acc: a semaphore of the dQ order
// (work/dq_order.cuh), or the state of its first store (sm90/bwd/dq_first_store.cuh).
#pragma once
#include "abi/workspace.h"
#include "contract/needs.cuh"
#include "work/sequence.cuh"
#include "work/tile_bits.cuh"
#include "work/tile_walk.cuh"

// The number of entries that a q tile has in p.scratch.dq_order.
template <class Config>
inline constexpr int dq_orders_of_tile = workspace_dq_orders(true, Config::threads, Config::tile_n);
// The first entry of the q tile whose first row is `first`.
template <class Config>
LUATTN_FN u32 *dq_state_of(const LuattnParams &p, int b, int h, int first) {
  return p.scratch.dq_order + LUATTN_DQ_ORDER_FIRST +
         SequenceOf<Config>::template q_tile_index<Config::tile_m>(p, b, h, first / Config::tile_m) *
             dq_orders_of_tile<Config>;
}

// The state of a q tile's first store (sm90/bwd/dq_first_store.cuh). 0 also says that no block has added
// (work/dq_order.cuh).
enum : u32 { UNCLAIMED = 0, CLAIMED = 1, STORED = 2 };
template <class Spec, class Config, int Tiles, class Sequence>
LUATTN_FN bool has_few_keys(const LuattnParams &p, const Sequence &site, int q0) {
  static_assert(Sequence::is_line, "a q tile ends where positions do");
  const int q1 = min_of(q0 + Config::tile_m, site.q_len) - 1;
  if constexpr (Spec::has_tile_bits) {
    const CellBits<false> bits(p, site);
    if (bits.known()) return kept_cells(bits, q0, q1) * LUATTN_CELL <= 24 * Config::tile_n;
  }
  const Range kept = kept_keys<Spec>(p, site, q0, q1);
  return Spec::num_block_bounds > 0 || kept.hi - kept.lo <= Tiles * Config::tile_n;
}
// Whether a q tile has few kv tiles. A first store saves time once per q tile; in long rows the waits of all
// kv tiles cost more, but less in rows of a mask from data, whose blocks begin at different times. A mask that reads
// memory may leave few of many kv tiles, which its bits tell. Called by a whole warp.
template <class Spec, class Config>
LUATTN_FN bool pays_to_store_first(const LuattnParams &p, const SequenceOf<Config> &site, int q0) {
  constexpr int most = 10;
  if constexpr (!SequenceOf<Config>::is_line) {
    using Walk = KvTilesOf<Spec, SequenceOf<Config>, Config::tile_m, Config::tile_n>;
    return Walk(p, site, q0 / Config::tile_m).most() <= most;
  } else {
    return has_few_keys<Spec, Config, most>(p, site, q0);
  }
}
