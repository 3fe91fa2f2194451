/* random.h: seed and offset of kernels that draw random numbers (luattn_args.random). */
#ifndef LUATTN_RUNTIME_RANDOM_H
#define LUATTN_RUNTIME_RANDOM_H

#include "abi/params.h"
#include "runtime/call/args_call.h"

/* Fills the parameters of an image that draws; another one's are zero, and need no seed. Called after args_fill. */
luattn_status random_fill(const args_call *c, LuattnCallParams *params);

#endif
