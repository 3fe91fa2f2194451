#include "common/call/batch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool batch_is_packed(const luattn_batch *batch) { return batch != NULL && batch->array[BATCH_CU_SEQLENS_Q].is_given; }

bool batch_is_paged(const luattn_batch *batch) {
  return batch != NULL && (batch->array[BATCH_BLOCK_TABLE].is_given ||
                           (batch->array[BATCH_SEQUSED_K].is_given && !batch->array[BATCH_CU_SEQLENS_K].is_given));
}

bool batch_has_one_page(const luattn_batch *batch) {
  return !batch->array[BATCH_BLOCK_TABLE].is_given || batch->pages == 1;
}

int64_t batch_longest_paged(const luattn_batch *batch, int64_t page_size) {
  const int64_t pages = batch->array[BATCH_BLOCK_TABLE].is_given ? batch->pages : 1;
  int64_t room;
  if (__builtin_mul_overflow(pages, page_size, &room)) room = INT64_MAX;
  return batch->has_longest[1] && batch->lengths[1].longest < room ? batch->lengths[1].longest : room;
}

int64_t batch_longest_appended(const luattn_batch *batch, int64_t page_size, const int64_t *new_k) {
  const int64_t packed = batch->lengths[0].longest > 0 ? batch->lengths[0].longest : new_k[0],
                rows = batch_is_packed(batch) ? packed : new_k[2], before = batch_longest_paged(batch, page_size);
  if (!batch->has_longest[1]) return before;
  luattn_batch room = *batch;
  room.has_longest[1] = false;
  const int64_t most = batch_longest_paged(&room, page_size);
  return before < most - rows ? before + rows : most;
}

int64_t batch_page_of(const batch_pages *pages, const luattn_batch *batch, int64_t entry, int64_t i) {
  return pages->table == NULL ? entry : pages->table[entry * batch->pages + i / pages->page_size];
}

bool batch_pages_ok(const batch_pages *pages, const luattn_batch *batch, char *text, size_t size) {
  for (int64_t b = 0; b < pages->entries; ++b) {
    const int64_t used = pages->used[b];
    if (used < 0 || used > pages->longest) {
      const bool is_asked = batch->has_longest[1] && batch->lengths[1].longest == pages->longest;
      snprintf(text, size, "batch: seqused_k: is %" PRId64 " for entry %" PRId64 ", expected 0 to %" PRId64 ": %s",
               used, b, pages->longest,
               is_asked               ? "max_seqlen_k; give a larger one"
               : pages->table != NULL ? "all rows of its pages in block_table; give it more columns"
                                      : "all rows that k and v have for it");
      return false;
    }
    for (int64_t i = 0; i < used; i += pages->page_size) {
      const int64_t page = batch_page_of(pages, batch, b, i);
      if (page >= 0 && page < pages->num_pages) continue;
      snprintf(text, size,
               "batch: block_table: is %" PRId64 " for entry %" PRId64 ", page %" PRId64 ", whose %" PRId64
               " rows need it; k and v have %" PRId64 " pages",
               page, b, i / pages->page_size, used, pages->num_pages);
      return false;
    }
  }
  return true;
}

bool batch_has_chunks(const luattn_batch *batch) {
  return batch != NULL && (batch->array[BATCH_Q_CHUNKS].is_given || batch->array[BATCH_KV_CHUNKS].is_given);
}

int32_t batch_whole_length(const luattn_batch *batch, int side, int64_t sequence) {
  return batch_at(&batch->array[BATCH_Q_CHUNKS + side], sequence);
}

luattn_offsets batch_offsets(const luattn_batch *batch) {
  if (batch == NULL) return LUATTN_OFFSET_NONE;
  if (batch_has_chunks(batch)) return LUATTN_OFFSET_CHUNKS;
  if (batch->array[BATCH_Q_OFFSETS].is_given || batch->array[BATCH_KV_OFFSETS].is_given) return LUATTN_OFFSET_ARRAYS;
  for (int i = 0; i < 2; ++i)
    if (batch->offset[i].number != 0 || batch->offset[i].whole != 0) return LUATTN_OFFSET_NUMBERS;
  return batch->heads != 0 ? LUATTN_OFFSET_NUMBERS : LUATTN_OFFSET_NONE;
}

bool batch_on_host(const batch_array *array) { return array->is_given && array->given.device.device_type == kDLCPU; }

int32_t batch_at(const batch_array *array, int64_t i) {
  int32_t x;
  memcpy(&x, (const char *)array->given.data + array->given.byte_offset + (size_t)i * sizeof x, sizeof x);
  return x;
}

