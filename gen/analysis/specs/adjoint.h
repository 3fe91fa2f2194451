/* adjoint.h: differentiates a whole spec: the online function, chained with score_mod, and the input mods. */
#ifndef LUATTN_GEN_ADJOINT_H
#define LUATTN_GEN_ADJOINT_H

#include "gen/spec.h"

/* Derives backward. Errors: LUATTN_SPEC, e.g. an online function whose backward is not
 * separable, or a `forward` that disagrees with online_fwd (shown with the row that proves it). */
luattn_status derive_spec(arena *a, const traced_spec *t, derived_spec *out, luattn_error *err);

#endif
