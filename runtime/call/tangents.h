/* tangents.h: the tangents of a call: tensors like those that they belong to. */
#ifndef LUATTN_RUNTIME_TANGENTS_H
#define LUATTN_RUNTIME_TANGENTS_H

#include "runtime/call/args_call.h"

/* Called after args_fill: checks the tangents of a call as args_fill checks what they belong to, and fills *out
 * alike, where a tensor that has no tangent stands itself. Errors: LUATTN_INVALID. */
luattn_status tangents_fill(const args_call *c, const luattn_tangents *t, LuattnCallParams *out);

/* The same for a kernel with tangents, whose parameters it fills. Errors besides: other tangents than the kernel's. */
luattn_status tangents_take(const args_call *c, const luattn_tangents *t, LuattnCallParams *out);

/* Where the parameters of the image's kernels have tangents, and what mods take beside them. */
static inline LuattnTangents *tangents_place(const image_manifest *m, LuattnCallParams *all) {
  return m->over_grid ? &all->grid_tangents.tangents : &all->tangents;
}
static inline LuattnTangentMods *tangents_mods_place(const image_manifest *m, LuattnCallParams *all) {
  return m->over_grid ? &all->grid_tangents.mods : &all->tangent_mods;
}

/* Checks that tangents which are written overlap nothing else of the call. */
luattn_status tangents_apart(const args_call *c, const luattn_tangents *t, size_t workspace_size);

#endif
