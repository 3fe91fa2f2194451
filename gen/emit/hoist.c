/* hoist.c: which subexpressions are computed once per head, row or column and kept in a slot. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gen/emit/write.h"

/* A slot of a row or a column is a register in every thread: less than this is cheaper to compute again. */
#define SLOT_COST 3

int writer_op_cost(const writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  const plan *p = w->f->plan;
  if (n->op == IR_VAR) /* a double from the parameters, or a register */
    return ir_var_of(n) == VAR_SCALAR || ir_var_of(n) == VAR_SCALE ? 4 : 0;
  if (n->type == IR_INT && (deps_of(&w->f->deps, r) & DEP_PART) != 0) return 0; /* of a tile, or a constant */
  return ir_op_cost((ir_op)n->op, (ir_type)n->type,
                    p->dtype == LUATTN_F64 ? IR_DOUBLE
                    : p->fast_math         ? IR_FAST
                                           : IR_ACCURATE);
}

luattn_status writer_open(writer *w, emit_form *f, luattn_error *err) {
  memset(w, 0, sizeof *w);
  w->f = f;
  text_init(&w->out, f->a);
  w->count = ir_count(f->g);
  w->slot_kind = arena_array(f->a, w->count, 1);
  w->cost = arena_array(f->a, w->count, 1);
  w->need = arena_array(f->a, w->count, sizeof *w->need);
  w->param = arena_array(f->a, w->count, sizeof *w->param);
  w->temp = arena_array(f->a, w->count, sizeof *w->temp);
  w->slot_name = arena_array(f->a, w->count, sizeof *w->slot_name);
  if (!w->slot_kind || !w->cost || !w->need || !w->param || !w->temp || !w->slot_name)
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", f->spec->traced.name);
  for (uint32_t r = 1; r < w->count; r++) {
    const ir_node *n = ir_get(f->g, r);
    const int mask = deps_of(&f->deps, r);
    int cost = writer_op_cost(w, r);
    for (int i = 0; i < n->nargs; i++) {
      const bool below =
          deps_of(&f->deps, n->arg[i]) == DEP_SITE && mask != DEP_SITE; /* lies in Head already */
      cost += below ? 0 : w->cost[n->arg[i]];
    }
    w->cost[r] = (uint8_t)(cost > 200 ? 200 : cost);
  }
  return LUATTN_OK;
}

/* The slot in which a function with `has` would find r; -1: it computes r itself. */
static int kind_of(const writer *w, int has, ir_ref r) {
  const int mask = deps_of(&w->f->deps, r);
  if (mask == 0 || (mask & ~(DEP_SITE | DEP_Q | DEP_KV)) != 0 ||
      (mask & (DEP_Q | DEP_KV)) == (DEP_Q | DEP_KV))
    return -1;
  if (mask == DEP_SITE) return (has & HAS_HEAD) != 0 && w->cost[r] > 0 ? SLOTS_HEAD : -1;
  if ((mask & DEP_Q) != 0) {
    if ((has & HAS_ROW) == 0) return -1;
    return w->cost[r] >= SLOT_COST || (has & HAS_Q) == 0 ? SLOTS_ROW : -1;
  }
  return (has & HAS_COL) != 0 && w->cost[r] >= SLOT_COST ? SLOTS_COL : -1;
}

bool writer_slot_of(const writer *w, int has, ir_ref r) {
  const int kind = kind_of(w, has, r);
  return kind >= 0 && w->slot_kind[r] == 1 + kind;
}

bool writer_in_slot(const writer *w, ir_ref r) {
  return w->outlined ? w->param[r] != 0 : writer_slot_of(w, w->has, r);
}

