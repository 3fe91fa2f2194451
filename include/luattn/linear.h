/* linear.h: linear attention, whose spec is linear_attention {..}: a state in place of keys and values.
 *
 * With heads of q and k, and heads_v of v, o and the state, a multiple of heads, a value head of a batch entry has a state S
 * [head_dim, head_dim_v]. For each token in turn, in the spec's terms,
 *
 *     S <- Diag(exp(decay)) S;   S <- S - erase (read' S)';   S <- S + k (write v)';   o = scale * q' S + skip
 *
 * q, k, dq, dk   [batch, tokens, heads, head_dim]
 * v, o, ..       [batch, tokens, heads_v, head_dim_v]
 * states         [entries, heads_v, head_dim_v, head_dim], or with the last two the other way round: state_layout
 *
 * entries is batch, or with cu_seqlens the number of packed sequences. Of a spec with `normalize` states have one channel
 * of v more, the last one: the sum that o is divided by. Strides are free but for outputs' elements, which share no memory,
 * and outputs overlap nothing else. A decay's logarithm below -1000 counts as -1000, whose exponential is 0.
 */
#ifndef LUATTN_LINEAR_H
#define LUATTN_LINEAR_H

#include "luattn/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1: the spec is normalised, so that its states have one channel of v more than v has; 0: as many, or spec is NULL. */
LUATTN_API int luattn_spec_normalizes(const luattn_spec *spec);

/* What rings of the spec have (luattn_linear_args): numbers of a row of ring_decays for head_dim, 0 if the spec has no decay;
 * whether there are ring_e and ring_y. 0 and 0 if spec is NULL. */
LUATTN_API void luattn_spec_ring(const luattn_spec *spec, int head_dim, int *decays, int *erases);

/* The order of a state's last two axes. The shapes are the same if head_dim = head_dim_v, so that a call says it. */
typedef enum luattn_state_layout { LUATTN_STATE_VK = 1, LUATTN_STATE_KV } luattn_state_layout;

/* Arguments of a forward or backward pass. One struct may serve both: a pass ignores members that only the other uses. Set
 * struct_size = sizeof(luattn_linear_args) and zero the unused members. Outputs that are NULL are not computed. Tensors are
 * float64, float32, bfloat16 or float16, each of its own type. */
typedef struct luattn_linear_args {
  size_t struct_size;
  const DLTensor *q, *k, *v;
  const DLTensor *o; /* rows of no packed sequence are not written */
  /* Backward: the gradient of o; NULL: 0. dq, dk and dv of rows of no packed sequence are 0. */
  const DLTensor *dout;
  const DLTensor *dq, *dk, *dv;
  const luattn_input *inputs; /* as in luattn_args; axes "b" and "hv" of size 1 broadcast. With cu_seqlens an input with
                               * an axis "t" has an axis "b" of size 1, and any other has one of size entries, or 1 */
  size_t num_inputs;
  const luattn_scalar *scalars; /* scalars that are not listed keep the spec's default */
  size_t num_scalars;
  const DLTensor *scalar_grads; /* [number of scalars in the spec's order (sorted by name)], or NULL */
  double scale;                 /* 0: the spec's `scale`, or head_dim^-1/2 if it has none */
  const DLTensor
      *cu_seqlens; /* packed sequences, batch being 1: the first row of each and the end of the last, int32 or
                                 * int64 [entries + 1], which do not fall. NULL: an entry is a batch entry */
  /* The state before the first token, and after the last; initial NULL: 0. They may be one tensor, which forward then
   * updates in place; backward needs the initial state as it was. */
  const DLTensor *initial_state, *final_state;
  int state_layout; /* luattn_state_layout, of all states; needed if there are any */
  const DLTensor
      *state_indices; /* int32 or int64 [entries]: states are rows of a pool [rows, heads_v, ..], and entry i has
                                  * that row, which no other has if states are written; -1: none: o of the entry is 0, and so
                                  * are its gradients. NULL: row i */
  const DLTensor *dfinal_state; /* backward: the gradient of the final state; NULL: 0 */
  const DLTensor
      *dinitial_state; /* backward: that of the initial state, of the same shape; rows of no entry are left alone */
  int num_threads;     /* as in luattn_args */
  void *workspace;     /* on a GPU: luattn_linear_workspace_size bytes of device memory, a multiple of 16; it needs no
                    * initialisation, and calls that may run at once have one each. May be NULL where that is 0 */
  size_t workspace_size;
  /* Decoding behind a checkpoint, on a GPU: initial_state, which final_state is as well, is the state before the ring's
   * rows, and rows 0 .. ring_used - 1 stand for the tokens since. A call appends rows of its tokens behind these and
   * leaves the state alone, but where they do not fit: then it folds the old rows into the state first, and its own are
   * the first ones. ring_used is not changed: the next call gives how many rows count, so that tokens are taken back by a
   * smaller number. With rows = those of states: ring_k, ring_e [rows, heads_v, count, head_dim], ring_u, ring_y
   * [rows, heads_v, count, head_dim_v], of one type, float32, bfloat16 or float16; e and y where the spec has
   * `update.erase`; ring_decays, float32, where it has `decay`: [rows, heads_v, count, 1], or head_dim where it depends on d;
   * ring_used, int32 [entries]. Rows begin at multiples of 16 bytes, but for those of one number. */
  const DLTensor *ring_k, *ring_u, *ring_decays, *ring_e, *ring_y, *ring_used;
  /* Forward: states before every states_every tokens of an entry, a multiple of 64: before token 0, states_every,
   * 2 * states_every, ..: [batch, count, heads_v, ..] with a state's last two axes, count being the tokens over states_every,
   * rounded up. With cu_seqlens batch is 1 and count is tokens / states_every, rounded down, + entries: those of entry i begin at
   * cu_seqlens[i] / states_every + i, and what lies between is left alone, as are those of entries without a state. The
   * first two axes are as of a contiguous tensor. They have no gradient. */
  const DLTensor *intermediate_states;
  int64_t states_every;
  /* On a GPU: luattn_linear_kept_size bytes of device memory, a multiple of 16, which forward fills and backward of the same
   * arguments takes in place of computing states and inverses of chunks again; backward leaves it as it is. NULL: it computes
   * them. */
  void *kept;
  size_t kept_size;
} luattn_linear_args;

