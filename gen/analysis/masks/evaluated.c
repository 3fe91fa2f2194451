/* evaluated.c: finds masks whose tiles ranges and block minima do not decide, as those from data and by hashes of
 * positions: on which batch entries and heads they depend, and on which blocks of positions they are constant. */
#include "gen/analysis/masks/mask.h"
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

/* Which lists of numbers with minima the value of a node comes from, a bit each, and whether it depends on positions
 * besides. Conditions of a select are left out: they are comparisons of their own. */
typedef struct node_use {
  uint16_t of_q, of_kv; /* read at q_idx, at kv_idx */
  bool at_q, at_kv;     /* depends on q_idx, on kv_idx, otherwise than through these */
  ir_ref load;          /* one of the loads */
} node_use;

static node_use both(node_use x, node_use y) {
  return (node_use){x.of_q | y.of_q, x.of_kv | y.of_kv, x.at_q || y.at_q, x.at_kv || y.at_kv,
                    x.load != IR_NONE ? x.load : y.load};
}

/* The bit of the list that load n reads: an input, at indices before its last. There may be more lists than bits. */
static uint16_t bit_of(const ir *g, const ir_node *n, const bool *reached) {
  int bit = 0;
  for (ir_ref r = 1; bit < 15 && ir_get(g, r) != n; r++) {
    const ir_node *x = ir_get(g, r);
    if (!reached[r] || x->op != IR_LOAD || !uses_position(g, r)) continue;
    bool same = ir_index_of(x) == ir_index_of(n) && x->nargs == n->nargs;
    for (int i = 0; same && i < n->nargs - 1; i++) same = x->arg[i] == n->arg[i];
    if (same) break;
    bit++;
  }
  return (uint16_t)(1u << bit);
}

static node_use use_of(const ir *g, ir_ref r, const bool *reached, const node_use *use) {
  const ir_node *n = ir_get(g, r);
  node_use all = {0};
  if (n->type == IR_BOOL) return all;
  if (n->op == IR_LOAD && uses_position(g, r)) {
    const uint16_t bit = bit_of(g, n, reached);
    return ir_is_var(g, n->arg[n->nargs - 1], VAR_Q) ? (node_use){.of_q = bit, .load = r}
                                                     : (node_use){.of_kv = bit, .load = r};
  }
  if (n->op == IR_VAR) all.at_q = ir_var_of(n) == VAR_Q, all.at_kv = ir_var_of(n) == VAR_KV;
  for (int i = n->op == IR_SELECT; i < n->nargs; i++) all = both(all, use[n->arg[i]]);
  return all;
}

/* Whether bounds of the arguments say little of the value: bits of a number, remainders. */
static bool loses_bounds(const ir *g, const ir_node *n) {
  double by;
  switch ((ir_op)n->op) {
    case IR_MOD:
    case IR_BAND:
    case IR_BOR:
    case IR_BXOR:
    case IR_SHL:
    case IR_SHR_BAND:
    case IR_WRAP:
      return true;
    case IR_SHR:
      return !ir_is_const(g, n->arg[1], &by);
    default: /* a rounded real number has no bounds */
      return n->nargs > 0 && n->op != IR_LOAD && n->type == IR_INT && ir_typeof(g, n->arg[n->nargs - 1]) == IR_REAL;
  }
}

/* What the comparisons of a mask have in common. */
typedef struct comparisons {
  unsigned matched;     /* lists whose numbers are equal at q_idx and at kv_idx, as documents are */
  unsigned fixed;       /* lists that are compared with what is the same at all positions */
  uint16_t of_q, of_kv; /* the lists of a comparison of numbers of queries with those of keys */
  ir_ref other;         /* a load in another one, of other lists */
} comparisons;

/* Notes comparison n. Returns a load that it leaves undecided, whatever else the mask compares: one number of a
 * list that each position has, as of chosen blocks; or IR_NONE. */