/* The longest sequence; or -1, and an error. */
static int64_t read_longest(const batch_array *cu, const char *place, luattn_error *err) {
  int64_t longest = 0;
  if (batch_at(cu, 0) != 0) {
    luattn_fail(err, LUATTN_INVALID, "%s: %s: begins with %d, expected 0", place, cu->name, batch_at(cu, 0));
    return -1;
  }
  for (int64_t i = 0; i + 1 < cu->count; ++i) {
    const int64_t length = (int64_t)batch_at(cu, i + 1) - batch_at(cu, i);
    if (length < 0) {
      luattn_fail(err, LUATTN_INVALID,
                  "%s: %s: falls from %d to %d at sequence %" PRId64 ", expected values that never fall", place,
                  cu->name, batch_at(cu, i), batch_at(cu, i + 1), i);
      return -1;
    }
    if (length > longest) longest = length;
  }
  return longest;
}

/* Checks the used lengths of side 0 or 1 that are in host memory, against cu_seqlens if those are, too. */
static luattn_status check_used(const luattn_batch *batch, int side, const char *place, luattn_error *err) {
  const batch_array *cu = &batch->array[BATCH_CU_SEQLENS_Q + side], *used = &batch->array[BATCH_SEQUSED_Q + side];
  if (!batch_on_host(used)) return LUATTN_OK;
  for (int64_t i = 0; i < used->count; ++i) {
    const int32_t x = batch_at(used, i);
    const bool bounded = side == 1 && !cu->is_given && batch->has_longest[1]; /* keys in pages */
    const int64_t most = batch_on_host(cu) ? (int64_t)batch_at(cu, i + 1) - batch_at(cu, i)
                         : bounded         ? batch->lengths[1].longest
                                           : INT32_MAX;
    if (x < 0 || x > most)
      return luattn_fail(err, LUATTN_INVALID, "%s: %s: is %d for sequence %" PRId64 ", expected 0 to %" PRId64 "%s",
                         place, used->name, x, i, most, batch_on_host(cu) ? ", its length" : "");
  }
  return LUATTN_OK;
}

int batch_used(const luattn_batch *batch, int side, int64_t sequence, int length) {
  const batch_array *used = &batch->array[BATCH_SEQUSED_Q + side];
  return used->is_given ? batch_at(used, sequence) : length;
}

luattn_status batch_read_lengths(luattn_batch *batch, const char *place, luattn_error *err) {
  for (int i = 0; i < 2; ++i) {
    const batch_array *cu = &batch->array[BATCH_CU_SEQLENS_Q + i];
    batch_lengths *lengths = &batch->lengths[i];
    if (!batch_on_host(cu)) continue;
    const int64_t longest = read_longest(cu, place, err);
    if (longest < 0) return LUATTN_INVALID;
    if (!batch->has_longest[i]) lengths->longest = longest;
    if (longest > lengths->longest)
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: %s: is %" PRId64 ", and the longest sequence has %" PRId64 " rows; give its length, or 0",
                         place, lengths->name, lengths->longest, longest);
    lengths->total = batch_at(cu, cu->count - 1);
  }
  TRY(check_used(batch, 0, place, err));
  return check_used(batch, 1, place, err);
}

size_t batch_array_room(const batch_array *array) { return ((size_t)array->count * sizeof(int32_t) + 255) / 256 * 256; }

bool batch_heads_of(const luattn_batch *batch, int heads, int heads_kv, batch_heads *out, char *text, size_t size) {
  *out = (batch_heads){.heads = heads, .heads_kv = heads_kv};
  if (batch == NULL || batch->heads == 0) return true;
  const int64_t whole = batch->heads, first = batch->head_offset, group = heads / heads_kv;
  if (first + heads > whole) {
    snprintf(text, size,
             "batch: head_offset: is %" PRId64 ", and q has %d heads, which are more than the whole's %" PRId64, first,
             heads, whole);
    return false;
  }
  const int64_t whole_kv = batch->heads_kv != 0 ? batch->heads_kv : whole / group;
  bool agrees = whole_kv > 0 && whole % whole_kv == 0;
  const int64_t whole_group = agrees ? whole / whole_kv : 1, first_kv = first / whole_group;
  for (int64_t h = 0; agrees && h < heads; ++h) agrees = (first + h) / whole_group - first_kv == h / group;
  if (!agrees) {
    snprintf(text, size,
             "batch: heads_kv: %" PRId64 " heads and %" PRId64
             " of keys, of which the call has %d and %d from head %" PRId64
             " on, do not agree: query heads would read other heads of keys than in the whole",
             whole, whole_kv, heads, heads_kv, first);
    return false;
  }
  *out = (batch_heads){(int)first, (int)first_kv, (int)whole, (int)whole_kv};
  return true;
}

static bool side_is_part(const luattn_batch *batch, int side, int64_t length, bool differs) {
  const batch_offset *offset = &batch->offset[side];
  if (batch->array[BATCH_Q_OFFSETS + side].is_given || batch->array[BATCH_Q_CHUNKS + side].is_given) return true;
  if (offset->number != 0) return true;
  return offset->whole != 0 && (differs || offset->whole != length);
}

