/* deps.c: tracks what each node depends on, as the IR grows. */
#include <string.h>

#include "gen/lower/lowering.h"

void deps_open(deps *d, arena *a, const ir *g) {
  memset(d, 0, sizeof *d);
  d->g = g;
  d->a = a;
}

static int deps_of_var(ir_var v) {
  switch (v) {
    case VAR_Q:
      return DEP_Q;
    case VAR_KV:
      return DEP_KV;
    case VAR_SCORE:
    case VAR_DOT:
    case VAR_DP:
    case VAR_P:
    case VAR_TERM:
    case VAR_SCORE_TANGENT:
    case VAR_DP_TANGENT:
      return DEP_ELEMENT;
    case VAR_STATE:
    case VAR_OTHER:
    case VAR_RED:
    case VAR_OUT:
    case VAR_FINAL:
    case VAR_DELTA:
    case VAR_DLSE:
    case VAR_PASS:
    case VAR_SHIFT:
    case VAR_STATE_TANGENT:
    case VAR_RED_TANGENT:
    case VAR_DELTA_TANGENT:
    case VAR_DLSE_TANGENT:
    case VAR_FINAL_TANGENT:
    case VAR_PASS_TANGENT:
      return DEP_STEP;
    case VAR_ROW:
    case VAR_ROW_TANGENT:
      return DEP_ROW;
    case VAR_X:
    case VAR_POS:
    case VAR_D:
    case VAR_GRAD:
    case VAR_TILE:
    case VAR_READ:
    case VAR_READ_GRAD:
    case VAR_CHANNEL:
    case VAR_X_TANGENT:
    case VAR_READ_TANGENT:
    case VAR_GRAD_TANGENT:
    case VAR_READ_GRAD_TANGENT:
      return DEP_MOD;
    case VAR_PART:
      return DEP_PART;
    default:
      break;
  }
  return DEP_SITE;
}

int deps_of(deps *d, ir_ref r) {
  if (r == IR_NONE) return 0;
  const uint32_t count = ir_count(d->g);
  if (count > d->capacity) {
    const uint32_t capacity = 2 * count + 64;
    uint8_t *mask = arena_new(d->a, capacity);
    if (mask == NULL)
      return DEP_ELEMENT; /* out of memory is reported by the caller's check of the IR and of its output */
    if (d->count > 0) memcpy(mask, d->mask, d->count);
    d->mask = mask;
    d->capacity = capacity;
  }
  for (; d->count < count; d->count++) { /* arguments come before their users */
    if (d->count == IR_NONE) continue;
    const ir_node *n = ir_get(d->g, d->count);
    int mask = 0;
    if (n->op == IR_VAR) mask = deps_of_var(ir_var_of(n));
    if (n->op == IR_LOAD || n->op == IR_LISTED || n->op == IR_RANDOM) mask = DEP_SITE;
    for (int i = 0; i < n->nargs; i++) mask |= d->mask[n->arg[i]];
    d->mask[d->count] = (uint8_t)mask;
  }
  return d->mask[r];
}
