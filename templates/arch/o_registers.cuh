// arch/o_registers.cuh: keeps O of a forward kernel in registers declared in PTX, invisible to NVVM, for the
// reason given in arch/mma_registers.cuh.
//
//     o<n>_0 .. 7   block n, 16 columns of O of the rows that a thread has, in the order of sm80/o_mma.cuh or
//                   sm90/fwd/o_wgmma.cuh
//
// A kernel calls declare_out() once, outside of all loops. Block numbers are template arguments, because they
// become text.
#pragma once
#include "arch/types.cuh"

LUATTN_FN void declare_out() {
#define OUT(n) ".reg .f32 o" #n "_<8>;"
  asm volatile(OUT(0) OUT(1) OUT(2) OUT(3) OUT(4) OUT(5) OUT(6) OUT(7) OUT(8) OUT(9) OUT(10) OUT(11) OUT(12) OUT(13)
                   OUT(14) OUT(15));
#undef OUT
}

// Groups eight blocks in one asm statement, because each statement adds compile time.
#define LUATTN_BLOCK(f, n) f(n, "0") f(n, "1") f(n, "2") f(n, "3") f(n, "4") f(n, "5") f(n, "6") f(n, "7")
#define LUATTN_EIGHT(n) \
  "n"(n), "n"((n) + 1), "n"((n) + 2), "n"((n) + 3), "n"((n) + 4), "n"((n) + 5), "n"((n) + 6), "n"((n) + 7)

template <int Blocks>
LUATTN_FN void zero_out() {
#define ZERO(n, i) "mov.f32 o" n "_" i ", 0f00000000;"
#define BLOCK(n) LUATTN_BLOCK(ZERO, n)
  if constexpr (Blocks >= 8) {
    zero_out<Blocks - 8>();
    asm volatile(BLOCK("%0") BLOCK("%1") BLOCK("%2") BLOCK("%3") BLOCK("%4") BLOCK("%5") BLOCK("%6")
                     BLOCK("%7")::LUATTN_EIGHT(Blocks - 8));
  } else if constexpr (Blocks > 0) {
    zero_out<Blocks - 1>();
    asm volatile(BLOCK("%0")::"n"(Blocks - 1));
  }
#undef BLOCK
#undef ZERO
}

// Rescales blocks First .. First + Count - 1: the upper one of a thread's two rows by `upper`, the other by
// `lower`.
template <int First, int Count>
LUATTN_FN void scale_out(float upper, float lower) {
#define SCALE(n, i, factor) "mul.f32 o" n "_" i ", o" n "_" i ", " factor ";"
#define PAIR(n, i, j, factor) SCALE(n, i, factor) SCALE(n, j, factor)
#define BLOCK(n) PAIR(n, "0", "1", "%0") PAIR(n, "2", "3", "%1") PAIR(n, "4", "5", "%0") PAIR(n, "6", "7", "%1")
  if constexpr (Count >= 8) {
    asm volatile(BLOCK("%2") BLOCK("%3") BLOCK("%4") BLOCK("%5") BLOCK("%6") BLOCK("%7") BLOCK("%8")
                     BLOCK("%9")::"f"(upper),
                 "f"(lower), LUATTN_EIGHT(First));
    scale_out<First + 8, Count - 8>(upper, lower);
  } else if constexpr (Count > 0) {
    asm volatile(BLOCK("%2")::"f"(upper), "f"(lower), "n"(First));
    scale_out<First + 1, Count - 1>(upper, lower);
  }
#undef BLOCK
#undef PAIR
#undef SCALE
}
#undef LUATTN_EIGHT
#undef LUATTN_BLOCK

// Adds blocks From .. From + Count - 1, times the rows' factors, to blocks To and on.
template <int From, int To, int Count>
LUATTN_FN void add_scaled_out(float upper, float lower) {
#define ADD(i, factor) "fma.rn.f32 o%3_" i ", o%2_" i ", " factor ", o%3_" i ";\n"
  if constexpr (Count > 0) {
    asm volatile(ADD("0", "%0") ADD("1", "%0") ADD("2", "%1") ADD("3", "%1") ADD("4", "%0") ADD("5", "%0")
                     ADD("6", "%1") ADD("7", "%1")::"f"(upper),
                 "f"(lower), "n"(From), "n"(To));
    add_scaled_out<From + 1, To + 1, Count - 1>(upper, lower);
  }
#undef ADD
}
