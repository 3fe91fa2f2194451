/* batch.h: what all layers of a step share (luattn_args.batch): the lengths of packed sequences, keys in pages, the
 * offsets of a call whose tensors are a part of a larger problem ("the whole"), and which tiles masks from data keep.
 * One handle serves any number of layers, passes, specs, types and head dims. Without one, batch entries have equal
 * lengths and the tensors are the whole. docs/batch.md explains the parts, with pictures and calls.
 *
 * Arrays are int32 and contiguous, outlive the calls that use them, and overlap no output. Kernels read them in device
 * memory when they run, as a replayed CUDA graph does; those in host memory luattn_batch_prepare copies for a GPU.
 *
 * Thread safety: no other thread may use a batch during luattn_batch_prepare and luattn_batch_prepare_tiles or _mask.
 * Apart from that, it is immutable, and several threads may use it at once. */
#ifndef LUATTN_BATCH_H
#define LUATTN_BATCH_H

#include "luattn/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_batch_options {
  size_t struct_size;
  int64_t q_offset, kv_offset; /* at least 0 */
  /* Or one offset for each batch entry: [batch]; q_offset or kv_offset is then 0. An offset below 0, or so large that
   * offset + length exceeds the whole's length (or, if q_len or kv_len is 0, the limit
   * luattn_kernel_description.max_len), is clamped to the nearest valid one without an error. */
  const DLTensor *q_offsets, *kv_offsets;
  int64_t q_len, kv_len;   /* of the whole; 0: offset + length, for each batch entry */
  int64_t head_offset;     /* of query heads; if it is not 0, heads must be set */
  int64_t heads, heads_kv; /* of the whole. heads 0: the call's. heads_kv 0: from the call's ratio of heads to
                            * heads_kv. A query head must read the same key head in the whole as in the call */
  /* Packed sequences, or NULL: both or neither. [batch + 1]: sequence b has rows cu_seqlens_q[b] .. cu_seqlens_q[b + 1]
   * - 1 of q and o, and likewise with cu_seqlens_k of k and v. The values start at 0, never decrease, and end at the
   * totals, at most 2^30, or before; a sequence may be empty. luattn checks these rules for arrays in host memory. In
   * device memory it does so only with LUATTN_CHECK=1 in the environment, for launches that are not captured. Else
   * kernels clamp the values to the tensors: results are then not defined, and memory of others is neither read nor
   * written. */
  const DLTensor *cu_seqlens_q, *cu_seqlens_k;
  /* The length of the longest sequence, or an upper bound of it. 0: luattn computes it
   * from cu_seqlens in host memory; with device memory, no sequence has rows. With device memory, a longer sequence is
   * cut without an error: kernels compute only its first max_seqlen_q rows, from its first max_seqlen_k keys. */
  int64_t max_seqlen_q, max_seqlen_k;
  /* Or NULL: how many of each packed sequence's rows are used, [batch], 0 to the sequence's length. seqused_k without
   * cu_seqlens_k: of keys in pages, or of a cache. The others do not exist: hooks see the used lengths, and nothing
   * reads rows behind them. luattn checks values in host memory, and in device memory with LUATTN_CHECK=1; kernels
   * clamp others. */
  const DLTensor *seqused_q, *seqused_k;
  /* Or NULL: [batch, max_pages]: the page of k and v that has an entry's rows i * page_size .. (i + 1) * page_size - 1,
   * for each i. Needs seqused_k, and goes without cu_seqlens_k. max_seqlen_k is then an upper bound of seqused_k; 0:
   * max_pages * page_size. luattn checks numbers in host memory. In device memory it does so only with LUATTN_CHECK=1
   * in the environment, for launches that are not captured: kernels take a number that they need and that is no page
   * for the last page. */
  const DLTensor *block_table;
  /* Or NULL: q, or k and v, are chunks of the whole, in any order: rows i * chunk_rows .. of each tensor are its
   * positions q_chunks[i] .., [chunks]. chunk_rows is a multiple of 128, of both sides; the last chunk may have fewer
   * rows. Needs q_len (kv_len) of the whole, and goes without q_offset, q_offsets and pages. Values are checked in host
   * memory; others are clamped as offsets are. All batch entries have the same chunks.
   *
   * Of packed sequences, positions are rows of the packed whole, in its order, and multiples of 128; cu_seqlens and
   * seqused of such a side are those of the whole, too, and so is where every sequence begins, a multiple of 128, behind
   * rows that seqused leaves out if need be. q_len (kv_len) is 0. A sequence has those of its rows that chunks have; hooks
   * see its positions and its length in the whole. These arrays are in host memory, read when the batch is opened:
   * luattn_batch_prepare copies what is made of them, and changes need another batch. */
  const DLTensor *q_chunks, *kv_chunks;
  int64_t chunk_rows;
} luattn_batch_options;

