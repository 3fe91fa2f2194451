/* offsets.c: checks the offsets of a call, and passes them to kernels. */
#include "runtime/call/offsets.h"

#include "runtime/call/batch_arrays.h"

enum { TAKES_NUMBERS, TAKES_ARRAYS, TAKES_CHUNKS }; /* offsets_layout; the last two take numbers, too */

/* Takes an array that is of images of another layout, if it is given. */
static luattn_status take_array(const args_call *c, const batch_array *given, uint32_t layout, const char *axes,
                                const int **array) {
  if (!given->is_given) return LUATTN_OK;
  if (c->info->offsets_layout[0] != layout)
    return args_fail(c, "batch: %s: is given, and this image takes %s; compile with %s", given->name,
                     c->info->offsets_layout[0] == TAKES_NUMBERS  ? "numbers alone"
                     : c->info->offsets_layout[0] == TAKES_ARRAYS ? "no chunks"
                                                                  : "no other arrays than chunks",
                     layout == TAKES_ARRAYS ? "LUATTN_OFFSET_ARRAYS" : "LUATTN_OFFSET_CHUNKS");
  return batch_array_take(c, given, axes, given->count, array);
}

/* Takes the offsets of side 0 (queries) or 1 (keys). */
static luattn_status take_side(const args_call *c, const luattn_batch *batch, int side, int entries, int length,
                               const int **array, int *number, int *whole, int *most) {
  const batch_offset *offset = &batch->offset[side];
  const batch_array *given = &batch->array[BATCH_Q_OFFSETS + side], *chunks = &batch->array[BATCH_Q_CHUNKS + side];
  char text[400];
  if (!batch_offset_ok(batch, side, entries, length, c->info->max_len, text, sizeof text))
    return args_fail(c, "%s", text);
  *number = (int)(chunks->is_given ? batch->chunk_rows : offset->number);
  *whole = (int)offset->whole;
  /* The host does not know lengths that differ between entries. */
  const bool differs = c->info->packed || (side == 1 && c->info->paged);
  if (offset->whole == 0 && !given->is_given && !differs) *whole = (int)(offset->number + length);
  *most = offset->whole != 0 ? (int)offset->whole : (int)c->info->max_len;
  TRY(take_array(c, chunks, TAKES_CHUNKS, "chunks", array));
  return take_array(c, given, TAKES_ARRAYS, "batch", array);
}

luattn_status offsets_fill(const args_call *c, LuattnCallParams *params) {
  static const luattn_batch none = {.offset = {{.name = "q_offset"}, {.name = "kv_offset"}}};
  const luattn_batch *batch = c->args->batch != NULL ? c->args->batch : &none;
  const LuattnShape *shape = &params->dense.shape;
  LuattnOffsets *out = &params->offsets;
  if (!c->info->offsets)
    return batch_offsets(batch) == LUATTN_OFFSET_NONE
               ? LUATTN_OK
               : args_fail(c,
                           "batch: has offsets or heads of a whole, and this image is for tensors that are the whole; "
                           "compile with luattn_target.offsets");
  char text[400];
  batch_heads heads;
  if (!batch_heads_of(batch, shape->heads, shape->heads_kv, &heads, text, sizeof text)) return args_fail(c, "%s", text);
  const batch_own own = {shape->q_len, shape->kv_len, c->info->packed || c->info->paged, shape->heads, shape->heads_kv};
  for (uint32_t i = 0; i < c->info->num_elsewhere; ++i) {
    const luattn_input_info *in = &c->info->input[c->info->elsewhere[i].input];
    if (!batch_reads_whole(batch, in->name, in->axis[c->info->elsewhere[i].axis], &own, &heads, text, sizeof text))
      return args_fail(c, "%s", text);
  }
  out->head_offset = heads.offset;
  out->kv_head_offset = heads.offset_kv;
  out->heads = heads.heads;
  out->heads_kv = heads.heads_kv;
  TRY(take_side(c, batch, 0, shape->batch, shape->q_len, &out->q_offsets, &out->q_offset, &out->q_len, &out->most_q));
  return take_side(c, batch, 1, shape->batch, shape->kv_len, &out->kv_offsets, &out->kv_offset, &out->kv_len,
                   &out->most_kv);
}
