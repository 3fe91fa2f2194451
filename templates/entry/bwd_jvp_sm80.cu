// entry/bwd_jvp_sm80.cu: the backward image of the sm80 family with tangents.
#include "entry/entries_fwd.cuh"
#include "sm80/bwd_jvp_sm80.cuh"

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, 1) luattn_dkdv(const __grid_constant__ TangentParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  if constexpr (Needs<Spec, Config>::dkdv) bwd_jvp_sm80<Spec, Config, DualWork::keys, Needs<Spec, Config>>(p, shared);
}
#ifdef LUATTN_MOD_VALUES
extern "C" __global__ void __launch_bounds__(Config::threads, 1)
    luattn_dkdv_values(const __grid_constant__ TangentModParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Need = NeedsValues<Spec, Config>;
  if constexpr (Need::dk || Need::dv) bwd_jvp_sm80<Spec, Config, DualWork::key_values, Need>(p, shared);
}
#endif
#endif

#if LUATTN_PART != 1
#include "around/after/round.cuh"
#include "around/before/given_dual_rows.cuh"
extern "C" __global__ void __launch_bounds__(Config::threads, 1)
    luattn_prepare(const __grid_constant__ TangentParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  if (has_queries<Config>(p) && !read_dual_rows<Spec, Config, 4>(p))
    bwd_jvp_sm80<Spec, Config, DualWork::rows, Needs<Spec, Config>>(p, shared);
  write_gradient_padding<Config, Config::threads>(p);
}
extern "C" __global__ void __launch_bounds__(Config::threads, 1) luattn_dq(const __grid_constant__ TangentParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  if constexpr (Needs<Spec, Config>::dq_alone)
    bwd_jvp_sm80<Spec, Config, DualWork::queries, Needs<Spec, Config>>(p, shared);
}
#ifdef LUATTN_MOD_VALUES
extern "C" __global__ void __launch_bounds__(Config::threads, 1)
    luattn_dq_values(const __grid_constant__ TangentModParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Need = NeedsValues<Spec, Config>;
  if constexpr (Need::dq) bwd_jvp_sm80<Spec, Config, DualWork::query_values, Need>(p, shared);
}
#endif
#include "entry/entries_dual_finish.cuh"
extern "C" __global__ void __launch_bounds__(aux_threads) luattn_round(const __grid_constant__ ParamsOf<Config> p) {
  aux_round<Spec, Config>(p);
}
#endif
