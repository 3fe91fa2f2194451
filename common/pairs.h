/* pairs.h: whether a gradient of an input, to which each score adds at one place, takes one number for each
 * element, is the same in whatever order kernels sum it, or comes in a fixed order if they see to that of
 * batches. */
#ifndef LUATTN_COMMON_PAIRS_H
#define LUATTN_COMMON_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "luattn/image.h"

/* Numbers of elements, of the input's axes too. An axis that is too short for its index would be clamped to.
 */
typedef struct pairs_sizes {
  double batch, heads, heads_kv, q_len, kv_len, axis[4];
} pairs_sizes;

/* Where scores of different queries, or keys, add to different elements: whether batches and heads have an
 * axis of their own. */
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

/* Not more than n numbers are added to an element. */
static inline bool pairs_at_most(const luattn_input_info *in, const pairs_sizes *s, int n) {
  bool by_batch, by_head;
  return pairs_apart(in, s, &by_batch, &by_head) && (by_batch ? 1 : s->batch) * (by_head ? 1 : s->heads) <= n;
}

/* One alone: it may be stored. */
static inline bool pairs_alone(const luattn_input_info *in, const pairs_sizes *s) {
  return pairs_at_most(in, s, 1);
}

/* Two at most, to an element that is 0 at first: a + b is b + a. */
static inline bool pairs_in_any_order(const luattn_input_info *in, const pairs_sizes *s) {
  return pairs_at_most(in, s, 2);
}

/* All that is added to an element comes from one kv head and kv tile, of whatever batches: from one thread,
 * which adds in the order of its program. */
static inline bool pairs_in_batch_order(const luattn_input_info *in, const pairs_sizes *s) {
  bool by_batch, by_head;
  return pairs_apart(in, s, &by_batch, &by_head) && (by_head || s->heads_kv == 1);
}

#endif
