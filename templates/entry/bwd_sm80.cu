// entry/bwd_sm80.cu: the backward image of the sm80 family.
#include "spec.cuh"
#include "sm80/bwd_sm80.cuh"

using RowOrder = PlainRows;
using DqOrder = FragmentGroups;
using KvOrder = PlainRows;
#include "entry/entries_bwd.cuh"

#if LUATTN_PART != 2
// Without a requested number of blocks, ptxas allocates registers twice, apparently first for more blocks
// than fit on a multiprocessor.
extern "C" __global__ void __launch_bounds__(Config::threads, 1)
    luattn_dkdv(const __grid_constant__ ParamsOf<Config> p) {
  extern __shared__ __align__(128) unsigned char shared[];
  if constexpr (Needs<Spec, Config>::dq_in_order) {
    __shared__ KvBlock drawn;
    if (threadIdx.x == 0) drawn = KvBlock::drawn<Spec::has_tile_bits>(p);
    __syncthreads();
    BwdSm80<Spec, Config>(p, shared, drawn).run();
  } else if constexpr (Spec::has_tile_bits) {
    BwdSm80<Spec, Config>(p, shared, KvBlock::of_grid<true>(p)).run();
  } else {
    BwdSm80<Spec, Config>(p, shared, KvBlock::of_grid()).run();
  }
}
#endif
