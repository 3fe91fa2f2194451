/* pages.h: page tables of keys, from the lists that FlashInfer's paged wrappers take.
 *
 *     kv_indptr         0 3 3 5        entry 0 has 3 pages, entry 1 none, entry 2 has 2
 *     kv_indices        4 7 1 6 0      their numbers, one entry after another
 *     kv_last_page_len  5 - 16         rows in use of each entry's last page, here of 16
 *
 *     block_table       4 7 1          seqused_k   37
 *                       - - -                      0
 *                       6 0 -                      32
 *
 * Written once a step, block_table and seqused_k serve the calls of all layers (luattn/batch.h, "Keys in pages"):
 *
 *     luattn_page_table(engine, &lists, &block_table, &seqused_k, stream, &err);
 *
 * k and v are FlashInfer's pools with other axes, as strides say: [num_pages, page_size, heads_kv, head_dim] (NHD) and
 * [num_pages, heads_kv, page_size, head_dim] (HND) are both [num_pages, heads_kv, page_size, head_dim] to luattn; so
 * are the halves of a pool [num_pages, 2, ..].
 */
#ifndef LUATTN_PAGES_H
#define LUATTN_PAGES_H

#include "luattn/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* int32 arrays with any stride, all where the engine computes. */
typedef struct luattn_page_lists {
  size_t struct_size;
  const DLTensor *kv_indptr;        /* [batch + 1], 0 or more, never decreasing: entry b has kv_indices[kv_indptr[b]] to
                                     * kv_indices[kv_indptr[b + 1] - 1]. It need not begin at 0 */
  const DLTensor *kv_indices;       /* [all pages], or longer */
  const DLTensor *kv_last_page_len; /* [batch]: 1 to page_size; of an entry without pages, any number */
  int64_t page_size;                /* rows of a page, at least 1 */
} luattn_page_lists;

/* Writes block_table [batch, max_pages] and seqused_k [batch], int32 and contiguous, on `stream`. Behind an entry's
 * last page the table has -1, and an entry without pages has seqused_k 0. On the CPU `stream` is NULL, and values are
 * checked. On a GPU they are checked with LUATTN_CHECK=1 in the environment alone, for calls that are not captured.
 * Else an entry with more pages than max_pages is cut to these, each in full, and nothing is read outside kv_indices:
 * what kv_indptr says of pages behind its end does not exist, and kv_last_page_len is clamped to 0 and page_size.
 *
 * Nothing is read back, so it may be captured into a CUDA graph, whose replays read the current lists. The first call
 * on an engine compiles its kernel by NVRTC, which takes some tenths of a second, and which the engine keeps: make it
 * before a capture. Errors: LUATTN_INVALID (names the array, its value and what is expected), LUATTN_UNSUPPORTED
 * (never_compile), LUATTN_COMPILE, LUATTN_CUDA. */
LUATTN_API luattn_status luattn_page_table(luattn_engine *engine, const luattn_page_lists *lists,
                                           const DLTensor *block_table, const DLTensor *seqused_k, void *stream,
                                           luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
