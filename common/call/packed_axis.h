/* packed_axis.h: which axis of an input follows packed sequences. */
#ifndef LUATTN_COMMON_PACKED_AXIS_H
#define LUATTN_COMMON_PACKED_AXIS_H

#include <stdbool.h>

#include "luattn/image.h"

/* The axis along which an input has the rows of all sequences, one after another: its first axis q, or its first axis
 * kv if it has no axis q. Other axes q and kv have a place for each position of the longest sequence. -1: the input has
 * neither. */
static inline int packed_axis(const luattn_input_info *in) {
  int found = -1;
  for (uint32_t a = in->num_axes; a-- > 0;)
    if (in->axis[a] == LUATTN_AXIS_KV) found = (int)a;
  for (uint32_t a = in->num_axes; a-- > 0;)
    if (in->axis[a] == LUATTN_AXIS_Q) found = (int)a;
  return found;
}

/* The same where q is packed or not, and k and v are in pages or not: keys in pages do not follow one another. */
static inline int packed_axis_of(const luattn_input_info *in, bool packed, bool paged) {
  const int axis = packed ? packed_axis(in) : -1;
  return axis >= 0 && paged && in->axis[axis] == LUATTN_AXIS_KV ? -1 : axis;
}

#endif
