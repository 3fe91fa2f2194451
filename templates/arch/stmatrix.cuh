// arch/stmatrix.cuh: stores of fragments to shared memory, from sm_90 on. Four matrices of 8 x 8 elements: lane i gives the
// address of row i % 8 of matrix i / 8.
#pragma once
#include "arch/types.cuh"

LUATTN_FN void stmatrix_x4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}
LUATTN_FN void stmatrix_x4_turned(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
