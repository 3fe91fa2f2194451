#include "gen/analysis/specs/adjoint.h"

#include <string.h>

#include "common/fail.h"
#include "gen/analysis/specs/backward_rows.h"
#include "gen/analysis/online/online.h"

#define MAX_LEAVES DERIVED_MAX_TERMS
#define MAX_X (1 + SPEC_MAX_READS)

static luattn_status no_memory(const traced_spec *t, luattn_error *err) {
  return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
}

/* Returns v / d if d is a factor of v, found within `depth` nested products; else IR_NONE. */
static ir_ref quotient(ir *g, ir_ref v, ir_ref d, int depth) {
  double x;
  if (v == d) return ir_real(g, 1);
  if (ir_is_const(g, d, &x) && x != 0) return ir_op2(g, IR_DIV, v, d);
  if (depth == 0) return IR_NONE;
  const ir_node n = *ir_get(g, v);
  ir_ref part;
  switch (n.op) {
    case IR_NEG:
      part = quotient(g, n.arg[0], d, depth - 1);
      return part == IR_NONE ? IR_NONE : ir_op1(g, IR_NEG, part);
    case IR_MUL:
      if ((part = quotient(g, n.arg[0], d, depth - 1)) != IR_NONE) return ir_op2(g, IR_MUL, part, n.arg[1]);
      part = quotient(g, n.arg[1], d, depth - 1);
      return part == IR_NONE ? IR_NONE : ir_op2(g, IR_MUL, n.arg[0], part);
    case IR_DIV:
      part = quotient(g, n.arg[0], d, depth - 1);
      return part == IR_NONE ? IR_NONE : ir_op2(g, IR_DIV, part, n.arg[1]);
    default:
      return IR_NONE;
  }
}

static bool reads_element(const ir *g, ir_ref r) {
  return ir_uses(g, r, VAR_SCORE) || ir_uses(g, r, VAR_DP) || ir_uses(g, r, VAR_P);
}

/* The factor of ds in the gradient of a parameter: the quotient of y's derivatives. */
static ir_ref factor_of(ir *g, ir_ref by_parameter, ir_ref by_score) {
  if (by_parameter == IR_NONE || by_score == IR_NONE) return IR_NONE;
  const ir_ref factor = quotient(g, by_parameter, by_score, 8);
  return factor == IR_NONE || reads_element(g, factor) ? IR_NONE : factor;
}

/* Adds the gradients of y's parameters, dy being y's adjoint, to `terms`; dx[i] = the gradient of variable x[i],
 * of which there are num_x. IR_NONE: 0. */
static luattn_status differentiate(const traced_spec *t, const char *hook, ir_ref y, ir_ref dy, const ir_ref *x,
                                   int num_x, ir_ref *dx, derived_terms *terms, luattn_error *err) {
  ir_ref wrt[MAX_X + MAX_LEAVES], grad[MAX_X + MAX_LEAVES], slope[MAX_X + MAX_LEAVES] = {IR_NONE};
  const int n = online_leaves(t, &y, 1, wrt + num_x, MAX_LEAVES);
  if (n < 0) return no_memory(t, err);
  if (n > MAX_LEAVES) {
    return luattn_fail(err, LUATTN_SPEC,
                       "%s: %s: reads %d parameters with a gradient; at most %d are possible; an index that "
                       "is computed, as in t[clamp(kv_idx - q_idx, 0, n)], counts once, each constant one "
                       "counts, and an input without grad does not",
                       t->file, hook, n, MAX_LEAVES);
  }
  for (int i = 0; i < num_x; i++) wrt[i] = x[i];
  ir_grad(t->g, &y, &dy, 1, wrt, grad, num_x + n);
  for (int i = 0; i < num_x; i++) dx[i] = grad[i];
  if (n > 0 && ir_is_var(t->g, x[0], VAR_SCORE)) {
    const ir_ref one = ir_real(t->g, 1);
    ir_grad(t->g, &y, &one, 1, wrt, slope, num_x + n);
    ir_simplify(t->g, slope, num_x + n);
  }
  for (int i = num_x; i < num_x + n; i++) {
    const int before = terms->count;
    if (grad[i] == IR_NONE) continue;
    if (!online_add_term(t->g, terms, wrt[i], grad[i]))
      return luattn_fail(err, LUATTN_SPEC, "%s: %s: more than %d parameter gradients; read fewer inputs", t->file, hook,
                         DERIVED_MAX_TERMS);
    if (terms->count > before) terms->term[before].factor = factor_of(t->g, slope[i], slope[0]);
  }
  return ir_failed(t->g) ? no_memory(t, err) : LUATTN_OK;
}

static void simplify_terms(const traced_spec *t, ir_ref *first, int num_first, derived_terms *terms) {
  ir_ref root[4 + MAX_X + DERIVED_MAX_TERMS];
  int n = 0;
  for (int i = 0; i < num_first; i++) root[n++] = first[i];
  for (int i = 0; i < terms->count; i++) root[n++] = terms->term[i].value;
  ir_simplify(t->g, root, n);
  for (int i = 0; i < num_first; i++) first[i] = root[i];
  for (int i = 0; i < terms->count; i++) terms->term[i].value = root[num_first + i];
}

