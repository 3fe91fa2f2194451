/* rule_struct.c: prints struct Rule, how finished parts merge by state, for templates/around/after/merge_parts.cuh. */
#include "gen/emit/sections.h"

#define PARTS "const State &mine, const State &theirs"

static void begin(writer *w, const char *signature) {
  open_function(w, signature);
  body_begin(w, 0, "mine");
  w->outlined = true; /* it reads its parameters alone: there are no slots */
}

static void one(writer *w, const char *signature, ir_ref r) {
  begin(w, signature);
  body_return(w, r);
  close_function(w);
}

/* The state of both parts, and what else a row has, as `mine` has it. */
static void merge(writer *w, const part_rule *rule) {
  begin(w, "State merge(" PARTS ")");
  body_lines(w, rule->state, rule->num_state);
  text_add(&w->out, "State both = mine;\n");
  for (int i = 0; i < rule->num_state; i++) text_add(&w->out, "both.x[%d] = %s;\n", i, body_value(w, rule->state[i]));
  text_add(&w->out, "return both;\n");
  close_function(w);
}

static void save(writer *w, const part_rule *rule) {
  begin(w, "void save(const State &mine, Real *out)");
  body_lines(w, rule->saved, rule->num_saved);
  for (int i = 0; i < rule->num_saved; i++) text_add(&w->out, "out[%d] = %s;\n", i, body_value(w, rule->saved[i]));
  close_function(w);
}

static void print(writer *w, const part_rule *rule) {
  const int rows = rule->num_rows > 0 ? rule->num_rows : 1;
  text_add(&w->out, "#include \"ops/math.cuh\"\nstruct Rule {\n");
  w->out.indent++;
  text_add(&w->out,
           "using Real = Config::Real;\nstruct State { Real x[%d]; };\nstatic constexpr bool by_lse = false;\n", rows);
  const constant numbers[] = {{"num_rows", rule->num_rows, false}, {"num_saved", rule->num_saved, false}};
  print_constants(w, "int", numbers, COUNT(numbers));
  merge(w, rule);
  one(w, "Real factor(" PARTS ")", rule->factor);
  one(w, "Real other_factor(" PARTS ")", rule->other_factor);
  one(w, "Real scale(const State &mine)", rule->scale);
  one(w, "Real lse(const State &mine)", rule->lse != IR_NONE ? rule->lse : ir_real(w->f->g, 0));
  save(w, rule);
  w->out.indent--;
  text_add(&w->out, "};\n");
}

luattn_status emit_part_rule(arena *a, const struct luattn_spec *spec, const char **out, luattn_error *err) {
  writer *w = arena_new(a, sizeof *w);
  lowered *f = arena_new(a, sizeof *f);
  plan *p = arena_new(a, sizeof *p);
  *out = NULL;
  if (w != NULL && f != NULL && p != NULL) {
    *f = (lowered){.a = a, .g = ir_clone(a, spec->traced.g), .spec = spec, .plan = p};
    const bool whole = f->g != NULL && ir_real(f->g, 0) != IR_NONE;
    f->num_nodes = whole ? ir_count(f->g) : 0;
    if (whole && writer_open(w, f)) {
      print(w, spec->parts);
      *out = text_get(&w->out);
    }
  }
  if (*out == NULL || text_failed(&w->out) || arena_failed(a))
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", spec->traced.name);
  if (w->failed)
    return luattn_fail(err, LUATTN_INTERNAL, "emit: %s: a merge reads what no part has; please report the spec",
                       spec->traced.name);
  return LUATTN_OK;
}
