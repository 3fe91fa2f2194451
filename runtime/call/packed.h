/* packed.h: the arguments of packed sequences. */
#ifndef LUATTN_RUNTIME_PACKED_H
#define LUATTN_RUNTIME_PACKED_H

#include "abi/params.h"
#include "runtime/call/args_call.h"

/* Fills lengths, heads and cu_seqlens of a packed image's call; of a dense image's, checks that there are
 * none. */
luattn_status packed_fill(const args_call *c, LuattnCallParams *params);
/* Fills the used lengths of a call that packed_fill has accepted; NULL: it gives none. */
luattn_status packed_used(const args_call *c, LuattnUsed *out);
/* With LUATTN_CHECK=1, waits for the stream and checks the lengths that are on the device. */
luattn_status packed_check(const luattn_kernel *kernel, const args_call *c, const LuattnPacked *packed,
                           const LuattnUsed *used, cu_stream stream);

#endif
