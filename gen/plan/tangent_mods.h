/* tangent_mods.h: which of q, k and v have tangents once query_mod, key_mod and value_mod have been applied, and which of
 * their gradients kernels need beside the tangents of these. */
#ifndef LUATTN_GEN_TANGENT_MODS_H
#define LUATTN_GEN_TANGENT_MODS_H

#include "gen/spec.h"

/* bits: luattn_target.tangents. LUATTN_TANGENT_Q, K and V of what may differ from 0: what a mod makes has a tangent if its tensor has, or
 * something else that the mod reads. */
unsigned tangent_mods_of(const traced_spec *t, uint64_t bits);

/* Of backward: the tensors whose mods have derivatives with tangents of their own, which the gradients behind the mods are
 * multiplied by. */
unsigned tangent_mods_values(const struct luattn_spec *spec, uint64_t bits);

#endif
