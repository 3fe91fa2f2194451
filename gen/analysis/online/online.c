/* online.c: assembles the backward of an online function from what whole_row.c and separate.c find. */
#include "gen/analysis/online/online.h"

#include "common/fail.h"
#include "gen/analysis/online/steps.h"

static ir_ref add(ir *g, ir_ref x, ir_ref y) { return x == IR_NONE ? y : y == IR_NONE ? x : ir_op2(g, IR_ADD, x, y); }
static ir_ref mul(ir *g, ir_ref x, ir_ref y) { return x == IR_NONE || y == IR_NONE ? IR_NONE : ir_grad_mul(g, x, y); }

/* For e = exp(x): the same with the row's numbers in x replaced by zero and lse: the form that e takes when
 * divided by the row's sum, in a softmax of any temperature or base. */
static ir_ref share_of_lse(derivation *d, ir_ref e) {
  ir *g = d->g;
  const ir_node n = *ir_get(g, e);
  ir_ref from[SPEC_MAX_STATE + SPEC_MAX_RED], to[SPEC_MAX_STATE + SPEC_MAX_RED];
  int count = 0;
  for (int i = 0; i < d->o->num_state; i++) from[count++] = ir_variable(g, VAR_STATE, (uint32_t)i);
  for (int k = 0; k < d->num_red; k++) from[count++] = d->red[k];
  for (int i = 0; i < count; i++) to[i] = ir_real(g, 0);
  ir_ref lse = ir_variable(g, VAR_FINAL, (uint32_t)d->o->lse);
  if (n.op == IR_EXP2) lse = ir_op2(g, IR_MUL, lse, ir_real(g, 1.4426950408889634074));
  ir_ref exponent = ir_op2(g, IR_SUB, ir_substitute(g, n.arg[0], from, to, count), lse);
  derivation_simplify(d, &exponent, 1);
  return ir_op1(g, (ir_op)n.op, exponent);
}

static bool is_exp(const ir *g, ir_ref r) {
  const uint16_t op = ir_get(g, r)->op;
  return op == IR_EXP || op == IR_EXP2;
}

/* P in the form that needs the fewest row numbers: `forward`, or exp(s - lse) where it equals that, or prob *
 * N. */
static ir_ref choose_prob(derivation *d) {
  if (d->forward_is_prob) {
    text_add(d->how, "; prob is forward");
    return d->o->forward;
  }
  if (d->o->forward != IR_NONE) text_add(d->how, "; forward is not used, as it is not shown to be online_fwd's prob");
  const ir_ref form = d->o->lse >= 0 && is_exp(d->g, d->prob) ? share_of_lse(d, d->prob) : IR_NONE;
  if (form != IR_NONE && separate_equal(d, form, d->p)) {
    text_add(d->how, "; prob is exp(score - lse)");
    return form;
  }
  text_add(d->how, "; prob is online_fwd's with the row's final state");
  return d->p;
}

/* sum over live k of coefficient[k] * partial[k]: the part of a derivative, by an element or by a parameter
 * at an element, that goes through reductions. */
static ir_ref through_reductions(derivation *d, const ir_ref *coefficient, const ir_ref *partial) {
  ir_ref sum = IR_NONE;
  for (int k = 0; k < d->num_red; k++) {
    if (d->live[k]) sum = add(d->g, sum, mul(d->g, coefficient[k], partial[k]));
  }
  derivation_simplify(d, &sum, 1);
  return sum;
}

/* One function of the element in two forms: in terms of reductions, for comparison, and as backward computes
 * it. */
typedef struct two_forms {
  ir_ref whole, form;
} two_forms;

/* Writes u and v as u = -ratio_u * base and so on: *row = the row number with delta * u + dlse * v = -base *
 * row. */
