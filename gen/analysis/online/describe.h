/* describe.h: says in words what is proved of an online function beside its backward: for `luattn emit --stage
 * grad`. */
#ifndef LUATTN_GEN_DESCRIBE_H
#define LUATTN_GEN_DESCRIBE_H

#include "gen/base/text.h"
#include "gen/spec.h"

/* Adds lines that say what is proved of the online function beside its backward: that tiles do not matter, where
 * weights lie, and how parts merge. Adds nodes to t->g. Errors: as derive_spec (specs/adjoint.h). */
luattn_status derive_describe(arena *scratch, const traced_spec *t, const derived_spec *derived, text *out,
                              luattn_error *err);

#endif
