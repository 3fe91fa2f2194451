// entry/merge.cu: merges of finished parts, without a spec. config.cuh has the types (gen/compile/merge_code.c).
#include "config.cuh"
#include "around/merge_parts.cuh"

extern "C" __global__ void __launch_bounds__(merge_parts_threads)
    luattn_merge_parts(const __grid_constant__ LuattnMergeParams p) {
  merge_parts<Config>(p);
}
extern "C" __global__ void __launch_bounds__(merge_parts_threads)
    luattn_merge_parts_backward(const __grid_constant__ LuattnMergeParams p) {
  merge_parts_backward<Config>(p);
}
