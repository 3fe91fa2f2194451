#include "gen/compile/emit_linear.h"

#include <string.h>

#include "common/fail.h"
#include "gen/analysis/linear/describe_linear.h"
#include "gen/compile/linear_source.h"
#include "gen/ir/passes.h"

enum { ROOTS = LINEAR_HOOKS * (2 + 2 * CHANNEL_SUMS_MAX) };

typedef struct linear_roots {
  arena *a;
  int n;
  ir_ref ref[ROOTS];
  const char *name[ROOTS];
} linear_roots;

static void add(linear_roots *r, ir_ref ref, const char *name) {
  if (ref == IR_NONE || r->n == ROOTS) return;
  r->ref[r->n] = ref;
  r->name[r->n++] = name != NULL ? name : "";
}

static void print(const traced_spec *t, const linear_roots *r, text *out) {
  const char *inputs[12];
  for (int i = 0; i < t->num_inputs; i++) inputs[i] = t->input[i].name;
  ir_print(t->g, out, r->ref, r->name, r->n, inputs);
}

/* f of each hook, of its sums red[i]; and these. */
static void add_values(const linear_hook *hook, const char *name, linear_roots *r) {
  for (int k = 0; k < hook->sums.count; k++) add(r, hook->sums.of[k], arena_printf(r->a, "%s.sum[%d]", name, k));
  add(r, hook->sums.value, name);
}

static void add_gradients(const linear_hook *hook, const char *name, linear_roots *r) {
  for (int k = 0; k < hook->sums.count; k++) add(r, hook->grad.weight[k], arena_printf(r->a, "%s.row[%d]", name, k));
  add(r, hook->grad.dx, arena_printf(r->a, "%s.dx", name));
}

/* The class, and the kernel of the target, or why there is none. */
static luattn_status plan(const luattn_spec *spec, const luattn_target *target, text *out, luattn_error *err) {
  linear_source s;
  luattn_error why;
  describe_linear(spec->linear, out);
  const luattn_status status = linear_source_make(out->a, spec, target, &s, &why);
  if (status == LUATTN_NO_MEMORY) return luattn_fail(err, status, "%s", why.message);
  if (status == LUATTN_OK) {
    text_add(out, "%s", s.plan.why);
    for (int i = 0; i < s.plan.num_entries; i++)
      text_add(out, "%s: %d threads, %d bytes of dynamic shared memory\n", s.plan.entry[i].name,
               s.plan.entry[i].threads, s.plan.entry[i].shared_bytes);
    return LUATTN_OK;
  }
  text_add(out,
           "kernels: none for this target; the CPU runs the recurrence token by token, in double precision\n  %s\n",
           why.message);
  return LUATTN_OK;
}

static luattn_status ptx(const linear_source *s, text *out, luattn_error *err) {
  nvrtc_search search;
  nvrtc_file file;
  nvrtc lib;
  nvrtc_result r;
  nvrtc_search_start(&search, s->target.nvrtc, (int)s->target.driver_version, s->target.ptx != 0);
  TRY(nvrtc_open_first(&search, &file, &lib, err));
  TRY(linear_source_compile(s, &lib, 1, &r, err));
  text_bytes(out, r.ptx, strlen(r.ptx));
  return LUATTN_OK;
}

/* What is compiled for the target. */
static luattn_status kernel(const luattn_spec *spec, const luattn_target *target, const char *name, text *out,
                            luattn_error *err) {
  linear_source s;
  TRY(linear_source_make(out->a, spec, target, &s, err));
  if (strcmp(name, "ptx") == 0) return ptx(&s, out, err);
  text_add(out, "%s", s.config);
  return LUATTN_OK;
}

/* The hooks as kernels for sm_90a take them, in bf16 and for 128 channels where the target says nothing else. */
static luattn_status source(const luattn_spec *spec, const luattn_target *target, text *out, luattn_error *err) {
  luattn_target there = *target;
  linear_source s;
  there.arch = 90;
  if (there.dtype != LUATTN_F16) there.dtype = LUATTN_BF16;
  if (there.head_dim <= 0) there.head_dim = 128;
  TRY(linear_source_make(out->a, spec, &there, &s, err));
  text_add(out, "%s", s.spec_text);
  return LUATTN_OK;
}

luattn_status emit_linear_stage(const luattn_spec *spec, const luattn_target *target, const char *name, text *out,
                                luattn_error *err) {
  const traced_spec *t = &spec->traced;
  const bool is_grad = strcmp(name, "grad") == 0;
  if (strcmp(name, "plan") == 0) return plan(spec, target, out, err);
  if (strcmp(name, "spec") == 0) return source(spec, target, out, err);
  if (strcmp(name, "config") == 0 || strcmp(name, "ptx") == 0) return kernel(spec, target, name, out, err);
  if (!is_grad && strcmp(name, "ir") != 0)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "emit: %s: stage '%s' is none of linear attention; its stages are ir, grad, plan, spec, config and ptx",
        t->name, name);
  linear_roots *r = arena_new(out->a, sizeof *r);
  if (r == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", t->name);
  r->a = out->a;
  for (int i = 0; i < LINEAR_HOOKS; i++) {
    const linear_hook *hook = &spec->linear->hook[i];
    if (!hook->given) continue;
    if (is_grad)
      add_gradients(hook, linear_hook_rows[i].name, r);
    else
      add_values(hook, linear_hook_rows[i].name, r);
  }
  print(t, r, out);
  return LUATTN_OK;
}
