/* inputs.h: a spec's extra inputs and scalars, which a call gives by name. */
#ifndef LUATTN_RUNTIME_INPUTS_H
#define LUATTN_RUNTIME_INPUTS_H

#include "runtime/call/args_call.h"

luattn_status args_inputs(const args_call *c, LuattnParams *params);
luattn_status args_some_inputs(const args_call *c, unsigned which,
                               LuattnParams *params); /* bit i: input i; others may be missing */
luattn_status args_scalars(const args_call *c, LuattnParams *params);

#endif
