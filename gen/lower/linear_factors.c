#include "common/fail.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"
#include "gen/lower/linear_lowering.h"
#include "gen/plan/linear_family.h"

static luattn_status lacks(const linear_work *w, linear_hook_id id, const char *what) {
  return luattn_fail(w->err, LUATTN_UNSUPPORTED, "%s: %s: %s, which this kernel of linear attention lacks",
                     w->f->spec->traced.file, linear_hook_rows[id].name, what);
}

static bool is_of_token(const ir *g, ir_ref r) { return !ir_uses(g, r, VAR_X) && !ir_uses(g, r, VAR_D); }

/* f of r = f * x, f being of the token; IR_NONE: r is no such product. */
static ir_ref factor_of(ir *g, ir_ref r, int depth) {
  if (ir_is_var(g, r, VAR_X)) return ir_real(g, 1);
  const ir_node n = *ir_get(g, r);
  ir_ref part = IR_NONE;
  if (depth == 0 || (n.op != IR_NEG && n.op != IR_MUL && n.op != IR_DIV)) return IR_NONE;
  if (n.op == IR_NEG) {
    part = factor_of(g, n.arg[0], depth - 1);
    return part != IR_NONE ? ir_op1(g, IR_NEG, part) : IR_NONE;
  }
  if (is_of_token(g, n.arg[1])) {
    part = factor_of(g, n.arg[0], depth - 1);
    return part != IR_NONE ? ir_op2(g, (ir_op)n.op, part, n.arg[1]) : IR_NONE;
  }
  if (n.op == IR_DIV || !is_of_token(g, n.arg[0])) return IR_NONE;
  part = factor_of(g, n.arg[1], depth - 1);
  return part != IR_NONE ? ir_op2(g, IR_MUL, n.arg[0], part) : IR_NONE;
}

/* The hook's expression for these head dims. */
static luattn_status value_of(linear_work *w, linear_hook_id id, ir_ref *out) {
  const linear_hook *hook = &w->d->hook[id];
  *out = IR_NONE;
  if (!hook->given) return LUATTN_OK;
  if (hook->sums.count > 0) return lacks(w, id, "sums over a row's channels");
  *out = linear_for_dims(w, hook->sums.value);
  return LUATTN_OK;
}

/* A hook that multiplies its row by a number of the token; IR_NONE: by 1. */
static luattn_status factor(linear_work *w, linear_hook_id id, ir_ref *out) {
  double x;
  TRY(value_of(w, id, out));
  if (*out == IR_NONE) return LUATTN_OK;
  *out = factor_of(w->f->g, *out, 16);
  if (*out == IR_NONE) return lacks(w, id, "is no number of the token times the element");
  ir_simplify(w->f->g, out, 1);
  if (id != LINEAR_READ && ir_is_const(w->f->g, *out, &x) && x == 1) *out = IR_NONE;
  return LUATTN_OK;
}

/* Whether a mod of rows is such a number, which kernels have, with nothing to differentiate. */
static bool is_factor(linear_work *w, linear_hook_id id) {
  const linear_hook *hook = &w->d->hook[id];
  return hook->sums.count == 0 && !linear_has_terms(w, id) && factor_of(w->f->g, hook->sums.value, 16) != IR_NONE;
}

/* query_mod or key_mod: by kernels, or by rows that are made before them. */
static luattn_status row_mod(linear_work *w, linear_hook_id id, ir_ref *out, linear_row_hook *row) {
  if (!w->d->hook[id].given || is_factor(w, id)) return factor(w, id, out);
  return linear_lower_row(w, id, true, row);
}

/* value_mod: kernels have any function of an element, and in backward a number of the token alone. */
static luattn_status value_mod(linear_work *w) {
  linear_lowered *f = w->f;
  const linear_hook *hook = &w->d->hook[LINEAR_VALUE];
  if (!hook->given) return LUATTN_OK;
  const bool in_kernel = hook->sums.count == 0 &&
                         (!w->backward || (!f->writes_channels && factor_of(f->g, hook->sums.value, 16) != IR_NONE));
  if (!in_kernel) return linear_lower_row(w, LINEAR_VALUE, true, &f->row[2]);
  TRY(value_of(w, LINEAR_VALUE, &f->value_mod));
  return LUATTN_OK;
}

/* A value_mod that multiplies v by a number of the token becomes part of what is written: numbers of tokens are made once for
 * all channels, by warps that have registers left. */
static luattn_status join_value_factor(linear_work *w) {
  linear_lowered *f = w->f;
  const ir_ref by = f->value_mod != IR_NONE ? factor_of(f->g, f->value_mod, 16) : IR_NONE, own = f->write;
  double x;
  if (w->backward) TRY(linear_lower_terms(w, LINEAR_WRITE, by, &f->of_write));
  if (by == IR_NONE) return LUATTN_OK;
  if (w->backward) TRY(linear_lower_terms(w, LINEAR_VALUE, own, &f->of_write));
  f->value_mod = IR_NONE;
  f->write = own == IR_NONE ? by : ir_op2(f->g, IR_MUL, own, by);
  ir_simplify(f->g, &f->write, 1);
  if (ir_is_const(f->g, f->write, &x) && x == 1) f->write = IR_NONE;
  return LUATTN_OK;
}

enum { MOST_ROOTS = 8 + 4 * (2 * CHANNEL_SUMS_MAX + 2) };

static int add_roots(const ir_ref *from, int count, ir_ref *root, int n) {
  for (int i = 0; i < count; i++)
    if (from[i] != IR_NONE) root[n++] = from[i];
  return n;
}

