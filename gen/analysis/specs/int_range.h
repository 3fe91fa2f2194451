/* int_range.h: finds i32 inputs that a spec computes with, and warns of values beyond those that kernels compute
 * with. */
#ifndef LUATTN_GEN_INT_RANGE_H
#define LUATTN_GEN_INT_RANGE_H

#include <stdbool.h>

#include "luattn/compiler.h"

/* Integers are less than this from 0 where a spec computes with them (ir_int_limit); compared, chosen, taken bits of
 * and used as indices they may be any. */
#define INT_RANGE 0x1p24

/* Fills traced.inexact_ints, once at load. false: out of memory. */
struct traced_spec;
bool int_range_find(struct traced_spec *t);

typedef enum int_range_hooks {
  INT_RANGE_MASK,
  INT_RANGE_SPEC
} int_range_hooks; /* what is computed: the mask alone, or all hooks */

/* The inputs (a bit each) whose values matter: they are i32, and the hooks compute with them. */
unsigned int_range_inputs(const luattn_spec *spec, int_range_hooks hooks);

enum { INT_RANGE_TEXT = 256 };
/* The warning of the input's values, on the host: "element 3 is 16777217, and ..", to follow the name of the input.
 * false: there is none. */
bool int_range_warning(const luattn_spec *spec, int input, int_range_hooks hooks, const DLTensor *values,
                       char text[INT_RANGE_TEXT]);

#endif
