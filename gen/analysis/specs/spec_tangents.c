#include "gen/analysis/specs/spec_tangents.h"

#include <string.h>

#include "common/fail.h"
#include "gen/ir/passes.h"

enum {
  MOST_LEAVES = 8 + SPEC_MAX_STATE + SPEC_MAX_RED + 32 + 2 * ROW_MAX_TABLES + 2 * DERIVED_MAX_ROWS +
                DERIVED_MAX_PASSES + DERIVED_MAX_SUMS
};

/* What expressions are differentiated by: nodes, and the tangent of each. */
typedef struct leaves {
  ir *g;
  ir_ref *of, *tangent; /* [most] */
  int count, loads;     /* loads: the first so many, of inputs */
} leaves;

static void add(leaves *l, ir_ref of, ir_ref tangent) { l->of[l->count] = of, l->tangent[l->count++] = tangent; }

static void add_var(leaves *l, ir_var of, ir_var tangent, uint32_t index) {
  const ir_ref var = ir_variable(l->g, of, index);
  add(l, var, ir_variable(l->g, tangent, index));
}

static bool is_load(const ir_node *n, uint32_t inputs) {
  return n->op == IR_LOAD && n->type == IR_REAL && n->imm.integer < SPEC_INPUT_TANGENT && inputs >> n->imm.integer & 1;
}

