/* spec_grad.c: prints struct Grad, which adds up parameter gradients, and struct Mods, the input mods. */
#include <string.h>

#include "common/real.h"
#include "gen/emit/sections.h"

/* An outlined function that computes gradients: its type and its call. */
typedef struct outlined_gradient {
  const char *type, *call;
} outlined_gradient;

/* Lists the elements of Acc that `terms` add to, each once. */
static int accs_of(const writer *w, const derived_terms *terms, int *accs) {
  bool seen[LOWERED_MAX_ACC] = {false};
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    const int acc = lowered_wants(w->f, &terms->term[i]) ? lowered_acc_of(w->f, &terms->term[i]) : -1;
    if (acc < 0 || acc >= w->f->num_acc || seen[acc]) continue;
    seen[acc] = true;
    accs[n++] = acc;
  }
  return n;
}

/* Returns the variable for element `acc`: in Acc, or in the value that an outlined function returns. */
static const char *acc_place(writer *w, const derived_terms *terms, int acc) {
  int accs[LOWERED_MAX_ACC], at = 0;
  if (!w->outlined) return writer_format(w, "acc.x[%d]", acc);
  for (accs_of(w, terms, accs); accs[at] != acc;) at++;
  return writer_format(w, "made.x[%d]", w->num_values + at);
}

/* Whether r is a sum of positions and values that are constant per head. */
static bool is_sum_of_positions(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  if ((lowered_deps(w->f, r) & ~DEP_SITE) == 0 || n->op == IR_VAR) return true;
  if (n->op != IR_ADD && n->op != IR_SUB && n->op != IR_NEG) return false;
  for (int i = 0; i < n->nargs; i++)
    if (!is_sum_of_positions(w, n->arg[i])) return false;
  return true;
}

/* A deterministic kernel calls a function that sums exactly, once per score, unless the runtime finds that
 * the order does not matter (pairs.h). If registers allow, lanes that add to the same element reduce among
 * themselves first. */
static const char *ordered_adder_of(const writer *w, const derived_term *t) {
  return w->f->pairs[t->input] != 0       ? "add_input_grad_alone"
         : w->f->plan->family->calls_sums ? "add_input_grad_called"
                                          : "add_input_grad_together";
}

/* Returns the function that adds to an input's gradient in memory, in the hook for sums of `kind` (-1:
 * another hook). A whole warp calls the hook for distances, and its lanes often add to the same element. One
 * lane then adds for all, because an atomic addition takes one cycle per lane. */
static const char *adder_of(writer *w, int kind, const derived_term *t) {
  const bool by_score = kind < 0 || kind == SUM_ELEMENT;
  const char *adder = by_score && w->f->plan->deterministic ? ordered_adder_of(w, t) : "add_input_grad";
  bool apart = true;
  if (kind == SUM_DISTANCE)
    for (int i = 0; i < t->num_index; i++) apart &= is_sum_of_positions(w, t->index[i]);
  if (!apart) return "add_input_grad_by_warp";
  return kind == SUM_ELEMENT || kind == SUM_DISTANCE ? writer_format(w, "if (g != Real(0)) %s", adder) : adder;
}

/* The results of a called grad that hold lanes' sums. */
static int lane_results(const lowered *f) { return (f->num_lane_sums + LOWERED_LANES - 1) / LOWERED_LANES; }

/* Hands the terms that lanes sum to them, 32 at a time. */
static void add_by_lane(writer *w, const derived_terms *terms) {
  const lowered *f = w->f;
  for (int k = 0; k < lane_results(f); k++) {
    const int first = f->num_acc + k * LOWERED_LANES, left = f->num_acc + f->num_lane_sums - first,
              count = left < LOWERED_LANES ? left : LOWERED_LANES;
    text_add(&w->out, "{\n");
    w->out.indent++;
    text_add(&w->out, "Real term[%d] = {};\n", count);
    for (int i = 0; i < terms->count; i++) {
      const int at = lowered_acc_of(f, &terms->term[i]) - first;
      if (terms->term[i].by_lane && at >= 0 && at < count)
        text_add(&w->out, "term[%d] += kept ? %s : Real(0);\n", at, body_value(w, terms->term[i].value));
    }
    text_add(&w->out, "made.x[%d] = sum_by_lane(term);\n", w->num_values + k);
    w->out.indent--;
    text_add(&w->out, "}\n");
  }
}

