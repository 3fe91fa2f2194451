// arch/wgmma.cuh: the sm90 family's wgmma products, as PTX. sm_90a only.
//
// A warpgroup (4 warps, 128 threads) multiplies 64 rows by N columns over 16 channels at a time. Warp w owns
// rows 16 w to 16 w + 15 of the result. The thread of lane 4 g + t holds d[i], for i from 0 to N / 2 - 1:
//     row 16 w + g + 8 * (i / 2 % 2), column i / 4 * 8 + 2 t + i % 2
// An A operand in registers is laid out as in mma.m16n8k16 (arch/mma.cuh). So two adjacent groups of 8
// columns of an accumulator, once rounded, are the A operand of a product that sums over these 16 columns.
//
// Operands in shared memory are tiles as TMA writes them with a 128-byte swizzle: boxes of rows x 64
// elements, one after another, each at a multiple of 1024 bytes. A descriptor counts in units of 16 bytes: 16
// channels further is + 2, 16 rows further + 128. PTX ISA, "Matrix descriptor format" of wgmma.
#pragma once
#include "arch/types.cuh"

// wgmma runs asynchronously on registers until it has been waited for. fence comes before the first product,
// after other instructions have written registers that products read or add to. commit closes a group of
// products; wait<N> waits until at most N of the latest groups are in flight.
LUATTN_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LUATTN_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
LUATTN_FN void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The matrix descriptor of an operand in shared memory at `address`, a multiple of 16 bytes. `across` is the
// distance in bytes from one box to the next; it matters only where the operand is MN-major (V in P V).
LUATTN_FN u64 wgmma_operand(u32 address, u32 across) {
  constexpr u64 swizzle_128 = 1ull << 62, eight_rows = 1024 >> 4;
  return swizzle_128 | eight_rows << 32 | u64(across >> 4) << 16 | u64(address >> 4);
}

template <class Elem, int N>
struct Wgmma;

// One wgmma instruction. An asm statement has one or four of them, with all of their descriptors before the
// first. ptxas keeps that order; otherwise it would let the tensor cores wait for the next descriptor. One
// statement also compiles faster.
#define WGMMA(n, pair, acc, a, b, accumulate, transposed)                                                           \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." pair "{" acc "}, " a ", " b ", " accumulate ", 1, 1" transposed \
  ";\n"
#define DOTS(n, pair, acc, a, b, accumulate) WGMMA(n, pair, acc, a, b, accumulate, ", 0, 0")
#define SUMS(n, pair, acc, a, b) WGMMA(n, pair, acc, "{" a "}", b, "1", ", 1")
#define TURNED(n, pair, acc, a, b, accumulate) WGMMA(n, pair, acc, a, b, accumulate, ", 0, 1")

// Descriptors of later channels, and products with them.
#define DOTS_AT(i, a, b) "add.s64 a" i ", %0, " a ";\nadd.s64 b" i ", %1, " b ";\n"
#define DOTS_MORE(n, pair, acc, i) DOTS(n, pair, acc, "a" i, "b" i, "1")
#define DOTS_FOUR(n, pair, acc, i, j, k) \
  DOTS(n, pair, acc, "%0", "%1", "0")    \
  DOTS_MORE(n, pair, acc, i) DOTS_MORE(n, pair, acc, j) DOTS_MORE(n, pair, acc, k)

