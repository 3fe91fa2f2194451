/* linear_whole_spec.h: prints the hooks of linear attention whole, as templates/contract/linear_hooks.cuh has them. */
#ifndef LUATTN_GEN_LINEAR_WHOLE_SPEC_H
#define LUATTN_GEN_LINEAR_WHOLE_SPEC_H

#include "gen/lower/linear_whole_hooks.h"

/* Prints spec.cuh. Errors: LUATTN_NO_MEMORY, LUATTN_INTERNAL. */
luattn_status emit_linear_hooks(const linear_hooks *f, const char **text, luattn_error *err);

#endif
