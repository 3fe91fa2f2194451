/* linear_spec.h: prints a lowered spec of linear attention as CUDA text. */
#ifndef LUATTN_GEN_LINEAR_SPEC_H
#define LUATTN_GEN_LINEAR_SPEC_H

#include "gen/lower/linear_lowered.h"

/* Prints spec.cuh. Errors: LUATTN_NO_MEMORY. */
luattn_status emit_linear_spec(const linear_lowered *f, const char **text, luattn_error *err);

#endif
