/* linear_spec.h: prints a lowered spec of linear attention, and its plan, as CUDA text. */
#ifndef LUATTN_GEN_LINEAR_SPEC_H
#define LUATTN_GEN_LINEAR_SPEC_H

#include "gen/lower/linear_lowered.h"

/* Prints spec.cuh. Errors: LUATTN_NO_MEMORY. */
luattn_status emit_linear_spec(const linear_lowered *f, const char **text, luattn_error *err);
/* Prints config.cuh. Errors: LUATTN_NO_MEMORY. */
luattn_status emit_linear_config(arena *a, const linear_plan *p, const char **text, luattn_error *err);

#endif
