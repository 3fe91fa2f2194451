/* fill_manifest.h: fills the manifest of an image, as far as it is known before NVRTC runs. */
#ifndef LUATTN_GEN_FILL_MANIFEST_H
#define LUATTN_GEN_FILL_MANIFEST_H

#include "gen/compile/compilation.h"

/* Fills that of c->at, which is planned with its entries and lowered. Errors: LUATTN_UNSUPPORTED (integers of
 * the spec exceed 32 bits at any length). */
luattn_status manifest_fill(const compilation *c, image_manifest *out, luattn_error *err);

/* Fills only what the spec itself says about arguments. */
void manifest_fill_declared(const compilation *c, image_manifest *out);

#endif
