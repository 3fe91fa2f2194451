// entry/linear_channels_sm90.cu: the forward image of linear attention whose decays differ between channels and whose updates add, in
// the sm90 family: by one kernel, or by tiles where entries are cut into segments.
#include "config.cuh"
#include "entry/linear_entries.cuh"
#include "entry/linear_tiles_fwd.cuh"
#include "linear/sm90/fwd_linear_sm90.cuh"
#include "spec.cuh"

TILE_CHAIN(luattn_linear_chain_states, true)
TILE_CHAIN(luattn_linear_chain, false)

extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, Config>::threads, 1)
    luattn_linear(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  fwd_linear_sm90<Spec, Config, false>(p, maps, shared);
}
