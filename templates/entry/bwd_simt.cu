// entry/bwd_simt.cu: the backward image of the simt family.
#include "spec.cuh"
#include "simt/bwd_simt.cuh"

using RowOrder = PlainRows;
using DqOrder = PlainRows;
using KvOrder = PlainRows;
#include "entry/entries_bwd.cuh"

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, dkdv_simt_blocks<Spec, Config>)
    luattn_dkdv(const __grid_constant__ ParamsOf<Config> p) {
  dkdv_simt<Spec, Config>(p);
}
#endif

#if LUATTN_PART != 1
extern "C" __global__ void __launch_bounds__(Config::threads, dq_simt_blocks<Spec, Config>)
    luattn_dq(const __grid_constant__ ParamsOf<Config> p) {
  dq_simt<Spec, Config>(p);
}
#endif