// Operands that are not accumulators come first, so that their numbers are the same for every N. They are
// "+", although they are not written, because inputs would have to come last.
#define LUATTN_WGMMA(elem, n, pair, at3, at17, outs, results)                                                        \
  template <>                                                                                                        \
  struct Wgmma<elem, n> {                                                                                            \
    /* d = a b' + (add ? d : 0) over 16 or 64 channels; both K-major */                                              \
    static __device__ __forceinline__ void dots16(float (&d)[n / 2], u64 a, u64 b, int add) {                        \
      asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n" DOTS(n, pair, at3, "%0", "%1", "p") "}"                 \
                   : "+l"(a), "+l"(b), "+r"(add), outs(d));                                                          \
    }                                                                                                                \
    static __device__ __forceinline__ void dots64(float (&d)[n / 2], u64 a, u64 b, int add) {                        \
      asm volatile(                                                                                                  \
          "{.reg .pred p;\n.reg .b64 a1, a2, a3, b1, b2, b3;\nsetp.ne.b32 p, %2, 0;\n"                               \
          "add.s64 a1, %0, 2;\nadd.s64 a2, %0, 4;\nadd.s64 a3, %0, 6;\n"                                             \
          "add.s64 b1, %1, 2;\nadd.s64 b2, %1, 4;\nadd.s64 b3, %1, 6;\n" DOTS(n, pair, at3, "%0", "%1", "p")         \
              DOTS(n, pair, at3, "a1", "b1", "1") DOTS(n, pair, at3, "a2", "b2", "1")                                \
                  DOTS(n, pair, at3, "a3", "b3", "1") "}"                                                            \
          : "+l"(a), "+l"(b), "+r"(add), outs(d));                                                                   \
    }                                                                                                                \
    /* The same over 64 or 128 channels, returning new values, which compiles faster */                              \
    static __device__ __forceinline__ void first64(float (&d)[n / 2], u64 a, u64 b, int none = 0) {                  \
      asm volatile("{.reg .b64 a1, a2, a3, b1, b2, b3;\n" DOTS_AT("1", "2", "2") DOTS_AT("2", "4", "4")              \
                       DOTS_AT("3", "6", "6") DOTS_FOUR(n, pair, at3, "1", "2", "3") "}"                             \
                   : "+l"(a), "+l"(b), "+r"(none), results(d));                                                      \
    }                                                                                                                \
    static __device__ __forceinline__ void first128(float (&d)[n / 2], u64 a, u64 b, int none = 0) {                 \
      asm volatile("{.reg .b64 a1, a2, a3, a4, a5, a6, a7, b1, b2, b3, b4, b5, b6, b7;\n" DOTS_AT("1", "2", "2")     \
                       DOTS_AT("2", "4", "4") DOTS_AT("3", "6", "6") DOTS_AT("4", "512", #n "*8")                    \
                           DOTS_AT("5", "514", #n "*8+2") DOTS_AT("6", "516", #n "*8+4")                             \
                               DOTS_AT("7", "518", #n "*8+6") DOTS_FOUR(n, pair, at3, "1", "2", "3")                 \
                                   DOTS_MORE(n, pair, at3, "4") DOTS_MORE(n, pair, at3, "5")                         \
                                       DOTS_MORE(n, pair, at3, "6") DOTS_MORE(n, pair, at3, "7") "}"                 \
                   : "+l"(a), "+l"(b), "+r"(none), results(d));                                                      \
    }                                                                                                                \
    /* d = a b + (add ? d : 0) over 64 columns of a and rows of b */                                                 \
    static __device__ __forceinline__ void turned64(float (&d)[n / 2], u64 a, u64 b, int add) {                      \
      asm volatile(                                                                                                  \
          "{.reg .pred p;\n.reg .b64 a1, a2, a3, b1, b2, b3;\nsetp.ne.b32 p, %2, 0;\n"                               \
          "add.s64 a1, %0, 2;\nadd.s64 a2, %0, 4;\nadd.s64 a3, %0, 6;\n"                                             \
          "add.s64 b1, %1, 128;\nadd.s64 b2, %1, 256;\nadd.s64 b3, %1, 384;\n" TURNED(n, pair, at3, "%0", "%1", "p") \
              TURNED(n, pair, at3, "a1", "b1", "1") TURNED(n, pair, at3, "a2", "b2", "1")                            \
                  TURNED(n, pair, at3, "a3", "b3", "1") "}"                                                          \
          : "+l"(a), "+l"(b), "+r"(add), outs(d));                                                                   \
    }                                                                                                                \
    /* d += a b over 64 rows of b; a in registers */                                                                 \
    static __device__ __forceinline__ void sums64(float (&d)[n / 2], u32 (&a)[4], u32 (&e)[4], u32 (&f)[4],          \
                                                  u32 (&g)[4], u64 b) {                                              \
      asm volatile(                                                                                                  \
          "{.reg .b64 b1, b2, b3;\n"                                                                                 \
          "add.s64 b1, %16, 128;\nadd.s64 b2, %16, 256;\nadd.s64 b3, %16, 384;\n" SUMS(                              \
              n, pair, at17, "%0,%1,%2,%3", "%16") SUMS(n, pair, at17, "%4,%5,%6,%7", "b1")                          \
              SUMS(n, pair, at17, "%8,%9,%10,%11", "b2") SUMS(n, pair, at17, "%12,%13,%14,%15", "b3") "}"            \
          : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]), "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3]),          \
            "+r"(f[0]), "+r"(f[1]), "+r"(f[2]), "+r"(f[3]), "+r"(g[0]), "+r"(g[1]), "+r"(g[2]), "+r"(g[3]), "+l"(b), \
            outs(d));                                                                                                \
    }                                                                                                                \
  };

