/* compile_work.c: estimates NVRTC's work on the code that a spec adds to a kernel. */
#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"

typedef struct counter {
  lowered *f;
  double *node;   /* per node: what it adds to the estimate */
  bool outlined;  /* the current function is called, */
  bool calls_ops; /* and it calls its long functions */
} counter;

/* An integer of 64 bits takes two registers, and instructions with carries; a quotient of two is a loop. */
static double times_of_wide(ir_op op) {
  return op == IR_MOD || op == IR_FLOORDIV ? POLICY_WIDE_QUOTIENT : POLICY_WIDE_INTEGER;
}

/* Returns the number of simple instructions that take NVRTC as long as node r. Sines reduce large arguments
 * with loops and an array. A chain of selects, such as the gradient of 400 minima, takes four times as long
 * as a chain of products. */
static double cost_of(const counter *c, ir_ref r) {
  const ir_node *n = ir_get(c->f->g, r);
  const ir_op op = n->op;
  if (c->calls_ops && lowered_is_long(c->f, r)) return POLICY_CALL_COST;
  double times = op == IR_SIN || op == IR_COS ? 1.5 : op == IR_RANDOM ? 1.6 : op == IR_SELECT && c->outlined ? 6 : 1;
  if (n->type == IR_INT && ir_is_wide(c->f->g, r)) times *= times_of_wide(op);
  return lowered_op_cost(c->f, r) * times;
}

static void count(counter *c, work_kind kind, ir_ref r, double work) {
  c->f->work.of[kind] += work;
  c->node[r] += work * policy_work_weight(c->f->plan, kind);
}

/* Counts a function with parameters `has`, of which the kernel has `copies` copies. */
static void count_nodes(counter *c, work_kind kind, int has, const bool *need, double copies) {
  for (uint32_t r = 1; r < c->f->num_nodes; r++)
    if (need[r] && !lowered_in_slot(c->f, has, r)) count(c, kind, r, copies * cost_of(c, r));
}

static void count_function(counter *c, work_kind kind, int has, const ir_ref *roots, int n, double copies) {
  const bool *need = lowered_needed(c->f, has, roots, n);
  if (need == NULL)
    c->f->failed = true;
  else
    count_nodes(c, kind, has, need, copies);
}

/* Counts the arguments of a hook's calls. */
static void count_call(counter *c, const hook *h) {
  lowered *f = c->f;
  int of_head = 0;
  bool *need = arena_array(f->a, f->num_nodes, sizeof *need);
  uint8_t *param = arena_array(f->a, f->num_nodes, sizeof *param);
  if (need == NULL || param == NULL) {
    f->failed = true;
    return;
  }
  lowered_choose_parameters(f, h->has, h->roots, h->num_roots, need, param);
  for (uint32_t r = 1; r < f->num_nodes; r++) {
    if (param[r] == 0) continue;
    count(c, WORK_CALLS, r, h->copies);
    of_head += lowered_in_slot(f, HAS_HEAD, r);
  }
  f->work.of[WORK_CALLS] += 4.0 * h->copies;
  if (f->num_lane_sums > 0) return; /* such a grad reads them where it needs them, and holds no sums beside */
  if (of_head > f->work.head_arguments) f->work.head_arguments = of_head;
}

/* Counts what a called function reads from inputs: each read is compared with those before it. */
static void count_reads(counter *c, const hook *h) {
  double reads = 0;
  for (uint32_t r = 1; r < c->f->num_nodes; r++)
    reads += h->need[r] && ir_get(c->f->g, r)->op == IR_LOAD && !lowered_in_slot(c->f, h->has, r);
  c->f->work.reads += reads * reads / 1e4;
}

/* The copies of an inlined mod that reads other channels of its row are in two loops, of whole vectors and of what is
 * left of a row. */
static double copies_of(const lowered *f, const hook *h) {
  for (uint32_t r = 1; r < f->num_nodes; r++)
    if (h->need[r] && (ir_is_var(f->g, r, VAR_READ) || ir_is_var(f->g, r, VAR_READ_GRAD)))
      return POLICY_ROW_MOD_COPIES * h->copies;
  return h->copies;
}

