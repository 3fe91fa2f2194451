#include "gen/analysis/specs/large_scores.h"

#include <math.h>

#include "common/fail.h"

typedef struct rewrite {
  arena *a;
  ir *g;
  struct luattn_spec *spec;
} rewrite;

static luattn_status no_memory(const struct luattn_spec *spec, luattn_error *err) {
  return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", spec->traced.file);
}

/* Whether x is `node` or has it somewhere below. */
static bool reads(ir *g, ir_ref x, ir_ref node) {
  const ir_ref marker = ir_variable(g, VAR_GRAD, 0); /* never occurs in an online function */
  return x != IR_NONE && ir_substitute(g, x, &node, &marker, 1) != x;
}

/* A state that a step makes of maxima alone. */
static bool is_maximum(const traced_spec *t, int state) {
  const ir_ref next = t->online.next[state];
  return ir_uses_op(t->g, next, IR_REDUCE_MAX) && !ir_uses_op(t->g, next, IR_REDUCE_SUM);
}

/* Whether a maximum is an addend of `r`, an lse. *rest: the sum of the others; IR_NONE: there are none. */
static bool take_maximum(const traced_spec *t, ir_ref r, int *state, ir_ref *rest) {
  const ir_node n = *ir_get(t->g, r);
  *rest = IR_NONE;
  if (n.op == IR_VAR && ir_var_of(&n) == VAR_STATE) {
    *state = (int)ir_index_of(&n);
    return is_maximum(t, *state);
  }
  for (int i = 0; i < 2 && n.op == IR_ADD; i++) {
    ir_ref left;
    if (!take_maximum(t, n.arg[i], state, &left)) continue;
    *rest = left == IR_NONE ? n.arg[1 - i] : ir_op2(t->g, IR_ADD, left, n.arg[1 - i]);
    return true;
  }
  return false;
}

int large_scores_count(const struct luattn_spec *spec) { return spec->derived.reads_lse ? 2 : 0; }

/* Rewrites every x - y of the roots: where y is one of `from`, as difference(x, to[i]) - less. IR_NONE in place of
 * `less`: nothing more is subtracted. Roots may be IR_NONE. */
static bool split_differences(rewrite *w, ir_ref *const *roots, int n, const ir_ref *from, const ir_ref *to, int num,
                              ir_ref less) {
  ir *g = w->g;
  const uint32_t count = ir_count(g);
  ir_ref *now = arena_array(w->a, count, sizeof *now);
  bool *need = arena_array(w->a, count, sizeof *need);
  if (now == NULL || need == NULL) return false;
  for (int i = 0; i < n; i++)
    if (*roots[i] != IR_NONE) need[*roots[i]] = true;
  for (ir_ref r = count; r-- > 1;)
    for (int i = 0; need[r] && i < ir_get(g, r)->nargs; i++) need[ir_get(g, r)->arg[i]] = true;
  for (ir_ref r = 1; r < count; r++) {
    if (!need[r]) continue;
    const ir_node node = *ir_get(g, r);
    ir_ref arg[4] = {IR_NONE};
    int which = num;
    for (int i = 0; i < node.nargs; i++) arg[i] = now[node.arg[i]];
    if (node.op == IR_SUB && node.type == IR_REAL)
      for (which = 0; which < num && node.arg[1] != from[which];) which++;
    if (which == num) {
      now[r] = node.nargs == 0 ? r : ir_rebuild(g, r, arg);
      continue;
    }
    now[r] = ir_op2(g, IR_DIFFERENCE, arg[0], to != NULL ? to[which] : arg[1]);
    if (less != IR_NONE) now[r] = ir_op2(g, IR_SUB, now[r], less);
  }
  for (int i = 0; i < n; i++)
    if (*roots[i] != IR_NONE) *roots[i] = now[*roots[i]];
  return !ir_failed(g);
}

/* ---- forward ---- */

