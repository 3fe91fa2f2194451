/* split.h: splits one online step at its reductions, the form in which kernels and the CPU run it. */
#ifndef LUATTN_GEN_SPLIT_H
#define LUATTN_GEN_SPLIT_H

#include "gen/spec.h"

/* Reduction k is over term[k], an expression of VAR_SCORE, VAR_STATE and VAR_RED[0 .. k-1]; the rest uses
 * VAR_RED in place of the IR_REDUCE_* nodes. Terms come in dependency order. */
typedef struct online_split {
  int num_red;
  ir_op kind[SPEC_MAX_RED]; /* IR_REDUCE_SUM or IR_REDUCE_MAX */
  ir_ref term[SPEC_MAX_RED];
  ir_ref prob, rescale, next[SPEC_MAX_STATE];
} online_split;

/* Errors: LUATTN_SPEC if there are more than SPEC_MAX_RED reductions, LUATTN_NO_MEMORY. */
luattn_status split_online(ir *g, const traced_online *o, const char *file, online_split *out, luattn_error *err);

#endif