// Accumulators in groups of 8: as asm text that begins with operand 3 or 17, and as operands.
#define AT3_1 "%3,%4,%5,%6,%7,%8,%9,%10"
#define AT3_2 \
  AT3_1       \
  ","         \
  "%11,%12,%13,%14,%15,%16,%17,%18"
#define AT3_3 \
  AT3_2       \
  ","         \
  "%19,%20,%21,%22,%23,%24,%25,%26"
#define AT3_4 \
  AT3_3       \
  ","         \
  "%27,%28,%29,%30,%31,%32,%33,%34"
#define AT3_5 \
  AT3_4       \
  ","         \
  "%35,%36,%37,%38,%39,%40,%41,%42"
#define AT3_6 \
  AT3_5       \
  ","         \
  "%43,%44,%45,%46,%47,%48,%49,%50"
#define AT3_7 \
  AT3_6       \
  ","         \
  "%51,%52,%53,%54,%55,%56,%57,%58"
#define AT3_8 \
  AT3_7       \
  ","         \
  "%59,%60,%61,%62,%63,%64,%65,%66"
#define AT3_9 \
  AT3_8       \
  ","         \
  "%67,%68,%69,%70,%71,%72,%73,%74"
#define AT3_10 \
  AT3_9        \
  ","          \
  "%75,%76,%77,%78,%79,%80,%81,%82"
#define AT3_11 \
  AT3_10       \
  ","          \
  "%83,%84,%85,%86,%87,%88,%89,%90"
#define AT3_12 \
  AT3_11       \
  ","          \
  "%91,%92,%93,%94,%95,%96,%97,%98"
#define AT3_13 \
  AT3_12       \
  ","          \
  "%99,%100,%101,%102,%103,%104,%105,%106"
#define AT3_14 \
  AT3_13       \
  ","          \
  "%107,%108,%109,%110,%111,%112,%113,%114"
#define AT3_15 \
  AT3_14       \
  ","          \
  "%115,%116,%117,%118,%119,%120,%121,%122"
#define AT3_16 \
  AT3_15       \
  ","          \
  "%123,%124,%125,%126,%127,%128,%129,%130"
#define AT17_1 "%17,%18,%19,%20,%21,%22,%23,%24"
#define AT17_2 \
  AT17_1       \
  ","          \
  "%25,%26,%27,%28,%29,%30,%31,%32"
#define AT17_3 \
  AT17_2       \
  ","          \
  "%33,%34,%35,%36,%37,%38,%39,%40"
#define AT17_4 \
  AT17_3       \
  ","          \
  "%41,%42,%43,%44,%45,%46,%47,%48"
