/* plan.h: which kernel family, tiles and stages, and why. A plan is data; it is what config.cuh is printed from. */
#ifndef LUATTN_GEN_PLAN_H
#define LUATTN_GEN_PLAN_H

#include "gen/analysis/analysis.h"

typedef struct plan_entry {
  const char *name;   /* "luattn_fwd" */
  luattn_role role;
  int threads, shared_bytes, tile_m, tile_n;
} plan_entry;

typedef struct plan {
  luattn_pass pass;
  luattn_family family;
  luattn_dtype dtype;
  int arch;
  char arch_suffix;   /* 'a' or 0 */
  int head_dim, head_dim_v;
  int tile_m, tile_n, stages, threads;
  unsigned wants;
  bool accumulates_dq, fast_math;
  const char *template_file; /* entry file among the templates: "fwd_simt.cu" */
  int num_entries;
  plan_entry entry[LUATTN_MAX_ENTRIES];
  const char *why;    /* one line per fact */
} plan;

/* Errors: LUATTN_INVALID (a forced tile that cannot be, by name and number), LUATTN_UNSUPPORTED. */
luattn_status plan_choose(arena *a, const struct luattn_spec *spec, const luattn_target *target, plan *out, luattn_error *err);

#endif
