/* linear_image.h: the image of a linear attention: from the cache, or compiled. */
#ifndef LUATTN_GEN_COMPILE_LINEAR_IMAGE_H
#define LUATTN_GEN_COMPILE_LINEAR_IMAGE_H

#include "luattn/compiler.h"

/* luattn_compile, for a spec of linear attention. `report` may be NULL. */
luattn_status linear_image_make(const luattn_spec *spec, const luattn_target *target, luattn_image **image,
                                luattn_compile_report *report, luattn_error *err);

#endif