static bool multiple_of(derivation *d, ir_ref u, ir_ref v, ir_ref base, ir_ref *row) {
  ir *g = d->g;
  if (base == IR_NONE) return false;
  const ir_ref ratio_u = u == IR_NONE ? IR_NONE : separate_ratio(d, u, base);
  const ir_ref ratio_v = v == IR_NONE ? IR_NONE : separate_ratio(d, v, base);
  if ((u != IR_NONE && ratio_u == IR_NONE) || (v != IR_NONE && ratio_v == IR_NONE)) return false;
  /* With this minus sign softmax becomes prob * (dp - (delta - dlse)). */
  ir_ref down = ratio_u == IR_NONE ? IR_NONE : mul(g, ir_op1(g, IR_NEG, ratio_u), ir_variable(g, VAR_DELTA, 0));
  const ir_ref up = mul(g, ratio_v, ir_variable(g, VAR_DLSE, 0));
  if (up != IR_NONE) down = down == IR_NONE ? ir_op1(g, IR_NEG, up) : ir_op2(g, IR_SUB, down, up);
  derivation_simplify(d, &down, 1);
  *row = down;
  return true;
}

/* What goes through a maximum reaches only the elements that share it. */
static ir_ref taken(derivation *d, int k, ir_ref x) {
  if (x == IR_NONE || d->takes[k] == IR_NONE) return x;
  return ir_op3(d->g, IR_SELECT, d->takes[k], x, ir_real(d->g, 0));
}

/* The same as element_gradient where adjoints come from passes. */
static ir_ref gradient_by_passes(derivation *d, two_forms own, const ir_ref *partial) {
  ir *g = d->g;
  ir_ref sum = own.whole == IR_NONE ? IR_NONE : ir_op2(g, IR_MUL, own.form, ir_variable(g, VAR_DP, 0));
  for (int k = 0; k < d->num_red; k++)
    if (d->live[k]) sum = add(g, sum, taken(d, k, mul(g, d->adjoint[k], partial[k])));
  return sum;
}

/* dp * own + the part through the reductions: the derivative of the loss by a variable that an element's prob
 * and the reductions' terms read. own.whole is IR_NONE where prob itself does not depend on it. IR_NONE:
 * zero. */
static ir_ref element_gradient(derivation *d, two_forms prob, two_forms own, const ir_ref *partial) {
  ir *g = d->g;
  const ir_ref dp = ir_variable(g, VAR_DP, 0);
  if (d->has_passes) return gradient_by_passes(d, own, partial);
  const ir_ref u = through_reductions(d, d->a_delta, partial), v = through_reductions(d, d->b_dlse, partial);
  const bool moves = own.whole != IR_NONE;
  const ir_ref ratio = moves ? separate_ratio(d, own.whole, prob.whole) : IR_NONE;
  double c = 0;
  if (ratio != IR_NONE && ir_is_const(g, ratio, &c)) own.form = ir_op2(g, IR_MUL, prob.form, ratio);
  const ir_ref direct = moves ? ir_op2(g, IR_MUL, own.form, dp) : IR_NONE;
  ir_ref row;
  if (u == IR_NONE && v == IR_NONE) return direct;
  if (moves && multiple_of(d, u, v, own.whole, &row)) return ir_op2(g, IR_MUL, own.form, ir_op2(g, IR_SUB, dp, row));
  if (multiple_of(d, u, v, prob.whole, &row)) {
    const ir_ref indirect = ir_op2(g, IR_MUL, prob.form, row);
    return moves ? ir_op2(g, IR_SUB, direct, indirect) : ir_op1(g, IR_NEG, indirect);
  }
  ir_ref sum = direct;
  for (int k = 0; k < d->num_red; k++) {
    if (!d->live[k]) continue;
    const ir_ref adjoint =
        add(g, mul(g, d->a_delta[k], ir_variable(g, VAR_DELTA, 0)), mul(g, d->b_dlse[k], ir_variable(g, VAR_DLSE, 0)));
    sum = add(g, sum, mul(g, adjoint, partial[k]));
  }
  return sum;
}

/* dprob/dwrt at fixed reductions, from the chosen form of prob where that is the same function. */
static two_forms direct_derivative(derivation *d, ir_ref prob, ir_ref whole, ir_ref wrt) {
  const ir_ref one = ir_real(d->g, 1);
  two_forms x = {whole, whole};
  ir_ref other = IR_NONE;
  if (whole == IR_NONE || prob == d->p) return x;
  ir_grad(d->g, &prob, &one, 1, &wrt, &other, 1);
  if (other != IR_NONE && separate_equal(d, other, whole)) x.form = other;
  return x;
}