static ir_ref note(const ir_node *n, const node_use *use, comparisons *c) {
  const node_use x = use[n->arg[0]], y = use[n->arg[1]], all = both(x, y);
  const bool is_pair = all.of_q != 0 && all.of_kv != 0;
  if (all.load == IR_NONE) return IR_NONE;
  if (!is_pair && n->op == IR_EQ && (all.at_q || all.at_kv)) return all.load;
  if (!is_pair && !all.at_q && !all.at_kv && (x.load == IR_NONE || y.load == IR_NONE)) c->fixed |= all.of_q | all.of_kv;
  if (!is_pair) return IR_NONE;
  if (n->op == IR_EQ) c->matched |= all.of_q | all.of_kv;
  if ((c->of_q | c->of_kv) != 0 && (c->of_q != all.of_q || c->of_kv != all.of_kv)) c->other = all.load;
  c->of_q = all.of_q, c->of_kv = all.of_kv;
  return IR_NONE;
}

/* The first load along positions whose bounds do not decide a tile; IR_NONE: there is none.
 * - Numbers that are matched, as documents are, and besides compared with a fixed one have a special value among
 *   them: -1 where there is no group. Minima of a block in which it occurs say little of the others.
 * - Numbers that are matched, and others that begin anew with each of them, as positions in a document do: a tile at
 *   the end of a document has all positions, and all of its neighbours. */
static ir_ref find_undecided(const ir *g, const mask_info *m, const bool *reached, node_use *use, uint32_t count) {
  comparisons c = {0};
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(g, r);
    if (reached[r] && n->op == IR_LOAD && uses_position(g, r) && !has_minima(g, m, n)) return r;
  }
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(g, r);
    if (!reached[r]) continue;
    use[r] = use_of(g, r, reached, use);
    if (use[r].load != IR_NONE && loses_bounds(g, n)) return use[r].load;
    const ir_ref undecided = is_comparison(n) ? note(n, use, &c) : IR_NONE;
    if (undecided != IR_NONE) return undecided;
  }
  for (ir_ref r = 1; r < count && (c.matched & c.fixed) != 0; r++)
    if (use[r].load == r && ((use[r].of_q | use[r].of_kv) & c.matched & c.fixed) != 0) return r;
  return c.matched != 0 ? c.other : IR_NONE;
}

static bool *find_reached(arena *a, const ir *g, ir_ref root, uint32_t count) {
  bool *reached = arena_array(a, count, sizeof *reached);
  if (reached == NULL) return NULL;
  reached[root] = true;
  for (ir_ref r = root; r >= 1; r--)
    for (int i = 0; reached[r] && i < ir_get(g, r)->nargs; i++) reached[ir_get(g, r)->arg[i]] = true;
  return reached;
}

/* The largest power of two, up to `most`, that divides c; c > 0. */
static int power_of_two_in(int64_t c, int most) {
  int power = 1;
  while (power < most && c % (2 * power) == 0) power *= 2;
  return power;
}

/* v // c is constant on aligned blocks whose size divides c; so is v >> n for c = 2^n. */
static int quotient_block(const ir *g, const ir_node *n, ir_var v, int most) {
  double c;
  if ((n->op != IR_FLOORDIV && n->op != IR_SHR) || n->type != IR_INT) return 1;
  if (!ir_is_var(g, n->arg[0], v) || !ir_is_const(g, n->arg[1], &c)) return 1;
  if (n->op == IR_SHR) return c >= 0 && c < 31 ? power_of_two_in(INT64_C(1) << (int)c, most) : 1;
  return c >= 1 && c <= INT32_MAX ? power_of_two_in((int64_t)c, most) : 1;
}

/* The size, `most` at most, of the aligned blocks of positions v on which root is constant. A node comes after its
 * arguments. */
