/* pairs.h: decides how to sum the gradient of an input if each score adds to one element of it: an element
 * gets at most one term, or its sum is the same in any order, or kernels keep a fixed order of batches. */
#ifndef LUATTN_COMMON_PAIRS_H
#define LUATTN_COMMON_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/call/packed_axis.h"
#include "luattn/image.h"

/* Sizes in elements, also of the input's axes. An index is clamped to an axis that is too short for it. */
typedef struct pairs_sizes {
  double batch, heads, heads_kv, q_len, kv_len, axis[4];
  bool packed; /* entries follow one another along an input's packed axis */
} pairs_sizes;

/* Whether scores of different queries, or keys, add to different elements, and whether batches and heads have
 * axes of their own. */
static inline bool pairs_apart(const luattn_input_info *in, const pairs_sizes *s, bool *by_batch, bool *by_head) {
  const double all[] = {0, s->batch, s->heads, s->q_len, s->kv_len};
  bool has[5] = {false};
  const int packed = s->packed ? packed_axis(in) : -1;
  for (uint32_t a = 0; a < in->num_axes; a++) {
    const uint32_t index = in->pairs >> 4 * a & 15;
    if ((int)a == packed && index == (in->axis[a] == LUATTN_AXIS_Q ? LUATTN_INDEX_Q : LUATTN_INDEX_KV))
      has[LUATTN_INDEX_B] = true; /* each entry has rows of its own */
    if (index == LUATTN_INDEX_B && packed >= 0 && s->axis[a] < all[index]) continue;
    if (s->axis[a] < all[index]) return false;
    has[index] = true;
  }
  *by_batch = has[LUATTN_INDEX_B];
  *by_head = has[LUATTN_INDEX_H];
  return has[LUATTN_INDEX_Q] && has[LUATTN_INDEX_KV];
}

/* Whether at most n numbers are added to an element. */
static inline bool pairs_at_most(const luattn_input_info *in, const pairs_sizes *s, int n) {
  bool by_batch, by_head;
  return pairs_apart(in, s, &by_batch, &by_head) && (by_batch ? 1 : s->batch) * (by_head ? 1 : s->heads) <= n;
}

/* Whether an element gets at most one term, which may then be stored instead of added. */
static inline bool pairs_alone(const luattn_input_info *in, const pairs_sizes *s) { return pairs_at_most(in, s, 1); }

/* Whether an element, which starts at 0, gets at most two terms: a + b is b + a. */
static inline bool pairs_in_any_order(const luattn_input_info *in, const pairs_sizes *s) {
  return pairs_at_most(in, s, 2);
}

/* Whether all terms of an element come from one kv head and kv tile, of any batch: one thread then adds them
 * in program order. */
static inline bool pairs_in_batch_order(const luattn_input_info *in, const pairs_sizes *s) {
  bool by_batch, by_head;
  return pairs_apart(in, s, &by_batch, &by_head) && (by_head || s->heads_kv == 1);
}

#endif
