/* emit.h: prints a lowered spec and a plan as CUDA text, without any decision of its own. spec.cuh fulfils
 * templates/contract/contract.cuh; config.cuh names the plan's constants. */
#ifndef LUATTN_GEN_EMIT_H
#define LUATTN_GEN_EMIT_H

#include "gen/lower/lowered.h"

/* Prints spec.cuh. Errors: LUATTN_NO_MEMORY. */
luattn_status emit_spec(const lowered *f, const char **text, luattn_error *err);
/* Prints config.cuh; `rows` as in the spec.cuh that goes with it. */
luattn_status emit_config(arena *a, const plan *p, const plan_rows *rows, const char **text, luattn_error *err);
/* Prints struct Rule of a spec of parts, which knows Config alone. */
luattn_status emit_part_rule(arena *a, const struct luattn_spec *spec, const char **text, luattn_error *err);

#endif
