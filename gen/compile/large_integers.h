/* large_integers.h: refuses integers that leave the 32 bits of kernels at every length. */
#ifndef LUATTN_GEN_LARGE_INTEGERS_H
#define LUATTN_GEN_LARGE_INTEGERS_H

#include "gen/spec.h"

/* n: the node, which reaches this. */
luattn_status large_integers_refuse(const traced_spec *t, const ir_node *n, double reach, luattn_error *err);
/* When a spec is loaded: the CPU accepts what kernels do. */
luattn_status large_integers_check(arena *a, const traced_spec *t, luattn_error *err);

#endif
