/* exact_divisor.h: a divisor of which the host has made a product. Plain C11 and CUDA C++. */
#ifndef LUATTN_EXACT_DIVISOR_H
#define LUATTN_EXACT_DIVISOR_H

/* A divisor: n / d is (2 n * multiplier >> 32) >> shift for 0 <= n < 2^31, with 2^shift the least power of
 * two that is not below d, and multiplier = ceil(2^(31 + shift) / d). Granlund and Montgomery, "Division by
 * invariant integers using multiplication", PLDI 1994, theorem 4.2. */
typedef struct LuattnDivisor {
  unsigned d, multiplier, shift;
} LuattnDivisor;

#endif