static void add_terms_of(writer *w, int kind, const derived_terms *terms) {
  const bool is_called_for_all = w->f->num_lane_sums > 0 && terms == &w->f->element_terms;
  ir_ref roots[LOWERED_MAX_TERM_ROOTS];
  body_lines(w, roots, lowered_term_roots(w->f, terms, roots));
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    if (!lowered_wants(w->f, t)) continue;
    const int acc = lowered_acc_of(w->f, t);
    if (t->by_lane) continue; /* add_by_lane */
    if (acc >= 0) {
      text_add(&w->out, "%s += %s", acc_place(w, terms, acc), body_value(w, t->value));
      char digits[REAL_SIZE];
      if (kind == SUM_LINEAR && w->f->factor_of_q[i] != 0)
        text_add(&w->out, " + Real(%s) * g_by_q", real_write(w->f->factor_of_q[i], 17, digits));
      text_add(&w->out, ";\n");
      continue;
    }
    text_add(&w->out, "%s%s<Real>(p.inputs.input[%d], %s", is_called_for_all ? "if (kept) " : "", adder_of(w, kind, t),
             t->input, body_value(w, t->value));
    body_index(w, (unsigned)t->input, t->index, t->num_index);
    text_add(&w->out, ");\n");
  }
}

void add_terms(writer *w, const derived_terms *terms) { add_terms_of(w, -1, terms); }

/* The hooks for sums of dS: their names and parameters. */
static const struct {
  const char *name, *given;
  int has;
} sum_hook[SUM_KINDS] = {
    [SUM_DISTANCE] = {"add_distance", "int q, int kv, Real g", HAS_HEAD | HAS_Q | HAS_KV},
    [SUM_ROW] = {"add_row", "int q, Real g", HAS_HEAD | HAS_Q},
    [SUM_COL] = {"add_col", "int kv, Real g", HAS_HEAD | HAS_KV},
    [SUM_ELEMENT] = {"add_per_element", "Position q, Position kv, Real g", HAS_HEAD | HAS_Q | HAS_KV},
    [SUM_LINEAR] = {"add_linear", "int q, int kv, Real g, Real g_by_q", HAS_HEAD | HAS_Q | HAS_KV}};

static void sums_of_ds(writer *w) {
  for (int kind = 0; kind < SUM_KINDS; kind++) {
    if ((w->f->facts.sums >> kind & 1) == 0) continue;
    const char *given = kind == SUM_DISTANCE && w->f->plan->axes > 0 ? "Origin q, const Displacement &kv, Real g"
                                                                     : sum_hook[kind].given;
    open_function(w, writer_format(w, "void %s(" PH ", %s, Acc &acc)", sum_hook[kind].name, given));
    body_begin(w, lowered_sum_has[kind], "");
    w->calls_ops = w->f->sums_call_ops;
    add_terms_of(w, kind, &w->f->sum[kind]);
    close_function(w);
  }
}

/* Prints the address that the only term of `kind` adds to. axis: the axis that only q indexes, or -1. */
static void gradient_row(writer *w, const char *name, int kind, int axis) {
  const derived_term *t = &w->f->sum[kind].term[0];
  open_function(w, writer_format(w, "GradRow<Real> %s(" PH ", int q, int kv)", name));
  body_begin(w, lowered_sum_has[kind], "");
  body_lines(w, &t->factor, 1);
  body_lines(w, t->index, t->num_index);
  text_add(&w->out, "return grad_row<Real, %d>(p.inputs.input[%d], %s", axis, t->input, body_value(w, t->factor));
  body_row_index(w, (unsigned)t->input, t->index, t->num_index);
  text_add(&w->out, ");\n");
  close_function(w);
}

static void same_bucket(writer *w) {
  const derived_terms *terms = &w->f->sum[SUM_DISTANCE];
  ir_ref index[4 * DERIVED_MAX_TERMS];
  open_function(w, "bool same_bucket(" P ", int q0, int q1, int kv0, int kv1)");
  bounds_lines(w, index, lowered_distance_indices(w->f, index));
  const char *glue = "return ";
  for (int i = 0; i < terms->count; i++)
    for (int j = 0; j < terms->term[i].num_index; j++)
      if (!lowered_is_point(w->f, terms->term[i].index[j])) {
        text_add(&w->out, "%sis_one_place(%s, p.inputs.input[%d].size[%d])", glue,
                 bounds_of_index(w, (unsigned)terms->term[i].input, j, terms->term[i].index[j]), terms->term[i].input,
                 j);
        glue = " && ";
      }
  text_add(&w->out, ";\n");
  close_function(w);
}

