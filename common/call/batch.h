/* batch.h: the contents of a luattn_batch. Shared by the GPU and the CPU path. */
#ifndef LUATTN_COMMON_BATCH_H
#define LUATTN_COMMON_BATCH_H

#include <stdbool.h>

#include "common/fail.h"
#include "luattn/batch.h"
#include "luattn/compiler.h"

/* The int32 arrays that a batch may have. Those of queries and of keys are neighbours, queries first. */
typedef enum batch_array_name {
  BATCH_Q_OFFSETS,
  BATCH_KV_OFFSETS,
  BATCH_CU_SEQLENS_Q,
  BATCH_CU_SEQLENS_K,
  BATCH_SEQUSED_Q,
  BATCH_SEQUSED_K,
  BATCH_BLOCK_TABLE,
  BATCH_Q_CHUNKS,
  BATCH_KV_CHUNKS,
  BATCH_ARRAYS
} batch_array_name;

typedef struct batch_array {
  const char *name; /* "cu_seqlens_q" */
  bool is_given;
  DLTensor given; /* int32 [count], without shape and strides */
  int64_t count;
  const void *prepared; /* the copy in memory of device `device` that luattn_batch_prepare made, or NULL */
  int device;
} batch_array;

/* The offset of the queries or of the keys; its array is in luattn_batch.array. */
typedef struct batch_offset {
  const char *name;      /* "q_offset" */
  int64_t number, whole; /* whole: the whole's length; 0: not given */
} batch_offset;

/* The lengths of packed queries or keys. */
typedef struct batch_lengths {
  const char *name; /* "max_seqlen_q" */
  int64_t longest;
  int64_t total; /* the last value of cu_seqlens, if luattn has read it; otherwise -1 */
} batch_lengths;

/* An input that a mask reads. */
typedef struct batch_mask_input {
  const void *data;
  long long stride[4];
  int size[4];
  uint32_t dtype; /* luattn_input_dtype */
} batch_mask_input;

/* The tile bits of a mask from data (runtime/parts/batch_masks.h), and what they were made for. */
typedef struct batch_mask {
  const void *memory; /* rows, columns, minima with which bits are made, and orders of tiles, on the device */
  size_t rows_size, bits_size, orders_at, size; /* orders_at: of the orders' first byte; `size`: there are none */
  int device;
  uint32_t spec[4]; /* manifest_tile_bits.spec */
  bool is_float64;  /* made by a float64 kernel */
  int q_len, kv_len, batch, heads, heads_kv;
  batch_mask_input input[12];
  double scalar[32];
} batch_mask;

enum { BATCH_MAX_MASKS = 8 };

/* The list of a decode kernel's blocks that luattn_batch_prepare_tiles made (runtime/parts/split_list.h), and what it
 * was made for. */
typedef struct batch_splits {
  const void *memory; /* on the device, or NULL */
  int device;
  int64_t entries, queries, group, tile_m, chunk;
  uint32_t most_items, most_parts; /* LuattnSplitList */
} batch_splits;

struct luattn_batch {
  batch_array array[BATCH_ARRAYS];
  batch_offset offset[2];   /* of queries, of keys */
  batch_lengths lengths[2]; /* likewise */
  bool has_longest[2];      /* max_seqlen is the caller's, not computed */
  int64_t chunk_rows;       /* of q_chunks and kv_chunks */
  int32_t *chunk_memory[2]; /* of packed sequences in chunks: the arrays of a side (packed_chunks.h); else NULL */
  int64_t longest_whole[2]; /* and the longest of the whole's sequences */
  int64_t head_offset, heads, heads_kv;
  int64_t pages;     /* of an entry, in block_table; 0: there is no table */
  const void *table; /* the table of packed sequences that luattn_batch_prepare_tiles made, in memory of device
                        `table_device`, or NULL */
  int table_device;
  int64_t table_rows[2]; /* the rows of q and of k that it was made for */
  batch_splits splits;
  batch_mask *mask; /* [BATCH_MAX_MASKS], or NULL if it has none */
  int num_masks;
};