static int block_of(const ir *g, ir_ref root, const bool *reached, int *size, ir_var v, int most) {
  for (ir_ref r = 1; r <= root; r++) {
    const ir_node *n = ir_get(g, r);
    if (!reached[r]) continue;
    size[r] = ir_is_var(g, r, v) ? 1 : most;
    for (int i = 0; i < n->nargs; i++)
      if (size[n->arg[i]] < size[r]) size[r] = size[n->arg[i]];
    const int own = quotient_block(g, n, v, most);
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

/* Whether the tiles of a position's arithmetic have no bounds: bits of it, remainders, and periods of real
 * functions. */
static bool has_no_bounds(const ir *g, ir_ref r) {
  const ir_node *n = ir_get(g, r);
  const bool periodic = n->op == IR_SIN || n->op == IR_COS || n->op == IR_FLOOR;
  return n->type != IR_BOOL && uses_position(g, r) && (periodic || loses_bounds(g, n));
}

static bool some_without_bounds(const ir *g, const bool *reached, uint32_t count) {
  for (ir_ref r = 1; r < count; r++)
    if (reached[r] && has_no_bounds(g, r)) return true;
  return false;
}

/* Marks nodes that are constant on cells, and what these read; false: none of them loads anything, or lacks bounds. */
static bool mark_constant(const ir *g, ir_ref keep, const bool *reached, const int *rows, const int *columns,
                          bool *constant, bool *below) {
  bool loads = false;
  for (ir_ref r = keep; r >= 1; r--) {
    const ir_node *n = ir_get(g, r);
    if (!reached[r]) continue;
    constant[r] = rows[r] == MASK_CELL && columns[r] == MASK_CELL;
    loads |= constant[r] && (n->op == IR_LOAD ? uses_position(g, r) : has_no_bounds(g, r));
    below[r] |= constant[r];
    for (int i = 0; below[r] && i < n->nargs; i++) below[n->arg[i]] = true;
  }
  return loads;
}

/* Returns mask_evaluated.cell. rows and columns: of the blocks on which each node is constant. */
static bool find_cell(arena *a, ir *g, ir_ref keep, const bool *reached, const int *rows, const int *columns,
                      ir_ref *out) {
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

/* Whether a mask that loads decide, or that loads nothing, is to be evaluated for its arithmetic. rows and columns are
 * overwritten. */
static bool find_wasteful(arena *a, const traced_spec *t, mask_info *m, const bool *reached, int *rows, int *columns) {
  const ir *g = t->g;
  if (!some_without_bounds(g, reached, m->keep + 1)) return true;
  const int down = block_of(g, m->keep, reached, rows, VAR_Q, MASK_CELL),
            across = block_of(g, m->keep, reached, columns, VAR_KV, MASK_CELL);
  return mask_trial(a, t, m, down, across, &m->evaluated.is);
}

bool mask_find_evaluated(arena *a, const traced_spec *t, mask_info *m) {
  ir *g = t->g;
  mask_evaluated *e = &m->evaluated;
  const uint32_t count = ir_count(g);
  const ir_ref data = m->rest != IR_NONE ? m->rest : m->keep;
  const bool *reached = find_reached(a, g, m->keep, count), *in_data = find_reached(a, g, data, count);
  int *rows = arena_array(a, count, sizeof *rows), *columns = arena_array(a, count, sizeof *columns);
  node_use *use = arena_array(a, count, sizeof *use);
  if (reached == NULL || in_data == NULL || rows == NULL || columns == NULL || use == NULL) return false;
  if (ir_uses_op(g, m->keep, IR_RANDOM)) return true; /* of each call's seed: nothing to find once for all layers */
  e->why = find_undecided(g, m, reached, use, count);
  e->is = e->why != IR_NONE;
  if (!e->is && !find_wasteful(a, t, m, reached, rows, columns)) return false;
  if (!e->is) return true;
  e->by_batch = ir_uses(g, m->keep, VAR_B);
  e->by_head = ir_uses(g, m->keep, VAR_H);
  find_read(g, reached, count, e);
  e->has_narrow_blocks = block_of(g, data, in_data, columns, VAR_KV, 2 * MASK_CELL) == MASK_CELL;
  e->rows = block_of(g, data, in_data, rows, VAR_Q, MASK_CELL);
  e->columns = block_of(g, data, in_data, columns, VAR_KV, MASK_CELL);
  e->by_query = ir_uses(g, data, VAR_Q);
  if (e->rows == MASK_CELL && e->columns == MASK_CELL) return true;
  (void)block_of(g, m->keep, reached, rows, VAR_Q, MASK_CELL);
  (void)block_of(g, m->keep, reached, columns, VAR_KV, MASK_CELL);
  return find_cell(a, g, m->keep, reached, rows, columns, &e->cell);
}

bool mask_reads_table(const traced_spec *t, const mask_evaluated *e) {
  bool any = false;
  for (int i = 0; i < t->num_inputs; i++)
    any |= (e->inputs >> i & 1) && t->input[i].dtype == LUATTN_INPUT_U8 && t->input[i].num_axes == 4;
  return any;
}
