/* build.c: holds nodes, hash-consed and typed, and builds leaves. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "gen/ir/graph.h"

enum { FIRST_CAPACITY = 256 };

ir_ref ir_fail(ir *g) {
  g->failed = true;
  return IR_NONE;
}

ir *ir_open(arena *a) {
  ir *g = arena_new(a, sizeof *g);
  if (g == NULL) return NULL;
  g->a = a;
  g->node = arena_array(a, FIRST_CAPACITY, sizeof *g->node);
  g->content = arena_array(a, FIRST_CAPACITY, sizeof *g->content);
  g->table = arena_array(a, 2 * FIRST_CAPACITY, sizeof *g->table);
  if (g->node == NULL || g->content == NULL || g->table == NULL) return NULL;
  g->capacity = FIRST_CAPACITY;
  g->table_size = 2 * FIRST_CAPACITY;
  g->count = 1;
  g->axes = 1;
  return g;
}

ir *ir_clone(arena *a, const ir *g) {
  ir *c = arena_new(a, sizeof *c);
  if (c == NULL) return NULL;
  c->a = a;
  c->node = arena_array(a, g->capacity, sizeof *c->node);
  c->content = arena_array(a, g->capacity, sizeof *c->content);
  c->table = arena_array(a, g->table_size, sizeof *c->table);
  if (c->node == NULL || c->content == NULL || c->table == NULL) return NULL;
  memcpy(c->node, g->node, g->count * sizeof *c->node);
  memcpy(c->content, g->content, g->count * sizeof *c->content);
  memcpy(c->table, g->table, g->table_size * sizeof *c->table);
  c->count = g->count;
  c->capacity = g->capacity;
  c->table_size = g->table_size;
  c->line = g->line;
  c->wide_inputs = g->wide_inputs;
  c->axes = g->axes;
  c->failed = g->failed;
  return c;
}

bool ir_failed(const ir *g) { return g->failed; }

uint32_t ir_count(const ir *g) { return g->count; }

const ir_node *ir_get(const ir *g, ir_ref r) {
  assert(r != IR_NONE && r < g->count);
  return &g->node[r];
}

void ir_set_line(ir *g, uint32_t line) { g->line = line; }

void *ir_push(ir *g, size_t count, size_t size) {
  assert(g->depth < IR_SCRATCH_DEPTH);
  const size_t need = count * size;
  if (g->scratch[g->depth].size < need) {
    /* Allocates twice the count: a pass adds nodes, and the next pass needs a slightly longer array. */
    void *data = arena_array(g->a, 2 * count, size);
    if (data == NULL) return g->failed = true, NULL;
    g->scratch[g->depth].data = data;
    g->scratch[g->depth].size = 2 * need;
  } else {
    memset(g->scratch[g->depth].data, 0, need);
  }
  return g->scratch[g->depth++].data;
}

void ir_pop(ir *g) {
  assert(g->depth > 0);
  --g->depth;
}

/* ---- hash-consing ---- */

static uint32_t hash_node(const ir_node *n) {
  uint64_t h = ((uint64_t)n->op << 16 | (uint64_t)n->type << 8 | n->nargs) * 0x9e3779b97f4a7c15u;
  for (int i = 0; i < n->nargs; ++i) h = ((h ^ n->arg[i]) * 0xff51afd7ed558ccdu) ^ (h >> 29);
  h = (h ^ (uint64_t)n->imm.integer) * 0xc4ceb9fe1a85ec53u;
  return (uint32_t)(h >> 32);
}

/* The immediate is compared as bits: 0.0 and -0.0 are two constants. */
static bool same_node(const ir_node *a, const ir_node *b) {
  return a->op == b->op && a->type == b->type && a->nargs == b->nargs && a->imm.integer == b->imm.integer &&
         memcmp(a->arg, b->arg, sizeof a->arg) == 0;
}

static void table_put(ir_ref *table, uint32_t size, uint32_t hash, ir_ref r) {
  uint32_t i = hash & (size - 1);
  while (table[i] != IR_NONE) i = (i + 1) & (size - 1);
  table[i] = r;
}

static bool grow(ir *g) {
  if (g->capacity > UINT32_MAX / 8) return false;
  const uint32_t capacity = 2 * g->capacity, table_size = 2 * capacity;
  ir_node *node = arena_array(g->a, capacity, sizeof *node);
  ir_content *content = arena_array(g->a, capacity, sizeof *content);
  ir_ref *table = arena_array(g->a, table_size, sizeof *table);
  if (node == NULL || content == NULL || table == NULL) return false;
  memcpy(node, g->node, g->count * sizeof *node);
  memcpy(content, g->content, g->count * sizeof *content);
  for (ir_ref r = 1; r < g->count; ++r) table_put(table, table_size, hash_node(&node[r]), r);
  g->node = node;
  g->content = content;
  g->table = table;
  g->capacity = capacity;
  g->table_size = table_size;
  return true;
}

