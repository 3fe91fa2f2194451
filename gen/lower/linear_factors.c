#include "common/fail.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"
#include "gen/lower/linear_lowered.h"
#include "gen/plan/linear_family.h"

typedef struct linear_work {
  linear_lowered *f;
  const derived_linear *d;
  unsigned takes;        /* LINEAR_TAKES_.. */
  ir_ref from[2], to[2]; /* head dims */
  luattn_error *err;
} linear_work;

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
  *out = ir_substitute(w->f->g, hook->sums.value, w->from, w->to, 2);
  ir_simplify(w->f->g, out, 1);
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

/* A value_mod that multiplies v by a number of the token becomes part of what is written: numbers of tokens are made once for
 * all channels, by warps that have registers left. */
static void join_value_factor(linear_lowered *f) {
  const ir_ref by = f->value_mod != IR_NONE ? factor_of(f->g, f->value_mod, 16) : IR_NONE;
  double x;
  if (by == IR_NONE) return;
  f->value_mod = IR_NONE;
  f->write = f->write == IR_NONE ? by : ir_op2(f->g, IR_MUL, f->write, by);
  ir_simplify(f->g, &f->write, 1);
  if (ir_is_const(f->g, f->write, &x) && x == 1) f->write = IR_NONE;
}

/* Kernels compute integers in 32 bits, and add a chunk to a position. */
static luattn_status bound_length(linear_work *w) {
  linear_lowered *f = w->f;
  const ir_ref hook[] = {f->decay, f->write, f->read, f->erase, f->query_factor, f->key_factor, f->value_mod, f->skip};
  const int64_t most = INT64_C(1) << 30;
  ir_ref root[sizeof hook / sizeof hook[0]];
  int n = 0;
  for (size_t i = 0; i < sizeof hook / sizeof hook[0]; i++)
    if (hook[i] != IR_NONE) root[n++] = hook[i];
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
  TRY(factor(w, LINEAR_QUERY, &f->query_factor));
  TRY(factor(w, LINEAR_KEY, &f->key_factor));
  TRY(value_of(w, LINEAR_VALUE, &f->value_mod));
  if (!f->writes_channels) join_value_factor(f);
  TRY(value_of(w, LINEAR_SKIP, &f->skip));
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
  *out = (linear_lowered){.a = a, .g = g, .spec = own, .packed = to->packed};
  linear_work w = {.f = out, .d = spec->linear, .takes = to->family->takes, .err = err};
  w.from[0] = ir_variable(g, VAR_HEAD_DIM, 0), w.from[1] = ir_variable(g, VAR_HEAD_DIM_V, 0);
  w.to[0] = ir_int(g, to->k_dim), w.to[1] = ir_int(g, to->v_dim);
  return lower(&w);
}
