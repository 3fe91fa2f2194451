// ops/half_sigmoid.cuh: sigmoids that are rounded to a half type anyway, two per register.
//
// 1 / (1 + 2^-x) = e / (1 + e), e = 2^x. Rounding e first adds one rounding, at most 2^-8 of the weight
// (bf16) or 2^-11 (f16), and halves the number of instructions that follow. A plain computation in a half
// type rounds the score, which costs a weight far below 1 several times as much.
#pragma once
#include "arch/types.cuh"

// For small e: e - e^2 + e^3 - .., a term for each step w = e - e w. The error is at most the first omitted
// term: a quarter of a rounding, for e up to 2^-5 (bf16) and 2^-6.5 (f16) after one step, up to 2^-3.33 and
// 2^-4.33 after two. ptxas fuses a product and a difference where no rounding is specified.
#define LUATTN_STEP(type, e, from, to) "mul." type " t, " e ", " from "; sub." type " " to ", " e ", t;\n"
#define LUATTN_STEPS(type, e) LUATTN_STEP(type, e, e, "w") LUATTN_STEP(type, e, "w", e)
// For e up to `most`, above which the weight rounds to 1. The difference of bits is y = 1 / (1 + e) to 5.1 %,
// as in ops/math.cuh: the remainder r is within 0.0506, and e y (1 + r + r^2) within r^3 = 2^-12.9, plus four
// roundings.
#define LUATTN_ANY(type, e)                                             \
  "min.NaN." type " " e ", " e ", most; add." type " a, " e             \
  ", one; sub.u32 y, guess, a;\n"                                       \
  "mul." type " t, a, y; sub." type " r, one, t; mul.rn." type " t, " e \
  ", y;\n"                                                              \
  "fma.rn." type " r, r, r, r; fma.rn." type " " e ", t, r, t;\n"

template <class Elem>
struct Halves;

// Four registers per asm statement, because the compiler takes time for each. larger: NaN counts as the
// largest.
#define LUATTN_HALVES(elem, type, one, guess, most, one_step, two_steps)                                     \
  template <>                                                                                                \
  struct Halves<elem> {                                                                                      \
    static constexpr u32 most_for_one = one_step, most_for_two = two_steps;                                  \
    static __device__ __forceinline__ u32 larger(u32 than, const u32 *e) {                                   \
      asm("{.reg .b32 t, u; max.NaN." type " t, %1, %2; max.NaN." type " u, %3, %4; max.NaN." type           \
          " t, t, u; max.NaN." type " %0, %0, t;}"                                                           \
          : "+r"(than)                                                                                       \
          : "r"(e[0]), "r"(e[1]), "r"(e[2]), "r"(e[3]));                                                     \
      return than;                                                                                           \
    }                                                                                                        \
    static __device__ __forceinline__ void once(u32 *e) {                                                    \
      asm("{.reg .b32 t;\n" LUATTN_STEP(type, "%0", "%0", "%0") LUATTN_STEP(type, "%1", "%1", "%1")          \
              LUATTN_STEP(type, "%2", "%2", "%2") LUATTN_STEP(type, "%3", "%3", "%3") "}"                    \
          : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3]));                                                 \
    }                                                                                                        \
    static __device__ __forceinline__ void twice(u32 *e) {                                                   \
      asm("{.reg .b32 t, w;\n" LUATTN_STEPS(type, "%0") LUATTN_STEPS(type, "%1") LUATTN_STEPS(type, "%2")    \
              LUATTN_STEPS(type, "%3") "}"                                                                   \
          : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3]));                                                 \
    }                                                                                                        \
    static __device__ __forceinline__ void any(u32 *e) {                                                     \
      asm("{.reg .b32 one, guess, most, a, y, r, t;\nmov.b32 one, " one "; mov.b32 guess, " guess            \
          "; mov.b32 most, " most ";\n" LUATTN_ANY(type, "%0") LUATTN_ANY(type, "%1") LUATTN_ANY(type, "%2") \
              LUATTN_ANY(type, "%3") "}"                                                                     \
          : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3]));                                                 \
    }                                                                                                        \
  };
LUATTN_HALVES(bf16_t, "bf16x2", "0x3F803F80", "0x7EF37EF3", "0x5D805D80", 0x3D00, 0x3DCB)
LUATTN_HALVES(half_t, "f16x2", "0x3C003C00", "0x77997799", "0x70007000", 0x21A8, 0x2A59)
#undef LUATTN_HALVES
#undef LUATTN_ANY
#undef LUATTN_STEPS
#undef LUATTN_STEP

LUATTN_FN bool halves_up_to(u32 pair, u32 most) { return (pair & 0xffff) <= most && pair >> 16 <= most; }

// The number of steps that the powers of a warp need. 0 is the general formula, also for a NaN. One step is
// nearly always enough: sigmoid attention has a bias of about -log(length).
template <class Elem, int N>
LUATTN_FN int sigmoid_steps(const u32 (&e)[N]) {
  using H = Halves<Elem>;
  u32 most = 0;
#pragma unroll
  for (int i = 0; i < N; i += 4) most = H::larger(most, e + i);
  if (__all_sync(0xffffffffu, halves_up_to(most, H::most_for_one))) return 1;
  return __all_sync(0xffffffffu, halves_up_to(most, H::most_for_two)) ? 2 : 0;
}
// Checks the first four registers after the others.
template <int N>
LUATTN_FN void rotate_by_four(u32 (&e)[N]) {
  const u32 first[4] = {e[0], e[1], e[2], e[3]};
#pragma unroll
  for (int i = 4; i < N; ++i) e[i - 4] = e[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) e[N - 4 + i] = first[i];
}
// Replaces powers by their sigmoids. The less common paths, which are most of the code, are in a rolled loop.
template <class Elem, bool Rolled, int N>
LUATTN_FN void sigmoids_of_powers(u32 (&e)[N], int steps) {
  using H = Halves<Elem>;
  if (steps == 1) {
#pragma unroll
    for (int i = 0; i < N; i += 4) H::once(e + i);
  } else if constexpr (Rolled) {
#pragma unroll 1
    for (int i = 0; i < N; i += 4) {
      if (steps == 2)
        H::twice(e);
      else
        H::any(e);
      rotate_by_four(e);
    }
  } else if (steps == 2) {
#pragma unroll
    for (int i = 0; i < N; i += 4) H::twice(e + i);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) H::any(e + i);
  }
}
