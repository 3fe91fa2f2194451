// grads/pair_bias_stores.cuh: the stores and atomic adds of a pair bias gradient
// (grads/pair_bias_grad.cuh). A test on the host puts its own in place of this file; hence a guard by
// name.
#ifndef LUATTN_PAIR_BIAS_STORES_CUH
#define LUATTN_PAIR_BIAS_STORES_CUH
#include "arch/types.cuh"

// Four floats to as many in global memory, at a multiple of 16 bytes: stored, or added.
template <bool Store>
LUATTN_FN void put_four(float *to, const float (&x)[4], float factor) {
  if constexpr (Store)
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x[0] * factor), "f"(x[1] * factor), "f"(x[2] * factor), "f"(x[3] * factor)
                 : "memory");
  else
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x[0] * factor), "f"(x[1] * factor), "f"(x[2] * factor), "f"(x[3] * factor)
                 : "memory");
}
LUATTN_FN void add_global(float *to, float x, float factor) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "f"(x * factor)
               : "memory");
}
#endif