/* Adds `sums`[i], of the term acc[number]. */
static void flush_acc(writer *w, const char *sums, int i, int number) {
  const derived_term *t = &w->f->acc[number];
  const ir_ref sum = t->of_sum != IR_NONE ? t->of_sum : w->f->whole_sum;
  text_add(&w->out, "if (const Real g = %s[%d]; g != Real(0)) {\n", sums, i);
  w->out.indent++;
  body_begin(w, HAS_HEAD, "");
  body_lines(w, &sum, 1);
  body_lines(w, t->index, t->num_index);
  if (t->input < 0) {
    text_add(&w->out, "add_scalar_grad(p, %d, %s);  // %s\n", t->scalar, body_value(w, sum),
             w->f->spec->traced.scalar_name[t->scalar]);
  } else {
    text_add(&w->out, "add_input_grad(p.inputs.input[%d], %s", t->input, body_value(w, sum));
    body_index(w, (unsigned)t->input, t->index, t->num_index);
    text_add(&w->out, ");  // %s\n", w->f->spec->traced.input[t->input].name);
  }
  w->out.indent--;
  text_add(&w->out, "}\n");
}

static void flush(writer *w) {
  open_function(w, "void flush(" PH ", const Acc &acc)");
  for (int i = 0; i < w->f->num_acc; i++) flush_acc(w, "acc.x", i, i);
  close_function(w);
}

static void flush_lanes(writer *w) {
  open_function(w, "void flush_lanes(" PH ", const Real *sum)");
  for (int i = 0; i < w->f->num_lane_sums; i++) flush_acc(w, "sum", i, w->f->num_acc + i);
  close_function(w);
}

/* Unpacks the result of an outlined function: its values, then the sums for Acc. */
static void add_returned(writer *w, const derived_terms *terms, int num_values) {
  int accs[LOWERED_MAX_ACC];
  const int n = accs_of(w, terms, accs);
  for (int i = 0; i < n; i++) text_add(&w->out, "acc.x[%d] += made.x[%d];\n", accs[i], num_values + i);
  for (int k = 0; terms == &w->f->element_terms && k < lane_results(w->f); k++)
    text_add(&w->out, "acc.lanes.x[%d] += made.x[%d];\n", k, num_values + k);
}

/* `returned`: an outlined function has computed them. */
static void add_element_terms(writer *w, const outlined_gradient *returned) {
  if (w->f->element_terms.count == 0) return;
  text_add(&w->out, "if constexpr (with_inputs) {\n");
  w->out.indent++;
  if (returned != NULL)
    add_returned(w, &w->f->element_terms, w->num_values);
  else
    add_terms(w, &w->f->element_terms);
  if (returned == NULL && w->f->num_lane_sums > 0) add_by_lane(w, &w->f->element_terms);
  w->out.indent--;
  text_add(&w->out, "}\n");
}

/* Prints the outlined body: `values`, and the gradients of `terms`; then what it returns, and the call. */
static outlined_gradient outline_gradient(writer *w, const char *name, int has, const ir_ref *values, int n,
                                          const derived_terms *terms, bool element) {
  int accs[LOWERED_MAX_ACC];
  ir_ref roots[LOWERED_MAX_TERM_ROOTS + LOWERED_MAX_GRADS];
  int num_roots = lowered_term_roots(w->f, terms, roots);
  for (int i = 0; i < n; i++) roots[num_roots++] = values[i];
  outlined_gradient made;
  const int lanes = element ? lane_results(w->f) : 0;
  made.type = writer_format(w, "Results<Real, %d>", n + accs_of(w, terms, accs) + lanes);
  outline_open(w, made.type, name, has, "", roots, num_roots,
               (lowered_adds_to_memory(w->f, terms) ? OUTLINE_WITH_P : 0) | (element ? OUTLINE_WITH_INPUTS : 0) |
                   (lanes > 0 ? OUTLINE_WITH_KEPT : 0));
  w->num_values = n;
  body_lines(w, values, n);
  text_add(&w->out, "%s made = {};\n", made.type);
  for (int i = 0; i < n; i++)
    if (values[i] != IR_NONE) text_add(&w->out, "made.x[%d] = %s;\n", i, body_value(w, values[i]));
  if (element)
    add_element_terms(w, NULL);
  else
    add_terms(w, terms);
  text_add(&w->out, "return made;\n");
  made.call = outline_close(w);
  return made;
}

