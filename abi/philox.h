/* philox.h: Philox 4x32-10, numbers that are a function of a key and a counter, and how dropout draws from them.
 * Plain C11 and CUDA C++.
 *
 * Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 *
 * A draw depends on the seed, the offset and the place of a score alone: batch entry b, query head h and positions q
 * and kv, all of the whole of which a call's tensors may be a part. Two calls of Philox give 32 draws of 8 bits, for
 * the scores of a patch: queries x, x ^ 1, x ^ 8 and x ^ 9, and keys y ^ 0 .. 3 and y ^ 8 .. 11.
 *
 *     key        the seed, low word first
 *     counter    offset + b * heads + h, low word first; q / 16 * 4 + q % 8 / 2; kv / 16 * 4 + kv % 8 / 4 * 2 + call
 *     planes     the words of call 0, then those of call 1: bits 7, 6, .. 0 of all draws of the patch
 *     bit        of each plane that belongs to a score: kv / 2 % 2 * 16 + kv % 2 * 8 + q % 2 * 4 + q / 8 % 2 * 2
 *                + kv / 8 % 2
 *
 * Over a grid of several axes, q and kv above are not positions but numbers of places by which 16 places of 4 x 4
 * coordinates of the two innermost axes share patches (dropout_place). They depend on coordinates and extents alone, so
 * that a draw does not depend on the boxes of a kernel. Of a box whose innermost extent is 8, a patch has rows x, x ^ 1,
 * x ^ 8 and x ^ 9 as along a line.
 *
 * A score's weight is kept if its draw is below `keep`, that is, with probability keep / 256, and is then multiplied by
 * 256 / keep. Planes compare all draws of a patch at once. Patches and bits lie so that in the accumulators of mma and
 * wgmma, and in their transpose, four lanes share a patch, and a byte of it is a lane's
 * (templates/score/dropout.cuh). */
#ifndef LUATTN_PHILOX_H
#define LUATTN_PHILOX_H

#include "abi/host_device.h"

typedef struct LuattnPhilox {
  unsigned x[4];
} LuattnPhilox;

enum { LUATTN_KEEP_ALL = 256 }; /* `keep` without dropout */

/* The 64 bits of a product. Of products in C, NVVM makes 64-bit ones by a constant, and ptxas adds 0 to the high word
 * of each. */
ABI_FN unsigned long long philox_product(unsigned x, unsigned by) {
#ifdef __CUDA_ARCH__
  unsigned long long wide = 0;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(wide) : "r"(x), "r"(by));
  return wide;
#else
  return (unsigned long long)by * x;
#endif
}

ABI_FN LuattnPhilox philox_4x32_10(unsigned long long key, unsigned long long counter, unsigned c2, unsigned c3) {
  unsigned c0 = (unsigned)counter, c1 = (unsigned)(counter >> 32), k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
  LuattnPhilox out = {{0, 0, 0, 0}};
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = philox_product(c0, 0xD2511F53u), b = philox_product(c2, 0xCD9E8D57u);
    c0 = (unsigned)(b >> 32) ^ c1 ^ k0;
    c2 = (unsigned)(a >> 32) ^ c3 ^ k1;
    c1 = (unsigned)b;
    c3 = (unsigned)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out.x[0] = c0, out.x[1] = c1, out.x[2] = c2, out.x[3] = c3;
  return out;
}

/* The number of a place of a grid of 2 or more axes, the innermost last: 16 n + y % 2 * 8 + y / 2 % 2 * 4 + x % 4, where x
 * and y are its coordinates along the last two axes, and n the row-major number of its 4 x 4 places among all: of its
 * other coordinates, y / 4 and x / 4. */
enum { LUATTN_DROPOUT_PATCHES = 1 << 27 }; /* so that these numbers are ints */
ABI_FN int dropout_place(const int *at, const int *extent, int axes) {
  int n = 0;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int a = 0; a < axes; ++a) {
    const int inner = a >= axes - 2;
    n = n * (inner ? (extent[a] + 3) / 4 : extent[a]) + (inner ? at[a] / 4 : at[a]);
  }
  return n * 16 + (at[axes - 2] & 1) * 8 + (at[axes - 2] >> 1 & 1) * 4 + (at[axes - 1] & 3);
}

/* Counter words of a patch, from the positions of one of its scores; of call 0 in kv. */
ABI_FN unsigned dropout_q_patch(int q) { return (unsigned)(q >> 4) * 4u + (unsigned)(q & 7) / 2u; }
ABI_FN unsigned dropout_kv_patch(int kv) { return (unsigned)(kv >> 4) * 4u + (unsigned)(kv & 7) / 4u * 2u; }

/* The bit of a score in its patch. */
ABI_FN int dropout_bit(int q, int kv) {
  return (kv >> 1 & 1) * 16 + (kv & 1) * 8 + (q & 1) * 4 + (q >> 3 & 1) * 2 + (kv >> 3 & 1);
}

/* Bits of the scores of a patch whose draws are below `keep`, 1 to 255: from the lowest bit on, where keep has a 1, a 0
 * in the plane makes a draw less, and where it has a 0, a 1 makes it greater. */
ABI_FN unsigned dropout_kept(LuattnPhilox high, LuattnPhilox low, int keep) {
  unsigned below = 0;
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int bit = 0; bit < 8; ++bit) {
    const unsigned plane = bit < 4 ? low.x[3 - bit] : high.x[7 - bit];
    below = keep >> bit & 1 ? below | ~plane : below & ~plane;
  }
  return below;
}

/* The scores of a patch that are kept. */
ABI_FN unsigned dropout_draw(unsigned long long key, unsigned long long counter, unsigned q_patch, unsigned kv_patch,
                             int keep) {
  return dropout_kept(philox_4x32_10(key, counter, q_patch, kv_patch),
                      philox_4x32_10(key, counter, q_patch, kv_patch + 1), keep);
}

/* The counter of a head of a batch entry. */
ABI_FN unsigned long long dropout_counter(unsigned long long offset, int b, int heads, int h) {
  return offset + (unsigned long long)((long long)b * heads + h);
}

/* random(b, h, q, kv) of a spec, in steps of 2^-24: the upper 24 bits of the first word for this counter of b and h,
 * and words q + 2^31 and kv (mod 2^32). Patches of dropout have a 0 in bit 31 of the third word, so the two never
 * meet. */
ABI_FN unsigned random_bits(unsigned long long key, unsigned long long counter, int q, int kv) {
  return philox_4x32_10(key, counter, (unsigned)q | 0x80000000u, (unsigned)kv).x[0] >> 8;
}

#endif
