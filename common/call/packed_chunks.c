#include "common/call/packed_chunks.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/call/batch.h"
#include "common/call/limits.h"

/* The arrays of side 0 (queries) or 1 (keys), of the whole. */
typedef struct whole_side {
  const batch_array *cu, *used, *chunks;
  int64_t sequences, count, chunk_rows;
} whole_side;

static whole_side side_of(const luattn_batch *batch, int side) {
  const batch_array *cu = &batch->array[BATCH_CU_SEQLENS_Q + side], *chunks = &batch->array[BATCH_Q_CHUNKS + side];
  return (whole_side){
      cu, &batch->array[BATCH_SEQUSED_Q + side], chunks, cu->count - 1, chunks->count, batch->chunk_rows};
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t common_divisor(int64_t a, int64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

static luattn_status check_host(const batch_array *array, luattn_error *err) {
  if (!array->is_given || batch_on_host(array)) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "luattn_batch_open: %s: is in device memory, and of packed sequences in chunks it is read when the "
      "batch is opened; give it in host memory: luattn_batch_prepare copies what kernels read",
      array->name);
}

static luattn_status check_chunks(const whole_side *s, luattn_error *err) {
  const int64_t total = batch_at(s->cu, s->sequences);
  for (int64_t i = 0; i < s->count; ++i) {
    const int64_t first = batch_at(s->chunks, i), least = i > 0 ? batch_at(s->chunks, i - 1) + s->chunk_rows : 0;
    if (first < least || first > total || first % LUATTN_CHUNK_MULTIPLE != 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_batch_open: %s: is %" PRId64 " for chunk %" PRId64
                         ", expected a multiple of %d from %" PRId64 " to %" PRId64
                         ": chunks of packed sequences are in the order of the whole, and share no rows",
                         s->chunks->name, first, i, LUATTN_CHUNK_MULTIPLE, least, total);
  }
  for (int64_t b = 0; b < s->sequences; ++b) {
    const int64_t first = batch_at(s->cu, b);
    if (first % LUATTN_CHUNK_MULTIPLE != 0 && batch_at(s->cu, b + 1) > first)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_batch_open: %s: sequence %" PRId64 " begins with row %" PRId64
                         ", and in chunks packed sequences begin at multiples of %d, so that no tile has rows of two "
                         "chunks; pad the sequences, and give their lengths in %s",
                         s->cu->name, b, first, LUATTN_CHUNK_MULTIPLE, s->used->name);
  }
  return LUATTN_OK;
}

/* The rows of a block: where a chunk or a sequence begins, one does. */
static int64_t block_rows(const whole_side *s, int64_t rows) {
  for (int64_t i = 0; i < s->count; ++i) rows = common_divisor(batch_at(s->chunks, i), rows);
  for (int64_t b = 0; b < s->sequences; ++b)
    if (batch_at(s->cu, b + 1) > batch_at(s->cu, b)) rows = common_divisor(batch_at(s->cu, b), rows);
  return rows;
}

/* The rows that the call has of the whole's first `end` ones. */
static int64_t rows_before(const whole_side *s, int64_t end) {
  int64_t rows = 0;
  for (int64_t i = 0; i < s->count; ++i) {
    const int64_t first = batch_at(s->chunks, i);
    if (end > first) rows += smaller(end - first, s->chunk_rows);
  }
  return rows;
}

/* Writes positions of blocks; what lies behind the last sequence has position 0. */
static void write_blocks(const whole_side *s, int64_t size, int32_t *out) {
  const int64_t total = batch_at(s->cu, s->sequences);
  int64_t b = 0;
  for (int64_t i = 0; i < s->count; ++i)
    for (int64_t at = 0; at < s->chunk_rows; at += size) {
      const int64_t row = batch_at(s->chunks, i) + at;
      if (row >= total) return;
      while (row >= batch_at(s->cu, b + 1)) ++b;
      *out++ = (int32_t)(row - batch_at(s->cu, b));
    }
}

static void replace(batch_array *array, int32_t *data, int64_t count) {
  array->given = (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}};
  array->count = count;
}

static luattn_status make_side(luattn_batch *batch, int side, int64_t size, luattn_error *err) {
  const whole_side s = side_of(batch, side);
  const int64_t n = s.sequences, own = rows_before(&s, batch_at(s.cu, n)), blocks = (own + size - 1) / size;
  int32_t *cu = calloc((size_t)(3 * n + 1 + blocks) + 1, sizeof *cu), *used = cu != NULL ? cu + n + 1 : NULL;
  if (cu == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_batch_open: out of memory");
  batch->chunk_memory[side] = cu;
  int32_t *lengths = used + n;
  for (int64_t b = 0; b < n; ++b) {
    const int64_t first = batch_at(s.cu, b),
                  length = batch_used(batch, side, b, batch_at(s.cu, b + 1) - (int32_t)first);
    cu[b] = (int32_t)rows_before(&s, first);
    used[b] = (int32_t)(rows_before(&s, first + length) - cu[b]);
    lengths[b] = (int32_t)length;
    if (length > batch->longest_whole[side]) batch->longest_whole[side] = length;
  }
  cu[n] = (int32_t)own;
  write_blocks(&s, size, lengths + n);
  replace(&batch->array[BATCH_CU_SEQLENS_Q + side], cu, n + 1);
  replace(&batch->array[BATCH_Q_CHUNKS + side], lengths, n + blocks);
  if (s.used->is_given) replace(&batch->array[BATCH_SEQUSED_Q + side], used, n);
  return LUATTN_OK;
}

luattn_status packed_chunks_take(luattn_batch *batch, luattn_error *err) {
  int64_t size = batch->chunk_rows;
  for (int i = 0; i < 2; ++i) {
    const whole_side s = side_of(batch, i);
    if (!s.chunks->is_given) continue;
    TRY(check_host(s.cu, err));
    TRY(check_host(s.used, err));
    TRY(check_host(s.chunks, err));
    TRY(check_chunks(&s, err));
    size = block_rows(&s, size);
  }
  for (int i = 0; i < 2; ++i)
    if (batch->array[BATCH_Q_CHUNKS + i].is_given) TRY(make_side(batch, i, size, err));
  batch->chunk_rows = size;
  return batch_read_lengths(batch, "luattn_batch_open", err);
}
