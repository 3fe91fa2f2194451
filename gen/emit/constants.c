/* constants.c: prints the compile-time facts that kernels branch on, as constants of spec.cuh. */
#include "gen/emit/sections.h"

static const traced_spec *traced(const writer *w) { return &w->f->spec->traced; }

void table_function(writer *w, const char *type, const char *name, const char *const *values, int n,
                    const char *otherwise) {
  text_add(&w->out, "static constexpr __device__ %s %s(int i) { return ", type, name);
  for (int i = 0; i < n; i++) text_add(&w->out, "i == %d ? %s : ", i, values[i]);
  text_add(&w->out, "%s; }\n", otherwise);
}

static const char *const truth[] = {"false", "true"};

/* Of reductions and of the state. */
static void tables(writer *w) {
  const lowered *f = w->f;
  const int num_state = traced(w)->online.num_state;
  const char *kinds[SPEC_MAX_RED], *shifted[SPEC_MAX_RED], *deferred[SPEC_MAX_STATE];
  for (int k = 0; k < f->step.num_red; k++)
    kinds[k] = f->step.kind[k] == IR_REDUCE_MAX ? "REDUCE_MAX"
               : f->red_deferred[k]             ? "REDUCE_SUM_DEFERRED"
                                                : "REDUCE_SUM";
  for (int k = 0; k < f->step.num_red; k++) shifted[k] = truth[f->red_shifted[k]];
  for (int i = 0; i < num_state; i++) deferred[i] = truth[f->state_deferred[i]];
  table_function(w, "int", "reduction", kinds, f->step.num_red, "REDUCE_SUM");
  table_function(w, "bool", "red_shifted", shifted, f->row_shift != IR_NONE ? f->step.num_red : 0, "false");
  table_function(w, "bool", "state_deferred", deferred, num_state, "false");
}

void emit_constants(writer *w) {
  const lowered *f = w->f;
  const lowered_facts *t = &f->facts;
  const traced_spec *spec = traced(w);
  const struct {
    const char *name;
    bool value;
  } flags[] = {{"has_mask", f->keep != IR_NONE},
               {"keep_is_cheap", t->keep_is_cheap},
               {"keep_apart", t->keep_apart},
               {"row_for_keep", t->row_for_keep},
               {"row_from_start", t->row_from_start},
               {"columns_apart", t->columns_apart},
               {"score_reads_col", t->score_reads_col},
               {"grad_reads_row", t->grad_reads_row},
               {"grad_is_light", t->grad_is_light},
               {"has_lse", f->lse != IR_NONE},
               {"has_rescale", f->has_rescale},
               {"has_distance_term", t->has_distance_term},
               {"has_line", t->has_bias_row},
               {"reads_columns", t->reads_columns},
               {"lines_shared", t->has_bias_row && !ir_uses(f->g, f->bias_row, VAR_B)},
               {"has_shift", f->row_shift != IR_NONE},
               {"has_small", f->softcap_limit != IR_NONE},
               {"lags", f->lazy_rescale},
               {"prob_is_sigmoid", f->prob_is_sigmoid},
               {"mask_by_inf", f->mask_by_inf},
               {"mask_by_zero", f->mask_by_zero},
               {"has_query_mod", spec->query_mod != IR_NONE},
               {"has_key_mod", spec->key_mod != IR_NONE},
               {"has_value_mod", spec->value_mod != IR_NONE},
               {"grad_adds", f->element_terms.count > 0},
               {"grad_adds_to_memory", t->grad_adds_to_memory},
               {"may_be_alike", t->same_bucket},
               {"has_score_bounds", f->score_bounds != IR_NONE},
               {"pairs_in_line", f->pairs_in_row},
               {"pairs_pitched", f->pairs_in_row && f->pairs_q_axis >= 0}};
  const struct {
    const char *name;
    int value;
  } numbers[] = {{"score_reads", t->score_reads},
                 {"row_ranges", t->row_ranges},
                 {"row_period", t->row_ranges > 0 ? f->mask->rows.period : 0},
                 {"column_ranges", t->column_ranges},
                 {"column_period", t->column_ranges > 0 ? f->mask->columns.period : 0},
                 {"num_saved", f->spec->derived.num_saved},
                 {"num_stats", f->mask->num_stats},
                 {"num_reductions", f->step.num_red},
                 {"num_state", spec->online.num_state},
                 {"num_bwd_rows", f->num_rows},
                 {"prob_rows", t->prob_rows},
                 {"num_acc", f->num_acc},
                 {"prob_term", f->prob_term},
                 {"sums", t->sums},
                 {"distance_step", f->distance_step},
                 {"pairs_input", f->pairs_in_row ? f->sum[SUM_ELEMENT].term[0].input : -1}};
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
    text_add(&w->out, "static constexpr bool %s = %s;\n", flags[i].name, truth[flags[i].value]);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    text_add(&w->out, "static constexpr int %s = %d;\n", numbers[i].name, numbers[i].value);
  tables(w);
  emit_stat_tables(w);
}
