// arch/mma.cuh: the sm80 family's PTX (mma.sync, ldmatrix, cp.async) and the fragment layouts that go with
// it.
//
// Every instruction here exists from sm_80 on. Elem is half_t or bf16_t; accumulation is in f32.
//
// Fragments of mma.m16n8k16, with lane = 4 * g + t:
//   A  16 x 16 (m, k): a[0] (g, 2t) a[1] (g + 8, 2t) a[2] (g, 2t + 8) a[3] (g + 8, 2t + 8), each a k pair
//   B  16 x 8  (k, n): b0 (2t, g) b1 (2t + 8, g), each a k pair
//   C  16 x 8  (m, n): c[0] (g, 2t) c[1] (g, 2t + 1) c[2] (g + 8, 2t) c[3] (g + 8, 2t + 1)
// Two adjacent C fragments, once rounded, are an A fragment: P needs no round trip through shared memory.
//
// SharedTile<Cols> is a tile of 16-bit elements in shared memory, rows of Cols (a multiple of 16), in chunks
// of 16 bytes. The chunks of a row are swizzled so that the 8 rows that one ldmatrix reads at one chunk
// column lie in 8 different bank groups: with G the largest power of two up to 8 that divides the chunks of a
// row, a row's bank group repeats every 8 / G rows, and chunk ^ (row / (8 / G) % G) separates the rows that
// would conflict.
#pragma once
#include "arch/types.cuh"

LUATTN_FN u32 shared_address(const void *p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// ---- arithmetic -------------------------------------------------------------------------------------------

// c += a * b. b0 and b1 are the two halves of a B fragment.
template <class Elem>
LUATTN_FN void mma_16x8x16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  static_assert(same_type<Elem, half_t>::value || same_type<Elem, bf16_t>::value, "mma operands are f16 or bf16");
  if constexpr (same_type<Elem, half_t>::value) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The same over k = 8; a[0], a[1] and b are the first halves of the fragments.
template <class Elem>
LUATTN_FN void mma_16x8x8(float *c, const u32 (&a)[2], u32 b) {
  if constexpr (same_type<Elem, half_t>::value) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
}

// c[i][n] and c[i][n + 1] += a[i] * b, with the B fragments of 16 columns as ldmatrix_x4 returns them. Two
// rows of fragments are one asm statement: the compiler takes time for each operand, and they share b.
#define LUATTN_MMA(TYPE, C, A, B) \
  "mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {" C "}, {" A "}, {" B "}, {" C "};\n"
#define LUATTN_MMA_4(TYPE)                                                                                    \
  asm(LUATTN_MMA(TYPE, "%0,%1,%2,%3", "%16,%17,%18,%19", "%24,%25")                                           \
          LUATTN_MMA(TYPE, "%4,%5,%6,%7", "%16,%17,%18,%19", "%26,%27")                                       \
              LUATTN_MMA(TYPE, "%8,%9,%10,%11", "%20,%21,%22,%23", "%24,%25")                                 \
                  LUATTN_MMA(TYPE, "%12,%13,%14,%15", "%20,%21,%22,%23", "%26,%27")                           \
      : "+f"(c[0][n][0]), "+f"(c[0][n][1]), "+f"(c[0][n][2]), "+f"(c[0][n][3]), "+f"(c[0][n + 1][0]),         \
        "+f"(c[0][n + 1][1]), "+f"(c[0][n + 1][2]), "+f"(c[0][n + 1][3]), "+f"(c[1][n][0]), "+f"(c[1][n][1]), \
        "+f"(c[1][n][2]), "+f"(c[1][n][3]), "+f"(c[1][n + 1][0]), "+f"(c[1][n + 1][1]), "+f"(c[1][n + 1][2]), \
        "+f"(c[1][n + 1][3])                                                                                  \
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]),     \
        "r"(a[1][3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]))
