/* parallel.h: attention over several GPUs (context parallelism): plans which rows of a sequence each rank has, and runs
 * both passes over a transport that the caller gives.
 *
 * A sequence is cut into chunks of equal numbers of rows. Each rank has as many chunks as every other, so that the other
 * layers of a model have equal work, and computes attention of its queries over all keys that the mask leaves them: its
 * own first, then those of other ranks as they arrive. Its work is the number of tiles of 128 x 128 scores that kernels
 * compute for its queries (luattn_mask_chunks, luattn/compiler.h), so the choice of chunks balances exactly what runs.
 *
 * The plan tries partitions at several sizes of chunks, contiguous, zigzag, by counts and by time, predicts the time
 * of each, and takes the fastest: contiguous or zigzag where no other is 1 % faster. It is a function of its arguments
 * alone: equal on all ranks. */
#ifndef LUATTN_PUBLIC_PARALLEL_H
#define LUATTN_PUBLIC_PARALLEL_H

#include "luattn/engine.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LUATTN_PARALLEL_TILE 128 /* rows and columns of the tiles that are counted */
#define LUATTN_PARALLEL_MAX_RANKS 1024
#define LUATTN_PARALLEL_MAX_CHUNKS 2048 /* of a problem's counts */
#define LUATTN_PARALLEL_MAX_CANDIDATES 32
#define LUATTN_PARALLEL_MAX_LEVELS 16
#define LUATTN_PARALLEL_MAX_LAYERS 64 /* that differ in their masks */

/* How rows travel between GPUs, for predictions. */
typedef enum luattn_copies {
  LUATTN_COPIES_OVERLAPPED, /* copy engines move them beside launches */
  LUATTN_COPIES_SERIAL,     /* no launch hides a copy, as where NCCL's kernels wait for multiprocessors */
  LUATTN_COPIES_EITHER      /* by the faster of both, of each layer */
} luattn_copies;

/* What a machine does. A member of 0 is that of one H200 in nodes of 8 with NVLink. */
typedef struct luattn_parallel_rates {
  double forward, backward; /* FLOP a second of a GPU of a long causal call: 750e12, 605e12 */
  double peer;              /* bytes a second that a GPU receives from others of its node: 380e9 */
  double network; /* the same from another node, where a node fetches what several of its GPUs need once: 45e9 */
  double memory;  /* bytes a second of its own memory: 3.6e12 */
  double stage;   /* seconds to start a launch and to end its last tiles: 12e-6 */
  int node;       /* ranks of a node: 8 */
  /* Seconds of the host for a launch, beside the GPU: a pass takes so long for each, and for two more, at least, and a
   * backward twice that: 5e-6. */
  double launch;
  double exchange; /* seconds until keys or gradients of a stage are on their way: 20e-6 */
  int copies[2];   /* luattn_copies, of forward and of backward */
} luattn_parallel_rates;

/* Layers of a model that have one mask. */
typedef struct luattn_parallel_layers {
  const float *tiles; /* [chunks][chunks], of queries and keys: luattn_mask_chunks */
  double weight;      /* how many layers; above 0 */
} luattn_parallel_layers;

/* In which order a rank has its keys. */
typedef enum luattn_schedule {
  LUATTN_SCHEDULE_AUTO,    /* the faster one, of each layer and pass */
  LUATTN_SCHEDULE_STAGES,  /* its own first, then those of other ranks as they arrive; parts of rows merge */
  LUATTN_SCHEDULE_GATHERED /* all in one call, once they are there: for functions whose parts do not merge, too */
} luattn_schedule;

typedef struct luattn_parallel_problem {
  size_t struct_size;
  int ranks;              /* 1 .. LUATTN_PARALLEL_MAX_RANKS */
  int chunks, chunk_rows; /* of the counts, the finest; chunk_rows a multiple of 128, chunks one of ranks */
  int num_layers;
  const luattn_parallel_layers *layers; /* all layers of the model have one partition */
  int heads, heads_kv, head_dim, head_dim_v, elem_bytes;
  luattn_parallel_rates rates;
  int schedule; /* luattn_schedule */
} luattn_parallel_problem;

typedef enum luattn_partition {
  LUATTN_PARTITION_CONTIGUOUS, /* rank r has the r-th part of the sequence */
  LUATTN_PARTITION_ZIGZAG,     /* of 2 * ranks parts, rank r has the r-th one and the r-th from the end */
  LUATTN_PARTITION_BY_COUNTS,  /* the most expensive chunks first, each to the rank with the least work */
  LUATTN_PARTITION_BY_TIME     /* contiguous, with chunks swapped as long as the predicted time falls */
} luattn_partition;

