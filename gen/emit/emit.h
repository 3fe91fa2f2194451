/* emit.h: expressions to CUDA text. spec.cuh fulfils templates/contract/contract.cuh; config.cuh names the plan's
 * constants. */
#ifndef LUATTN_GEN_EMIT_H
#define LUATTN_GEN_EMIT_H

#include "common/fail.h"
#include "gen/plan/plan.h"

/* What the emitted spec asks of the image that is made from it. */
typedef struct emitted {
  const char *spec;     /* text of spec.cuh */
  const char *outlined; /* lines for the plan: hooks that are called instead of inlined */
  int outlined_work;    /* instructions of all calls that stand in one copy of each loop */
  int num_bwd_rows;
  plan_rows rows;
  bool small_dots;    /* weighs them apart: small.c */
  bool crowded;       /* is known to do better in other tiles than the plan's */
  uint32_t pairs[12]; /* luattn_input_info.pairs */
  int64_t max_len;    /* longest lengths for which the arithmetic on positions is exact */
} emitted;

/* Builds in spec->traced.g, which must be the caller's own clone. */
luattn_status emit_spec(arena *a, const struct luattn_spec *spec, const mask_info *mask, const plan *p,
                        emitted *out, luattn_error *err);
luattn_status emit_config(arena *a, const plan *p, const plan_rows *rows, const char **text,
                          luattn_error *err);

#endif
