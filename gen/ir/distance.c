/* distance.c: decides whether an expression is a function of q - kv, or linear in q and kv. */
#include "gen/ir/passes.h"

/* Facts about a node. As a linear combination of positions: q * VAR_Q + kv * VAR_KV + a term with neither. */
typedef struct trait {
  bool of_distance, linear;
  double q, kv;
} trait;

static trait trait_of_linear(double q, double kv) { return (trait){q + kv == 0, true, q, kv}; }

static trait trait_of_leaf(const ir *g, const ir_node *n) {
  if (n->op != IR_VAR) return trait_of_linear(0, 0);
  switch (ir_var_of(n)) {
    case VAR_Q:
      return ir_is_line(g) ? trait_of_linear(1, 0) : (trait){0};
    case VAR_KV:
      return ir_is_line(g) ? trait_of_linear(0, 1) : (trait){0};
    case VAR_B:
    case VAR_H:
    case VAR_Q_LEN:
    case VAR_KV_LEN:
    case VAR_HEADS:
    case VAR_HEADS_KV:
    case VAR_SCALAR:
    case VAR_SCALE:
      return trait_of_linear(0, 0);
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
    case IR_SUB: {
      const double sign = n->op == IR_SUB ? -1 : 1;
      *out = trait_of_linear(x->q + sign * y->q, x->kv + sign * y->kv);
      return x->linear && y->linear;
    }
    case IR_NEG:
      *out = trait_of_linear(-x->q, -x->kv);
      return x->linear;
    case IR_TO_REAL:
    case IR_STOP_GRADIENT:
      *out = *x;
      return x->linear;
    case IR_MUL:
      if (ir_is_const(g, n->arg[1], &c)) {
        *out = trait_of_linear(c * x->q, c * x->kv);
        return x->linear;
      }
      if (ir_is_const(g, n->arg[0], &c)) {
        *out = trait_of_linear(c * y->q, c * y->kv);
        return y->linear;
      }
      return false;
    default:
      return false;
  }
}

static bool is_comparison(int op) { return op == IR_LT || op == IR_LE || op == IR_EQ || op == IR_NE; }

static trait trait_of(const ir *g, const ir_node *n, const trait *known) {
  if (n->nargs == 0) return trait_of_leaf(g, n);
  const trait *x = &known[n->arg[0]], *y = &known[n->arg[n->nargs > 1 ? 1 : 0]];
  trait made;
  if (combine(g, n, x, y, &made)) return made;
  made = (trait){.of_distance = true};
  bool positions = false;
  for (int i = 0; i < n->nargs; i++) {
    const trait *a = &known[n->arg[i]];
    made.of_distance &= a->of_distance;
    positions |= !a->linear || a->q != 0 || a->kv != 0;
  }
  /* q < kv + 3 is a function of the distance, though its sides are not; of 64 bits a side may wrap around. */
  const bool wraps = ir_typeof(g, n->arg[0]) == IR_INT && is_comparison(n->op) &&
                     (ir_is_wide(g, n->arg[0]) || ir_is_wide(g, n->arg[1]));
  if (is_comparison(n->op) && x->linear && y->linear && !wraps) made.of_distance = x->q - y->q + x->kv - y->kv == 0;
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
  if (known == NULL || !known[r].linear) return false;
  *q = known[r].q;
  *kv = known[r].kv;
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