/* `grad`, or in its place grad_dual. */
static void open_grad(writer *w) {
  text_add(&w->out, "template <bool with_inputs>\n");
  open_function(w, lowered_dual_gradient(w->f) ? "void grad_dual(" PHR BREAK
                                                 "const Col &col, const BwdRow &bwd, Real dot, Real score_tangent, "
                                                 "Real dp, Real dp_tangent" BREAK
                                                 "Position q, Position kv, Dual<Real> &prob, Dual<Real> &ds, Acc &acc)"
                                               : "void grad(" PHR BREAK
                                                 "const Col &col, const BwdRow &bwd, Real dot, Real dp" BREAK
                                                 "Position q, Position kv, Real term, Real &prob, Real &ds, Acc &acc)");
  body_begin(w, HAS_ELEMENT, "");
}

static void grad(writer *w) {
  static const char *const plain[] = {"prob", "ds"}, *const dual[] = {"prob.x", "ds.x", "prob.d", "ds.d"};
  const lowered *f = w->f;
  const char *const *to = lowered_dual_gradient(f) ? dual : plain;
  ir_ref roots[LOWERED_MAX_GRADS];
  const int n = lowered_grads(f, roots);
  const bool outlined = lowered_is_called(w->f, "grad");
  outlined_gradient made = {NULL, NULL};
  if (outlined) made = outline_gradient(w, "grad", HAS_ELEMENT, roots, n, &f->element_terms, true);
  open_grad(w);
  if (outlined) {
    text_add(&w->out, "const %s made = %s;\n", made.type, made.call);
    for (int i = 0; i < n; i++) text_add(&w->out, "%s = made.x[%d];\n", to[i], i);
    add_element_terms(w, &made);
  } else {
    body_lines(w, roots, n);
    for (int i = 0; i < n; i++) text_add(&w->out, "%s = %s;\n", to[i], body_value(w, roots[i]));
    add_element_terms(w, NULL);
  }
  close_function(w);
}

static void prepare(writer *w) {
  const lowered *f = w->f;
  open_function(w, lowered_dual_gradient(f) ? "BwdRow prepare_dual(" PHR BREAK
                                              "int q, Real lse, Real lse_tangent, const Real *saved, "
                                              "const Real *saved_tangent" BREAK
                                              "Real delta, Real delta_tangent, Real dlse, Real dlse_tangent, Acc &acc)"
                                            : "BwdRow prepare(" PHR BREAK
                                              "int q, Real lse, const Real *saved, Real delta, Real dlse, Acc &acc)");
  body_begin(w, HAS_HEAD | HAS_ROW | HAS_Q, "");
  if (f->spec->derived.num_passes > 0)
    text_add(&w->out, "const Real *const passes = saved + %d;\n", f->spec->derived.num_saved);
  if (f->num_pass_values > 0)
    text_add(&w->out, "const Real *const passes_tangent = saved_tangent + %d;\n", f->spec->derived.num_saved);
  add_terms(w, &f->row_terms);
  return_array(w, f->row, f->num_rows);
  close_function(w);
}

/* What an element adds to the row passes, beside gradients with tangents. */
static void passes_dual(writer *w) {
  static const char *const kind[] = {[PASS_SUM] = "PASS_SUM", [PASS_PLACE] = "PASS_PLACE", [PASS_LEAST] = "PASS_LEAST"};
  const lowered *f = w->f;
  const derived_spec *d = &f->spec->derived;
  const char *kinds[DERIVED_MAX_PASSES + DERIVED_MAX_SUMS];
  const int n = f->num_pass_values;
  for (int i = 0; i < n; i++) kinds[i] = i < d->num_passes ? "PASS_PRODUCT" : kind[d->sum[i - d->num_passes].kind];
  const constant gap = {"gap_parts", (int)(1 / MAXIMUM_GAP), false};
  print_table(w, "PassKind", "pass_kind", kinds, n, "PASS_SUM");
  print_constants(w, "int", &gap, 1);
  open_function(w, "void passes_dual(" PHR BREAK
                   "const Col &col, Real lse, Real lse_tangent, const Real *saved, const Real *saved_tangent" BREAK
                   "Real dot, Real score_tangent, Position q, Position kv, Dual<Real> *pass)");
  body_begin(w, HAS_ELEMENT, "");
  body_lines(w, f->pass_value, n), body_lines(w, f->pass_tangent, n);
  for (int i = 0; i < n; i++)
    text_add(&w->out, "pass[%d] = {%s, %s};\n", i, body_value(w, f->pass_value[i]), body_value(w, f->pass_tangent[i]));
  close_function(w);
}

