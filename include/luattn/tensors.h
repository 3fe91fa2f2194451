/* tensors.h: how tensors and scalars are passed to luattn. Tensors are DLPack's DLTensor; luattn never owns one.
 *
 * q, o, dout, dq   [batch, heads,    q_len,  head_dim or head_dim_v]
 * k, dk            [batch, heads_kv, kv_len, head_dim]
 * v, dv            [batch, heads_kv, kv_len, head_dim_v]
 * lse, dlse        [batch, heads, q_len]   float32 (float64 in float64 kernels), natural log, every bias included
 * saved            [num_saved, batch, heads, q_len]   same type, contiguous: what forward keeps for backward beyond lse
 *
 * Over a spec's grid of several axes (luattn_spec_grid) its axes stand in the place of q_len and kv_len, the innermost
 * last: q [batch, heads, t, y, x, head_dim], lse [batch, heads, t, y, x]. lse, dlse and saved are then contiguous.
 *
 * The order of axes is logical: strides are free but for the last dimension, which is contiguous, so that memory may be
 * heads-first (bhsd) or heads-last (bshd).
 * Outputs must not overlap: not an output's own elements, and not an output with another tensor of the pass or the
 * workspace. Launches check this, except that tensors with gaps (dq, dk and dv in one array) are only checked for a
 * first element that the other has, too, or that lies in a tensor without gaps.
 * luattn/batch.h has the axes of packed sequences.
 * heads is a multiple of heads_kv. DLTensor.strides NULL means contiguous. byte_offset is honoured. Shape, strides and
 * byte_offset that reach beyond 64-bit addresses are an error.
 */
#ifndef LUATTN_TENSORS_H
#define LUATTN_TENSORS_H

/* If the program has already included its own copy of dlpack.h, such as PyTorch's, that copy is used. */
#ifndef DLPACK_DLPACK_H_
#if defined(__has_include)
#if !__has_include(<dlpack/dlpack.h>)
#error "luattn needs dlpack/dlpack.h: install libdlpack-dev (Debian, Ubuntu), or name the folder that has it with -I"
#endif
#endif
#include <dlpack/dlpack.h>
#endif

#include "luattn/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum luattn_dtype { LUATTN_F64, LUATTN_F32, LUATTN_BF16, LUATTN_F16 } luattn_dtype; /* of q, k, v and o */

/* One extra input of the spec, by name; any strides, that of the last axis below 2^31 bytes. `grad` (may have a NULL
 * data pointer when not wanted) receives its gradient: a contiguous array of float32 (float64 in float64 kernels) with
 * the same sizes; it is overwritten. */
typedef struct luattn_input {
  const char *name;
  const DLTensor *tensor;
  const DLTensor *grad; /* NULL: not wanted */
} luattn_input;

/* The value must not be NaN. Unless q is float64, it must be 0, infinite, or at least 2^-126 in magnitude and
 * within float32's range; so must the spec's default, if it is used. */
typedef struct luattn_scalar {
  const char *name;
  double value;
} luattn_scalar;

/* Whether to skip tiles whose P are negligible, which kernels prove by norms of q and k: together below 2^-24 of a
 * row's sum, in backward also for all rows of a column. Kernels of the sm90 family can skip if a softmax's scores fall
 * with distance, as ALiBi's do. v is not read in skipped tiles. Also whether masks from data are evaluated for tiles
 * ahead of the main kernel, by kernels that can (docs/masks_from_data.md): tiles in which nothing is kept are then left
 * out. */
typedef enum luattn_skip {
  LUATTN_SKIP_AUTO,   /* if it is faster at these lengths */
  LUATTN_SKIP_ALWAYS, /* at every length. In forward, an error if the kernel cannot skip. In backward, such a kernel
                       * computes every tile, since one luattn_args may serve both passes; with more than 32767 batches
                       * no kernel can skip */
  LUATTN_SKIP_NEVER   /* computes every tile that ranges of the mask, and minima of numbers that it reads, leave */
} luattn_skip;

typedef struct luattn_batch luattn_batch; /* luattn/batch.h */

