// mma.cuh: the sm80 family's PTX (mma.sync, ldmatrix, cp.async) and the fragment layouts that go with it.
//
// Every instruction here exists from sm_80 on. Elem is half_t or bf16_t; accumulation is in f32.
//
// Fragments of mma.m16n8k16, with lane = 4 * g + t:
//   A  16 x 16 (m, k): a[0] (g, 2t) a[1] (g + 8, 2t) a[2] (g, 2t + 8) a[3] (g + 8, 2t + 8), each with its right neighbour
//   B  16 x 8  (k, n): b0 (2t, g) b1 (2t + 8, g), each with the element below it
//   C  16 x 8  (m, n): c[0] (g, 2t) c[1] (g, 2t + 1) c[2] (g + 8, 2t) c[3] (g + 8, 2t + 1)
// Two C fragments side by side are, once rounded, an A fragment: the probabilities need no trip through shared memory.
//
// SharedTile<Cols> is a tile of 16-bit elements in shared memory, rows of Cols (a multiple of 16), in chunks of 16 bytes.
// The chunks of a row are permuted so that the 8 rows that one ldmatrix reads at one chunk column lie in 8 different
// groups of banks: with G the largest power of two up to 8 that divides the chunks of a row, a row's bank group starts
// over every 8 / G rows, and chunk ^ (row / (8 / G) % G) separates the rows that would meet.
#pragma once
#include "base.cuh"

