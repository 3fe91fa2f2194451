/* linear_source.h: a linear attention for a target: resolved, planned, lowered and printed; and what NVRTC makes of it. */
#ifndef LUATTN_GEN_COMPILE_LINEAR_SOURCE_H
#define LUATTN_GEN_COMPILE_LINEAR_SOURCE_H

#include "gen/emit/linear_whole_spec.h"
#include "gen/emit/linear_spec.h"
#include "gen/nvrtc/nvrtc.h"

typedef struct linear_source {
  arena *a;
  luattn_target target; /* converted to this version's size; head_dim_v is said */
  luattn_spec *spec;    /* inputs of any type have the target's */
  linear_plan plan;
  linear_lowered lowered; /* where the family takes whole hooks: its spec and lengths alone, and */
  linear_hooks hooks;
  const char *spec_text, *config; /* spec.cuh, config.cuh */
} linear_source;

/* Errors: LUATTN_INVALID, LUATTN_UNSUPPORTED (what the kernels lack, of the target or of a hook), LUATTN_NO_MEMORY. */
luattn_status linear_source_make(arena *a, const luattn_spec *spec, const luattn_target *target, linear_source *out,
                                 luattn_error *err);

/* Compiles it. Errors: LUATTN_COMPILE, LUATTN_NO_MEMORY, .. */
luattn_status linear_source_compile(const linear_source *s, const nvrtc *lib, int want_ptx, nvrtc_result *out,
                                    luattn_error *err);

#endif
