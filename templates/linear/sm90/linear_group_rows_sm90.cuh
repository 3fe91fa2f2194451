// linear/sm90/linear_group_rows_sm90.cuh: backward of additive updates with decays of tokens, of heads or none, where v has 64 channels
// or fewer: luattn_linear_group_rows, all chunks at once. A block takes a chunk of a head of q and k, and of that all value heads
// that read it, one after another: dq and dk are sums over these in registers, stored once, and so are gradients of pairs.
//
// Config: as in fwd_linear_sm90.cuh, of LINEAR_ROWS, without v_block and stages; k_dim from 72 to 128, v_dim up to 64. Threads:
// SharedGroup::threads; blocks: as many as there are multiprocessors, or fewer. States before each chunk are there, and gradients of
// those behind it.
//
// A block has a warp that loads, one that makes numbers of tokens, one that adds up (GroupSums), one for entries that are left alone,
// two warpgroups that have 64 channels of dq and dk each (GroupColumns), and one that has pairs (GroupPairs).
#pragma once
#include "arch/warp.cuh"
#include "linear/sm90/linear_group_columns.cuh"
#include "linear/sm90/linear_group_pairs.cuh"
#include "linear/sm90/rows_left_alone.cuh"

// Of a thread of each warpgroup: 512 in all.
struct GroupRegisters {
  static constexpr int others = 40, columns = 160, pairs = 512 - others - 2 * columns;
};

template <class Spec, class Config>
LUATTN_FN void linear_group_rows_sm90(const LuattnLinearParams &p, const LuattnLinearRowMaps &maps, void *memory) {
  using Shared = SharedGroup<Spec, Config>;
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  if (warp < 4) {
    registers_down<GroupRegisters::others>();
    if (warp == 0)
      GroupProducer<Spec, Config>{p, maps, shared}.run();
    else if (warp == 1)
      GroupNumbers<Spec, Config>{p, shared, lane}.run();
    else if (warp == 3)
      RowsLeftAlone<Spec, Config, true>{p, lane}.run();
    else if (Shared::has_gates)
      GroupSums<Spec, Config>{p, shared, lane}.run();
  } else if (warp < 12) {
    registers_up<GroupRegisters::columns>();
    GroupColumns<Spec, Config>{p, maps, shared, warp / 4 - 1, warp % 4, lane}.run();
  } else {
    registers_up<GroupRegisters::pairs>();
    GroupPairs<Spec, Config>{p, shared, warp % 4, lane}.run();
  }
}
