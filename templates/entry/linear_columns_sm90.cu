// entry/linear_columns_sm90.cu: the last image of the backward of linear attention whose decays differ between channels, in the
// sm90 family.
#include "config.cuh"
#include "linear/sm90/linear_columns_sm90.cuh"
#include "spec.cuh"

extern "C" __global__ void __launch_bounds__(SharedColumns<Spec, Config>::threads, 1)
    luattn_linear_columns(const __grid_constant__ LuattnLinearParams p,
                          const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_columns_sm90<Spec, Config>(p, maps, shared);
}
