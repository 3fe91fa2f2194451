/* batch.h: the contents of a luattn_batch. Shared by the GPU and the CPU path. */
#ifndef LUATTN_COMMON_BATCH_H
#define LUATTN_COMMON_BATCH_H

#include <stdbool.h>

#include "common/fail.h"
#include "luattn/batch.h"

/* An offset of one side, of queries or of keys. */
typedef struct batch_offset {
  const char *name, *array_name; /* "q_offset", "q_offsets" */
  int64_t number, whole;         /* whole: the whole's length; 0: not given */
  bool is_array;
  DLTensor array; /* int32 [count] */
  int64_t count;
} batch_offset;

struct luattn_batch {
  batch_offset side[2]; /* of queries, of keys */
  int64_t head_offset, heads, heads_kv;
};

/* Numbers of heads of the whole, as hooks see them. */
typedef struct batch_heads {
  int offset, offset_kv, heads, heads_kv;
} batch_heads;

/* Computes them for a call of so many heads. *text: a message without its place. */
bool batch_heads_of(const luattn_batch *batch, int heads, int heads_kv, batch_heads *out, char *text, size_t size);

/* Whether a side of a call of `batch` entries with at most `length` positions fits; `most`: positions of a
 * whole. */
bool batch_offset_ok(const batch_offset *side, int64_t batch, int64_t length, int64_t most, char *text, size_t size);

#endif
