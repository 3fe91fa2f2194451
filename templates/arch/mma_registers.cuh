// arch/mma_registers.cuh: keeps fragments of mma.m16n8k16 in registers declared in PTX, invisible to NVVM.
//
// NVVM spends its time on values: an accumulator in a C++ array is a new value after every product and at
// every join of every loop around it. Here accumulators are registers declared in PTX, which asm statements
// name by number:
//
//     c<n>_0 .. 7   block n of C, 16 x 16: the fragments of its left and right 8 columns (arch/mma.cuh)
//     a<n>_0 .. 3   block n of A, 16 x 16
//
// A kernel calls declare_fragments() once, outside of all loops, and assigns the numbers itself. To ptxas
// they are ordinary virtual registers, which it allocates, schedules and drops. Numbers are template
// arguments because they become text; addresses are ordinary values.
#pragma once
#include "arch/mma.cuh"

static constexpr int num_c_blocks = 60, num_a_blocks = 8;

LUATTN_FN void declare_fragments() {
#define LUATTN_C(n) ".reg .f32 c" #n "_<8>;"
#define LUATTN_C_10(n) \
  LUATTN_C(n##0)       \
  LUATTN_C(n##1)       \
  LUATTN_C(n##2)       \
  LUATTN_C(n##3) LUATTN_C(n##4) LUATTN_C(n##5) LUATTN_C(n##6) LUATTN_C(n##7) LUATTN_C(n##8) LUATTN_C(n##9)
#define LUATTN_A(n) ".reg .b32 a" #n "_<4>;"
  asm volatile(LUATTN_A(0) LUATTN_A(1) LUATTN_A(2) LUATTN_A(3) LUATTN_A(4) LUATTN_A(5) LUATTN_A(6) LUATTN_A(
      7) ".reg .b32 b_<4>;" LUATTN_C_10() LUATTN_C_10(1) LUATTN_C_10(2) LUATTN_C_10(3) LUATTN_C_10(4) LUATTN_C_10(5));
#undef LUATTN_A
#undef LUATTN_C_10
#undef LUATTN_C
}

#define LUATTN_A(n) "{a" n "_0,a" n "_1,a" n "_2,a" n "_3}"
#define LUATTN_LEFT(n) "{c" n "_0,c" n "_1,c" n "_2,c" n "_3}"
#define LUATTN_RIGHT(n) "{c" n "_4,c" n "_5,c" n "_6,c" n "_7}"

// ---- products ---------------------------------------------------------------------------------------------

// Zeroes blocks First .. First + Count - 1.
template <int First, int Count>
LUATTN_FN void zero_blocks() {
#define LUATTN_ZERO(i) "mov.f32 c%0_" i ", 0f00000000;"
  if constexpr (Count > 0) {
    asm volatile(LUATTN_ZERO("0") LUATTN_ZERO("1") LUATTN_ZERO("2") LUATTN_ZERO("3") LUATTN_ZERO("4") LUATTN_ZERO("5")
                     LUATTN_ZERO("6") LUATTN_ZERO("7")::"n"(First));
    zero_blocks<First + 1, Count - 1>();
  }
#undef LUATTN_ZERO
}

// Loads blocks A .. A + Count - 1 from shared memory, `step` bytes apart.
template <bool Trans, int A, int Count>
LUATTN_FN void load_a(u32 address, u32 step) {
#define LUATTN_LOAD(trans)                                                                                          \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 " LUATTN_A("%1") ", [%0];" ::"r"(address), "n"(A) \
               : "memory")
  if constexpr (Count > 0) {
    if constexpr (Trans)
      LUATTN_LOAD(".trans");
    else
      LUATTN_LOAD("");
    load_a<Trans, A + 1, Count - 1>(address + step, step);
  }
#undef LUATTN_LOAD
}

#define LUATTN_HALF_MMA(type, c, a, b) \
  "mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 " c "," LUATTN_A(a) "," b "," c ";"
#define LUATTN_MMA(type, a, c)                          \
  LUATTN_HALF_MMA(type, LUATTN_LEFT(c), a, "{b_0,b_1}") \
  LUATTN_HALF_MMA(type, LUATTN_RIGHT(c), a, "{b_2,b_3}")

// Uses the same B as the previous product, for further blocks of A.
template <class Elem, int Frags, int A, int C, int Step>
LUATTN_FN void multiply_more() {
  if constexpr (Frags > 0) {
    if constexpr (same_type<Elem, half_t>::value)
      asm volatile(LUATTN_MMA("f16", "%0", "%1")::"n"(A), "n"(C));
    else
      asm volatile(LUATTN_MMA("bf16", "%0", "%1")::"n"(A), "n"(C));
    multiply_more<Elem, Frags - 1, A + 1, C + Step, Step>();
  }
}

// Computes block C + f * Step += block A + f times B, for f = 0 .. Frags - 1. ldmatrix (with Trans,
// ldmatrix.trans) loads the 16 columns of B from `address`.
template <class Elem, bool Trans, int Frags, int A, int C, int Step>
LUATTN_FN void multiply(u32 address) {
#define LUATTN_B(trans) "ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {b_0,b_1,b_2,b_3}, [%0];"
#define LUATTN_MULTIPLY(trans, type)                                                                              \
  if constexpr (Frags == 1)                                                                                       \
    asm volatile(LUATTN_B(trans) LUATTN_MMA(type, "%1", "%2")::"r"(address), "n"(A), "n"(C) : "memory");          \
  else                                                                                                            \
    asm volatile(LUATTN_B(trans) LUATTN_MMA(type, "%1", "%2") LUATTN_MMA(type, "%3", "%4")::"r"(address), "n"(A), \
                 "n"(C), "n"(A + 1), "n"(C + Step)                                                                \
                 : "memory");                                                                                     \
  if constexpr (Frags > 2) multiply_more<Elem, Frags - 2, A + 2, C + 2 * Step, Step>()
  constexpr bool half = same_type<Elem, half_t>::value;
  if constexpr (half && Trans) {
    LUATTN_MULTIPLY(".trans", "f16");
  } else if constexpr (half) {
    LUATTN_MULTIPLY("", "f16");
  } else if constexpr (Trans) {
    LUATTN_MULTIPLY(".trans", "bf16");
  } else {
    LUATTN_MULTIPLY("", "bf16");
  }
}
#undef LUATTN_MULTIPLY
#undef LUATTN_B
#undef LUATTN_MMA
#undef LUATTN_HALF_MMA

// ---- elements ---------------------------------------------------------------------------------------------

template <int C>
LUATTN_FN void read_block(float (&x)[8]) {
  asm volatile(
      "mov.f32 %0, c%8_0; mov.f32 %1, c%8_1; mov.f32 %2, c%8_2; mov.f32 %3, c%8_3;"
      "mov.f32 %4, c%8_4; mov.f32 %5, c%8_5; mov.f32 %6, c%8_6; mov.f32 %7, c%8_7;"
      : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]), "=f"(x[4]), "=f"(x[5]), "=f"(x[6]), "=f"(x[7])
      : "n"(C));
}
template <int C>
LUATTN_FN void write_block(const float (&x)[8]) {
  asm volatile(
      "mov.f32 c%8_0, %0; mov.f32 c%8_1, %1; mov.f32 c%8_2, %2; mov.f32 c%8_3, %3;"
      "mov.f32 c%8_4, %4; mov.f32 c%8_5, %5; mov.f32 c%8_6, %6; mov.f32 c%8_7, %7;" ::"f"(x[0]),
      "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]), "n"(C));
}
template <int C, int Count>
LUATTN_FN void read_blocks(float (*x)[8]) {
  if constexpr (Count > 0) {
    read_block<C>(*x);
    read_blocks<C + 1, Count - 1>(x + 1);
  }
}
template <int C, int Count>
LUATTN_FN void write_blocks(const float (*x)[8]) {
  if constexpr (Count > 0) {
    write_block<C>(*x);
    write_blocks<C + 1, Count - 1>(x + 1);
  }
}
// Rotates the elements of Tiles adjacent blocks, Frags times, as octets of columns, for a rolled loop.
// Returns a lane's elements of the first octet, moves all octets one to the left, and puts x last. After as
// many rotations as there are octets, each is back in its place.
template <int C, int Tiles, int Frags, int R = 0, int Rows>
LUATTN_FN void first_octet(float (&x)[2][Rows]) {
  if constexpr (2 * Frags > R) {
    asm volatile("mov.f32 %0, c%4_0; mov.f32 %1, c%4_1; mov.f32 %2, c%4_2; mov.f32 %3, c%4_3;"
                 : "=f"(x[0][R]), "=f"(x[1][R]), "=f"(x[0][R + 1]), "=f"(x[1][R + 1])
                 : "n"(C));
    first_octet<C + Tiles, Tiles, Frags, R + 2>(x);
  }
}
#define LUATTN_MOVE_LEFT(a, b, c, d)                                                        \
  "mov.f32 c%0_0, c%0_4; mov.f32 c%0_1, c%0_5; mov.f32 c%0_2, c%0_6; mov.f32 c%0_3, c%0_7;" \
  "mov.f32 c%0_4, " a "; mov.f32 c%0_5, " b "; mov.f32 c%0_6, " c "; mov.f32 c%0_7, " d ";"
template <int C, int Tiles, int Frags, int R = 0, int I = 1, int Rows>
LUATTN_FN void next_octet(const float (&x)[2][Rows]) {
  if constexpr (2 * Frags > R && I < Tiles) {
    asm volatile(LUATTN_MOVE_LEFT("c%1_0", "c%1_1", "c%1_2", "c%1_3")::"n"(C), "n"(C + 1));
    next_octet<C + 1, Tiles, Frags, R, I + 1>(x);
  } else if constexpr (2 * Frags > R) {
    asm volatile(LUATTN_MOVE_LEFT("%1", "%2", "%3", "%4")::"n"(C), "f"(x[0][R]), "f"(x[1][R]), "f"(x[0][R + 1]),
                 "f"(x[1][R + 1]));
    next_octet<C + 1, Tiles, Frags, R + 2>(x);
  }
}
#undef LUATTN_MOVE_LEFT

// Applies an exclusive or with `zero` to blocks C .. C + Count - 1. `zero` is a 0 that is opaque to ptxas, so
// that a loop that rotated the blocks and the code after it use different registers. Otherwise ptxas would
// use the same ones, and copy into them the values that arrive on a path around the loop.
template <int C, int Count>
LUATTN_FN void set_apart(int zero) {
#define LUATTN_XOR(i) "xor.b32 c%1_" i ", c%1_" i ", %0;"
  if constexpr (Count > 0) {
    asm volatile(LUATTN_XOR("0") LUATTN_XOR("1") LUATTN_XOR("2") LUATTN_XOR("3") LUATTN_XOR("4") LUATTN_XOR("5")
                     LUATTN_XOR("6") LUATTN_XOR("7")::"r"(zero),
                 "n"(C));
    set_apart<C + 1, Count - 1>(zero);
  }
#undef LUATTN_XOR
}

// Zeroes blocks X + i and Y + i where kept[i] is 0, i = 0 .. Count - 1.
template <int X, int Y, int Count>
LUATTN_FN void drop_blocks(const u32 (*kept)[8]) {
#define LUATTN_DROP(i) "setp.eq.u32 p, %" i ", 0; @p mov.f32 c%8_" i ", 0f00000000; @p mov.f32 c%9_" i ", 0f00000000;"
#define LUATTN_KEPT(i) "r"((*kept)[i])
  if constexpr (Count > 0) {
    asm volatile("{.reg .pred p;" LUATTN_DROP("0") LUATTN_DROP("1") LUATTN_DROP("2") LUATTN_DROP("3") LUATTN_DROP("4")
                     LUATTN_DROP("5") LUATTN_DROP("6") LUATTN_DROP("7") "}" ::LUATTN_KEPT(0),
                 LUATTN_KEPT(1), LUATTN_KEPT(2), LUATTN_KEPT(3), LUATTN_KEPT(4), LUATTN_KEPT(5), LUATTN_KEPT(6),
                 LUATTN_KEPT(7), "n"(X), "n"(Y));
    drop_blocks<X + 1, Y + 1, Count - 1>(kept + 1);
  }
#undef LUATTN_KEPT
#undef LUATTN_DROP
}

// ---- partition of a product -------------------------------------------------------------------------------

// Loads per block for a product of rows x cols in 16-column tiles, with `along` warps side by side along the
// rows and the others along the columns.
LUATTN_FN constexpr int split_cost(int rows, int cols, int warps, int along) {
  const int along_cols = warps / along, tiles = (cols / 16 + along_cols - 1) / along_cols;
  const int idle = tiles * along_cols - cols / 16;
  return (rows / along + tiles * 16) * warps + idle * 1024;
}
// Returns how many warps to place along the rows, so that split_cost is least. Partitions that leave warps idle cost
// much more.
LUATTN_FN constexpr int split_of(int rows, int cols, int warps) {
  int best = 1;
  for (int i = 2; i <= warps; i *= 2)
    if (rows % (16 * i) == 0 && warps % i == 0 &&
        split_cost(rows, cols, warps, i) <= split_cost(rows, cols, warps, best))
      best = i;
  return best;
}

// ---- results ----------------------------------------------------------------------------------------------

// Stores block C to rows of Pitch floats, up to the given numbers of rows and columns. `out` is the
// destination of this lane's first number.
template <int C, int Pitch>
LUATTN_FN void store_block(float *out, int rows, int columns) {
  asm volatile(
      "{.reg .pred p, q, l, r;"
      "setp.gt.s32 l, %2, 0; setp.gt.s32 r, %2, 8;"
      "setp.gt.and.s32 p, %1, 0, l; setp.gt.and.s32 q, %1, 8, l;"
      "@p st.global.v2.f32 [%0], {c%3_0, c%3_1}; @q st.global.v2.f32 [%0 + %4], {c%3_2, c%3_3};"
      "setp.gt.and.s32 p, %1, 0, r; setp.gt.and.s32 q, %1, 8, r;"
      "@p st.global.v2.f32 [%0 + 32], {c%3_4, c%3_5}; @q st.global.v2.f32 [%0 + %5], {c%3_6, c%3_7};}" ::"l"(
          __cvta_generic_to_global(out)),
      "r"(rows), "r"(columns), "n"(C), "n"(8 * Pitch * 4), "n"(8 * Pitch * 4 + 32)
      : "memory");
}

// Stores the upper and the lower 8 rows of block C, where they exist, up to the given number of columns from this lane's
// first number on. `upper` and `lower` are the destinations of that number.
template <int C>
LUATTN_FN void store_block_halves(float *upper, float *lower, bool has_upper, bool has_lower, int columns) {
  asm volatile(
      "{.reg .pred p, q, l, r;"
      "setp.gt.s32 l, %4, 0; setp.gt.s32 r, %4, 8;"
      "setp.ne.and.s32 p, %2, 0, l; setp.ne.and.s32 q, %3, 0, l;"
      "@p st.global.v2.f32 [%0], {c%5_0, c%5_1}; @q st.global.v2.f32 [%1], {c%5_2, c%5_3};"
      "setp.ne.and.s32 p, %2, 0, r; setp.ne.and.s32 q, %3, 0, r;"
      "@p st.global.v2.f32 [%0 + 32], {c%5_4, c%5_5}; @q st.global.v2.f32 [%1 + 32], {c%5_6, c%5_7};}" ::"l"(
          __cvta_generic_to_global(upper)),
      "l"(__cvta_generic_to_global(lower)), "r"(int(has_upper)), "r"(int(has_lower)), "r"(columns), "n"(C)
      : "memory");
}

// Rounds block C to block A of a product that sums over C's columns.
template <class Elem, int A, int C>
LUATTN_FN void round_block() {
#define LUATTN_ROUND(type)                                                                                       \
  asm volatile("cvt.rn." type "x2.f32 a%0_0, c%1_1, c%1_0; cvt.rn." type                                         \
               "x2.f32 a%0_1, c%1_3, c%1_2;"                                                                     \
               "cvt.rn." type "x2.f32 a%0_2, c%1_5, c%1_4; cvt.rn." type "x2.f32 a%0_3, c%1_7, c%1_6;" ::"n"(A), \
               "n"(C))
  if constexpr (same_type<Elem, half_t>::value)
    LUATTN_ROUND("f16");
  else
    LUATTN_ROUND("bf16");
#undef LUATTN_ROUND
}
template <int C>
LUATTN_FN void scale_block(float factor) {
#define LUATTN_SCALE(i) "mul.f32 c%1_" i ", c%1_" i ", %0;"
  asm volatile(LUATTN_SCALE("0") LUATTN_SCALE("1") LUATTN_SCALE("2") LUATTN_SCALE("3") LUATTN_SCALE("4")
                   LUATTN_SCALE("5") LUATTN_SCALE("6") LUATTN_SCALE("7")::"f"(factor),
               "n"(C));
#undef LUATTN_SCALE
}

// A lane's store_a address for the block at (row0, col0).
template <int Cols>
LUATTN_FN u32 store_pointer(u32 tile, u32 row0, u32 col0, u32 lane) {
#if __CUDA_ARCH__ >= 900
  return LanePointer<Cols, false>(lane).at(tile, row0, col0);
#else
  return tile + SharedTile<Cols>::offset(row0 + lane / 4, col0 / 8) + lane % 4 * 4;
#endif
}
// Moves that address `tiles` blocks to the right, where adding them to the block's number does not carry.
template <int Cols>
LUATTN_FN u32 beside(u32 pointer, int tiles) {
  constexpr int low = SharedTile<Cols>::group - 1;
  return (pointer ^ u32(tiles * 2 & low) * 16) + u32(tiles * 2 & ~low) * 16;
}
// Stores block A to shared memory, in a tile stored (m, k).
template <int Cols, int A>
LUATTN_FN void store_a(u32 address) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], " LUATTN_A("%1") ";" ::"r"(address), "n"(A) : "memory");
#else
  constexpr int below = 8 * Cols * 2;  // 8 rows down, where the swizzle is the same; ^ 16: the next chunk
  asm volatile(
      "st.shared.b32 [%0], a%3_0; st.shared.b32 [%0 + %2], a%3_1;"
      "st.shared.b32 [%1], a%3_2; st.shared.b32 [%1 + %2], a%3_3;" ::"r"(address),
      "r"(address ^ 16), "n"(below), "n"(A)
      : "memory");
#endif
}

