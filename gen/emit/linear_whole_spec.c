#include "gen/emit/linear_whole_spec.h"

#include "gen/emit/linear_writer.h"

static const char *const names[LINEAR_HOOKS] = {
    [LINEAR_QUERY] = "Query", [LINEAR_KEY] = "Key",   [LINEAR_VALUE] = "Value", [LINEAR_DECAY] = "Decay",
    [LINEAR_WRITE] = "Write", [LINEAR_READ] = "Read", [LINEAR_ERASE] = "Erase", [LINEAR_SKIP] = "Skip"};

static void print_terms(writer *w, const channel_sums *sums) {
  linear_open_function(w, "void terms(" LINEAR_SITE "Real x, int t, int d, Real *sum)");
  body_lines(w, sums->of, sums->count);
  for (int i = 0; i < sums->count; i++) text_add(&w->out, "sum[%d] += %s;\n", i, body_value(w, sums->of[i]));
  linear_close_function(w);
}

/* ---- backward ---- */

#define OF_ELEMENT LINEAR_SITE "Real x, int t, int d, const Real *red, "
#define OF_SUMS OF_ELEMENT "const Real *row, Real g"

static void print_weights(writer *w, const linear_hook *of) {
  ir_ref root[CHANNEL_SUMS_MAX];
  int n = 0;
  linear_open_function(w, "void weights(" OF_ELEMENT "Real g, Real *sum)");
  for (int i = 0; i < of->sums.count; i++)
    if (of->grad.weight[i] != IR_NONE) root[n++] = of->grad.weight[i];
  body_lines(w, root, n);
  for (int i = 0; i < of->sums.count; i++)
    if (of->grad.weight[i] != IR_NONE) text_add(&w->out, "sum[%d] += %s;\n", i, body_value(w, of->grad.weight[i]));
  linear_close_function(w);
}

/* Adds terms to gradients of inputs and scalars. */
static void print_terms_of(writer *w, const char *name, const derived_terms *terms) {
  ir_ref root[5 * DERIVED_MAX_TERMS];
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    root[n++] = terms->term[i].value;
    for (int j = 0; j < terms->term[i].num_index; j++) root[n++] = terms->term[i].index[j];
  }
  linear_open_function(w, writer_format(w, "void %s(" OF_SUMS ")", name));
  body_lines(w, root, n);
  for (int i = 0; i < terms->count; i++)
    linear_add_to_memory(w, &terms->term[i], body_value(w, terms->term[i].value), false);
  linear_close_function(w);
}

static void print_back(writer *w, const linear_hook *of) {
  if (of->sums.count > 0) print_weights(w, of);
  linear_open_function(w, "Real dx(" OF_SUMS ")");
  body_return(w, of->grad.dx != IR_NONE ? of->grad.dx : ir_real(w->f->g, 0));
  linear_close_function(w);
  print_terms_of(w, "add_value", &of->grad.by_value);
  print_terms_of(w, "add_sums", &of->grad.by_sums);
}

static void print_hook(writer *w, const linear_hooks *f, linear_hook_id id) {
  const linear_hook *hooked = &f->hook[id];
  if (!hooked->given) return;
  w->names = linear_hook_rows[id].of_queries ? linear_of_queries : linear_of_values;
  text_add(&w->out, "\nstruct Spec%s {\n", names[id]);
  w->out.indent++;
  text_add(&w->out, "static constexpr bool given = true, by_channel = %s;\nstatic constexpr int sums = %d;\n",
           hooked->by_channel ? "true" : "false", hooked->sums.count);
  if (hooked->sums.count > 0) print_terms(w, &hooked->sums);
  linear_open_function(w, "Real value(" LINEAR_SITE "Real x, int t, int d, const Real *red)");
  body_return(w, hooked->sums.value);
  linear_close_function(w);
  if (f->backward) print_back(w, hooked);
  w->out.indent--;
  text_add(&w->out, "};\n");
}

static void print(writer *w, const void *of) {
  const linear_hooks *const f = of;
  const linear_class *c = &f->spec->linear->class;
  linear_print_head(w, "linear_hooks.cuh", "Config::Number", f->backward);
  for (int i = 0; i < LINEAR_HOOKS; i++) print_hook(w, f, (linear_hook_id)i);
  text_add(&w->out, "\nstruct Spec {\n");
  w->out.indent++;
  for (int i = 0; i < LINEAR_HOOKS; i++)
    text_add(&w->out, "using %s = %s%s;\n", names[i], f->hook[i].given ? "Spec" : "NoHook",
             f->hook[i].given ? names[i] : "");
  text_add(&w->out, "static constexpr bool before = %s, normalizes = %s;\n", c->before ? "true" : "false",
           c->normalizes ? "true" : "false");
  w->out.indent--;
  text_add(&w->out, "};\n");
}

luattn_status emit_linear_hooks(const linear_hooks *l, const char **out, luattn_error *err) {
  const linear_text whole = {
      .a = l->a, .g = l->g, .spec = l->spec, .packed = l->packed, .is_double = l->is_double, .print = print, .of = l};
  return linear_print_text(&whole, out, err);
}