static void constants(writer *w) {
  const lowered *f = w->f;
  const lowered_facts *t = &f->facts;
  const bool adds = f->element_terms.count > 0, sums = t->sums != 0;
  const constant flags[] = {{"has_grad", true, false},
                            {"has_dual_grad", true, !lowered_dual_gradient(f)},
                            {"grad_reads_row", t->grad_reads_row, false},
                            {"grad_is_light", t->grad_is_light, false},
                            {"grad_adds", true, !adds},
                            {"grad_adds_to_memory", t->grad_adds_to_memory, !adds},
                            {"may_be_same_bucket", true, !t->same_bucket},
                            {"pair_grads_in_rows", true, !f->pairs_in_row},
                            {"pair_grads_pitched", f->pairs_q_axis >= 0, !f->pairs_in_row}};
  const constant numbers[] = {
      {"num_bwd_rows", f->num_rows, false},
      {"prob_rows", t->prob_rows, false},
      {"num_passes", f->spec->derived.num_passes, f->spec->derived.num_passes == 0},
      {"num_sums", f->spec->derived.num_sums, f->spec->derived.num_passes == 0},
      {"num_acc", f->num_acc, f->num_acc == 0},
      {"parameter_sums", t->sums, !sums},
      {"distance_step", f->distance_step, f->distance_step == 0},
      {"pair_grads_input", f->pairs_in_row ? f->sum[SUM_ELEMENT].term[0].input : -1, !f->pairs_in_row}};
  print_constants(w, "bool", flags, COUNT(flags));
  print_constants(w, "int", numbers, COUNT(numbers));
}

const char *emit_grad(writer *w) {
  const lowered *f = w->f;
  if (writer_forward(w)) return "NoGrad";
  const bool sums = f->facts.sums != 0;
  const absence lacks[] = {{f->num_acc == 0, "NoAccumulators"},
                           {f->element_terms.count == 0, "NoElementGrads"},
                           {!sums, "NoParameterSums"},
                           {sums && !f->facts.same_bucket, "NoSameBucket"},
                           {sums && f->distance_step == 0, "NoDistanceGradRow"},
                           {sums && !f->pairs_in_row, "NoPairGradRow"}};
  text_add(&w->out, "\n");
  open_struct(w, "Grad", "Hoisted", lacks, COUNT(lacks));
  text_add(&w->out, "struct BwdRow { Real x[%d]; };\n", f->num_rows > 0 ? f->num_rows : 1);
  text_add(&w->out, "struct Acc { Real x[%d]; ", f->num_acc > 0 ? f->num_acc : 1);
  if (f->num_lane_sums > 0) text_add(&w->out, "LaneSums<Real, %d> lanes; ", f->num_lane_sums);
  text_add(&w->out, "};\n");
  constants(w);
  prepare(w);
  if (f->num_pass_values > 0) passes_dual(w);
  grad(w);
  sums_of_ds(w);
  if (f->facts.same_bucket) same_bucket(w);
  if (f->distance_step != 0) gradient_row(w, "distance_grad_row", SUM_DISTANCE, -1);
  if (f->pairs_in_row) gradient_row(w, "pair_grad_row", SUM_ELEMENT, f->pairs_q_axis);
  if (f->num_acc > 0) flush(w);
  if (f->num_lane_sums > 0) flush_lanes(w);
  close_struct(w);
  return "Grad";
}

/* ---- input mods
 * ------------------------------------------------------------------------------------------------------- */

/* The axis of a mod's position and heads. */
static const char *places_of(const char *mod) { return strncmp(mod, "query", 5) == 0 ? "q" : "kv"; }

/* The parameter of a mod that reads x[..]: `row`, laid out by struct `type`. */
static const char *row_parameter(writer *w, const row_tables *rows, const char *type) {
  return rows == NULL ? "" : writer_format(w, "const RowValues<Real, %s::count> &row, ", type);
}