static ir_ref compose_ds(derivation *d, ir_ref prob) {
  two_forms own = direct_derivative(d, prob, d->p_s, d->score);
  own.whole = d->p_s_factored;
  return element_gradient(d, (two_forms){d->p, prob}, own, d->term_s);
}

/* Writes a row number as exp(y - lse) times a constant, if it has that form: a sink's share of its row, which
 * needs no other row number than lse. */
static ir_ref neat_row(derivation *d, ir_ref x) {
  ir *g = d->g;
  uint8_t *under = d->o->lse < 0 ? NULL : arena_array(d->a, (size_t)x + 1, 1);
  if (under == NULL) return x;
  under[x] = 1;
  for (ir_ref r = x; r > IR_NONE; r--) { /* users before arguments */
    if (!under[r]) continue;
    const ir_node n = *ir_get(g, r);
    for (int i = 0; i < n.nargs; i++) under[n.arg[i]] = 1;
    if (!is_exp(g, r)) continue;
    const ir_ref share = share_of_lse(d, r), ratio = separate_ratio(d, x, share);
    double c = 0;
    if (ratio != IR_NONE && ir_is_const(g, ratio, &c)) return ir_op2(g, IR_MUL, ratio, share);
  }
  return x;
}

/* Refuses a gradient whose index is known only after the whole row: such a spec runs forward only. */
static luattn_status check_place(const derivation *d, ir_ref leaf) {
  const ir_node n = *ir_get(d->g, leaf);
  for (int i = 0; n.op == IR_LOAD && i < n.nargs; i++) {
    if (!ir_uses(d->g, n.arg[i], VAR_RED) && !ir_uses(d->g, n.arg[i], VAR_STATE)) continue;
    return luattn_fail(d->err, LUATTN_UNSUPPORTED,
                       "%s: online_func '%s': runs forward only, as the index of '%s', which has a gradient, comes "
                       "from row scalars; compute it from positions or scores, or leave out grad = true",
                       d->t->file, d->o->name, d->t->input[n.imm.integer].name);
  }
  return LUATTN_OK;
}

/* The gradient of a parameter that maxima start at, of a row whose maxima are that. */
static ir_ref through_starts(derivation *d, ir_ref leaf) {
  ir *g = d->g;
  const ir_ref one = ir_real(g, 1);
  ir_ref sum = IR_NONE;
  for (int k = 0; k < d->num_red; k++) {
    ir_ref slope = IR_NONE;
    if (d->takes[k] != IR_NONE) ir_grad(g, &d->start[k], &one, 1, &leaf, &slope, 1);
    sum = add(g, sum, mul(g, d->at_start[k], slope));
  }
  return sum;
}

/* The gradient of one parameter of the online function. What is constant along a row moves to the row. */
static luattn_status compose_parameter(derivation *d, ir_ref prob, ir_ref leaf, online_grad *out) {
  ir *g = d->g;
  const ir_ref one = ir_real(g, 1), delta = ir_variable(g, VAR_DELTA, 0), dlse = ir_variable(g, VAR_DLSE, 0);
  ir_ref partial[SPEC_MAX_RED] = {IR_NONE}, of_p = IR_NONE, of_lse = IR_NONE, row = IR_NONE;
  for (int k = 0; k < d->num_red; k++) ir_grad(g, &d->term[k], &one, 1, &leaf, &partial[k], 1);
  ir_grad(g, &d->p, &one, 1, &leaf, &of_p, 1);
  if (d->o->lse >= 0) ir_grad(g, &d->final[d->o->lse], &one, 1, &leaf, &of_lse, 1);
  derivation_simplify(d, partial, d->num_red);
  derivation_simplify(d, &of_p, 1);
  derivation_simplify(d, &of_lse, 1);

  two_forms own = direct_derivative(d, prob, of_p, leaf);
  const ir_ref ratio = of_p == IR_NONE ? IR_NONE : separate_log_slope(d, of_p, leaf);
  if (ratio != IR_NONE) {
    row = mul(g, neat_row(d, ratio), delta);
    /* Of a row that keeps nothing delta is 0, and the ratio may be infinite. Where there is an lse, that is -inf and
     * says so. */
    if (d->o->lse < 0) row = ir_op3(g, IR_SELECT, ir_op2(g, IR_EQ, delta, ir_real(g, 0)), ir_real(g, 0), row);
    own = (two_forms){IR_NONE, IR_NONE};
  }
  const ir_ref element = element_gradient(d, (two_forms){d->p, prob}, own, partial);
  if (of_lse != IR_NONE) row = add(g, row, mul(g, neat_row(d, of_lse), dlse));
  row = add(g, row, through_starts(d, leaf));
  derivation_simplify(d, &row, 1);
  const bool fits = (element == IR_NONE || online_add_term(g, &out->elements, leaf, element)) &&
                    (row == IR_NONE || online_add_term(g, &out->rows, leaf, row));
  if (fits) return LUATTN_OK;
  return luattn_fail(d->err, LUATTN_SPEC, "%s: online_func '%s': more than %d parameter gradients; read fewer inputs",
                     d->t->file, d->o->name, DERIVED_MAX_TERMS);
}

