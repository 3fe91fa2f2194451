/* packed.h: the arguments of packed sequences. */
#ifndef LUATTN_RUNTIME_PACKED_H
#define LUATTN_RUNTIME_PACKED_H

#include "abi/params.h"
#include "runtime/args.h"

/* Fills lengths, heads and cu_seqlens of a packed image's call; of a dense image's, checks that there are
 * none. */
luattn_status packed_fill(const args_call *c, LuattnOffsetParams *params);

/* Whether memory starts early enough before a tensor for packed_view. */
bool packed_view_fits(const LuattnTensor *t, int longest, int elem_size);

/* A tensor as its TMA descriptor sees it: the position axis is as long as the longest sequence, `longest`
 * rows of elem_size bytes an element, and ends `longest` rows into memory before the tensor; the last
 * axis, of *entries entries, steps by rows from there. PackedSequence (work/sequence.cuh) computes the
 * coordinates. */
LuattnTensor packed_view(const LuattnTensor *t, int longest, int total, int elem_size, int *entries);

#endif
