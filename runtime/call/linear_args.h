/* linear_args.h: checks the arguments of linear attention, and fills what its kernels take. */
#ifndef LUATTN_RUNTIME_LINEAR_ARGS_H
#define LUATTN_RUNTIME_LINEAR_ARGS_H

#include "abi/linear_params.h"
#include "luattn/linear.h"
#include "runtime/call/args_call.h"

/* A tensor of tokens as a main kernel reads or writes it. */
typedef struct linear_tensor {
  LuattnTensor t;
  const char *name;
  int heads, dim;
} linear_tensor;

/* What a main kernel computes: forward, or one gradient (LinearPass of templates/contract/linear.cuh). */
typedef struct linear_pass {
  bool wanted;
  linear_tensor query, key, value, o;
  LuattnStates first, last;
  int segments;
  int64_t blocks, map_blocks; /* of one segment of each entry; besides, of its map */
} linear_pass;

/* Forward, and the gradients of q, k and v; of updates that erase 1 and 2 are the two chains. */
enum { LINEAR_PASSES = 4 };

/* The launch of a kernel that walks tokens: a grid of (value heads, or fewer, where a block has several; blocks of value
 * channels). threads 0: the kernel does not. */
typedef struct linear_walk {
  uint32_t entry;
  unsigned threads, shared_bytes, grid[3];
} linear_walk;

typedef struct linear_call {
  const luattn_linear_args *args; /* of this version's size */
  luattn_args shared;             /* inputs and scalars, as `c` has them */
  args_call c;
  LuattnLinearParams p; /* but for what passes differ in */
  linear_pass pass[LINEAR_PASSES];
  LuattnStates dlast, dfirst; /* backward */
  int64_t pool_rows;          /* with state_indices: rows of states */
  void *exact;                /* backward: exact sums, which begin with zeros */
  size_t exact_bytes;
  linear_walk walk;
  size_t workspace, kept_size; /* kept_size: 0, or what forward can keep for backward */
} linear_call;

/* linear_passes.c: chooses segments of each pass, and places what lies in the workspace, which begins at `base`; NULL: sets
 * `workspace` alone. Errors: LUATTN_INVALID. */
luattn_status linear_place_passes(linear_call *l, void *base);
/* Whether a backward image has two chains, of states and of their gradients, of which others make gradients of rows. */
bool linear_has_chains(const image_manifest *m);
bool linear_adds_heads(const image_manifest *m);
/* Whether a call of forward launches no entry of a role that the image has. */
bool linear_passes_over(const linear_call *l, uint32_t role);
/* Whether kernels store all of an input's gradient, in the place of adding to it. */
bool linear_is_stored(const linear_call *l, uint32_t input);
/* The parameters of a pass. */
LuattnLinearParams linear_pass_params(const linear_call *l, int pass);

/* Fills *out, with segments but for their memory. shapes_only: as in args_call. Errors: LUATTN_INVALID. */
luattn_status linear_args_fill(const luattn_kernel *kernel, const luattn_linear_args *args, bool shapes_only,
                               linear_call *out, luattn_error *err);

/* Refuses outputs that share memory with other tensors or the workspace, a workspace that is too small, and with
 * LUATTN_CHECK=1 rows of states and sequences that there are not. Then places segments. */
luattn_status linear_args_check(const luattn_kernel *kernel, linear_call *call, void *stream);

#endif
