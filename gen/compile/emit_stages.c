/* emit_stages.c: luattn_emit: prints the text of every stage of the pipeline. */
#include <stdlib.h>
#include <string.h>

#include "common/call/input_dtype.h"
#include "common/host.h"
#include "gen/analysis/online/describe.h"
#include "gen/analysis/online/merge.h"
#include "gen/analysis/specs/spec_tangents.h"
#include "gen/base/text.h"
#include "gen/compile/attempt.h"
#include "gen/compile/emit_linear.h"
#include "gen/compile/pipeline.h"
#include "gen/compile/programs.h"
#include "gen/ir/passes.h"

enum {
  MAX_ROOTS = 2048
}; /* five hooks of 64 terms, each with a value and up to four indices, and the
    * rest */

typedef struct roots {
  int n;
  ir_ref ref[MAX_ROOTS];
  const char *name[MAX_ROOTS];
} roots;

static void add(roots *r, const char *name, ir_ref ref) {
  if (ref == IR_NONE || name == NULL || r->n == MAX_ROOTS) return;
  r->ref[r->n] = ref;
  r->name[r->n++] = name;
}

static void print(compilation *c, text *out, const roots *r) {
  const traced_spec *t = &c->spec.traced;
  const char *inputs[2 * SPEC_INPUT_TANGENT];
  for (int i = 0; i < t->num_inputs; i++) inputs[i] = t->input[i].name;
  for (int i = 0; i < t->num_inputs; i++)
    inputs[SPEC_INPUT_TANGENT + i] = arena_printf(c->a, "%s_tangent", t->input[i].name);
  ir_print(t->g, out, r->ref, r->name, r->n, inputs);
}

enum { RUNS = 8 }; /* the most runs of a permutation that are printed */

/* "# query_mod: read[0] is x[d + 32] for d < 32, x[d - 32] for d < 64" */
static void print_row(text *out, const char *name, const row_tables *rows) {
  for (int i = 0; rows != NULL && i < rows->count; i++) {
    const uint16_t *channel = rows->channel[i];
    text_add(out, "# %s: read[%d] is", name, i);
    for (int d = 0, next, run = 0; d < rows->dim; d = next, run++) {
      const int added = channel[d] - d;
      for (next = d + 1; next < rows->dim && channel[next] - next == added;) next++;
      if (run < RUNS)
        text_add(out, "%s x[d %c %d] for d < %d", run > 0 ? "," : "", added < 0 ? '-' : '+', abs(added), next);
      else if (run == RUNS)
        text_add(out, ", ..");
    }
    text_add(out, "\n");
  }
}

static void print_rows(const compilation *c, text *out) {
  static const char *const hooks[3] = {"query_mod", "key_mod", "value_mod"};
  for (int i = 0; i < 3; i++) print_row(out, hooks[i], c->spec.traced.rows[i]);
}

static void stage_ir(compilation *c, text *out) {
  const traced_spec *t = &c->spec.traced;
  const traced_online *o = &t->online;
  roots *r = arena_new(c->a, sizeof *r);
  if (r == NULL) return;
  print_rows(c, out);
  add(r, "query_mod", t->query_mod);
  add(r, "key_mod", t->key_mod);
  add(r, "value_mod", t->value_mod);
  add(r, "score_mod", t->score_mod);
  add(r, "block_mask", t->block_mask);
  for (int i = 0; i < o->num_state; i++) add(r, arena_printf(c->a, "init.%s", o->state_name[i]), o->init[i]);
  add(r, "prob", o->prob);
  add(r, "rescale", o->rescale);
  for (int i = 0; i < o->num_state; i++) add(r, arena_printf(c->a, "next.%s", o->state_name[i]), o->next[i]);
  add(r, "out", o->out);
  for (int i = 0; i < o->num_final; i++) add(r, arena_printf(c->a, "final.%s", o->final_name[i]), o->final[i]);
  add(r, "forward", o->forward);
  add(r, "backward", o->backward);
  print(c, out, r);
}

