// entry/entries_bwd.cuh: the small kernels around backward, for the .cu file of any backward image. Before it
// includes this file, the .cu file defines the layouts of its main kernel's accumulators: RowOrder
// (bwd_rows), DqOrder (dq_acc) and KvOrder (dk_acc, dv_acc).
#pragma once
#include "entry/entries_fwd.cuh"

#if LUATTN_PART != 1
#include "around/after/finish.cuh"
#include "around/before/prepare.cuh"
#include "around/after/round.cuh"
extern "C" __global__ void __launch_bounds__(aux_threads)
    luattn_prepare(const __grid_constant__ PrepareParamsOf<Spec, Config> p) {
  if (has_sequences<Config>(p)) aux_prepare<Spec, Config, RowOrder>(p);
  write_gradient_padding<Config, aux_threads>(p);
}
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_finish(const __grid_constant__ ParamsOf<Config> p) {
  aux_finish<Spec, Config, DqOrder, KvOrder>(p);
}
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_round(const __grid_constant__ ParamsOf<Config> p) {
  aux_round<Spec, Config>(p);
}
#endif
