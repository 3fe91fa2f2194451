/* linear_writer.c: see linear_writer.h. */
#include "gen/emit/linear_writer.h"

#define VARIABLES(head)                                                       \
  {[VAR_B] = "s.b", [VAR_H] = head,   [VAR_POS] = "t",         [VAR_D] = "d", \
   [VAR_X] = "x",   [VAR_GRAD] = "g", [VAR_HEADS] = "p.heads", [VAR_HEADS_KV] = "p.heads_v"}
const char *const linear_of_values[VAR_COUNT] = VARIABLES("s.hv");
const char *const linear_of_queries[VAR_COUNT] = VARIABLES("s.h");

void linear_open_function(writer *w, const char *signature) {
  open_function(w, signature);
  body_begin(w, 0, NULL);
  w->outlined = true; /* it reads its parameters alone: there are no slots */
}

void linear_close_function(writer *w) {
  w->out.indent--;
  text_add(&w->out, "}\n");
}

void linear_print_head(writer *w, const char *contract, const char *real, bool backward) {
  text_add(&w->out,
           "// spec.cuh: the spec '%s', written by luattn from %s. The names are those of contract/%s.\n"
           "#pragma once\n%s#include \"config.cuh\"\n#include \"contract/%s\"\n#include \"ops/math.cuh\"\n"
           "#include \"ops/input.cuh\"\n%s\nusing Real = %s;\n",
           writer_traced(w)->name, writer_file(w), contract,
           backward ? "" : "#define LUATTN_NO_GRADIENTS    // of inputs and scalars\n", contract,
           backward ? "#include \"linear/around/linear_sums.cuh\"\n" : "", real);
}

void linear_add_to_memory(writer *w, const derived_term *t, const char *value, bool sole) {
  if (t->input < 0) {
    text_add(&w->out, "add_linear_scalar_grad<Real>(p, %d, %s);\n", t->scalar, value);
    return;
  }
  text_add(&w->out, "add_input_grad_%s<Real>(p.inputs.input[%d], %s", sole ? "sole" : "alone", t->input, value);
  body_index(w, (unsigned)t->input, t->index, t->num_index);
  text_add(&w->out, ");\n");
}

luattn_status linear_print_text(const linear_text *t, const char **out, luattn_error *err) {
  arena *a = t->a;
  writer *w = arena_new(a, sizeof *w);
  lowered *f = arena_new(a, sizeof *f);
  plan *p = arena_new(a, sizeof *p);
  *out = NULL;
  if (w != NULL && f != NULL && p != NULL) {
    *p = (plan){
        .dtype = t->is_double ? LUATTN_F64 : LUATTN_BF16, .packed = t->packed, .deterministic = t->deterministic};
    *f = (lowered){.a = a, .g = t->g, .spec = t->spec, .plan = p, .num_nodes = ir_count(t->g)};
    if (writer_open(w, f)) {
      t->print(w, t->of);
      *out = text_get(&w->out);
    }
  }
  if (*out == NULL || text_failed(&w->out) || arena_failed(a))
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", t->spec->traced.name);
  if (w->failed)
    return luattn_fail(err, LUATTN_INTERNAL, "emit: %s: an expression holds what no kernel has; please report the spec",
                       t->spec->traced.name);
  return LUATTN_OK;
}
