/* args.h: checks the caller's luattn_args against an image's manifest, and fills the parameters of its kernels. */
#ifndef LUATTN_RUNTIME_ARGS_H
#define LUATTN_RUNTIME_ARGS_H

#include "runtime/call/args_call.h"

/* Fills *params, except for the workspace's fields, of which all are zero. With shapes_only, reads q, k, v and the
 * inputs only. */
luattn_status args_fill(const args_call *c, LuattnCallParams *params);

/* Called after args_fill with shapes_only: the arrays on the device that say what a call's sequences are. */
luattn_status args_fill_arrays(const args_call *c, LuattnCallParams *params);

/* Called after args_fill: checks that outputs, and the workspace's first bytes, overlap nothing else. */
luattn_status args_apart(const args_call *c, size_t workspace_size);

#endif
