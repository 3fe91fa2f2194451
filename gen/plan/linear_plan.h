/* linear_plan.h: chooses the kernel of a linear attention, its value channels a block and its stages, and says why. */
#ifndef LUATTN_GEN_LINEAR_PLAN_H
#define LUATTN_GEN_LINEAR_PLAN_H

#include <stdbool.h>

#include "gen/base/arena.h"
#include "gen/spec.h"
#include "luattn/compiler.h"

typedef struct linear_plan {
  luattn_dtype dtype;
  int k_dim, v_dim;
  int v_block, stages; /* value channels of a block; of q, k and v */
  int threads, shared_bytes;
  bool packed, erases;
  bool cuts; /* entries may be cut into segments */
  const char *why;
} linear_plan;

/* Whether the target asks for what the kernels have. Errors: LUATTN_INVALID, LUATTN_UNSUPPORTED. */
luattn_status linear_plan_check(const luattn_target *target, luattn_error *err);

/* Chooses for a target of this version's size. Errors: those of linear_plan_check, LUATTN_NO_MEMORY. */
luattn_status linear_plan_make(arena *a, const luattn_spec *spec, const luattn_target *target, linear_plan *out,
                               luattn_error *err);

#endif
