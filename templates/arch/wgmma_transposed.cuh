// arch/wgmma_transposed.cuh: wgmma products of the backward kernels that arch/wgmma.cuh lacks, over 64
// channels or rows at once.
#pragma once
#include "arch/wgmma.cuh"

// d = a b' (with `first`) or d += a b': a is in registers, b is 64 rows in shared memory, K-major.
template <class Elem>
struct WgmmaKept;
// d = a b', both in shared memory, K-major. Like dots64 with add = 0, but ptxas knows that it does not read
// d.
template <class Elem>
struct WgmmaFresh;
// Sums each of 64 rows of a over 64 columns into d (with `first`), or adds the sums to d. a is in shared
// memory, K-major. Element 0 of d holds the sums of a row, and element 2 those of the row 8 further on.
// `ones` is the address of 256 bytes of ones in shared memory.
template <class Elem>
struct WgmmaRowSums;
// d += a' b over 64 rows of a and b, both in shared memory; a has 64 columns, b N. N / 2 elements of d are
// used.
template <class Elem, int N>
struct WgmmaOuter;

#define KEPT(n, pair, acc, a, b, accumulate) WGMMA(n, pair, acc, "{" a "}", b, accumulate, ", 0")
#define OUTER(n, pair, acc, a, b) WGMMA(n, pair, acc, a, b, "1", ", 1, 1")
#define AT0_4                                                                                               \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%" \
  "28,%29,%30,%31"
#define FOUR(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define LUATTN_KEPT(pair, first)                                                                                      \
  asm volatile(                                                                                                       \
      "{.reg .b64 b1, b2, b3;\nadd.s64 b1, %48, 2;\nadd.s64 b2, %48, 4;\nadd.s64 b3, %48, 6;\n" KEPT(                 \
          64, pair, AT0_4, "%32,%33,%34,%35", "%48", first) KEPT(64, pair, AT0_4, "%36,%37,%38,%39", "b1", "1")       \
          KEPT(64, pair, AT0_4, "%40,%41,%42,%43", "b2", "1") KEPT(64, pair, AT0_4, "%44,%45,%46,%47", "b3", "1") "}" \
      : OUT_4(d)                                                                                                      \
      : FOUR(a[0]), FOUR(a[1]), FOUR(a[2]), FOUR(a[3]), "l"(b))
#define LUATTN_WGMMA_KEPT(elem, pair)                                                         \
  template <>                                                                                 \
  struct WgmmaKept<elem> {                                                                    \
    template <bool First>                                                                     \
    static __device__ __forceinline__ void dots64(float (&d)[32], const u32 (*a)[4], u64 b) { \
      if constexpr (First)                                                                    \
        LUATTN_KEPT(pair, "0");                                                               \
      else                                                                                    \
        LUATTN_KEPT(pair, "1");                                                               \
    }                                                                                         \
  };
#define LUATTN_WGMMA_FRESH(elem, pair)                                                                               \
  template <>                                                                                                        \
  struct WgmmaFresh<elem> {                                                                                          \
    static __device__ __forceinline__ void dots64(float (&d)[32], u64 a, u64 b) {                                    \
      asm volatile(                                                                                                  \
          "{.reg .b64 a1, a2, a3, b1, b2, b3;\n"                                                                     \
          "add.s64 a1, %32, 2;\nadd.s64 a2, %32, 4;\nadd.s64 a3, %32, 6;\n"                                          \
          "add.s64 b1, %33, 2;\nadd.s64 b2, %33, 4;\nadd.s64 b3, %33, 6;\n" DOTS(64, pair, AT0_4, "%32", "%33", "0") \
              DOTS(64, pair, AT0_4, "a1", "b1", "1") DOTS(64, pair, AT0_4, "a2", "b2", "1")                          \
                  DOTS(64, pair, AT0_4, "a3", "b3", "1") "}"                                                         \
          : OUT_4(d)                                                                                                 \
          : "l"(a), "l"(b));                                                                                         \
    }                                                                                                                \
  };
#define LUATTN_WGMMA_OUTER(elem, n, pair, at3, outs)                                                              \
  template <>                                                                                                     \
  struct WgmmaOuter<elem, n> {                                                                                    \
    static __device__ __forceinline__ void sums64(float (&d)[64], u64 a, u64 b) {                                 \
      u32 unused = 0;                                                                                             \
      asm volatile(                                                                                               \
          "{.reg .b64 a1, a2, a3, b1, b2, b3;\n"                                                                  \
          "add.s64 a1, %0, 128;\nadd.s64 a2, %0, 256;\nadd.s64 a3, %0, 384;\n"                                    \
          "add.s64 b1, %1, 128;\nadd.s64 b2, %1, 256;\nadd.s64 b3, %1, 384;\n" OUTER(n, pair, at3, "%0", "%1")    \
              OUTER(n, pair, at3, "a1", "b1") OUTER(n, pair, at3, "a2", "b2") OUTER(n, pair, at3, "a3", "b3") "}" \
          : "+l"(a), "+l"(b), "+r"(unused), outs(d));                                                             \
    }                                                                                                             \
  };
#define ROW_SUMS(pair, a, accumulate) WGMMA(8, pair, "%0,%1,%2,%3", a, "%5", accumulate, ", 0, 0")
#define LUATTN_ROW_SUMS(pair, first)                                                                            \
  asm volatile("{.reg .b64 a1, a2, a3;\nadd.s64 a1, %4, 2;\nadd.s64 a2, %4, 4;\nadd.s64 a3, %4, 6;\n" ROW_SUMS( \
                   pair, "%4", first) ROW_SUMS(pair, "a1", "1") ROW_SUMS(pair, "a2", "1")                       \
                   ROW_SUMS(pair, "a3", "1") "}"                                                                \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                 \
               : "l"(a), "l"(ones))
#define LUATTN_WGMMA_ROW_SUMS(elem, pair)                                           \
  template <>                                                                       \
  struct WgmmaRowSums<elem> {                                                       \
    template <bool First>                                                           \
    static __device__ __forceinline__ void sums64(float (&d)[4], u64 a, u64 ones) { \
      if constexpr (First)                                                          \
        LUATTN_ROW_SUMS(pair, "0");                                                 \
      else                                                                          \
        LUATTN_ROW_SUMS(pair, "1");                                                 \
    }                                                                               \
  };
#define LUATTN_WGMMA_WIDE(elem, pair)              \
  LUATTN_WGMMA_ROW_SUMS(elem, pair)                \
  LUATTN_WGMMA_KEPT(elem, pair)                    \
  LUATTN_WGMMA_FRESH(elem, pair)                   \
  LUATTN_WGMMA_OUTER(elem, 64, pair, AT3_4, OUT_4) \
  LUATTN_WGMMA_OUTER(elem, 128, pair, AT3_8, OUT_8)
LUATTN_WGMMA_WIDE(half_t, "f16.f16 ")
LUATTN_WGMMA_WIDE(bf16_t, "bf16.bf16 ")
