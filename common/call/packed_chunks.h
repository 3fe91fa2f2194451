/* packed_chunks.h: packed sequences whose rows are chunks of the whole. cu_seqlens and chunks say where rows lie in the whole;
 * calls need to know which of their own rows each sequence has, and at which of its positions. */
#ifndef LUATTN_COMMON_PACKED_CHUNKS_H
#define LUATTN_COMMON_PACKED_CHUNKS_H

#include "common/fail.h"

struct luattn_batch;

/* What the caller gave of the whole is replaced by what is made of it, in memory of the batch:
 *   cu_seqlens   of the call's rows: sequences are still packed there, since chunks are in the whole's order
 *   seqused      of these rows
 *   chunks       the whole length of each sequence, then the position in its sequence of the first row of each block
 *   chunk_rows   the rows of a block, a multiple of LUATTN_CHUNK_MULTIPLE: it has rows of one sequence and one chunk, side by
 *                side there
 * A side without chunks keeps its arrays. Errors: LUATTN_INVALID (by name), LUATTN_UNSUPPORTED (arrays in device memory),
 * LUATTN_NO_MEMORY. */
luattn_status packed_chunks_take(struct luattn_batch *batch, luattn_error *err);

#endif