static bool split_online_function(rewrite *w) {
  traced_online *o = &w->spec->traced.online;
  ir_ref *roots[3 + SPEC_MAX_STATE + SPEC_MAX_FINAL], maxima[2 * SPEC_MAX_STATE];
  int n = 0, num = 0;
  for (int i = 0; i < o->num_state; i++) {
    if (!is_maximum(&w->spec->traced, i)) continue;
    maxima[num++] = ir_variable(w->g, VAR_STATE, (uint32_t)i);
    maxima[num++] = o->next[i];
  }
  roots[n++] = &o->prob;
  roots[n++] = &o->rescale;
  roots[n++] = &o->out;
  for (int i = 0; i < o->num_state; i++) roots[n++] = &o->next[i];
  for (int i = 0; i < o->num_final; i++) roots[n++] = &o->final[i];
  return split_differences(w, roots, n, maxima, NULL, num, IR_NONE);
}

/* ---- backward ---- */

static int gather_elements(derived_spec *d, ir_ref **roots) {
  int n = 0;
  roots[n++] = &d->prob;
  roots[n++] = &d->ds;
  for (int i = 0; i < d->element_terms.count; i++) roots[n++] = &d->element_terms.term[i].value;
  return n;
}

/* The numbers of a row that keeps nothing, whose lse prepare gives as inf: its weights are 0. */
static ir_ref where_kept(ir *g, ir_ref x, double otherwise) {
  const ir_ref lse = ir_variable(g, VAR_FINAL, 0);
  return ir_op3(g, IR_SELECT, ir_op2(g, IR_EQ, lse, ir_real(g, INFINITY)), ir_real(g, otherwise), x);
}

/* Element expressions: score - row[i], where row i is a saved maximum. */
static bool split_saved_maxima(rewrite *w) {
  derived_spec *d = &w->spec->derived;
  ir_ref *roots[2 + DERIVED_MAX_TERMS], maxima[DERIVED_MAX_ROWS];
  const uint32_t first = w->spec->traced.online.lse >= 0 ? 1 : 0;
  int num = 0;
  for (int i = 0; i < d->num_rows; i++) {
    const ir_node n = *ir_get(w->g, d->row[i]);
    if (n.op != IR_VAR || ir_var_of(&n) != VAR_FINAL || ir_index_of(&n) < first) continue;
    const ir_node saved = *ir_get(w->g, d->saved[ir_index_of(&n) - first]);
    if (saved.op != IR_VAR || ir_var_of(&saved) != VAR_STATE) continue;
    if (!is_maximum(&w->spec->traced, (int)ir_index_of(&saved))) continue;
    maxima[num++] = ir_variable(w->g, VAR_ROW, (uint32_t)i);
  }
  return split_differences(w, roots, gather_elements(d, roots), maxima, NULL, num, IR_NONE);
}

/* Whether an element reads row i. */
static bool elements_read(derived_spec *d, ir *g, ir_ref row) {
  ir_ref *roots[2 + DERIVED_MAX_TERMS];
  const int n = gather_elements(d, roots);
  for (int i = 0; i < n; i++)
    if (reads(g, *roots[i], row)) return true;
  return false;
}

static luattn_status refuse(const rewrite *w, const char *why, luattn_error *err) {
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "%s: online_func '%s': large_scores: %s; leave large_scores 0, or write it so",
                     w->spec->traced.file, w->spec->traced.online.name, why);
}

