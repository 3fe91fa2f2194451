#include <assert.h>
#include <string.h>

#include "common/call/limits.h"
#include "gen/ir/graph.h"
#include "gen/ir/interval.h"

/* The interval column of ops.def as code. x, y, z: the arguments' bounds; `type`: the last argument's. */
#define NO_INTERVAL (void)0
#define REAL1(f) out->real = iv_##f(x->real)
#define REAL2(f) out->real = iv_##f(x->real, y->real)
#define REAL3(f) out->real = iv_##f(x->real, y->real, z->real)
#define NUM1(f) type == IR_REAL ? (void)(out->real = iv_##f(x->real)) : (void)(out->integer = ivi_##f(x->integer))
#define NUM2(f)                                                  \
  type == IR_REAL ? (void)(out->real = iv_##f(x->real, y->real)) \
                  : (void)(out->integer = ivi_##f(x->integer, y->integer))
#define COMPARE2(f) out->boolean = type == IR_REAL ? iv_##f(x->real, y->real) : ivi_##f(x->integer, y->integer)
#define BOOL1(f) out->boolean = tri_##f(x->boolean)
#define BOOL2(f) out->boolean = tri_##f(x->boolean, y->boolean)
#define INT_REAL1(f) out->real = ivi_##f(x->integer)
#define INT_REAL2(f) out->real = ivi_##f(x->integer, y->integer)
#define REAL_INT1(f) out->integer = iv_##f(x->real)
#define INT2(f) out->integer = ivi_##f(x->integer, y->integer)
#define INT3(f) out->integer = ivi_##f(x->integer, y->integer, z->integer)
#define SELECT3(f)                                                \
  do {                                                            \
    if (type == IR_REAL)                                          \
      out->real = iv_##f(x->boolean, y->real, z->real);           \
    else if (type == IR_INT)                                      \
      out->integer = ivi_##f(x->boolean, y->integer, z->integer); \
    else                                                          \
      out->boolean = tri_##f(x->boolean, y->boolean, z->boolean); \
  } while (0)

static void bounds_of_op(const ir *g, const ir_node *n, const ir_bounds *bounds, ir_bounds *out) {
  const ir_bounds *x = &bounds[n->arg[0]], *y = &bounds[n->arg[1]], *z = &bounds[n->arg[2]];
  const ir_type type = ir_operand_type(g, n);
  if (n->op == IR_MUL && n->arg[0] == n->arg[1]) { /* the two factors are the same value */
    if (type == IR_REAL)
      out->real = iv_square(x->real);
    else
      out->integer = ivi_square(x->integer);
    return;
  }
  switch ((ir_op)n->op) {
#define IR_OP(id, name, arity, types, cuda, value, derivative, interval, cost) \
  case IR_##id:                                                                \
    interval;                                                                  \
    break;
#include "gen/ir/ops.def"
#undef IR_OP
    case IR_OP_COUNT:
      break;
  }
}

static ir_bounds bounds_of_load(const ir_node *n, const ir_bounds_env *env, const ir_bounds *bounds) {
  ivi index[4];
  for (int k = 0; k < n->nargs; ++k) index[k] = bounds[n->arg[k]].integer;
  return env->load(env->user, (uint32_t)n->imm.integer, (ir_type)n->type, n->nargs, index);
}

static void bounds_of_node(const ir *g, ir_ref r, const ir_bounds_env *env, ir_bounds *bounds) {
  const ir_node *n = ir_get(g, r);
  ir_bounds out = {.real = iv_all(), .integer = ivi_all(), .boolean = tri_all()};
  switch (n->op) {
    case IR_CONST_REAL:
      out.real = iv_point(n->imm.real);
      break;
    case IR_CONST_INT:
      out.integer = ivi_point(n->imm.integer);
      break;
    case IR_CONST_BOOL:
      out.boolean = tri_point(n->imm.integer != 0);
      break;
    case IR_VAR:
      out = env->variable(env->user, ir_var_of(n), ir_index_of(n), (ir_type)n->type);
      break;
    case IR_LOAD:
      out = bounds_of_load(n, env, bounds);
      break;
    case IR_LISTED:
      out.boolean = tri_all();
      break;
    case IR_RANDOM:
      out.real = iv_make(0, IR_RANDOM_MOST, false);
      break;
    default:
      bounds_of_op(g, n, bounds, &out);
  }
  if (n->type == IR_INT && ir_is_wide(g, r)) out.integer = ivi_wide(out.integer, n->op == IR_LOAD);
  bounds[r] = out;
}

/* Until a node's bounds are computed, its entry says whether they are needed. */
static void mark(const ir *g, const ir_ref *roots, int n, ir_bounds *scratch, ir_ref *top) {
  *top = 0;
  for (int i = 0; i < n; ++i)
    if (roots[i] > *top) *top = roots[i];
  memset(scratch, 0, ((size_t)*top + 1) * sizeof *scratch);
  for (int i = 0; i < n; ++i) scratch[roots[i]].integer.lo = 1;
  for (ir_ref r = *top; r > 0; --r) {
    if (scratch[r].integer.lo == 0) continue;
    const ir_node *node = ir_get(g, r);
    for (int k = 0; k < node->nargs; ++k) scratch[node->arg[k]].integer.lo = 1;
  }
}

int ir_interval_nodes(const ir *g, const ir_ref *roots, int n, ir_bounds *scratch, ir_ref *nodes) {
  ir_ref top;
  int count = 0;
  mark(g, roots, n, scratch, &top);
  for (ir_ref r = 1; r <= top; ++r)
    if (scratch[r].integer.lo != 0) nodes[count++] = r;
  return count;
}

static void refined_bounds(const ir *g, ir_ref r, const ir_bounds_env *env, ir_bounds *bounds) {
  bounds_of_node(g, r, env, bounds);
  if (env->refine != NULL) env->refine(env->user, r, bounds, &bounds[r]);
}

void ir_interval_over(const ir *g, const ir_ref *nodes, int count, const ir_bounds_env *env, ir_bounds *bounds) {
  for (int i = 0; i < count; ++i) refined_bounds(g, nodes[i], env, bounds);
}

void ir_interval(const ir *g, const ir_ref *roots, int n, const ir_bounds_env *env, ir_bounds *scratch,
                 ir_bounds *out) {
  ir_ref top;
  mark(g, roots, n, scratch, &top);
  for (ir_ref r = 1; r <= top; ++r)
    if (scratch[r].integer.lo != 0) refined_bounds(g, r, env, scratch);
  for (int i = 0; i < n; ++i) out[i] = scratch[roots[i]];
}

/* ---- ir_int_limit ---- */

enum { LOADED_MAX = (1 << 24) - 1 };

static ir_bounds limit_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  (void)index;
  (void)type;
  const int64_t length = *(const int64_t *)user;
  ir_bounds b = {.real = iv_all(), .integer = ivi_make(0, 65535), .boolean = tri_all()};
  if (v == VAR_H || v == VAR_HEADS || v == VAR_HEADS_KV) b.integer = ivi_make(0, LUATTN_MAX_HEADS);
  if (v == VAR_Q || v == VAR_KV || v == VAR_Q_LEN || v == VAR_KV_LEN || v == VAR_POS || v == VAR_TILE)
    b.integer = ivi_make(0, length);
  return b;
}

static ir_bounds limit_load(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  (void)user, (void)input, (void)type, (void)n_index, (void)index;
  return (ir_bounds){.real = iv_all(), .integer = ivi_make(-LOADED_MAX, LOADED_MAX), .boolean = tri_all()};
}

/* The nodes under some roots, in order, and room for their bounds. */
typedef struct limit_nodes {
  const ir *g;
  ir_ref *node;
  uint32_t count;
  ir_bounds *bounds;
} limit_nodes;

static bool find_nodes(const ir *g, const ir_ref *roots, int n, limit_nodes *out) {
  ir_ref top;
  *out = (limit_nodes){.g = g,
                       .node = arena_array(g->a, g->count, sizeof *out->node),
                       .bounds = arena_array(g->a, g->count, sizeof *out->bounds)};
  if (out->node == NULL || out->bounds == NULL) return false;
  mark(g, roots, n, out->bounds, &top);
  for (ir_ref r = 1; r <= top; ++r)
    if (out->bounds[r].integer.lo != 0) out->node[out->count++] = r;
  return true;
}

/* Whether only integers of 64 bits are computed from node i, or compared with it: a constant beyond 32 bits may be. */
static bool meets_wide(const limit_nodes *all, uint32_t i) {
  bool any = false;
  for (uint32_t j = i + 1; j < all->count; ++j) {
    const ir_node *user = ir_get(all->g, all->node[j]);
    for (int k = 0; k < user->nargs; ++k) {
      if (user->arg[k] != all->node[i]) continue;
      if (!ir_is_wide(all->g, all->node[j]) && !ir_compares_wide(all->g, all->node[j])) return false;
      any = true;
    }
  }
  return any;
}

/* Returns the first node whose value exceeds 32 bits, or IR_NONE. Integers of 64 wrap around, as torch's do. */
static ir_ref overflow(const limit_nodes *all, int64_t length) {
  const ir_bounds_env env = {.user = &length, .variable = limit_variable, .load = limit_load};
  for (uint32_t i = 0; i < all->count; ++i) {
    const ir_ref r = all->node[i];
    bounds_of_node(all->g, r, &env, all->bounds);
    const ivi x = all->bounds[r].integer;
    if (ir_typeof(all->g, r) != IR_INT || ir_is_wide(all->g, r) || (x.lo >= INT32_MIN && x.hi <= INT32_MAX)) continue;
    if (!ir_any_wide(all->g) || !meets_wide(all, i)) return r;
  }
  return IR_NONE;
}

ir_bounds *ir_int_bounds(const ir *g, const ir_ref *roots, int n, int64_t length) {
  limit_nodes all;
  const ir_bounds_env env = {.user = &length, .variable = limit_variable, .load = limit_load};
  if (!find_nodes(g, roots, n, &all)) return NULL;
  for (uint32_t i = 0; i < all.count; ++i) bounds_of_node(g, all.node[i], &env, all.bounds);
  return all.bounds;
}

ir_ref ir_int_overflow(const ir *g, const ir_ref *roots, int n, int64_t length, double *reach) {
  limit_nodes all;
  const ir_ref r = find_nodes(g, roots, n, &all) ? overflow(&all, length) : IR_NONE;
  if (r == IR_NONE) return r;
  const ivi x = all.bounds[r].integer;
  *reach = (double)(x.hi > INT32_MAX ? x.hi : x.lo);
  return r;
}

bool ir_ints_fit(const ir *g, const ir_ref *roots, int n, int64_t length) {
  limit_nodes all;
  return find_nodes(g, roots, n, &all) && overflow(&all, length) == IR_NONE;
}

int64_t ir_int_limit(const ir *g, const ir_ref *roots, int n) {
  limit_nodes all;
  if (!find_nodes(g, roots, n, &all)) return -1;
  if (overflow(&all, INT32_MAX) == IR_NONE) return INT32_MAX; /* as most: spares the search */
  int64_t good = -1, bad = INT32_MAX;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    if (overflow(&all, middle) == IR_NONE)
      good = middle;
    else
      bad = middle;
  }
  return good < 0 ? 0 : good;
}
