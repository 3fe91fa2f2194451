/* overlap.h: checks that the tensors that a call writes overlap no others. Shared by the GPU and the CPU
 * path. */
#ifndef LUATTN_OVERLAP_H
#define LUATTN_OVERLAP_H

#include <stdbool.h>

#include "luattn/tensors.h"

enum { OVERLAP_MOST_AXES = 8 }; /* of a tensor */

/* The axes of a tensor nest: each stride spans all that the smaller ones reach, so that no two elements share
 * memory. Layouts that interleave two axes without sharing do not nest either; no library makes such
 * tensors. */
bool overlap_nests(const DLTensor *t);

/* Two tensors of one call, as messages name them, and the bytes [low, high) that each spans. */
typedef struct overlap_pair {
  char output[96], other[96];
  uintptr_t low[2], high[2];
} overlap_pair;

/* Finds an output of the pass that shares a byte with another of its tensors, or with the workspace; tensors may lie between
 * each other's rows, as dq, dk and dv do in one array [batch, length, 3, heads, head_dim]. Of two layouts whose strides
 * have little to do with each other it may miss that they meet. Ignores tensors that the pass does not use and those without
 * data or elements, or of more axes than OVERLAP_MOST_AXES, which are refused elsewhere. */
bool overlap_find(const luattn_args *args, bool is_forward, overlap_pair *found);

/* The same among tensors of another call, as it names them. `t` NULL: not given. */
typedef struct overlap_item {
  const char *name;
  const DLTensor *t;
  bool is_output;
} overlap_item;
bool overlap_find_among(const overlap_item *items, int n, overlap_pair *found);

/* Describes what overlap_find found, without the place. */
void overlap_text(const overlap_pair *pair, char *text, size_t size);

/* How far the elements of a tensor lie before and after its first one, in elements. An axis of one element
 * has no stride. */
typedef struct overlap_reach {
  uint64_t below, above;
  bool wraps;
} overlap_reach;

static inline void overlap_reach_add(overlap_reach *r, int64_t elements, int64_t stride) {
  const uint64_t step = stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
  uint64_t *sum = stride < 0 ? &r->below : &r->above, reach;
  if (elements <= 1) return;
  r->wraps |= __builtin_mul_overflow((uint64_t)elements - 1, step, &reach);
  r->wraps |= __builtin_add_overflow(*sum, reach, sum);
}

/* Checks that the addresses of all elements fit in 64 bits: strides in bytes, and these with `data` and its
 * byte_offset. data NULL: the strides alone count. An element has at most 8 bytes. */
static inline bool overlap_reach_ok(const overlap_reach *r, const DLTensor *t, const void *data) {
  const uint64_t size = t->dtype.bits / 8u;
  uint64_t first;
  if (r->wraps || (r->below | r->above) >> 59 != 0) return false;
  if (data == NULL) return true;
  return !__builtin_add_overflow((uint64_t)(uintptr_t)data, t->byte_offset, &first) && first >= r->below * size &&
         (r->above + 1) * size <= UINT64_MAX - first;
}

/* Describes a tensor that fails the check; follows its name. */
void overlap_reach_text(const DLTensor *t, char *text, size_t size);

#endif
