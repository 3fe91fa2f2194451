#include "gen/analysis/specs/backward_rows.h"

#include "common/fail.h"
#include "gen/ir/passes.h"

typedef struct placer {
  arena *a;
  ir *g;
  const traced_spec *t;
  derived_spec *out;
  ir_ref *root[2 + DERIVED_MAX_TERMS]; /* the per-element expressions */
  int num_roots;
  uint8_t *level, *keeps, *seen; /* per node; keeps: contains a final value of the row */
} placer;

static bool is_row_number(const ir_node *n) {
  if (n->op != IR_VAR) return false;
  const ir_var v = ir_var_of(n);
  return v == VAR_STATE || v == VAR_FINAL || v == VAR_DELTA || v == VAR_DLSE || v == VAR_PASS;
}

static bool survey(placer *p) {
  const uint32_t count = ir_count(p->g);
  p->level = arena_array(p->a, count, 1);
  p->keeps = arena_array(p->a, count, 1);
  p->seen = arena_array(p->a, count, 1);
  if (p->level == NULL || p->keeps == NULL || p->seen == NULL) return false;
  analyse_levels(p->g, p->level);
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(p->g, r);
    p->keeps[r] = is_row_number(n);
    for (int i = 0; i < n->nargs; i++) p->keeps[r] |= p->keeps[n->arg[i]];
  }
  return true;
}

static bool is_row_part(const placer *p, ir_ref r) {
  return p->keeps[r] && p->level[r] <= LEVEL_ROW && ir_typeof(p->g, r) == IR_REAL;
}

/* A division of a per-element value by a row number, or IR_NONE. */
static ir_ref find_division(placer *p, ir_ref r) {
  if (p->seen[r] || is_row_part(p, r)) return IR_NONE;
  p->seen[r] = 1;
  const ir_node n = *ir_get(p->g, r);
  if (n.op == IR_DIV && is_row_part(p, n.arg[1])) return r;
  for (int i = 0; i < n.nargs; i++) {
    const ir_ref found = find_division(p, n.arg[i]);
    if (found != IR_NONE) return found;
  }
  return IR_NONE;
}

/* Rewrites x / row as x * (1 / row): one division per row instead of one per element. */
static luattn_status multiply_by_reciprocals(placer *p) {
  for (;;) {
    if (!survey(p)) return LUATTN_NO_MEMORY;
    ir_ref found = IR_NONE;
    for (int i = 0; i < p->num_roots && found == IR_NONE; i++) found = find_division(p, *p->root[i]);
    if (found == IR_NONE) return LUATTN_OK;
    const ir_node n = *ir_get(p->g, found);
    const ir_ref product = ir_op2(p->g, IR_MUL, n.arg[0], ir_op2(p->g, IR_DIV, ir_real(p->g, 1), n.arg[1]));
    for (int i = 0; i < p->num_roots; i++) *p->root[i] = ir_substitute(p->g, *p->root[i], &found, &product, 1);
    if (ir_failed(p->g)) return LUATTN_NO_MEMORY;
  }
}

/* Adds the largest row-level subexpressions of r, each once, to out->row. False: too many. */
static bool collect_rows(placer *p, ir_ref r) {
  if (p->seen[r]) return true;
  p->seen[r] = 1;
  if (is_row_part(p, r)) {
    if (p->out->num_rows == DERIVED_MAX_ROWS) return false;
    p->out->row[p->out->num_rows++] = r;
    return true;
  }
  const ir_node n = *ir_get(p->g, r);
  for (int i = 0; i < n.nargs; i++) {
    if (!collect_rows(p, n.arg[i])) return false;
  }
  return true;
}

static luattn_status extract_rows(placer *p, luattn_error *err) {
  if (!survey(p)) return LUATTN_NO_MEMORY;
  for (int i = 0; i < p->num_roots; i++) {
    if (collect_rows(p, *p->root[i])) continue;
    return luattn_fail(err, LUATTN_SPEC,
                       "%s: online_func '%s': backward needs more than %d numbers per row; simplify it", p->t->file,
                       p->t->online.name, DERIVED_MAX_ROWS);
  }
  ir_ref var[DERIVED_MAX_ROWS];
  for (int i = 0; i < p->out->num_rows; i++) var[i] = ir_variable(p->g, VAR_ROW, (uint32_t)i);
  for (int i = 0; i < p->num_roots; i++) {
    *p->root[i] = ir_substitute(p->g, *p->root[i], p->out->row, var, p->out->num_rows);
  }
  return ir_failed(p->g) ? LUATTN_NO_MEMORY : LUATTN_OK;
}

