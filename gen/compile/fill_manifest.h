/* fill_manifest.h: fills the members of an image's manifest that are known before NVRTC runs. */
#ifndef LUATTN_GEN_FILL_MANIFEST_H
#define LUATTN_GEN_FILL_MANIFEST_H

#include "gen/compile/compilation.h"

/* Fills the manifest of c->at, which must be planned (with entries) and lowered. Errors: LUATTN_UNSUPPORTED
 * (integers of the spec exceed 32 bits at any length). */
luattn_status manifest_fill(const compilation *c, image_manifest *out, luattn_error *err);

/* Fills only what the spec itself says about arguments. */
void manifest_fill_declared(const compilation *c, image_manifest *out);

#endif