/* Copies *options, but keeps only the addresses of the arrays. Errors: LUATTN_INVALID (names the option, its
 * value and what is expected), LUATTN_NO_MEMORY. Each call checks what depends on its tensors, such as offset +
 * length. */
LUATTN_API luattn_status luattn_batch_open(const luattn_batch_options *options, luattn_batch **batch,
                                           luattn_error *err);
LUATTN_API void luattn_batch_close(luattn_batch *batch); /* NULL is fine. Not before the last launch with it has
                                                          * returned */

/* The number of bytes of device memory that luattn_batch_prepare needs; 0 if no array is in host memory. It depends
 * only on the shapes of these arrays, so memory for the largest batch serves all. */
LUATTN_API luattn_status luattn_batch_size(const luattn_batch *batch, size_t *size, luattn_error *err);

/* Copies the arrays that are in host memory to `memory`, asynchronously on `stream`, so that later launches on this
 * device can use them. `memory`: `size` bytes on this device, 256-byte aligned; it belongs to this batch alone and must
 * outlive those launches. The copy may be captured into a CUDA graph: each replay copies the current contents of the
 * host arrays without checking them, so the arrays must outlive the graph. Call it again after changing an array.
 * Errors: LUATTN_INVALID (too little memory; values as in luattn_batch_open), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_batch_prepare(luattn_batch *batch, luattn_driver *driver, int device, void *memory,
                                              size_t size, void *stream, luattn_error *err);

/* The number of bytes of device memory for the table of a packed call's tiles: about half a byte for each row of q and
 * of k, and 100 for each sequence. Of a decode kernel, for the list of its blocks: 24 for each entry's tile of rows
 * (queries times query heads of a kv head), and 128 bytes for each block that runs at once, over the number of kv heads
 * (at least 1 KB); of a deterministic one, 16 more for each LUATTN_SPLIT_KEYS (2048) of max_seqlen_k, 64 times at most.
 * Reads what luattn_workspace_size reads. 0: the kernel has neither (equal lengths, other kernels of families other
 * than sm90, the CPU), and luattn_batch_prepare_tiles does nothing. Errors: LUATTN_INVALID, as a launch's. */
LUATTN_API luattn_status luattn_batch_tiles_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                                 luattn_error *err);

/* Makes the table on `stream`, of the lengths that cu_seqlens have there, in `memory`: `size` bytes on the kernel's
 * device, 256-byte aligned, which belong to this batch alone and must outlive the launches that use them. `args`: as of
 * a launch; q, k and v need shapes alone. args->batch counts as `batch`. Later launches on this device with this batch
 * use the table if most sequences are shorter than the longest one. They do not see that cu_seqlens have changed since,
 * and then leave rows out or use wrong ones: call this again, or give cu_seqlens a batch without a table. With
 * LUATTN_CHECK=1 in the environment, launches that are not captured make the table again, wait, and compare. A launch
 * with other totals of rows is LUATTN_INVALID.
 *
 * Of a decode kernel, makes the list of its blocks. Launches of decode kernels with this batch, and num_splits 0, use
 * it. One with other numbers of entries, of queries (max_seqlen_q) or of query heads for a kv head, with other tiles,
 * or deterministic where the list was made for one that is not, is LUATTN_INVALID. After a change of cu_seqlens_q or
 * seqused_q, or for a deterministic kernel of any length, call this again: rows that the list does not know would not
 * be written; LUATTN_CHECK=1 finds that.
 *
 * The call reads nothing back and may be captured into a CUDA graph, whose replays make the table of the current
 * lengths. Errors: LUATTN_INVALID (as a launch's; too little memory), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_batch_prepare_tiles(luattn_batch *batch, const luattn_kernel *kernel,
                                                    const luattn_args *args, void *memory, size_t size, void *stream,
                                                    luattn_error *err);

/* The number of bytes of device memory for the tile bits of this call's mask: about (q_len / 64) * (kv_len / 64) / 2,
 * for each batch entry and head if the mask differs between them, and some for minima of what it reads and for the
 * order of tiles. Reads what luattn_workspace_size reads. 0: the mask needs no bits, because ranges and minima decide
 * it, or a batch keeps none for the kernel yet (packed sequences, offsets, the CPU); luattn_batch_prepare_mask then
 * does nothing. Errors: LUATTN_INVALID, as a launch's. */
LUATTN_API luattn_status luattn_batch_mask_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                                luattn_error *err);