/* Gives elements score - maximum - log l in place of score - lse. */
static luattn_status split_elements(rewrite *w, ir_ref max, ir_ref log_sum, luattn_error *err) {
  derived_spec *d = &w->spec->derived;
  ir *g = w->g;
  const ir_ref lse = ir_variable(g, VAR_FINAL, 0);
  ir_ref *roots[2 + DERIVED_MAX_TERMS];
  const int n = gather_elements(d, roots), num_rows = d->num_rows;
  for (int i = 0; i < num_rows; i++) {
    if (d->row[i] != lse) continue;
    if (d->num_rows + 1 >= DERIVED_MAX_ROWS)
      return refuse(w, "backward needs more numbers per row than kernels have; make it simpler", err);
    const ir_ref row = ir_variable(g, VAR_ROW, (uint32_t)i), of_max = ir_variable(g, VAR_ROW, (uint32_t)d->num_rows),
                 of_log = ir_variable(g, VAR_ROW, (uint32_t)d->num_rows + 1);
    if (!split_differences(w, roots, n, &row, &of_max, 1, of_log)) return no_memory(w->spec, err);
    if (elements_read(d, g, row)) break;
    d->row[i] = max;
    for (int k = 0; k < n; k++)
      if (*roots[k] != IR_NONE)
        *roots[k] = ir_substitute(g, *roots[k], (ir_ref[]){of_max, of_log},
                                  (ir_ref[]){row, ir_variable(g, VAR_ROW, (uint32_t)d->num_rows)}, 2);
    d->row[d->num_rows++] = log_sum;
  }
  for (int i = 0; i < d->num_rows; i++)
    if (reads(g, d->row[i], lse) && elements_read(d, g, ir_variable(g, VAR_ROW, (uint32_t)i)))
      return refuse(w, "backward reads lse otherwise than in exp(score - lse)", err);
  return LUATTN_OK;
}

static luattn_status split_backward(rewrite *w, luattn_error *err) {
  derived_spec *d = &w->spec->derived;
  const traced_online *o = &w->spec->traced.online;
  ir *g = w->g;
  int state;
  ir_ref rest;
  if (d->num_passes > 0) return refuse(w, "backward takes a row pass, which reads scores as they are", err);
  if (!d->reads_lse) return LUATTN_OK;
  if (!take_maximum(&w->spec->traced, o->final[o->lse], &state, &rest) || rest == IR_NONE)
    return refuse(w, "lse is no sum of a running maximum and another number, as in log(l) + m", err);
  if (d->num_saved + 2 > DERIVED_MAX_ROWS)
    return refuse(w, "backward needs more numbers per row than kernels have; make it simpler", err);
  const ir_ref lse = ir_variable(g, VAR_FINAL, 0), max = ir_variable(g, VAR_FINAL, 1 + (uint32_t)d->num_saved),
               log_sum = ir_variable(g, VAR_FINAL, 2 + (uint32_t)d->num_saved);
  d->has_large_scores = true;
  d->saved[d->num_saved++] = ir_variable(g, VAR_STATE, (uint32_t)state);
  d->saved[d->num_saved++] = rest;

  ir_ref *roots[DERIVED_MAX_TERMS + DERIVED_MAX_ROWS];
  int n = 0;
  TRY(split_elements(w, max, log_sum, err));
  for (int i = 0; i < d->row_terms.count; i++) roots[n++] = &d->row_terms.term[i].value;
  for (int i = 0; i < d->num_rows; i++) roots[n++] = &d->row[i];
  if (!split_differences(w, roots, n, &lse, &max, 1, log_sum)) return no_memory(w->spec, err);
  for (int i = 0; i < n; i++) {
    if (reads(g, *roots[i], lse)) return refuse(w, "backward reads lse otherwise than in exp(x - lse)", err);
    *roots[i] = ir_substitute(g, *roots[i], (ir_ref[]){max, log_sum},
                              (ir_ref[]){where_kept(g, max, 0), where_kept(g, log_sum, INFINITY)}, 2);
  }
  return LUATTN_OK;
}

luattn_status large_scores_apply(arena *a, struct luattn_spec *spec, luattn_error *err) {
  rewrite w = {.a = a, .g = spec->traced.g, .spec = spec};
  if (!split_saved_maxima(&w)) return no_memory(spec, err);
  TRY(split_backward(&w, err));
  if (!split_online_function(&w)) return no_memory(spec, err);
  if (spec->derived.has_large_scores) { /* the epilogue has been rewritten */
    int state;
    ir_ref rest = IR_NONE;
    const traced_online *o = &spec->traced.online;
    (void)take_maximum(&spec->traced, o->final[o->lse], &state, &rest);
    spec->derived.saved[spec->derived.num_saved - 1] = rest;
  }
  return ir_failed(w.g) ? no_memory(spec, err) : LUATTN_OK;
}
