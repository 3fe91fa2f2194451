/* remedy.c: says why a backward cannot be derived: names the reduction and the term, and how to write it. */
#include "common/fail.h"
#include "gen/analysis/online/steps.h"

/* A maximum drops out of a row if everything is scaled by exp(-m); a term that is not, such as the eps of o /
 * (l + eps), keeps it in. Whether scaling that term helps is found by deriving the changed function. */
enum { MAX_TRIED = 24 };

/* Whether r is a number that does not depend on the row. */
static bool is_free_of_row(const ir *g, ir_ref r) {
  double x;
  if (ir_typeof(g, r) != IR_REAL || (ir_is_const(g, r, &x) && x == 0)) return false;
  return !ir_uses(g, r, VAR_STATE) && !ir_uses(g, r, VAR_SCORE) && !ir_uses(g, r, VAR_OUT) &&
         !ir_uses_op(g, r, IR_REDUCE_SUM) && !ir_uses_op(g, r, IR_REDUCE_MAX);
}

/* Which argument of a sum or an extremum does not depend on the row while the other does; -1: none. */
static int lone_argument(const ir *g, const ir_node *n) {
  if (n->op != IR_ADD && n->op != IR_SUB && n->op != IR_MAX && n->op != IR_MIN) return -1;
  const bool first = is_free_of_row(g, n->arg[0]), second = is_free_of_row(g, n->arg[1]);
  return first == second ? -1 : first ? 0 : 1;
}

static bool derives(derivation *failed, const traced_online *changed) {
  arena *a = failed->a;
  derivation *d = arena_new(a, sizeof *d);
  sample *s = arena_new(a, sizeof *s);
  traced_spec *t = arena_new(a, sizeof *t);
  text *how = arena_new(a, sizeof *how);
  if (d == NULL || s == NULL || t == NULL || how == NULL) return failed->no_memory = true, false;
  *t = *failed->t;
  t->online = *changed;
  text_init(how, a);
  *d = (derivation){
      .a = a, .t = t, .o = &t->online, .g = failed->g, .how = how, .err = NULL, .s = s, .elements_only = true};
  ir_ref leaf[ONLINE_MAX_LEAVES];
  wanted_adjoints *want = NULL;
  luattn_status status = sample_init(s, a, t) ? whole_run(d) : LUATTN_NO_MEMORY;
  const int leaves = status == LUATTN_OK ? derivation_leaves(d, leaf) : 0;
  if (leaves < 0) status = LUATTN_NO_MEMORY;
  if (status == LUATTN_OK && leaves <= ONLINE_MAX_LEAVES)
    status = separate_reductions(d, true, d->o->lse >= 0, leaf, leaves, &want);
  failed->no_memory |= status == LUATTN_NO_MEMORY || derivation_failed(d);
  return status == LUATTN_OK && leaves <= ONLINE_MAX_LEAVES && want->first < 0;
}

/* The online function with `from` replaced by `to` in its epilogue. */
static traced_online substituted(const derivation *d, ir_ref from, ir_ref to) {
  traced_online o = *d->o;
  o.out = ir_substitute(d->g, o.out, &from, &to, 1);
  for (int i = 0; i < o.num_final; i++) o.final[i] = ir_substitute(d->g, o.final[i], &from, &to, 1);
  o.forward = IR_NONE; /* a `forward` would have to change as well */
  return o;
}

static const char *name_of(const derivation *d, ir_ref r) {
  const ir_node *n = ir_get(d->g, r);
  double x;
  if (ir_is_const(d->g, r, &x)) return arena_printf(d->a, "%.9g", x);
  if (n->op == IR_VAR && ir_var_of(n) == VAR_SCALAR) return d->t->scalar_name[ir_index_of(n)];
  if (n->op == IR_LOAD) return arena_printf(d->a, "%s[..]", d->t->input[n->imm.integer].name);
  return "x";
}

/* Tries node r of the epilogue with its row-independent argument scaled by exp(-m), m being row scalar i.
 * NULL: that does not help. */
