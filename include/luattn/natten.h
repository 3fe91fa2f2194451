/* natten.h: neighborhood attention in two steps, as NATTEN had it up to 0.17: scores of each query with the keys of its
 * window (qk), and sums of values by such weights (av), with their gradients. Layouts are
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
