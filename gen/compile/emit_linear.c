#include "gen/compile/emit_linear.h"

#include <string.h>

#include "common/fail.h"
#include "gen/analysis/linear/describe_linear.h"
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

static void plan(const luattn_spec *spec, text *out) {
  describe_linear(spec->linear, out);
  text_add(out, "kernels: none yet on a GPU; the CPU runs the recurrence token by token, in double precision\n");
}

luattn_status emit_linear_stage(const luattn_spec *spec, const char *name, text *out, luattn_error *err) {
  const traced_spec *t = &spec->traced;
  const bool is_grad = strcmp(name, "grad") == 0;
  if (strcmp(name, "plan") == 0) return plan(spec, out), LUATTN_OK;
  if (!is_grad && strcmp(name, "ir") != 0)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "emit: %s: stage '%s' is of a kernel, and linear attention has none yet; its stages are ir, grad "
        "and plan",
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
