// entry/linear_ring.cuh: a step of linear attention behind a checkpoint and a ring of rows.
#pragma once
#include "config.cuh"
#include "spec.cuh"
#include "linear/recurrent/step_ring.cuh"

extern "C" __global__ void __launch_bounds__(Config::threads, Config::blocks)
    luattn_linear(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  step_ring<Spec, Config, WalkedRingState<Spec, Config>>(p, reinterpret_cast<Config::Number *>(shared));
}