LUATTN_FN u32 shared_address(const void *p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// ---- arithmetic --------------------------------------------------------------------------------------------------------

// c += a * b. b0 and b1 are the two halves of a B fragment.
template <class Elem> LUATTN_FN void mma_16x8x16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  static_assert(same_type<Elem, half_t>::value || same_type<Elem, bf16_t>::value, "mma operands are f16 or bf16");
  if constexpr (same_type<Elem, half_t>::value) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two floats rounded to nearest; `lo` takes the lower half.
template <class Elem> LUATTN_FN u32 pack(float lo, float hi) {
  u32 x;
  if constexpr (same_type<Elem, half_t>::value) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
  return x;
}

// C fragments of columns n and n + 8 as the A fragment of a product that sums over these columns.
template <class Elem> LUATTN_FN void a_from_c(u32 (&a)[4], const float (&left)[4], const float (&right)[4]) {
#define LUATTN_PACK_4(type) \
  asm("cvt.rn." type "x2.f32 %0, %5, %4; cvt.rn." type "x2.f32 %1, %7, %6;" \
      "cvt.rn." type "x2.f32 %2, %9, %8; cvt.rn." type "x2.f32 %3, %11, %10;" \
      : "=&r"(a[0]), "=&r"(a[1]), "=&r"(a[2]), "=&r"(a[3]) \
      : "f"(left[0]), "f"(left[1]), "f"(left[2]), "f"(left[3]), "f"(right[0]), "f"(right[1]), "f"(right[2]), "f"(right[3]))
  if constexpr (same_type<Elem, half_t>::value) LUATTN_PACK_4("f16");
  else LUATTN_PACK_4("bf16");
#undef LUATTN_PACK_4
}

// ---- shared memory to fragments ----------------------------------------------------------------------------------------

LUATTN_FN void ldmatrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
LUATTN_FN void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// c[f][2n], c[f][2n + 1] += a[f] * B for Frags fragments of rows, where ldmatrix.x4 at `address` (with .trans: Trans) gives
// the B of 16 columns. One asm statement for all of it: what NVVM costs is statements, and ptxas schedules the
// instructions in either case.
#define LUATTN_B_BEGIN(trans) \
  "{.reg .b32 b0, b1, b2, b3; ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {b0, b1, b2, b3}, "
#define LUATTN_MMA(type, c0, c1, c2, c3, a, b) \
  "mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {" c0 "," c1 "," c2 "," c3 "}, {" a "}, {" b \
  "}, {" c0 "," c1 "," c2 "," c3 "};"
#define LUATTN_MMA_PAIR(type, c0, c1, c2, c3, c4, c5, c6, c7, a) \
  LUATTN_MMA(type, c0, c1, c2, c3, a, "b0,b1") LUATTN_MMA(type, c4, c5, c6, c7, a, "b2,b3")
#define LUATTN_C(x, y) \
  "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]), "+f"(y[0]), "+f"(y[1]), "+f"(y[2]), "+f"(y[3])
#define LUATTN_A(x) "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
#define LUATTN_MULTIPLY_1(trans, type) \
  asm volatile(LUATTN_B_BEGIN(trans) "[%12];" \
               LUATTN_MMA_PAIR(type, "%0", "%1", "%2", "%3", "%4", "%5", "%6", "%7", "%8,%9,%10,%11") "}" \
               : LUATTN_C(c[f][2 * n], c[f][2 * n + 1]) : LUATTN_A(a[f]), "r"(address) : "memory")
#define LUATTN_MULTIPLY_2(trans, type) \
  asm volatile(LUATTN_B_BEGIN(trans) "[%24];" \
               LUATTN_MMA_PAIR(type, "%0", "%1", "%2", "%3", "%4", "%5", "%6", "%7", "%16,%17,%18,%19") \
               LUATTN_MMA_PAIR(type, "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15", "%20,%21,%22,%23") "}" \
               : LUATTN_C(c[f][2 * n], c[f][2 * n + 1]), LUATTN_C(c[f + 1][2 * n], c[f + 1][2 * n + 1]) \
               : LUATTN_A(a[f]), LUATTN_A(a[f + 1]), "r"(address) : "memory")

template <class Elem, bool Trans, int Frags, int Octets>
LUATTN_FN void multiply_b(float (&c)[Frags][Octets][4], int n, const u32 (&a)[Frags][4], u32 address) {
  constexpr bool half = same_type<Elem, half_t>::value;
  if constexpr (Frags == 2) {
    constexpr int f = 0;
    if constexpr (half && Trans) LUATTN_MULTIPLY_2(".trans", "f16");
    else if constexpr (half) LUATTN_MULTIPLY_2("", "f16");
    else if constexpr (Trans) LUATTN_MULTIPLY_2(".trans", "bf16");
    else LUATTN_MULTIPLY_2("", "bf16");
  } else if constexpr (Frags == 1) {
    constexpr int f = 0;
    if constexpr (half && Trans) LUATTN_MULTIPLY_1(".trans", "f16");
    else if constexpr (half) LUATTN_MULTIPLY_1("", "f16");
    else if constexpr (Trans) LUATTN_MULTIPLY_1(".trans", "bf16");
    else LUATTN_MULTIPLY_1("", "bf16");
  } else {
    u32 b[4];
    if constexpr (Trans) ldmatrix_x4_trans(b, address);
    else ldmatrix_x4(b, address);
#pragma unroll
    for (int f = 0; f < Frags; ++f) {
      mma_16x8x16<Elem>(c[f][2 * n], a[f], b[0], b[1]);
      mma_16x8x16<Elem>(c[f][2 * n + 1], a[f], b[2], b[3]);
    }
  }
}

#undef LUATTN_B_BEGIN
#undef LUATTN_MMA
#undef LUATTN_MMA_PAIR
#undef LUATTN_C
#undef LUATTN_A
#undef LUATTN_MULTIPLY_1
#undef LUATTN_MULTIPLY_2

template <int Cols_> struct SharedTile {
  static constexpr int Cols = Cols_;
  static_assert(Cols % 16 == 0, "rows of a shared tile are padded to a multiple of 16 elements");
  static constexpr int chunks = Cols / 8;
  static constexpr int group = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : 2;

  LUATTN_FN constexpr int bytes(int rows) { return rows * Cols * 2; }
  LUATTN_FN u32 swizzle(u32 row) { return row / (8 / group) % group; }
  LUATTN_FN u32 offset(u32 row, u32 chunk) { return (row * chunks + (chunk ^ swizzle(row))) * 16; }
};

// Where a lane points ldmatrix.x4 at the 16 x 16 block at (row0, col0) of a tile; row0 a multiple of 8, col0 of 16.
//   Straight: an A fragment from a tile stored (m, k), ldmatrix_x4;
//             with trans, the B fragments {b0, b1} of columns n .. n + 7 in r[0], r[1] and of n + 8 .. n + 15 in r[2], r[3]
//             from a tile stored (k, n).
//   Crossed:  the same B fragments from a tile stored (n, k), ldmatrix_x4;
//             with trans, an A fragment from a tile stored (k, m).
// Only the xor depends on the lane and the column, so that an unrolled loop needs Cols / 16 (at most 4) addresses and
// immediate offsets.
template <int Cols, bool Crossed> struct LanePointer {
  using Tile = SharedTile<Cols>;
  u32 row_bytes, chunk; // this lane's row, and its chunk with the row's permutation

  __device__ __forceinline__ explicit LanePointer(u32 lane) {
    const u32 row = Crossed ? (lane & 7) + ((lane >> 4) << 3) : lane & 15;
    row_bytes = row * (Tile::chunks * 16);
    chunk = (Crossed ? (lane >> 3) & 1 : lane >> 4) ^ Tile::swizzle(row);
  }
  __device__ __forceinline__ u32 at(u32 tile, u32 row0, u32 col0) const {
    constexpr u32 low = Tile::group - 1;
    const u32 permuted = ((col0 / 8 & low) ^ chunk) * 16;
    return tile + row_bytes + permuted + (row0 * Tile::chunks + (col0 / 8 & ~low)) * 16;
  }
};

// Writes an A fragment, or what a_from_c makes, to the 16 x 16 block at (row0, col0) of a tile stored (m, k).
template <int Cols> LUATTN_FN void store_a(u32 tile, u32 row0, u32 col0, const u32 (&a)[4], u32 lane) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
               :: "r"(LanePointer<Cols, false>(lane).at(tile, row0, col0)), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
#else
  const u32 left = tile + SharedTile<Cols>::offset(row0 + lane / 4, col0 / 8) + lane % 4 * 4;
  constexpr int below = 8 * Cols * 2; // 8 rows down, where the permutation is the same; ^ 16 is the next chunk
  asm volatile("st.shared.b32 [%0], %2; st.shared.b32 [%0 + %6], %3; st.shared.b32 [%1], %4; st.shared.b32 [%1 + %6], %5;"
               :: "r"(left), "r"(left ^ 16), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "n"(below) : "memory");
#endif
}

