// entry/linear_entries_bwd.cuh: kernels around those of any family's backward of linear attention, which includes this.
#pragma once
#include "entry/linear_entries.cuh"
#include "linear/around/linear_finish.cuh"

extern "C" __global__ void __launch_bounds__(256) luattn_linear_finish(const __grid_constant__ LuattnLinearParams p) {
  linear_finish<Spec, Config>(p, blockIdx.x);
}
extern "C" __global__ void __launch_bounds__(round_threads)
    luattn_linear_round(const __grid_constant__ LuattnLinearParams p) {
  linear_round(p, i64(blockIdx.x) * round_threads + threadIdx.x, blockIdx.y, gridDim.y - 1);
}

// Config of a pass, which names its dims as its tensors have them.
template <class Base, LinearPass Pass>
struct PassConfig : Base {
  static constexpr LinearPass pass = Pass;
  static constexpr bool turned = Pass == LINEAR_GRAD_Q || Pass == LINEAR_GRAD_K;
  static constexpr int k_dim = turned ? Base::v_dim : Base::k_dim, v_dim = turned ? Base::k_dim : Base::v_dim;
  static constexpr int v_block = v_dim > 64 ? 128 : 64;
  static constexpr bool keeps_ways = turned && Base::has_ways;
};