/* Every read of an input with a tangent. Reads of tangents come after them. */
static luattn_status open_leaves(arena *a, const traced_spec *t, const tangent_sources *of, leaves *l,
                                 luattn_error *err) {
  const uint32_t count = ir_count(t->g);
  int loads = 0;
  for (ir_ref r = 1; r < count; r++) loads += is_load(ir_get(t->g, r), of->inputs);
  *l = (leaves){.g = t->g};
  l->of = arena_array(a, (size_t)(loads + MOST_LEAVES), sizeof *l->of);
  l->tangent = arena_array(a, (size_t)(loads + MOST_LEAVES), sizeof *l->tangent);
  if (l->of == NULL || l->tangent == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  for (ir_ref r = 1; r < count; r++) {
    const ir_node n = *ir_get(t->g, r);
    if (is_load(&n, of->inputs))
      add(l, r, ir_load(t->g, SPEC_INPUT_TANGENT + (uint32_t)n.imm.integer, IR_REAL, n.arg, n.nargs));
  }
  l->loads = l->count;
  for (uint32_t i = 0; i < 32; i++)
    if (of->scalars >> i & 1) add_var(l, VAR_SCALAR, VAR_SCALAR_TANGENT, i);
  return LUATTN_OK;
}

static ir_ref tangent_of(const leaves *l, ir_ref y) {
  ir_ref out = IR_NONE;
  if (y != IR_NONE) ir_tangent(l->g, &y, 1, l->of, l->tangent, l->count, &out);
  return out;
}

/* Of a mod of q, k or v. */
static ir_ref mod_tangent(leaves *l, ir_ref mod, bool has, int reads) {
  const int count = l->count;
  if (mod == IR_NONE) return has ? ir_variable(l->g, VAR_X_TANGENT, 0) : IR_NONE;
  if (has) add_var(l, VAR_X, VAR_X_TANGENT, 0);
  for (int i = 0; has && i < reads; i++) add_var(l, VAR_READ, VAR_READ_TANGENT, (uint32_t)i);
  const ir_ref tangent = tangent_of(l, mod);
  l->count = count;
  return tangent;
}

/* How many tables a spec's mods read through, by any of them. */
static int reads_of(const traced_spec *t) {
  int most = t->num_reads;
  for (int i = 0; i < 3; i++)
    if (t->rows[i] != NULL && t->rows[i]->count > most) most = t->rows[i]->count;
  return most;
}

/* Whether x is read anywhere but in the new values of stabilisers. */
static bool is_read_besides(ir *g, const online_split *s, int num_state, uint32_t stabilisers, ir_ref x) {
  const ir_ref marker = ir_variable(g, VAR_DELTA, 0), zero = ir_real(g, 0); /* never in an online step */
  ir_ref root[SPEC_MAX_RED + SPEC_MAX_STATE + 2], held[SPEC_MAX_STATE], none[SPEC_MAX_STATE];
  int n = 0, num_held = 0;
  for (int i = 0; i < num_state; i++) {
    if (stabilisers >> i & 1)
      held[num_held] = s->next[i], none[num_held++] = zero;
    else
      root[n++] = s->next[i];
  }
  for (int k = 0; k < s->num_red; k++) root[n++] = s->term[k];
  root[n++] = s->prob, root[n++] = s->rescale;
  for (int i = 0; i < n; i++) {
    const ir_ref without = ir_substitute(g, root[i], held, none, num_held);
    if (ir_substitute(g, without, &x, &marker, 1) != without) return true;
  }
  return false;
}

/* Whether reduction k makes stabilisers alone, and so has no tangent. */
static bool is_of_stabilisers(const leaves *l, const spec_tangents *t, int num_state, int k) {
  if (t->of.stabilisers == 0 || t->split.kind[k] != IR_REDUCE_MAX) return false;
  return !is_read_besides(l->g, &t->split, num_state, t->of.stabilisers, ir_variable(l->g, VAR_RED, (uint32_t)k));
}

/* One step, where the states of `has` have tangents. */
static void step_tangents(leaves *l, bool score, const bool *has, int num_state, spec_tangents *out) {
  const int count = l->count;
  if (score) add_var(l, VAR_SCORE, VAR_SCORE_TANGENT, 0);
  for (int i = 0; i < num_state; i++)
    if (has[i]) add_var(l, VAR_STATE, VAR_STATE_TANGENT, (uint32_t)i);
  for (int k = 0; k < out->split.num_red; k++) {
    out->term[k] = is_of_stabilisers(l, out, num_state, k) ? IR_NONE : tangent_of(l, out->split.term[k]);
    if (out->term[k] != IR_NONE) add_var(l, VAR_RED, VAR_RED_TANGENT, (uint32_t)k);
  }
  out->prob = tangent_of(l, out->split.prob);
  out->rescale = tangent_of(l, out->split.rescale);
  for (int i = 0; i < num_state; i++)
    out->next[i] = out->of.stabilisers >> i & 1 ? IR_NONE : tangent_of(l, out->split.next[i]);
  l->count = count;
}

/* Whether x is 0 where these states are. */
static bool vanishes_with(const ir *g, ir_ref x, uint32_t states) {
  const ir_node *n = ir_get(g, x);
  double c;
  switch (n->op) {
    case IR_VAR:
      return ir_var_of(n) == VAR_STATE && states >> ir_index_of(n) & 1;
    case IR_MUL:
      return vanishes_with(g, n->arg[0], states) || vanishes_with(g, n->arg[1], states);
    case IR_NEG:
    case IR_DIV:
      return vanishes_with(g, n->arg[0], states);
    case IR_ADD:
    case IR_SUB:
      return vanishes_with(g, n->arg[0], states) && vanishes_with(g, n->arg[1], states);
    default:
      return ir_is_const(g, x, &c) && c == 0;
  }
}

/* Whether what stabiliser i starts at counts in a step, whose new stabilisers are constants: as where a sum starts at 1, in
 * units of that. Sums that start at 0 are 0 in any. */
static bool start_counts(const leaves *l, const traced_online *on, const online_split *s, uint32_t stabilisers, int i) {
  ir *g = l->g;
  const ir_ref x = ir_variable(g, VAR_STATE, (uint32_t)i), along = ir_variable(g, VAR_STATE_TANGENT, (uint32_t)i);
  ir_ref root[SPEC_MAX_RED + SPEC_MAX_STATE + 1], held[SPEC_MAX_STATE], constant[SPEC_MAX_STATE];
  uint32_t zeros = 0;
  double c;
  int n = 0, num_held = 0;
  for (int j = 0; j < on->num_state; j++) {
    if (stabilisers >> j & 1)
      held[num_held] = s->next[j], constant[num_held++] = ir_variable(g, VAR_DELTA, 0); /* never in an online step */
    else
      root[n++] = s->next[j], zeros |= (uint32_t)(ir_is_const(g, on->init[j], &c) && c == 0) << j;
  }
  for (int k = 0; k < s->num_red; k++) root[n++] = s->term[k];
  root[n++] = s->prob;
  for (int k = 0; k < n; k++) {
    const ir_ref y = ir_substitute(g, root[k], held, constant, num_held);
    ir_ref tangent;
    ir_tangent(g, &y, 1, &x, &along, 1, &tangent);
    if (tangent != IR_NONE && !vanishes_with(g, tangent, zeros)) return true;
  }
  return false;
}

/* Stabilisers without those that start with a tangent that counts. */
static uint32_t true_stabilisers(const leaves *l, const traced_online *on, const spec_tangents *t) {
  uint32_t out = t->of.stabilisers;
  for (int i = 0; i < on->num_state; i++)
    if (t->of.stabilisers >> i & 1 && tangent_of(l, on->init[i]) != IR_NONE &&
        start_counts(l, on, &t->split, t->of.stabilisers, i))
      out &= ~(1u << i);
  return out;
}

/* A state has a tangent if it starts with one, or if a step gives it one. */
static void online_tangents(leaves *l, const traced_online *on, bool score, spec_tangents *out) {
  bool has[SPEC_MAX_STATE] = {false}, more = true;
  out->of.stabilisers = true_stabilisers(l, on, out);
  for (int i = 0; i < on->num_state; i++) {
    out->init[i] = out->of.stabilisers >> i & 1 ? IR_NONE : tangent_of(l, on->init[i]);
    has[i] = out->init[i] != IR_NONE;
  }
  while (more) {
    more = false;
    step_tangents(l, score, has, on->num_state, out);
    for (int i = 0; i < on->num_state; i++)
      if (out->next[i] != IR_NONE && !has[i]) has[i] = more = true;
  }
  for (int i = 0; i < on->num_state; i++)
    if (has[i]) add_var(l, VAR_STATE, VAR_STATE_TANGENT, (uint32_t)i);
  out->out = tangent_of(l, on->out);
  out->lse = on->lse >= 0 ? tangent_of(l, on->final[on->lse]) : IR_NONE;
}

luattn_status spec_tangents_of(arena *a, const traced_spec *t, const tangent_sources *of, spec_tangents *out,
                               luattn_error *err) {
  leaves l;
  *out = (spec_tangents){.of = *of};
  TRY(split_online(t->g, &t->online, t->file, &out->split, err));
  TRY(open_leaves(a, t, of, &l, err));
  const int reads = reads_of(t), count = l.count;
  out->query_mod = mod_tangent(&l, t->query_mod, of->q, reads);
  out->key_mod = mod_tangent(&l, t->key_mod, of->k, reads);
  out->value_mod = mod_tangent(&l, t->value_mod, of->v, reads);
  if (out->query_mod != IR_NONE || out->key_mod != IR_NONE) add_var(&l, VAR_SCORE, VAR_SCORE_TANGENT, 0);
  out->score_mod = tangent_of(&l, t->score_mod);
  l.count = count;
  online_tangents(&l, &t->online, out->score_mod != IR_NONE, out);
  return ir_failed(t->g) ? luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file) : LUATTN_OK;
}

