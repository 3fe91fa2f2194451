/* pipeline.h: turns a spec and a target into the texts that are compiled, and those into an image. */
#ifndef LUATTN_GEN_PIPELINE_H
#define LUATTN_GEN_PIPELINE_H

#include "gen/compile/compilation.h"

/* Takes c->at through plan, lower and emit, for the first choice of tiles that suits the spec. */
luattn_status pipeline_source(compilation *c, luattn_error *err);
/* The same; then again with tiles that are remembered for the target's device, if there are any. */
luattn_status pipeline_tuned_source(compilation *c, luattn_error *err);

/* Runs all of it: takes the image from the cache, or makes one and stores it. *image is NULL before. */
luattn_status pipeline_run(compilation *c, luattn_image **image, luattn_compile_report *report, luattn_error *err);

/* Rebuilds c->at as `image` was made, which may have other tiles than the first choice. Errors:
 * LUATTN_INVALID (the image is not of this spec and target). */
luattn_status pipeline_source_of(compilation *c, const luattn_image *image, luattn_error *err);

#endif