bool batch_reads_whole(const luattn_batch *batch, const char *input, int32_t axis, const batch_own *own,
                       const batch_heads *whole, char *text, size_t size) {
  static const struct {
    const char *name, *place, *of;
  } texts[] = {
      [-LUATTN_AXIS_H] = {"h", "h", "q has a part of the heads"},
      [-LUATTN_AXIS_HKV] = {"hkv", "h // (heads // heads_kv)", "k has a part of the heads"},
      [-LUATTN_AXIS_Q] = {"q", "q_idx", "q is a part of the whole"},
      [-LUATTN_AXIS_KV] = {"kv", "kv_idx", "k is a part of the whole"},
  };
  bool is_part = false;
  if (batch == NULL) return true;
  if (axis == LUATTN_AXIS_Q) is_part = side_is_part(batch, 0, own->q_len, own->differ);
  if (axis == LUATTN_AXIS_KV) is_part = side_is_part(batch, 1, own->kv_len, own->differ);
  if (axis == LUATTN_AXIS_H) is_part = whole->heads != own->heads;
  if (axis == LUATTN_AXIS_HKV) is_part = whole->heads_kv != own->heads_kv;
  if (!is_part) return true;
  snprintf(text, size,
           "input '%s': the spec reads its axis %s elsewhere than at %s, and %s, which may lack that place; declare a "
           "free axis "
           "instead, as axes = {\"n\"}, and give the input of the whole",
           input, texts[-axis].name, texts[-axis].place, texts[-axis].of);
  return false;
}

/* Whether side's chunks have `length` rows, inside the whole as far as values are known. */
static bool chunks_ok(const luattn_batch *batch, int side, int64_t length, char *text, size_t size) {
  const batch_array *array = &batch->array[BATCH_Q_CHUNKS + side];
  const int64_t rows = batch->chunk_rows, whole = batch->offset[side].whole, count = (length + rows - 1) / rows;
  if (array->count != count) {
    snprintf(text, size,
             "batch: %s: has %" PRId64 " elements, and %s's length of %" PRId64 " takes %" PRId64 " chunks of %" PRId64
             " rows; give one for each",
             array->name, array->count, side == 0 ? "q" : "k", length, count, rows);
    return false;
  }
  for (int64_t i = 0; i < count && batch_on_host(array); ++i) {
    const int64_t first = batch_at(array, i), own = length - i * rows < rows ? length - i * rows : rows;
    if (first >= 0 && first + own <= whole) continue;
    snprintf(text, size,
             "batch: %s: is %" PRId64 " for chunk %" PRId64 ", whose %" PRId64 " rows do not lie in %s of %" PRId64
             "; give positions of the whole",
             array->name, first, i, own, side == 0 ? "q_len" : "kv_len", whole);
    return false;
  }
  return true;
}

bool batch_offset_ok(const luattn_batch *batch, int side, int64_t entries, int64_t length, int64_t most, char *text,
                     size_t size) {
  const batch_offset *offset = &batch->offset[side];
  const batch_array *array = &batch->array[BATCH_Q_OFFSETS + side];
  if (array->is_given && array->count != entries) {
    snprintf(text, size, "batch: %s: has %" PRId64 " elements, expected %" PRId64 ", one for each batch entry",
             array->name, array->count, entries);
    return false;
  }
  if (offset->whole > most) {
    snprintf(text, size,
             "batch: %s: is %" PRId64 ", but this spec's index arithmetic or grid ends at %" PRId64
             "; shorten it, or use smaller factors or a larger grid in the spec",
             side == 0 ? "q_len" : "kv_len", offset->whole, most);
    return false;
  }
  if (batch->chunk_memory[side] != NULL && batch->longest_whole[side] > most) {
    snprintf(text, size,
             "batch: cu_seqlens_%s: has a sequence of %" PRId64
             " rows, but this spec's index arithmetic or grid ends at %" PRId64
             "; shorten it, or use smaller factors or a larger grid in the spec",
             side == 0 ? "q" : "k", batch->longest_whole[side], most);
    return false;
  }
  if (batch->chunk_memory[side] != NULL) return true;
  if (batch->array[BATCH_Q_CHUNKS + side].is_given) return chunks_ok(batch, side, length, text, size);
  const int64_t limit = offset->whole != 0 ? offset->whole : most;
  if (offset->number + length <= limit) return true;
  snprintf(text, size,
           "batch: %s: is %" PRId64 ", and with %s's length of %" PRId64 " exceeds %s of %" PRId64
           "; give a smaller offset%s",
           offset->name, offset->number, side == 0 ? "q" : "k", length,
           offset->whole != 0 ? "the whole's length" : "the length at which this spec's index arithmetic or grid ends",
           limit, offset->whole != 0 ? ", or a longer whole" : "");
  return false;
}
