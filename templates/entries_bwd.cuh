// entries_bwd.cuh: the entries of aux.cuh that backward images of the families simt and sm80 have. For their
// .cu files.
#pragma once
#include "aux.cuh"
#include "entries_fwd.cuh"

#if LUATTN_PART != 1
extern "C" __global__ void __launch_bounds__(aux_threads)
    luattn_prepare(const __grid_constant__ LuattnParams p) {
  aux_prepare<Spec, Config>(p);
}
extern "C" __global__ void __launch_bounds__(aux_threads)
    luattn_finish(const __grid_constant__ LuattnParams p) {
  aux_finish<Spec, Config>(p);
}
extern "C" __global__ void __launch_bounds__(aux_threads)
    luattn_round(const __grid_constant__ LuattnParams p) {
  aux_round<Spec, Config>(p);
}
#endif
