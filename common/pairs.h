/* pairs.h: decides how the gradient of an input to which each score adds at one place is summed: at most one
 * term per element, a sum that is the same in any order, or a fixed order that kernels keep for batches. */
#ifndef LUATTN_COMMON_PAIRS_H
#define LUATTN_COMMON_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "luattn/image.h"

/* Sizes in elements, also of the input's axes. An index is clamped to an axis that is too short for it. */
typedef struct pairs_sizes {
  double batch, heads, heads_kv, q_len, kv_len, axis[4];
} pairs_sizes;

/* Whether scores of different queries, or keys, add to different elements, and whether batches and heads have
 * axes of their own. */
static inline bool pairs_apart(const luattn_input_info *in, const pairs_sizes *s, bool *by_batch,
                               bool *by_head) {
  const double all[] = {0, s->batch, s->heads, s->q_len, s->kv_len};
  bool has[5] = {false};
  for (uint32_t a = 0; a < in->num_axes; a++) {
    const uint32_t index = in->pairs >> 4 * a & 15;
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

/* At most one: it may be stored instead of added. */
static inline bool pairs_alone(const luattn_input_info *in, const pairs_sizes *s) {
  return pairs_at_most(in, s, 1);
}

/* At most two, to an element that starts at 0: a + b is b + a. */
static inline bool pairs_in_any_order(const luattn_input_info *in, const pairs_sizes *s) {
  return pairs_at_most(in, s, 2);
}

/* Everything added to an element comes from one kv head and kv tile, of any batch: from one thread, in
 * program order. */
static inline bool pairs_in_batch_order(const luattn_input_info *in, const pairs_sizes *s) {
  bool by_batch, by_head;
  return pairs_apart(in, s, &by_batch, &by_head) && (by_head || s->heads_kv == 1);
}

#endif
