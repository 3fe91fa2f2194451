// sm90/fwd/o_wgmma.cuh: O += P V by wgmma, in the registers of arch/o_registers.cuh, and the stores of O
// (sm90 forward).
//
//     o<n>_0 .. 7   of columns 16 n .. 16 n + 15: d[8 n] .. d[8 n + 7] of arch/wgmma.cuh
#pragma once
#include "arch/o_registers.cuh"
#include "arch/wgmma.cuh"

// ---- products ----

// O += a b over 16 or 64 rows of b, a in registers, for Columns columns of O from block First on.
template <class Elem, int First, int Columns>
struct OutSums;

#define O_BLOCK(n) "o" #n "_0,o" #n "_1,o" #n "_2,o" #n "_3,o" #n "_4,o" #n "_5,o" #n "_6,o" #n "_7"
#define O_0_16 O_BLOCK(0)
#define O_0_32 O_0_16 "," O_BLOCK(1)
#define O_0_48 O_0_32 "," O_BLOCK(2)
#define O_0_64 O_0_48 "," O_BLOCK(3)
#define O_0_80 O_0_64 "," O_BLOCK(4)
#define O_0_96 O_0_80 "," O_BLOCK(5)
#define O_0_112 O_0_96 "," O_BLOCK(6)
#define O_0_128 O_0_112 "," O_BLOCK(7)
#define O_0_144 O_0_128 "," O_BLOCK(8)
#define O_0_160 O_0_144 "," O_BLOCK(9)
#define O_0_176 O_0_160 "," O_BLOCK(10)
#define O_0_192 O_0_176 "," O_BLOCK(11)
#define O_0_208 O_0_192 "," O_BLOCK(12)
#define O_0_224 O_0_208 "," O_BLOCK(13)
#define O_0_240 O_0_224 "," O_BLOCK(14)
#define O_8_128 \
  O_BLOCK(8)    \
  "," O_BLOCK(9) "," O_BLOCK(10) "," O_BLOCK(11) "," O_BLOCK(12) "," O_BLOCK(13) "," O_BLOCK(14) "," O_BLOCK(15)
