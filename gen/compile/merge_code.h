/* merge_code.h: compiles kernels that no image has: merges of finished parts (luattn/merge.h), page tables
 * (luattn/pages.h), neighborhood attention in two steps (luattn/natten.h). */
#ifndef LUATTN_GEN_MERGE_CODE_H
#define LUATTN_GEN_MERGE_CODE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/fail.h"
#include "luattn/image.h"

struct luattn_spec;

typedef struct merge_code_target {
  luattn_pass pass;
  int most_parts;
  luattn_dtype part, elem; /* of the parts' O, and of the merged O */
  int arch, driver_version;
  const char *nvrtc;              /* as in luattn_target */
  const struct luattn_spec *spec; /* of parts (luattn_spec_parts), which are merged by state; NULL: by lse */
} merge_code_target;

/* What a spec of parts says of a merge. */
typedef struct merge_code_rows {
  const char *name;
  int num_rows, num_saved;         /* of a row's state, and of what backward reads */
  uint64_t hash[2], whole_hash[2]; /* and that of the spec that it was made of */
  bool whole_rows;                 /* backward needs all keys of a row at once */
} merge_code_rows;
/* Errors: LUATTN_INVALID: luattn_spec_parts has not made it. */
luattn_status merge_code_get_rows(const struct luattn_spec *spec, merge_code_rows *out, luattn_error *err);

/* The cubin, of *size bytes, which the caller frees. Errors: LUATTN_COMPILE, LUATTN_UNSUPPORTED (no NVRTC knows the
 * architecture), LUATTN_NO_MEMORY. */
luattn_status merge_code(const merge_code_target *target, void **cubin, size_t *size, luattn_error *err);
/* The same of luattn_page_table's kernel. */
luattn_status page_table_code(int arch, int driver_version, const char *library, void **cubin, size_t *size,
                              luattn_error *err);
/* The same of luattn_na_qk and luattn_na_av, for tensors of this type. */
luattn_status na_taps_code(luattn_dtype type, int arch, int driver_version, const char *library, void **cubin,
                           size_t *size, luattn_error *err);

#endif