/* ---- backward ---- */

/* Tangents of the values of terms, in the arena. */
static ir_ref *term_tangents(arena *a, leaves *l, const derived_terms *terms) {
  ir_ref *out = arena_array(a, (size_t)terms->count + 1, sizeof *out);
  for (int i = 0; out != NULL && i < terms->count; i++) out[i] = tangent_of(l, terms->term[i].value);
  return out;
}

static void add_family(leaves *l, ir_var of, ir_var tangent, int count) {
  for (int i = 0; i < count; i++) add_var(l, of, tangent, (uint32_t)i);
}

/* What a row's numbers are computed from. */
static bool row_tangents(arena *a, leaves *l, const traced_spec *t, const derived_spec *d, const spec_tangents *forward,
                         backward_tangents *out) {
  const int count = l->count;
  for (int i = 0; i < t->online.num_state; i++)
    if (forward->init[i] != IR_NONE || forward->next[i] != IR_NONE)
      add_var(l, VAR_STATE, VAR_STATE_TANGENT, (uint32_t)i);
  for (int i = 0; i < d->num_saved; i++) out->saved[i] = tangent_of(l, d->saved[i]);
  l->count = count;
  add_family(l, VAR_FINAL, VAR_FINAL_TANGENT, (t->online.lse >= 0 ? 1 : 0) + d->num_saved);
  add_var(l, VAR_DELTA, VAR_DELTA_TANGENT, 0);
  add_var(l, VAR_DLSE, VAR_DLSE_TANGENT, 0);
  add_family(l, VAR_PASS, VAR_PASS_TANGENT, d->num_passes + d->num_sums);
  for (int k = 0; k < d->num_passes; k++) out->factor[k] = tangent_of(l, d->pass[k].factor);
  for (int i = 0; i < d->num_rows; i++) out->row[i] = tangent_of(l, d->row[i]);
  out->row_terms = term_tangents(a, l, &d->row_terms);
  l->count = count;
  return out->row_terms != NULL;
}

