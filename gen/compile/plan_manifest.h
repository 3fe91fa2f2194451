/* plan_manifest.h: what an image will say of itself, from its plan alone. */
#ifndef LUATTN_GEN_PLAN_MANIFEST_H
#define LUATTN_GEN_PLAN_MANIFEST_H

#include "abi/manifest.h"
#include "luattn/compiler.h"

/* Plans and lowers for the target, as luattn_compile does before NVRTC: registers are unknown, and compiling may end
 * with a later choice of tiles. Errors: those of luattn_compile up to there. */
luattn_status plan_manifest(const luattn_spec *spec, const luattn_target *target, image_manifest *out,
                            luattn_error *err);

#endif
