/* batch_open.c: opens a luattn_batch: checks what its options say. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/call/batch.h"
#include "common/call/dtype_text.h"
#include "common/call/limits.h"
#include "common/call/packed_chunks.h"
#include "common/struct_size.h"

static luattn_status take_number(const char *name, int64_t value, int64_t most, luattn_error *err) {
  if (value >= 0 && value <= most) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: is %" PRId64 ", expected 0 to %" PRId64, name, value,
                     most);
}

static luattn_status take_array(batch_array *out, const char *name, const char *axes, const DLTensor *t,
                                luattn_error *err) {
  *out = (batch_array){.name = name};
  if (t == NULL) return LUATTN_OK;
  if (t->ndim != 1 || t->shape == NULL || t->shape[0] < 0)
    return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: expected one axis: [%s]", name, axes);
  char type[DTYPE_TEXT_SIZE];
  dtype_text(t->dtype, type, sizeof type);
  if (t->dtype.code != kDLInt || t->dtype.bits != 32 || t->dtype.lanes != 1)
    return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: has dtype %s, expected int32; convert it", name,
                       type);
  if (t->strides != NULL && t->shape[0] > 1 && t->strides[0] != 1)
    return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: has stride %" PRId64 ", expected 1; copy it", name,
                       t->strides[0]);
  if (t->shape[0] > 0 && t->data == NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: its data pointer is NULL; give it memory", name);
  out->is_given = true;
  out->count = t->shape[0];
  out->given = *t;
  out->given.shape = out->given.strides = NULL;
  return LUATTN_OK;
}

/* Takes block_table as an array of one axis. */
static luattn_status take_table(const DLTensor *t, luattn_batch *batch, luattn_error *err) {
  batch_array *const out = &batch->array[BATCH_BLOCK_TABLE];
  const char *const name = "block_table";
  if (t == NULL) return take_array(out, name, "", NULL, err);
  if (t->ndim != 2 || t->shape == NULL || t->shape[0] < 0 || t->shape[1] < 1)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: %s: expected two axes: [batch, max_pages], of at least one page", name);
  const bool wide = t->strides != NULL && t->shape[0] > 1 && t->strides[0] != t->shape[1];
  if (wide || (t->strides != NULL && t->shape[1] > 1 && t->strides[1] != 1))
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: %s: has strides %" PRId64 ", %" PRId64 ", expected %" PRId64
                       ", 1; make it contiguous",
                       name, t->strides[0], t->strides[1], t->shape[1]);
  int64_t count;
  if (__builtin_mul_overflow(t->shape[0], t->shape[1], &count) || t->shape[1] > INT32_MAX)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: %s: has %" PRId64 " pages of an entry, expected at most %d", name,
                       t->shape[1], INT32_MAX);
  DLTensor flat = *t;
  flat.ndim = 1;
  flat.shape = &count;
  flat.strides = NULL;
  TRY(take_array(out, name, "batch, max_pages", &flat, err));
  batch->pages = t->shape[1];
  return LUATTN_OK;
}

static luattn_status take_arrays(const luattn_batch_options *o, luattn_batch *batch, luattn_error *err) {
  static const char *const name[] = {"q_offsets",    "kv_offsets", "cu_seqlens_q",
                                     "cu_seqlens_k", "seqused_q",  "seqused_k"};
  const DLTensor *const given[] = {o->q_offsets,    o->kv_offsets, o->cu_seqlens_q,
                                   o->cu_seqlens_k, o->seqused_q,  o->seqused_k};
  for (int i = 0; i < BATCH_BLOCK_TABLE; ++i) {
    const bool is_cu = i == BATCH_CU_SEQLENS_Q || i == BATCH_CU_SEQLENS_K;
    TRY(take_array(&batch->array[i], name[i], is_cu ? "batch + 1" : "batch", given[i], err));
  }
  return take_table(o->block_table, batch, err);
}

