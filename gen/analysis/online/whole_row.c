/* whole_row.c: runs an online function once over a whole row, and checks that this agrees with running it in
 * steps. */
#include "gen/analysis/algebra/algebra.h"
#include "gen/analysis/online/merge_proof.h"
#include "gen/analysis/online/steps.h"

#include <math.h>
#include <string.h>

#include "common/fail.h"

#define ROUNDING (256 * 0x1p-53) /* of sums that are added up in another order */

/* The first step from the initial state, taken over the whole row; then the epilogue. */
static luattn_status run_once(derivation *d) {
  const traced_online *o = d->o;
  ir *g = d->g;
  TRY(split_online(g, o, d->t->file, &d->step, d->err));
  ir_ref state[SPEC_MAX_STATE], root[SPEC_MAX_RED + 2 * SPEC_MAX_STATE + SPEC_MAX_FINAL + 2];
  for (int i = 0; i < o->num_state; i++) state[i] = ir_variable(g, VAR_STATE, (uint32_t)i);
  int n = 0;
  d->num_red = d->step.num_red;
  for (int k = 0; k < d->num_red; k++) root[n++] = d->step.term[k];
  root[n++] = d->step.prob;
  for (int i = 0; i < o->num_state; i++) root[n++] = d->step.next[i];
  for (int i = 0; i < n; i++) root[i] = ir_substitute(g, root[i], state, o->init, o->num_state);
  derivation_simplify(d, root, n);
  for (int k = 0; k < d->num_red; k++) d->term[k] = root[k];
  d->prob = root[d->num_red];
  for (int i = 0; i < o->num_state; i++) d->next[i] = root[d->num_red + 1 + i];

  d->score = ir_variable(g, VAR_SCORE, 0);
  for (int k = 0; k < d->num_red; k++) d->red[k] = ir_variable(g, VAR_RED, (uint32_t)k);
  for (int i = 0; i < o->num_final; i++) d->final[i] = ir_substitute(g, o->final[i], state, d->next, o->num_state);
  derivation_simplify(d, d->final, o->num_final);
  const ir_ref scaled = ir_variable(g, VAR_OUT, 0), one = ir_real(g, 1);
  ir_ref out = ir_substitute(g, o->out, state, d->next, o->num_state);
  ir_grad(g, &out, &one, 1, &scaled, &d->norm, 1);
  derivation_simplify(d, &d->norm, 1);
  d->p = d->norm == IR_NONE ? IR_NONE : ir_op2(g, IR_MUL, d->prob, d->norm);
  derivation_simplify(d, &d->p, 1);
  return derivation_failed(d) ? derivation_no_memory(d) : LUATTN_OK;
}

/* Whether r is 0 wherever it has a value. */
static bool is_zero(derivation *d, ir_ref r) {
  const ir_node n = *ir_get(d->g, r);
  double c;
  if (ir_is_const(d->g, r, &c)) return c == 0;
  switch (n.op) {
    case IR_MUL:
      return is_zero(d, n.arg[0]) || is_zero(d, n.arg[1]);
    case IR_DIV:
    case IR_NEG:
      return is_zero(d, n.arg[0]);
    case IR_ADD:
    case IR_SUB:
      return is_zero(d, n.arg[0]) && is_zero(d, n.arg[1]);
    case IR_SELECT:
      return is_zero(d, n.arg[1]) && is_zero(d, n.arg[2]);
    default:
      return algebra_is_zero(d, r);
  }
}