/* The user's backward. It lacks lse's gradient, which comes from the derived one where the two otherwise
 * agree, or is added. */
static ir_ref given_backward(derivation *d, ir_ref prob, bool derived) {
  ir *g = d->g;
  const ir_ref p = ir_variable(g, VAR_P, 0), dlse = ir_variable(g, VAR_DLSE, 0), zero = ir_real(g, 0);
  const ir_ref ds = ir_substitute(g, d->o->backward, &p, &prob, 1);
  if (d->o->lse < 0) return ds;
  const ir_ref whole = derived ? compose_ds(d, prob) : IR_NONE;
  if (whole != IR_NONE && !ir_uses(g, whole, VAR_RED) &&
      separate_equal(d, ir_substitute(g, whole, &dlse, &zero, 1), ds)) {
    text_add(d->how, "; it agrees with the derived one");
    return whole;
  }
  for (int k = 0; k < d->num_red; k++) d->a_delta[k] = IR_NONE;
  return add(g, ds, element_gradient(d, (two_forms){d->p, prob}, (two_forms){IR_NONE, IR_NONE}, d->term_s));
}

/* The adjoints of the reductions: of each element, or else by row passes. */
static luattn_status take_adjoints(derivation *d, bool want_delta, bool want_dlse, const ir_ref *leaf, int num_leaves) {
  wanted_adjoints *want;
  TRY(separate_reductions(d, want_delta, want_dlse, leaf, num_leaves, &want));
  if (want->first < 0) return LUATTN_OK;
  if (d->elements_only) return remedy_refuse(d, want->first, want->why[want->first]);
  return row_pass_take(d, want);
}

/* Derives the adjoints of the reductions, as far as they are needed. *derived: all of them are known. */
static luattn_status find_adjoints(derivation *d, const ir_ref *leaf, int num_leaves, bool *derived) {
  const bool has_lse = d->o->lse >= 0, optional = d->o->backward != IR_NONE && num_leaves == 0;
  luattn_error *const err = d->err;
  if (optional) d->err = NULL;
  const luattn_status status = take_adjoints(d, true, has_lse, leaf, num_leaves);
  d->err = err;
  *derived = status == LUATTN_OK;
  if (status == LUATTN_UNSUPPORTED && optional) return take_adjoints(d, false, has_lse, leaf, num_leaves);
  return status == LUATTN_NO_MEMORY ? derivation_no_memory(d) : status;
}

/* What is computed for an element, which passes take: what of the row it reads has to be kept by forward. */
static int element_roots(derivation *d, ir_ref **at) {
  int n = 0;
  for (int i = 0; i < d->num_passes; i++) at[n++] = &d->pass[i].weight;
  for (int i = 0; i < d->num_sums; i++) at[n++] = &d->sum[i].of;
  return n;
}

/* What may read a pass's sums, too. */
static int other_roots(derivation *d, online_grad *out, ir_ref **at) {
  int n = 0;
  at[n++] = &out->prob;
  at[n++] = &out->ds;
  for (int i = 0; i < d->num_passes; i++) at[n++] = &d->pass[i].factor;
  for (int i = 0; i < out->rows.count; i++) at[n++] = &out->rows.term[i].value;
  for (int i = 0; i < out->elements.count; i++) at[n++] = &out->elements.term[i].value;
  return n;
}

