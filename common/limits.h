/* limits.h: what one call may have, as the compiler counts on and the runtime checks. */
#ifndef LUATTN_LIMITS_H
#define LUATTN_LIMITS_H

enum {
  LUATTN_MAX_BATCH = 65535, /* of a grid; kernels and the analysis of index arithmetic count on no more */
  LUATTN_MAX_HEADS = 32767, /* batch * heads + head is an int */
  LUATTN_MAX_TOTAL = 1 << 30 /* rows of packed sequences in all: kernels add a tile to a row's number in an int */
};

#endif
