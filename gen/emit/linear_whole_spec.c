#include "gen/emit/linear_whole_spec.h"

#include "gen/emit/sections.h"

#define LINEAR_SITE "const LuattnLinearParams &p, const LinearSite &s, "

static const char *const names[LINEAR_HOOKS] = {
    [LINEAR_QUERY] = "Query", [LINEAR_KEY] = "Key",   [LINEAR_VALUE] = "Value", [LINEAR_DECAY] = "Decay",
    [LINEAR_WRITE] = "Write", [LINEAR_READ] = "Read", [LINEAR_ERASE] = "Erase", [LINEAR_SKIP] = "Skip"};

/* Names of variables in hooks of value heads, and of heads of q. */
#define VARIABLES(head)                                                       \
  {[VAR_B] = "s.b", [VAR_H] = head,   [VAR_POS] = "t",         [VAR_D] = "d", \
   [VAR_X] = "x",   [VAR_GRAD] = "g", [VAR_HEADS] = "p.heads", [VAR_HEADS_KV] = "p.heads_v"}
static const char *const of_values[VAR_COUNT] = VARIABLES("s.hv");
static const char *const of_queries[VAR_COUNT] = VARIABLES("s.h");

static void begin(writer *w, const char *signature) {
  open_function(w, signature);
  body_begin(w, 0, NULL);
  w->outlined = true; /* it reads its parameters alone: there are no slots */
}

static void end(writer *w) {
  w->out.indent--;
  text_add(&w->out, "}\n");
}

static void print_terms(writer *w, const channel_sums *sums) {
  begin(w, "void terms(" LINEAR_SITE "Real x, int t, int d, Real *sum)");
  body_lines(w, sums->of, sums->count);
  for (int i = 0; i < sums->count; i++) text_add(&w->out, "sum[%d] += %s;\n", i, body_value(w, sums->of[i]));
  end(w);
}

/* ---- backward ---- */

#define OF_ELEMENT LINEAR_SITE "Real x, int t, int d, const Real *red, "
#define OF_SUMS OF_ELEMENT "const Real *row, Real g"

static void print_weights(writer *w, const linear_hook *of) {
  ir_ref root[CHANNEL_SUMS_MAX];
  int n = 0;
  begin(w, "void weights(" OF_ELEMENT "Real g, Real *sum)");
  for (int i = 0; i < of->sums.count; i++)
    if (of->grad.weight[i] != IR_NONE) root[n++] = of->grad.weight[i];
  body_lines(w, root, n);
  for (int i = 0; i < of->sums.count; i++)
    if (of->grad.weight[i] != IR_NONE) text_add(&w->out, "sum[%d] += %s;\n", i, body_value(w, of->grad.weight[i]));
  end(w);
}

/* Adds terms to gradients of inputs and scalars. */
static void print_terms_of(writer *w, const char *name, const derived_terms *terms) {
  ir_ref root[5 * DERIVED_MAX_TERMS];
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    root[n++] = terms->term[i].value;
    for (int j = 0; j < terms->term[i].num_index; j++) root[n++] = terms->term[i].index[j];
  }
  begin(w, writer_format(w, "void %s(" OF_SUMS ")", name));
  body_lines(w, root, n);
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    if (t->input < 0) {
      text_add(&w->out, "add_linear_scalar_grad(p, %d, %s);\n", t->scalar, body_value(w, t->value));
      continue;
    }
    text_add(&w->out, "add_input_grad_alone<Real>(p.inputs.input[%d], %s", t->input, body_value(w, t->value));
    body_index(w, (unsigned)t->input, t->index, t->num_index);
    text_add(&w->out, ");\n");
  }
  end(w);
}

static void print_back(writer *w, const linear_hook *of) {
  if (of->sums.count > 0) print_weights(w, of);
  begin(w, "Real dx(" OF_SUMS ")");
  body_return(w, of->grad.dx != IR_NONE ? of->grad.dx : ir_real(w->f->g, 0));
  end(w);
  print_terms_of(w, "add_value", &of->grad.by_value);
  print_terms_of(w, "add_sums", &of->grad.by_sums);
}

static void print_hook(writer *w, const linear_hooks *f, linear_hook_id id) {
  const linear_hook *hooked = &f->hook[id];
  if (!hooked->given) return;
  w->names = linear_hook_rows[id].of_queries ? of_queries : of_values;
  text_add(&w->out, "\nstruct Spec%s {\n", names[id]);
  w->out.indent++;
  text_add(&w->out, "static constexpr bool given = true, by_channel = %s;\nstatic constexpr int sums = %d;\n",
           hooked->by_channel ? "true" : "false", hooked->sums.count);
  if (hooked->sums.count > 0) print_terms(w, &hooked->sums);
  begin(w, "Real value(" LINEAR_SITE "Real x, int t, int d, const Real *red)");
  body_return(w, hooked->sums.value);
  end(w);
  if (f->backward) print_back(w, hooked);
  w->out.indent--;
  text_add(&w->out, "};\n");
}

static void print(writer *w, const linear_hooks *f) {
  const linear_class *c = &f->spec->linear->class;
  text_add(&w->out,
           "// spec.cuh: the spec '%s', written by luattn from %s. The names are those of contract/linear_hooks.cuh.\n"
           "#pragma once\n%s#include \"config.cuh\"\n"
           "#include \"contract/linear_hooks.cuh\"\n#include \"ops/math.cuh\"\n#include \"ops/input.cuh\"\n%s\n"
           "using Real = Config::Number;\n",
           writer_traced(w)->name, writer_file(w),
           f->backward ? "" : "#define LUATTN_NO_GRADIENTS    // of inputs and scalars\n",
           f->backward ? "#include \"linear/around/linear_sums.cuh\"\n" : "");
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
  arena *a = l->a;
  writer *w = arena_new(a, sizeof *w);
  lowered *f = arena_new(a, sizeof *f);
  plan *p = arena_new(a, sizeof *p);
  *out = NULL;
  if (w != NULL && f != NULL && p != NULL) {
    *p = (plan){.dtype = LUATTN_BF16, .packed = l->packed};
    *f = (lowered){.a = a, .g = l->g, .spec = l->spec, .plan = p, .num_nodes = ir_count(l->g)};
    if (writer_open(w, f)) {
      print(w, l);
      *out = text_get(&w->out);
    }
  }
  if (*out == NULL || text_failed(&w->out) || arena_failed(a))
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", l->spec->traced.name);
  if (w->failed)
    return luattn_fail(err, LUATTN_INTERNAL, "emit: %s: an expression holds what no kernel has; please report the spec",
                       l->spec->traced.name);
  return LUATTN_OK;
}
