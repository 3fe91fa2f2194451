// arch/wgmma_narrow.cuh: wgmma products of few tokens: 64 rows in registers by 16 or 32 rows in shared memory over 128 channels,
// and 64 by 128 over 16 tokens.
#pragma once
#include "arch/wgmma.cuh"

template <class Elem>
struct WgmmaNarrow;

#define LUATTN_NARROW_A(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
#define LUATTN_NARROW_STEP(n, pair, acc, a, b, accumulate) WGMMA(n, pair, acc, "{" a "}", b, accumulate, ", 0")
// Descriptors of later channels of both boxes.
#define LUATTN_NARROW_CHANNELS(first, second)                                                                    \
  "{.reg .b64 b1, b2, b3, b5, b6, b7;\nadd.s64 b1, " first ", 2;\nadd.s64 b2, " first ", 4;\nadd.s64 b3, " first \
  ", 6;\nadd.s64 b5, " second ", 2;\nadd.s64 b6, " second ", 4;\nadd.s64 b7, " second ", 6;\n"
#define LUATTN_NARROW_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LUATTN_NARROW_32 LUATTN_NARROW_16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LUATTN_NARROW_128                                                                                             \
  LUATTN_NARROW_32                                                                                                    \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43," \
  "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define LUATTN_NARROW_NEW(d) \
  "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
#define LUATTN_NARROW_OPERANDS(a, first, second)                                                                     \
  LUATTN_NARROW_A(a[0]), LUATTN_NARROW_A(a[1]), LUATTN_NARROW_A(a[2]), LUATTN_NARROW_A(a[3]), LUATTN_NARROW_A(a[4]), \
      LUATTN_NARROW_A(a[5]), LUATTN_NARROW_A(a[6]), LUATTN_NARROW_A(a[7]), "l"(first), "l"(second)

#define LUATTN_WGMMA_NARROW(elem, pair)                                                                                \
  template <>                                                                                                          \
  struct WgmmaNarrow<elem> {                                                                                           \
    /* d = a b': b is 16 or 32 rows in two boxes of 64 channels, K-major */                                            \
    static __device__ __forceinline__ void dots128(float (&d)[8], const u32 (&a)[8][4], u64 first, u64 second) {       \
      asm volatile(                                                                                                    \
          LUATTN_NARROW_CHANNELS("%40", "%41")                                                                         \
              LUATTN_NARROW_STEP(16, pair, LUATTN_NARROW_16, "%8,%9,%10,%11", "%40", "0")                              \
                  LUATTN_NARROW_STEP(16, pair, LUATTN_NARROW_16, "%12,%13,%14,%15", "b1", "1")                         \
                      LUATTN_NARROW_STEP(16, pair, LUATTN_NARROW_16, "%16,%17,%18,%19", "b2", "1") LUATTN_NARROW_STEP( \
                          16, pair, LUATTN_NARROW_16, "%20,%21,%22,%23", "b3", "1")                                    \
                          LUATTN_NARROW_STEP(16, pair, LUATTN_NARROW_16, "%24,%25,%26,%27", "%41", "1")                \
                              LUATTN_NARROW_STEP(16, pair, LUATTN_NARROW_16, "%28,%29,%30,%31", "b5", "1")             \
                                  LUATTN_NARROW_STEP(16, pair, LUATTN_NARROW_16, "%32,%33,%34,%35", "b6", "1")         \
                                      LUATTN_NARROW_STEP(16, pair, LUATTN_NARROW_16, "%36,%37,%38,%39", "b7", "1") "}" \
          : LUATTN_NARROW_NEW(d)                                                                                       \
          : LUATTN_NARROW_OPERANDS(a, first, second));                                                                 \
    }                                                                                                                  \
    static __device__ __forceinline__ void dots128(float (&d)[16], const u32 (&a)[8][4], u64 first, u64 second) {      \
      asm volatile(                                                                                                    \
          LUATTN_NARROW_CHANNELS("%48", "%49")                                                                         \
              LUATTN_NARROW_STEP(32, pair, LUATTN_NARROW_32, "%16,%17,%18,%19", "%48", "0")                            \
                  LUATTN_NARROW_STEP(32, pair, LUATTN_NARROW_32, "%20,%21,%22,%23", "b1", "1")                         \
                      LUATTN_NARROW_STEP(32, pair, LUATTN_NARROW_32, "%24,%25,%26,%27", "b2", "1") LUATTN_NARROW_STEP( \
                          32, pair, LUATTN_NARROW_32, "%28,%29,%30,%31", "b3", "1")                                    \
                          LUATTN_NARROW_STEP(32, pair, LUATTN_NARROW_32, "%32,%33,%34,%35", "%49", "1")                \
                              LUATTN_NARROW_STEP(32, pair, LUATTN_NARROW_32, "%36,%37,%38,%39", "b5", "1")             \
                                  LUATTN_NARROW_STEP(32, pair, LUATTN_NARROW_32, "%40,%41,%42,%43", "b6", "1")         \
                                      LUATTN_NARROW_STEP(32, pair, LUATTN_NARROW_32, "%44,%45,%46,%47", "b7", "1") "}" \
          : LUATTN_NARROW_NEW(d), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),          \
            "=f"(d[14]), "=f"(d[15])                                                                                   \
          : LUATTN_NARROW_OPERANDS(a, first, second));                                                                 \
    }                                                                                                                  \
    /* d += a b: b is 16 rows in two boxes of 64 channels, MN-major */                                                 \
    static __device__ __forceinline__ void sums16(float (&d)[64], const u32 (&a)[4], u64 b) {                          \
      asm volatile(WGMMA(128, pair, LUATTN_NARROW_128, "{%64,%65,%66,%67}", "%68", "1", ", 1")                         \
                   : OUT_8(d)                                                                                          \
                   : LUATTN_NARROW_A(a), "l"(b));                                                                      \
    }                                                                                                                  \
  };
LUATTN_WGMMA_NARROW(half_t, "f16.f16 ")
LUATTN_WGMMA_NARROW(bf16_t, "bf16.bf16 ")
