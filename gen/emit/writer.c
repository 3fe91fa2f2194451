/* writer.c: what the function being written reads, by name, and the types of values. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gen/emit/write.h"

bool writer_open(writer *w, const lowered *f) {
  memset(w, 0, sizeof *w);
  w->f = f;
  w->places = "q";
  text_init(&w->out, f->a);
  w->need = arena_array(f->a, f->num_nodes, sizeof *w->need);
  w->param = arena_array(f->a, f->num_nodes, sizeof *w->param);
  w->temp = arena_array(f->a, f->num_nodes, sizeof *w->temp);
  w->reach = arena_array(f->a, f->num_nodes, sizeof *w->reach);
  w->slot_name = arena_array(f->a, f->num_nodes, sizeof *w->slot_name);
  return w->need != NULL && w->param != NULL && w->temp != NULL && w->reach != NULL && w->slot_name != NULL;
}

bool writer_in_slot(const writer *w, ir_ref r) {
  return w->outlined ? w->param[r] != 0 : lowered_in_slot(w->f, w->has, r);
}

const char *writer_format(writer *w, const char *fmt, ...) {
  char buffer[256];
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(buffer, sizeof buffer, fmt, args);
  va_end(args);
  const char *s = n < 0 || (size_t)n >= sizeof buffer ? NULL : arena_copy(w->f->a, buffer, (size_t)n);
  if (s == NULL) w->failed = true;
  return s == NULL ? "" : s;
}

const char *writer_type(const writer *w, ir_ref r) {
  const ir_type t = ir_typeof(w->f->g, r);
  if (writer_is_wide(w, r)) return t == IR_REAL ? "double" : "i64";
  return t == IR_REAL ? "Real" : t == IR_INT ? "int" : "bool";
}

bool writer_is_wide(const writer *w, ir_ref r) {
  return ir_is_wide(w->f->g, r) && (ir_typeof(w->f->g, r) == IR_INT || w->f->plan->dtype != LUATTN_F64);
}

/* The type as stored: "bf16_t". */
const char *writer_input_type(const writer *w, uint32_t input) {
  switch (w->f->spec->traced.input[input].dtype) {
    case LUATTN_INPUT_F64:
      return "double";
    case LUATTN_INPUT_F32:
      return "float";
    case LUATTN_INPUT_BF16:
      return "bf16_t";
    case LUATTN_INPUT_F16:
      return "half_t";
    case LUATTN_INPUT_I32:
      return "int";
    case LUATTN_INPUT_I64:
      return "i64";
    case LUATTN_INPUT_I16:
      return "short";
    case LUATTN_INPUT_U8:
      return "byte_t";
    default:
      return "unsigned char";
  }
}

/* Returns final row value i, or its tangent: lse first, if the online function has one, then the saved rows. */
static const char *final_value(writer *w, unsigned i, const char *of) {
  const unsigned first = w->f->spec->traced.online.lse >= 0 ? 1 : 0;
  return i < first ? writer_format(w, "lse%s", of) : writer_format(w, "saved%s[%u]", of, i - first);
}

/* Names in spec.cuh of the variables without an index. */
static const char *const single[VAR_COUNT] = {
    [VAR_SCORE] = "score",
    [VAR_B] = "s.b",
    [VAR_H] = "s.h",
    [VAR_Q] = "q",
    [VAR_KV] = "kv",
    [VAR_Q_LEN] = "s.q_len",
    [VAR_KV_LEN] = "s.kv_len",
    [VAR_HEADS] = "Site::heads(p)",
    [VAR_HEADS_KV] = "Site::heads_kv(p)",
    [VAR_SCALE] = "Real(p.scale)",
    [VAR_X] = "x",
    [VAR_POS] = "i",
    [VAR_D] = "d",
    [VAR_GRAD] = "g",
    [VAR_DOT] = "dot",
    [VAR_DP] = "dp",
    [VAR_DELTA] = "delta",
    [VAR_DLSE] = "dlse",
    [VAR_SHIFT] = "row.shift",
    [VAR_TERM] = "term",
    [VAR_SCORE_TANGENT] = "score_tangent",
    [VAR_DP_TANGENT] = "dp_tangent",
    [VAR_DELTA_TANGENT] = "delta_tangent",
    [VAR_DLSE_TANGENT] = "dlse_tangent",
    [VAR_X_TANGENT] = "x_tangent",
    [VAR_GRAD_TANGENT] = "g_tangent",
};

