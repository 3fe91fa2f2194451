// out.cuh: O of a forward kernel on the tensor cores, in registers that PTX knows and NVVM does not, for the
// reason that fragments.cuh gives.
//
//     o<n>_0 .. 7   block n, 16 columns of O of the rows that a thread has: sm80_out.cuh and sm90_out.cuh say
//                   in which order
//
// A kernel calls declare_out() once, outside of all loops. Blocks are counted by template arguments, because
// their numbers become text.
#pragma once
#include "base.cuh"

LUATTN_FN void declare_out() {
#define OUT(n) ".reg .f32 o" #n "_<8>;"
  asm volatile(OUT(0) OUT(1) OUT(2) OUT(3) OUT(4) OUT(5) OUT(6) OUT(7) OUT(8) OUT(9) OUT(10) OUT(11) OUT(12)
                   OUT(13) OUT(14) OUT(15));
#undef OUT
}

template <int Blocks>
LUATTN_FN void zero_out() {
#define ZERO(i) "mov.f32 o%0_" i ", 0f00000000;"
  if constexpr (Blocks > 0) {
    zero_out<Blocks - 1>();
    asm volatile(ZERO("0") ZERO("1") ZERO("2") ZERO("3") ZERO("4") ZERO("5") ZERO("6")
                     ZERO("7")::"n"(Blocks - 1));
  }
#undef ZERO
}

// Blocks First .. First + Count - 1; of a thread's two rows the upper one is multiplied by `upper`,
// the other by `lower`.
template <int First, int Count>
LUATTN_FN void scale_out(float upper, float lower) {
#define SCALE(i, factor) "mul.f32 o%0_" i ", o%0_" i ", " factor ";"
  if constexpr (Count > 0) {
    asm volatile(SCALE("0", "%1") SCALE("1", "%1") SCALE("2", "%2") SCALE("3", "%2") SCALE("4", "%1")
                     SCALE("5", "%1") SCALE("6", "%2") SCALE("7", "%2")::"n"(First),
                 "f"(upper), "f"(lower));
    scale_out<First + 1, Count - 1>(upper, lower);
  }
#undef SCALE
}