// ---- global to shared memory -------------------------------------------------------------------------------------------

// 16 bytes; zeros, with `source` untouched, where !valid. Both addresses are multiples of 16.
LUATTN_FN void cp_async_16(u32 destination, const void *source, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(destination), "l"(__cvta_generic_to_global(source)), "r"(valid ? 16 : 0) : "memory");
}
LUATTN_FN void cp_async_16(u32 destination, const void *source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
               :: "r"(destination), "l"(__cvta_generic_to_global(source)) : "memory");
}
// 4 bytes; both addresses are multiples of 4.
LUATTN_FN void cp_async_4(u32 destination, const void *source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
               :: "r"(destination), "l"(__cvta_generic_to_global(source)) : "memory");
}
LUATTN_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `Pending` of this thread's youngest groups are still under way.
template <int Pending> LUATTN_FN void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(Pending) : "memory"); }

// Registers and shared memory, 4 and 16 bytes.
LUATTN_FN void store_shared(u32 address, u32 x) { asm volatile("st.shared.b32 [%0], %1;" :: "r"(address), "r"(x) : "memory"); }
LUATTN_FN uint4 load_shared_16(u32 address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}

// x, but the compiler cannot know: what is computed from it is computed again rather than kept in registers.
LUATTN_FN int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// ---- several warps -----------------------------------------------------------------------------------------------------

// A barrier among `threads` threads (whole warps). `id` 1 .. 15; 0 is __syncthreads.
LUATTN_FN void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }

// Adds two neighbours in global memory atomically, each by itself; p is a multiple of 8 bytes.
LUATTN_FN void add_global_2(float *p, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" :: "l"(__cvta_generic_to_global(p)), "f"(x), "f"(y) : "memory");
#else
  atomicAdd(p, x);
  atomicAdd(p + 1, y);
#endif
}

// Adds 4 floats a lane to 128 contiguous floats in global memory, each atomically: slot group_slot(lane, i) for x[i]. The slots are
// such that one instruction of a warp touches few lines: what an atomic add costs a multiprocessor is lines, not bytes.
LUATTN_FN int group_slot(int lane, int i) {
#if __CUDA_ARCH__ >= 900
  return lane * 4 + i;
#else
  return i * 32 + lane;
#endif
}
#if __CUDA_ARCH__ >= 900
static constexpr int group_stride = 4; // from a lane's first slot to that of the next lane
#else
static constexpr int group_stride = 1;
#endif
// Adds to the slots of a group, whose first one of this lane is `group`, where in_group; and where in_row x0, x1 to `row` and
// x2, x3 to row + 8. One statement without a branch: the second case is rare.
LUATTN_FN void add_global_either(bool in_group, float *group, bool in_row, float *row, float x0, float x1, float x2, float x3) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{.reg .pred g, r; setp.ne.b32 g, %6, 0; setp.ne.b32 r, %7, 0;"
               "@g red.global.add.v4.f32 [%4], {%0, %1, %2, %3};"
               "@r red.global.add.v2.f32 [%5], {%0, %1}; @r red.global.add.v2.f32 [%5 + 32], {%2, %3};}"
               :: "f"(x0), "f"(x1), "f"(x2), "f"(x3), "l"(__cvta_generic_to_global(group)),
                  "l"(__cvta_generic_to_global(row)), "r"(int(in_group)), "r"(int(in_row)) : "memory");
#else
  asm volatile("{.reg .pred g, r; setp.ne.b32 g, %6, 0; setp.ne.b32 r, %7, 0;"
               "@g red.global.add.f32 [%4], %0; @g red.global.add.f32 [%4 + 128], %1;"
               "@g red.global.add.f32 [%4 + 256], %2; @g red.global.add.f32 [%4 + 384], %3;"
               "@r red.global.add.f32 [%5], %0; @r red.global.add.f32 [%5 + 4], %1;"
               "@r red.global.add.f32 [%5 + 32], %2; @r red.global.add.f32 [%5 + 36], %3;}"
               :: "f"(x0), "f"(x1), "f"(x2), "f"(x3), "l"(__cvta_generic_to_global(group)),
                  "l"(__cvta_generic_to_global(row)), "r"(int(in_group)), "r"(int(in_row)) : "memory");
#endif
}