/* Takes chunks, once offsets, lengths of the whole and what is packed are known. */
static luattn_status take_chunks(const luattn_batch_options *o, luattn_batch *batch, luattn_error *err) {
  static const char *const name[] = {"q_chunks", "kv_chunks"}, *const length[] = {"q_len", "kv_len"};
  const DLTensor *const given[] = {o->q_chunks, o->kv_chunks};
  batch->chunk_rows = o->chunk_rows;
  for (int i = 0; i < 2; ++i) {
    const batch_array *offsets = &batch->array[BATCH_Q_OFFSETS + i];
    TRY(take_array(&batch->array[BATCH_Q_CHUNKS + i], name[i], "chunks", given[i], err));
    if (given[i] == NULL) continue;
    if (batch_is_packed(batch) && batch->offset[i].whole != 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_batch_open: %s: is given beside %s and packed sequences, whose lengths are those of "
                         "%s; leave it 0",
                         length[i], name[i], batch->array[BATCH_CU_SEQLENS_Q + i].name);
    if (!batch_is_packed(batch) && batch->offset[i].whole == 0)
      return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: is 0, and %s is given; give the whole's length",
                         length[i], name[i]);
    if (offsets->is_given || batch->offset[i].number != 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_batch_open: %s: is given beside %s; chunks have positions of their own: leave it out",
                         offsets->is_given ? offsets->name : batch->offset[i].name, name[i]);
    if (batch_is_paged(batch))
      return luattn_fail(err, LUATTN_UNSUPPORTED,
                         "luattn_batch_open: %s: is given beside keys in pages, which have no chunks: call for each "
                         "range, and give offsets",
                         name[i]);
  }
  for (int i = 0; i < 2 && batch_has_chunks(batch); ++i)
    if (batch->array[BATCH_Q_OFFSETS + i].is_given)
      return luattn_fail(
          err, LUATTN_INVALID,
          "luattn_batch_open: %s: is given beside %s; with chunks of one side the other has chunks, or one "
          "offset for all entries",
          batch->array[BATCH_Q_OFFSETS + i].name, name[1 - i]);
  if (!batch_has_chunks(batch)) return take_number("chunk_rows", o->chunk_rows, 0, err);
  if (o->chunk_rows > 0 && o->chunk_rows % LUATTN_CHUNK_MULTIPLE == 0 && o->chunk_rows <= INT32_MAX)
    return batch_is_packed(batch) ? packed_chunks_take(batch, err) : LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "luattn_batch_open: chunk_rows: is %" PRId64
                     ", expected a multiple of %d, so that no tile has rows "
                     "of two chunks",
                     o->chunk_rows, LUATTN_CHUNK_MULTIPLE);
}

static luattn_status take_offsets(const luattn_batch_options *o, luattn_batch *batch, luattn_error *err) {
  static const char *const length[] = {"q_len", "kv_len"};
  batch->offset[0] = (batch_offset){"q_offset", o->q_offset, o->q_len};
  batch->offset[1] = (batch_offset){"kv_offset", o->kv_offset, o->kv_len};
  for (int i = 0; i < 2; ++i) {
    const batch_offset *side = &batch->offset[i];
    const batch_array *array = &batch->array[BATCH_Q_OFFSETS + i];
    TRY(take_number(side->name, side->number, INT32_MAX, err));
    TRY(take_number(length[i], side->whole, INT32_MAX, err));
    if (array->is_given && side->number != 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_batch_open: %s: is %" PRId64 ", and %s is given; leave the number 0", side->name,
                         side->number, array->name);
  }
  return LUATTN_OK;
}

/* The name of a member of packed sequences that is given; NULL: none is. */
static const char *given_of_packed(const luattn_batch *batch) {
  for (int i = 0; i < 2; ++i)
    if (batch->array[BATCH_CU_SEQLENS_Q + i].is_given) return batch->array[BATCH_CU_SEQLENS_Q + i].name;
  for (int i = 0; i < 2; ++i)
    if (batch->array[BATCH_SEQUSED_Q + i].is_given) return batch->array[BATCH_SEQUSED_Q + i].name;
  for (int i = 0; i < 2; ++i)
    if (batch->lengths[i].longest != 0) return batch->lengths[i].name;
  return NULL;
}

/* Checks that an array of paged keys has `expected` elements. */
static luattn_status check_count(const batch_array *array, int64_t count, int64_t expected, const char *by,
                                 luattn_error *err) {
  if (!array->is_given || count == expected) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "luattn_batch_open: %s: has %" PRId64 " entries, and %s %" PRId64 "; give one for each",
                     array->name, count, by, expected);
}

/* Lengths of keys in pages, and of queries that may be packed. */
static luattn_status take_paged(luattn_batch *batch, luattn_error *err) {
  const batch_array *cu = &batch->array[BATCH_CU_SEQLENS_Q], *used = &batch->array[BATCH_SEQUSED_Q],
                    *table = &batch->array[BATCH_BLOCK_TABLE];
  for (int i = 0; i < 2; ++i) {
    TRY(take_number(batch->lengths[i].name, batch->lengths[i].longest, INT32_MAX, err));
    batch->has_longest[i] = batch->lengths[i].longest != 0;
  }
  if (cu[1].is_given)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: cu_seqlens_k: is given beside block_table; keys in pages have lengths "
                       "alone: leave it NULL");
  if (!used[1].is_given)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: seqused_k: is missing, and block_table is given; give each entry's length");
  if (!cu[0].is_given && (used[0].is_given || batch->has_longest[0]))
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: cu_seqlens_q: is missing, and %s is given; it is of packed queries",
                       used[0].is_given ? used[0].name : batch->lengths[0].name);
  if (cu[0].is_given && cu[0].count < 1)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: cu_seqlens_q: has no elements, expected at least 1: [batch + 1]");
  const int64_t entries = used[1].count;
  TRY(check_count(&cu[0], cu[0].count - 1, entries, "seqused_k", err));
  TRY(check_count(&used[0], used[0].count, entries, "seqused_k", err));
  TRY(check_count(table, batch->pages > 0 ? table->count / batch->pages : 0, entries, "seqused_k", err));
  return batch_read_lengths(batch, "luattn_batch_open", err);
}

