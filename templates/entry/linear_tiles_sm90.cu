// entry/linear_tiles_sm90.cu: the forward image of linear attention whose decays differ between channels and whose updates erase, in
// the sm90 family.
#include "config.cuh"
#include "entry/linear_entries.cuh"
#include "entry/linear_tiles_fwd.cuh"
#include "linear/sm90/linear_join.cuh"
#include "spec.cuh"

TILE_CHAIN(luattn_linear_states, true)
TILE_CHAIN(luattn_linear, false)

extern "C" __global__ void __launch_bounds__(LINEAR_JOIN_THREADS)
    luattn_linear_join(const __grid_constant__ LuattnLinearParams p) {
  if constexpr (Spec::erases) linear_join<Spec, Config>(p);
}
