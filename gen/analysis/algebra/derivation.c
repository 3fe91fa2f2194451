#include "gen/analysis/algebra/derivation.h"

#include <math.h>

#include "common/fail.h"

#define NOTHING 1e-250

bool derivation_close(double x, double y, double slack) {
  return x == y || fabs(x - y) <= (DERIVATION_CLOSE + slack) * fmax(fabs(x), fabs(y)) + NOTHING;
}

void derivation_simplify(derivation *d, ir_ref *roots, int n) {
  ir_ref *used = arena_array(d->a, (size_t)n + 1, sizeof *used);
  if (used == NULL) {
    d->no_memory = true;
    return;
  }
  int count = 0;
  for (int i = 0; i < n; i++) {
    if (roots[i] != IR_NONE) used[count++] = roots[i];
  }
  ir_simplify(d->g, used, count);
  count = 0;
  for (int i = 0; i < n; i++) {
    if (roots[i] != IR_NONE) roots[i] = used[count++];
  }
}

sample_lanes *derivation_eval(derivation *d, const ir_ref *roots, int n) {
  sample_lanes *out = arena_array(d->a, (size_t)n + 1, sizeof *out);
  if (out != NULL && !ir_failed(d->g) && sample_eval(d->s, roots, n, out)) return out;
  d->no_memory = true;
  return NULL;
}

bool derivation_failed(const derivation *d) { return d->no_memory || ir_failed(d->g) || arena_failed(d->a); }

luattn_status derivation_no_memory(derivation *d) {
  return luattn_fail(d->err, LUATTN_NO_MEMORY, "%s: online_func '%s': out of memory", d->t->file, d->o->name);
}

const char *reduction_name(derivation *d, int k) {
  const char *kind = d->step.kind[k] == IR_REDUCE_MAX ? "reduce_max" : "reduce_sum";
  for (int i = 0; i < d->o->num_state; i++) {
    if (d->next[i] == d->red[k]) return arena_printf(d->a, "%s kept in '%s'", kind, d->o->state_name[i]);
  }
  for (int i = 0; i < d->o->num_state; i++) {
    const ir_ref zero = ir_real(d->g, 0);
    if (ir_substitute(d->g, d->next[i], &d->red[k], &zero, 1) != d->next[i]) {
      return arena_printf(d->a, "%s in '%s'", kind, d->o->state_name[i]);
    }
  }
  return arena_printf(d->a, "%s number %d", kind, k + 1);
}
