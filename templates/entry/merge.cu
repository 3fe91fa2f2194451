// entry/merge.cu: merges of finished parts, or their gradient. config.cuh has the types, how many parts there may be,
// and the Rule by which they merge (gen/compile/merge_code.c).
#include "config.cuh"
#include "around/after/merge_parts.cuh"

extern "C" __global__ void __launch_bounds__(merge_parts_threads)
    luattn_merge_parts(const __grid_constant__ LuattnMergeParams p) {
  if constexpr (Config::backward)
    merge_parts_backward<Config, Rule>(p);
  else
    merge_parts<Config, Rule>(p);
}
