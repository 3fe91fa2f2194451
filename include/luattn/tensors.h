/* tensors.h: how tensors and scalars are passed to luattn. Tensors are DLPack's DLTensor; luattn never owns one.
 *
 * q, o, dout, dq   [batch, heads,    q_len,  head_dim or head_dim_v]   logical order; any strides with a contiguous last
 * k, dk            [batch, heads_kv, kv_len, head_dim]                 dimension, so that memory may be heads-first (bhsd) or
 * v, dv            [batch, heads_kv, kv_len, head_dim_v]               heads-last (bshd)
 * lse, dlse        [batch, heads, q_len]   float32 (float64 in float64 kernels), natural log, every bias included
 * saved            [num_saved, batch, heads, q_len]   same type, contiguous: what forward keeps for backward beyond lse
 * What a pass writes has memory of its own: no two of its elements, nor it and another tensor of the pass or the workspace, share
 * any. That is checked, but not whether tensors with gaps (dq, dk and dv in one array) meet elsewhere than at their first element.
 * heads is a multiple of heads_kv. DLTensor.strides NULL means contiguous. byte_offset is honoured. Shape, strides and byte_offset
 * that reach beyond 64-bit addresses are an error.
 */
#ifndef LUATTN_TENSORS_H
#define LUATTN_TENSORS_H

/* A program that has included a copy of its own, as of PyTorch, goes on with that one. */
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

/* One extra input of the spec, by name; any strides, that of the last axis below 2^31 bytes. `grad` (may have a NULL data
 * pointer when not wanted) receives its gradient: a contiguous array of float32 (float64 in float64 kernels) with the same
 * sizes; it is overwritten. */
typedef struct luattn_input {
  const char *name;
  const DLTensor *tensor;
  const DLTensor *grad; /* NULL: not wanted */
} luattn_input;

/* Not NaN. But where q is float64: 0, infinite, or a float32 number of at least 2^-126; so is the spec's default,
 * where it is used. */
typedef struct luattn_scalar {
  const char *name;
  double value;
} luattn_scalar;

/* Whether to skip tiles of scores whose weights are negligible, as norms of q and k prove: together below 2^-24 of a row's sum,
 * in backward also of all rows of a column. Kernels of the sm90 family for a softmax whose scores fall with positions, as ALiBi's
 * do, have this. v is not read there. */
typedef enum luattn_skip {
  LUATTN_SKIP_AUTO,   /* if it pays at these lengths */
  LUATTN_SKIP_ALWAYS, /* at every length. In forward an error where the kernel cannot. In backward a kernel that cannot computes
                       * every tile, since one luattn_args may serve both passes; with more than 32767 batches none can */
  LUATTN_SKIP_NEVER   /* every tile that the mask leaves is computed */
} luattn_skip;

typedef struct luattn_batch luattn_batch; /* luattn/batch.h */

/* Arguments of a forward or backward pass. One may serve both: a pass ignores members that only the other uses. Set
 * struct_size = sizeof(luattn_args), zero unused members; luattn/status.h says which other sizes are taken. At most 12 inputs
 * and 32 scalars.
 * Forward reads q, k, v and writes o, lse, saved. Backward reads q, k, v, o, lse, saved, dout, dlse and writes dq, dk, dv, the
 * inputs' grads and scalar_grads. Outputs that are NULL are not computed. */
typedef struct luattn_args {
  size_t struct_size;
  const DLTensor *q, *k, *v;
  const DLTensor *o;
  const DLTensor *lse;    /* forward: may be NULL. backward: needed if the online function has an lse */
  const DLTensor *saved;  /* needed if luattn_kernel_description.num_saved > 0 */
  const DLTensor *dout, *dlse;
  const DLTensor *dq, *dk, *dv;
  const luattn_input *inputs;
  size_t num_inputs;
  const luattn_scalar *scalars; /* those not named keep the spec's default */
  size_t num_scalars;
  const DLTensor *scalar_grads; /* [number of scalars in the spec's order (sorted by name)], float32 (float64), or NULL */
  double scale;                 /* 0: head_dim^-1/2. At least 2^-126 and below 2^127, which float32 computes with; for f64 2^-1022
                                 * and 2^1023 */
  void *workspace;              /* device memory, 256-byte aligned; see luattn_workspace_size. Not shared by launches that may
                                 * overlap or are issued by several threads at once, not even on one stream: their results,
                                 * and those of the next launch with it, would be wrong */
  size_t workspace_size;
  int num_splits;               /* Backward of the sm90 family: how many blocks share the queries of 128 keys of a kv head, at
                                 * most 64; forward does not look at it. 0: as many as keep the device busy where keys, kv heads
                                 * and batch are few; 1: none do. Counts in luattn_workspace_size: each has dk and dv of its own
                                 * there, which are then added up in order */
  int skip;                     /* luattn_skip, where the kernel can skip tiles (LUATTN_ROLE_REACH among its entries). Counts in
                                 * luattn_workspace_size */
  /* Packed sequences (luattn_target.packed), or NULL and 0: all four are given, or none. Forward of an engine or a kernel alone. int32
   * [batch + 1] on the device, contiguous: sequence b has rows cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1 of q [total_q, heads,
   * head_dim] and o [total_q, heads, head_dim_v], and the same of cu_seqlens_k in k [total_k, heads_kv, head_dim] and v [total_k,
   * heads_kv, head_dim_v]. They begin with 0, never fall and end with the totals, which the CPU checks and a GPU does not: nobody reads them
   * on the host, and offsets that leave the tensors have kernels read and write beyond them. lse is [heads, total_q], saved [num_saved,
   * heads, total_q]. A total is at most 2^30. Positions, lengths and masks are each sequence's own, and b its number; a sequence
   * may be empty. What lies in rows of another sequence never matters, NaN included. Outputs share no memory with these. */
  const DLTensor *cu_seqlens_q, *cu_seqlens_k;
  int max_seqlen_q, max_seqlen_k; /* the longest sequence's length, or an upper bound; 0 where there are no rows. As many tiles are
                                   * launched for every sequence. Of a longer one the first max_seqlen_q rows alone are computed,
                                   * from the first max_seqlen_k keys, and no error tells: the lengths are on the device */
  const luattn_batch *batch;         /* the tensors are parts of a whole (luattn/batch.h); NULL: they are the whole */
  int num_threads;              /* On the CPU: how many threads compute, the caller's among them, at most 1024. 0: LUATTN_NUM_THREADS,
                                 * else on an engine (LUATTN_CPU) as many as processors are in the calling thread's affinity mask,
                                 * and in luattn_cpu_forward and its like the caller's alone. They are made in the call and joined
                                 * before it returns; small calls, and those for which the system starts no more, have fewer. Every
                                 * number of them gives the same bits. A GPU does not look at it */
} luattn_args;

#ifdef __cplusplus
}
#endif
#endif
