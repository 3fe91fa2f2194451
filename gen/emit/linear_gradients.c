/* linear_gradients.c: prints hooks of rows and gradients of inputs and scalars (RowHook of templates/contract/linear.cuh). */
#include "gen/emit/linear_writer.h"

/* Opens a function of the contract with these parameters behind the site. */
static void open(writer *w, const char *type, const char *name, const char *parameters) {
  linear_open_function(w, writer_format(w, "%s %s(" LINEAR_SITE "%s)", type, name, parameters));
}

/* Adds each root to an array. */
static void add_to(writer *w, const char *array, const ir_ref *root, int n) {
  ir_ref given[CHANNEL_SUMS_MAX] = {IR_NONE};
  int count = 0;
  for (int i = 0; i < n; i++)
    if (root[i] != IR_NONE) given[count++] = root[i];
  body_lines(w, given, count);
  for (int i = 0; i < n; i++)
    if (root[i] != IR_NONE) text_add(&w->out, "%s[%d] += %s;\n", array, i, body_value(w, root[i]));
}

static int roots_of(const linear_terms *terms, ir_ref *root, bool values, bool indices, linear_term_kind indices_of) {
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    if (values) root[n++] = terms->term[i].value;
    for (int k = 0; indices && terms->kind[i] == indices_of && k < terms->term[i].num_index; k++)
      root[n++] = terms->term[i].index[k];
  }
  return n;
}

/* add: what is summed later goes to of_run and of_row. */
static void add(writer *w, const linear_terms *terms, unsigned sole, ir_ref *root) {
  int at[3] = {0};
  body_lines(w, root, roots_of(terms, root, true, true, LINEAR_TERM_ELEMENT));
  for (int i = 0; i < terms->count; i++) {
    const linear_term_kind kind = (linear_term_kind)terms->kind[i];
    const char *const value = body_value(w, terms->term[i].value);
    if (kind == LINEAR_TERM_ELEMENT)
      linear_add_to_memory(w, &terms->term[i], value,
                           terms->term[i].input >= 0 && (sole >> terms->term[i].input & 1) != 0);
    else
      text_add(&w->out, "%s[%d] += %s;\n", kind == LINEAR_TERM_RUN ? "of_run" : "of_row", at[kind]++, value);
  }
}

/* add_rows and add_runs. */
static void add_sums(writer *w, const char *name, const char *parameters, const char *array, const linear_terms *terms,
                     linear_term_kind kind, ir_ref *root) {
  int at = 0;
  open(w, "void", name, parameters);
  body_lines(w, root, roots_of(terms, root, false, true, kind));
  for (int i = 0; i < terms->count; i++)
    if (terms->kind[i] == kind)
      linear_add_to_memory(w, &terms->term[i], writer_format(w, "%s[%d]", array, at++), false);
  linear_close_function(w);
}

/* sole: bits of inputs (manifest_linear). */
static void print_terms(writer *w, const linear_terms *terms, unsigned sole) {
  ir_ref *const root = arena_array(w->f->a, (size_t)terms->count * 5 + 1, sizeof *root);
  if (root == NULL) return;
  open(w, "void", "add",
       "float x, float g, int t, int d, const float *red, const float *row, float *of_run, float *of_row");
  add(w, terms, sole, root);
  linear_close_function(w);
  add_sums(w, "add_rows", "int t, const float *of_row", "of_row", terms, LINEAR_TERM_ROW, root);
  add_sums(w, "add_runs", "const float *of_run", "of_run", terms, LINEAR_TERM_RUN, root);
}

static void open_hook(writer *w, const char *name, bool made, bool of_v, int sums, const linear_terms *terms) {
  text_add(&w->out, "struct %s {\n", name);
  w->out.indent++;
  text_add(&w->out, "static constexpr bool made = %s, of_v = %s, has_terms = %s;\n", made ? "true" : "false",
           of_v ? "true" : "false", terms->count > 0 ? "true" : "false");
  text_add(&w->out, "static constexpr int sums = %d, runs = %d, rows = %d;\n", sums, terms->kinds[LINEAR_TERM_RUN],
           terms->kinds[LINEAR_TERM_ROW]);
}

static void close_hook(writer *w) {
  w->out.indent--;
  text_add(&w->out, "};\n");
}

void linear_print_row(writer *w, const char *name, const linear_row_hook *row, bool backward) {
  open_hook(w, name, row->made, row->of_v, row->num_sums, &row->terms);
  if (row->num_sums > 0) {
    open(w, "void", "sum", "float x, int t, int d, float *red");
    add_to(w, "red", row->sum, row->num_sums);
    linear_close_function(w);
  }
  open(w, "float", "value", "float x, int t, int d, const float *red");
  body_return(w, row->value);
  linear_close_function(w);
  if (backward) {
    if (row->num_sums > 0) {
      open(w, "void", "weigh", "float x, float g, int t, int d, const float *red, float *row");
      add_to(w, "row", row->weight, row->num_sums);
      linear_close_function(w);
    }
    open(w, "float", "dx", "float x, float g, int t, int d, const float *red, const float *row");
    body_return(w, row->dx != IR_NONE ? row->dx : ir_real(w->f->g, 0));
    linear_close_function(w);
    if (row->terms.count > 0) print_terms(w, &row->terms, 0);
  }
  close_hook(w);
}

/* Whether a decay of channels is an element of an input, whose channels lie side by side: the gradient itself is that of these. */
static bool is_element(writer *w, const linear_terms *terms, unsigned sole) {
  const derived_term *t = &terms->term[0];
  if (terms->count != 1 || t->input < 0 || (sole >> t->input & 1) == 0 || t->num_index < 1) return false;
  const luattn_input_info *in = &w->f->spec->traced.input[t->input];
  return ir_is_var(w->f->g, t->value, VAR_GRAD) && in->axis[t->num_index - 1] == LUATTN_AXIS_D &&
         ir_is_var(w->f->g, t->index[t->num_index - 1], VAR_D);
}

static void print_place(writer *w, const derived_term *t) {
  open(w, "float *", "place", "int t");
  text_add(&w->out, "const int d = 0;\n");
  body_lines(w, t->index, t->num_index);
  text_add(&w->out, "return input_grad_place<Real>(p.inputs.input[%d]", t->input);
  body_index(w, (unsigned)t->input, t->index, t->num_index);
  text_add(&w->out, ");\n");
  linear_close_function(w);
}

void linear_print_number(writer *w, const char *name, const linear_terms *terms, unsigned sole) {
  open_hook(w, name, false, true, 0, terms);
  if (is_element(w, terms, sole)) print_place(w, &terms->term[0]);
  print_terms(w, terms, sole);
  close_hook(w);
}
