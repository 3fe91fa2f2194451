/* emit_linear.h: the stages of luattn_emit for a spec of linear attention. */
#ifndef LUATTN_GEN_COMPILE_EMIT_LINEAR_H
#define LUATTN_GEN_COMPILE_EMIT_LINEAR_H

#include "gen/base/text.h"
#include "gen/spec.h"

/* Errors: LUATTN_INVALID (no such stage), LUATTN_UNSUPPORTED (a stage that there is not, or no kernel
 * for the target), LUATTN_COMPILE. */
luattn_status emit_linear_stage(const luattn_spec *spec, const luattn_target *target, const char *name, text *out,
                                luattn_error *err);

#endif
