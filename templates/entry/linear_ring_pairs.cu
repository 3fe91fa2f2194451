// entry/linear_ring_pairs.cu: the image of a step of linear attention behind a checkpoint and a ring of rows, with a kernel for
// checkpoints of bf16 along K.
#include "entry/linear_ring.cuh"

extern "C" __global__ void __launch_bounds__(LINEAR_RING_PAIR_THREADS, LINEAR_RING_PAIR_BLOCKS)
    luattn_linear_pairs(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  step_ring<Spec, Config, PairedRingState<Spec, Config>>(p, reinterpret_cast<Config::Number *>(shared));
}
