// entry/na_taps.cu: neighborhood attention in two steps, without a spec (luattn/natten.h). config.cuh has the types
// (gen/compile/merge_code.c).
#include "config.cuh"
#include "around/after/na_taps.cuh"

extern "C" __global__ void __launch_bounds__(na_taps_threads) luattn_na_taps(const __grid_constant__ LuattnNaParams p) {
  na_taps<Config>(p);
}