typedef struct luattn_parallel_candidate {
  luattn_partition partition;
  int chunk_rows;
  double forward, backward; /* predicted efficiency: the time of one GPU over that of `ranks` GPUs, and over ranks */
  double imbalance;         /* the most tiles of a rank over the mean, by the layers' weights */
  double seconds;           /* predicted, of forward and backward of all layers */
  double received;          /* bytes of keys and values that a rank receives in a forward of one layer, the most */
  double memory; /* bytes of a rank in forward of one layer, the most: its q, k, v, o and lse, and k and v once more, as
                  * they travel; by stages two parts of o, and the keys and values of the two largest successive
                  * stages; gathered, those from the first to the last that a run of rows needs, of all runs that need
                  * any of other ranks */
} luattn_parallel_candidate;

/* Heads shared out before rows: of each group of `across` ranks of a node, one has all rows of the group for a share of
 * the heads, and the groups share the sequence out as a plan does. across = all ranks: no keys travel for rows (Ulysses;
 * luattn.parallel.HeadParallel runs that). The best of contiguous, zigzag and by counts. */
typedef struct luattn_parallel_levels {
  int across;               /* divides ranks, those of a node, heads and heads_kv */
  double forward, backward; /* predicted efficiency, as a candidate's: two exchanges of a pass are not hidden */
  double exchanged;         /* bytes of q, k, v and o that a rank sends in a forward of one layer, for heads */
} luattn_parallel_levels;

typedef struct luattn_parallel_plan {
  int ranks, chunks, chunk_rows;
  const int *rank_of; /* [chunks] */
  int num_candidates, chosen;
  const luattn_parallel_candidate *candidates; /* [num_candidates]; the plan is number `chosen` */
  /* [num_layers]: bit 0: LUATTN_SCHEDULE_GATHERED is the schedule of the layer's forward, bit 1: of its backward; else by
   * stages. */
  const int *gathered;
  /* [num_layers]: likewise, bits of the passes that are predicted, and cut, for LUATTN_COPIES_OVERLAPPED. */
  const int *overlapped;
  int num_levels;
  const luattn_parallel_levels *levels; /* [num_levels]: predictions alone; the plan is none of these */
} luattn_parallel_plan;

/* Makes a plan, which the caller frees. Takes milliseconds, up to a second for 64 ranks and 2048 chunks. Errors:
 * LUATTN_INVALID (by name), LUATTN_NO_MEMORY. */
LUATTN_API luattn_status luattn_parallel_plan_new(const luattn_parallel_problem *problem, luattn_parallel_plan **out,
                                                  luattn_error *err);
LUATTN_API void luattn_parallel_plan_free(luattn_parallel_plan *plan);

/* "contiguous", "zigzag", "by counts" or "by time"; "?" for another number. */
LUATTN_API const char *luattn_partition_name(luattn_partition partition);

/* How ranks exchange rows: five functions, of memory of the engine's device (host memory on the CPU), in the order of
 * `stream`. With luattn_parallel_call.copies they come with two streams, which the pass orders by events: `sum` with the
 * call's own, the others with `copies`. They return LUATTN_OK, or fill *err. All ranks call them in one order; no
 * function of luattn waits for another rank otherwise. libluattn_nccl.so has one over NCCL (luattn/nccl.h). Set
 * struct_size = sizeof(luattn_transport). */
typedef struct luattn_transport {
  size_t struct_size;
  void *self;
  int rank, ranks;
  /* Begins a transfer: none need have been done before `finish`. A rank also sends to itself. Of the same two ranks the
   * first bytes sent are the first received. */
  luattn_status (*send)(void *self, int to, const void *data, size_t bytes, void *stream, luattn_error *err);
  luattn_status (*receive)(void *self, int from, void *data, size_t bytes, void *stream, luattn_error *err);
  /* What has begun is done before what `stream` runs from now on. */
  luattn_status (*finish)(void *self, void *stream, luattn_error *err);
  /* to[i] += from[i]: `count` numbers of LUATTN_F32 or LUATTN_F64. */
  luattn_status (*add)(void *self, void *to, const void *from, size_t count, luattn_dtype type, void *stream,
                       luattn_error *err);
  /* Replaces data[i] by its sum over all ranks, the same on all. */
  luattn_status (*sum)(void *self, void *data, size_t count, luattn_dtype type, void *stream, luattn_error *err);
} luattn_transport;

