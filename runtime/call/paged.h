/* paged.h: the arguments of keys in pages, or in a cache of which entries use a part. */
#ifndef LUATTN_RUNTIME_PAGED_H
#define LUATTN_RUNTIME_PAGED_H

#include "abi/params.h"
#include "runtime/call/args_call.h"

/* Fills kv_len of a paged image's call, and of dense queries q_len and the batch; of another image's, checks that keys
 * are not in pages. */
luattn_status paged_fill(const args_call *c, LuattnParams *params);
/* Fills what kernels read of pages, of a call that args_fill has accepted. */
luattn_status paged_table(const args_call *c, const LuattnParams *params, LuattnPaging *out);
/* A step of LuattnPagedMaps' last axis, in elements. */
int64_t paged_unit(const LuattnTensor *t);
/* With LUATTN_CHECK=1, waits for the stream and checks lengths and numbers of pages that are on the device. */
luattn_status paged_check(const luattn_kernel *kernel, const args_call *c, const LuattnCallParams *params,
                          cu_stream stream);

#endif
