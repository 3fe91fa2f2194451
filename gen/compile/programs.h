/* programs.h: compiles an attempt as NVRTC programs: one for all kernels, or one for the main kernel and one
 * for the others. */
#ifndef LUATTN_GEN_PROGRAMS_H
#define LUATTN_GEN_PROGRAMS_H

#include "gen/base/hash.h"
#include "gen/compile/compilation.h"

/* Whether an image has kernels besides its main one, so that luattn_target.one_code makes a difference. */
bool programs_may_be_two(const image_manifest *m);

/* Compiles c->at, two programs at once (c->second is open). ptxas results of both are in *main; `others` has
 * a code, or is empty. */
luattn_status programs_compile(const compilation *c, const nvrtc *lib, int want_ptx, nvrtc_result *main,
                               nvrtc_result *others, luattn_error *err);
/* The PTX of all kernels, in one text. */
luattn_status programs_ptx(const compilation *c, const nvrtc *lib, nvrtc_result *out, luattn_error *err);
luattn_status programs_image(const compilation *c, image_manifest *info, const nvrtc_result *main,
                             const nvrtc_result *others, luattn_image **image, luattn_error *err);
/* Keeps the source that NVRTC refused in `dir`, and adds its path to the message. */
void programs_keep(const compilation *c, const char *dir, hash128 key, luattn_error *err);

#endif