static bool is_wide(const ir *g, const ir_node *n, bool inexact) {
  bool any = false;
  if (n->type == IR_BOOL || inexact) return false;
  if (n->op == IR_LOAD) return (g->wide_inputs >> n->imm.integer & 1) != 0;
  for (int i = 0; i < n->nargs; ++i) {
    const ir_content *c = &g->content[n->arg[i]];
    if (g->node[n->arg[i]].type != n->type) continue;
    if (n->type == IR_REAL && c->inexact) return false; /* such a number is rounded before it meets another */
    any |= c->wide;
  }
  return any;
}

static ir_content content_of(const ir *g, const ir_node *n) {
  ir_content c = {.vars = n->op == IR_VAR ? UINT64_C(1) << ir_var_of(n) : 0};
  c.ops[n->op / 64] = UINT64_C(1) << n->op % 64;
  for (int i = 0; i < n->nargs; ++i) {
    c.vars |= g->content[n->arg[i]].vars;
    for (int k = 0; k < IR_OP_WORDS; ++k) c.ops[k] |= g->content[n->arg[i]].ops[k];
    c.inexact |= g->node[n->arg[i]].type == IR_REAL && g->content[n->arg[i]].inexact;
  }
  if (n->type == IR_REAL && n->op == IR_VAR) c.inexact = ir_var_of(n) != VAR_SCALAR;
  if (n->type == IR_REAL && n->op != IR_VAR) c.inexact |= !ir_op_exact((ir_op)n->op);
  if (n->type != IR_REAL) c.inexact = false;
  c.wide = is_wide(g, n, c.inexact);
  return c;
}

ir_ref ir_intern(ir *g, const ir_node *n) {
  const uint32_t hash = hash_node(n);
  for (uint32_t i = hash & (g->table_size - 1); g->table[i] != IR_NONE; i = (i + 1) & (g->table_size - 1))
    if (same_node(&g->node[g->table[i]], n)) return g->table[i];
  const ir_node copy = *n; /* growing moves the array that n may point into */
  if (g->count == g->capacity && !grow(g)) return ir_fail(g);
  const ir_ref r = g->count++;
  g->node[r] = copy;
  g->node[r].line = g->line;
  g->content[r] = content_of(g, &copy);
  table_put(g->table, g->table_size, hash, r);
  return r;
}

void ir_input_wide(ir *g, uint32_t input) {
  g->wide_inputs |= UINT32_C(1) << input;
  for (ir_ref r = 1; r < g->count; ++r) g->content[r] = content_of(g, &g->node[r]);
}

bool ir_is_wide(const ir *g, ir_ref r) { return r != IR_NONE && g->content[r].wide; }

bool ir_any_wide(const ir *g) { return g->wide_inputs != 0; }

bool ir_compares_wide(const ir *g, ir_ref r) {
  const ir_node *n = ir_get(g, r);
  bool any = false;
  if (ir_op_rule((ir_op)n->op) != COMPARES) return false;
  for (int i = 0; i < n->nargs; ++i) {
    if (g->content[n->arg[i]].inexact) return false;
    any |= g->content[n->arg[i]].wide;
  }
  return any;
}

/* ---- leaves ---- */

static ir_ref leaf(ir *g, ir_op op, ir_type type, int64_t imm) {
  return ir_intern(g, &(ir_node){.op = (uint16_t)op, .type = (uint8_t)type, .imm.integer = imm});
}

ir_ref ir_real(ir *g, double x) {
  return ir_intern(g, &(ir_node){.op = IR_CONST_REAL, .type = IR_REAL, .imm.real = x});
}

ir_ref ir_int(ir *g, int64_t x) { return leaf(g, IR_CONST_INT, IR_INT, x); }

ir_ref ir_bool(ir *g, bool x) { return leaf(g, IR_CONST_BOOL, IR_BOOL, x); }

ir_ref ir_variable(ir *g, ir_var v, uint32_t index) {
  assert((unsigned)v < VAR_COUNT);
  return leaf(g, IR_VAR, ir_var_type(v), (int64_t)((uint64_t)v << 32 | index));
}

ir_ref ir_load(ir *g, uint32_t input, ir_type type, const ir_ref *index, int n) {
  assert(n >= 1 && n <= 4);
  ir_node node = {.op = IR_LOAD, .type = (uint8_t)type, .nargs = (uint8_t)n, .imm.integer = input};
  for (int i = 0; i < n; ++i) {
    if (index[i] == IR_NONE) return ir_fail(g);
    assert(ir_typeof(g, index[i]) == IR_INT);
    node.arg[i] = index[i];
  }
  return ir_intern(g, &node);
}