/* Number i of a family of variables. */
static const char *member(writer *w, ir_var family, unsigned i) {
  static const char *const tile[] = {"q0", "q1", "kv0", "kv1"};
  static const char *const part[] = {"q.base", "q.offset", "kv.base", "kv.offset"};
  switch (family) {
    case VAR_SCALAR:
      return writer_format(w, "Real(p.inputs.scalar[%u])", i);
    case VAR_STATE:
      return writer_format(w, "%s.x[%u]", w->state, i);
    case VAR_SCALAR_TANGENT:
      return writer_format(w, "Real(tangents_of(p).scalar[%u])", i);
    case VAR_STATE_TANGENT:
      return writer_format(w, "%s_tangent.x[%u]", w->state, i);
    case VAR_RED_TANGENT:
      return writer_format(w, "red_tangent[%u]", i);
    case VAR_OTHER:
      return writer_format(w, "theirs.x[%u]", i);
    case VAR_RED:
      return writer_format(w, "red[%u]", i);
    case VAR_ROW:
      return writer_format(w, w->names != NULL ? "row[%u]" : "bwd.x[%u]", i);
    case VAR_FINAL:
      return final_value(w, i, "");
    case VAR_FINAL_TANGENT:
      return final_value(w, i, "_tangent");
    case VAR_PASS:
      return writer_format(w, "passes[%u]", i);
    case VAR_PASS_TANGENT:
      return writer_format(w, "passes_tangent[%u]", i);
    case VAR_TILE:
      return i < 4 ? tile[i] : "";
    case VAR_PART:
      return i < 4 ? part[i] : "";
    case VAR_READ:
      return writer_format(w, "row.x[%u]", i);
    case VAR_READ_GRAD:
      return writer_format(w, "row.g[%u]", i);
    case VAR_READ_TANGENT:
      return writer_format(w, "row.x_tangent[%u]", i);
    case VAR_READ_GRAD_TANGENT:
      return writer_format(w, "row.g_tangent[%u]", i);
    case VAR_CHANNEL:
      return writer_format(w, "row.d[%u]", i);
    default:
      w->failed = true; /* analysis/ leaves no others */
      return "";
  }
}

/* A place of a grid, or one end of a box, along an axis. */
static const char *of_grid(writer *w, ir_var v, unsigned i) {
  static const char *const end[] = {"q_first<%u>(p, q0)", "q_last<%u>(p, q0)", "kv_first<%u>(p, kv0)",
                                    "kv_last<%u>(p, kv0)"},
                           *const own[] = {"q_at<%u>(p, q0)", "", "kv_at<%u>(p, kv0)", ""};
  switch (v) {
    case VAR_Q:
      return writer_format(w, "q_at<%u>(p, q)", i);
    case VAR_KV:
      return writer_format(w, "kv_at<%u>(p, kv)", i);
    case VAR_POS:
      return writer_format(w, "%s_at<%u>(p, i)", w->places, i);
    case VAR_Q_LEN:
      return writer_format(w, "q_extent<%u>(p)", i);
    case VAR_KV_LEN:
      return writer_format(w, "kv_extent<%u>(p)", i);
    case VAR_TILE:
      return writer_format(w, (w->of_place ? own : end)[i % MASK_AXIS_ENDS], i / MASK_AXIS_ENDS);
    default:
      return NULL;
  }
}

bool writer_free_boxes(const writer *w) { return tiles_free_boxes(w->f->plan); }
const char *writer_key(const writer *w) { return writer_free_boxes(w) ? "const BoxKey &" : "int "; }
const char *writer_key_place(const writer *w) { return writer_free_boxes(w) ? "const BoxKeyPlace &" : "Position "; }
const char *writer_key_box(const writer *w) { return writer_free_boxes(w) ? "const FreeBox &" : "int "; }

const char *writer_own(writer *w, const ir_node *n) {
  const ir_var v = ir_var_of(n);
  const char *place = w->f->plan->axes > 0 ? of_grid(w, v, ir_index_of(n)) : NULL;
  if (place != NULL) return place;
  const char *const name = (w->names != NULL ? w->names : single)[v];
  return name != NULL ? name : member(w, v, ir_index_of(n));
}

const char *writer_parameter(writer *w, ir_ref r) {
  const char *outside = w->param[r] == PARAM_SLOT ? w->slot_name[r] : writer_own(w, ir_get(w->f->g, r));
  char name[128];
  size_t n = 0;
  for (; *outside != 0 && n < sizeof name - 1; outside++) {
    const bool word = strchr("[].<>(), ", *outside) == NULL;
    if (word || (n > 0 && name[n - 1] != '_' && outside[1] != 0)) name[n++] = word ? *outside : '_';
  }
  name[n] = 0;
  return writer_format(w, "%s", name);
}

const char *writer_file(const writer *w) {
  const char *path = w->f->spec->traced.file, *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

void writer_line_end(writer *w, const ir_node *n) {
  if (n->line > 0)
    text_add(&w->out, ";  // %s:%u\n", writer_file(w), n->line);
  else
    text_add(&w->out, ";\n");
}
