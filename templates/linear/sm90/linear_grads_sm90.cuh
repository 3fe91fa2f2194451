// linear/sm90/linear_grads_sm90.cuh: backward with decays of tokens, of heads or none: luattn_linear_grads, the chain of
// gradients and all that is made of them. A block goes over the chunks of a segment of one entry and value head from the last one;
// the gradient of the state, dS, stays in registers and shared memory, and so does dR.
//
// Config: as in fwd_linear_sm90.cuh, of LINEAR_GRAD_STATES; k_dim and v_dim from 72 to 128. Threads: SharedGrads::threads; blocks:
// as LinearChain says. States before each chunk are there, and of updates that erase U
// and T.
//
// A block has a warp that loads, one that makes numbers of tokens, two that add up (GradSums), two warpgroups that own 64 value
// channels of dS each, and 64 channels of dq and dk (GradChain), and one that has pairs (GradPairs).
#pragma once
#include "arch/warp.cuh"
#include "linear/sm90/linear_grad_chain.cuh"
#include "linear/sm90/linear_grad_pairs.cuh"
#include "linear/sm90/linear_grad_sums.cuh"
#include "linear/sm90/rows_left_alone.cuh"

// Of a thread of each warpgroup: 512 in all. Pairs whose columns have factors take more.
template <class Spec, class Config>
struct GradRegisters {
  static constexpr bool has_factor = SharedGrads<Spec, Config>::has_factor;
  static constexpr int others = 32, chain = has_factor ? 160 : 168, pairs = 512 - others - 2 * chain;
};

template <class Spec, class Config>
LUATTN_FN void linear_grads_sm90(const LuattnLinearParams &p, const LuattnLinearRowMaps &maps, void *memory) {
  using Shared = SharedGrads<Spec, Config>;
  using Registers = GradRegisters<Spec, Config>;
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const LinearChain<Config> chain(p, p.segments.count, Truth<false>());
  const int warp = int(uniform(threadIdx.x / 32)), lane = int(threadIdx.x % 32);
  const bool left_alone = chain.state_row(p) < 0;
  if (warp < 4) {
    registers_down<Registers::others>();
    if (warp == 3) RowsLeftAlone<Spec, Config>{p, lane}.run();
    if (left_alone) return;
    if (warp == 0)
      GradProducer<Spec, Config>{{p, maps, shared}}.run(chain);
    else if (warp == 1)
      GradNumbers<Spec, Config>{p, shared, lane}.run(chain);
    else
      GradSums<Spec, Config>{p, shared, warp - 2, lane}.run(chain);
  } else if (warp < 12) {
    registers_up<Registers::chain>();
    if (!left_alone) GradChain<Spec, Config>{p, maps, shared, chain, warp / 4 - 1, warp % 4, lane}.run();
  } else {
    registers_up<Registers::pairs>();
    if (!left_alone) GradPairs<Spec, Config>{{p, maps, shared, 3, warp % 4, lane}}.run(chain);
  }
}
