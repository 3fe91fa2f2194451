// entry/bwd_jvp_simt.cu: the backward image of the simt family with tangents.
#include "entry/entries_fwd.cuh"
#include "simt/bwd_jvp_simt.cuh"

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, dkdv_jvp_simt_blocks<Spec, Config>)
    luattn_dkdv(const __grid_constant__ TangentParams p) {
  dkdv_jvp_simt<Spec, Config, true>(p, p.scratch.dk_acc, p.scratch.dv_acc, Needs<Spec, Config>());
}
#ifdef LUATTN_MOD_VALUES
extern "C" __global__ void __launch_bounds__(Config::threads, dkdv_jvp_simt_blocks<Spec, Config>)
    luattn_dkdv_values(const __grid_constant__ TangentModParams p) {
  dkdv_jvp_simt<Spec, Config, false>(p, p.tangent_mods.dk_acc, p.tangent_mods.dv_acc, NeedsValues<Spec, Config>());
}
#endif
#endif

#if LUATTN_PART != 1
#include "around/after/round.cuh"
#include "around/before/given_dual_rows.cuh"
extern "C" __global__ void __launch_bounds__(Config::threads, dual_rows_simt_blocks<Spec, Config>)
    luattn_prepare(const __grid_constant__ TangentParams p) {
  if (has_queries<Config>(p) && !read_dual_rows<Spec, Config, 1>(p)) dual_rows_simt<Spec, Config>(p);
  write_gradient_padding<Config, Config::threads>(p);
}
extern "C" __global__ void __launch_bounds__(Config::threads, dq_jvp_simt_blocks<Spec, Config>)
    luattn_dq(const __grid_constant__ TangentParams p) {
  dq_jvp_simt<Spec, Config>(p, p.tensors.dq, p.scratch.dq_acc);
}
#ifdef LUATTN_MOD_VALUES
extern "C" __global__ void __launch_bounds__(Config::threads, dq_jvp_simt_blocks<Spec, Config>)
    luattn_dq_values(const __grid_constant__ TangentModParams p) {
  dq_jvp_simt<Spec, Config, false>(p, p.tensors.dq, p.tangent_mods.dq_acc);
}
#endif
#include "entry/entries_dual_finish.cuh"
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_round(const __grid_constant__ ParamsOf<Config> p) {
  aux_round<Spec, Config>(p);
}
#endif