/* Kernels compute integers in 32 bits, and add a chunk to a position. What gradients compute besides is of the same
 * integers: indices of inputs that hooks read, and conditions. */
static luattn_status bound_length(linear_work *w) {
  linear_lowered *f = w->f;
  const ir_ref hook[] = {f->decay, f->write, f->read, f->erase, f->query_factor, f->key_factor, f->value_mod, f->skip};
  const int64_t most = INT64_C(1) << 30;
  ir_ref root[MOST_ROOTS];
  int n = add_roots(hook, (int)(sizeof hook / sizeof hook[0]), root, 0);
  for (int i = 0; i < 3; i++) {
    n = add_roots(f->row[i].sum, f->row[i].num_sums, root, n);
    n = add_roots(&f->row[i].value, 1, root, n);
  }
  f->max_len = ir_int_limit(f->g, root, n);
  if (f->max_len < 0 || ir_failed(f->g)) return luattn_fail(w->err, LUATTN_NO_MEMORY, "lower: out of memory");
  if (f->max_len > most) f->max_len = most;
  if (f->max_len == 0) f->too_large = ir_int_overflow(f->g, root, n, 1, &f->reach);
  return LUATTN_OK;
}

static luattn_status check_class(const linear_work *w) {
  const linear_class *c = &w->d->class;
  if (c->normalizes && !(w->takes & LINEAR_TAKES_NORMALIZE))
    return lacks(w, LINEAR_VALUE, "is normalised (normalize = true)");
  if (c->reads && !(w->takes & (LINEAR_TAKES_READ | LINEAR_TAKES_READ_ROWS)))
    return lacks(w, LINEAR_READ, "reads the state");
  if (c->erases && !(w->takes & LINEAR_TAKES_ERASE)) return lacks(w, LINEAR_ERASE, "erases along a vector of its own");
  if (c->before && !(w->takes & LINEAR_TAKES_BEFORE)) return lacks(w, LINEAR_READ, "reads the state before its decay");
  if (c->decay == LINEAR_DECAY_CHANNEL && !(w->takes & LINEAR_TAKES_CHANNEL_DECAY))
    return lacks(w, LINEAR_DECAY, "differs between channels");
  if (c->writes_channels && !(w->takes & LINEAR_TAKES_WRITE_ROWS))
    return lacks(w, LINEAR_WRITE, "differs between channels of v");
  return LUATTN_OK;
}

/* Gradients of numbers of tokens, and of what skips. */
static luattn_status lower_gradients(linear_work *w) {
  linear_lowered *f = w->f;
  TRY(linear_lower_terms(w, LINEAR_DECAY, IR_NONE, &f->of_decay));
  TRY(linear_lower_terms(w, LINEAR_READ, IR_NONE, &f->of_read));
  if (f->skip != IR_NONE) TRY(linear_lower_row(w, LINEAR_SKIP, false, &f->skipped));
  linear_find_alone(w);
  return LUATTN_OK;
}

static luattn_status lower(linear_work *w) {
  linear_lowered *f = w->f;
  const linear_class *c = &w->d->class;
  TRY(check_class(w));
  f->decay_of = c->decay, f->before = c->before, f->writes_channels = c->writes_channels;
  f->reads_rows = c->reads && (w->takes & LINEAR_TAKES_READ_ROWS);
  if (c->decay != LINEAR_DECAY_NONE) TRY(value_of(w, LINEAR_DECAY, &f->decay));
  TRY(value_of(w, LINEAR_WRITE, &f->write));
  TRY(f->reads_rows ? value_of(w, LINEAR_READ, &f->read) : factor(w, LINEAR_READ, &f->read));
  TRY(value_of(w, LINEAR_ERASE, &f->erase));
  TRY(row_mod(w, LINEAR_QUERY, &f->query_factor, &f->row[0]));
  TRY(row_mod(w, LINEAR_KEY, &f->key_factor, &f->row[1]));
  TRY(value_mod(w));
  if (!f->writes_channels) TRY(join_value_factor(w));
  TRY(value_of(w, LINEAR_SKIP, &f->skip));
  if (w->backward) TRY(lower_gradients(w));
  return bound_length(w);
}

luattn_status lower_linear(arena *a, const luattn_spec *spec, const linear_lowering *to, linear_lowered *out,
                           luattn_error *err) {
  luattn_spec *own = arena_new(a, sizeof *own);
  ir *g = own != NULL ? ir_clone(a, spec->traced.g) : NULL;
  if (g == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "lower: out of memory");
  *own = *spec;
  own->traced.g = g;
  for (int i = 0; i < own->traced.num_inputs; i++) {
    luattn_input_info *in = &own->traced.input[i];
    if (in->dtype == LUATTN_INPUT_ANY) in->dtype = to->real;
    if (in->dtype == LUATTN_INPUT_F64) ir_input_wide(g, (uint32_t)i);
  }
  *out = (linear_lowered){.a = a, .g = g, .spec = own, .packed = to->packed, .backward = to->backward};
  linear_work w = {.f = out,
                   .d = spec->linear,
                   .takes = to->family->takes,
                   .backward = to->backward,
                   .wants = to->wants,
                   .err = err};
  w.from[0] = ir_variable(g, VAR_HEAD_DIM, 0), w.from[1] = ir_variable(g, VAR_HEAD_DIM_V, 0);
  w.to[0] = ir_int(g, to->k_dim), w.to[1] = ir_int(g, to->v_dim);
  return lower(&w);
}
