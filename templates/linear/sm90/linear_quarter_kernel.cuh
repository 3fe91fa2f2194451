// linear/sm90/linear_quarter_kernel.cuh: forward where decays differ between channels and updates erase, by one kernel: eight warps
// make tiles of a chunk's quarters in shared memory, up to two chunks ahead of two warpgroups that take them. In 16 tokens decays
// mostly span little enough that pairs are products of two tiles, so that a quarter needs four tiles of 16 rows, and none goes to
// memory.
//
// Config: as in fwd_linear_sm90.cuh, v_block 128. Threads: SharedQuarters::threads.
#pragma once
#include "arch/early_launch.cuh"
#include "arch/warp.cuh"
#include "linear/sm90/linear_quarter_chain.cuh"
#include "linear/sm90/linear_quarter_end.cuh"
#include "linear/sm90/linear_quarter_maker.cuh"

// Where entries are cut, segments begin early, or a chain of tiles takes the place of this (linear_quarter_end.cuh).
template <class Spec, class Config>
LUATTN_FN void linear_quarter_chain(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *memory) {
  using Shared = SharedQuarters<Spec, Config>;
  const Shared shared{shared_address(memory)};
  wait_for_previous();
  let_next_start();
  if (p.segments.count > 1 && !begins_early<Config>(p)) return;
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  LinearChain<Config> chain(p, p.segments.count, Truth<false>());
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  const bool left_alone = chain.state_row(p) < 0;
  int early = 0;
  if (chain.begin > 0 && !left_alone) {
    early = min_of(int(*chunks_before<Config>(p, chain.number(p, chain.segment))), chain.begin);
    chain.begin -= early;
  }
  if (warp >= 4 * Shared::groups) {
    registers_down<QUARTER_MAKER_REGISTERS>();
    const int maker = warp - 4 * Shared::groups;
    if (!left_alone) QuarterMaker<Spec, Config, false>{p, shared, chain, maker / 2, maker % 2, lane}.run();
  } else {
    registers_up<QUARTER_VALUE_REGISTERS>();
    QuarterChain<Spec, Config> values{p, maps, shared, chain, warp / 4, warp % 4, early, lane};
    if (left_alone)
      values.store_nothing();
    else
      values.run();
  }
}
