/* gradient.c: prepare, grad, flush and the input mods: everything that adds up parameter gradients. */
#include "common/real.h"
#include "gen/emit/parts.h"

#define P "const LuattnParams &p, const Site &s"
#define PHR P ", const Head &head, const Row &row"

/* A function out of line that computes gradients: its type, and how it is called. */
typedef struct outlined_gradient {
  const char *type, *call;
} outlined_gradient;

/* Terms that share an element of Acc: one place, and the same part left to flush. */
static bool same_place(const derived_term *a, const derived_term *b) {
  if (a->input != b->input || a->num_index != b->num_index || (a->input < 0 && a->scalar != b->scalar))
    return false;
  if (a->of_sum != b->of_sum) return false;
  for (int i = 0; i < a->num_index; i++)
    if (a->index[i] != b->index[i]) return false;
  return true;
}

static int acc_of(const writer *w, const derived_term *t) {
  for (int i = 0; i < w->num_acc; i++)
    if (same_place(&w->acc[i], t)) return i;
  return -1;
}

static luattn_status collect_terms(writer *w, const derived_terms *terms, luattn_error *err) {
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    if (!form_wants(w->f, t) || !form_has_one_place(w->f, t) || acc_of(w, t) >= 0) continue;
    if (w->num_acc == WRITER_MAX_ACC)
      return luattn_fail(err, LUATTN_UNSUPPORTED,
                         "emit: %s: more than %d parameter gradients; ask for fewer (wants), or mark "
                         "fewer inputs grad",
                         w->f->spec->traced.name, WRITER_MAX_ACC);
    w->acc[w->num_acc++] = *t;
  }
  return LUATTN_OK;
}

luattn_status collect_acc(writer *w, luattn_error *err) {
  const derived_spec *d = &w->f->spec->derived;
  TRY(collect_terms(w, &w->f->element_terms, err));
  for (int kind = 0; kind < SUM_KINDS; kind++) TRY(collect_terms(w, &w->f->sum[kind], err));
  TRY(collect_terms(w, &w->f->row_terms, err));
  TRY(collect_terms(w, &d->query_mod.terms, err));
  TRY(collect_terms(w, &d->key_mod.terms, err));
  return collect_terms(w, &d->value_mod.terms, err);
}

/* Does a term go to memory at once, by way of p? */
static bool adds_to_memory(const writer *w, const derived_terms *terms) {
  for (int i = 0; i < terms->count; i++)
    if (form_wants(w->f, &terms->term[i]) && acc_of(w, &terms->term[i]) < 0) return true;
  return false;
}

bool emit_grad_adds_to_memory(const writer *w) { return adds_to_memory(w, &w->f->element_terms); }

static int term_roots(const writer *w, const derived_terms *terms, ir_ref *roots) {
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    if (!form_wants(w->f, t)) continue;
    roots[n++] = t->value;
    if (acc_of(w, t) < 0)
      for (int j = 0; j < t->num_index; j++) roots[n++] = t->index[j];
  }
  return n;
}

#define MAX_TERM_ROOTS (5 * DERIVED_MAX_TERMS)

/* Elements of Acc that `terms` add to, each once. */
static int accs_of(const writer *w, const derived_terms *terms, int *accs) {
  bool seen[WRITER_MAX_ACC] = {false};
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    const int acc = form_wants(w->f, &terms->term[i]) ? acc_of(w, &terms->term[i]) : -1;
    if (acc < 0 || seen[acc]) continue;
    seen[acc] = true;
    accs[n++] = acc;
  }
  return n;
}

/* Where what belongs to element `acc` is added: out of line, to what the function returns. */
static const char *acc_place(writer *w, const derived_terms *terms, int acc) {
  int accs[WRITER_MAX_ACC], at = 0;
  if (!w->outlined) return writer_format(w, "acc.x[%d]", acc);
  for (accs_of(w, terms, accs); accs[at] != acc;) at++;
  return writer_format(w, "made.x[%d]", w->num_values + at);
}

/* Positions and what is fixed for a head, added up: another distance gives another number. */
static bool is_sum_of_positions(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  if ((deps_of(&w->f->deps, r) & ~DEP_SITE) == 0 || n->op == IR_VAR) return true;
  if (n->op != IR_ADD && n->op != IR_SUB && n->op != IR_NEG) return false;
  for (int i = 0; i < n->nargs; i++)
    if (!is_sum_of_positions(w, n->arg[i])) return false;
  return true;
}

/* For each score a deterministic kernel calls a function that sums exactly, unless the runtime finds that the
 * order does not matter (pairs.h). Where there are registers for it, lanes that have one place add up
 * together. */
