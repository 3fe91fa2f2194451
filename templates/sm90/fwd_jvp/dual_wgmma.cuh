// sm90/fwd_jvp/dual_wgmma.cuh: the second accumulator of forward with tangents, B, in blocks 8 .. 15 of the registers of
// arch/o_registers.cuh, behind O's own (A) in blocks 0 .. 7.
#pragma once
#include "sm90/fwd/o_wgmma.cuh"

// Where B begins.
static constexpr int dual_block = 8;

#define O_8_16 O_BLOCK(8)
#define O_8_32 O_8_16 "," O_BLOCK(9)
#define O_8_48 O_8_32 "," O_BLOCK(10)
#define O_8_64 O_8_48 "," O_BLOCK(11)
#define O_8_80 O_8_64 "," O_BLOCK(12)
#define O_8_96 O_8_80 "," O_BLOCK(13)
#define O_8_112 O_8_96 "," O_BLOCK(14)
#if LUATTN_OUT_WIDTHS >> 0 & 1
OUT_SUMS_BOTH(8, 16)
#endif
#if LUATTN_OUT_WIDTHS >> 1 & 1
OUT_SUMS_BOTH(8, 32)
#endif
#if LUATTN_OUT_WIDTHS >> 2 & 1
OUT_SUMS_BOTH(8, 48)
#endif
#if LUATTN_OUT_WIDTHS >> 3 & 1
OUT_SUMS_BOTH(8, 64)
#endif
#if LUATTN_OUT_WIDTHS >> 4 & 1
OUT_SUMS_BOTH(8, 80)
#endif
#if LUATTN_OUT_WIDTHS >> 5 & 1
OUT_SUMS_BOTH(8, 96)
#endif
#if LUATTN_OUT_WIDTHS >> 6 & 1
OUT_SUMS_BOTH(8, 112)
#endif
#if (LUATTN_OUT_WIDTHS >> 7 & 1) && !(LUATTN_OUT_WIDTHS >> 15 & 1)
OUT_SUMS_BOTH(8, 128)
#endif

template <int Count>
LUATTN_FN void scale_dual_out(float upper, float lower) {
  scale_out<dual_block, Count>(upper, lower);
}
