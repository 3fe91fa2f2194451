// entries_fwd.cuh: the entries of aux.cuh that images of both passes have, where their spec needs them. For
// the .cu file of a family. LUATTN_PART: 1, of an image's kernels the main ones alone, which take long to
// compile; 2, the others; undefined, all.
#pragma once
#include "spec.cuh"

// To read aux.cuh and to compile two empty kernels takes 10 ms, of 300 for a forward image.
#if LUATTN_PART != 1 && (!defined(LUATTN_NO_STATS) || !defined(LUATTN_NO_MODS))
#include "aux.cuh"
#endif

#if !defined(LUATTN_NO_STATS) && LUATTN_PART != 1
extern "C" __global__ void __launch_bounds__(stats_threads)
    luattn_stats(const __grid_constant__ LuattnParams p) {
  aux_stats<Spec>(p);
}
#endif
#if !defined(LUATTN_NO_MODS) && LUATTN_PART != 1
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_mod(const __grid_constant__ LuattnParams p) {
  aux_mod<Spec, Config>(p);
}
#endif
