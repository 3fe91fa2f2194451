/* pass_launches.h: the row passes that a backward launches before its own kernels: forward passes with other weights
 * (gen/compile/pass_spec.h). */
#ifndef LUATTN_RUNTIME_PASS_LAUNCHES_H
#define LUATTN_RUNTIME_PASS_LAUNCHES_H

#include "runtime/launch/launch_kernel.h"

/* A tensor, and the memory of its shape. */
typedef struct sized_tensor {
  DLTensor tensor;
  int64_t shape[4];
} sized_tensor;

/* A pass, and the arguments that its launch points to. */
typedef struct pass_launch {
  kernel_launch launch;
  luattn_args args;
  luattn_input input[LUATTN_MAX_INPUTS];
  sized_tensor row[LUATTN_MAX_INPUTS], o, sums;
  int64_t lse_strides[3]; /* of such rows as lse is */
} pass_launch;

/* Of one launch, for which it has to stay where it is; 0 of a forward. */
typedef struct pass_launches {
  uint32_t count;
  pass_launch pass[MANIFEST_MAX_PASSES];
} pass_launches;

/* Fills the launches of all passes, and takes room for what they leave for prepare, which is entered into
 * p->all.passes, and for a workspace that they share. After all parts are taken. Errors: LUATTN_INVALID (arguments that
 * a pass refuses; more than can be addressed). */
luattn_status pass_launches_take(const luattn_kernel *kernel, const args_call *c, prepared *p, pass_launches *out);

/* As kernel_launch_check of each, and kernel_launch_describe and kernel_launch_start. */
luattn_status pass_launches_check(pass_launches *l, cu_stream stream);
luattn_status pass_launches_start(pass_launches *l, cu_stream stream);

#endif
