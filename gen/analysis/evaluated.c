/* evaluated.c: finds masks from data, whose tiles ranges and block minima do not decide: on which batch entries and
 * heads they depend, and on which blocks of positions they are constant. */
#include "gen/analysis/analysis.h"
#include "gen/base/arena.h"

static bool is_comparison(const ir_node *n) {
  return n->op == IR_EQ || n->op == IR_NE || n->op == IR_LT || n->op == IR_LE;
}

static bool uses_position(const ir *g, ir_ref r) { return ir_uses(g, r, VAR_Q) || ir_uses(g, r, VAR_KV); }

/* Whether block minima and maxima bound this load. */
static bool has_minima(const ir *g, const mask_info *m, const ir_node *n) {
  const ir_ref last = n->arg[n->nargs - 1];
  if (n->type != IR_INT) return false;
  for (int i = 0; i < n->nargs - 1; i++)
    if (uses_position(g, n->arg[i])) return false;
  for (int i = 0; i < m->num_stats; i++) {
    const mask_stat *s = &m->stat[i];
    if (s->input == (int)ir_index_of(n) && s->axis == n->nargs - 1 && ir_is_var(g, last, s->along_q ? VAR_Q : VAR_KV))
      return true;
  }
  return false;
}

/* What a mask does with each input that it reads along positions, as bits. */
enum { IS_MATCHED = 1, IS_COMPARED = 2 };
static unsigned use_of(const ir *g, const ir_node *n, int side, uint32_t *input) {
  const ir_node *x = ir_get(g, n->arg[side]), *y = ir_get(g, n->arg[1 - side]);
  if (x->op != IR_LOAD || !uses_position(g, n->arg[side])) return 0;
  *input = ir_index_of(x);
  if (n->op == IR_EQ && y->op == IR_LOAD && ir_index_of(y) == *input) return IS_MATCHED;
  return uses_position(g, n->arg[1 - side]) ? 0 : IS_COMPARED;
}

/* Numbers that are matched, as documents are, and besides compared with a fixed one have a special value among
 * them: -1 where there is no group. Minima of a block in which it occurs say little of the others. */
static bool is_special(const ir *g, const bool *reached, uint32_t count, uint32_t of) {
  unsigned uses = 0;
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(g, r);
    for (int side = 0; reached[r] && is_comparison(n) && side < 2; side++) {
      uint32_t input;
      const unsigned use = use_of(g, n, side, &input);
      if (use != 0 && input == of) uses |= use;
    }
  }
  return uses == (IS_MATCHED | IS_COMPARED);
}

/* The first load along positions whose bounds do not decide a tile; IR_NONE: there is none. */
static ir_ref find_undecided(const ir *g, const mask_info *m, const bool *reached, uint32_t count) {
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(g, r);
    if (!reached[r] || n->op != IR_LOAD || !uses_position(g, r)) continue;
    if (!has_minima(g, m, n) || is_special(g, reached, count, ir_index_of(n))) return r;
  }
  return IR_NONE;
}

static bool *find_reached(arena *a, const ir *g, ir_ref root, uint32_t count) {
  bool *reached = arena_array(a, count, sizeof *reached);
  if (reached == NULL) return NULL;
  reached[root] = true;
  for (ir_ref r = root; r >= 1; r--)
    for (int i = 0; reached[r] && i < ir_get(g, r)->nargs; i++) reached[ir_get(g, r)->arg[i]] = true;
  return reached;
}

/* The largest power of two, up to MASK_CELL, that divides c; c > 0. */
static int power_of_two_in(int64_t c) {
  int power = 1;
  while (power < MASK_CELL && c % (2 * power) == 0) power *= 2;
  return power;
}

/* v // c is constant on aligned blocks whose size divides c; so is v >> n for c = 2^n. */
static int quotient_block(const ir *g, const ir_node *n, ir_var v) {
  double c;
  if ((n->op != IR_FLOORDIV && n->op != IR_SHR) || n->type != IR_INT) return 1;
  if (!ir_is_var(g, n->arg[0], v) || !ir_is_const(g, n->arg[1], &c)) return 1;
  if (n->op == IR_SHR) return c >= 0 && c < 31 ? power_of_two_in(INT64_C(1) << (int)c) : 1;
  return c >= 1 && c <= INT32_MAX ? power_of_two_in((int64_t)c) : 1;
}

/* The size of the aligned blocks of positions v on which root is constant. A node comes after its arguments. */
static int block_of(const ir *g, ir_ref root, const bool *reached, int *size, ir_var v) {
  for (ir_ref r = 1; r <= root; r++) {
    const ir_node *n = ir_get(g, r);
    if (!reached[r]) continue;
    size[r] = ir_is_var(g, r, v) ? 1 : MASK_CELL;
    for (int i = 0; i < n->nargs; i++)
      if (size[n->arg[i]] < size[r]) size[r] = size[n->arg[i]];
    const int own = quotient_block(g, n, v);
    if (own > size[r]) size[r] = own;
  }
  return size[root];
}