template <class Elem, int M, int N>
LUATTN_FN void mma_16_columns(float (&c)[M][N][4], int n, const u32 (&a)[M][4], const u32 (&b)[4]) {
  if constexpr (M == 1) {
    mma_16x8x16<Elem>(c[0][n], a[0], b[0], b[1]);
    mma_16x8x16<Elem>(c[0][n + 1], a[0], b[2], b[3]);
  } else if constexpr (same_type<Elem, half_t>::value) {
    LUATTN_MMA_4("f16");
  } else {
    LUATTN_MMA_4("bf16");
  }
}
#undef LUATTN_MMA_4
#undef LUATTN_MMA

// Rounds two floats to nearest; `lo` becomes the lower half.
template <class Elem>
LUATTN_FN u32 pack(float lo, float hi) {
  u32 x;
  if constexpr (same_type<Elem, half_t>::value)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
  return x;
}
// The first or the second of them again.
template <class Elem>
LUATTN_FN float half_of(u32 two, int which) {
  return to_real(Elem{u16(which == 0 ? two : two >> 16)});
}

// Replaces by `gone` the x_i whose bit i is not set. One asm statement, because the compiler takes time for
// each.
LUATTN_FN void keep_4(float &x0, float &x1, float &x2, float &x3, u32 bits, float gone) {
  asm("{ .reg .pred p0, p1, p2, p3; .reg .b32 b0, b1, b2, b3;\n"
      "and.b32 b0, %4, 1; and.b32 b1, %4, 2; and.b32 b2, %4, 4; and.b32 b3, %4, 8;\n"
      "setp.ne.u32 p0, b0, 0; setp.ne.u32 p1, b1, 0; setp.ne.u32 p2, b2, 0; setp.ne.u32 p3, b3, 0;\n"
      "selp.f32 %0, %0, %5, p0; selp.f32 %1, %1, %5, p1; selp.f32 %2, %2, %5, p2; selp.f32 %3, %3, %5, p3; }"
      : "+f"(x0), "+f"(x1), "+f"(x2), "+f"(x3)
      : "r"(bits), "f"(gone));
}

// ---- shared memory to fragments ---------------------------------------------------------------------------