static const char *ordered_adder_of(const writer *w, const derived_term *t) {
  return w->f->pairs[t->input] != 0          ? "add_input_grad_alone"
         : w->f->plan->family == LUATTN_SM90 ? "add_input_grad_called"
                                             : "add_input_grad_together";
}

/* What adds to an input's gradient in memory, in the hook for sums of `kind` (-1: another hook). A warp calls
 * the one for distances at once, where often all have one place, so that one lane adds for all. An addition
 * to memory takes a multiprocessor a cycle for each lane. */
static const char *adder_of(writer *w, int kind, const derived_term *t) {
  const bool by_score = kind < 0 || kind == SUM_HERE;
  const char *adder = by_score && w->f->plan->deterministic ? ordered_adder_of(w, t) : "add_input_grad";
  bool apart = true;
  if (kind == SUM_DISTANCE)
    for (int i = 0; i < t->num_index; i++) apart &= is_sum_of_positions(w, t->index[i]);
  if (!apart) return "add_input_grad_by_warp";
  return kind == SUM_HERE || kind == SUM_DISTANCE ? writer_format(w, "if (g != Real(0)) %s", adder) : adder;
}

static void add_terms_of(writer *w, int kind, const derived_terms *terms) {
  ir_ref roots[MAX_TERM_ROOTS];
  body_lines(w, roots, term_roots(w, terms, roots));
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    if (!form_wants(w->f, t)) continue;
    const int acc = acc_of(w, t);
    if (acc >= 0) {
      text_add(&w->out, "%s += %s", acc_place(w, terms, acc), body_value(w, t->value));
      char digits[REAL_SIZE];
      if (kind == SUM_LINEAR && w->f->factor_of_q[i] != 0)
        text_add(&w->out, " + Real(%s) * g_by_q", real_write(w->f->factor_of_q[i], 17, digits));
      text_add(&w->out, ";\n");
      continue;
    }
    text_add(&w->out, "%s<Real>(p.input[%d], %s", adder_of(w, kind, t), t->input, body_value(w, t->value));
    for (int j = 0; j < t->num_index; j++) text_add(&w->out, ", %s", body_value(w, t->index[j]));
    text_add(&w->out, ");\n");
  }
}

static void add_terms(writer *w, const derived_terms *terms) { add_terms_of(w, -1, terms); }

/* The hooks for sums of dS: what they have, and what they are given. */
static const struct {
  const char *name, *given;
  int has;
} sum_hook[SUM_KINDS] = {
    [SUM_DISTANCE] = {"add_distance", "int q, int kv, Real g", HAS_HEAD | HAS_Q | HAS_KV},
    [SUM_ROW] = {"add_row", "int q, Real g", HAS_HEAD | HAS_Q},
    [SUM_COL] = {"add_col", "int kv, Real g", HAS_HEAD | HAS_KV},
    [SUM_HERE] = {"add_here", "Position q, Position kv, Real g", HAS_HEAD | HAS_Q | HAS_KV},
    [SUM_LINEAR] = {"add_linear", "int q, int kv, Real g, Real g_by_q", HAS_HEAD | HAS_Q | HAS_KV}};

static void sums(writer *w) {
  for (int kind = 0; kind < SUM_KINDS; kind++) {
    open_function(w, writer_format(w, "void %s(" P ", const Head &head, %s, Acc &acc)", sum_hook[kind].name,
                                   sum_hook[kind].given));
    body_begin(w, sum_hook[kind].has, "");
    add_terms_of(w, kind, &w->f->sum[kind]);
    close_function(w);
  }
}

/* Where the places lie that the one term of `kind` adds to; axis: which q alone is the index of, or -1. */
static void line(writer *w, const char *name, int kind, bool there, int axis) {
  const derived_term *t = &w->f->sum[kind].term[0];
  open_function(w, writer_format(w, "GradLine<Real> %s(" P ", const Head &head, int q, int kv)", name));
  if (there) {
    body_begin(w, sum_hook[kind].has, "");
    body_lines(w, &t->factor, 1);
    body_lines(w, t->index, t->num_index);
    text_add(&w->out, "return grad_line<Real, %d>(p.input[%d], %s", axis, t->input, body_value(w, t->factor));
    for (int i = 0; i < t->num_index; i++) text_add(&w->out, ", %s", body_value(w, t->index[i]));
    text_add(&w->out, ");\n");
  } else {
    text_add(&w->out, "return {};\n");
  }
  close_function(w);
}

