/* batch.h: what is the same for all layers of a step: of which whole a call's tensors are a part. One handle, made once, serves forward
 * and backward of any number of layers, specs, types and head dims (luattn_args.batch), on a GPU and on the CPU. A call without one
 * takes its tensors for the whole, and its kernels know of nothing else.
 *
 *     the whole      q_len                     a call's q: q_offset .. q_offset + its length - 1
 *       |------------[=========]----|          a call's k, v: kv_offset ..
 *                    q_offset
 *
 * Hooks see positions, heads and lengths of the whole: q_idx, kv_idx, pos, h, q_len, kv_len, heads, heads_kv. So a shard of the heads
 * has the slopes that alibi() gives these heads, a chunk of the queries is masked where it stands, and a cache of keys that is
 * filled step by step keeps those up to the query. Inputs are the call's own: their axes b, h, hkv, q and kv have the sizes of its
 * tensors, and an index of theirs, which a spec writes with positions and heads of the whole, means the same element.
 *
 * Thread safety: a luattn_batch is immutable, and may be used by several threads at once.
 */
#ifndef LUATTN_BATCH_H
#define LUATTN_BATCH_H

#include "luattn/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_batch_options {
  size_t struct_size;
  int64_t q_offset, kv_offset;              /* at least 0 */
  /* Or one for each batch entry: int32 [batch], contiguous, where q, k and v are; the number beside it is then 0. They are read
   * by the kernels, so that a CUDA graph that is replayed finds what has been written meanwhile, and must outlive the launches. What
   * is below 0, or so large that offset and length exceed the whole's length (where none is given, what the spec's index arithmetic
   * allows: luattn_kernel_description.max_len), is taken as the nearest that is not, and no error tells. */
  const DLTensor *q_offsets, *kv_offsets;
  int64_t q_len, kv_len;                    /* of the whole; 0: of each batch entry, offset and length */
  int64_t head_offset;                      /* of query heads; with one, heads are given */
  int64_t heads, heads_kv;                  /* of the whole; heads 0: the call's. heads_kv 0: in the call's ratio of heads to
                                             * heads_kv. A call's query head reads the same key head in the whole as in the call */
} luattn_batch_options;

/* Copies *options; of q_offsets and kv_offsets the addresses. Errors: LUATTN_INVALID (names the option, its value and what is
 * expected), LUATTN_NO_MEMORY. What depends on the tensors, as offset and length together, is checked by each call. */
LUATTN_API luattn_status luattn_batch_open(const luattn_batch_options *options, luattn_batch **batch, luattn_error *err);
LUATTN_API void luattn_batch_close(luattn_batch *batch); /* NULL is fine. After the last launch that it is given to has returned */

#ifdef __cplusplus
}
#endif
#endif
