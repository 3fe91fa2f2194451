/* overlap.h: whether tensors that a call writes have memory of their own. For the GPU and the CPU path. */
#ifndef LUATTN_OVERLAP_H
#define LUATTN_OVERLAP_H

#include <stdbool.h>

#include "luattn/tensors.h"

/* The axes of a tensor nest: each stride spans all that the smaller ones reach, so that no two elements share
 * memory. Layouts that interleave two axes without sharing do not nest either; no library makes such tensors. */
bool overlap_nests(const DLTensor *t);

/* Two tensors of one call, as messages name them, and the bytes [low, high) that each spans. */
typedef struct overlap_pair {
  char output[96], other[96];
  uintptr_t low[2], high[2];
} overlap_pair;

/* Finds an output of the pass that shares memory with another of its tensors, or with the workspace. Of
 * tensors with gaps, such as dq, dk and dv in one array [batch, length, 3, heads, head_dim], it knows that they
 * do where they begin at the same element; of others, wherever they meet. Passes over tensors that the pass
 * does not use and those without data or elements, or of more than four axes, which are refused elsewhere. */
bool overlap_find(const luattn_args *args, bool is_forward, overlap_pair *found);

/* Of what overlap_find has found: a message without its place. */
void overlap_text(const overlap_pair *pair, char *text, size_t size);

#endif