/* Which kernel an engine's forward takes. The decode kernel is that of luattn_target.decode. */
typedef enum luattn_decode {
  /* The decode kernel where a model of both predicts that it takes no longer (by queries, keys, entries, heads, head
   * dims and multiprocessors; luattn_engine_choice tells) and it has the spec. The one for all lengths where packs have
   * no other, or the engine names a family. */
  LUATTN_DECODE_AUTO,
  LUATTN_DECODE_ALWAYS, /* the decode kernel, or an error that says what it lacks */
  LUATTN_DECODE_NEVER   /* the one for all lengths */
} luattn_decode;
#define LUATTN_DECODE_TILE 16 /* rows for which the decode kernel has tiles of short lengths */
#define LUATTN_DECODE_MANY 32 /* with more rows it has the tiles of luattn_target.many_rows */

/* What a call of a spec with dropout, or with random() in its hooks, draws its random numbers from. The numbers depend
 * on seed, offset, batch entry, head and positions alone (of the whole, luattn/batch.h), so that forward and backward
 * with the same seed and offset draw the same ones, on every device, with any kernel, packed or not.
 *
 * A call uses the offsets from `offset` to offset + batch * heads - 1, where batch counts entries or packed sequences,
 * and heads are query heads (of the whole). Add batch * heads for the next call that is to draw other numbers, as for
 * the next layer; numbers of different seeds, or of offsets that far apart, are independent. */
typedef struct luattn_random {
  size_t struct_size;
  uint64_t seed, offset;
  /* Or where kernels read them when they run, so that a replayed CUDA graph draws anew: on the kernel's device, on the
   * CPU in host memory, 8-byte aligned. `seed` is then not used, and `offset` is added to *offset_at (mod 2^64). NULL:
   * the numbers above. Outputs must not overlap them. */
  const uint64_t *seed_at, *offset_at;
} luattn_random;

/* Arguments of a forward or backward pass. One struct may serve both: a pass ignores members that only the other uses.
 * Set struct_size = sizeof(luattn_args) and zero the unused members; luattn/status.h says which other sizes are
 * accepted. At most 12 inputs and 32 scalars. Forward reads q, k, v and writes o, lse, saved. Backward reads q, k, v,
 * o, lse, saved, dout, dlse and writes dq, dk, dv, the inputs' grads and scalar_grads. Outputs that are NULL are not
 * computed. */
