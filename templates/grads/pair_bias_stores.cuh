// grads/pair_bias_stores.cuh: the stores and atomic adds of a pair bias gradient (grads/pair_bias_grad.cuh).
// A host test replaces this file by its own version, so the include guard has a name.
#ifndef LUATTN_PAIR_BIAS_STORES_CUH
#define LUATTN_PAIR_BIAS_STORES_CUH
#include "arch/types.cuh"

// Stores or adds four floats to global memory, at a multiple of 16 bytes.
template <bool Store>
LUATTN_FN void put_four(float *to, const float (&x)[4], float factor) {
  if constexpr (Store)
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(x[0] * factor),
                 "f"(x[1] * factor), "f"(x[2] * factor), "f"(x[3] * factor)
                 : "memory");
  else
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x[0] * factor), "f"(x[1] * factor), "f"(x[2] * factor), "f"(x[3] * factor)
                 : "memory");
}
LUATTN_FN void add_global(float *to, float x, float factor) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "f"(x * factor) : "memory");
}
#endif
