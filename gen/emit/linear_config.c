/* linear_config.c: prints config.cuh of linear attention, the plan's numbers as named constants. */
#include "common/fail.h"
#include "gen/base/text.h"
#include "gen/emit/linear_spec.h"

luattn_status emit_linear_config(arena *a, const linear_plan *p, const char **out, luattn_error *err) {
  text t;
  text_init(&t, a);
  text_add(&t,
           "// config.cuh: the plan's constants, written by luattn.\n#pragma once\n#include "
           "\"contract/linear.cuh\"\n\nstruct Config {\n  using Elem = %s;\n",
           p->dtype == LUATTN_BF16  ? "bf16_t"
           : p->dtype == LUATTN_F16 ? "half_t"
           : p->dtype == LUATTN_F64 ? "double"
                                    : "float");
  text_add(&t, "  static constexpr LinearPass pass = LINEAR_FORWARD;\n");
  if (p->pass == LUATTN_BACKWARD)
    text_add(&t, "  static constexpr bool deterministic = true, has_ways = %s;\n", p->has_ways ? "true" : "false");
  text_add(&t, "  static constexpr int k_dim = %d, v_dim = %d, v_block = %d", p->k_dim, p->v_dim, p->v_block);
  if (p->stages > 0) text_add(&t, ", stages = %d", p->stages);
  text_add(&t, ";\n%s", p->constants != NULL ? p->constants : "");
  text_add(&t, "  static constexpr bool packed = %s, fast_math = %s;\n};\n", p->packed ? "true" : "false",
           p->dtype == LUATTN_F32 || p->dtype == LUATTN_F64 ? "false" : "true");
  *out = text_get(&t);
  return *out == NULL ? luattn_fail(err, LUATTN_NO_MEMORY, "emit: config: out of memory") : LUATTN_OK;
}