void writer_plan(writer *w, int has, const ir_ref *roots, int n) {
  bool *need = arena_array(w->f->a, w->count, sizeof *need);
  if (need == NULL) {
    w->failed = true;
    return;
  }
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = w->count; r-- > 1;) {
    if (!need[r]) continue;
    const int kind = kind_of(w, has, r);
    if (kind >= 0) {
      w->slot_kind[r] = (uint8_t)(1 + kind);
      continue;
    }
    const ir_node *node = ir_get(w->f->g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
}

static void collect(writer *w, int kind) {
  slots *s = &w->slot[kind];
  for (uint32_t r = 1; r < w->count; r++) s->capacity += w->slot_kind[r] == 1 + kind;
  s->ref = arena_array(w->f->a, (size_t)s->capacity + 1, sizeof *s->ref);
  if (s->ref == NULL) {
    w->failed = true;
    return;
  }
  for (uint32_t r = 1; r < w->count; r++)
    if (w->slot_kind[r] == 1 + kind) s->ref[s->count++] = r;
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

/* A slot is named for what it holds: the number keeps names apart, and off the words of C++. */
static const char *stem(const writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  const traced_spec *t = &w->f->spec->traced;
  if (n->op == IR_LOAD) return t->input[ir_index_of(n)].name;
  if (n->op == IR_VAR && ir_var_of(n) == VAR_SCALAR) return t->scalar_name[ir_index_of(n)];
  if (n->op == IR_VAR) return ir_var_name(ir_var_of(n));
  if (n->op == IR_TO_REAL && ir_get(w->f->g, n->arg[0])->op == IR_VAR)
    return ir_var_name(ir_var_of(ir_get(w->f->g, n->arg[0])));
  return ir_op_name((ir_op)n->op);
}

/* What the functions have that fill Head, Row and Col. */
static const int slot_has[SLOTS_KINDS] = {0, HAS_HEAD | HAS_Q, HAS_HEAD | HAS_KV};

void writer_fix(writer *w) {
  static const char *const owner[SLOTS_KINDS] = {"head", "row", "col"};
  for (int kind = SLOTS_KINDS; kind-- > 0;) { /* Row and Col may need more of Head */
    collect(w, kind);
    if (w->failed) return;
    slots *s = &w->slot[kind];
    if (kind != SLOTS_HEAD) writer_plan(w, slot_has[kind], s->ref, s->count);
    for (int i = 0; i < s->count; i++)
      w->slot_name[s->ref[i]] = writer_format(w, "%s.%s_%d", owner[kind], stem(w, s->ref[i]), i);
  }
}

static void slots_body(writer *w, const char *type, const slots *s) {
  if (s->count == 0) {
    text_add(&w->out, "return {};\n");
    return;
  }
  body_lines(w, s->ref, s->count);
  text_add(&w->out, "%s made;\n", type);
  for (int i = 0; i < s->count; i++)
    text_add(&w->out, "made.%s = %s;\n", strchr(w->slot_name[s->ref[i]], '.') + 1, body_value(w, s->ref[i]));
  text_add(&w->out, "return made;\n");
}

void writer_slots(writer *w, int kind) {
  static const char *const type[SLOTS_KINDS] = {"Head", "Row", "Col"};
  static const char *const signature[SLOTS_KINDS] = {
      "Head head(const LuattnParams &p, const Site &s)",
      "Row row(const LuattnParams &p, const Site &s, const Head &head, int q)",
      "Col col(const LuattnParams &p, const Site &s, const Head &head, int kv)"};
  static const char *const name[SLOTS_KINDS] = {"head", "row", "col"};
  const slots *s = &w->slot[kind];
  const char *call = NULL;
  if (outline_is(w, name[kind])) {
    outline_open(w, type[kind], name[kind], slot_has[kind], "", s->ref, s->count, 0);
    slots_body(w, type[kind], s);
    call = outline_close(w);
  }
  text_add(&w->out, "LUATTN_FN %s {\n", signature[kind]);
  w->out.indent++;
  body_begin(w, slot_has[kind], "");
  if (call != NULL)
    text_add(&w->out, "return %s;\n", call);
  else
    slots_body(w, type[kind], s);
  w->out.indent--;
  text_add(&w->out, "}\n");
}
