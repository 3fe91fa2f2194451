/* linear_growth.h: decays above 0 of a call of linear attention, which LUATTN_CHECK=1 asks for. */
#ifndef LUATTN_GEN_CPU_LINEAR_GROWTH_H
#define LUATTN_GEN_CPU_LINEAR_GROWTH_H

#include "luattn/linear.h"

/* Computes the decays of forward's arguments alone, on the CPU, and refuses the first one above 0, in the order of entries, heads
 * and tokens. Of q, k, v and states shapes and types are read, no numbers; o may be NULL. `function` begins the message.
 * Errors: LUATTN_INVALID, LUATTN_NO_MEMORY. */
luattn_status linear_refuse_growth(const luattn_spec *spec, const luattn_linear_args *args, const char *function,
                                   luattn_error *err);

#endif