#define AT17_5 \
  AT17_4       \
  ","          \
  "%49,%50,%51,%52,%53,%54,%55,%56"
#define AT17_6 \
  AT17_5       \
  ","          \
  "%57,%58,%59,%60,%61,%62,%63,%64"
#define AT17_7 \
  AT17_6       \
  ","          \
  "%65,%66,%67,%68,%69,%70,%71,%72"
#define AT17_8 \
  AT17_7       \
  ","          \
  "%73,%74,%75,%76,%77,%78,%79,%80"
#define AT17_9 \
  AT17_8       \
  ","          \
  "%81,%82,%83,%84,%85,%86,%87,%88"
#define AT17_10 \
  AT17_9        \
  ","           \
  "%89,%90,%91,%92,%93,%94,%95,%96"
#define AT17_11 \
  AT17_10       \
  ","           \
  "%97,%98,%99,%100,%101,%102,%103,%104"
#define AT17_12 \
  AT17_11       \
  ","           \
  "%105,%106,%107,%108,%109,%110,%111,%112"
#define AT17_13 \
  AT17_12       \
  ","           \
  "%113,%114,%115,%116,%117,%118,%119,%120"
#define AT17_14 \
  AT17_13       \
  ","           \
  "%121,%122,%123,%124,%125,%126,%127,%128"
#define AT17_15 \
  AT17_14       \
  ","           \
  "%129,%130,%131,%132,%133,%134,%135,%136"
#define AT17_16 \
  AT17_15       \
  ","           \
  "%137,%138,%139,%140,%141,%142,%143,%144"
#define EIGHT(d, i)                                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define NEW_8(d, i)                                                                                           \
  "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]), "=f"(d[i + 6]), \
      "=f"(d[i + 7])
