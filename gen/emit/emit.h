/* emit.h: expressions to CUDA text. spec.cuh fulfils templates/contract.cuh; config.cuh names the plan's constants. */
#ifndef LUATTN_GEN_EMIT_H
#define LUATTN_GEN_EMIT_H

#include "gen/plan/plan.h"

luattn_status emit_spec(arena *a, const struct luattn_spec *spec, const mask_info *mask, const plan *p, const char **text,
                        luattn_error *err);
luattn_status emit_config(arena *a, const plan *p, const char **text, luattn_error *err);

#endif
