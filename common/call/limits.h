/* limits.h: limits of one call, which the compiler relies on and the runtime checks. */
#ifndef LUATTN_LIMITS_H
#define LUATTN_LIMITS_H

enum {
  LUATTN_MAX_BATCH = 65535,    /* of a grid; kernels and the index-range analysis rely on it */
  LUATTN_MAX_HEADS = 32767,    /* batch * heads + head is an int */
  LUATTN_CHUNK_MULTIPLE = 128, /* of luattn_batch_options.chunk_rows: tiles divide it, so none has rows of two chunks */
  LUATTN_MAX_TOTAL = 1 << 30   /* rows of all packed sequences: kernels add a tile size to a row number in an
                              * int */
};

#endif
