/* natten.h: neighborhood attention with the arguments of NATTEN up to 0.17, fused and in two steps.
 *
 * In two steps: scores of each query with the keys of its window (qk), and sums of values by such weights (av), with their
 * gradients. Layouts are
 *
 * query, key       [batch, heads, .., head_dim]      .. are the 1 to 3 axes of a grid, the innermost last
 * value, out       [batch, heads, .., head_dim_v]
 * attn             [batch, heads, .., taps]           taps: the product of kernel_size, the innermost axis fastest
 * rel_pos_bias     [heads, 2 kernel_size - 1 an axis]  at (key - query) / dilation + kernel_size - 1
 *
 * with any strides but for the last axis, which is contiguous. key and value may have fewer heads, a divisor of query's.
 * The keys of a query are, along each axis, the kernel_size nearest of those that lie a multiple of dilation away, from
 * the first one on; at an end the window is shifted, so that all exist. With is_causal it ends at the query, and taps
 * behind that do not exist: their scores are -inf, and their gradients 0. Types are float64, float32, bfloat16 and
 * float16, all alike, but for d_rel_pos_bias: float32, of float64 float64. Sums are in float32, of float64 in float64,
 * and on the CPU in double; each result is rounded once, and is the same in every run.
 *
 * With extra keys that all queries see, attn may be a part of a wider tensor: rows with a stride.
 *
 * Fused (luattn_na_forward) it is a spec of neighborhood { .. } over a grid, which the engine writes, loads and keeps: the
 * same as luattn_forward of one, with heads last.
 */
#ifndef LUATTN_NATTEN_H
#define LUATTN_NATTEN_H

#include "luattn/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LUATTN_NA_MAX_RANK 3

/* The same for each entry: of axis 0, 1, .. of `rank`. */
typedef struct luattn_na_window {
  int rank;
  int64_t kernel_size[LUATTN_NA_MAX_RANK]; /* 2 to the extent / dilation */
  int64_t dilation[LUATTN_NA_MAX_RANK];    /* 0: 1 */
  int is_causal[LUATTN_NA_MAX_RANK];
} luattn_na_window;

typedef struct luattn_na_qk_args {
  size_t struct_size;
  luattn_na_window window;
  const DLTensor *query, *key;
  const DLTensor *rel_pos_bias; /* forward; NULL: none */
  const DLTensor *attn;         /* forward: the result */
  const DLTensor *d_attn;       /* backward; its results, NULL: not wanted */
  const DLTensor *d_query, *d_key, *d_rel_pos_bias;
} luattn_na_qk_args;

typedef struct luattn_na_av_args {
  size_t struct_size;
  luattn_na_window window;
  const DLTensor *attn, *value;
  const DLTensor *out;   /* forward: the result */
  const DLTensor *d_out; /* backward; its results, NULL: not wanted */
  const DLTensor *d_attn, *d_value;
} luattn_na_av_args;

/* query, output, grad_output, grad_query [batch, .., heads, head_dim or head_dim_v], key and value alike, with any strides
 * but for the last axis. */
typedef struct luattn_na_args {
  size_t struct_size;
  luattn_na_window window;
  int64_t stride[LUATTN_NA_MAX_RANK]; /* 1 to kernel_size, 0: 1: so many queries in a row share a window */
  const DLTensor *query, *key, *value;
  const DLTensor *output; /* forward: the result; backward: that of forward */
  const DLTensor
      *logsumexp; /* [batch, heads, ..], contiguous, float32, of float64 float64. forward: NULL: not wanted */
  const DLTensor *rel_pos_bias; /* or NULL; as above, beside is_causal too */
  const DLTensor *grad_output;
  const DLTensor *grad_query, *grad_key, *grad_value; /* NULL: not wanted */
  const DLTensor *grad_rel_pos_bias;                  /* float32, of float64 float64; NULL: not wanted */
  double attn_scale;                                  /* 0: head_dim^-1/2 */
  /* The boxes of queries and of keys that a tile of the pass has, 1 to 256 places along each axis: as
   * luattn_args.query_tile_size and key_tile_size. All 0: the engine chooses by mask and extents. The product is exactly a
   * tile that a kernel has: 32 as {32}, {4, 8} or {2, 2, 8}. Of others LUATTN_INVALID lists those that there are, which
   * depend on the device, the type, the head dims and the pass. The CPU has no tiles, and takes any. */
  int64_t query_tile_size[LUATTN_NA_MAX_RANK], key_tile_size[LUATTN_NA_MAX_RANK];
  /* Checked, and without effect: 0 to ceil(ceil(extent / dilation) / key_tile_size) along each axis, a key_tile_size of 0
   * counted as 1. No kernel here splits keys into parts whose number could be chosen. */
  int64_t num_splits_key[LUATTN_NA_MAX_RANK];
  int compute_delta_with_torch; /* 0 or 1, without effect: kernels sum output * grad_output in float32 either way */
  void *workspace;              /* as luattn_args.workspace */
  size_t workspace_size;
} luattn_na_args;

/* The bytes that a pass needs: luattn_engine_workspace_size of its spec. */
LUATTN_API luattn_status luattn_na_workspace_size(luattn_engine *engine, luattn_pass pass, const luattn_na_args *args,
                                                  size_t *size, luattn_error *err);
/* As luattn_forward and luattn_backward. Errors name q, k, v, o and so on as luattn/tensors.h does. */
LUATTN_API luattn_status luattn_na_forward(luattn_engine *engine, const luattn_na_args *args, void *stream,
                                           luattn_error *err);
LUATTN_API luattn_status luattn_na_backward(luattn_engine *engine, const luattn_na_args *args, void *stream,
                                            luattn_error *err);

/* Each runs on the engine's device, on a GPU on `stream` (it may be captured into a CUDA graph, and allocates nothing);
 * the first call with a type compiles its kernel by NVRTC. On the CPU `stream` is NULL. Outputs must not overlap each
 * other or an input. Errors: LUATTN_INVALID (names the tensor or the member, its value and what is expected),
 * LUATTN_COMPILE, LUATTN_CUDA; with luattn_engine_options.never_compile LUATTN_UNSUPPORTED. */
LUATTN_API luattn_status luattn_na_qk(luattn_engine *engine, const luattn_na_qk_args *args, void *stream,
                                      luattn_error *err);
LUATTN_API luattn_status luattn_na_qk_backward(luattn_engine *engine, const luattn_na_qk_args *args, void *stream,
                                               luattn_error *err);
LUATTN_API luattn_status luattn_na_av(luattn_engine *engine, const luattn_na_av_args *args, void *stream,
                                      luattn_error *err);
LUATTN_API luattn_status luattn_na_av_backward(luattn_engine *engine, const luattn_na_av_args *args, void *stream,
                                               luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