static luattn_status check_linear(derivation *d) {
  ir *g = d->g;
  const ir_ref from = ir_variable(g, VAR_OUT, 0), zero = ir_real(g, 0);
  ir_ref at_zero = ir_substitute(g, d->o->out, &from, &zero, 1);
  derivation_simplify(d, &at_zero, 1);
  if (d->norm != IR_NONE && !ir_uses(g, d->norm, VAR_OUT) && is_zero(d, at_zero)) return LUATTN_OK;
  if (derivation_failed(d)) return derivation_no_memory(d);
  if (d->norm == IR_NONE && is_zero(d, at_zero))
    return luattn_fail(d->err, LUATTN_SPEC,
                       "%s: online_func '%s': online_fwd_epilogue gives 0 whatever o is; return o times or over "
                       "something that is not 0",
                       d->t->file, d->o->name);
  return luattn_fail(d->err, LUATTN_SPEC,
                     "%s: online_func '%s': online_fwd_epilogue is not linear in o, or not shown to be; "
                     "return o times or over "
                     "something that does "
                     "not contain o",
                     d->t->file, d->o->name);
}

/* Finds how much rounding makes of what is evaluated: on all rows, or on those with extreme scalars. */
static luattn_status find_slack(derivation *d, bool all) {
  sample *s = d->s, *moved = arena_new(d->a, sizeof *moved);
  ir_ref root[2 + SPEC_MAX_STATE + SPEC_MAX_FINAL];
  int n = 0;
  root[n++] = d->p;
  root[n++] = d->norm;
  for (int i = 0; i < d->o->num_state; i++) root[n++] = d->next[i];
  for (int i = 0; i < d->o->num_final; i++) root[n++] = d->final[i];
  if (moved == NULL) return derivation_no_memory(d);
  *moved = *s;
  moved->moved = true;
  const sample_lanes *x = derivation_eval(d, root, n);
  d->s = moved;
  const bool ok = sample_reduce(moved, d->step.kind, d->term, d->num_red, NULL, 0);
  const sample_lanes *y = ok ? derivation_eval(d, root, n) : NULL;
  d->s = s;
  if (x == NULL || y == NULL) return derivation_no_memory(d);
  for (int k = 0; k < d->num_red; k++) sample_find_slack(s, s->red[k], moved->red[k], all);
  for (int i = 0; i < n; i++) sample_find_slack(s, x[i], y[i], all);
  return LUATTN_OK;
}

/* Reductions, states, finals and P of every row; rows where they are not finite are left out. */
static luattn_status sample_whole(derivation *d) {
  const traced_online *o = d->o;
  sample *s = d->s;
  ir_ref conditional[2 + SPEC_MAX_RED + SPEC_MAX_FINAL] = {d->p, d->norm};
  for (int k = 0; k < d->num_red; k++) conditional[2 + k] = d->term[k];
  for (int i = 0; i < o->num_final; i++) conditional[2 + d->num_red + i] = d->final[i];
  if (!sample_at_edges(s, d->g, conditional, 2 + d->num_red + o->num_final) ||
      !sample_far(s, d->g, conditional, 2 + d->num_red + o->num_final))
    return derivation_no_memory(d);
  if (!sample_reduce(s, d->step.kind, d->term, d->num_red, NULL, 0)) return derivation_no_memory(d);
  ir_ref root[2 + SPEC_MAX_STATE + SPEC_MAX_FINAL];
  int n = 0;
  root[n++] = d->p;
  root[n++] = d->norm;
  for (int i = 0; i < o->num_state; i++) root[n++] = d->next[i];
  for (int i = 0; i < o->num_final; i++) root[n++] = d->final[i];
  sample_lanes *x = derivation_eval(d, root, n);
  if (x == NULL) return derivation_no_memory(d);
  for (int i = 0; i < n; i++) sample_require_finite(s, x[i]);
  if (sample_reads_scalars(s, conditional, 2 + d->num_red + o->num_final)) TRY(find_slack(d, false));
  if (!sample_leave_out_guards(s, d->g, conditional, 2 + d->num_red + o->num_final)) return derivation_no_memory(d);
  for (int i = 0; i < o->num_state; i++) s->state[i] = x[2 + i];
  for (int i = 0; i < o->num_final; i++) s->final[i] = x[2 + o->num_state + i];
  d->p_value = x[0];
  d->norm_value = x[1];
  if (!sample_unmet(s, d->g, conditional, 2 + d->num_red + o->num_final, d->how)) return derivation_no_memory(d);
  if (sample_count_valid(s) >= s->near_rows / 6) return LUATTN_OK;
  return luattn_fail(d->err, LUATTN_SPEC,
                     "%s: online_func '%s': online_fwd gives no finite prob on %d of %d random rows; check "
                     "for a log, division "
                     "or square root outside its domain",
                     d->t->file, d->o->name, s->near_rows - sample_count_valid(s), s->near_rows);
}

