/* linear_whole_hooks.h: a spec of linear attention as templates/contract/linear_hooks.cuh has it: each hook whole, cut at its sums
 * over the row's channels. Nothing is refused but integers that no length keeps in 32 bits. */
#ifndef LUATTN_GEN_LINEAR_WHOLE_HOOKS_H
#define LUATTN_GEN_LINEAR_WHOLE_HOOKS_H

#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/base/arena.h"

typedef struct linear_hooks {
  arena *a;
  ir *g; /* a clone: the spec's own is shared */
  const luattn_spec *spec;
  bool packed, backward, is_double; /* is_double: kernels compute in float64 */
  linear_hook *hook;                /* [LINEAR_HOOKS], for these head dims; a decay of 0 is none */
  int64_t max_len;                  /* of a sequence: up to it, integers of hooks fit 32 bits. 0: they never do, */
  ir_ref too_large;                 /* because of this one, */
  double reach;                     /* which reaches that */
} linear_hooks;

/* Lowers for kernels with these head dims, and inputs of any type as real (luattn_input_dtype). Errors:
 * LUATTN_NO_MEMORY. */
luattn_status lower_linear_hooks(arena *a, const luattn_spec *spec, int k_dim, int v_dim, bool packed, bool backward,
                                 uint32_t real, linear_hooks *out, luattn_error *err);

#endif