typedef struct luattn_args {
  size_t struct_size;
  const DLTensor *q, *k, *v;
  const DLTensor *o;
  const DLTensor *lse;   /* forward: may be NULL. backward: needed if the online function has an lse */
  const DLTensor *saved; /* needed if luattn_kernel_description.num_saved > 0 */
  const DLTensor *dout, *dlse;
  const DLTensor *dq, *dk, *dv;
  const luattn_input *inputs;
  size_t num_inputs;
  const luattn_scalar *scalars; /* scalars that are not listed keep the spec's default */
  size_t num_scalars;
  const DLTensor
      *scalar_grads; /* [number of scalars in the spec's order (sorted by name)], float32 (float64), or NULL */
  double scale;      /* 0: head_dim^-1/2. Else at least 2^-126 and below 2^127; if q is float64, 2^-1022 and 2^1023 */
  void *workspace;   /* device memory, 256-byte aligned; see luattn_workspace_size. Launches that may overlap, or
                      * that several threads issue at once even on one stream, must not share it: their results,
                      * and those of the next launch with it, would be wrong */
  size_t workspace_size;
  int num_splits; /* Backward of the sm90 family: how many blocks split the queries of a tile of 128 keys, at most
                   * 64; forward ignores it, but for decode kernels, whose blocks split the keys. 0: enough to fill the
                   * device if keys, kv heads and batch are few; 1: no split. Affects luattn_workspace_size: each split
                   * has its own dk and dv there, which are then added in order; of a decode kernel, its own O and
                   * online state */
  int skip; /* luattn_skip, if the kernel can skip tiles (one of its functions is luattn_tile_bitmap or luattn_tile_bits).
             * Affects luattn_workspace_size */
  const luattn_batch *batch; /* packed sequences and offsets (luattn/batch.h). NULL: entries have equal lengths, the
                              * tensors are the whole */
  int num_threads;           /* On the CPU: the number of threads that compute, including the caller's, at most 1024. 0:
                              * LUATTN_NUM_THREADS if set, else one per processor in the calling thread's affinity mask on an
                              * engine (LUATTN_CPU), and 1 in luattn_cpu_forward and similar calls. A call starts its threads and
                              * joins them before it returns; it uses fewer for small problems, or if the system starts no more.
                              * Any number gives the same bits. A GPU ignores it */
  int large_scores; /* luattn_target.large_scores, the same in forward and in backward: 1: the last two rows of `saved`
                     * are the row's maximum and log l, if backward reads an lse. 0 or 1; a kernel takes the value that
                     * it is compiled for */
  const luattn_random *random; /* seed and offset, the same in forward and in backward: needed if the spec draws
                                * (luattn_spec_draws), else not read */
  int decode; /* An engine's forward: luattn_decode. luattn_launch does not read it: a kernel is what it is compiled
               * for. The CPU computes the same either way */
  int keys_modified; /* luattn_target.keys_modified, of forward: 1: k and v have been through the spec's key_mod and
                      * value_mod, as rows that luattn_append wrote with a kernel of keys_modified. 0 or 1; a kernel of
                      * a spec that has one of these takes the value that it is compiled for. Backward takes 0 alone */
  const struct luattn_append_args
      *append; /* luattn_forward and luattn_launch over a cache (luattn/batch.h): new rows that are written there before
                * attention, as luattn_append(kernel, append, stream) would, in a launch of its own. `batch` here counts
                * them, in append->batch they are not there yet; its k, v, inputs and scalars are these where they are
                * NULL. Or NULL. Backward ignores it */
  int out_f32; /* luattn_target.out_f32, the same in forward and in backward: 1: o is float32, while q, k, v and dout are
                 * bf16 or f16. 0 or 1; a kernel takes the value that it is compiled for. luattn_cpu_forward and similar
                 * calls take an o of any type, and do not read it */
  int grad_f32; /* luattn_target.grad_f32, of backward: 1: dq, dk and dv are float32, while q, k and v are bf16 or f16.
                 * Likewise. Forward ignores it */
  const struct luattn_tangents *tangents;  /* luattn_forward_jvp. NULL in every other call, which refuses it */
  uint64_t query_tile_size, key_tile_size; /* An engine's call over a grid: luattn_target.query_tile_size and
                                            * key_tile_size, the boxes of the pass. 0: the engine chooses a pair by the mask
                                            * and the extents. luattn_launch does not read them: a kernel is what it is
                                            * compiled for. Nor does the CPU */
  int spare_multiprocessors; /* Of the sm90 family, whose blocks stay and fill the GPU until the last tile: how many
                              * multiprocessors its main kernels leave to others that run beside them, such as those that
                              * NCCL exchanges rows by. Fewer than the device has. Blocks of a pair share two: an odd number
                              * counts as the next one. Other kernels' blocks come and go, and do not read it, nor does the
                              * CPU */
} luattn_args;

/* Forward mode: tangents of the arguments of a forward pass, and where those of its results are written. Set
 * struct_size = sizeof(luattn_tangents) and zero the unused members. A tangent is a tensor of the shape of what it
 * belongs to; one that is NULL is 0 and costs nothing. */
typedef struct luattn_tangents {
  size_t struct_size;
  const DLTensor *q, *k, *v;
  const luattn_input
      *inputs; /* by name: `tensor` is the tangent, `grad` is NULL in forward. Of real inputs, `grad` in the spec or
                               * not: integers have none */
  size_t num_inputs;
  const luattn_scalar *scalars; /* by name: `value` is the tangent, any finite number */
  size_t num_scalars;
  const DLTensor *o,
      *lse; /* written: as o and lse. Rows that keep nothing have 0. NULL: not wanted. luattn_backward_jvp
                            * reads them where they come with o and lse of luattn_args, as luattn_forward_jvp has written
                            * all four, and else finds them itself, which takes longer */
  /* Of luattn_backward_jvp and luattn_cpu_backward_jvp alone: tangents of dout and dlse; and where those of dq, dk, dv
   * and scalar_grads are written, beside those of the inputs' gradients, in `grad` of `inputs`, whose `tensor` may then be NULL. */
  const DLTensor *dout, *dlse;
  const DLTensor *dq, *dk, *dv, *scalar_grads;
} luattn_tangents;

#ifdef __cplusplus
}
#endif
#endif
