/* merge_code.h: compiles kernels that know no spec: merges of finished parts (luattn/merge.h), page tables (luattn/pages.h). */
#ifndef LUATTN_GEN_MERGE_CODE_H
#define LUATTN_GEN_MERGE_CODE_H

#include "common/fail.h"
#include "luattn/image.h"

typedef struct merge_code_target {
  luattn_pass pass;
  int most_parts;
  luattn_dtype part, elem; /* of the parts' O, and of the merged O */
  int arch, driver_version;
  const char *nvrtc; /* as in luattn_target */
} merge_code_target;

/* The cubin, of *size bytes, which the caller frees. Errors: LUATTN_COMPILE, LUATTN_UNSUPPORTED (no NVRTC knows the
 * architecture), LUATTN_NO_MEMORY. */
luattn_status merge_code(const merge_code_target *target, void **cubin, size_t *size, luattn_error *err);
/* The same of luattn_page_table's kernel. */
luattn_status page_table_code(int arch, int driver_version, const char *library, void **cubin, size_t *size, luattn_error *err);

#endif
