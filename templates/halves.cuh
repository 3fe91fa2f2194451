// halves.cuh: sigmoids that are rounded to a half type anyway, two in a register.
//
// 1 / (1 + 2^-x) = e / (1 + e), e = 2^x. To round e first is one rounding more, 2^-8 of the weight (bf16) or
// 2^-11 (f16) at most, and halves the number of instructions behind it. The plain computation in a half type
// rounds the score, which costs a weight far below 1 several times as much.
#pragma once
#include "base.cuh"

// Of e up to 2^-5: e - e^2, within e^2 = 2^-10, a quarter of a rounding; for f16 e - e^2 + e^3, within 2^-15.
// ptxas makes one instruction of a product and a difference where nothing is said of rounding.
#define LUATTN_SMALL_bf16x2(e) "mul.bf16x2 t, " e ", " e "; sub.bf16x2 " e ", " e ", t;\n"
#define LUATTN_SMALL_f16x2(e) \
  "mul.f16x2 t, " e ", " e "; sub.f16x2 t, " e ", t; mul.f16x2 t, " e ", t; sub.f16x2 " e ", " e ", t;\n"
// Of e up to `most`, from where on the weight is rounded to 1. The difference of bits is y = 1 / (1 + e)
// to 5.1 %, as in math.cuh: r, what it lacks, is within 0.0506, and e y (1 + r + r^2) within r^3 = 2^-12.9,
// besides four roundings.
#define LUATTN_ANY(type, e)                                             \
  "min.NaN." type " " e ", " e ", most; add." type " a, " e             \
  ", one; sub.u32 y, guess, a;\n"                                       \
  "mul." type " t, a, y; sub." type " r, one, t; mul.rn." type " t, " e \
  ", y;\n"                                                              \
  "fma.rn." type " r, r, r, r; fma.rn." type " " e ", t, r, t;\n"

template <class Elem>
struct Halves;

// Four registers to a statement, because the compiler takes time for each. larger: a NaN is the largest.
#define LUATTN_HALVES(elem, name, type, one, guess, most, bits)                                              \
  template <>                                                                                                \
  struct Halves<elem> {                                                                                      \
    static constexpr u32 small_bits = bits; /* 2^-5 */                                                       \
    static __device__ __forceinline__ u32 larger(u32 than, const u32 *e) {                                   \
      asm("{.reg .b32 t, u; max.NaN." type " t, %1, %2; max.NaN." type " u, %3, %4; max.NaN." type           \
          " t, t, u; max.NaN." type " %0, %0, t;}"                                                           \
          : "+r"(than)                                                                                       \
          : "r"(e[0]), "r"(e[1]), "r"(e[2]), "r"(e[3]));                                                     \
      return than;                                                                                           \
    }                                                                                                        \
    static __device__ __forceinline__ void small(u32 *e) {                                                   \
      asm("{.reg .b32 t;\n" LUATTN_SMALL_##name("%0") LUATTN_SMALL_##name("%1") LUATTN_SMALL_##name("%2")    \
              LUATTN_SMALL_##name("%3") "}"                                                                  \
          : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3]));                                                 \
    }                                                                                                        \
    static __device__ __forceinline__ void any(u32 *e) {                                                     \
      asm("{.reg .b32 one, guess, most, a, y, r, t;\nmov.b32 one, " one "; mov.b32 guess, " guess            \
          "; mov.b32 most, " most ";\n" LUATTN_ANY(type, "%0") LUATTN_ANY(type, "%1") LUATTN_ANY(type, "%2") \
              LUATTN_ANY(type, "%3") "}"                                                                     \
          : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3]));                                                 \
    }                                                                                                        \
  };
LUATTN_HALVES(bf16_t, bf16x2, "bf16x2", "0x3F803F80", "0x7EF37EF3", "0x5D805D80", 0x3D00)
LUATTN_HALVES(half_t, f16x2, "f16x2", "0x3C003C00", "0x77997799", "0x70007000", 0x2800)
#undef LUATTN_HALVES
#undef LUATTN_ANY
#undef LUATTN_SMALL_f16x2
#undef LUATTN_SMALL_bf16x2

// In place of powers their sigmoids.
template <class Elem, int N>
LUATTN_FN void sigmoids_of_any(u32 (&e)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) Halves<Elem>::any(e + i);
}
// The same for a whole warp that asks first. All are small nearly always: sigmoid attention has a bias of
// about -log(length).
template <class Elem, int N>
LUATTN_FN void sigmoids_of_powers(u32 (&e)[N]) {
  using H = Halves<Elem>;
  u32 most = 0;
#pragma unroll
  for (int i = 0; i < N; i += 4) most = H::larger(most, e + i);
  if (__all_sync(0xffffffffu, (most & 0xffff) <= H::small_bits && most >> 16 <= H::small_bits)) {
#pragma unroll
    for (int i = 0; i < N; i += 4) H::small(e + i);
  } else {
    sigmoids_of_any<Elem>(e);
  }
}
