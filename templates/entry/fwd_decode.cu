// entry/fwd_decode.cu: the forward image for few queries and many keys.
#include "entry/entries_fwd.cuh"
#include "around/after/merge.cuh"
#include "decode/fwd_decode.cuh"

#if defined(LUATTN_SPLIT_LIST) && LUATTN_PART != 1
#include "around/before/split_list.cuh"
extern "C" __global__ void __launch_bounds__(split_list_threads)
    luattn_split_list(const __grid_constant__ DecodeParamsOf<Config> p) {
  write_split_list<Config>(p);
}
#endif

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads)
    luattn_fwd(const __grid_constant__ DecodeParamsOf<Config> p) {
  extern __shared__ __align__(512) unsigned char shared[];
  if (has_queries<Config>(p)) fwd_decode<Spec, Config>(p, shared);
  write_padding<Spec, Config>(p);
}
#endif
#if LUATTN_PART != 1
extern "C" __global__ void __launch_bounds__(merge_threads<Config>)
    luattn_merge(const __grid_constant__ DecodeParamsOf<Config> p) {
  merge_splits<Spec, Config>(p, p.splits);
}
#endif
