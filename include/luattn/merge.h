/* merge.h: merges attention over parts of the keys, such as those of the ranks of a ring, of a prefix that many
 * sequences share (cascade), or of pieces of a cache, into attention over all of them; and its gradient.
 *
 * A part is what forward gives for the same queries and some of the keys: o and lse. Where P = exp(score - lse), which
 * holds for softmax with any score_mod and mask, lse says all of a part that a merge needs (equation 3 of
 * FlashAttention, Dao et al. 2022, arXiv:2205.14135, for finished parts):
 *
 *     lse = log sum_i exp(lse_i)         w_i = exp(lse_i - lse)         o = sum_i w_i o_i
 *
 * A part that keeps nothing of a row has lse_i = -inf there, or +inf, as FlashAttention says it: it has no weight, and
 * its o_i is not used. Where all parts are so, o is 0 and lse is -inf. There is no NaN then. A spec whose denominator
 * has a term of its own, as softmax_one and a sink have, would count that term once for each part; luattn_spec_merges
 * tells.
 *
 * The parts of every other online function whose parts merge, those with a sink, retention, sigmoid, or one of your
 * own, merge by their state (luattn_spec_parts). Forward of the spec of parts gives o as the spec itself would, and in
 * `saved` the state of the online function, with whatever else of the row a merge reads. With the factors f_i of the
 * sums of parts, which the compiler derives and tests as it does for its own kernels, and o = scale(state) * sum:
 *
 *     state = merge of all state_i       w_i = f_i scale(state) / scale(state_i)      o = sum_i w_i o_i
 *
 * The gradient of a merge by lse follows by differentiation: d w_j / d lse_i = w_j ([i = j] - w_i), and d lse / d lse_i
 * = w_i. Hence
 *
 *     d_o_i = w_i dout         d_lse_i = w_i (<dout, o_i> - sum_j w_j <dout, o_j> + dlse)
 *
 * and both are 0 for a part without weight. Backward of each part then takes them as its dout and dlse, so a ring or a
 * cascade has its whole gradient from calls of luattn_backward on its parts. It computes w_i anew, and needs neither o
 * nor lse of the merge.
 *
 * A merge by state needs no gradient of its own: backward recomputes P of any keys from what it knows of the whole row,
 * and that is what such a merge gives: o, lse and saved. Call luattn_backward of the spec itself for each part's q, k
 * and v with these, and with dout and dlse of the merge. dk and dv are the part's. dq is to be added up, and so is what
 * inputs and scalars get from scores. What they get once a row, as a sink does, is whole in the result of each part
 * that has keys: take one of them.
 *
 * Parts are merged in their order: the result does not depend on which was computed first. Sums are in float32, for
 * float64 in float64, and on the CPU in double; o is rounded once.
 */
#ifndef LUATTN_MERGE_H
#define LUATTN_MERGE_H

#include "luattn/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LUATTN_MERGE_MAX 16 /* parts of one call; merge more in turn */

/* Whether parts of this spec merge by lse: tests rows of random scores, each whole and in three parts, which takes
 * milliseconds. Errors: LUATTN_UNSUPPORTED: they do not, or it has no lse; the message has a row that shows it. */
LUATTN_API luattn_status luattn_spec_merges(const luattn_spec *spec, luattn_error *err);

/* Makes of `spec` the spec of its parts, for luattn_merge_args.spec: it computes the same o, and runs wherever the spec
 * does, dense, packed, over pages, in decoding and on the CPU, forward alone. What it saves is the state, of
 * luattn_spec_info.num_saved numbers a row: [num_saved, batch, heads, q_len], or packed [num_saved, heads, total_q],
 * contiguous, float32 (float64 for float64), as luattn_args.saved. Its lse is the spec's, or 0 if that has none, and
 * -inf in rows that keep nothing. Specs that differ in masks and score_mods alone have the same state, if at most one
 * number of it is no row scalar of the online function, as a sink is not. Takes milliseconds, for rows of random scores
 * on which the merge is tested. Calls with luattn_args.large_scores save other numbers, and do not merge. Free the spec
 * of parts by luattn_spec_free, after engines have forgotten it and before `spec`. Errors: LUATTN_UNSUPPORTED: no merge
 * was found, or a finished part has lost its sum; the message has a row that shows it. LUATTN_INVALID: `spec` is such a
 * spec already. */
LUATTN_API luattn_status luattn_spec_parts(const luattn_spec *spec, luattn_spec **parts, luattn_error *err);

/* Shapes are those of luattn/tensors.h: o [batch, heads, q_len, head_dim_v] with lse [batch, heads, q_len], or packed o
 * [total_q, heads, head_dim_v] with lse [heads, total_q]. Any strides, with a contiguous last axis of o. All parts have
 * the same shape and type. */
typedef struct luattn_part {
  const DLTensor *o;   /* float64, float32, bfloat16 or float16 */
  const DLTensor *lse; /* float32, with o of float64 float64 */
  const DLTensor *d_o; /* backward: their gradients, of the same shapes and types; NULL: not wanted */
  const DLTensor *d_lse;
} luattn_part;

typedef struct luattn_merge_args {
  size_t struct_size;
  const luattn_part *parts;
  size_t num_parts;  /* 1 to LUATTN_MERGE_MAX */
  const DLTensor *o; /* forward: the results. lse may be NULL: not wanted. o may have another type than the parts, if
                      * both or neither are float64: partial results in float32 lose nothing */
  const DLTensor *lse;
  const DLTensor *dout, *dlse; /* backward: gradients of o and lse. One of them may be NULL: 0 */
  /* By state: what luattn_spec_parts made, and what its forward saved of each part, [num_parts], any strides. NULL: by
   * lse, and the members below are NULL too. */
  const luattn_spec *spec;
  const DLTensor *const *states;
  const DLTensor *state; /* the result's, for another merge with the same spec; NULL: not wanted */
  const DLTensor *saved; /* luattn_args.saved of the whole rows, for backward of the spec that `spec` was made of:
                          * [num_saved, batch, heads, q_len] or [num_saved, heads, total_q] of that; NULL: not wanted */
} luattn_merge_args;

/* Merges on the engine's device. On a GPU it runs on `stream`, may be captured into a CUDA graph, and allocates
 * nothing; the first call of a pass for a pair of types of parts and o, and for up to 2, 4 or 16 parts, compiles its
 * kernel by NVRTC, which takes some tenths of a second, and which the engine keeps (one with never_compile:
 * LUATTN_UNSUPPORTED). On the CPU, `stream` is NULL and the call returns when all is written. Outputs must not overlap
 * each other or an input. With args->spec, each spec has kernels of its own. Errors: LUATTN_INVALID (names the tensor,
 * its value and what is expected), LUATTN_COMPILE, LUATTN_CUDA. */
LUATTN_API luattn_status luattn_merge(luattn_engine *engine, const luattn_merge_args *args, void *stream,
                                      luattn_error *err);
/* The gradients of parts that are not NULL. LUATTN_UNSUPPORTED with args->spec: a merge by state has none of its own
 * (above). */
LUATTN_API luattn_status luattn_merge_backward(luattn_engine *engine, const luattn_merge_args *args, void *stream,
                                               luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