void plan_gradient_slots(writer *w) {
  emit_form *f = w->f;
  ir_ref roots[MAX_TERM_ROOTS];
  const int in_prepare = HAS_HEAD | HAS_ROW | HAS_Q;
  writer_plan(w, HAS_ELEMENT, &f->grad_prob, 1);
  writer_plan(w, HAS_ELEMENT, &f->grad_ds, 1);
  writer_plan(w, HAS_ELEMENT, roots, term_roots(w, &f->element_terms, roots));
  for (int kind = 0; kind < SUM_KINDS; kind++)
    writer_plan(w, sum_hook[kind].has, roots, term_roots(w, &f->sum[kind], roots));
  if (f->distance_step != 0) writer_plan(w, HAS_HEAD, &f->sum[SUM_DISTANCE].term[0].factor, 1);
  if (f->pairs_in_line) writer_plan(w, HAS_HEAD, &f->sum[SUM_HERE].term[0].factor, 1);
  for (uint32_t r = 1; r < w->count; r++) w->grad_reads_row |= w->slot_kind[r] == 1 + SLOTS_ROW;
  writer_plan(w, in_prepare, f->row, f->num_rows);
  writer_plan(w, in_prepare, roots, term_roots(w, &f->row_terms, roots));
}

static void add_hook(writer *w, const char *name, int has, int copies, const ir_ref *values, int n,
                     const derived_terms *terms) {
  ir_ref roots[MAX_TERM_ROOTS + 2];
  int num_roots = term_roots(w, terms, roots);
  for (int i = 0; i < n; i++) roots[num_roots++] = values[i];
  outline_add(w, name, has, copies, roots, num_roots);
}

void add_gradient_hooks(writer *w, const plan_copies *copies) {
  const derived_spec *d = &w->f->spec->derived;
  const ir_ref grads[2] = {w->f->grad_prob, w->f->grad_ds};
  add_hook(w, "grad", HAS_ELEMENT, copies->element, grads, 2, &w->f->element_terms);
  add_hook(w, "query_mod_grad", 0, copies->mod, &d->query_mod.dx, 1, &d->query_mod.terms);
  add_hook(w, "key_mod_grad", 0, copies->mod, &d->key_mod.dx, 1, &d->key_mod.terms);
  add_hook(w, "value_mod_grad", 0, copies->mod, &d->value_mod.dx, 1, &d->value_mod.terms);
}

static void flush_acc(writer *w, int number) {
  const derived_term *t = &w->acc[number];
  const ir_ref sum = t->of_sum != IR_NONE ? t->of_sum : w->f->whole_sum;
  text_add(&w->out, "if (const Real g = acc.x[%d]; g != Real(0)) {\n", number);
  w->out.indent++;
  body_begin(w, HAS_HEAD, "");
  body_lines(w, &sum, 1);
  body_lines(w, t->index, t->num_index);
  if (t->input < 0) {
    text_add(&w->out, "add_scalar_grad(p, %d, %s);  // %s\n", t->scalar, body_value(w, sum),
             w->f->spec->traced.scalar_name[t->scalar]);
  } else {
    text_add(&w->out, "add_input_grad(p.input[%d], %s", t->input, body_value(w, sum));
    for (int j = 0; j < t->num_index; j++) text_add(&w->out, ", %s", body_value(w, t->index[j]));
    text_add(&w->out, ");  // %s\n", w->f->spec->traced.input[t->input].name);
  }
  w->out.indent--;
  text_add(&w->out, "}\n");
}

static void flush(writer *w) {
  open_function(w, "void flush(" P ", const Head &head, const Acc &acc)");
  for (int i = 0; i < w->num_acc; i++) flush_acc(w, i);
  close_function(w);
}

/* A function out of line has returned its values, and after them the sums that are for Acc. */
static void add_returned(writer *w, const derived_terms *terms, int num_values) {
  int accs[WRITER_MAX_ACC];
  const int n = accs_of(w, terms, accs);
  for (int i = 0; i < n; i++) text_add(&w->out, "acc.x[%d] += made.x[%d];\n", accs[i], num_values + i);
}

/* `returned`: an outlined function has computed them. */
static void add_element_terms(writer *w, const outlined_gradient *returned) {
  if (w->f->element_terms.count == 0) return;
  text_add(&w->out, "if constexpr (with_inputs) {\n");
  w->out.indent++;
  if (returned != NULL)
    add_returned(w, &w->f->element_terms, 2);
  else
    add_terms(w, &w->f->element_terms);
  w->out.indent--;
  text_add(&w->out, "}\n");
}

