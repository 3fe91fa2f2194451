/* facts.c: derives compile-time facts of a lowered spec: for kernels to branch on, for the plan, and for the
 * image. */
#include <string.h>

#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"

/* Whether `root` reads memory for each element, if its function has parameters `has` for the slots. */
static bool loads(const lowered *f, int has, ir_ref root) {
  bool *need = arena_array(f->a, f->num_nodes, sizeof *need);
  if (need == NULL) return ir_uses_op(f->g, root, IR_LOAD);
  need[root] = true;
  for (ir_ref r = root; r >= 1; r--) {
    const ir_node *node = ir_get(f->g, r);
    if (!need[r] || lowered_in_slot(f, has, r)) continue;
    if (node->op == IR_LOAD || node->op == IR_LISTED) return true;
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  return false;
}

/* Whether functions of these roots, with parameters `has`, read slots of struct Head, Row or Col (`kind`). */
static bool reads_slot(const lowered *f, int has, int kind, const ir_ref *roots, int n) {
  bool *need = arena_array(f->a, f->num_nodes, sizeof *need);
  if (need == NULL) return true;
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = f->num_nodes; r-- > 1;) {
    if (!need[r]) continue;
    if (lowered_in_slot(f, has, r)) {
      if (f->slot_kind[r] == 1 + kind) return true;
      continue;
    }
    const ir_node *node = ir_get(f->g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  return false;
}

/* Forward fills Col for each tile anew, so a slot there counts as a memory read. */
static bool keep_loads(const lowered *f) {
  if (f->plan->pass != LUATTN_FORWARD) return loads(f, HAS_ELEMENT, f->keep);
  return ir_uses_op(f->g, f->keep, IR_LOAD) || ir_uses_op(f->g, f->keep, IR_LISTED);
}

/* Whether backward's grad leaves spare registers: memory reads and calls take them. */
static bool grad_is_light(const lowered *f) {
  return !lowered_is_called(f, "grad") && !loads(f, HAS_ELEMENT, f->grad_prob) && !loads(f, HAS_ELEMENT, f->grad_ds);
}

/* Returns what a score reads besides its rows of the q tile: 0, nothing; 1, memory for each column, because
 * Col is filled for each tile; 2, memory for each element, or the score is a called hook. Kernels branch on
 * it. */
static int reads_of(const lowered *f, ir_ref score) {
  if (lowered_is_called(f, "score") || loads(f, HAS_ELEMENT, score)) return 2;
  return loads(f, HAS_HEAD | HAS_ROW, score);
}
static int score_reads(const lowered *f) { return reads_of(f, f->score); }

/* Loaders fetch columns along lines alone. */
static bool reads_columns(const lowered *f) {
  if (f->plan->pass == LUATTN_BACKWARD || f->plan->axes > 0) return false;
  return reads_of(f, f->facts.has_bias_row ? f->score_with : f->score) == 1;
}

/* sizeof(struct Row) on the device. */
static int slot_bytes(const lowered *f, int kind) {
  const int real = f->plan->dtype == LUATTN_F64 ? 8 : 4;
  int size = 0, align = 1;
  for (int i = 0; i < f->slot[kind].count; i++) {
    const ir_type t = ir_typeof(f->g, f->slot[kind].ref[i]);
    const bool wide = ir_is_wide(f->g, f->slot[kind].ref[i]);
    const int bytes = wide ? 8 : t == IR_REAL ? real : t == IR_INT ? 4 : 1;
    size = (size + bytes - 1) / bytes * bytes + bytes;
    if (bytes > align) align = bytes;
  }
  return (size + align - 1) / align * align;
}

/* The element size of the input that scores read along the keys. */
static int bias_row_bytes(const lowered *f) {
  return lowered_traced(f)->input[ir_index_of(ir_get(f->g, f->bias_row))].dtype == LUATTN_INPUT_F32 ? 4 : 2;
}

/* A called score computes all of its terms itself; a called gradient takes the term as a parameter. */
static bool takes_term(const lowered *f) { return f->plan->pass == LUATTN_BACKWARD || !lowered_is_called(f, "score"); }

static bool adds_term(const lowered *f) {
  const ir_node *n = ir_get(f->g, f->score_with), *of[2] = {ir_get(f->g, n->arg[0]), ir_get(f->g, n->arg[1])};
  if (n->op != IR_ADD || of[0]->op != IR_VAR || of[1]->op != IR_VAR) return false;
  return (ir_var_of(of[0]) == VAR_DOT && ir_var_of(of[1]) == VAR_TERM) ||
         (ir_var_of(of[0]) == VAR_TERM && ir_var_of(of[1]) == VAR_DOT);
}

/* The same before facts are known, and whether there is room. */
bool facts_stage_columns(const lowered *f) {
  const bool lines = f->bias_row != IR_NONE && takes_term(f);
  plan_rows r = {.bias_row_bytes = lines ? bias_row_bytes(f) : 0, .col_bytes = slot_bytes(f, SLOTS_COL)};
  return f->plan->axes == 0 && reads_of(f, lines ? f->score_with : f->score) == 1 && r.col_bytes % 4 == 0 &&
         tiles_have_columns(f->plan, &r);
}

/* The parts of Col that a score reads. */
bool facts_score_reads_col(const lowered *f) {
  const ir_ref root[2] = {f->score, f->score_with};
  return reads_slot(f, HAS_ELEMENT, SLOTS_COL, root, 2);
}

/* Approximate instructions. */
static int hook_cost(const lowered *f, const char *name) {
  for (int i = 0; i < f->num_hooks; i++)
    if (strcmp(f->hook[i].name, name) == 0) return f->hook[i].cost;
  return 0;
}

/* Whether only keep reads Row in forward, and filling Row is cheap compared with the loop over all columns of
 * a masked tile. */
static bool only_keep_reads_row(const lowered *f) {
  forward_part part[FORWARD_PARTS];
  if (f->keep == IR_NONE || f->row_shift != IR_NONE || lowered_is_called(f, "row")) return false;
  if (hook_cost(f, "row") > POLICY_SHORT_ROW) return false;
  for (int i = hooks_of_forward(f, part); i-- > 0;)
    if (reads_slot(f, part[i].has, SLOTS_ROW, part[i].root, part[i].n)) return false;
  return true;
}

/* Whether keep takes only a few instructions and no memory reads, such as comparisons and sums of
 * positions. */
static bool keep_is_cheap(const lowered *f) {
  return f->keep == IR_NONE || (hook_cost(f, "keep") <= POLICY_CHEAP_KEEP && !keep_loads(f));
}

/* Cheap conjuncts need no separate code for tiles where the rest of the mask holds. */
static bool rows_need_full_data(const lowered *f) {
  return f->mask->rows.apart && !keep_is_cheap(f) && !f->facts.tile_bits && f->plan->offsets != LUATTN_OFFSET_CHUNKS;
}

/* Whether one interval along each axis of a grid is what a row, or a column, keeps, for kernels that make bits of them. */
static bool has_axis_intervals(const lowered *f, bool of_rows) {
  const mask_info *m = f->mask;
  bool all = m->is_product && (of_rows ? tiles_free_boxes(f->plan) : plan_kernel(f->plan)->keeps_places);
  for (int a = 0; a < m->num_axes; a++) {
    const mask_intervals *own = of_rows ? &m->axis[a].rows : &m->axis[a].columns;
    all &= own->count == 1 && own->period == 0 && !own->apart;
  }
  return all;
}

/* The number of intervals that a row keeps; 0: only keep decides. */
static int row_intervals(const lowered *f) {
  const mask_info *m = f->mask;
  if (f->plan->offsets == LUATTN_OFFSET_CHUNKS) return 0; /* an interval of positions is several of rows */
  if (m->keep == IR_NONE) return 1;
  if (m->num_axes > 0) return has_axis_intervals(f, true);
  return m->rows.apart && !rows_need_full_data(f) ? 0 : m->rows.count;
}

/* Whether every row's first interval starts at 0, so kernels read only its end. */
static bool row_from_start(const lowered *f) {
  return f->mask->num_axes == 0 && row_intervals(f) > 0 && f->mask->rows.lo[0] == IR_NONE;
}

/* The number of intervals that a column keeps, as row_intervals. */
static int column_intervals(const lowered *f) {
  const mask_intervals *m = &f->mask->columns;
  if (f->mask->num_axes > 0) return has_axis_intervals(f, false);
  if (f->plan->offsets == LUATTN_OFFSET_CHUNKS) return 0;
  if (f->facts.tile_bits && m->apart) return 0;
  return policy_uses_column_intervals(m, keep_is_cheap(f)) ? m->count : 0;
}

/* What an expression reads, not looking below node `known`: numbers of a backward row, as bits, and dot. */
typedef struct reads {
  int rows;
  bool dot;
} reads;
static bool find_reads(const lowered *f, ir_ref root, ir_ref known, reads *out) {
  const ir *g = f->g;
  bool *need = arena_array(f->a, ir_count(g), sizeof *need);
  *out = (reads){0, false};
  if (need == NULL) return false;
  if (root != IR_NONE) need[root] = true;
  for (ir_ref r = root; r >= 1; r--) {
    const ir_node *node = ir_get(g, r);
    if (!need[r] || r == known) continue;
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
    if (node->op != IR_VAR) continue;
    if (ir_var_of(node) == VAR_ROW) out->rows |= 1 << ir_index_of(node);
    if (ir_var_of(node) == VAR_DOT) out->dot = true;
  }
  return true;
}

/* Returns which numbers of a backward row prob reads, as bits. -1: prob cannot be computed separately from
 * ds, or should not: a called grad returns both, and if ds reads dot elsewhere than through prob, the kernel
 * would have to keep the dot as well. */
static int prob_rows(const lowered *f) {
  reads prob, ds;
  if (lowered_is_called(f, "grad") || !find_reads(f, f->grad_prob, IR_NONE, &prob) ||
      !find_reads(f, f->grad_ds, f->grad_prob, &ds))
    return -1;
  return ds.dot || !prob.dot ? -1 : prob.rows;
}

/* A set of bits, 1 << SUM_*. */
static int sums_of(const lowered *f) {
  int bits = 0;
  for (int kind = 0; kind < SUM_KINDS; kind++) bits |= (f->sum[kind].count > 0) << kind;
  return bits;
}

/* The conjuncts of a mask; -1: more than there is room for. */
static int conjuncts(const ir *g, ir_ref r, ir_ref *out, int count) {
  const ir_node *n = ir_get(g, r);
  if (count < 0 || count == LOWERED_MAX_CONJUNCTS) return -1;
  if (n->op != IR_AND) return out[count] = r, count + 1;
  const ir_ref second = n->arg[1];
  return conjuncts(g, second, out, conjuncts(g, n->arg[0], out, count));
}

/* Whether kernels read this conjunct faster by lines: flags at kv, which differ from query to query where Col
 * does not hold them anyway. */
static bool is_flag_line(const lowered *f, ir_ref r) {
  const ir_node *n = ir_get(f->g, r);
  const int last = n->nargs - 1;
  if (n->op != IR_LOAD || n->type != IR_BOOL || !ir_is_var(f->g, n->arg[last], VAR_KV)) return false;
  if (!row_in_place(f, (int)ir_index_of(n), last, n->arg[last])) return false;
  bool of_query = f->plan->pass == LUATTN_FORWARD;
  for (int i = 0; i < last; i++) {
    if (ir_uses(f->g, n->arg[i], VAR_KV)) return false;
    of_query |= ir_uses(f->g, n->arg[i], VAR_Q);
  }
  return of_query;
}

/* Finds the flags that an evaluated mask reads for each score, preferably those of a query's own. */
static void find_flag_line(lowered *f) {
  ir_ref all[LOWERED_MAX_CONJUNCTS];
  if (!f->facts.tile_bits || !f->plan->family->groups_masks || lowered_is_called(f, "keep")) return;
  const int n = conjuncts(f->g, f->keep, all, 0);
  for (int i = 0; i < n; i++)
    if (is_flag_line(f, all[i]) && (f->flag_line == IR_NONE || ir_uses(f->g, all[i], VAR_Q))) f->flag_line = all[i];
  for (int i = 0; i < n && f->flag_line != IR_NONE; i++)
    if (all[i] != f->flag_line) f->keep_beside[f->num_keep_beside++] = all[i];
}

/* Which slots of a kind these roots read, in the arena; NULL: they also read their position itself. */
static const bool *slots_of(const lowered *f, int kind, const ir_ref *roots, int n) {
  const ir_var position = kind == SLOTS_COL ? VAR_KV : VAR_Q;
  const slots *s = &f->slot[kind];
  bool *need = arena_array(f->a, f->num_nodes, sizeof *need),
       *read = arena_array(f->a, (size_t)s->count + 1, sizeof *read);
  if (need == NULL || read == NULL) return NULL;
  for (int i = 0; i < n; i++) need[roots[i]] = true;
  for (ir_ref r = f->num_nodes - 1; r >= 1; r--) {
    const ir_node *node = ir_get(f->g, r);
    if (!need[r]) continue;
    if (ir_is_var(f->g, r, position)) return NULL;
    if (lowered_in_slot(f, HAS_ELEMENT, r)) {
      for (int i = 0; i < s->count; i++) read[i] |= s->ref[i] == r;
      continue;
    }
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  return read;
}

const bool *lowered_mask_slots(const lowered *f, int kind) {
  const bool of_query = f->keep_of_query && kind == SLOTS_COL;
  return slots_of(f, kind, of_query ? f->keep_of_list : &f->keep, of_query ? f->num_keep_of_list : 1);
}

/* Finds what a mask with lists asks of a query and of hoisted numbers of a key alone: a warp's keys are mostly of one
 * block, and one lane can ask for all of them. */
static void find_keep_of_query(lowered *f) {
  ir_ref all[LOWERED_MAX_CONJUNCTS];
  if (!plan_kernel(f->plan)->reads_query_lists || !f->has_lists || !f->facts.tile_bits || f->facts.keep_runs ||
      f->flag_line != IR_NONE || lowered_is_called(f, "keep"))
    return;
  const int n = conjuncts(f->g, f->keep, all, 0);
  for (int i = 0; i < n; i++) {
    const bool listed = slots_of(f, SLOTS_COL, &all[i], 1) != NULL;
    if (!listed && ir_uses_op(f->g, all[i], IR_LISTED)) break;
    f->keep_of_query |= listed && ir_uses_op(f->g, all[i], IR_LISTED);
    if (listed)
      f->keep_of_list[f->num_keep_of_list++] = all[i];
    else
      f->keep_beside[f->num_keep_beside++] = all[i];
  }
  if (!f->keep_of_query || f->num_keep_of_list + f->num_keep_beside < n)
    f->keep_of_query = false, f->num_keep_of_list = f->num_keep_beside = 0;
}

/* Whether an evaluated mask reads of a key (in backward, of a query) only integers and flags that are
 * hoisted: often they are the same for many. */
static bool keep_runs(const lowered *f) {
  const int kind = f->plan->pass == LUATTN_FORWARD ? SLOTS_COL : SLOTS_ROW;
  bool any = false;
  if (!f->facts.tile_bits || !f->plan->family->groups_masks || f->flag_line != IR_NONE || lowered_is_called(f, "keep"))
    return false;
  const bool *read = lowered_mask_slots(f, kind);
  for (int i = 0; read != NULL && i < f->slot[kind].count; i++) {
    any |= read[i];
    if (read[i] && ir_typeof(f->g, f->slot[kind].ref[i]) == IR_REAL) return false;
  }
  return any;
}

void facts_find(lowered *f) {
  lowered_facts *t = &f->facts;
  t->has_distance_term = f->distance_term != IR_NONE && takes_term(f) && f->plan->axes == 0;
  t->has_displacement_term = f->distance_term != IR_NONE && takes_term(f) && f->plan->axes > 0;
  t->adds_displacement_term = t->has_displacement_term && f->plan->pass == LUATTN_FORWARD && adds_term(f);
  t->has_bias_row = f->bias_row != IR_NONE && takes_term(f);
  t->tile_bits = f->keep != IR_NONE && f->mask->evaluated.is && tiles_may_have_bits(f->plan);
  find_flag_line(f);
  t->keep_runs = keep_runs(f);
  find_keep_of_query(f);
  t->keep_is_cheap = keep_is_cheap(f);
  t->rows_need_full_data = rows_need_full_data(f);
  t->only_keep_reads_row = only_keep_reads_row(f);
  t->row_intervals = row_intervals(f);
  t->row_from_start = row_from_start(f);
  t->column_intervals = column_intervals(f);
  t->columns_need_full_data = t->column_intervals > 0 && f->mask->columns.apart;
  t->score_reads = score_reads(f);
  t->score_reads_col = facts_score_reads_col(f);
  t->reads_columns = reads_columns(f);
  t->grad_is_light = grad_is_light(f);
  t->grad_adds_to_memory = lowered_adds_to_memory(f, &f->element_terms);
  t->prob_rows = prob_rows(f);
  t->sums = sums_of(f);
  tile_bounds_find(f);
}

/* ---- for the plan ---- */

/* Whether a kernel keeps Row. The sm90 backward, whose columns are queries, does not need Row for masks, nor does one that
 * makes bits of boxes. */
static bool needs_rows(const lowered *f) {
  const family_kernel *kernel = plan_kernel(f->plan);
  const bool only_keep_reads = kernel->masks_without_row || (f->plan->axes > 0 && kernel->keeps_places);
  if (!only_keep_reads || f->facts.grad_reads_row) return true;
  return f->keep != IR_NONE && (f->facts.column_intervals == 0 || f->mask->columns.apart);
}

static int outlined_work(const lowered *f) {
  int work = 0;
  for (int i = 0; i < f->num_hooks; i++)
    if (f->hook[i].outlined) work += f->hook[i].cost * f->hook[i].copies;
  return work;
}

/* mask_analyse computes up to which length the spec's integers stay exact; positions converted to float are
 * exact up to 2^24. */
static int64_t max_len(const lowered *f) {
  const int64_t limit = f->mask->max_len, exact = 1 << 24;
  bool as_real = f->positions_as_real;
  for (int k = 0; k < f->step.num_red; k++) as_real |= f->red_place[k];
  for (int i = 0; i < f->spec->derived.num_sums; i++) as_real |= f->spec->derived.sum[i].kind == PASS_PLACE;
  return as_real && f->plan->dtype != LUATTN_F64 && limit > exact ? exact : limit;
}

static bool is_crowded(const lowered *f) {
  bool pairs = false;
  for (int i = 0; i < lowered_traced(f)->num_inputs; i++) pairs |= f->pairs[i] != 0;
  return policy_is_crowded(f->plan, &f->rows, &(crowding){f->outlined_work > 0, f->mask_by_zero, pairs});
}

/* Of a score, besides the hooks: its position, and what was found of the others. Where blocks may decide cells, one of
 * so many needs it. */
enum { EVALUATION_COST = 8, UNDECIDED = 8 };
static int lists_cost(const lowered *f) {
  const bool *need = lowered_needed(f, 0, &f->keep, 1);
  int cost = 0;
  for (ir_ref r = 1; need != NULL && r < f->num_nodes; r++) {
    const ir_node *n = ir_get(f->g, r);
    if (need[r] && n->op == IR_LISTED) cost += ir_list_of(n).count * ir_op_cost(IR_LOAD, IR_INT, IR_FAST);
  }
  return cost;
}

static int evaluated_cost(const lowered *f) {
  const int cost = EVALUATION_COST + hook_cost(f, "keep") + hook_cost(f, "row") + lists_cost(f);
  return f->mask->evaluated.cell != IR_NONE ? cost / UNDECIDED + 1 : cost;
}

void facts_find_rows(lowered *f) {
  const int real = f->plan->dtype == LUATTN_F64 ? 8 : 4;
  plan_rows *r = &f->rows;
  r->row_bytes = needs_rows(f) ? slot_bytes(f, SLOTS_ROW) : 0;
  r->bwd_row_bytes = (f->num_rows > 0 ? f->num_rows : 1) * real;
  r->num_acc = f->num_acc + (f->num_lane_sums + LOWERED_LANES - 1) / LOWERED_LANES * LOWERED_LANES;
  r->num_stats = f->mask->num_stats;
  r->mask = f->keep != IR_NONE ? f->mask : NULL;
  r->evaluated = f->facts.tile_bits ? &f->mask->evaluated : NULL;
  r->evaluated_cost = f->facts.tile_bits ? evaluated_cost(f) : 0;
  r->skips = f->score_bounds != IR_NONE;
  r->sums_distances = f->sum[SUM_DISTANCE].count > 0;
  r->bias_row_bytes = f->facts.has_bias_row ? bias_row_bytes(f) : 0;
  r->col_bytes = f->facts.reads_columns ? slot_bytes(f, SLOTS_COL) : 0;
  if (r->col_bytes % 4 != 0) r->col_bytes = 0;
  r->has_distance_term = f->facts.has_distance_term;
  r->has_displacement_term = f->facts.has_displacement_term;
  f->outlined_work = outlined_work(f);
  f->max_len = max_len(f);
  f->crowded = is_crowded(f);
}
