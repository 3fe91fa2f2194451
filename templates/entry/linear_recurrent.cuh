// entry/linear_recurrent.cuh: the kernel of linear attention token by token, of any class, on any architecture.
#pragma once
#include "config.cuh"
#include "spec.cuh"
#include "linear/recurrent/fwd_recurrent.cuh"

extern "C" __global__ void __launch_bounds__(Config::threads, Config::blocks)
    luattn_linear(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  fwd_recurrent<Spec, Config>(p, reinterpret_cast<Config::Number *>(shared));
}
