/* decisions.h: makes kernels decide comparisons as the CPU path and torch do. */
#ifndef LUATTN_GEN_DECISIONS_H
#define LUATTN_GEN_DECISIONS_H

#include "gen/analysis/masks/mask.h"

/* Applies ir_decide to the mask, what was derived from it, and all hooks, for kernels of float64 (`doubles`) or of
 * another type. Call it after the rest of analysis, which knows the ops that a spec has. The spec is a compilation's
 * own. */
luattn_status decisions_apply(arena *a, struct luattn_spec *spec, mask_info *mask, bool doubles, luattn_error *err);

#endif
