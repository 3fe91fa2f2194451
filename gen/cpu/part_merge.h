/* part_merge.h: merges finished parts on the CPU (luattn/merge.h), in double. */
#ifndef LUATTN_GEN_PART_MERGE_H
#define LUATTN_GEN_PART_MERGE_H

#include <stdbool.h>

#include "abi/merge_params.h"
#include "luattn/tensors.h"

/* Types of o of the parts, of the merged o, and of lse. */
typedef struct part_merge_types {
  luattn_dtype part, elem, real;
} part_merge_types;

/* Computes rows first .. end - 1, of p->rows. */
void part_merge_rows(const LuattnMergeParams *p, const part_merge_types *types, bool backward, int64_t first, int64_t end);

#endif
