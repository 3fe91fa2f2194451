/* pipeline.h: from a spec and a target to the texts that are compiled, and on to an image. */
#ifndef LUATTN_GEN_PIPELINE_H
#define LUATTN_GEN_PIPELINE_H

#include "gen/compile/compilation.h"

/* c->at: plan -> lower -> emit, for the first choice of tiles that suits the spec. */
luattn_status pipeline_source(compilation *c, luattn_error *err);
/* The same, and where tiles are remembered for the target's device, once more with them. */
luattn_status pipeline_tuned_source(compilation *c, luattn_error *err);

/* All of it: the image of the cache, or a new one that is left there. *image is NULL before. */
luattn_status pipeline_run(compilation *c, luattn_image **image, luattn_compile_report *report, luattn_error *err);

/* c->at as `image` was made from, which may have another choice of tiles than the first. Errors: LUATTN_INVALID (it
 * is not this spec's and target's). */
luattn_status pipeline_source_of(compilation *c, const luattn_image *image, luattn_error *err);

#endif
