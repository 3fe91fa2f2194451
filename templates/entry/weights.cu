// entry/weights.cu: the image that writes the weights of V, of any element type.
#include "entry/entries_fwd.cuh"
#include "simt/weights_simt.cuh"

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads)
    luattn_weights(const __grid_constant__ WeightParamsOf<Config> p) {
  weights_simt<Spec, Config>(p);
}
#endif