/* On which arguments of a call the mask depends, other than lengths, batch entries and heads. */
static void find_read(const ir *g, const bool *reached, uint32_t count, mask_evaluated *e) {
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(g, r);
    if (!reached[r]) continue;
    e->has_reals |= n->type == IR_REAL;
    if (n->op == IR_LOAD) e->inputs |= UINT32_C(1) << ir_index_of(n);
    if (n->op != IR_VAR) continue;
    if (ir_var_of(n) == VAR_SCALAR) e->scalars |= UINT32_C(1) << ir_index_of(n);
    e->reads_heads |= ir_var_of(n) == VAR_HEADS || ir_var_of(n) == VAR_HEADS_KV;
  }
}

/* A node with other arguments. */
static ir_ref rebuild(ir *g, ir_ref r, const ir_ref *of) {
  ir_ref arg[4] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
  const ir_node n = *ir_get(g, r);
  for (int i = 0; i < n.nargs; i++) arg[i] = of[n.arg[i]];
  return ir_rebuild(g, r, arg);
}

/* Marks nodes that are constant on cells, and what these read; false: none of them loads anything. */
static bool mark_constant(const ir *g, ir_ref keep, const bool *reached, const int *rows, const int *columns, bool *constant,
                          bool *below) {
  bool loads = false;
  for (ir_ref r = keep; r >= 1; r--) {
    const ir_node *n = ir_get(g, r);
    if (!reached[r]) continue;
    constant[r] = rows[r] == MASK_CELL && columns[r] == MASK_CELL;
    loads |= constant[r] && n->op == IR_LOAD && uses_position(g, r);
    below[r] |= constant[r];
    for (int i = 0; below[r] && i < n->nargs; i++) below[n->arg[i]] = true;
  }
  return loads;
}

/* Returns mask_evaluated.cell. rows and columns: of the blocks on which each node is constant. */
static bool find_cell(arena *a, ir *g, ir_ref keep, const bool *reached, const int *rows, const int *columns, ir_ref *out) {
  const uint32_t count = ir_count(g);
  bool *constant = arena_array(a, count, sizeof *constant), *below = arena_array(a, count, sizeof *below);
  ir_ref *at_first = arena_array(a, count, sizeof *at_first), *of = arena_array(a, count, sizeof *of);
  *out = IR_NONE;
  if (constant == NULL || below == NULL || at_first == NULL || of == NULL) return false;
  if (!mark_constant(g, keep, reached, rows, columns, constant, below) || constant[keep]) return true;
  const ir_ref q0 = ir_variable(g, VAR_TILE, VAR_Q0), kv0 = ir_variable(g, VAR_TILE, VAR_KV0);
  for (ir_ref r = 1; r <= keep; r++) {
    if (!reached[r]) continue;
    if (below[r]) at_first[r] = ir_is_var(g, r, VAR_Q) ? q0 : ir_is_var(g, r, VAR_KV) ? kv0 : rebuild(g, r, at_first);
    of[r] = constant[r] ? at_first[r] : rebuild(g, r, of);
  }
  *out = of[keep];
  return true;
}

bool mask_find_evaluated(arena *a, ir *g, mask_info *m) {
  mask_evaluated *e = &m->evaluated;
  const uint32_t count = ir_count(g);
  const ir_ref data = m->rest != IR_NONE ? m->rest : m->keep;
  const bool *reached = find_reached(a, g, m->keep, count), *in_data = find_reached(a, g, data, count);
  int *rows = arena_array(a, count, sizeof *rows), *columns = arena_array(a, count, sizeof *columns);
  if (reached == NULL || in_data == NULL || rows == NULL || columns == NULL) return false;
  e->why = find_undecided(g, m, reached, count);
  e->is = e->why != IR_NONE;
  if (!e->is) return true;
  e->by_batch = ir_uses(g, m->keep, VAR_B);
  e->by_head = ir_uses(g, m->keep, VAR_H);
  find_read(g, reached, count, e);
  e->rows = block_of(g, data, in_data, rows, VAR_Q);
  e->columns = block_of(g, data, in_data, columns, VAR_KV);
  if (e->rows == MASK_CELL && e->columns == MASK_CELL) return true;
  (void)block_of(g, m->keep, reached, rows, VAR_Q);
  (void)block_of(g, m->keep, reached, columns, VAR_KV);
  return find_cell(a, g, m->keep, reached, rows, columns, &e->cell);
}