/* Chains from the score that the online function takes to t = scale * dot, which score_mod takes. */
static luattn_status chain_score(const traced_spec *t, const online_grad *online, derived_spec *out,
                                 luattn_error *err) {
  ir *g = t->g;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0);
  const ir_ref ds = ir_substitute(g, online->ds, &score, &t->score_mod, 1);
  out->prob = ir_substitute(g, online->prob, &score, &t->score_mod, 1);
  out->row_terms = online->rows;
  out->num_passes = online->num_passes, out->num_sums = online->num_sums;
  memcpy(out->pass, online->pass, sizeof out->pass);
  memcpy(out->sum, online->sum, sizeof out->sum);
  out->element_terms = online->elements;
  for (int i = 0; i < out->element_terms.count; i++) {
    derived_term *term = &out->element_terms.term[i];
    term->value = ir_substitute(g, term->value, &score, &t->score_mod, 1);
    for (int k = 0; k < term->num_index; k++)
      term->index[k] = ir_substitute(g, term->index[k], &score, &t->score_mod, 1);
  }
  TRY(differentiate(t, "score_mod", t->score_mod, ds, &score, 1, &out->ds, &out->element_terms, err));
  ir_ref roots[2] = {out->prob, out->ds == IR_NONE ? ir_real(g, 0) : out->ds};
  simplify_terms(t, roots, 2, &out->element_terms);
  out->prob = roots[0];
  out->ds = roots[1];
  return LUATTN_OK;
}

static luattn_status derive_mod(const traced_spec *t, const char *hook, ir_ref mod, derived_mod *out,
                                luattn_error *err) {
  *out = (derived_mod){.dx = IR_NONE};
  if (mod == IR_NONE) return LUATTN_OK;
  ir_ref x[MAX_X] = {IR_NONE}, dx[MAX_X] = {IR_NONE}, root[MAX_X];
  const int num_x = 1 + t->num_reads;
  for (int i = 0; i < num_x; i++)
    x[i] = i == 0 ? ir_variable(t->g, VAR_X, 0) : ir_variable(t->g, VAR_READ, (uint32_t)(i - 1));
  const ir_ref given = ir_variable(t->g, VAR_GRAD, 0);
  TRY(differentiate(t, hook, mod, given, x, num_x, dx, &out->terms, err));
  int n = 0;
  for (int i = 0; i < num_x; i++)
    if (i == 0 || dx[i] != IR_NONE) root[n++] = dx[i] == IR_NONE ? ir_real(t->g, 0) : dx[i];
  simplify_terms(t, root, n, &out->terms);
  out->dx = root[0];
  for (int i = 1, at = 1; i < num_x; i++)
    if (dx[i] != IR_NONE) out->by_read[i - 1] = root[at++];
  return LUATTN_OK;
}

/* Forward needs no derivatives; the message goes to callers that ask for backward. */
static luattn_status forward_only(const traced_spec *t, const luattn_error *why, derived_spec *out, luattn_error *err) {
  const ir_ref zero = ir_real(t->g, 0);
  *out =
      (derived_spec){.missing = arena_printf(t->a, "%s", why->message), .prob = zero, .ds = zero, .how = "no backward"};
  return out->missing == NULL || ir_failed(t->g) ? no_memory(t, err) : LUATTN_OK;
}

static luattn_status derive(arena *scratch, const traced_spec *t, derived_spec *out, text *how, luattn_error *err) {
  online_grad *online = arena_new(scratch, sizeof *online);
  if (online == NULL) return no_memory(t, err);
  luattn_error why;
  const luattn_status status = online_derive(scratch, t, online, how, &why);
  if (status == LUATTN_UNSUPPORTED) return forward_only(t, &why, out, err);
  if (status != LUATTN_OK) return luattn_fail(err, status, "%s", why.message);
  TRY(chain_score(t, online, out, err));
  out->stabilisers = online->stabilisers;
  TRY(backward_rows_place(scratch, t, out, how, err));
  TRY(derive_mod(t, "query_mod", t->query_mod, &out->query_mod, err));
  TRY(derive_mod(t, "key_mod", t->key_mod, &out->key_mod, err));
  TRY(derive_mod(t, "value_mod", t->value_mod, &out->value_mod, err));
  out->how = text_get(how);
  return out->how == NULL || ir_failed(t->g) ? no_memory(t, err) : LUATTN_OK;
}

luattn_status derive_spec(arena *a, const traced_spec *t, derived_spec *out, luattn_error *err) {
  arena *scratch = arena_open(arena_allocator(a));
  derived_spec *result = scratch == NULL ? NULL : arena_new(scratch, sizeof *result);
  luattn_status status;
  if (result == NULL) {
    status = no_memory(t, err);
  } else {
    text how;
    text_init(&how, a);
    status = derive(scratch, t, result, &how, err);
    if (status == LUATTN_OK) *out = *result;
  }
  arena_close(scratch);
  return status;
}
