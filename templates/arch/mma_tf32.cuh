// arch/mma_tf32.cuh: mma.sync.m16n8k8 of tf32: numbers of float's range with 11 bits, accumulated in f32.
//
// With lane = 4 * g + t: A (g, t) (g + 8, t) (g, t + 4) (g + 8, t + 4), B (t, g) (t + 4, g). A product does not ask in which
// order channels are added up. Let channels 2 t and 2 t + 1 of a matrix take the places of t and t + 4: then a lane has of
// 16 x 16 numbers of M what it has of an accumulator's (score/fragment.cuh), be M the A operand, or B the transpose of M. So
// accumulators are operands of the next product, of A in another order.
#pragma once
#include "arch/types.cuh"

// 16 x 16 numbers, as two accumulators of 8 columns each.
struct Square {
  float x[8];
};
// The same as two A operands of 8 columns each.
struct SquareRows {
  float x[8];
};
// Which element of the one is an element of the other.
LUATTN_FN constexpr int square_row(int i) { return i & 4 | i << 1 & 2 | i >> 1 & 1; }
LUATTN_FN Square square_of(const SquareRows &rows) {
  Square s;
#pragma unroll
  for (int i = 0; i < 8; ++i) s.x[i] = rows.x[square_row(i)];
  return s;
}

// What is added to a float's bits rounds it to tf32, away from 0 at a tie: the tensor cores leave out the bits behind. And what
// also turns its sign.
enum : u32 { ROUNDS_TF32 = 0x1000, NEGATES_TF32 = 0x80001000 };
LUATTN_FN float round_tf32(float x, u32 by) { return __uint_as_float(__float_as_uint(x) + by); }

// sum = a b + (First ? 0 : sum), over 8 channels. b: those of a lane.
template <bool First>
LUATTN_FN void mma_tf32(float *sum, const float *a, const float2 &b) {
  float(&c)[4] = reinterpret_cast<float(&)[4]>(*sum);
  if constexpr (First)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = 0;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b.x)), "r"(__float_as_uint(b.y)));
}
// sum = a b' + (First ? 0 : sum)
template <bool First>
LUATTN_FN void mma_tf32(Square &sum, const SquareRows &a, const Square &b) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    mma_tf32<First>(sum.x + 4 * half, a.x, {b.x[2 * half], b.x[2 * half + 1]});
    mma_tf32<false>(sum.x + 4 * half, a.x + 4, {b.x[4 + 2 * half], b.x[5 + 2 * half]});
  }
}