/* Sums R_k, which no row scalar holds, again, by a pass. */
static luattn_status sum_again(derivation *d, online_grad *out, int k) {
  ir *g = d->g;
  ir_ref *at[RECOVER_MAX_ROOTS];
  const ir_ref zero = ir_real(g, 0);
  bool possible = !d->elements_only;
  for (int i = element_roots(d, at); i-- > 0;) possible &= ir_substitute(g, *at[i], &d->red[k], &zero, 1) == *at[i];
  const ir_ref sum = possible ? row_pass_sum(d, k) : IR_NONE;
  if (derivation_failed(d)) return derivation_no_memory(d);
  if (sum == IR_NONE) return recover_refuse(d, k);
  for (int i = other_roots(d, out, at); i-- > 0;)
    if (*at[i] != IR_NONE) *at[i] = ir_substitute(g, *at[i], &d->red[k], &sum, 1);
  return LUATTN_OK;
}

static luattn_status recover_all(derivation *d, online_grad *out) {
  for (int k = 0; k >= 0;) {
    ir_ref *at[RECOVER_MAX_ROOTS], root[RECOVER_MAX_ROOTS];
    int n = element_roots(d, at);
    n += other_roots(d, out, at + n);
    for (int i = 0; i < n; i++) root[i] = *at[i];
    k = recover_rows(d, root, n);
    if (derivation_failed(d)) return derivation_no_memory(d);
    for (int i = 0; i < n; i++) *at[i] = root[i];
    if (k >= 0) TRY(sum_again(d, out, k));
  }
  out->num_passes = d->num_passes, out->num_sums = d->num_sums;
  for (int i = 0; i < d->num_passes; i++) out->pass[i] = d->pass[i];
  for (int i = 0; i < d->num_sums; i++) out->sum[i] = d->sum[i];
  return LUATTN_OK;
}

luattn_status online_derive(arena *scratch, const traced_spec *t, online_grad *out, text *how, luattn_error *err) {
  derivation *d = arena_new(scratch, sizeof *d);
  sample *s = arena_new(scratch, sizeof *s);
  if (d == NULL || s == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  *d = (derivation){.a = scratch, .t = t, .o = &t->online, .g = t->g, .how = how, .err = err, .s = s};
  if (!sample_init(s, scratch, t)) return derivation_no_memory(d);
  const bool given = t->online.backward != IR_NONE;
  text_add(how, given ? "backward given by the spec" : "backward derived");
  TRY(whole_run(d));

  ir_ref leaf[ONLINE_MAX_LEAVES];
  const int num_leaves = derivation_leaves(d, leaf);
  if (num_leaves < 0) return derivation_no_memory(d);
  if (num_leaves > ONLINE_MAX_LEAVES) {
    return luattn_fail(err, LUATTN_SPEC,
                       "%s: online_func '%s': reads %d parameters with a gradient; at most %d are possible; "
                       "an index that is computed, as in t[q_idx // 64], counts once, each "
                       "constant one counts, and an input without grad does not",
                       t->file, t->online.name, num_leaves, ONLINE_MAX_LEAVES);
  }
  bool derived;
  d->elements_only = given;
  d->by_passes = t->by_passes && !given;
  TRY(find_adjoints(d, leaf, num_leaves, &derived));
  *out = (online_grad){.prob = choose_prob(d)};
  for (int i = 0; i < d->o->num_state; i++) out->stabilisers |= (uint32_t)d->dropped[i] << i;
  for (int i = 0; i < num_leaves; i++) {
    TRY(check_place(d, leaf[i]));
    TRY(compose_parameter(d, out->prob, leaf[i], out));
  }
  out->ds = given ? given_backward(d, out->prob, derived) : compose_ds(d, out->prob);
  if (out->ds == IR_NONE) out->ds = ir_real(t->g, 0);
  return derivation_failed(d) ? derivation_no_memory(d) : recover_all(d, out);
}