/* Evaluates this call's mask on `stream`, and stores its tile bits in `memory`: `size` bytes on the kernel's device,
 * 256-byte aligned, which belong to this batch alone and must outlive the launches that use them. `args`: as of a
 * launch; q, k and v need shapes alone, and inputs need data. args->batch counts as `batch`.
 *
 * The batch remembers what the bits were made for: the spec, the lengths, and what its mask reads of numbers of batch
 * entries and heads, scalars, and inputs (address, shape, strides). Launches of this spec with this batch use the bits,
 * unless luattn_args.skip is LUATTN_SKIP_NEVER; one that differs in one of these is LUATTN_INVALID, and the message has
 * both values. The contents of inputs cannot be compared: call this again after they change. With LUATTN_CHECK=1 in the
 * environment, launches that are not captured evaluate the mask again, wait, and compare.
 *
 * A batch holds up to 8 masks: of several specs, or of a spec with several inputs or lengths. Bits for the same
 * arguments, or in the same memory, replace earlier ones. The call may be captured into a CUDA graph, whose replays
 * evaluate the mask for the current contents of its inputs; then they must outlive the graph. Errors: LUATTN_INVALID
 * (as a launch's; too little memory; a ninth mask), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_batch_prepare_mask(luattn_batch *batch, const luattn_kernel *kernel,
                                                   const luattn_args *args, void *memory, size_t size, void *stream,
                                                   luattn_error *err);

/* New rows of keys and values for a cache: of luattn_append, or of a forward that writes them first
 * (luattn_args.append). */
typedef struct luattn_append_args {
  size_t struct_size;
  const DLTensor *k, *v;         /* the cache, in pages or not, as in luattn_args; luattn_append writes there */
  const DLTensor *new_k, *new_v; /* [batch, heads_kv, rows, head_dim], [.., head_dim_v]; packed [total rows, heads_kv,
                                  * ..], where batch has cu_seqlens_q, which then says which rows are of which entry */
  const luattn_batch
      *batch; /* seqused_k: how many rows each entry has before. block_table: has the pages for the new ones, too */
  /* With a kernel of keys_modified: what its spec's key_mod and value_mod read; as in luattn_args, others may be
   * missing. An axis kv has a place for each row that an entry may have with its new ones: max_seqlen_k and the new
   * rows, or all that the cache has room for. */
  const luattn_input *inputs;
  size_t num_inputs;
  const luattn_scalar *scalars;
  size_t num_scalars;
} luattn_append_args;

/* Writes new_k and new_v to the cache on `stream`: row i of entry b becomes its position seqused_k[b] + i. seqused_k
 * does not change: add the rows to it for the calls that are to see them. `kernel`: any forward kernel with
 * luattn_target.pages, of these tensors' type and head dims, packed if batch has cu_seqlens_q.
 *
 * Rows are copied as they are, unless the kernel has keys_modified and its spec a key_mod or value_mod: these are then
 * applied, at the row's position (and kv_offset of the batch), as attention without keys_modified would apply them to
 * raw rows, and rounded to the cache's type. Append and attend with kernels of the same spec and the same
 * keys_modified; an engine finds both by luattn_args.keys_modified. Attention without it over rows that were appended
 * with it, or the reverse, applies a rotary embedding twice, or never, and no error tells.
 *
 * On the CPU, and with LUATTN_CHECK=1 in the environment for calls that are not captured, cu_seqlens_q, room and
 * numbers of pages are checked. Else, on a GPU, rows for which the table or the cache has no place, or whose number of
 * a page is none, are left out, and so are those behind the last entry's. Entries may share pages, but not places for
 * new rows. k, v, what is read and the arrays share no memory. May be captured into a CUDA graph. Errors:
 * LUATTN_INVALID (shapes, types, devices; another kernel), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_append(const luattn_kernel *kernel, const luattn_append_args *args, void *stream,
                                       luattn_error *err);

/* Lists of blocks, as FlexAttention's BlockMask has them: int32 arrays, each list by its count and its indices, or
 * neither. Blocks in the first list are kept in part, as the mask says, those in the second entirely, others not at
 * all. */
typedef struct luattn_block_lists {
  size_t struct_size;
  const DLTensor *kv_num_blocks, *kv_indices;           /* [b, h, qblocks], [b, h, qblocks, most] */
  const DLTensor *full_kv_num_blocks, *full_kv_indices; /* likewise */
} luattn_block_lists;

/* Writes such lists as a table, on `stream`: uint8 [b, h, qblocks, kvblocks], contiguous; 0: in no list, 1: in part, 2:
 * entirely. A spec's mask reads it as an input, of blocks of any size (docs/masks_from_data.md):
 *
 *     local t = blocks[{b, h, q_idx // 128, kv_idx // 128}]
 *     return eq(t, 2) or (eq(t, 1) and kv_idx <= q_idx)
 *
 * `kernel`: any of that spec. b and h of lists and table are the same; 1 where they are for all. A count above `most`
 * counts as `most`; indices that are no block are left out; a block in both lists is in the second. May be captured
 * into a CUDA graph. Errors: LUATTN_INVALID (shapes, types, devices; a kernel whose mask reads no input of dtype u8
 * with four axes), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_block_table(const luattn_kernel *kernel, const luattn_block_lists *lists,
                                            const DLTensor *table, void *stream, luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