/* Writes the body out of line: `values`, and the gradients of `terms`; what is returned, and the call. */
static outlined_gradient outline_gradient(writer *w, const char *name, int has, const ir_ref *values, int n,
                                          const derived_terms *terms, bool element) {
  int accs[WRITER_MAX_ACC];
  ir_ref roots[MAX_TERM_ROOTS + 2];
  int num_roots = term_roots(w, terms, roots);
  for (int i = 0; i < n; i++) roots[num_roots++] = values[i];
  outlined_gradient made;
  made.type = writer_format(w, "Results<Real, %d>", n + accs_of(w, terms, accs));
  outline_open(w, made.type, name, has, "", roots, num_roots,
               (adds_to_memory(w, terms) ? OUTLINE_WITH_P : 0) | (element ? OUTLINE_WITH_INPUTS : 0));
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

static void grad(writer *w) {
  const emit_form *f = w->f;
  const ir_ref roots[2] = {f->grad_prob, f->grad_ds};
  const bool outlined = outline_is(w, "grad");
  outlined_gradient made = {NULL, NULL};
  if (outlined) made = outline_gradient(w, "grad", HAS_ELEMENT, roots, 2, &f->element_terms, true);
  text_add(&w->out, "template <bool with_inputs>\n");
  open_function(w, "void grad(" PHR
                   ",\n    const Col &col, const BwdRow &bwd, Real dot, Real dp,\n    "
                   "Position q, Position kv, Real term, Real &prob, Real &ds, Acc &acc)");
  body_begin(w, HAS_ELEMENT, "");
  if (outlined) {
    text_add(&w->out, "const %s made = %s;\nprob = made.x[0];\nds = made.x[1];\n", made.type, made.call);
    add_element_terms(w, &made);
  } else {
    body_lines(w, roots, 2);
    text_add(&w->out, "prob = %s;\n", body_value(w, roots[0]));
    text_add(&w->out, "ds = %s;\n", body_value(w, roots[1]));
    add_element_terms(w, NULL);
  }
  close_function(w);
}

void emit_gradients(writer *w) {
  const emit_form *f = w->f;
  open_function(
      w, "BwdRow prepare(" PHR ",\n    int q, Real lse, const Real *saved, Real delta, Real dlse, Acc &acc)");
  body_begin(w, HAS_HEAD | HAS_ROW | HAS_Q, "");
  add_terms(w, &f->row_terms);
  body_lines(w, f->row, f->num_rows);
  text_add(&w->out, f->num_rows > 0 ? "BwdRow made;\n" : "return {};\n");
  for (int i = 0; i < f->num_rows; i++) text_add(&w->out, "made.x[%d] = %s;\n", i, body_value(w, f->row[i]));
  if (f->num_rows > 0) text_add(&w->out, "return made;\n");
  close_function(w);

  grad(w);
  sums(w);
  line(w, "distance_line", SUM_DISTANCE, f->distance_step != 0, -1);
  line(w, "pair_line", SUM_HERE, f->pairs_in_line, f->pairs_axis);
  flush(w);
}

/* ---- input mods
 * ------------------------------------------------------------------------------------------------------- */

static void mod_value(writer *w, const char *name, ir_ref value) {
  const char *call = NULL;
  if (outline_is(w, name)) {
    outline_open(w, "Real", name, 0, "", &value, 1, 0);
    body_return(w, value);
    call = outline_close(w);
  }
  open_function(w, writer_format(w, "Real %s(" P ", Real x, int i, int d)", name));
  body_begin(w, 0, "");
  if (value == IR_NONE)
    text_add(&w->out, "return x;\n");
  else if (call != NULL)
    text_add(&w->out, "return %s;\n", call);
  else
    body_return(w, value);
  close_function(w);
}

static void mod_grad(writer *w, const char *name, ir_ref value, const derived_mod *d) {
  const bool outlined = outline_is(w, name);
  outlined_gradient made = {NULL, NULL};
  if (outlined) made = outline_gradient(w, name, 0, &d->dx, 1, &d->terms, false);
  open_function(w, writer_format(w, "Real %s(" P ", Real x, Real g, int i, int d, Acc &acc)", name));
  body_begin(w, 0, "");
  if (value == IR_NONE) {
    text_add(&w->out, "return g;\n");
  } else if (outlined) {
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

void emit_mods(writer *w) {
  const traced_spec *t = &w->f->spec->traced;
  const derived_spec *d = &w->f->spec->derived;
  mod_value(w, "query_mod", t->query_mod);
  mod_grad(w, "query_mod_grad", t->query_mod, &d->query_mod);
  mod_value(w, "key_mod", t->key_mod);
  mod_grad(w, "key_mod_grad", t->key_mod, &d->key_mod);
  mod_value(w, "value_mod", t->value_mod);
  mod_grad(w, "value_mod_grad", t->value_mod, &d->value_mod);
}