/* Each of these takes NULL for a call without a batch. */
bool batch_is_packed(const luattn_batch *batch); /* q is, and k and v unless they are paged */
bool batch_is_paged(const luattn_batch *batch);  /* k and v are pages, or a cache of which entries use a part */
bool batch_has_chunks(const luattn_batch *batch);
/* The whole length of a packed sequence, whose side is in chunks. */
int32_t batch_whole_length(const luattn_batch *batch, int side, int64_t sequence);
luattn_offsets batch_offsets(
    const luattn_batch *batch); /* the kind of kernel that its offsets need: none if all are 0 */

/* Value i of an array in host memory. */
int32_t batch_at(const batch_array *array, int64_t i);
bool batch_on_host(const batch_array *array);

/* The used length of a packed sequence, of side 0 (queries) or 1, which has `length` rows; arrays are in host
 * memory. */
int batch_used(const luattn_batch *batch, int side, int64_t sequence, int length);

size_t batch_array_room(const batch_array *array); /* bytes in a batch's device memory, a multiple of 256 */

/* Whether each entry has one page at most, so that no tile of keys has rows of two. */
bool batch_has_one_page(const luattn_batch *batch);
/* The longest entry of a call whose k and v have pages of `page_size` rows, as far as is known. */
int64_t batch_longest_paged(const luattn_batch *batch, int64_t page_size);
/* The same of a cache to which new rows are appended, with these: of new_k's shape; packed rows are those of
 * cu_seqlens_q. */
int64_t batch_longest_appended(const luattn_batch *batch, int64_t page_size, const int64_t *new_k);

/* k and v in pages. */
typedef struct batch_pages {
  int64_t entries, num_pages, page_size, longest;
  const int32_t *used, *table; /* copies in host memory of seqused_k, block_table; no table: entry b has page b */
} batch_pages;

/* The page that has position i of an entry. */
int64_t batch_page_of(const batch_pages *pages, const luattn_batch *batch, int64_t entry, int64_t i);
/* Returns whether the numbers of all pages that entries need are pages, and lengths are within bounds. *text: a message
 * without its place. */
bool batch_pages_ok(const batch_pages *pages, const luattn_batch *batch, char *text, size_t size);

/* Reads the cu_seqlens and used lengths that are in host memory: checks their values, and finds totals and longest
 * sequences. `place` starts the message: "luattn_batch_open". Errors: LUATTN_INVALID. */
luattn_status batch_read_lengths(luattn_batch *batch, const char *place, luattn_error *err);

/* Numbers of heads of the whole, as hooks see them. */
typedef struct batch_heads {
  int offset, offset_kv, heads, heads_kv;
} batch_heads;

/* Computes them for a call of so many heads. *text: a message without its place. */
bool batch_heads_of(const luattn_batch *batch, int heads, int heads_kv, batch_heads *out, char *text, size_t size);

/* What a call has itself, of the whole. */
typedef struct batch_own {
  int64_t q_len, kv_len;
  bool differ; /* between entries: the numbers above are those of the longest */
  int heads, heads_kv;
} batch_own;

/* Returns whether an input that a spec reads at other places of axis `axis` (LUATTN_AXIS_Q, .._KV, .._H, .._HKV) than
 * its own has them all: not if the call has a part along that axis. `whole`: its heads. *text: a message without its
 * place. */
bool batch_reads_whole(const luattn_batch *batch, const char *input, int32_t axis, const batch_own *own,
                       const batch_heads *whole, char *text, size_t size);

/* Returns whether the offsets of side 0 (queries) or 1 (keys) suit a call of `entries` batch entries with at most
 * `length` positions; `most`: the longest whole that the spec's index arithmetic allows. *text: a message without its
 * place. */
bool batch_offset_ok(const luattn_batch *batch, int side, int64_t entries, int64_t length, int64_t most, char *text,
                     size_t size);

#endif
