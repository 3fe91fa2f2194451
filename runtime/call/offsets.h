/* offsets.h: the offsets of a call whose tensors are parts of a whole (luattn/batch.h). */
#ifndef LUATTN_RUNTIME_OFFSETS_H
#define LUATTN_RUNTIME_OFFSETS_H

#include "abi/params.h"
#include "runtime/call/args_call.h"

/* Fills the parameters of an image with offsets; for another image, checks that the call has none. Called
 * after the shape is known. */
luattn_status offsets_fill(const args_call *c, LuattnCallParams *params);

#endif