// Adds a lane's share of the upper (Half = 0) or lower (1) 8 rows of block C to global memory by atomics.
// With `wide` it adds 4 numbers; before sm_90 it adds them one by one, `next` bytes apart. Without `wide` it
// adds the 2 numbers of the left 8 columns.
template <int C, int Half, bool Wide>
LUATTN_FN void add_half(float *slot, i64 next) {
#if __CUDA_ARCH__ >= 900
#define LUATTN_ADD(x0, x1, y0, y1)                                                                                 \
  if constexpr (Wide)                                                                                              \
    asm volatile("red.global.add.v4.f32 [%0], {c%1_" x0 ", c%1_" x1 ", c%1_" y0 ", c%1_" y1 "};" ::"l"(to), "n"(C) \
                 : "memory");                                                                                      \
  else                                                                                                             \
    asm volatile("red.global.add.v2.f32 [%0], {c%1_" x0 ", c%1_" x1 "};" ::"l"(to), "n"(C) : "memory")
#else
#define LUATTN_ADD(x0, x1, y0, y1)                                                                                 \
  if constexpr (Wide)                                                                                              \
    asm volatile("{.reg .b64 to; red.global.add.f32 [%0], c%1_" x0                                                 \
                 "; add.s64 to, %0, %2; red.global.add.f32 [to], c%1_" x1                                          \
                 ";"                                                                                               \
                 "add.s64 to, to, %2; red.global.add.f32 [to], c%1_" y0                                            \
                 "; add.s64 to, to, %2; red.global.add.f32 [to], c%1_" y1 ";}" ::"l"(to),                          \
                 "n"(C), "l"(next)                                                                                 \
                 : "memory");                                                                                      \
  else                                                                                                             \
    asm volatile("red.global.add.f32 [%0], c%1_" x0 "; red.global.add.f32 [%0 + 4], c%1_" x1 ";" ::"l"(to), "n"(C) \
                 : "memory")
#endif
  const u64 to = __cvta_generic_to_global(slot);
  if constexpr (Half == 0) {
    LUATTN_ADD("0", "1", "4", "5");
  } else {
    LUATTN_ADD("2", "3", "6", "7");
  }
#undef LUATTN_ADD
}

#undef LUATTN_A
#undef LUATTN_LEFT
#undef LUATTN_RIGHT