static const char *try_node(derivation *d, ir_ref r, int i) {
  ir *g = d->g;
  const ir_node n = *ir_get(g, r);
  const int at = lone_argument(g, &n);
  if (at < 0) return NULL;
  const ir_ref m = ir_variable(g, VAR_STATE, (uint32_t)i);
  ir_ref arg[4] = {n.arg[0], n.arg[1]};
  arg[at] = ir_op2(g, IR_MUL, n.arg[at], ir_op1(g, IR_EXP, ir_op1(g, IR_NEG, m)));
  traced_online changed = substituted(d, r, ir_op2(g, (ir_op)n.op, arg[0], arg[1]));
  bool from_zero = false;
  if (!derives(d, &changed)) {
    changed.init[i] = ir_real(g, 0); /* exp(-m) overflows for very low scores */
    from_zero = derives(d, &changed);
    if (!from_zero) return NULL;
  }
  const char *what = name_of(d, n.arg[at]), *name = d->o->state_name[i];
  const char *line = n.line > 0 ? arena_printf(d->a, " in line %u", (unsigned)n.line) : "";
  const char *sign = n.op == IR_ADD ? "+ " : n.op == IR_SUB && at == 1 ? "- " : "";
  const char *start = from_zero ? arena_printf(d->a, " and let %s start at 0", name) : "";
  return arena_printf(d->a,
                      "; %s%s%s is not scaled with exp(-%s) as the rest of the row is: write %s * "
                      "exp(-rowscales.%s)%s, ",
                      sign, what, line, name, what, name, start);
}

/* Tries the nodes under `root` against row scalar i. */
static const char *try_under(derivation *d, ir_ref root, int i, int *tried) {
  uint8_t *under = root == IR_NONE ? NULL : arena_array(d->a, (size_t)root + 1, 1);
  if (under == NULL) return NULL;
  under[root] = 1;
  for (ir_ref r = root; r > IR_NONE && *tried < MAX_TRIED; r--) { /* users before arguments */
    if (!under[r]) continue;
    const ir_node n = *ir_get(d->g, r);
    for (int k = 0; k < n.nargs; k++) under[n.arg[k]] = 1;
    if (lone_argument(d->g, &n) < 0) continue;
    ++*tried;
    const char *remedy = try_node(d, r, i);
    if (remedy != NULL) return remedy;
  }
  return NULL;
}

const char *remedy_term(derivation *d) {
  int tried = 0;
  if (d->err == NULL || d->o->backward != IR_NONE) return "";
  for (int i = 0; i < d->o->num_state; i++) {
    if (!ir_uses_op(d->g, d->o->next[i], IR_REDUCE_MAX)) continue;
    const char *remedy = try_under(d, d->o->out, i, &tried);
    for (int k = 0; remedy == NULL && k < d->o->num_final; k++) remedy = try_under(d, d->o->final[k], i, &tried);
    if (remedy != NULL) return remedy;
  }
  return "";
}

/* "file: online_func 'x': runs forward only, ..: WHY (of reduction k); how to write it". NULL: out of memory. */
static const char *complaint(derivation *d, int k, const char *why) {
  const char *term = remedy_term(d);
  const char *remedy =
      d->o->backward == IR_NONE
          ? "backward = function(dp, p, final_rowscales, doosum, b, h, q_idx, kv_idx, scores) .. end"
          : "backward does not say how lse and the parameters inside online_func move; leave lse out of "
            "final_rowscales, or the parameters out of online_func";
  const char *join = *term != 0 ? "or " : d->o->backward == IR_NONE ? "; write " : "; ";
  if (derivation_failed(d) || arena_failed(d->a)) return NULL;
  return arena_printf(d->t->a, "%s: online_func '%s': runs forward only, as no backward can be derived: %s (%s)%s%s%s",
                      d->t->file, d->o->name, why, reduction_name(d, k), term, join, remedy);
}

luattn_status remedy_refuse(derivation *d, int k, const char *why) {
  if (derivation_failed(d)) return derivation_no_memory(d);
  const char *message = complaint(d, k, why);
  return message == NULL ? derivation_no_memory(d) : luattn_fail(d->err, LUATTN_UNSUPPORTED, "%s", message);
}