static void count_hooks(counter *c) {
  for (int i = 0; i < c->f->num_hooks; i++) {
    const hook *h = &c->f->hook[i];
    if (h->outlined) count_reads(c, h);
    const bool fetched = h->inlined; /* always inlined: a producer warp computes it */
    c->outlined = h->outlined, c->calls_ops = h->calls_ops;
    count_nodes(c,
                h->outlined ? WORK_CALLED
                : fetched   ? WORK_FETCHED
                            : WORK_INLINED,
                h->has, h->need, h->outlined ? 1 : copies_of(c->f, h));
    if (h->outlined) count_call(c, h);
  }
  c->outlined = c->calls_ops = false;
}

/* A node of the term that a line of the spec made. */
static ir_ref of_line(const ir *g, const derived_term *t) {
  const ir_ref candidate[] = {t->value, t->factor, t->index[0]};
  for (int i = 0; i < 3; i++)
    if (candidate[i] != IR_NONE && ir_get(g, candidate[i])->line > 0) return candidate[i];
  return t->value;
}

/* Counts additions to memory: each has a 64-bit address and an atomic. An outlined hook adds to memory
 * itself, and returns the values that its caller sums. */
static void count_additions(counter *c, const derived_terms *terms, double copies, double calls) {
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    if (!lowered_wants(c->f, t)) continue;
    const bool in_memory = lowered_acc_of(c->f, t) < 0;
    const ir_ref r = of_line(c->f->g, t);
    if (t->by_lane && !in_memory) {
      count(c, WORK_CALLED, r, 8); /* a choice, and an exchange with another lane */
      count(c, WORK_CALLS, r, calls / LOWERED_LANES);
      continue;
    }
    if (in_memory)
      count(c, WORK_ADDED, r, (calls > 0 ? 1 : copies) * (8 + 4 * t->num_index));
    else
      count(c, WORK_SUMMED, r, copies);
    if (!in_memory) count(c, WORK_CALLS, r, calls);
  }
}

static void count_gradients(counter *c) {
  lowered *f = c->f;
  const plan_copies copies = tiles_copies(f->plan);
  ir_ref roots[LOWERED_MAX_TERM_ROOTS];
  if (f->plan->pass != LUATTN_BACKWARD) return;
  count_additions(c, &f->element_terms, copies.element, lowered_is_called(f, "grad") ? copies.element : 0);
  for (int kind = 0; kind < SUM_KINDS; kind++) {
    const int n = lowered_term_roots(f, &f->sum[kind], roots);
    const double times = kind == SUM_ELEMENT ? copies.element : 1;
    if (n == 0) continue;
    c->calls_ops = f->sums_call_ops;
    count_function(c, kind == SUM_ELEMENT ? WORK_INLINED : WORK_SUMS, lowered_sum_has[kind], roots, n, times);
    count_additions(c, &f->sum[kind], times, 0);
    c->calls_ops = false;
  }
  count_function(c, WORK_ONCE, HAS_HEAD | HAS_ROW | HAS_Q, f->row, f->num_rows, 1);
  count_function(c, WORK_ONCE, HAS_HEAD | HAS_ROW | HAS_Q, roots, lowered_term_roots(f, &f->row_terms, roots), 1);
  for (int i = 0; i < f->num_acc + f->num_lane_sums; i++) {
    count_function(c, WORK_ONCE, HAS_HEAD, &f->acc[i].of_sum, 1, 1);
    count(c, WORK_FLUSHED, f->acc[i].value, i < f->num_acc ? 1 : 0.5); /* a lane's takes no register */
  }
}

/* Numbers that have slots, but that a called function would rather compute again than be handed. */
static double not_handed_on(const lowered *f, const slots *s) {
  double n = 0;
  for (int i = 0; i < s->count; i++) n += f->cost[s->ref[i]] < POLICY_HANDED_ON_MIN;
  return n;
}

/* Row and Col of all rows and columns that a thread computes: more than there are registers for are spilled. Beside a
 * call they lie in memory, and NVVM compares each access with those before it. */