static bool element_tangents(arena *a, leaves *l, const derived_spec *d, backward_tangents *out) {
  const int count = l->count;
  add_var(l, VAR_SCORE, VAR_SCORE_TANGENT, 0);
  add_var(l, VAR_DP, VAR_DP_TANGENT, 0);
  add_family(l, VAR_ROW, VAR_ROW_TANGENT, d->num_rows);
  out->prob = tangent_of(l, d->prob);
  out->ds = tangent_of(l, d->ds);
  out->element_terms = term_tangents(a, l, &d->element_terms);
  l->count = count;
  return out->element_terms != NULL;
}

/* Row passes, whose score is that after score_mod. */
static void pass_tangents(leaves *l, const traced_spec *t, const derived_spec *d, const spec_tangents *forward,
                          backward_tangents *out) {
  const int count = l->count;
  if (forward->score_mod != IR_NONE) add_var(l, VAR_SCORE, VAR_SCORE_TANGENT, 0);
  add_family(l, VAR_FINAL, VAR_FINAL_TANGENT, (t->online.lse >= 0 ? 1 : 0) + d->num_saved);
  for (int k = 0; k < d->num_passes; k++) out->weight[k] = tangent_of(l, d->pass[k].weight);
  for (int i = 0; i < d->num_sums; i++)
    if (d->sum[i].kind == PASS_SUM) out->sum[i] = tangent_of(l, d->sum[i].of);
  l->count = count;
}

luattn_status backward_tangents_of(arena *a, const traced_spec *t, const derived_spec *d, const spec_tangents *forward,
                                   backward_tangents *out, luattn_error *err) {
  const derived_mod *mod[] = {&d->query_mod, &d->key_mod, &d->value_mod};
  const ir_ref of_tensor[] = {t->query_mod, t->key_mod, t->value_mod};
  leaves l;
  *out = (backward_tangents){0};
  TRY(open_leaves(a, t, &forward->of, &l, err));
  bool ok = row_tangents(a, &l, t, d, forward, out) && element_tangents(a, &l, d, out);
  pass_tangents(&l, t, d, forward, out);
  const int reads = reads_of(t);
  add_var(&l, VAR_X, VAR_X_TANGENT, 0);
  add_var(&l, VAR_GRAD, VAR_GRAD_TANGENT, 0);
  add_family(&l, VAR_READ, VAR_READ_TANGENT, reads);
  add_family(&l, VAR_READ_GRAD, VAR_READ_GRAD_TANGENT, reads);
  for (int i = 0; i < 3 && ok; i++) {
    if (of_tensor[i] == IR_NONE) continue;
    out->dx[i] = tangent_of(&l, mod[i]->dx);
    out->mod_terms[i] = term_tangents(a, &l, &mod[i]->terms);
    ok = out->mod_terms[i] != NULL;
  }
  return ok && !ir_failed(t->g) ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
}
