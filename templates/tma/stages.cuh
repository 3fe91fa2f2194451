// tma/stages.cuh: where the two sides of a pipeline, the producer and its consumers, are among the stages.
//
// A stage is a buffer for one tile. The producer fills it when its `empty` barrier says that all warps have finished reading
// it. TMA completes the `full` barrier when the bytes have arrived. templates/README.md shows the timing.
#pragma once
#include "tma/mbarrier.cuh"

// Tracks where one side (the producer or a consumer) is in a ring of stages: the stage, and the phase parity
// to wait for at its barrier. Consumers start with parity 0, the first fill. The producer starts with parity
// 1, for which a new barrier does not wait, because all stages begin empty.
template <int Stages>
struct PipelineState {
  int stage;
  u32 parity;
  __device__ __forceinline__ explicit PipelineState(u32 first_parity) : stage(0), parity(first_parity) {}
  __device__ __forceinline__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Waits until the last V that a producer with this state has requested has arrived. The consumers of a kernel with
// three may all skip a q tile's last kv tile: the mask's range for the q tile spans kv tiles that no consumer's range
// has. They do not wait for its V then, and a block must not end while a copy to its memory is under way. All other
// copies are waited for: a consumer that skips a tile waits for K, and for V when it skips or computes the next one.
template <class Spec, class Shared, int Stages>
LUATTN_FN void await_last_v(const Shared &shared, const PipelineState<Stages> &v) {
  if constexpr (Spec::has_mask && Shared::groups > 2) {
    const bool wraps =
        v.stage == 0;  // the state is that of the next V, and begins with the parity of a stage that is empty
    barrier_wait(shared.v_full(wraps ? Stages - 1 : v.stage - 1), wraps ? v.parity : v.parity ^ 1);
  }
}
