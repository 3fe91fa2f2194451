// entry/linear_entries.cuh: kernels around those of any family of linear attention, which includes this.
#pragma once
#include "config.cuh"
#include "linear/around/linear_prepare.cuh"
#include "spec.cuh"

#ifdef LUATTN_MAKES_ROWS
extern "C" __global__ void __launch_bounds__(256) luattn_linear_prepare(const __grid_constant__ LuattnLinearParams p) {
  linear_prepare<Spec, Config>(p, blockIdx.x);
}
#endif
