/* lists.c: reads lists of chosen blocks as lists. A mask that asks `or` over eq(chosen[{.., i}], x), for i = 0, 1, ..,
 * traces to a comparison for each entry, and each entry would be a number of a row that kernels hold. One IR_LISTED in
 * their place is a loop over the entries where they lie. Of `and` over ne(..) likewise.
 */
#include <stdlib.h>
#include <string.h>

#include "gen/lower/lowering.h"

enum { TERMS_MAX = 1024 };

/* One comparison of a chain: entry `at` of a list, with x. */
typedef struct entry {
  ir_list list; /* first: the entry's place, count: 1 */
  int term;
} entry;

typedef struct chain {
  lowered *f;
  ir_op join; /* IR_OR of IR_EQ, or IR_AND of IR_NE */
  ir_ref term[TERMS_MAX];
  bool taken[TERMS_MAX];
  int count;
} chain;

static bool is_of_call(int32_t axis) {
  return axis == LUATTN_AXIS_B || axis == LUATTN_AXIS_H || axis == LUATTN_AXIS_HKV || axis == LUATTN_AXIS_Q ||
         axis == LUATTN_AXIS_KV;
}

/* Reads term as a comparison of x with the entry that a load has along `axis`. */
static bool entry_of(const chain *c, int term, int side, int axis, entry *out) {
  const ir *g = c->f->g;
  const ir_node *n = ir_get(g, c->term[term]);
  double place;
  if (n->op != (c->join == IR_OR ? IR_EQ : IR_NE)) return false;
  const ir_node *load = ir_get(g, n->arg[side]);
  if (load->op != IR_LOAD || load->type != IR_INT || axis >= load->nargs) return false;
  if (ir_is_wide(g, n->arg[1 - side])) return false; /* entries are compared as numbers of 32 bits */
  if (is_of_call(lowered_traced(c->f)->input[ir_index_of(load)].axis[axis])) return false;
  if (!ir_is_const(g, load->arg[axis], &place) || !(place >= 0 && place < IR_LIST_MOST)) return false;
  *out = (entry){.term = term};
  out->list = (ir_list){.input = ir_index_of(load),
                        .axis = axis,
                        .num_axes = load->nargs,
                        .first = (int)place,
                        .count = 1,
                        .x = n->arg[1 - side]};
  for (int i = 0, k = 0; i < load->nargs; i++)
    if (i != axis) out->list.index[k++] = load->arg[i];
  return true;
}

static bool is_same_list(const ir_list *a, const ir_list *b) {
  return a->input == b->input && a->axis == b->axis && a->x == b->x && memcmp(a->index, b->index, sizeof a->index) == 0;
}

static int by_place(const void *a, const void *b) {
  return ((const entry *)a)->list.first - ((const entry *)b)->list.first;
}

/* The entries of a chain that are of the same list as term's along `axis`, in the order of their places. */
static int entries_of(const chain *c, int term, int side, int axis, entry *out) {
  entry first;
  int n = 0;
  if (!entry_of(c, term, side, axis, &first)) return 0;
  for (int i = 0; i < c->count; i++)
    for (int s = 0; s < 2; s++)
      if (!c->taken[i] && entry_of(c, i, s, axis, &out[n]) && is_same_list(&first.list, &out[n].list)) {
        n++;
        break;
      }
  qsort(out, (size_t)n, sizeof *out, by_place);
  return n;
}

/* Takes a run of entries side by side, if it is long enough. IR_NONE: there is none. */
static ir_ref take_run(chain *c, const entry *all, int count, int least) {
  for (int from = 0, to; from < count; from = to) {
    for (to = from + 1; to < count && all[to].list.first <= all[to - 1].list.first + 1; to++);
    ir_list l = all[from].list;
    l.count = all[to - 1].list.first - l.first + 1;
    if (l.count < least || l.first + l.count > IR_LIST_MOST) continue;
    for (int i = from; i < to; i++) c->taken[all[i].term] = true;
    return ir_listed(c->f->g, &l);
  }
  return IR_NONE;
}

/* The first list of the chain; IR_NONE: none is left. */
static ir_ref take_list(chain *c, int least) {
  entry *all = arena_array(c->f->a, TERMS_MAX, sizeof *all);
  ir_ref found = IR_NONE;
  for (int term = 0; all != NULL && term < c->count && found == IR_NONE; term++)
    for (int side = 0; side < 2 && !c->taken[term] && found == IR_NONE; side++)
      for (int axis = 0; axis < 4 && !c->taken[term] && found == IR_NONE; axis++) {
        const int count = entries_of(c, term, side, axis, all);
        if (count >= least) found = take_run(c, all, count, least);
      }
  return found;
}

/* Collects what a chain joins; false: too much. */
static bool collect(chain *c, ir_ref root) {
  ir_ref open[TERMS_MAX];
  int num_open = 1;
  open[0] = root;
  while (num_open > 0) {
    const ir_ref r = open[--num_open];
    const ir_node *n = ir_get(c->f->g, r);
    if (n->op == c->join) {
      if (num_open + 2 > TERMS_MAX) return false;
      open[num_open++] = n->arg[1];
      open[num_open++] = n->arg[0];
    } else {
      if (c->count == TERMS_MAX) return false;
      c->term[c->count++] = r;
    }
  }
  return true;
}

static ir_ref fold(lowered *f, ir_ref root, int least);

/* Folds a chain of `or` or `and`, whose terms may hold others. */
static ir_ref fold_chain(lowered *f, ir_ref root, int least) {
  ir *g = f->g;
  chain *c = arena_new(f->a, sizeof *c);
  if (c == NULL) return IR_NONE;
  c->f = f, c->join = (ir_op)ir_get(g, root)->op;
  if (!collect(c, root)) return root;
  ir_ref all = IR_NONE, list;
  bool any = false;
  while ((list = take_list(c, least)) != IR_NONE) {
    const ir_ref in = c->join == IR_OR ? list : ir_op1(g, IR_NOT, list);
    all = all == IR_NONE ? in : ir_op2(g, c->join, all, in);
    any = true;
  }
  for (int i = c->count; i-- > 0;) {
    if (c->taken[i]) continue;
    const ir_ref term = fold(f, c->term[i], least);
    any |= term != c->term[i];
    all = all == IR_NONE ? term : ir_op2(g, c->join, term, all);
  }
  return any ? all : root;
}

/* The same mask with lists of at least so many entries. */
static ir_ref fold(lowered *f, ir_ref root, int least) {
  if (root == IR_NONE) return root;
  const ir_node n = *ir_get(f->g, root);
  if (n.op == IR_OR || n.op == IR_AND) {
    ir_set_line(f->g, n.line);
    return fold_chain(f, root, least);
  }
  if (n.op != IR_NOT) return root;
  const ir_ref of = fold(f, n.arg[0], least);
  return ir_rebuild(f->g, root, &of);
}

/* Bounds of tiles are those of the entries where these have minima, else of the list. */
void lists_take(lowered *f) {
  const int least = policy_least_list(f->plan);
  mask_info *m = arena_new(f->a, sizeof *m);
  f->keep = fold(f, f->mask->keep, least);
  ir_set_line(f->g, 0);
  f->has_lists = f->keep != f->mask->keep;
  if (m == NULL || f->keep == IR_NONE) f->failed = true;
  if (f->failed || !f->has_lists || f->mask->num_stats > 0) return;
  *m = *f->mask;
  m->keep = f->keep;
  m->rest = fold(f, m->rest, least);
  m->evaluated.cell = fold(f, m->evaluated.cell, least);
  ir_set_line(f->g, 0);
  f->mask = m;
}
