// linear/sm90/linear_rows_sm90.cuh: backward of updates that erase, all chunks at once: dq, dk, dv and gradients of numbers of
// tokens, from the states, U and their gradients that the chains have kept (linear_kept.cuh).
//
// Config: as in fwd_linear_sm90.cuh, without v_block and stages; v_dim up to 128. Threads: SharedRows::threads; blocks: as many
// as there are multiprocessors, or fewer; each takes chunks in turns.
//
// A block has a warp that loads, one that makes numbers of tokens, one that adds up gradients of decays (DecayWays), one for
// entries that are left alone, and two warpgroups for rows: RowQueries and RowKeys.
#pragma once
#include "linear/sm90/linear_row_keys.cuh"
#include "linear/sm90/linear_row_queries.cuh"
#include "linear/sm90/rows_left_alone.cuh"
#include "arch/warp.cuh"

// Of a thread of each warpgroup. A block has what 384 threads get at its launch: 168 each.
struct RowRegisters {
  static constexpr int others = 40, rows = 232;
  static_assert(others + 2 * rows <= 3 * 168, "registers_up would wait for ever");
};

template <class Spec, class Config>
LUATTN_FN void linear_rows_sm90(const LuattnLinearParams &p, const LuattnLinearRowMaps &maps, void *memory) {
  using Shared = SharedRows<Spec, Config>;
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  if (warp < 4) {
    registers_down<RowRegisters::others>();
    if (warp == 0)
      RowProducer<Spec, Config>{{p, maps, shared}}.run();
    else if (warp == 1)
      RowNumbers<Spec, Config>{p, shared, lane}.run();
    else if (warp == 2 && Shared::has_gates)
      DecayWays<Spec, Config>{p, shared, lane}.run();
    else if (warp == 3)
      RowsLeftAlone<Spec, Config>{p, lane}.run();
  } else if (warp < 8) {
    registers_up<RowRegisters::rows>();
    const RowQueries<Spec, Config> queries{{p, maps, shared, 1, warp % 4, lane}};
    for_each_chunk<Config>(p, [&](const auto &chain, int chunk, int done) { queries.step(chain, chunk, done); });
    if (warp == 4 && elected()) bulk_wait_read();
  } else {
    registers_up<RowRegisters::rows>();
    const RowKeys<Spec, Config> keys{{p, maps, shared, 2, warp % 4, lane}};
    for_each_chunk<Config>(p, [&](const auto &chain, int chunk, int done) { keys.step(chain, chunk, done); });
    if (warp == 8 && elected()) bulk_wait_read();
  }
}
