// entry/entries_dual_finish.cuh: luattn_finish of a backward image with tangents, where q, k or v has a mod.
#pragma once
#ifndef LUATTN_NO_MODS
#include "around/after/dual_finish.cuh"
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_finish(const __grid_constant__ TangentModParams p) {
  aux_dual_finish<Spec, Config>(p);
}
#endif
