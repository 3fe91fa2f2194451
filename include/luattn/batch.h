/* batch.h: describes the larger problem ("the whole") of which a call's q, k and v are a part. All layers of a step share it: one
 * handle serves forward and backward of any number of layers, specs, types and head dims (luattn_args.batch), on a GPU and the CPU.
 * Without a handle, the call's tensors are the whole, and its kernels contain no code for offsets.
 *
 *     the whole      q_len                     a call's q: q_offset .. q_offset + its length - 1
 *       |------------[=========]----|          a call's k, v: kv_offset ..
 *                    q_offset
 *
 * Hooks see positions, heads and lengths of the whole: q_idx, kv_idx, pos, h, q_len, kv_len, heads, heads_kv. So alibi() gives a
 * shard of the heads the slopes of these heads, a chunk of queries is masked by its positions in the whole, and a causal query sees
 * the keys of a growing KV cache up to its own position. Inputs belong to the call: their axes b, h, hkv, q and kv have the sizes of
 * the call's tensors. A spec indexes them with positions and heads of the whole, and luattn subtracts the offsets.
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
  /* Or one offset for each batch entry: int32 [batch], contiguous, on the device of q, k and v; q_offset or kv_offset is then 0. The
   * kernels read the arrays, so a replayed CUDA graph uses their current contents, and the arrays must outlive the launches. An
   * offset below 0, or so large that offset + length exceeds the whole's length (or, if q_len or kv_len is 0, the limit
   * luattn_kernel_description.max_len), is clamped to the nearest valid one without an error. */
  const DLTensor *q_offsets, *kv_offsets;
  int64_t q_len, kv_len;                    /* of the whole; 0: offset + length, for each batch entry */
  int64_t head_offset;                      /* of query heads; if it is not 0, heads must be set */
  int64_t heads, heads_kv;                  /* of the whole. heads 0: the call's. heads_kv 0: from the call's ratio of heads to
                                             * heads_kv. A query head must read the same key head in the whole as in the call */
} luattn_batch_options;

/* Copies *options, but keeps only the addresses of q_offsets and kv_offsets. Errors: LUATTN_INVALID (names the option, its
 * value and what is expected), LUATTN_NO_MEMORY. Each call checks what depends on its tensors, such as offset + length. */
LUATTN_API luattn_status luattn_batch_open(const luattn_batch_options *options, luattn_batch **batch, luattn_error *err);
LUATTN_API void luattn_batch_close(luattn_batch *batch); /* NULL is fine. Not before the last launch with it has
                                                          * returned */

#ifdef __cplusplus
}
#endif
#endif
