// entry/linear_reverse.cu: the image of backward of linear attention token by token, of any class, on any architecture.
#include "config.cuh"
#include "spec.cuh"
#include "linear/around/linear_finish.cuh"
#include "linear/recurrent/reverse_hooks.cuh"

extern "C" __global__ void __launch_bounds__(Config::threads)
    luattn_linear_runs(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  recurrent_runs<Spec, Config>(p, reinterpret_cast<Config::Number *>(shared));
}
extern "C" __global__ void __launch_bounds__(Config::threads)
    luattn_linear_reverse(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  reverse_recurrent<Spec, Config>(p, reinterpret_cast<Config::Number *>(shared));
}
extern "C" __global__ void __launch_bounds__(256) luattn_linear_hooks(const __grid_constant__ LuattnLinearParams p) {
  reverse_hooks<Spec, Config>(p);
}
extern "C" __global__ void __launch_bounds__(round_threads)
    luattn_linear_round(const __grid_constant__ LuattnLinearParams p) {
  linear_round<Config::Number>(p, i64(blockIdx.x) * round_threads + threadIdx.x, blockIdx.y, gridDim.y - 1);
}
