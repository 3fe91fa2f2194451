// sm80/o_mma.cuh: O += P V by mma.sync, in the registers of arch/o_registers.cuh (sm80 forward).
//
//     o<n>_0 .. 7   block n, 16 x 16: the C fragments of its left and its right 8 columns (see arch/mma.cuh)
//     p<m>_0 .. 3   probabilities, rounded: an A fragment for each 16 rows of a warp
//
// A kernel calls declare_weights() once, outside of all loops.
#pragma once
#include "arch/mma.cuh"
#include "arch/o_registers.cuh"

LUATTN_FN void declare_weights() { asm volatile(".reg .b32 p0_<4>; .reg .b32 p1_<4>; .reg .b32 v_<4>;"); }

// ---- products ----

// Stores P of 16 columns in registers p<M>. A thread has four of them in each of its two rows.
template <class Elem, int M>
LUATTN_FN void round_probs(const float *upper, const float *lower) {
#define ROUND(type)                                                                                      \
  asm volatile("cvt.rn." type "x2.f32 p%0_0, %2, %1; cvt.rn." type "x2.f32 p%0_1, %4, %3; cvt.rn." type  \
               "x2.f32 p%0_2, %6, %5; cvt.rn." type "x2.f32 p%0_3, %8, %7;" ::"n"(M),                    \
               "f"(upper[0]), "f"(upper[1]), "f"(lower[0]), "f"(lower[1]), "f"(upper[2]), "f"(upper[3]), \
               "f"(lower[2]), "f"(lower[3]))
  if constexpr (same_type<Elem, half_t>::value)
    ROUND("f16");
  else
    ROUND("bf16");
#undef ROUND
}

// Computes block N + m * Blocks += p<m> times the 16 x 16 of V that ldmatrix.trans loads from `v`, for
// m = 0 .. Rows - 1.
template <class Elem, int Rows, int N, int Blocks>
LUATTN_FN void add_values_16(u32 v) {
#define MMA(type, m, n, half, b)                                                                                    \
  "mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {" half(n) "},{" m "_0," m "_1," m "_2," m "_3},{" b \
                                                                          "},{" half(n) "};"
#define LEFT(n) "o" n "_0,o" n "_1,o" n "_2,o" n "_3"
#define RIGHT(n) "o" n "_4,o" n "_5,o" n "_6,o" n "_7"
#define ROW(type, m, n) MMA(type, m, n, LEFT, "v_0,v_1") MMA(type, m, n, RIGHT, "v_2,v_3")
#define ADD(type)                                                                                                \
  if constexpr (Rows == 1)                                                                                       \
    asm volatile(                                                                                                \
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {v_0,v_1,v_2,v_3}, [%0];" ROW(type, "p0", "%1")::"r"(v), \
        "n"(N)                                                                                                   \
        : "memory");                                                                                             \
  else                                                                                                           \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {v_0,v_1,v_2,v_3}, [%0];" ROW(type, "p0", "%1") \
                     ROW(type, "p1", "%2")::"r"(v),                                                              \
                 "n"(N), "n"(N + Blocks)                                                                         \
                 : "memory")
  if constexpr (same_type<Elem, half_t>::value) {
    ADD("f16");
  } else {
    ADD("bf16");
  }
#undef ADD
#undef ROW
#undef RIGHT
#undef LEFT
#undef MMA
}

// ---- results ----

// The destination of a thread's part of a row of O, and the row's factor, which is applied before rounding.
struct OutRow {
  u64 to;  // in global memory
  float scale;
  u32 exists;
};