#define OUT_SUMS(elem, first, n, pair)                                                                              \
  template <>                                                                                                       \
  struct OutSums<elem, first, n> {                                                                                  \
    static __device__ __forceinline__ void add16(const u32 *a, u64 b) {                                             \
      asm volatile(SUMS(n, pair, O_##first##_##n, "%0,%1,%2,%3", "%4")::"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), \
                   "l"(b)                                                                                           \
                   : "memory");                                                                                     \
    }                                                                                                               \
    static __device__ __forceinline__ void add64(const u32 *a, u64 b) {                                             \
      asm volatile(                                                                                                 \
          "{.reg .b64 b1, b2, b3;\nadd.s64 b1, %16, 128;\nadd.s64 b2, %16, 256;\nadd.s64 b3, %16, "                 \
          "384;\n" SUMS(n, pair, O_##first##_##n, "%0,%1,%2,%3", "%16") SUMS(                                       \
              n, pair, O_##first##_##n, "%4,%5,%6,%7", "b1") SUMS(n, pair, O_##first##_##n, "%8,%9,%10,%11", "b2")  \
              SUMS(n, pair, O_##first##_##n, "%12,%13,%14,%15", "b3") "}" ::"r"(a[0]),                              \
          "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(a[8]), "r"(a[9]),        \
          "r"(a[10]), "r"(a[11]), "r"(a[12]), "r"(a[13]), "r"(a[14]), "r"(a[15]), "l"(b)                            \
          : "memory");                                                                                              \
    }                                                                                                               \
  };
#define OUT_SUMS_BOTH(first, n) OUT_SUMS(half_t, first, n, "f16.f16 ") OUT_SUMS(bf16_t, first, n, "bf16.bf16 ")
// Bit i enables an O of 16 (i + 1) columns, as in LUATTN_WGMMA_WIDTHS. An O of 256 columns takes two products
// of 128 columns: ptxas takes twice as long for one of 256.
#ifndef LUATTN_OUT_WIDTHS
#define LUATTN_OUT_WIDTHS 0xffff
#endif
#if LUATTN_OUT_WIDTHS >> 0 & 1
OUT_SUMS_BOTH(0, 16)
#endif
#if LUATTN_OUT_WIDTHS >> 1 & 1
OUT_SUMS_BOTH(0, 32)
#endif
#if LUATTN_OUT_WIDTHS >> 2 & 1
OUT_SUMS_BOTH(0, 48)
#endif
#if LUATTN_OUT_WIDTHS >> 3 & 1
OUT_SUMS_BOTH(0, 64)
#endif
#if LUATTN_OUT_WIDTHS >> 4 & 1
OUT_SUMS_BOTH(0, 80)
#endif
#if LUATTN_OUT_WIDTHS >> 5 & 1
OUT_SUMS_BOTH(0, 96)
#endif
#if LUATTN_OUT_WIDTHS >> 6 & 1
OUT_SUMS_BOTH(0, 112)
#endif
#if LUATTN_OUT_WIDTHS >> 7 & 1 || LUATTN_OUT_WIDTHS >> 15 & 1
OUT_SUMS_BOTH(0, 128)
#endif
#if LUATTN_OUT_WIDTHS >> 8 & 1
OUT_SUMS_BOTH(0, 144)
#endif
#if LUATTN_OUT_WIDTHS >> 9 & 1
OUT_SUMS_BOTH(0, 160)
#endif
#if LUATTN_OUT_WIDTHS >> 10 & 1
OUT_SUMS_BOTH(0, 176)
#endif
#if LUATTN_OUT_WIDTHS >> 11 & 1
OUT_SUMS_BOTH(0, 192)
#endif
#if LUATTN_OUT_WIDTHS >> 12 & 1
OUT_SUMS_BOTH(0, 208)
#endif
#if LUATTN_OUT_WIDTHS >> 13 & 1
OUT_SUMS_BOTH(0, 224)
#endif
#if LUATTN_OUT_WIDTHS >> 14 & 1
OUT_SUMS_BOTH(0, 240)
#endif
#if LUATTN_OUT_WIDTHS >> 15 & 1
OUT_SUMS_BOTH(8, 128)
#endif

// Does the same over Rows rows, a multiple of 16.
template <class Elem, int First, int Columns, int Rows>
LUATTN_FN void out_sums(const u32 *a, u64 b) {
  using Sums = OutSums<Elem, First, Columns>;
#pragma unroll
  for (int i = 0; i < Rows / 64 * 4; i += 4) Sums::add64(a + i * 4, b + (i * 16 * 128 >> 4));
#pragma unroll
  for (int i = Rows / 64 * 4; i < Rows / 16; ++i) Sums::add16(a + i * 4, b + (i * 16 * 128 >> 4));
}

// ---- results ----

// Multiplies the columns of O from block Block on by the rows' factors, rounds them and stores them to shared
// memory. `at` is the address of the lane's row and chunk. Stores four 8 x 8 matrices for each block of 16
// columns, in boxes of 64 columns with TMA's swizzle. A factor of 0 gives 0, even where a row that keeps
// nothing has met infinities in V: 0 * inf is NaN.
template <class Elem, int Columns, int Block = 0>
LUATTN_FN void stage_outs(u32 at, float upper, float lower) {
#define PAIR(type, w, i, j, scale, kept)                                                       \
  "mul.f32 a, o%3_" i ", " scale "; mul.f32 b, o%3_" j ", " scale "; cvt.rn." type "x2.f32 " w \
  ", b, a; "                                                                                   \
  "selp.b32 " w ", " w ", 0, " kept ";\n"
#define STAGE(type)                                                                                                 \
  asm volatile(                                                                                                     \
      "{.reg .pred up, low; .reg .f32 a, b; .reg .b32 w0, w1, w2, w3;\n"                                            \
      "setp.neu.f32 up, %1, 0f00000000; setp.neu.f32 low, %2, 0f00000000;\n" PAIR(type, "w0", "0", "1", "%1", "up") \
          PAIR(type, "w1", "2", "3", "%2", "low") PAIR(type, "w2", "4", "5", "%1", "up")                            \
              PAIR(type, "w3", "6", "7", "%2",                                                                      \
                   "low") "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0 + %4], {w0, w1, w2, w3};}" ::"r"(to),       \
      "f"(upper), "f"(lower), "n"(Block), "n"(Block / 4 * 16 * 128)                                                 \
      : "memory")
  if constexpr (Block * 16 < Columns) {
    const u32 to = at ^ Block % 4 * 32;
    if constexpr (same_type<Elem, half_t>::value)
      STAGE("f16");
    else
      STAGE("bf16");
    stage_outs<Elem, Columns, Block + 1>(at, upper, lower);
  }
#undef STAGE
#undef PAIR
}

// The destination of a thread's part of a row of O, and the row's factor, which is applied before rounding.
struct OutRow {
  u64 to;  // in global memory, at gathered_column; of floats at the fragment's own
  float scale;
  u32 exists;
};

// Stores blocks Block and Block + 1 (32 columns). A thread has two of every 8 columns; shuffles give it eight
// columns of one row, 16 bytes to store at once, as in gather_columns (arch/wgmma.cuh). A factor of 0 gives
// 0, even where a row that keeps nothing has met infinities in V: 0 * inf is NaN. All of it is one asm
// statement, because the compiler takes time for each statement.
template <class Elem, int Block>
LUATTN_FN void store_out(const OutRow (&row)[2], int lane) {
#define PAIR(type, w, scale, block, i, j)                                                                    \
  "mul.f32 a, o" block "_" i ", " scale "; mul.f32 b, o" block "_" j ", " scale "; cvt.rn." type "x2.f32 " w \
  ", b, "                                                                                                    \
  "a;\n"
#define SWAP(lo, hi, upper, bit)                                         \
  "selp.b32 x, " lo ", " hi ", " upper "; shfl.sync.bfly.b32 x, x, " bit \
  ", 31, -1;\n"                                                          \
  "selp.b32 " lo ", x, " lo ", " upper "; selp.b32 " hi ", " hi ", x, " upper ";\n"
#define STORE_ROW(type, to, scale, exists, i0, i1, i4, i5)                                                   \
  PAIR(type, "w0", scale, "%8", i0, i1)                                                                      \
  PAIR(type, "w1", scale, "%8", i4, i5)                                                                      \
  PAIR(type, "w2", scale, "%9", i0, i1)                                                                      \
  PAIR(type, "w3", scale, "%9", i4, i5)                                                                      \
  SWAP("w0", "w1", "odd", "1")                                                                               \
  SWAP("w2", "w3", "odd", "1")                                                                               \
  SWAP("w0", "w2", "high", "2")                                                                              \
  SWAP("w1", "w3", "high", "2")                                                                              \
  "setp.ne.u32 p, " exists ", 0; setp.eq.and.f32 none, " scale ", 0f00000000, p; setp.neu.and.f32 p, " scale \
  ", 0f00000000, p;\n@p st.global.v4.b32 [" to "+%10], {w0, w1, w2, w3};\n@none st.global.v4.b32 [" to       \
  "+%10], {zero, zero, zero, zero};\n"
#define STORE(type)                                                                                                \
  asm volatile(                                                                                                    \
      "{.reg .pred p, none, odd, high; .reg .f32 a, b; .reg .b32 w0, w1, w2, w3, x, zero;\nmov.b32 zero, "         \
      "0;\n"                                                                                                       \
      "setp.ne.u32 odd, %6, 0; setp.ne.u32 high, %7, 0;\n" STORE_ROW(type, "%0", "%2", "%4", "0", "1", "4", "5")   \
          STORE_ROW(type, "%1", "%3", "%5", "2", "3", "6", "7") "}" ::"l"(row[0].to),                              \
      "l"(row[1].to), "f"(row[0].scale), "f"(row[1].scale), "r"(row[0].exists), "r"(row[1].exists), "r"(lane & 1), \
      "r"(lane & 2), "n"(Block), "n"(Block + 1), "n"(Block * 32)                                                   \
      : "memory")
  if constexpr (same_type<Elem, half_t>::value)
    STORE("f16");
  else
    STORE("bf16");
#undef STORE
#undef STORE_ROW
#undef SWAP
#undef PAIR
}
// Stores all Columns columns of a row, a multiple of 8.
template <class Elem, int Columns, int Block = 0>
LUATTN_FN void store_outs(OutRow (&row)[2], int lane) {
  if constexpr (Block * 16 < Columns) {
    if constexpr (Block * 16 + 32 > Columns)
#pragma unroll
      for (int r = 0; r < 2; ++r) row[r].exists &= gathered_column(lane) < Columns - Block * 16;
    store_out<Elem, Block>(row, lane);
    store_outs<Elem, Columns, Block + 2>(row, lane);
  }
}

// Stores Columns columns, a multiple of 8, as floats: a thread's two of every 8 at once.
template <int Columns, int Half = 0>
LUATTN_FN void store_outs_f32(const OutRow (&row)[2]) {
#define PAIR(to, i, j, scale, some, exists)                                                            \
  "mul.f32 a, o%6_" i ", " scale "; mul.f32 b, o%6_" j ", " scale "; selp.f32 a, a, 0f00000000, " some \
  "; selp.f32 b, b, 0f00000000, " some "; @" exists " st.global.v2.f32 [" to " + %7], {a, b};\n"
#define STORE(upper0, upper1, lower0, lower1)                                                                          \
  asm volatile(                                                                                                        \
      "{.reg .f32 a, b; .reg .pred some0, some1, exists0, exists1;\n"                                                  \
      "setp.neu.f32 some0, %2, 0f00000000; setp.neu.f32 some1, %3, 0f00000000;\n"                                      \
      "setp.ne.u32 exists0, %4, 0; setp.ne.u32 exists1, %5, 0;\n" PAIR("%0", upper0, upper1, "%2", "some0", "exists0") \
          PAIR("%1", lower0, lower1, "%3", "some1", "exists1") "}" ::"l"(row[0].to),                                   \
      "l"(row[1].to), "f"(row[0].scale), "f"(row[1].scale), "r"(row[0].exists), "r"(row[1].exists), "n"(Half / 2),     \
      "n"(Half * 32)                                                                                                   \
      : "memory")
  if constexpr (Half * 8 < Columns) {
    if constexpr (Half % 2 == 0)
      STORE("0", "1", "2", "3");
    else
      STORE("4", "5", "6", "7");
    store_outs_f32<Columns, Half + 1>(row);
  }
#undef STORE
#undef PAIR
}
