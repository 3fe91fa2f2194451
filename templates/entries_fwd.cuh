// entries_fwd.cuh: the entries of aux.cuh that every forward image has. For the .cu file of a family.
#pragma once
#include "aux.cuh"
#include "spec.cuh"

extern "C" __global__ void __launch_bounds__(stats_threads)
    luattn_stats(const __grid_constant__ LuattnParams p) {
  aux_stats<Spec>(p);
}
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_mod(const __grid_constant__ LuattnParams p) {
  aux_mod<Spec, Config>(p);
}
