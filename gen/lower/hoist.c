/* hoist.c: chooses the subexpressions that are computed once per head, row or column and kept in a slot. */
#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"

int lowered_op_cost(const lowered *f, ir_ref r) {
  const ir_node *n = ir_get(f->g, r);
  const plan *p = f->plan;
  const bool is_place = n->op == IR_VAR && (ir_var_of(n) == VAR_Q || ir_var_of(n) == VAR_KV);
  if (is_place && p->axes > 0) return 6 * p->axes; /* quotients */
  if (n->op == IR_VAR)                             /* a double from the parameters, or a register */
    return ir_var_of(n) == VAR_SCALAR || ir_var_of(n) == VAR_SCALE || ir_var_of(n) == VAR_SCALAR_TANGENT ? 4 : 0;
  if (n->type == IR_INT && (lowered_deps(f, r) & DEP_PART) != 0)
    return 0; /* constant per tile, or a
               * constant */
  return ir_op_cost((ir_op)n->op, (ir_type)n->type,
                    p->dtype == LUATTN_F64 ? IR_DOUBLE
                    : p->family->fast_math ? IR_FAST
                                           : IR_ACCURATE);
}

luattn_status hoist_open(lowered *f, luattn_error *err) {
  f->num_nodes = ir_count(f->g);
  (void)deps_of(&f->deps, f->num_nodes - 1); /* for all existing nodes: lowered_deps reads it */
  f->slot_kind = arena_array(f->a, f->num_nodes, 1);
  f->cost = arena_array(f->a, f->num_nodes, 1);
  if (f->slot_kind == NULL || f->cost == NULL || f->deps.count < f->num_nodes)
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", f->spec->traced.name);
  for (uint32_t r = 1; r < f->num_nodes; r++) {
    const ir_node *n = ir_get(f->g, r);
    const int mask = lowered_deps(f, r);
    int cost = lowered_op_cost(f, r);
    for (int i = 0; i < n->nargs; i++) {
      const bool below = lowered_deps(f, n->arg[i]) == DEP_SITE && mask != DEP_SITE; /* it is in Head already */
      cost += below ? 0 : f->cost[n->arg[i]];
    }
    f->cost[r] = (uint8_t)(cost > 200 ? 200 : cost);
  }
  return LUATTN_OK;
}

/* Whether a head's number is not kept but read from its input each time: there are more of them than registers. */
static bool is_read_again(const lowered *f, ir_ref r) { return f->reads_head_again && ir_get(f->g, r)->op == IR_LOAD; }

/* Returns the slot kind from which a function with parameters `has` reads r; -1: it computes r itself. */
static int kind_of(const lowered *f, int has, ir_ref r) {
  const int mask = lowered_deps(f, r);
  if (mask == 0 || (mask & ~(DEP_SITE | DEP_Q | DEP_KV)) != 0 || (mask & (DEP_Q | DEP_KV)) == (DEP_Q | DEP_KV))
    return -1;
  if (mask == DEP_SITE) return (has & HAS_HEAD) != 0 && f->cost[r] > 0 && !is_read_again(f, r) ? SLOTS_HEAD : -1;
  if ((mask & DEP_Q) != 0) {
    if ((has & HAS_ROW) == 0) return -1;
    return f->cost[r] >= POLICY_SLOT_COST || (has & HAS_Q) == 0 ? SLOTS_ROW : -1;
  }
  return (has & HAS_COL) != 0 && f->cost[r] >= POLICY_SLOT_COST ? SLOTS_COL : -1;
}

bool lowered_in_slot(const lowered *f, int has, ir_ref r) {
  const int kind = kind_of(f, has, r);
  return kind >= 0 && f->slot_kind[r] == 1 + kind;
}

void hoist_plan(lowered *f, int has, const ir_ref *roots, int n) {
  bool *need = arena_array(f->a, f->num_nodes, sizeof *need);
  if (need == NULL) {
    f->failed = true;
    return;
  }
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = f->num_nodes; r-- > 1;) {
    if (!need[r]) continue;
    const int kind = kind_of(f, has, r);
    if (kind >= 0) {
      f->slot_kind[r] = (uint8_t)(1 + kind);
      continue;
    }
    const ir_node *node = ir_get(f->g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
}

static void collect(lowered *f, int kind) {
  slots *s = &f->slot[kind];
  for (uint32_t r = 1; r < f->num_nodes; r++) s->capacity += f->slot_kind[r] == 1 + kind;
  s->ref = arena_array(f->a, (size_t)s->capacity + 1, sizeof *s->ref);
  if (s->ref == NULL) {
    f->failed = true;
    return;
  }
  for (uint32_t r = 1; r < f->num_nodes; r++)
    if (f->slot_kind[r] == 1 + kind) s->ref[s->count++] = r;
}

bool hoist_crowds_head(const lowered *f) {
  int count = 0;
  for (uint32_t r = 1; r < f->num_nodes; r++) count += f->slot_kind[r] == 1 + SLOTS_HEAD;
  return count > POLICY_HEAD_SLOTS_MAX;
}

const int lowered_slot_has[SLOTS_KINDS] = {0, HAS_HEAD | HAS_Q, HAS_HEAD | HAS_KV};

void hoist_fix(lowered *f) {
  for (int kind = SLOTS_KINDS; kind-- > 0;) { /* Row and Col may need more of Head */
    collect(f, kind);
    if (f->failed) return;
    if (kind != SLOTS_HEAD) hoist_plan(f, lowered_slot_has[kind], f->slot[kind].ref, f->slot[kind].count);
  }
}
