// arch/mma_tf32.cuh: mma.sync.m16n8k8 of tf32: numbers of float's range with 11 bits, accumulated in f32.
//
// With lane = 4 * g + t: A (g, t) (g + 8, t) (g, t + 4) (g + 8, t + 4), B (t, g) (t + 4, g). A product does not ask in which
// order channels are added up. Let channels 2 t and 2 t + 1 of a matrix take the places of t and t + 4: then a lane has of
// 16 x 16 numbers of M what it has of an accumulator's (score/fragment.cuh), be M the A operand, or B the transpose of M. So
// accumulators are A operands of the next product as they are.
#pragma once
#include "arch/types.cuh"

// 16 x 16 numbers, as two accumulators of 8 columns each.
struct Square {
  float x[8];
};

// What is added to a float's bits rounds it to tf32, away from 0 at a tie: the tensor cores leave out the bits behind.
enum : u32 { ROUNDS_TF32 = 0x1000 };
LUATTN_FN float round_tf32(float x, u32 by) { return __uint_as_float(__float_as_uint(x) + by); }

// sum += a b', 8 rows of b.
LUATTN_FN void mma_tf32(float *sum, const Square &a, const Square &b, int half) {
#pragma unroll
  for (int k = 0; k < 2; ++k)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(a.x[4 * k])), "r"(__float_as_uint(a.x[4 * k + 2])), "r"(__float_as_uint(a.x[4 * k + 1])),
          "r"(__float_as_uint(a.x[4 * k + 3])), "r"(__float_as_uint(b.x[4 * k + 2 * half])),
          "r"(__float_as_uint(b.x[4 * k + 2 * half + 1])));
}
// sum += a b'
LUATTN_FN void mma_tf32(Square &sum, const Square &a, const Square &b) {
  mma_tf32(sum.x, a, b, 0);
  mma_tf32(sum.x + 4, a, b, 1);
}
