// entry/linear_sm90.cu: the forward image of linear attention in the sm90 family.
#include "config.cuh"
#include "entry/linear_entries.cuh"
#include "linear/sm90/fwd_linear_sm90.cuh"
#include "linear/sm90/linear_inverse_maker.cuh"
#include "spec.cuh"

extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, Config>::threads, 1)
    luattn_linear(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  fwd_linear_sm90<Spec, Config, Config::pass == LINEAR_STATES>(p, maps, shared);
}
// Two value heads of a head of q and k in a block, where v has 64 channels or fewer.
template <class Config>
struct TwoConfig : Config {
  static constexpr bool two_heads = true;
  static constexpr int v_block = 128, stages = linear_two_stages(Config::k_dim);
};
template <class Spec, class Config>
LUATTN_FN void fwd_of_two_heads(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *shared) {
  if constexpr (Config::v_dim <= 64 && Config::pass == LINEAR_FORWARD && !Spec::erases &&
                Spec::decay_of != DECAY_CHANNEL)
    fwd_linear_sm90<Spec, TwoConfig<Config>, false>(p, maps, shared);
}
extern "C" __global__ void __launch_bounds__(LINEAR_TWO_THREADS, 1)
    luattn_linear_two(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  fwd_of_two_heads<Spec, Config>(p, maps, shared);
}
// Of updates that erase, where entries are not cut.
template <class Spec, class Config>
LUATTN_FN void fwd_of_whole(const LuattnLinearParams &p, const LuattnTensorMaps &maps, void *shared) {
  if constexpr (SharedLinear<Spec, Config>::takes_inverse && Config::pass == LINEAR_FORWARD &&
                Config::v_dim <= Config::v_block)
    fwd_linear_sm90<Spec, WholeConfig<Config>, false>(p, maps, shared);
}
extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, Config>::threads, 1)
    luattn_linear_whole(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  fwd_of_whole<Spec, Config>(p, maps, shared);
}
// Segments of decays of channels have no kernel yet.
extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, Config>::threads, 1)
    luattn_linear_states(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if constexpr (Config::pass != LINEAR_STATES && Spec::decay_of != DECAY_CHANNEL)
    fwd_linear_sm90<Spec, Config, Config::pass != LINEAR_GRAD_STATES, true>(p, maps, shared);
}
// T of all chunks, where updates erase.
extern "C" __global__ void __launch_bounds__(LINEAR_INVERSE_THREADS, 8)
    luattn_linear_inverses(const __grid_constant__ LuattnLinearParams p,
                           const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if constexpr (SharedLinear<Spec, Config>::takes_inverse && !LinearChain<Config>::backwards)
    linear_make_inverses<Spec, Config>(p, maps, shared);
}
// What makes states of segments of what these add, and of their maps, where updates erase.
extern "C" __global__ void __launch_bounds__(LINEAR_JOIN_THREADS)
    luattn_linear_join(const __grid_constant__ LuattnLinearParams p) {
  if constexpr (Spec::erases) linear_join<Spec, Config>(p);
}
