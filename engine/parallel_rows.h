/* parallel_rows.h: which chunks of rows ranks exchange, and where these lie in tensors. */
#ifndef LUATTN_ENGINE_PARALLEL_ROWS_H
#define LUATTN_ENGINE_PARALLEL_ROWS_H

#include <stdbool.h>

#include "common/fail.h"
#include "luattn/parallel.h"

enum { PARALLEL_MOST_STAGES = 16 }; /* own keys, and those of 1, 1, 2, 4, .. of LUATTN_PARALLEL_MAX_RANKS */

/* Keys that are there at a time: those of the ranks at distances first .. end - 1, where that of rank r is (r - rank) modulo
 * the ranks. All ranks have the same stages. */
typedef struct parallel_span {
  int first, end;
  int taken; /* how many of their chunks this rank takes */
} parallel_span;

/* The chunks of a call, in the order of the sequence. */
typedef struct parallel_chunks {
  const luattn_parallel_call *call;
  int rank, ranks, own; /* how many each rank has */
  int num_stages;
  parallel_span stage[PARALLEL_MOST_STAGES];
  unsigned char *takes; /* [ranks][chunks] */
  int *place[2];        /* [chunks]: parallel_place */
} parallel_chunks;

/* Takes a call whose numbers of ranks and chunks are checked. gathered: one stage has all keys. Close it in any case.
 * Errors: LUATTN_INVALID, LUATTN_NO_MEMORY. */
luattn_status parallel_chunks_open(const luattn_parallel_call *call, bool gathered, parallel_chunks *out,
                                   luattn_error *err);
void parallel_chunks_close(parallel_chunks *c);
int parallel_distance(const parallel_chunks *c, int chunk); /* of the rank that has it */
/* Whether a stage has a chunk of keys, and this rank takes it. */
bool parallel_in_stage(const parallel_chunks *c, const parallel_span *stage, int chunk);
bool parallel_has(const parallel_chunks *c, int rank, int chunk);
/* Whether a rank takes a chunk of keys: where a query of its own needs it, and its own ones in any case, so that all of
 * its gradients are written. */
bool parallel_takes(const parallel_chunks *c, int rank, int chunk);
/* The position of a chunk among those that this rank has, or takes in the chunk's stage. */
int parallel_place(const parallel_chunks *c, int chunk, bool taken);

/* Rows of a tensor [batch, heads, rows, dim]: `runs` of them, whose rows lie side by side. */
typedef struct parallel_rows {
  char *data;
  int64_t runs[2], step[2]; /* counts, and bytes from one run to the next */
  int64_t row;              /* bytes of a row of a run */
} parallel_rows;

/* *name: for the message. Errors: LUATTN_INVALID. */
luattn_status parallel_rows_of(const char *name, const DLTensor *t, parallel_rows *out, luattn_error *err);
/* The same rows, `count` of them, in contiguous memory, with elements of `bytes` in place of those of `of`. */
parallel_rows parallel_rows_in(const parallel_rows *like, const DLTensor *of, void *memory, int64_t count, int bytes);
/* A tensor of such rows: shape and stride are filled in. */
DLTensor parallel_tensor(const parallel_rows *rows, const DLTensor *like, int64_t count, DLDataType type,
                         int64_t shape[4], int64_t stride[4]);
int64_t parallel_bytes(const DLTensor *like, int64_t count, int bytes); /* of all of them, rounded up to 256 */

/* Sends, or receives, a chunk's rows, from row `first` on. */
luattn_status parallel_move(const luattn_transport *t, bool sends, int peer, const parallel_rows *rows, int64_t first,
                            int64_t count, void *stream, luattn_error *err);
/* Adds rows of numbers of `type`. */
luattn_status parallel_add(const luattn_transport *t, const parallel_rows *to, int64_t to_row,
                           const parallel_rows *from, int64_t from_row, int64_t count, luattn_dtype type, void *stream,
                           luattn_error *err);

#endif
