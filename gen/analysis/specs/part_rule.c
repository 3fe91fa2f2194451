#include "gen/analysis/specs/part_rule.h"

#include <string.h>

#include "common/fail.h"
#include "gen/analysis/online/merge.h"
#include "gen/ir/passes.h"

enum { MAX_ROOTS = SPEC_MAX_STATE + 4 + DERIVED_MAX_ROWS };

typedef struct taker {
  arena *a; /* scratch */
  struct luattn_spec *spec;
  ir *g;
  part_rule *rule;
  ir_ref root[MAX_ROOTS];
  int num_roots;
  /* Numbers of the row beside its state, and what stands for them in the rule. */
  ir_ref from[DERIVED_MAX_ROWS], to[DERIVED_MAX_ROWS], saved[DERIVED_MAX_ROWS];
  int num_from;
  luattn_error *err;
} taker;

static luattn_status no_memory(const taker *k) {
  return luattn_fail(k->err, LUATTN_NO_MEMORY, "%s: out of memory", k->spec->traced.file);
}

static luattn_status refuse(const taker *k, const char *why) {
  return luattn_fail(k->err, LUATTN_UNSUPPORTED, "%s: online_func '%s': finished parts of a row cannot be merged: %s",
                     k->spec->traced.file, k->spec->traced.online.name, why);
}

/* Every expression of the rule, in the order in which put_back takes them. */
static void gather(taker *k, const online_merge *merge) {
  const traced_online *o = &k->spec->traced.online;
  const ir_ref one = ir_real(k->g, 1);
  for (int i = 0; i < o->num_state; i++) k->root[k->num_roots++] = merge->state[i];
  k->root[k->num_roots++] = merge->factor;
  k->root[k->num_roots++] = merge->other_factor;
  k->root[k->num_roots++] = merge_scale(k->g, o);
  k->root[k->num_roots++] = o->lse >= 0 ? o->final[o->lse] : one;
  for (int i = 0; i < k->spec->derived.num_saved; i++) k->root[k->num_roots++] = k->spec->derived.saved[i];
  ir_simplify(k->g, k->root, k->num_roots);
}

static void put_back(taker *k) {
  const traced_online *o = &k->spec->traced.online;
  part_rule *rule = k->rule;
  int n = 0;
  for (int i = 0; i < o->num_state; i++) rule->state[i] = k->root[n++];
  rule->factor = k->root[n++];
  rule->other_factor = k->root[n++];
  rule->scale = k->root[n++];
  rule->lse = o->lse >= 0 ? k->root[n] : IR_NONE;
  n++;
  rule->num_saved = k->spec->derived.num_saved;
  rule->whole_rows = k->spec->derived.num_passes > 0;
  for (int i = 0; i < rule->num_saved; i++) rule->saved[i] = k->root[n++];
  rule->num_state = o->num_state;
  rule->num_rows = o->num_state + k->num_from;
}

/* Gives a number of the row that is no state a place behind the states: a real one as it is, a condition as 1 or 0. */
static luattn_status add_row(taker *k, ir_ref r) {
  ir *g = k->g;
  const int place = k->spec->traced.online.num_state + k->num_from;
  const ir_type type = ir_typeof(g, r);
  const ir_ref one = ir_real(g, 1), zero = ir_real(g, 0);
  if (type == IR_INT)
    return refuse(k, "it computes with an integer of the row; make it a real number before it meets row scalars");
  if (place >= DERIVED_MAX_ROWS)
    return refuse(k, "forward would have to save more than 16 numbers per row; make it simpler");
  const ir_ref stored = ir_variable(g, VAR_STATE, (uint32_t)place);
  k->from[k->num_from] = r;
  k->saved[k->num_from] = type == IR_BOOL ? ir_op3(g, IR_SELECT, r, one, zero) : r;
  k->to[k->num_from] = type == IR_BOOL ? ir_op2(g, IR_NE, stored, zero) : stored;
  k->num_from++;
  return LUATTN_OK;
}

/* Replaces what depends on no state, but on the row: largest expressions first. */
static luattn_status take_rows(taker *k) {
  const uint32_t count = ir_count(k->g);
  bool *need = arena_array(k->a, count, sizeof *need), *of_state = arena_array(k->a, count, sizeof *of_state);
  if (need == NULL || of_state == NULL) return no_memory(k);
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(k->g, r);
    of_state[r] = n->op == IR_VAR && (ir_var_of(n) == VAR_STATE || ir_var_of(n) == VAR_OTHER);
    for (int i = 0; i < n->nargs; i++) of_state[r] |= of_state[n->arg[i]];
  }
  for (int i = 0; i < k->num_roots; i++) need[k->root[i]] = true;
  for (ir_ref r = count; r-- > 1;) {
    const ir_node n = *ir_get(k->g, r);
    if (!need[r] || n.op == IR_CONST_REAL || n.op == IR_CONST_INT || n.op == IR_CONST_BOOL) continue;
    if (of_state[r])
      for (int i = 0; i < n.nargs; i++) need[n.arg[i]] = true;
    else
      TRY(add_row(k, r));
  }
  for (int i = 0; i < k->num_roots; i++) k->root[i] = ir_substitute(k->g, k->root[i], k->from, k->to, k->num_from);
  return LUATTN_OK;
}

/* Has forward save the rows of the rule, with an lse that says which rows keep something. */
static luattn_status change_spec(taker *k) {
  traced_online *o = &k->spec->traced.online;
  derived_spec *d = &k->spec->derived;
  const ir_ref zero = ir_real(k->g, 0), lse = o->lse >= 0 ? o->final[o->lse] : zero;
  const char *missing = arena_printf(k->spec->a,
                                     "%s: is a spec of parts, which has no backward: merge them with "
                                     "luattn_merge_args.saved, and call backward of the "
                                     "spec itself for each part's keys, with o, lse and saved of the merge",
                                     k->spec->traced.file);
  if (missing == NULL) return no_memory(k);
  o->num_final = 1, o->final_name[0] = "lse", o->final[0] = lse, o->lse = 0;
  o->forward = o->backward = IR_NONE;
  *d = (derived_spec){
      .missing = missing, .prob = zero, .ds = zero, .how = "no backward", .num_saved = k->rule->num_rows};
  for (int i = 0; i < o->num_state; i++) d->saved[i] = ir_variable(k->g, VAR_STATE, (uint32_t)i);
  for (int i = 0; i < k->num_from; i++) d->saved[o->num_state + i] = k->saved[i];
  return LUATTN_OK;
}

luattn_status part_rule_take(arena *scratch, struct luattn_spec *spec, luattn_error *err) {
  taker *k = arena_new(scratch, sizeof *k);
  online_merge *merge = arena_new(scratch, sizeof *merge);
  part_rule *rule = arena_new(spec->a, sizeof *rule);
  if (k == NULL || merge == NULL || rule == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", spec->traced.file);
  *k = (taker){.a = scratch, .spec = spec, .g = spec->traced.g, .rule = rule, .err = err};
  TRY(merge_derive(scratch, &spec->traced, merge, err));
  TRY(merge_test_finished(scratch, &spec->traced, err));
  gather(k, merge);
  TRY(take_rows(k));
  put_back(k);
  TRY(change_spec(k));
  spec->parts = rule;
  return ir_failed(k->g) || arena_failed(scratch) ? no_memory(k) : LUATTN_OK;
}