static void mod_value(writer *w, const char *name, const char *row, ir_ref value) {
  const char *call = NULL;
  if (lowered_is_called(w->f, name)) {
    outline_open(w, "Real", name, 0, "", &value, 1, 0);
    body_return(w, value);
    call = outline_close(w);
  }
  open_function(w, writer_format(w, "Real %s(" P ", Real x, %sint i, int d)", name, row));
  body_begin(w, 0, "");
  if (call != NULL)
    text_add(&w->out, "return %s;\n", call);
  else
    body_return(w, value);
  close_function(w);
}

static void mod_grad(writer *w, const char *name, const char *row, const derived_mod *d) {
  const bool outlined = lowered_is_called(w->f, name);
  outlined_gradient made = {NULL, NULL};
  if (outlined) made = outline_gradient(w, name, 0, &d->dx, 1, &d->terms, false);
  open_function(w, writer_format(w, "Real %s(" P ", Real x, Real g, %sint i, int d, Grad::Acc &acc)", name, row));
  body_begin(w, 0, "");
  if (outlined) {
    text_add(&w->out, "const %s made = %s;\n", made.type, made.call);
    add_returned(w, &d->terms, 1);
    text_add(&w->out, "return made.x[0];\n");
  } else {
    add_terms(w, &d->terms);
    if (d->dx == IR_NONE)
      text_add(&w->out, "return Real(0);\n");
    else
      body_return(w, d->dx);
  }
  close_function(w);
}

/* An input mod, and the names that its struct gives it. */
typedef struct emitted_mod {
  const char *name, *grad_name, *constant, *absence, *row;
  ir_ref value;
  const derived_mod *grad;
} emitted_mod;
enum { MODS = 3 };

/* Prints struct `name`; returns false, and prints nothing, if there is no mod. */
static bool mods_struct(writer *w, const char *name, const emitted_mod mod[MODS]) {
  const traced_spec *t = writer_traced(w);
  absence lacks[MODS];
  constant flags[MODS];
  bool any = false;
  for (int i = 0; i < MODS; i++) {
    const bool absent = mod[i].value == IR_NONE;
    any |= !absent;
    lacks[i] = (absence){absent, mod[i].absence};
    flags[i] = (constant){mod[i].constant, true, absent};
  }
  if (!any) return false;
  text_add(&w->out, "\n");
  open_struct(w, name, "Hoisted", lacks, COUNT(lacks));
  print_constants(w, "bool", flags, COUNT(flags));
  for (int i = 0; i < MODS; i++) {
    if (mod[i].value == IR_NONE) continue;
    w->places = places_of(mod[i].name);
    const row_tables *rows = t->rows[i];
    const char *row = row_parameter(w, rows, mod[i].row);
    if (rows != NULL) emit_row_map(w, mod[i].row, rows, w->f->row_width[i]);
    mod_value(w, mod[i].name, row, mod[i].value);
    if (!writer_forward(w)) mod_grad(w, mod[i].grad_name, row, mod[i].grad);
  }
  w->places = "q";
  close_struct(w);
  return true;
}

const char *emit_mods(writer *w) {
  const traced_spec *t = writer_traced(w);
  const derived_mod *const *d = w->f->mod_grad;
  const emitted_mod mod[MODS] = {
      {"query_mod", "query_mod_grad", "has_query_mod", "NoQueryMod", "QueryRow", t->query_mod, d[0]},
      {"key_mod", "key_mod_grad", "has_key_mod", "NoKeyMod", "KeyRow", t->key_mod, d[1]},
      {"value_mod", "value_mod_grad", "has_value_mod", "NoValueMod", "ValueRow", t->value_mod, d[2]}};
  return mods_struct(w, "Mods", mod) ? "Mods" : "NoMods";
}

void emit_append_mods(writer *w) {
  const traced_spec *t = writer_traced(w);
  const emitted_mod mod[MODS] = {
      {.name = "query_mod", .absence = "NoQueryMod"},
      {"key_mod", NULL, "has_key_mod", "NoKeyMod", "KeyRow", t->append_mod[0], NULL},
      {"value_mod", NULL, "has_value_mod", "NoValueMod", "ValueRow", t->append_mod[1], NULL}};
  (void)mods_struct(w, "AppendMods", mod);
}
