/* recover.c: replaces VAR_RED, which only the forward pass knows, by what it can keep: the row's state and
 * its final scalars. */
#include "common/fail.h"
#include "gen/analysis/online/steps.h"

typedef struct renaming {
  ir_ref from[SPEC_MAX_STATE + SPEC_MAX_RED + 1], to[SPEC_MAX_STATE + SPEC_MAX_RED + 1];
  int count;
} renaming;

static void rename_to(renaming *r, ir_ref from, ir_ref to) {
  for (int i = 0; i < r->count; i++) {
    if (r->from[i] == from) return;
  }
  r->from[r->count] = from;
  r->to[r->count++] = to;
}

/* Whole expressions that forward keeps under a name: lse first, because it is kept in any case. */
static void named_rows(derivation *d, renaming *r) {
  ir *g = d->g;
  const traced_online *o = d->o;
  double c;
  if (o->lse >= 0 && ir_uses(g, d->final[o->lse], VAR_RED)) {
    rename_to(r, d->final[o->lse], ir_variable(g, VAR_FINAL, (uint32_t)o->lse));
  }
  for (int i = 0; i < o->num_state; i++) {
    if (!ir_is_const(g, d->next[i], &c) && ir_uses(g, d->next[i], VAR_RED)) {
      rename_to(r, d->next[i], ir_variable(g, VAR_STATE, (uint32_t)i));
    }
  }
}

/* R_k as a simple function of a state, up to a constant factor: x, x^2, exp(x), 1 / x, sqrt(x). IR_NONE if
 * there is none. */
static ir_ref match_reduction(derivation *d, int k) {
  ir *g = d->g;
  for (int i = 0; i < d->o->num_state; i++) {
    if (!ir_uses(g, d->next[i], VAR_RED)) continue;
    const ir_ref x = ir_variable(g, VAR_STATE, (uint32_t)i);
    const ir_ref form[] = {x, ir_op2(g, IR_MUL, x, x), ir_op1(g, IR_EXP, x), ir_op2(g, IR_DIV, ir_real(g, 1), x),
                           ir_op1(g, IR_SQRT, x)};
    for (size_t j = 0; j < sizeof form / sizeof form[0]; j++) {
      double c;
      const ir_ref ratio = separate_ratio(d, d->red[k], form[j]);
      if (ratio != IR_NONE && ir_is_const(g, ratio, &c)) return ir_op2(g, IR_MUL, ratio, form[j]);
    }
  }
  return IR_NONE;
}

/* R_k where a state is a + c R_k, c a number: R_k = (state - a) / c. IR_NONE if there is none. */
static ir_ref solve_reduction(derivation *d, const renaming *names, int k) {
  ir *g = d->g;
  const ir_ref one = ir_real(g, 1), zero = ir_real(g, 0);
  for (int i = 0; i < d->o->num_state; i++) {
    ir_ref slope = IR_NONE;
    ir_grad(g, &d->next[i], &one, 1, &d->red[k], &slope, 1);
    derivation_simplify(d, &slope, 1);
    double c = 0;
    if (slope == IR_NONE || !ir_is_const(g, slope, &c) || c == 0) continue;
    ir_ref rest = ir_substitute(g, d->next[i], &d->red[k], &zero, 1);
    rest = ir_substitute(g, rest, names->from, names->to, names->count);
    derivation_simplify(d, &rest, 1);
    if (ir_uses(g, rest, VAR_RED)) continue;
    const ir_ref times = ir_op2(g, IR_SUB, ir_variable(g, VAR_STATE, (uint32_t)i), rest);
    return c == 1 ? times : ir_op2(g, IR_DIV, times, ir_real(g, c));
  }
  return IR_NONE;
}

static bool any_uses(derivation *d, const ir_ref *roots, int n, int k) {
  const ir_ref zero = ir_real(d->g, 0);
  for (int i = 0; i < n; i++) {
    if (roots[i] != IR_NONE && ir_substitute(d->g, roots[i], &d->red[k], &zero, 1) != roots[i]) return true;
  }
  return false;
}

static bool is_under(derivation *d, ir_ref root, ir_ref r) {
  const ir_ref zero = ir_real(d->g, 0);
  return ir_substitute(d->g, root, &r, &zero, 1) != root;
}

/* Whether x, a state's value by conditions, is R_k wherever a root reads R_k. */
static bool holds_where_read(derivation *d, ir_ref x, const ir_ref *roots, int n, int k) {
  ir *g = d->g;
  const ir_node node = *ir_get(g, x);
  if (x == d->red[k]) return true;
  if (node.op != IR_SELECT || ir_typeof(g, x) != IR_REAL) return false;
  const bool then = is_under(d, node.arg[1], d->red[k]);
  if (then == is_under(d, node.arg[2], d->red[k]) || is_under(d, node.arg[0], d->red[k])) return false;
  const ir_ref opposite = ir_bool(g, !then);
  ir_ref elsewhere[RECOVER_MAX_ROOTS];
  for (int j = 0; j < n; j++)
    elsewhere[j] = roots[j] == IR_NONE ? IR_NONE : ir_substitute(g, roots[j], &node.arg[0], &opposite, 1);
  return !any_uses(d, elsewhere, n, k) && holds_where_read(d, node.arg[then ? 1 : 2], roots, n, k);
}

/* R_k where a state is R_k under conditions, and nothing reads it but under these: the state. IR_NONE if there is
 * none. */
static ir_ref conditional_reduction(derivation *d, const ir_ref *roots, int n, int k) {
  for (int i = 0; i < d->o->num_state; i++)
    if (holds_where_read(d, d->next[i], roots, n, k)) return ir_variable(d->g, VAR_STATE, (uint32_t)i);
  return IR_NONE;
}

int recover_rows(derivation *d, ir_ref *roots, int n) {
  ir *g = d->g;
  renaming names = {.count = 0}, solved = {.count = 0};
  named_rows(d, &names);
  for (int i = 0; i < n; i++) {
    if (roots[i] != IR_NONE) roots[i] = ir_substitute(g, roots[i], names.from, names.to, names.count);
  }
  for (int k = 0; k < d->num_red; k++) {
    if (!any_uses(d, roots, n, k)) continue;
    ir_ref row = solve_reduction(d, &names, k);
    if (row == IR_NONE) row = match_reduction(d, k);
    if (row == IR_NONE) row = conditional_reduction(d, roots, n, k);
    if (row != IR_NONE) rename_to(&solved, d->red[k], row);
  }
  for (int i = 0; i < n; i++) {
    if (roots[i] != IR_NONE) roots[i] = ir_substitute(g, roots[i], solved.from, solved.to, solved.count);
  }
  for (int k = 0; k < d->num_red && !derivation_failed(d); k++)
    if (any_uses(d, roots, n, k)) return k;
  return -1;
}

luattn_status recover_refuse(derivation *d, int k) {
  return luattn_fail(d->err, LUATTN_UNSUPPORTED,
                     "%s: online_func '%s': runs forward only, as backward needs the value of a reduction "
                     "(%s) that no row "
                     "scalar holds; keep it in a "
                     "row scalar of its own, or give forward and backward",
                     d->t->file, d->o->name, reduction_name(d, k));
}
