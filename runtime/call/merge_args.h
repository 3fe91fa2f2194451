/* merge_args.h: the arguments of luattn_merge and luattn_merge_backward (luattn/merge.h). */
#ifndef LUATTN_RUNTIME_MERGE_ARGS_H
#define LUATTN_RUNTIME_MERGE_ARGS_H

#include <stdbool.h>

#include "abi/merge_params.h"
#include "luattn/merge.h"

/* What a call asks for. */
typedef struct merge_call {
  LuattnMergeParams params;
  luattn_dtype part, elem; /* types of o of the parts, and of the merged o */
  int size;      /* 0, 1, 2: of kernels for up to 2, 4 and LUATTN_MERGE_MAX parts, the least that takes them */
  bool is_empty; /* there are no rows */
} merge_call;

/* The caller's struct in this version. */
luattn_status merge_args_take(const luattn_merge_args *given, luattn_pass pass, luattn_merge_args *out,
                              luattn_error *err);
/* Checks the arguments for `device`, or LUATTN_CPU, and fills *out. With args->spec, num_rows and num_saved are those
 * of its parts. */
typedef struct merge_rows {
  int num_rows, num_saved;
} merge_rows;
luattn_status merge_args_fill(const luattn_merge_args *args, luattn_pass pass, int device, const merge_rows *rows,
                              merge_call *out, luattn_error *err);

#endif