/* One of the two steps of check_cut, over lanes with part[i] == which. */
static bool cut_step(derivation *d, const uint8_t *part, int which, sample_lanes p) {
  sample *s = d->s;
  const int num_state = d->o->num_state;
  if (!sample_reduce(s, d->step.kind, d->step.term, d->num_red, part, which)) return false;
  ir_ref root[2 + SPEC_MAX_STATE] = {d->step.prob, d->step.rescale};
  for (int i = 0; i < num_state; i++) root[2 + i] = d->step.next[i];
  sample_lanes *x = derivation_eval(d, root, 2 + num_state);
  if (x == NULL) return false;
  for (int lane = 0; lane < d->s->lanes; lane++) {
    const int r = s->row_of[lane];
    if (which == 0 && s->first[r + 1] - s->first[r] == 1)
      continue; /* a row of one score is entirely in the second step */
    if (part[lane] == which)
      p[lane] = x[0][lane];
    else if (which == 1)
      p[lane] *= x[1][lane];
    for (int i = 0; i < num_state; i++) s->state[i][lane] = x[2 + i][lane];
  }
  return true;
}

/* The magnitude of what is added up in node r, given those of what is below it. */
static ir_ref size_of_node(ir *g, ir_ref r, const ir_ref *size) {
  const ir_node n = *ir_get(g, r);
  const ir_ref own = ir_op1(g, IR_ABS, r);
  if (n.nargs == 0 || ir_typeof(g, n.arg[0]) == IR_INT) return own;
  const ir_ref a = size[n.arg[0]], b = n.nargs > 1 ? size[n.arg[1]] : IR_NONE;
  switch (n.op) {
    case IR_ADD:
    case IR_SUB:
      return ir_op2(g, IR_ADD, a, b);
    case IR_MUL:
      return ir_op2(g, IR_MUL, a, b);
    case IR_DIV:
      return ir_op2(g, IR_DIV, a, ir_op1(g, IR_ABS, n.arg[1]));
    case IR_NEG:
    case IR_ABS:
      return a;
    case IR_SELECT:
      return ir_op3(g, IR_SELECT, n.arg[0], b, size[n.arg[2]]);
    case IR_MIN:
    case IR_MAX:
      return ir_op2(g, IR_MAX, a, b);
    case IR_EXP:
    case IR_EXP2:
      return ir_op2(g, IR_MUL, own, ir_op2(g, IR_ADD, ir_real(g, 1), a));
    default:
      return own;
  }
}

/* The magnitude of what is added up in r, which its rounding is relative to. IR_NONE: out of memory. */
static ir_ref size_of(derivation *d, ir_ref root) {
  ir_ref *size = arena_array(d->a, (size_t)root + 1, sizeof *size);
  bool *under = arena_array(d->a, (size_t)root + 1, sizeof *under);
  if (size == NULL || under == NULL) return IR_NONE;
  under[root] = true;
  for (ir_ref r = root; r > IR_NONE; r--)
    for (int i = 0; under[r] && i < ir_get(d->g, r)->nargs; i++) under[ir_get(d->g, r)->arg[i]] = true;
  for (ir_ref r = 1; r <= root; r++) /* arguments before users */
    if (under[r] && ir_typeof(d->g, r) == IR_REAL) size[r] = size_of_node(d->g, r, size);
  return size[root];
}

