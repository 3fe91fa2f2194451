// entry/linear_erasing_bwd.cuh: what both backward images of updates that erase have, in the sm90 family: T, the chain of states, and what
// segments make of both chains' states.
#pragma once
#include "config.cuh"
#include "entry/linear_entries_bwd.cuh"
#include "linear/sm90/fwd_linear_sm90.cuh"
#include "linear/sm90/linear_inverse_maker.cuh"
#include "spec.cuh"

template <LinearPass Pass>
struct ChainConfig : PassConfig<Config, Pass> {
  static constexpr int stages = 2;
};

// T of all chunks, for both chains.
extern "C" __global__ void __launch_bounds__(LINEAR_INVERSE_THREADS, 8)
    luattn_linear_inverses(const __grid_constant__ LuattnLinearParams p,
                           const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_make_inverses<Spec, ChainConfig<LINEAR_STATES>>(p, maps, shared);
}

#define CHAIN(name, pass, only_state, sums)                                                               \
  extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, ChainConfig<pass>>::threads, 1)         \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) { \
    extern __shared__ __align__(1024) unsigned char shared[];                                             \
    fwd_linear_sm90<Spec, ChainConfig<pass>, only_state, sums>(p, maps, shared);                          \
  }
CHAIN(luattn_linear_chain, LINEAR_STATES, true, false)
// Of segments: the first chain's are forward's, the other one takes their maps.
CHAIN(luattn_linear_chain_states, LINEAR_FORWARD, true, true)
CHAIN(luattn_linear_grad_chain_states, LINEAR_GRAD_STATES, false, true)

#define JOIN(name, pass)                                            \
  extern "C" __global__ void __launch_bounds__(LINEAR_JOIN_THREADS) \
      name(const __grid_constant__ LuattnLinearParams p) {          \
    linear_join<Spec, ChainConfig<pass>>(p);                        \
  }
JOIN(luattn_linear_chain_join, LINEAR_FORWARD)
JOIN(luattn_linear_grad_chain_join, LINEAR_GRAD_STATES)
