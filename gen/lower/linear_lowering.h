/* linear_lowering.h: shared by the files that lower linear attention. */
#ifndef LUATTN_GEN_LINEAR_LOWERING_H
#define LUATTN_GEN_LINEAR_LOWERING_H

#include "gen/lower/linear_lowered.h"

typedef struct linear_work {
  linear_lowered *f;
  const derived_linear *d;
  unsigned takes;        /* LINEAR_TAKES_.. */
  bool backward;         /* whether gradients are lowered, */
  unsigned wants;        /* and which of inputs and scalars */
  ir_ref from[2], to[2]; /* head dims */
  luattn_error *err;
} linear_work;

/* An expression for these head dims; IR_NONE stays so. */
ir_ref linear_for_dims(linear_work *w, ir_ref r);

/* linear_row_hooks.c. A hook of rows, its sums, and in backward its derivative. Errors: LUATTN_NO_MEMORY. */
luattn_status linear_lower_row(linear_work *w, linear_hook_id id, bool made, linear_row_hook *out);
/* Adds to *out the terms of a hook that is a number of a token, or one times an element: of the gradient of that number,
 * times `by` (IR_NONE: 1). Errors: LUATTN_NO_MEMORY. */
luattn_status linear_lower_terms(linear_work *w, linear_hook_id id, ir_ref by, linear_terms *out);
/* Whether gradients that are wanted come from a hook. */
bool linear_has_terms(const linear_work *w, linear_hook_id id);
/* Finds inputs whose gradients one token and value head adds to each (manifest_linear.alone). */
void linear_find_alone(linear_work *w);

#endif