/* Leaves out the rows of whose x, an expression, rounding may make more than a claim that holds allows. */
static luattn_status leave_out_of(derivation *d, ir_ref x, const double *value) {
  const ir_ref size = size_of(d, x);
  const sample_lanes *v = size == IR_NONE ? NULL : derivation_eval(d, &size, 1);
  if (v == NULL) return derivation_no_memory(d);
  for (int lane = 0; lane < d->s->lanes; lane++)
    if (!(ROUNDING * (*v)[lane] <= DERIVATION_CLOSE * fabs(value[lane]))) d->s->valid[d->s->row_of[lane]] = false;
  return LUATTN_OK;
}

/* Of P, and of the epilogue's factor as it is written, which may cancel where the simplified one does not. */
static luattn_status leave_out_cancelled(derivation *d) {
  const ir_ref sum = ir_variable(d->g, VAR_OUT, 0), one = ir_real(d->g, 1);
  ir_ref factor = IR_NONE;
  ir_grad(d->g, &d->o->out, &one, 1, &sum, &factor, 1);
  TRY(leave_out_of(d, d->p, d->p_value));
  return factor == IR_NONE ? LUATTN_OK : leave_out_of(d, factor, d->norm_value);
}

luattn_status whole_find_slack(derivation *d) {
  TRY(find_slack(d, true));
  return leave_out_cancelled(d);
}

/* p and x: prob and the finals, of two steps. `extremes`: also on rows with extreme scalars, of which rounding may leave
 * nothing where a step adds and subtracts one; prove_cut is for all. */
static luattn_status compare_cut(const derivation *d, const uint8_t *part, const double *p, const sample_lanes *x,
                                 bool extremes) {
  const traced_online *o = d->o;
  const sample *s = d->s;
  for (int lane = 0; lane < s->lanes; lane++) {
    const int r = s->row_of[lane];
    const double count = sample_row_length(s, r);
    /* On more rows, and on those that a large factor scales, one would accumulate too much rounding. */
    if (!s->valid[r] || s->scaled[r] || (r >= SAMPLE_FIRST_ROWS && r < s->near_rows)) continue;
    if (s->extreme[r] && !extremes) continue;
    const double two = p[lane] * x[0][lane];
    if (!derivation_close(two, d->p_value[lane], s->slack[r])) {
      return luattn_fail(
          d->err, LUATTN_SPEC,
          "%s: online_func '%s': tiles change the result: for score %.6g in a row of %.0f scores, one step "
          "gives prob %.9g and two steps over its halves give %.9g; %s",
          d->t->file, o->name, s->score[lane], count, d->p_value[lane], two,
          part[lane] == 0 ? "correct o_scale or the new row scalars"
                          : "a later step has to count in prob what rowscales holds of earlier ones, and the "
                            "new row scalars have to hold it; a weight that counts only the keys after or "
                            "before its own, as stick-breaking's, has no online function");
    }
    for (int i = 0; i < o->num_final; i++) {
      if (derivation_close(x[1 + i][lane], s->final[i][lane], s->slack[r]) ||
          fabs(x[1 + i][lane] - s->final[i][lane]) < 1e-9 + s->slack[r])
        continue;
      return luattn_fail(d->err, LUATTN_SPEC,
                         "%s: online_func '%s': tiles change the result: in a row of %.0f scores, one step "
                         "gives %s = %.9g and two "
                         "steps over its halves give %.9g; correct the new row scalars",
                         d->t->file, o->name, count, o->final_name[i], s->final[i][lane], x[1 + i][lane]);
    }
  }
  return LUATTN_OK;
}