ir_ref ir_listed(ir *g, const ir_list *l) {
  assert(l->num_axes >= 1 && l->num_axes <= 4 && l->first >= 0 && l->first + l->count <= IR_LIST_MOST);
  ir_node node = {.op = IR_LISTED, .type = IR_BOOL, .nargs = (uint8_t)l->num_axes};
  const uint64_t place = (uint64_t)l->axis << 26 | (uint64_t)l->first << 13 | (uint64_t)l->count;
  node.imm.integer = (int64_t)(place << 32 | l->input);
  node.arg[0] = l->x;
  for (int i = 1; i < l->num_axes; ++i) node.arg[i] = l->index[i - 1];
  for (int i = 0; i < l->num_axes; ++i)
    if (node.arg[i] == IR_NONE) return ir_fail(g);
  return ir_intern(g, &node);
}

ir_list ir_list_of(const ir_node *n) {
  const uint64_t place = (uint64_t)n->imm.integer >> 32;
  ir_list l = {.input = (uint32_t)n->imm.integer, .num_axes = n->nargs, .x = n->arg[0]};
  l.axis = (int)(place >> 26), l.first = (int)(place >> 13 & 8191), l.count = (int)(place & 8191);
  for (int i = 1; i < n->nargs; ++i) l.index[i - 1] = n->arg[i];
  return l;
}

ir_ref ir_const_of(ir *g, ir_type type, double value) {
  if (type == IR_REAL) return ir_real(g, value);
  return type == IR_INT ? ir_int(g, (int64_t)value) : ir_bool(g, value != 0);
}

ir_ref ir_zero(ir *g, ir_type type) { return ir_const_of(g, type, 0); }

/* ---- types ---- */

ir_type ir_result_type(const ir *g, ir_op op, const ir_ref *arg) {
  switch (ir_op_rule(op)) {
    case COMPARES:
    case BOOLS:
      return IR_BOOL;
    case INTS:
    case REAL_TO_INT:
      return IR_INT;
    case NUMS:
      return ir_typeof(g, arg[0]);
    case SELECTS:
      return ir_typeof(g, arg[1]);
    default:
      return IR_REAL;
  }
}

ir_type ir_operand_type(const ir *g, const ir_node *n) {
  return n->nargs == 0 ? (ir_type)n->type : ir_typeof(g, n->arg[n->nargs - 1]);
}

/* ---- queries ---- */

ir_type ir_typeof(const ir *g, ir_ref r) { return (ir_type)ir_get(g, r)->type; }

bool ir_const_value(const ir *g, ir_ref r, double *value) {
  if (r == IR_NONE) return false;
  const ir_node *n = ir_get(g, r);
  if (n->op == IR_CONST_REAL)
    *value = n->imm.real;
  else if (n->op == IR_CONST_INT || n->op == IR_CONST_BOOL)
    *value = (double)n->imm.integer;
  else
    return false;
  return true;
}

bool ir_is_const(const ir *g, ir_ref r, double *value) {
  return r != IR_NONE && ir_typeof(g, r) != IR_BOOL && ir_const_value(g, r, value);
}

bool ir_is_op(const ir *g, ir_ref r, ir_op op) { return r != IR_NONE && ir_get(g, r)->op == op; }

void ir_set_axes(ir *g, int axes) { g->axes = axes; }

int ir_axes(const ir *g) { return g->axes; }

bool ir_is_line(const ir *g) { return g->axes == 1; }

bool ir_is_var(const ir *g, ir_ref r, ir_var v) { return ir_is_op(g, r, IR_VAR) && ir_var_of(ir_get(g, r)) == v; }

ir_var ir_var_of(const ir_node *n) { return (ir_var)((uint64_t)n->imm.integer >> 32); }

uint32_t ir_index_of(const ir_node *n) { return (uint32_t)n->imm.integer; }

bool ir_uses(const ir *g, ir_ref r, ir_var v) { return r != IR_NONE && (g->content[r].vars >> v & 1) != 0; }

bool ir_uses_op(const ir *g, ir_ref r, ir_op op) {
  return r != IR_NONE && (g->content[r].ops[op / 64] >> op % 64 & 1) != 0;
}

bool ir_reads(const ir *g, ir_ref root, bool (*is)(const void *of, const ir_node *n), const void *of) {
  if (root == IR_NONE) return false;
  bool found = false, *reached = calloc((size_t)root + 1, sizeof *reached);
  if (reached == NULL) return true;
  reached[root] = true;
  for (ir_ref r = root; r > 0 && !found; r--) { /* arguments come before what they are arguments of */
    if (!reached[r]) continue;
    const ir_node *n = ir_get(g, r);
    found = is(of, n);
    for (int i = 0; i < n->nargs; i++) reached[n->arg[i]] = true;
  }
  free(reached);
  return found;
}