static void add_terms(compilation *c, roots *r, const char *where, const derived_terms *terms) {
  const traced_spec *t = &c->spec.traced;
  for (int i = 0; i < terms->count; i++) {
    const derived_term *d = &terms->term[i];
    const char *name = d->input >= 0 ? t->input[d->input].name : t->scalar_name[d->scalar];
    add(r, arena_printf(c->a, "%s.d_%s", where, name), d->value);
    for (int j = 0; j < d->num_index; j++)
      add(r, arena_printf(c->a, "%s.d_%s.index%d", where, name, j + 1), d->index[j]);
  }
}

/* What pass 0 leaves of a row besides its O: derived_sum. */
static const char *const pass_number_name[] = {
    [PASS_SUM] = "sum", [PASS_PLACE] = "place_of_largest", [PASS_LEAST] = "least_of_largest"};

static luattn_status stage_grad(compilation *c, text *out, luattn_error *err) {
  const derived_spec *d = &c->spec.derived;
  roots *r = arena_new(c->a, sizeof *r);
  if (r == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: grad: out of memory");
  text_add(out, "# %s\n", d->missing != NULL ? d->missing : d->how);
  if (c->spec.parts == NULL) TRY(derive_describe(c->a, &c->spec.traced, d, out, err));
  if (d->missing != NULL) return LUATTN_OK;
  print_rows(c, out);
  for (int i = 0; i < d->num_saved; i++) add(r, arena_printf(c->a, "saved%d", i), d->saved[i]);
  for (int i = 0; i < d->num_passes; i++) {
    add(r, arena_printf(c->a, "pass%d.weight", i), d->pass[i].weight);
    add(r, arena_printf(c->a, "pass%d.factor", i), d->pass[i].factor);
  }
  for (int i = 0; i < d->num_sums; i++)
    add(r, arena_printf(c->a, "%s%d", pass_number_name[d->sum[i].kind], i), d->sum[i].of);
  for (int i = 0; i < d->num_rows; i++) add(r, arena_printf(c->a, "row%d", i), d->row[i]);
  add(r, "prob", d->prob);
  add(r, "ds", d->ds);
  add(r, "query_mod.dx", d->query_mod.dx);
  add(r, "key_mod.dx", d->key_mod.dx);
  add(r, "value_mod.dx", d->value_mod.dx);
  add_terms(c, r, "row", &d->row_terms);
  add_terms(c, r, "element", &d->element_terms);
  add_terms(c, r, "query_mod", &d->query_mod.terms);
  add_terms(c, r, "key_mod", &d->key_mod.terms);
  add_terms(c, r, "value_mod", &d->value_mod.terms);
  print(c, out, r);
  return LUATTN_OK;
}

/* Forward mode, where all that may have a tangent has one. */
static luattn_status stage_tangent(compilation *c, text *out, luattn_error *err) {
  const traced_spec *s = &c->spec.traced;
  const traced_online *on = &s->online;
  tangent_sources of = {.q = true, .k = true, .v = true};
  spec_tangents t;
  roots *r = arena_new(c->a, sizeof *r);
  if (r == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: tangent: out of memory");
  for (int i = 0; i < s->num_inputs; i++)
    if (input_is_real(s->input[i].dtype)) of.inputs |= UINT32_C(1) << i;
  for (int i = 0; i < s->num_scalars; i++) of.scalars |= UINT32_C(1) << i;
  TRY(spec_tangents_of(c->a, s, &of, &t, err));
  print_rows(c, out);
  add(r, "query_mod", t.query_mod);
  add(r, "key_mod", t.key_mod);
  add(r, "value_mod", t.value_mod);
  add(r, "score_mod", t.score_mod);
  for (int i = 0; i < on->num_state; i++) add(r, arena_printf(c->a, "init.%s", on->state_name[i]), t.init[i]);
  for (int k = 0; k < t.split.num_red; k++)
    add(r, arena_printf(c->a, "%s%d", t.split.kind[k] == IR_REDUCE_MAX ? "largest" : "sum", k), t.term[k]);
  add(r, "prob", t.prob);
  add(r, "rescale", t.rescale);
  for (int i = 0; i < on->num_state; i++) add(r, arena_printf(c->a, "next.%s", on->state_name[i]), t.next[i]);
  add(r, "out", t.out);
  add(r, "lse", t.lse);
  print(c, out, r);
  return LUATTN_OK;
}

/* A function whose parts cannot be merged has its reason printed. */
static luattn_status stage_merge(compilation *c, text *out, luattn_error *err) {
  const traced_online *o = &c->spec.traced.online;
  roots *r = arena_new(c->a, sizeof *r);
  online_merge *m = arena_new(c->a, sizeof *m);
  luattn_error why;
  if (r == NULL || m == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: merge: out of memory");
  const luattn_status status = merge_derive(c->a, &c->spec.traced, m, &why);
  if (status == LUATTN_UNSUPPORTED) return text_add(out, "# %s\n", why.message), LUATTN_OK;
  if (status != LUATTN_OK) return luattn_fail(err, status, "%s", why.message);
  for (int i = 0; i < o->num_state; i++) add(r, arena_printf(c->a, "merged.%s", o->state_name[i]), m->state[i]);
  add(r, "factor", m->factor);
  add(r, "other_factor", m->other_factor);
  print(c, out, r);
  return LUATTN_OK;
}

static void stage_mask(compilation *c, text *out) {
  const mask_info *m = &c->mask;
  roots *r = arena_new(c->a, sizeof *r);
  if (r == NULL) return;
  text_add(out, "# %s\n", m->how);
  add(r, "keep", m->keep);
  add(r, "kv_lo", m->kv_lo);
  add(r, "kv_hi", m->kv_hi);
  add(r, "q_lo", m->q_lo);
  add(r, "q_hi", m->q_hi);
  print(c, out, r);
}

static void stage_plan(const compilation *c, text *out) {
  const plan *p = &c->at.plan;
  text_add(out, "%s", compilation_why(c));
  if (!p->forced)
    text_add(out,
             "before compiling: where this choice has too few registers, a later one is compiled, even of "
             "another family; --stage cubin and luattn_compile_report.plan say which\n");
  for (int i = 0; i < p->num_entries; i++)
    text_add(out, "%s: %d threads, tiles %d x %d, %d bytes of dynamic shared memory\n", p->entry[i].name,
             p->entry[i].threads, p->entry[i].tile_m, p->entry[i].tile_n, p->entry[i].shared_bytes);
}

static luattn_status stage_ptx(compilation *c, text *out, luattn_error *err) {
  nvrtc lib;
  nvrtc_result r;
  if (c->nvrtc.path[0] == 0)
    TRY(nvrtc_open_first(&c->search, &c->nvrtc, &lib, err));
  else
    TRY(nvrtc_open(&c->nvrtc, &lib, err));
  TRY(programs_ptx(c, &lib, &r, err));
  text_bytes(out, r.ptx, strlen(r.ptx));
  return LUATTN_OK;
}

/* spec.cuh with the hooks that merge parts of a row. */
static luattn_status stage_merge_spec(compilation *c, text *out, luattn_error *err) {
  TRY(pipeline_tuned_source(c, err));
  c->at.plan.merges = true;
  TRY(attempt_make(c, err));
  text_bytes(out, c->at.spec_text, strlen(c->at.spec_text));
  return LUATTN_OK;
}

static luattn_status stage(compilation *c, const char *name, text *out, luattn_error *err) {
  if (strcmp(name, "ir") == 0) return stage_ir(c, out), LUATTN_OK;
  if (strcmp(name, "grad") == 0) return stage_grad(c, out, err);
  if (strcmp(name, "tangent") == 0) return stage_tangent(c, out, err);
  if (strcmp(name, "merge") == 0) return stage_merge(c, out, err);
  if (strcmp(name, "merge_spec") == 0) return stage_merge_spec(c, out, err);
  if (strcmp(name, "mask") == 0) return stage_mask(c, out), LUATTN_OK;
  const bool is_plan = strcmp(name, "plan") == 0, is_spec = strcmp(name, "spec") == 0;
  const bool is_config = strcmp(name, "config") == 0;
  if (!is_plan && !is_spec && !is_config && strcmp(name, "ptx") != 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "emit: stage: '%s' is not one of ir, grad, tangent, merge, mask, plan, spec, config, ptx", name);
  TRY(pipeline_tuned_source(c, err));
  if (is_plan)
    stage_plan(c, out);
  else if (is_spec)
    text_bytes(out, c->at.spec_text, strlen(c->at.spec_text));
  else if (is_config)
    text_bytes(out, c->at.config, strlen(c->at.config));
  else
    return stage_ptx(c, out, err);
  return LUATTN_OK;
}

static luattn_status stage_source(compilation *c, const luattn_image *image, text *out, luattn_error *err) {
  TRY(pipeline_source_of(c, image, err));
  text_add(out, "// ---- config.cuh\n");
  text_bytes(out, c->at.config, strlen(c->at.config));
  text_add(out, "\n// ---- spec.cuh\n");
  text_bytes(out, c->at.spec_text, strlen(c->at.spec_text));
  return LUATTN_OK;
}

/* Prints stage `name`, or what `image` was compiled from. */
typedef struct emit_call {
  const luattn_spec *spec;
  const luattn_target *target;
  const char *name;
  const luattn_image *image;
  char **out;
} emit_call;

static luattn_status copy_text(const text *t, const char *name, char **out, luattn_error *err) {
  const char *s = text_get(t);
  char *copy = s == NULL ? NULL : malloc(t->size + 1);
  if (copy == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", name);
  memcpy(copy, s, t->size);
  copy[t->size] = 0;
  *out = copy;
  return LUATTN_OK;
}

static luattn_status emit_linear(const emit_call *given, luattn_error *err) {
  arena *a = arena_open(arena_allocator(given->spec->a));
  if (a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", given->name);
  text t;
  text_init(&t, a);
  luattn_status status = emit_linear_stage(given->spec, given->target, given->name, &t, err);
  if (status == LUATTN_OK && arena_failed(a)) /* a name that is missing */
    status = luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", given->name);
  if (status == LUATTN_OK) status = copy_text(&t, given->name, given->out, err);
  arena_close(a);
  return status;
}

static luattn_status emit(void *arguments, luattn_error *err) {
  const emit_call *given = arguments;
  if (given->spec->traced.form == LUATTN_FORM_LINEAR) return emit_linear(given, err);
  compilation *c;
  luattn_status status = compilation_open(given->spec, given->target, &c, err);
  if (status == LUATTN_OK) {
    text t;
    text_init(&t, c->a);
    status = given->image != NULL ? stage_source(c, given->image, &t, err) : stage(c, given->name, &t, err);
    if (status == LUATTN_OK) status = compilation_memory(c, err);
    if (status == LUATTN_OK) status = copy_text(&t, given->name, given->out, err);
  }
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err); /* other tiles may have failed first */
  return status;
}

luattn_status luattn_emit(const luattn_spec *spec, const luattn_target *target, const char *stage, char **out,
                          luattn_error *err) {
  fail_clear(err);
  NEED(spec);
  NEED(target);
  NEED(stage);
  if (out == NULL) return fail_null(err, __func__, "text");
  return host_run(emit, &(emit_call){spec, target, stage, NULL, out}, err);
}

luattn_status luattn_emit_source(const luattn_spec *spec, const luattn_target *target, const luattn_image *image,
                                 char **out, luattn_error *err) {
  fail_clear(err);
  NEED(spec);
  NEED(target);
  NEED(image);
  if (out == NULL) return fail_null(err, __func__, "text");
  return host_run(emit, &(emit_call){spec, target, "source", image, out}, err);
}

void luattn_text_free(char *s) { free(s); }
