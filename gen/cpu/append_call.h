/* append_call.h: luattn_append on the CPU, where the spec's mods are applied to new rows. */
#ifndef LUATTN_GEN_CPU_APPEND_CALL_H
#define LUATTN_GEN_CPU_APPEND_CALL_H

#include "luattn/batch.h"
#include "luattn/compiler.h"

/* Writes new_k and new_v to the cache through key_mod and value_mod. The runtime has checked the arguments, and that
 * numbers of pages are right. Errors: LUATTN_INVALID (an input that is shorter than the rows of an entry),
 * LUATTN_NO_MEMORY. */
luattn_status cpu_append(const luattn_spec *spec, const luattn_append_args *args, luattn_error *err);

#endif