LUATTN_FN void ldmatrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
LUATTN_FN void ldmatrix_x4_turned(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

template <int Cols_>
struct SharedTile {
  static constexpr int Cols = Cols_;
  static_assert(Cols % 16 == 0, "rows of a shared tile are padded to a multiple of 16 elements");
  static constexpr int chunks = Cols / 8;
  static constexpr int group = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : 2;

  LUATTN_FN constexpr int bytes(int rows) { return rows * Cols * 2; }
  LUATTN_FN u32 swizzle(u32 row) { return row / (8 / group) % group; }
  LUATTN_FN u32 offset(u32 row, u32 chunk) { return (row * chunks + (chunk ^ swizzle(row))) * 16; }
};

// A lane's ldmatrix.x4 address for the 16 x 16 block at (row0, col0) of a tile; row0 a multiple of 8, col0 of
// 16.
//   Straight: an A fragment from a tile stored (m, k), ldmatrix_x4; with trans, from a tile stored (k, n),
//             the B fragments {b0, b1} of columns n .. n + 7 in r[0], r[1], and of n + 8 .. n + 15 in r[2],
//             r[3].
//   Crossed:  the same B fragments from a tile stored (n, k), ldmatrix_x4;
//             with trans, an A fragment from a tile stored (k, m).
// Only the xor depends on the lane and the column, so an unrolled loop needs Cols / 16 (at most 4) addresses
// and immediate offsets.
template <int Cols, bool Crossed>
struct LanePointer {
  using Tile = SharedTile<Cols>;
  u32 row_bytes, chunk;  // of this lane's row; its swizzled chunk

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

#if __CUDA_ARCH__ >= 900
// Stores an A fragment to shared memory, transposed: each lane gives the address of 16 bytes, 8 lanes for
// each 8 x 8 matrix in the order of a[], lane i of them for the matrix's column i.
LUATTN_FN void store_transposed(u32 address, const u32 (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a[0]),
               "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}
// Stores four 8 x 8 matrices of a rounded result to shared memory: each lane gives a row's address, 8 lanes
// for each matrix.
LUATTN_FN void store_parts(u32 address, const u32 (&a)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a[0]), "r"(a[1]),
               "r"(a[2]), "r"(a[3])
               : "memory");
}
#endif

// ---- global to shared memory ------------------------------------------------------------------------------

// Copies 16 bytes; writes zeros without reading `source` where !valid. Both addresses are multiples of 16.
LUATTN_FN void cp_async_16(u32 destination, const void *source, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(__cvta_generic_to_global(source)), "r"(valid ? 16 : 0)
               : "memory");
}
LUATTN_FN void cp_async_16(u32 destination, const void *source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(destination),
               "l"(__cvta_generic_to_global(source))
               : "memory");
}
// Copies four times 16 bytes, `stride` bytes apart in global memory and Bytes in shared memory; zeros for
// copy i where i * Rows >= end. One asm statement, because the compiler takes time for each.
template <int Rows, int Bytes>
LUATTN_FN void cp_async_16_x4(u32 destination, u64 source, i64 stride, int end) {
#define COPY(row, at)               \
  "setp.lt.s32 valid, " row         \
  ", %3; selp.b32 n, 16, 0, valid;" \
  "cp.async.cg.shared.global.L2::128B [%0+" at "], [from], 16, n; add.s64 from, from, %2;"
  asm volatile("{ .reg .pred valid; .reg .b32 n; .reg .b64 from; mov.b64 from, %1;" COPY("0", "0") COPY("%4", "%5")
                   COPY("%6", "%7") COPY("%8", "%9") "}" ::"r"(destination),
               "l"(source), "l"(stride), "r"(end), "n"(Rows), "n"(Bytes), "n"(2 * Rows), "n"(2 * Bytes), "n"(3 * Rows),
               "n"(3 * Bytes)
               : "memory");
#undef COPY
}
// Copies 4 bytes; both addresses are multiples of 4.
LUATTN_FN void cp_async_4(u32 destination, const void *source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(__cvta_generic_to_global(source))
               : "memory");
}
// Copies 4, 8 or 16 bytes; both addresses are multiples of that.
template <int Bytes>
LUATTN_FN void cp_async(u32 destination, const void *source) {
  if constexpr (Bytes == 16)
    cp_async_16(destination, source);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(destination), "l"(__cvta_generic_to_global(source)),
                 "n"(Bytes)
                 : "memory");
}
LUATTN_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Pending` of this thread's latest groups are in flight.
template <int Pending>
LUATTN_FN void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Registers and shared memory.
LUATTN_FN void store_shared(u32 address, u32 x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
LUATTN_FN void store_shared_16(u32 address, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
LUATTN_FN u32 load_shared(u32 address) {
  u32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
LUATTN_FN void load_shared_8(u32 address, float &x, float &y) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
LUATTN_FN uint4 load_shared_16(u32 address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
// 16 bytes of memory, of which a warp reads the 256 around as well: L2 asks for these together.
LUATTN_FN uint4 load_wide(const void *from) {
  uint4 x;
  asm volatile("ld.global.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return x;
}

// Returns x, opaque to the compiler: values derived from it are recomputed rather than kept in registers.
LUATTN_FN int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// first ? a : b, but never by a branch, which would diverge before shuffles of the whole warp.
LUATTN_FN float select(bool first, float a, float b) {
  float x;
  asm("{.reg .pred p; setp.ne.s32 p, %3, 0; selp.f32 %0, %1, %2, p;}" : "=f"(x) : "f"(a), "f"(b), "r"(int(first)));
  return x;
}

// ---- several warps ----------------------------------------------------------------------------------------

// A barrier among `threads` threads (whole warps). `id` 1 .. 15; 0 is __syncthreads.
LUATTN_FN void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
