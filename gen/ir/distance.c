/* distance.c: decides whether an expression is a function of q - kv, along each axis of a grid, or linear in q and kv. */
#include "gen/ir/passes.h"

/* Facts about a node. As a linear combination of positions: the sum of q[a] * VAR_Q and kv[a] * VAR_KV over the axes, and a
 * term with neither. */
typedef struct trait {
  bool of_distance, linear;
  double q[IR_MAX_AXES], kv[IR_MAX_AXES];
} trait;

/* x * a + y * b, of which both are linear. */
static trait trait_of_sum(double x, const trait *a, double y, const trait *b) {
  trait made = {.of_distance = true, .linear = true};
  for (int i = 0; i < IR_MAX_AXES; i++) {
    made.q[i] = x * a->q[i] + y * b->q[i];
    made.kv[i] = x * a->kv[i] + y * b->kv[i];
    made.of_distance &= made.q[i] + made.kv[i] == 0;
  }
  return made;
}

static bool has_positions(const trait *a) {
  bool any = false;
  for (int i = 0; i < IR_MAX_AXES; i++) any |= a->q[i] != 0 || a->kv[i] != 0;
  return any;
}

static const trait constant = {.of_distance = true, .linear = true};

static trait trait_of_leaf(const ir_node *n) {
  trait made = constant;
  if (n->op != IR_VAR) return made;
  switch (ir_var_of(n)) {
    case VAR_Q:
    case VAR_KV:
      made.of_distance = false;
      (ir_var_of(n) == VAR_Q ? made.q : made.kv)[ir_index_of(n)] = 1;
      return made;
    case VAR_B:
    case VAR_H:
    case VAR_Q_LEN:
    case VAR_KV_LEN:
    case VAR_HEADS:
    case VAR_HEADS_KV:
    case VAR_SCALAR:
    case VAR_SCALE:
      return made;
    default:
      return (trait){0};
  }
}

/* A linear operation: combines the arguments' coefficients. */
static bool combine(const ir *g, const ir_node *n, const trait *x, const trait *y, trait *out) {
  double c;
  switch (n->op) {
    case IR_ADD:
    case IR_SUM_APART:
    case IR_SUB:
      *out = trait_of_sum(1, x, n->op == IR_SUB ? -1 : 1, y);
      return x->linear && y->linear;
    case IR_NEG:
      *out = trait_of_sum(-1, x, 0, &constant);
      return x->linear;
    case IR_TO_REAL:
    case IR_STOP_GRADIENT:
      *out = *x;
      return x->linear;
    case IR_MUL:
      if (ir_is_const(g, n->arg[1], &c)) {
        *out = trait_of_sum(c, x, 0, &constant);
        return x->linear;
      }
      if (ir_is_const(g, n->arg[0], &c)) {
        *out = trait_of_sum(c, y, 0, &constant);
        return y->linear;
      }
      return false;
    default:
      return false;
  }
}

static bool is_comparison(int op) { return op == IR_LT || op == IR_LE || op == IR_EQ || op == IR_NE; }

static trait trait_of(const ir *g, const ir_node *n, const trait *known) {
  if (n->nargs == 0) return trait_of_leaf(n);
  const trait *x = &known[n->arg[0]], *y = &known[n->arg[n->nargs > 1 ? 1 : 0]];
  trait made;
  if (combine(g, n, x, y, &made)) return made;
  made = (trait){.of_distance = true};
  bool positions = false;
  for (int i = 0; i < n->nargs; i++) {
    const trait *a = &known[n->arg[i]];
    made.of_distance &= a->of_distance;
    positions |= !a->linear || has_positions(a);
  }
  /* q < kv + 3 is a function of the distance, though its sides are not; of 64 bits a side may wrap around. */
  const bool wraps = ir_typeof(g, n->arg[0]) == IR_INT && is_comparison(n->op) &&
                     (ir_is_wide(g, n->arg[0]) || ir_is_wide(g, n->arg[1]));
  if (is_comparison(n->op) && x->linear && y->linear && !wraps)
    made.of_distance = trait_of_sum(1, x, -1, y).of_distance;
  made.linear = !positions;
  return made;
}

/* Computes the facts of all nodes up to `last`; NULL: out of memory. */
static trait *find_traits(arena *a, const ir *g, ir_ref last) {
  trait *known = arena_array(a, (size_t)last + 1, sizeof *known);
  for (ir_ref r = 1; r <= last && known != NULL; r++) known[r] = trait_of(g, ir_get(g, r), known);
  return known;
}

bool analyse_linear(arena *a, const ir *g, ir_ref r, double *q, double *kv) {
  const trait *known = find_traits(a, g, r);
  if (known == NULL || !known[r].linear || (!ir_is_line(g) && has_positions(&known[r]))) return false;
  *q = known[r].q[0];
  *kv = known[r].kv[0];
  return true;
}

bool analyse_distance(arena *a, const ir *g, const ir_ref *roots, int n) {
  ir_ref last = IR_NONE;
  for (int i = 0; i < n; i++) last = roots[i] > last ? roots[i] : last;
  const trait *known = find_traits(a, g, last);
  if (known == NULL) return false;
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE && !known[roots[i]].of_distance) return false;
  return true;
}
