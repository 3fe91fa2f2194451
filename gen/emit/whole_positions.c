/* whole_positions.c: prints the code for luattn_target.offsets. A spec sees positions, heads and lengths of
 * the whole, of which a call's tensors are a part (templates/ops/offsets.cuh). Ranges for kernels and axes of
 * inputs are relative to the call's tensors. Where sequences are packed, an input's index becomes that of the entry's
 * row last (templates/ops/packed_inputs.cuh). */
#include <string.h>

#include "common/call/packed_axis.h"
#include "gen/emit/sections.h"

static bool is_whole(const writer *w) { return w->f->plan->offsets; }

/* The member of Offsets that is added to a variable; NULL: none. */
static const char *added_to(const writer *w, const ir_node *n) {
  static const char *const tile[] = {"q", "q", "kv", "kv"};
  const unsigned i = ir_index_of(n);
  switch (ir_var_of(n)) {
    case VAR_Q:
      return "q";
    case VAR_KV:
      return "kv";
    case VAR_POS:
      return w->places;
    case VAR_H:
      return strcmp(w->places, "q") == 0 ? "h" : "hkv";
    case VAR_TILE:
      return tile[i];
    case VAR_PART: /* q.base, q.offset, kv.base, kv.offset: only a base is shifted */
      return i % 2 == 0 ? tile[i] : NULL;
    default:
      return NULL;
  }
}

static const char *axis_member(const writer *w, unsigned input, int axis) {
  switch (w->f->spec->traced.input[input].axis[axis]) {
    case LUATTN_AXIS_H:
      return "h";
    case LUATTN_AXIS_HKV:
      return "hkv";
    case LUATTN_AXIS_Q:
      return "q";
    case LUATTN_AXIS_KV:
      return "kv";
    default:
      return NULL;
  }
}

const char *offsets_variable(writer *w, const ir_node *n, const char *own) {
  if (!is_whole(w)) return own;
  const char *added = added_to(w, n);
  if (added != NULL) return writer_format(w, "(%s + whole.%s)", own, added);
  switch (ir_var_of(n)) {
    case VAR_Q_LEN:
      return "whole.q_len";
    case VAR_KV_LEN:
      return "whole.kv_len";
    case VAR_HEADS:
      return "whole.heads";
    case VAR_HEADS_KV:
      return "whole.heads_kv";
    default:
      return own;
  }
}

/* The offset to subtract from an index of this axis; NULL: none. */
static const char *taken_off(const writer *w, unsigned input, int axis) {
  return is_whole(w) ? axis_member(w, input, axis) : NULL;
}

bool offsets_is_place(const writer *w, unsigned input, int axis, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  if (n->op != IR_VAR || (ir_var_of(n) != VAR_Q && ir_var_of(n) != VAR_KV)) return false;
  const char *off = taken_off(w, input, axis);
  return !is_whole(w) || (off != NULL && strcmp(off, added_to(w, n)) == 0);
}

/* Whether an axis is of positions of entries whose lengths differ. */
static bool is_by_entry(const plan *p, int32_t axis) {
  if (axis == LUATTN_AXIS_KV) return p->packed || p->pages;
  return axis == LUATTN_AXIS_Q && p->packed;
}

bool entry_rows_are_read(const writer *w) {
  const traced_spec *t = writer_traced(w);
  bool any = false;
  for (int i = 0; i < t->num_inputs; i++)
    for (uint32_t a = 0; a < t->input[i].num_axes; a++) any |= is_by_entry(w->f->plan, t->input[i].axis[a]);
  return any;
}

/* "entry_index(%s, entry_rows.first_q, entry_rows.q_len)", or the like for bounds; `at` itself if the axis does not
 * count positions, or sequences are not packed. */
static const char *of_entry(writer *w, const char *function, unsigned input, int axis, const char *at) {
  const luattn_input_info *in = &writer_traced(w)->input[input];
  const bool is_q = in->axis[axis] == LUATTN_AXIS_Q;
  const plan *p = w->f->plan;
  if (!is_by_entry(p, in->axis[axis])) return at;
  const char *name = is_q ? "q" : "kv";
  if (packed_axis_of(in, p->packed, p->pages != 0) != axis)
    return writer_format(w, "%s(%s, 0, entry_rows.%s_len)", function, at, name);
  return writer_format(w, "%s(%s, entry_rows.first_%s, entry_rows.%s_len)", function, at, name, name);
}