#define RESULTS_1(d) NEW_8(d, 0)
#define RESULTS_2(d) RESULTS_1(d), NEW_8(d, 8)
#define RESULTS_3(d) RESULTS_2(d), NEW_8(d, 16)
#define RESULTS_4(d) RESULTS_3(d), NEW_8(d, 24)
#define RESULTS_5(d) RESULTS_4(d), NEW_8(d, 32)
#define RESULTS_6(d) RESULTS_5(d), NEW_8(d, 40)
#define RESULTS_7(d) RESULTS_6(d), NEW_8(d, 48)
#define RESULTS_8(d) RESULTS_7(d), NEW_8(d, 56)
#define RESULTS_9(d) RESULTS_8(d), NEW_8(d, 64)
#define RESULTS_10(d) RESULTS_9(d), NEW_8(d, 72)
#define RESULTS_11(d) RESULTS_10(d), NEW_8(d, 80)
#define RESULTS_12(d) RESULTS_11(d), NEW_8(d, 88)
#define RESULTS_13(d) RESULTS_12(d), NEW_8(d, 96)
#define RESULTS_14(d) RESULTS_13(d), NEW_8(d, 104)
#define RESULTS_15(d) RESULTS_14(d), NEW_8(d, 112)
#define RESULTS_16(d) RESULTS_15(d), NEW_8(d, 120)
#define OUT_1(d) EIGHT(d, 0)
#define OUT_2(d) OUT_1(d), EIGHT(d, 8)
#define OUT_3(d) OUT_2(d), EIGHT(d, 16)
#define OUT_4(d) OUT_3(d), EIGHT(d, 24)
#define OUT_5(d) OUT_4(d), EIGHT(d, 32)
#define OUT_6(d) OUT_5(d), EIGHT(d, 40)
#define OUT_7(d) OUT_6(d), EIGHT(d, 48)
#define OUT_8(d) OUT_7(d), EIGHT(d, 56)
#define OUT_9(d) OUT_8(d), EIGHT(d, 64)
#define OUT_10(d) OUT_9(d), EIGHT(d, 72)
#define OUT_11(d) OUT_10(d), EIGHT(d, 80)
#define OUT_12(d) OUT_11(d), EIGHT(d, 88)
#define OUT_13(d) OUT_12(d), EIGHT(d, 96)
#define OUT_14(d) OUT_13(d), EIGHT(d, 104)
#define OUT_15(d) OUT_14(d), EIGHT(d, 112)
#define OUT_16(d) OUT_15(d), EIGHT(d, 120)
#define LUATTN_WGMMA_BOTH(n, g)                                                \
  LUATTN_WGMMA(half_t, n, "f16.f16 ", AT3_##g, AT17_##g, OUT_##g, RESULTS_##g) \
  LUATTN_WGMMA(bf16_t, n, "bf16.bf16 ", AT3_##g, AT17_##g, OUT_##g, RESULTS_##g)
// Bit i enables width 16 (i + 1). If config.cuh names no widths, all are defined. Reading one width takes the
// compiler 2 ms.
#ifndef LUATTN_WGMMA_WIDTHS
#define LUATTN_WGMMA_WIDTHS 0xffff
#endif
#if LUATTN_WGMMA_WIDTHS >> 0 & 1
LUATTN_WGMMA_BOTH(16, 1)
#endif
#if LUATTN_WGMMA_WIDTHS >> 1 & 1
LUATTN_WGMMA_BOTH(32, 2)
#endif
#if LUATTN_WGMMA_WIDTHS >> 2 & 1
LUATTN_WGMMA_BOTH(48, 3)
#endif
#if LUATTN_WGMMA_WIDTHS >> 3 & 1
LUATTN_WGMMA_BOTH(64, 4)
#endif
#if LUATTN_WGMMA_WIDTHS >> 4 & 1
LUATTN_WGMMA_BOTH(80, 5)
#endif
#if LUATTN_WGMMA_WIDTHS >> 5 & 1
LUATTN_WGMMA_BOTH(96, 6)
#endif
#if LUATTN_WGMMA_WIDTHS >> 6 & 1
LUATTN_WGMMA_BOTH(112, 7)
#endif
#if LUATTN_WGMMA_WIDTHS >> 7 & 1
LUATTN_WGMMA_BOTH(128, 8)
#endif
#if LUATTN_WGMMA_WIDTHS >> 8 & 1
LUATTN_WGMMA_BOTH(144, 9)
#endif
#if LUATTN_WGMMA_WIDTHS >> 9 & 1
LUATTN_WGMMA_BOTH(160, 10)
#endif
#if LUATTN_WGMMA_WIDTHS >> 10 & 1
LUATTN_WGMMA_BOTH(176, 11)
#endif
#if LUATTN_WGMMA_WIDTHS >> 11 & 1
LUATTN_WGMMA_BOTH(192, 12)
#endif
#if LUATTN_WGMMA_WIDTHS >> 12 & 1
LUATTN_WGMMA_BOTH(208, 13)
#endif
#if LUATTN_WGMMA_WIDTHS >> 13 & 1
LUATTN_WGMMA_BOTH(224, 14)
#endif
#if LUATTN_WGMMA_WIDTHS >> 14 & 1
LUATTN_WGMMA_BOTH(240, 15)
#endif
#if LUATTN_WGMMA_WIDTHS >> 15 & 1
LUATTN_WGMMA_BOTH(256, 16)
#endif

// Keeps reads of a product's registers after the preceding wait for that product.
template <int N>
LUATTN_FN void wgmma_arrived(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// Transposes a result, rounded in pairs, among four lanes that hold two columns of every 8: lane t gets all 8
// columns of group t, 16 bytes to store at once.
LUATTN_FN void gather_columns(u32 (&w)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool high = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const u32 other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i | bit], bit);
      w[i] = high ? other : w[i];
      w[i | bit] = high ? w[i | bit] : other;
    }
  }
}
// The first of a lane's 8 columns then, of 32.
LUATTN_FN int gathered_column(int lane) { return lane % 4 * 8; }
