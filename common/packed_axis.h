/* packed_axis.h: which axis of an input follows packed sequences. */
#ifndef LUATTN_COMMON_PACKED_AXIS_H
#define LUATTN_COMMON_PACKED_AXIS_H

#include "luattn/image.h"

/* The axis along which an input has the rows of all sequences, one after another: its first axis q, or its first axis kv if
 * it has no axis q. Other axes q and kv have a place for each position of the longest sequence. -1: the input has neither. */
static inline int packed_axis(const luattn_input_info *in) {
  int found = -1;
  for (uint32_t a = in->num_axes; a-- > 0;)
    if (in->axis[a] == LUATTN_AXIS_KV) found = (int)a;
  for (uint32_t a = in->num_axes; a-- > 0;)
    if (in->axis[a] == LUATTN_AXIS_Q) found = (int)a;
  return found;
}

#endif