/* A call of a rank. Set struct_size = sizeof(luattn_parallel_call). */
typedef struct luattn_parallel_call {
  size_t struct_size;
  int chunks, chunk_rows;     /* those of the plan: the whole has chunks * chunk_rows rows */
  const int *rank_of;         /* [chunks]: likewise; each rank has equally many */
  const unsigned char *needs; /* [chunks][chunks], or NULL: not 0 where a chunk of queries keeps any of a chunk of keys
                               * (luattn_mask_chunks); NULL: everywhere */
  const luattn_transport *transport;
  void *workspace; /* of the engine's device, 256-byte aligned */
  size_t workspace_size;
  int schedule; /* luattn_schedule, of this pass, the same on all ranks: as bits of luattn_parallel_plan.gathered say. AUTO:
                 * gathered */
  /* Of forward by stages: what luattn_spec_parts made of the spec, by whose state parts of rows then merge. NULL: by lse,
   * as softmax without a sink does. */
  const luattn_spec *parts;
  void *copies; /* on a GPU: another stream, on which rows travel beside the kernels of `stream`. NULL: that one */
} luattn_parallel_call;

/* Attention of the rank's rows over all keys that they need. `args` are those of luattn_forward and luattn_backward:
 * q, k, v, o and their gradients are the rank's rows, its chunks in the order of the sequence; hooks, dropout and
 * random() see the whole. A call of the engine has all of these rows, and keys in chunks (luattn_batch_options.q_chunks).
 *
 * LUATTN_SCHEDULE_GATHERED: keys that are needed travel first, and are in one call, so every spec will do.
 * LUATTN_SCHEDULE_STAGES: the rank's own keys are in the first call, those of 1, 1, 2, 4, .. ranks behind it in the next
 * ones. While one runs on `stream`, keys of the next travel on `copies`, and gradients of the one before. Forward makes
 * parts of o in float32 (float64) and merges them in this order, by lse or the state of `parts`. LUATTN_UNSUPPORTED where
 * parts do not: forward with large_scores, or of a spec that merges neither way; backward with a row pass, or of a
 * parameter whose gradient has terms of scores and of rows. luattn_args.spare_multiprocessors leaves room for copies that
 * are kernels.
 *
 * Backward fetches keys again, and sends their gradients back in float32 (float64), which their owners add up, their own
 * first, then those of the ranks before them: two runs give the same bits where the transport does. Half-precision
 * gradients need args->grad_f32 = 1. Gradients of inputs without an axis q, of scalars, are summed over the ranks.
 *
 * k, v, dk, dv, and by stages dq, have rows of a head side by side, or rows of all heads. An input's axis q has the
 * rank's rows; with an axis kv it is refused: give it whole along a free axis, as axes = {"n"}. args->batch is NULL, and
 * args->workspace is not read.
 *
 * Ranks with other plans, specs or shapes wait for each other as the transport does: compare them before
 * (luattn_spec_info.hash). Arguments that this rank refuses are refused before anything travels, but for those that a
 * launch alone checks, as a gradient without memory. Where a call of the engine fails after something has travelled, the
 * rank goes on sending and receiving, and returns the error in the end: no other rank waits for it, and gradients that it
 * owes others, and those that are summed, are NaN. Where the transport fails, the rank stops, and others wait as the
 * transport does. A call copies the numbers of its chunks from host memory, which is freed behind it: a stream that is
 * being captured in a CUDA graph is refused. Errors: LUATTN_INVALID and LUATTN_UNSUPPORTED (by name), those of
 * luattn_forward, and the transport's own. */
LUATTN_API luattn_status luattn_parallel_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                                        luattn_pass pass, const luattn_args *args,
                                                        const luattn_parallel_call *call, size_t *size,
                                                        luattn_error *err);
LUATTN_API luattn_status luattn_parallel_forward(luattn_engine *engine, const luattn_spec *spec,
                                                 const luattn_args *args, const luattn_parallel_call *call,
                                                 void *stream, luattn_error *err);
LUATTN_API luattn_status luattn_parallel_backward(luattn_engine *engine, const luattn_spec *spec,
                                                  const luattn_args *args, const luattn_parallel_call *call,
                                                  void *stream, luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
