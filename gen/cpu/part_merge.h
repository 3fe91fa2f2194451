/* part_merge.h: merges finished parts on the CPU (luattn/merge.h), in double. */
#ifndef LUATTN_GEN_PART_MERGE_H
#define LUATTN_GEN_PART_MERGE_H

#include <stdbool.h>

#include "abi/merge_params.h"
#include "common/fail.h"
#include "luattn/tensors.h"

/* Types of o of the parts, of the merged o, and of lse. */
typedef struct part_merge_types {
  luattn_dtype part, elem, real;
} part_merge_types;

/* Computes rows first .. end - 1, of p->rows, by lse. */
void part_merge_rows(const LuattnMergeParams *p, const part_merge_types *types, bool backward, int64_t first,
                     int64_t end);

/* The same by the state of a spec of parts, forward. */
typedef struct state_merge state_merge;
struct luattn_spec;
/* For any number of threads; the caller frees it. Errors: LUATTN_NO_MEMORY. */
luattn_status state_merge_open(const struct luattn_spec *spec, state_merge **out, luattn_error *err);
void state_merge_close(state_merge *m);
luattn_status state_merge_rows(const state_merge *m, const LuattnMergeParams *p, const part_merge_types *types,
                               int64_t first, int64_t end, luattn_error *err);

#endif
