/* tangent_bits.h: which tangents a call gives, as the bits of luattn_target.tangents. Host only. */
#ifndef LUATTN_COMMON_TANGENT_BITS_H
#define LUATTN_COMMON_TANGENT_BITS_H

#include <string.h>

#include "luattn/compiler.h"
#include "luattn/tensors.h"

/* The inputs and scalars are those of the spec or of a kernel. Names that are none of these have no bit; a launch refuses
 * them. */
static inline uint64_t tangent_bits(const luattn_tangents *t, const luattn_input_info *inputs, size_t num_inputs,
                                    const char *const *scalar_names, size_t num_scalars) {
  uint64_t bits = (t->q != NULL ? LUATTN_TANGENT_Q : 0) | (t->k != NULL ? LUATTN_TANGENT_K : 0) |
                  (t->v != NULL ? LUATTN_TANGENT_V : 0) | (t->dout != NULL ? LUATTN_TANGENT_DOUT : 0) |
                  (t->dlse != NULL ? LUATTN_TANGENT_DLSE : 0);
  for (size_t i = 0; i < t->num_inputs && t->inputs != NULL; ++i)
    for (size_t at = 0; at < num_inputs && t->inputs[i].name != NULL; ++at)
      if (t->inputs[i].tensor != NULL && strcmp(t->inputs[i].name, inputs[at].name) == 0)
        bits |= LUATTN_TANGENT_INPUT(at);
  for (size_t i = 0; i < t->num_scalars && t->scalars != NULL; ++i)
    for (size_t at = 0; at < num_scalars && t->scalars[i].name != NULL; ++at)
      if (strcmp(t->scalars[i].name, scalar_names[at]) == 0) bits |= LUATTN_TANGENT_SCALAR(at);
  return bits;
}

#endif