/* Run on the CPU, token by token, in double precision; each result is rounded once, to its tensor's type. Any number of
 * threads gives the same bits. With LUATTN_CHECK=1 in the environment, forward refuses decays above 0 (growth). Errors:
 * LUATTN_UNSUPPORTED (a spec of attention), LUATTN_INVALID (names the argument, its value and what is expected). */
LUATTN_API luattn_status luattn_cpu_linear_forward(const luattn_spec *spec, const luattn_linear_args *args,
                                                   luattn_error *err);
LUATTN_API luattn_status luattn_cpu_linear_backward(const luattn_spec *spec, const luattn_linear_args *args,
                                                    luattn_error *err);

/* On the engine's device: by a kernel that is compiled on first use, or on the CPU as above, with host tensors and no
 * stream. Kernels are for sm_80 and newer, of float64, float32, bfloat16 and float16, with head_dim and head_dim_v up to
 * 256, multiples of 8, of which `luattn emit --stage plan` says which kernel it is; others are refused by name. On a GPU q, k, v and o
 * are of one type, states float32, bfloat16 or float16, or float64 beside q of float64, cu_seqlens and state_indices int32 in device memory. Kernels trust
 * state_indices to be rows that there are, no two alike where states are written; with LUATTN_CHECK=1 in the environment they are checked,
 * as are cu_seqlens, and decays above 0 are refused, after the launch. o may not be NULL on a GPU. May be captured into a
 * CUDA graph.
 * Errors: LUATTN_UNSUPPORTED, LUATTN_INVALID, LUATTN_COMPILE, LUATTN_CUDA, .. */
LUATTN_API luattn_status luattn_linear_forward(luattn_engine *engine, const luattn_spec *spec,
                                               const luattn_linear_args *args, void *stream, luattn_error *err);
/* Backward, of the same specs and types. On Hopper additive updates and the delta rule have kernels of chunks, in half precision
 * and up to 128 channels; all else is walked token by token, with a state for each.
 * dq, dk and dv have q's type, gradients of inputs and scalars are float32, or float64 beside q of float64, contiguous. dout may not be NULL on a GPU. The
 * same bits in every run. */
LUATTN_API luattn_status luattn_linear_backward(luattn_engine *engine, const luattn_spec *spec,
                                                const luattn_linear_args *args, void *stream, luattn_error *err);
/* The bytes of workspace of forward and of backward for these arguments, which may be 0. Reads q, k, v, cu_seqlens and inputs, whose data may be
 * NULL, and of backward dout too, and which gradients are given. */
LUATTN_API luattn_status luattn_linear_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                                      const luattn_linear_args *args, size_t *size, luattn_error *err);
LUATTN_API luattn_status luattn_linear_backward_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                                               const luattn_linear_args *args, size_t *size,
                                                               luattn_error *err);
/* The bytes that forward can keep for backward (luattn_linear_args.kept), read from the same members: of updates that erase, whose
 * decays do not differ between channels, by kernels of chunks; else 0. */
LUATTN_API luattn_status luattn_linear_kept_size(luattn_engine *engine, const luattn_spec *spec,
                                                 const luattn_linear_args *args, size_t *size, luattn_error *err);
/* The same with a kernel that was loaded from an image of a spec of linear attention; what is kept by one of forward. */
LUATTN_API luattn_status luattn_linear_launch(const luattn_kernel *kernel, const luattn_linear_args *args, void *stream,
                                              luattn_error *err);
LUATTN_API luattn_status luattn_linear_launch_size(const luattn_kernel *kernel, const luattn_linear_args *args,
                                                   size_t *size, luattn_error *err);
LUATTN_API luattn_status luattn_linear_launch_kept_size(const luattn_kernel *kernel, const luattn_linear_args *args,
                                                        size_t *size, luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
