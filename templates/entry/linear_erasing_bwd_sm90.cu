// entry/linear_erasing_bwd_sm90.cu: the backward image of linear attention's updates that erase, in the sm90 family, where q and k,
// or v, have 64 channels or fewer: a chain of gradients keeps them for a kernel over all chunks.
#include "entry/linear_erasing_bwd.cuh"
#include "linear/sm90/linear_rows_sm90.cuh"

CHAIN(luattn_linear_grad_chain, LINEAR_GRAD_STATES, false, false)

using RowsConfig = PassConfig<Config, LINEAR_ROWS>;
extern "C" __global__ void __launch_bounds__(SharedRows<Spec, RowsConfig>::threads, 1)
    luattn_linear_rows(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_rows_sm90<Spec, RowsConfig>(p, maps, shared);
}
