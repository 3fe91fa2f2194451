/* weights_array.h: the array of weights that luattn_launch_weights writes. */
#ifndef LUATTN_RUNTIME_WEIGHTS_ARRAY_H
#define LUATTN_RUNTIME_WEIGHTS_ARRAY_H

#include "abi/params.h"
#include "runtime/call/args_call.h"

/* Leaves in the arguments of a call for weights what such a kernel reads. */
void weights_take(luattn_args *args);

/* Checks and fills the array of a call that args_fill has accepted. */
luattn_status weights_fill(const args_call *c, const DLTensor *weights, const LuattnParams *params, LuattnWeights *out);

/* Instead of args_apart: checks that it, and the workspace's first bytes, overlap nothing else. */
luattn_status weights_apart(const args_call *c, const DLTensor *weights, size_t workspace_size);

#endif
