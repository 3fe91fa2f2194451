/* constants.c: what a kernel has to know of a spec, as constants of spec.cuh. */
#include "gen/emit/parts.h"

#include <string.h>

static const traced_spec *traced(const writer *w) { return &w->f->spec->traced; }

void table_function(writer *w, const char *type, const char *name, const char *const *values, int n,
                    const char *otherwise) {
  text_add(&w->out, "static constexpr __device__ %s %s(int i) { return ", type, name);
  for (int i = 0; i < n; i++) text_add(&w->out, "i == %d ? %s : ", i, values[i]);
  text_add(&w->out, "%s; }\n", otherwise);
}

/* Does `root` read memory for each element, beyond what slots of `has` hold? */
static bool loads(const writer *w, int has, ir_ref root) {
  bool *need = arena_array(w->f->a, w->count, sizeof *need);
  if (need == NULL) return ir_uses_op(w->f->g, root, IR_LOAD);
  need[root] = true;
  for (ir_ref r = root; r >= 1; r--) {
    const ir_node *node = ir_get(w->f->g, r);
    if (!need[r] || writer_slot_of(w, has, r)) continue;
    if (node->op == IR_LOAD) return true;
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  return false;
}

/* Do functions with `has`, of these roots, read a slot of this kind? */
static bool reads_slot(const writer *w, int has, int kind, const ir_ref *roots, int n) {
  bool *need = arena_array(w->f->a, w->count, sizeof *need);
  if (need == NULL) return true;
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = w->count; r-- > 1;) {
    if (!need[r]) continue;
    if (writer_slot_of(w, has, r)) {
      if (w->slot_kind[r] == 1 + kind) return true;
      continue;
    }
    const ir_node *node = ir_get(w->f->g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  return false;
}

/* Forward fills Col for each tile anew, which is as if keep read the memory itself. */
static bool keep_loads(const writer *w) {
  return w->f->plan->pass == LUATTN_FORWARD ? ir_uses_op(w->f->g, w->f->keep, IR_LOAD)
                                            : loads(w, HAS_ELEMENT, w->f->keep);
}

/* Does backward's grad leave registers over? What it reads from memory, and a call, takes them. */
static bool grad_is_light(const writer *w) {
  return !outline_is(w, "grad") && !loads(w, HAS_ELEMENT, w->f->grad_prob) &&
         !loads(w, HAS_ELEMENT, w->f->grad_ds);
}

/* What a score reads beyond its q tile's rows: 0, nothing; 1, memory for each column, as Col is filled anew
 * for each tile; 2, memory for each element, or it is called. A kernel's loop may depend on it. */
static int reads_of(const writer *w, ir_ref score) {
  if (outline_is(w, "score") || loads(w, HAS_ELEMENT, score)) return 2;
  return loads(w, HAS_HEAD | HAS_ROW, score);
}
static int score_reads(const writer *w) { return reads_of(w, w->f->score); }

bool emit_reads_columns(const writer *w) {
  if (w->f->plan->pass == LUATTN_BACKWARD) return false;
  return reads_of(w, emit_has_line(w) ? w->f->score_with : w->f->score) == 1;
}

/* What of a key a score reads that Col holds. */
static bool score_reads_col(const writer *w) {
  const ir_ref root[2] = {w->f->score, w->f->score_with};
  return reads_slot(w, HAS_ELEMENT, SLOTS_COL, root, 2);
}

/* Rough instructions. */
static int hook_cost(const writer *w, const char *name) {
  for (int i = 0; i < w->num_hooks; i++)
    if (strcmp(w->hook[i].name, name) == 0) return w->hook[i].cost;
  return 0;
}

/* Is it keep alone that reads Row in the forward, and Row short to fill, beside a loop over all columns of a
 * masked tile? */
static bool row_for_keep(const writer *w) {
  enum { SHORT = 48 };
  forward_part part[FORWARD_PARTS];
  if (w->f->keep == IR_NONE || w->f->shift != IR_NONE || outline_is(w, "row")) return false;
  if (hook_cost(w, "row") > SHORT) return false;
  for (int i = emit_forward_parts(w, part); i-- > 0;)
    if (reads_slot(w, part[i].has, SLOTS_ROW, part[i].root, part[i].n)) return false;
  return true;
}

/* A few instructions, without memory: comparisons and sums of positions. On an H200 a loop over a tile's
 * scores takes 0.7 to 0.9 of the speed at 13 of them (dilated window), and is faster at 14 (block diffusion).
 */
static bool keep_is_cheap(const writer *w) {
  enum { FEW = 13 };
  return w->f->keep == IR_NONE || (hook_cost(w, "keep") <= FEW && !keep_loads(w));
}

/* What costs little is not worth code of its own for tiles where the rest of it holds. */
static bool keep_apart(const writer *w) { return w->f->mask->rows.apart && !keep_is_cheap(w); }

/* How many intervals say what a row keeps; 0, where only keep does. */
static int row_ranges(const writer *w) {
  const mask_info *m = w->f->mask;
  if (m->keep == IR_NONE) return 1;
  return m->rows.apart && !keep_apart(w) ? 0 : m->rows.count;
}

/* Only the end of the first is looked at. */
static bool row_from_start(const writer *w) { return row_ranges(w) > 0 && w->f->mask->rows.lo[0] == IR_NONE; }

/* How many intervals say what a column keeps, as row_ranges. There a cheap predicate is faster than two
 * intervals or remainders, by a fiftieth to a twentieth on an H200 (Longformer, dilated window). */
int emit_column_ranges(const writer *w) {
  const mask_line *m = &w->f->mask->columns;
  const bool simple = m->count == 1 && (m->period == 0 || m->period >= MASK_GRID);
  return simple || !keep_is_cheap(w) ? m->count : 0;
}

/* What `root` reads, without what is behind `known`: rows, the numbers of a backward row, as bits; dot. */
typedef struct reads {
  int rows;
  bool dot;
} reads;
static bool find_reads(const emit_form *f, ir_ref root, ir_ref known, reads *out) {
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

/* Which numbers of a backward row prob reads, as bits. -1: it is not to be had alone, or should not be: a
 * called grad gives all or nothing, and where ds needs more of the dot than prob, that would have to be kept
 * as well. */
static int prob_rows(const writer *w) {
  reads prob, ds;
  if (outline_is(w, "grad") || !find_reads(w->f, w->f->grad_prob, IR_NONE, &prob) ||
      !find_reads(w->f, w->f->grad_ds, w->f->grad_prob, &ds))
    return -1;
  return ds.dot || !prob.dot ? -1 : prob.rows;
}

/* As bits, 1 << SUM_*. */
static int sums_of(const emit_form *f) {
  int bits = 0;
  for (int kind = 0; kind < SUM_KINDS; kind++) bits |= (f->sum[kind].count > 0) << kind;
  return bits;
}

/* A score that is called computes all of it itself; a gradient that is called is given the term. */
static bool takes_term(const writer *w) {
  return w->f->plan->pass == LUATTN_BACKWARD || !outline_is(w, "score");
}
bool emit_has_distance_term(const writer *w) { return w->f->distance_term != IR_NONE && takes_term(w); }
bool emit_has_line(const writer *w) { return w->f->line != IR_NONE && takes_term(w); }

static const char *const truth[] = {"false", "true"};

/* Of reductions and of the state. */
static void tables(writer *w) {
  const emit_form *f = w->f;
  const int num_state = traced(w)->online.num_state;
  const char *kinds[SPEC_MAX_RED], *shifted[SPEC_MAX_RED], *deferred[SPEC_MAX_STATE];
  for (int k = 0; k < f->step.num_red; k++)
    kinds[k] = f->step.kind[k] == IR_REDUCE_MAX ? "REDUCE_MAX"
               : f->red_deferred[k]             ? "REDUCE_SUM_DEFERRED"
                                                : "REDUCE_SUM";
  for (int k = 0; k < f->step.num_red; k++) shifted[k] = truth[f->red_shifted[k]];
  for (int i = 0; i < num_state; i++) deferred[i] = truth[f->state_deferred[i]];
  table_function(w, "int", "reduction", kinds, f->step.num_red, "REDUCE_SUM");
  table_function(w, "bool", "red_shifted", shifted, f->shift != IR_NONE ? f->step.num_red : 0, "false");
  table_function(w, "bool", "state_deferred", deferred, num_state, "false");
}

void emit_constants(writer *w) {
  const emit_form *f = w->f;
  const traced_spec *t = traced(w);
  const struct {
    const char *name;
    bool value;
  } flags[] = {{"has_mask", f->keep != IR_NONE},
               {"keep_is_cheap", keep_is_cheap(w)},
               {"keep_apart", keep_apart(w)},
               {"row_for_keep", row_for_keep(w)},
               {"row_from_start", row_from_start(w)},
               {"columns_apart", emit_column_ranges(w) > 0 && f->mask->columns.apart},
               {"score_reads_col", score_reads_col(w)},
               {"grad_reads_row", w->grad_reads_row},
               {"grad_is_light", grad_is_light(w)},
               {"has_lse", f->lse != IR_NONE},
               {"has_rescale", f->has_rescale},
               {"has_distance_term", emit_has_distance_term(w)},
               {"has_line", emit_has_line(w)},
               {"reads_columns", emit_reads_columns(w)},
               {"lines_shared", emit_has_line(w) && !ir_uses(f->g, f->line, VAR_B)},
               {"has_shift", f->shift != IR_NONE},
               {"has_small", f->small_limit != IR_NONE},
               {"lags", f->lags},
               {"prob_is_sigmoid", f->prob_is_sigmoid},
               {"mask_by_inf", f->mask_by_inf},
               {"mask_by_zero", f->mask_by_zero},
               {"has_query_mod", t->query_mod != IR_NONE},
               {"has_key_mod", t->key_mod != IR_NONE},
               {"has_value_mod", t->value_mod != IR_NONE},
               {"grad_adds", f->element_terms.count > 0},
               {"grad_adds_to_memory", emit_grad_adds_to_memory(w)},
               {"may_be_alike", tiles_may_be_alike(w)},
               {"has_score_bounds", f->score_bounds != IR_NONE},
               {"pairs_in_line", f->pairs_in_line},
               {"pairs_pitched", f->pairs_in_line && f->pairs_axis >= 0}};
  const struct {
    const char *name;
    int value;
  } numbers[] = {{"score_reads", score_reads(w)},
                 {"row_ranges", row_ranges(w)},
                 {"row_period", row_ranges(w) > 0 ? f->mask->rows.period : 0},
                 {"column_ranges", emit_column_ranges(w)},
                 {"column_period", emit_column_ranges(w) > 0 ? f->mask->columns.period : 0},
                 {"num_saved", f->spec->derived.num_saved},
                 {"num_stats", f->mask->num_stats},
                 {"num_reductions", f->step.num_red},
                 {"num_state", t->online.num_state},
                 {"num_bwd_rows", f->num_rows},
                 {"prob_rows", prob_rows(w)},
                 {"num_acc", w->num_acc},
                 {"prob_term", f->prob_term},
                 {"sums", sums_of(f)},
                 {"distance_step", f->distance_step},
                 {"pairs_input", f->pairs_in_line ? f->sum[SUM_HERE].term[0].input : -1}};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
    text_add(&w->out, "static constexpr bool %s = %s;\n", flags[i].name, truth[flags[i].value]);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    text_add(&w->out, "static constexpr int %s = %d;\n", numbers[i].name, numbers[i].value);
  tables(w);
  emit_stat_tables(w);
}