bool entry_rows_shift(const writer *w, unsigned input, int axis) {
  return packed_axis_of(&writer_traced(w)->input[input], w->f->plan->packed, w->f->plan->pages != 0) == axis;
}

const char *offsets_index(writer *w, unsigned input, int axis, ir_ref r, const char *value) {
  return of_entry(w, "entry_index", input, axis, offsets_own_index(w, input, axis, r, value));
}

const char *offsets_own_index(writer *w, unsigned input, int axis, ir_ref r, const char *value) {
  const ir_node *n = ir_get(w->f->g, r);
  const char *off = taken_off(w, input, axis);
  if (off == NULL) return value;
  const char *added = n->op == IR_VAR ? added_to(w, n) : NULL;
  if (added != NULL && strcmp(off, added) == 0 && !w->outlined && !writer_in_slot(w, r)) return writer_own(w, n);
  return writer_format(w, "own_index(%s, whole.%s)", value, off);
}

const char *offsets_tile(writer *w, ir_var position) {
  const bool of_q = position == VAR_Q;
  if (!is_whole(w)) return of_q ? "ivi_make(q0, q1)" : "ivi_make(kv0, kv1)";
  return of_q ? "ivi_make(q0 + whole.q, q1 + whole.q)" : "ivi_make(kv0 + whole.kv, kv1 + whole.kv)";
}

static const char *own_bounds(writer *w, unsigned input, int axis, ir_ref r, const char *bounds) {
  const char *off = taken_off(w, input, axis);
  if (off == NULL) return bounds;
  if (offsets_is_place(w, input, axis, r))
    return ir_is_var(w->f->g, r, VAR_Q) ? "ivi_make(q0, q1)" : "ivi_make(kv0, kv1)";
  return writer_format(w, "ivi_sub(%s, ivi_point(whole.%s))", bounds, off);
}

const char *offsets_bounds(writer *w, unsigned input, int axis, ir_ref r, const char *bounds) {
  return of_entry(w, "entry_bounds", input, axis, own_bounds(w, input, axis, r, bounds));
}

const char *offsets_range(writer *w, const char *lo, const char *hi, const char *axis) {
  const char *len = writer_format(w, "s.%s_len", axis);
  if (!is_whole(w))
    return writer_format(w, "clip_range(%s, %s, %s)", lo != NULL ? lo : "0", hi != NULL ? hi : len, len);
  if (w->f->plan->offsets == LUATTN_OFFSET_CHUNKS) /* of the chunk that the walk is in */
    return writer_format(w, "chunk_range(%s, %s, whole.%s, s.%s_chunk)", lo != NULL ? lo : "0",
                         hi != NULL ? hi : "2147483647", axis, axis);
  return writer_format(w, "own_range(%s, %s, whole.%s, %s)", lo != NULL ? lo : "0",
                       hi != NULL ? hi : writer_format(w, "whole.%s + %s", axis, len), axis, len);
}

const char *offsets_all(writer *w, const char *axis) {
  if (w->f->plan->offsets == LUATTN_OFFSET_CHUNKS) return writer_format(w, "s.%s_chunk", axis);
  return writer_format(w, "{0, s.%s_len}", axis);
}

const char *offsets_phase(writer *w, const char *axis, int period) {
  return is_whole(w) ? writer_format(w, "whole.%s %% %d", axis, period) : "0";
}

void offsets_close(writer *w) {
  text *t = &w->out;
  if (!t->failed && entry_rows_are_read(w) && strstr(t->data + w->body, "entry_rows") != NULL)
    text_insert(t, w->body, "    const EntryRows entry_rows = entry_rows_of(s);\n");
  if (!is_whole(w) || t->failed || strstr(t->data + w->body, "whole") == NULL) return;
  text_insert(t, w->body, "    const Offsets whole = offsets_of(p, s);\n");
}
