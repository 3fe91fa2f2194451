/* pairs.h: whether a gradient of an input is the same in whatever order it is summed. */
#ifndef LUATTN_COMMON_PAIRS_H
#define LUATTN_COMMON_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "luattn/image.h"

/* Numbers of elements, of the input's axes too. An axis that is too short for its index would be clamped to.
 */
typedef struct pairs_sizes {
  double batch, heads, q_len, kv_len, axis[4];
} pairs_sizes;

/* Two numbers at most are added to an element, which is 0 at first: a + b is b + a. */
static inline bool pairs_in_any_order(const luattn_input_info *in, const pairs_sizes *s) {
  const double all[] = {0, s->batch, s->heads, s->q_len, s->kv_len};
  bool has[5] = {false};
  for (uint32_t a = 0; a < in->num_axes; a++) {
    const uint32_t index = in->pairs >> 4 * a & 15;
    if (s->axis[a] < all[index]) return false;
    has[index] = true;
  }
  const double additions = (has[LUATTN_INDEX_B] ? 1 : s->batch) * (has[LUATTN_INDEX_H] ? 1 : s->heads);
  return has[LUATTN_INDEX_Q] && has[LUATTN_INDEX_KV] && additions <= 2;
}

#endif
