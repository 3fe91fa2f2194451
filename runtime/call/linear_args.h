/* linear_args.h: checks the arguments of linear attention, and fills what its kernels take. */
#ifndef LUATTN_RUNTIME_LINEAR_ARGS_H
#define LUATTN_RUNTIME_LINEAR_ARGS_H

#include "abi/linear_params.h"
#include "luattn/linear.h"
#include "runtime/call/args_call.h"

typedef struct linear_call {
  const luattn_linear_args *args; /* of this version's size */
  luattn_args shared;             /* inputs and scalars, as `c` has them */
  args_call c;
  LuattnLinearParams p;
  int64_t blocks; /* of one segment of each entry */
  int warps;      /* of a block that a launch may give fewer; else 0 */
  size_t workspace;
} linear_call;

/* Fills *out, with segments but for their memory. shapes_only: as in args_call. Errors: LUATTN_INVALID. */
luattn_status linear_args_fill(const luattn_kernel *kernel, const luattn_linear_args *args, bool shapes_only,
                               linear_call *out, luattn_error *err);

/* Refuses outputs that share memory with other tensors or the workspace, a workspace that is too small, and with
 * LUATTN_CHECK=1 rows of states and sequences that there are not. Then places segments. */
luattn_status linear_args_check(const luattn_kernel *kernel, linear_call *call, void *stream);

#endif