/* Tiles must not matter: two steps over the halves of a row must equal one step over all of it. */
static luattn_status check_cut(derivation *d) {
  const traced_online *o = d->o;
  sample *s = d->s, *whole = arena_new(d->a, sizeof *whole);
  uint8_t *part = arena_array(d->a, (size_t)s->lanes, 1);
  sample_lanes p = sample_buffer(s), *init = derivation_eval(d, o->init, o->num_state);
  if (whole == NULL || part == NULL || p == NULL || init == NULL) return derivation_no_memory(d);
  *whole = *s;
  for (int r = 0; r < s->rows; r++) {
    const int half = (s->first[r] + s->first[r + 1]) / 2;
    for (int i = s->first[r]; i < s->first[r + 1]; i++) part[i] = i >= half;
  }
  for (int i = 0; i < o->num_state; i++) s->state[i] = init[i];
  if (!cut_step(d, part, 0, p) || !cut_step(d, part, 1, p)) return derivation_no_memory(d);
  const ir_ref scaled = ir_variable(d->g, VAR_OUT, 0), one = ir_real(d->g, 1);
  ir_ref root[1 + SPEC_MAX_FINAL];
  ir_grad(d->g, &o->out, &one, 1, &scaled, &root[0], 1);
  for (int i = 0; i < o->num_final; i++) root[1 + i] = o->final[i];
  sample_lanes *x = derivation_eval(d, root, 1 + o->num_final);
  if (x == NULL) return derivation_no_memory(d);
  *s = *whole;
  luattn_error *const err = d->err;
  d->err = NULL;
  const luattn_status status = compare_cut(d, part, p, x, true);
  d->err = err;
  if (status == LUATTN_OK) return status;
  TRY(find_slack(d, true)); /* rounding alone may be what differs */
  TRY(leave_out_cancelled(d));
  return compare_cut(d, part, p, x, false);
}

/* What samples do not refute is proved. */
static luattn_status prove_cut(derivation *d) {
  const char *what;
  if (parts_step_as_row(d, &what)) return LUATTN_OK;
  if (derivation_failed(d)) return derivation_no_memory(d);
  return luattn_fail(
      d->err, LUATTN_SPEC,
      "%s: online_func '%s': tiles may change the result: %s of two steps is not shown to be that of one "
      "step over "
      "both, %s; update each row scalar by max(old, reduce_max(..)) or by old * factor + reduce_sum(..), "
      "where the "
      "factor is of maxima and o_scale is the same, and leave conditions on sums to the epilogue",
      d->t->file, d->o->name, what,
      d->too_long ? "which takes too many cases" : "for rows of any length and scalars of any value");
}

/* Samples refuse a wrong one; one that is not shown to be right is not used. */
static luattn_status check_forward(derivation *d) {
  if (d->o->forward == IR_NONE) return LUATTN_OK;
  sample_lanes *x = derivation_eval(d, &d->o->forward, 1);
  if (x == NULL) return derivation_no_memory(d);
  const sample *s = d->s;
  for (int lane = 0; lane < d->s->lanes; lane++) {
    const int r = s->row_of[lane];
    if (!s->valid[r] || s->extreme[r] || derivation_close((*x)[lane], d->p_value[lane], s->slack[r])) continue;
    return luattn_fail(
        d->err, LUATTN_SPEC,
        "%s: online_func '%s': forward disagrees with online_fwd: for score %.6g in a row of %.0f scores, "
        "online_fwd and its epilogue give prob %.9g and forward gives %.9g; correct forward, or leave it out",
        d->t->file, d->o->name, s->score[lane], sample_row_length(s, r), d->p_value[lane], (*x)[lane]);
  }
  d->forward_is_prob = algebra_equal(d, d->o->forward, d->p);
  return derivation_failed(d) ? derivation_no_memory(d) : LUATTN_OK;
}

luattn_status whole_run(derivation *d) {
  TRY(run_once(d));
  if (d->p != IR_NONE) TRY(sample_whole(d));
  TRY(check_linear(d));
  TRY(check_cut(d));
  TRY(prove_cut(d));
  return check_forward(d);
}
