/* packed.h: the arguments of packed sequences. */
#ifndef LUATTN_RUNTIME_PACKED_H
#define LUATTN_RUNTIME_PACKED_H

#include "abi/params.h"
#include "runtime/args.h"

/* Fills lengths, heads and cu_seqlens of a packed image's call; of a dense image's, checks that there are
 * none. */
luattn_status packed_fill(const args_call *c, LuattnOffsetParams *params);

#endif