static void count_slots(counter *c) {
  lowered *f = c->f;
  const plan_copies copies = tiles_copies(f->plan);
  const slots *row = &f->slot[SLOTS_ROW], *col = &f->slot[SLOTS_COL];
  for (int i = 0; i < row->count; i++) count(c, WORK_SLOTS, row->ref[i], copies.row);
  for (int i = 0; i < col->count; i++) count(c, WORK_SLOTS, col->ref[i], copies.col);
  if (f->work.of[WORK_CALLS] == 0) return;
  f->work.positions = not_handed_on(f, row) + not_handed_on(f, col);
  const double inlined = (lowered_is_called(f, "row") ? 0 : copies.row * row->count) +
                         (lowered_is_called(f, "col") ? 0 : copies.col * col->count);
  f->work.beside = inlined * f->work.of[WORK_CALLS] / 1e6;
}

static bool is_of_bits(ir_op op) {
  return op == IR_BAND || op == IR_BOR || op == IR_BXOR || op == IR_SHL || op == IR_SHR || op == IR_SHR_BAND;
}

/* Interval arithmetic takes several instructions for each operation. */
static void count_bounds(counter *c) {
  ir_ref root[LOWERED_MAX_BOUNDED];
  const bool *need = lowered_bounded_nodes(c->f, root, lowered_bounded_roots(c->f, root));
  for (uint32_t r = 1; need != NULL && r < c->f->num_nodes; r++) {
    if (!need[r] || ir_get(c->f->g, r)->nargs == 0) continue;
    const bool is_point = lowered_is_point(c->f, r);
    count(c, is_point ? WORK_ONCE : WORK_BOUNDS, r, is_point ? cost_of(c, r) : 1);
    if (!is_point && !c->f->facts.bounds_small && is_of_bits(ir_get(c->f->g, r)->op)) count(c, WORK_BITS, r, 1);
  }
}

static void count_rest(counter *c) {
  lowered *f = c->f;
  const mask_info *m = f->mask;
  const ir_ref ranges[] = {m->kv_lo, m->kv_hi, m->q_lo, m->q_hi};
  forward_part part[FORWARD_PARTS];
  count_function(c, WORK_ONCE, 0, f->slot[SLOTS_HEAD].ref, f->slot[SLOTS_HEAD].count, 1);
  count_function(c, WORK_ONCE, 0, ranges, 4, 1);
  if (f->plan->pass == LUATTN_BACKWARD)
    count_function(c, WORK_ONCE, HAS_HEAD | HAS_Q | HAS_KV, &f->distance_term, 1, 1);
  for (int i = f->plan->pass == LUATTN_FORWARD ? hooks_of_forward(f, part) : 0; i-- > 0;) {
    const bool is_hook = part[i].root == &f->score || part[i].root == f->step.term || part[i].root == &f->step.prob;
    if (!is_hook) count_function(c, WORK_ONCE, part[i].has, part[i].root, part[i].n, 1);
  }
}

/* The line of the spec that adds most. */
static void find_line(counter *c) {
  const ir *g = c->f->g;
  double all = 0, most = 0, *by_line;
  uint32_t lines = 1;
  for (uint32_t r = 1; r < c->f->num_nodes; r++)
    if (ir_get(g, r)->line >= lines) lines = ir_get(g, r)->line + 1;
  by_line = arena_array(c->f->a, lines, sizeof *by_line);
  if (by_line == NULL) {
    c->f->failed = true;
    return;
  }
  for (uint32_t r = 1; r < c->f->num_nodes; r++) {
    by_line[ir_get(g, r)->line] += c->node[r];
    all += c->node[r];
  }
  for (uint32_t i = 1; i < lines; i++)
    if (by_line[i] > most) most = by_line[i], c->f->work.line = i;
  c->f->work.share = all > 0 ? most / all : 0;
}

void compile_work_count(lowered *f) {
  counter c = {.f = f, .node = arena_array(f->a, f->num_nodes, sizeof *c.node)};
  if (c.node == NULL) {
    f->failed = true;
    return;
  }
  f->work.is_evaluated = f->facts.tile_bits;
  count_hooks(&c);
  count_gradients(&c);
  count_bounds(&c);
  count_slots(&c);
  count_rest(&c);
  find_line(&c);
}