static luattn_status take_lengths(const luattn_batch_options *o, luattn_batch *batch, luattn_error *err) {
  batch->lengths[0] = (batch_lengths){"max_seqlen_q", o->max_seqlen_q, -1};
  batch->lengths[1] = (batch_lengths){"max_seqlen_k", o->max_seqlen_k, -1};
  if (batch_is_paged(batch)) return take_paged(batch, err);
  const batch_array *cu = &batch->array[BATCH_CU_SEQLENS_Q];
  const char *given = given_of_packed(batch);
  if (given == NULL) return LUATTN_OK;
  for (int i = 0; i < 2; ++i) {
    TRY(take_number(batch->lengths[i].name, batch->lengths[i].longest, INT32_MAX, err));
    batch->has_longest[i] = batch->lengths[i].longest != 0;
    if (!cu[i].is_given)
      return luattn_fail(
          err, LUATTN_INVALID,
          "luattn_batch_open: %s: is missing, and %s is given; packed sequences need cu_seqlens of both q "
          "and k, entries of equal lengths none of them",
          cu[i].name, given);
    if (cu[i].count < 1)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_batch_open: %s: has no elements, expected at least 1: [batch + 1]", cu[i].name);
  }
  if (cu[0].count != cu[1].count)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: cu_seqlens_k: has %" PRId64 " elements, and cu_seqlens_q %" PRId64
                       "; both have one more than there are sequences",
                       cu[1].count, cu[0].count);
  for (int i = 0; i < 2; ++i) {
    const batch_array *used = &batch->array[BATCH_SEQUSED_Q + i];
    if (used->is_given && used->count != cu[0].count - 1)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_batch_open: %s: has %" PRId64 " elements, expected %" PRId64 ", one for each sequence",
                         used->name, used->count, cu[0].count - 1);
  }
  return batch_read_lengths(batch, "luattn_batch_open", err);
}

static luattn_status take_heads(const luattn_batch_options *o, luattn_error *err) {
  TRY(take_number("head_offset", o->head_offset, LUATTN_MAX_HEADS, err));
  TRY(take_number("heads", o->heads, LUATTN_MAX_HEADS, err));
  TRY(take_number("heads_kv", o->heads_kv, LUATTN_MAX_HEADS, err));
  if (o->heads == 0 && (o->head_offset != 0 || o->heads_kv != 0))
    return luattn_fail(
        err, LUATTN_INVALID, "luattn_batch_open: heads: is 0, and %s is %" PRId64 "; give the heads of the whole",
        o->head_offset != 0 ? "head_offset" : "heads_kv", o->head_offset != 0 ? o->head_offset : o->heads_kv);
  return LUATTN_OK;
}

static luattn_status fill(const luattn_batch_options *o, luattn_batch *batch, luattn_error *err) {
  batch->head_offset = o->head_offset;
  batch->heads = o->heads;
  batch->heads_kv = o->heads_kv;
  TRY(take_arrays(o, batch, err));
  TRY(take_offsets(o, batch, err));
  TRY(take_lengths(o, batch, err));
  TRY(take_chunks(o, batch, err));
  return take_heads(o, err);
}

luattn_status luattn_batch_open(const luattn_batch_options *options, luattn_batch **batch, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_batch_options, q_offsets);
  luattn_batch_options taken;
  fail_clear(err);
  NEED(options);
  NEED(batch);
  *batch = NULL;
  TRY(struct_take(&rule, "luattn_batch_open", options, &taken, err));
  luattn_batch *made = calloc(1, sizeof *made);
  if (made == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_batch_open: out of memory");
  const luattn_status status = fill(&taken, made, err);
  if (status == LUATTN_OK)
    *batch = made;
  else
    luattn_batch_close(made);
  return status;
}

void luattn_batch_close(luattn_batch *batch) {
  if (batch == NULL) return;
  for (int i = 0; i < 2; ++i) free(batch->chunk_memory[i]);
  free(batch->mask);
  free(batch);
}

luattn_status luattn_batch_size(const luattn_batch *batch, size_t *size, luattn_error *err) {
  fail_clear(err);
  NEED(batch);
  NEED(size);
  *size = 0;
  for (int i = 0; i < BATCH_ARRAYS; ++i)
    if (batch_on_host(&batch->array[i])) *size += batch_array_room(&batch->array[i]);
  return LUATTN_OK;
}