// Stores Columns columns from fragment Fragment on, scaled, as floats: a thread's two of every 8 at once.
template <int Fragment, int Columns>
LUATTN_FN void store_out_f32(const OutRow &upper, const OutRow &lower) {
#define PAIR(to, i, j, scale, some, exists)                                                            \
  "mul.f32 l, o%6_" i ", " scale "; mul.f32 r, o%6_" j ", " scale "; selp.f32 l, l, 0f00000000, " some \
  "; selp.f32 r, r, 0f00000000, " some "; @" exists " st.global.v2.f32 [" to "], {l, r};"
#define STORE(a, b, c, d)                                                                                        \
  asm volatile(                                                                                                  \
      "{.reg .f32 l, r; .reg .pred some0, some1, exists0, exists1;"                                              \
      "setp.neu.f32 some0, %2, 0f00000000; setp.neu.f32 some1, %3, 0f00000000;"                                  \
      "setp.ne.u32 exists0, %4, 0; setp.ne.u32 exists1, %5, 0;" PAIR("%0", a, b, "%2", "some0", "exists0")       \
          PAIR("%1", c, d, "%3", "some1", "exists1") "}" ::"l"(upper.to),                                        \
      "l"(lower.to), "f"(upper.scale), "f"(lower.scale), "r"(upper.exists), "r"(lower.exists), "n"(Fragment / 2) \
      : "memory")
  if constexpr (Columns > 0) {
    if constexpr (Fragment % 2 == 0)
      STORE("0", "1", "2", "3");
    else
      STORE("4", "5", "6", "7");
    store_out_f32<Fragment + 1, Columns - 8>({upper.to + 32, upper.scale, upper.exists},
                                             {lower.to + 32, lower.scale, lower.exists});
  }
#undef STORE
#undef PAIR
}

// Stores Columns columns from fragment Fragment on, scaled and rounded. One asm statement stores 64 or 8
// columns, because the compiler takes time for each statement. A factor of 0 gives 0, even where a row that
// keeps nothing has met infinities in V: 0 * inf is NaN.
template <class Out, int Fragment, int Columns>
LUATTN_FN void store_out(const OutRow &upper, const OutRow &lower) {
#define PAIR(type, to, i, j, scale, some, exists, at)                      \
  "mul.f32 l, " i ", " scale "; mul.f32 r, " j ", " scale "; cvt.rn." type \
  "x2.f32 x, r, l; selp.b32 x, x, "                                        \
  "0, " some "; @" exists " st.global.b32 [" to at "], x;"
#define BOTH(type, block, a, b, c, d, at)                                          \
  PAIR(type, "%0", "o" block "_" a, "o" block "_" b, "%2", "some0", "exists0", at) \
  PAIR(type, "%1", "o" block "_" c, "o" block "_" d, "%3", "some1", "exists1", at)
#define BLOCK(type, block, left, right) \
  BOTH(type, block, "0", "1", "2", "3", left) BOTH(type, block, "4", "5", "6", "7", right)
#define ROWS "l"(upper.to), "l"(lower.to), "f"(upper.scale), "f"(lower.scale), "r"(upper.exists), "r"(lower.exists)
#define STORE(type)                                                                                     \
  if constexpr (Columns >= 64)                                                                          \
    asm volatile("{" SETUP BLOCK(type, "%6", "", "+16") BLOCK(type, "%7", "+32", "+48")                 \
                     BLOCK(type, "%8", "+64", "+80") BLOCK(type, "%9", "+96", "+112") "}" ::ROWS,       \
                 "n"(Fragment / 2), "n"(Fragment / 2 + 1), "n"(Fragment / 2 + 2), "n"(Fragment / 2 + 3) \
                 : "memory");                                                                           \
  else                                                                                                  \
    asm volatile("{" SETUP BOTH(type, "%6", "%7", "%8", "%9", "%10", "") "}" ::ROWS, "n"(Fragment / 2), \
                 "n"(Fragment % 2 * 4), "n"(Fragment % 2 * 4 + 1), "n"(Fragment % 2 * 4 + 2),           \
                 "n"(Fragment % 2 * 4 + 3)                                                              \
                 : "memory")
#define SETUP                                                               \
  ".reg .b32 x; .reg .f32 l, r; .reg .pred some0, some1, exists0, exists1;" \
  "setp.neu.f32 some0, %2, 0f00000000; setp.neu.f32 some1, %3, 0f00000000;" \
  "setp.ne.u32 exists0, %4, 0; setp.ne.u32 exists1, %5, 0;"
  if constexpr (same_type<Out, float>::value) {
    store_out_f32<Fragment, Columns>(upper, lower);
  } else if constexpr (Columns > 0) {
    constexpr int stored = Columns >= 64 ? 64 : 8;
    if constexpr (same_type<Out, half_t>::value) {
      STORE("f16");
    } else {
      STORE("bf16");
    }
    store_out<Out, Fragment + stored / 8, Columns - stored>({upper.to + stored * 2, upper.scale, upper.exists},
                                                            {lower.to + stored * 2, lower.scale, lower.exists});
  }
#undef SETUP
#undef STORE
#undef ROWS
#undef BLOCK
#undef BOTH
#undef PAIR
}