/* All that reads final values of the row: row numbers, their terms, and passes. */
static int row_roots(derived_spec *out, ir_ref **root) {
  int n = 0;
  for (int i = 0; i < out->num_rows; i++) root[n++] = &out->row[i];
  for (int i = 0; i < out->row_terms.count; i++) root[n++] = &out->row_terms.term[i].value;
  for (int i = 0; i < out->num_passes; i++) root[n++] = &out->pass[i].weight, root[n++] = &out->pass[i].factor;
  for (int i = 0; i < out->num_sums; i++) root[n++] = &out->sum[i].of;
  return n;
}

/* What the row expressions read, as VAR_FINAL[0] = lse (if there is one), then the saved values. */
static bool number_saved(placer *p, ir_ref *const *root, int num_roots, ir_ref *from, ir_ref *to, int *count) {
  ir *g = p->g;
  const traced_online *o = &p->t->online;
  derived_spec *out = p->out;
  const uint32_t base = o->lse >= 0 ? 1 : 0;
  *count = 0;
  for (int kind = 0; kind < 2; kind++) {
    for (int i = 0; i < (kind == 0 ? o->num_final : o->num_state); i++) {
      const ir_ref var = ir_variable(g, kind == 0 ? VAR_FINAL : VAR_STATE, (uint32_t)i);
      const ir_ref value = kind == 0 ? o->final[i] : var;
      const ir_ref zero = ir_real(g, 0);
      bool used = false;
      for (int k = 0; k < num_roots && !used; k++) used = ir_substitute(g, *root[k], &var, &zero, 1) != *root[k];
      if (!used) continue;
      int slot = 0;
      from[*count] = var;
      if (o->lse >= 0 && value == o->final[o->lse]) {
        to[(*count)++] = ir_variable(g, VAR_FINAL, 0);
        out->reads_lse = true;
        continue;
      }
      while (slot < out->num_saved && out->saved[slot] != value) slot++;
      if (slot == DERIVED_MAX_ROWS) return false;
      if (slot == out->num_saved) out->saved[out->num_saved++] = value;
      to[(*count)++] = ir_variable(g, VAR_FINAL, base + (uint32_t)slot);
    }
  }
  return true;
}

static void describe(const placer *p, text *how) {
  const traced_online *o = &p->t->online;
  const char *separator = " ";
  text_add(how, "; forward keeps");
  if (o->lse >= 0) {
    text_add(how, " lse");
    separator = ", ";
  }
  for (int i = 0; i < p->out->num_saved; i++) {
    const ir_node *n = ir_get(p->g, p->out->saved[i]);
    const char *name = "a final scalar";
    if (n->op == IR_VAR && ir_var_of(n) == VAR_STATE) name = o->state_name[ir_index_of(n)];
    for (int k = 0; k < o->num_final; k++) {
      if (o->final[k] == p->out->saved[i]) name = o->final_name[k];
    }
    text_add(how, "%s%s", separator, name);
    separator = ", ";
  }
  if (o->lse < 0 && p->out->num_saved == 0) text_add(how, " nothing");
  text_add(how, "; %d number%s per row", p->out->num_rows, p->out->num_rows == 1 ? "" : "s");
}

static luattn_status place(placer *p, text *how, luattn_error *err) {
  derived_spec *out = p->out;
  TRY(multiply_by_reciprocals(p));
  TRY(extract_rows(p, err));
  ir_ref from[SPEC_MAX_FINAL + SPEC_MAX_STATE], to[SPEC_MAX_FINAL + SPEC_MAX_STATE];
  ir_ref *root[DERIVED_MAX_ROWS + DERIVED_MAX_TERMS + 2 * DERIVED_MAX_PASSES + DERIVED_MAX_SUMS];
  const int num_roots = row_roots(out, root);
  int count;
  if (!number_saved(p, root, num_roots, from, to, &count)) {
    return luattn_fail(err, LUATTN_SPEC,
                       "%s: online_func '%s': forward would have to save more than %d numbers per row", p->t->file,
                       p->t->online.name, DERIVED_MAX_ROWS);
  }
  for (int i = 0; i < num_roots; i++) *root[i] = ir_substitute(p->g, *root[i], from, to, count);
  describe(p, how);
  return ir_failed(p->g) ? LUATTN_NO_MEMORY : LUATTN_OK;
}

luattn_status backward_rows_place(arena *scratch, const traced_spec *t, derived_spec *out, text *how,
                                  luattn_error *err) {
  placer p = {.a = scratch, .g = t->g, .t = t, .out = out};
  p.root[p.num_roots++] = &out->prob;
  p.root[p.num_roots++] = &out->ds;
  for (int i = 0; i < out->element_terms.count; i++) p.root[p.num_roots++] = &out->element_terms.term[i].value;
  const luattn_status status = place(&p, how, err);
  if (status != LUATTN_NO_MEMORY) return status;
  return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
}
