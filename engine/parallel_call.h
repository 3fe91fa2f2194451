/* parallel_call.h: a call of luattn_parallel_forward or luattn_parallel_backward, and what its stages do: place their tensors,
 * exchange rows, compute. */
#ifndef LUATTN_ENGINE_PARALLEL_CALL_H
#define LUATTN_ENGINE_PARALLEL_CALL_H

#include "engine/engine.h"
#include "engine/parallel_rows.h"
#include "luattn/batch.h"
#include "luattn/merge.h"

enum { PARALLEL_KEYS, PARALLEL_VALUES, PARALLEL_SIDES };
enum { PARALLEL_PARTS = 3, PARALLEL_MOST_INPUTS = 12 };

/* Keys and values of a stage, then their gradients, as its call has them. */
typedef struct parallel_stage {
  bool in_place; /* they are the rank's own, as they lie */
  parallel_rows rows[2 * PARALLEL_SIDES];
  DLTensor tensor[2 * PARALLEL_SIDES];
  int64_t shape[2 * PARALLEL_SIDES][4], stride[2 * PARALLEL_SIDES][4];
  luattn_batch *batch;
  size_t batch_size;
  char *batch_memory;
} parallel_stage;

/* o, lse and the state of a part of the rows. */
typedef struct parallel_part {
  DLTensor o, lse, state;
} parallel_part;

typedef struct parallel_call {
  luattn_engine *engine;
  const luattn_spec *spec;
  luattn_spec_info info;
  luattn_pass pass;
  luattn_args args; /* the caller's, with the workspace of the engine's calls */
  luattn_parallel_call call;
  luattn_transport transport;
  bool gathered;
  parallel_chunks chunks;
  parallel_stage stage[PARALLEL_MOST_STAGES];
  parallel_rows own[2 * PARALLEL_SIDES],
      come[PARALLEL_SIDES]; /* the caller's rows; gradients that come from one rank */
  int32_t *first;           /* of the chunks of queries, then of keys */
  char *memory;             /* of the workspace, NULL where its size is asked for */
  int64_t used;             /* of it */
  /* Of forward by stages: parts of rows, and the one that holds what has been merged, -1: none. */
  parallel_part part[PARALLEL_PARTS];
  int64_t part_shape[4][4]; /* of o, lse and state */
  int num_parts, merged;
  /* Of backward by stages: gradients of the later ones, which are added. */
  parallel_rows later_dq;
  DLTensor later_dq_tensor, later_grad[PARALLEL_MOST_INPUTS], later_scalars;
  int64_t dq_shape[4], dq_stride[4];
  luattn_input later_input[PARALLEL_MOST_INPUTS];
  luattn_status failed; /* of a stage's call, after which this rank only exchanges rows */
  luattn_error said;
} parallel_call;

static inline bool parallel_gives(const parallel_call *p, int side) {
  return p->pass == LUATTN_BACKWARD && (side == PARALLEL_KEYS ? p->args.dk : p->args.dv) != NULL;
}
/* Whether a tensor has the rank's rows, in whole bytes, which workspace is counted by. *like: NULL, or one whose dtype it
 * has. */
luattn_status parallel_check_rows(const parallel_call *p, const char *name, const DLTensor *t, const DLTensor *like,
                                  luattn_error *err);

/* parallel_places.c: places what the stages need in the workspace, and opens their batches, which parallel_close_stages
 * closes in any case. */
luattn_status parallel_place_stages(parallel_call *p, luattn_error *err);
void parallel_close_stages(parallel_call *p);

/* parallel_exchange.c, of stage s: keys that the rank takes come, and own ones go where they are needed; gradients go back to
 * the keys' owners, and are added to own ones in the order of ranks. */
luattn_status parallel_gather(const parallel_call *p, int s, void *stream, luattn_error *err);
luattn_status parallel_return(const parallel_call *p, int s, void *stream, luattn_error *err);
/* Sums gradients of what is whole on all ranks. */
luattn_status parallel_sum_whole(const parallel_call *p, void *stream, luattn_error *err);

/* parallel_compute.c: the arguments of a stage's call, and the call. */
luattn_args parallel_stage_args(const parallel_call *p, int s);
const luattn_spec *parallel_stage_spec(const parallel_call *p);
luattn_status parallel_compute(parallel_call *p, int s, void *stream, luattn_error *err);
/* Makes NaN of the gradients that a stage's call would have written, so that no rank takes them for right. */
luattn_status parallel_spoil(const parallel_call *p, int s, void *stream, luattn_error *err);

#endif
