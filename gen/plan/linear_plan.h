/* linear_plan.h: chooses the kernels of a linear attention, and says why. */
#ifndef LUATTN_GEN_LINEAR_PLAN_H
#define LUATTN_GEN_LINEAR_PLAN_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "gen/base/arena.h"
#include "gen/spec.h"
#include "luattn/compiler.h"

typedef struct linear_entry {
  const char *name; /* of the kernel */
  luattn_role role;
  int threads, shared_bytes;
  bool early; /* it waits for the kernel before itself (arch/early_launch.cuh) */
} linear_entry;

typedef struct linear_plan {
  const struct linear_family *family;
  luattn_dtype dtype;
  luattn_pass pass;
  int k_dim, v_dim;
  int v_block;                 /* value channels of a block: the most */
  int v_part;                  /* of a part of a state, of those that walk tokens */
  int v_warp;                  /* of a warp, where a launch may give blocks fewer warps; else 0 */
  int stages;                  /* of q, k and v; 0: config.cuh has none */
  const char *source;          /* the file among the templates */
  int ring, step;              /* the most rows of a ring, tokens of a step; 0: there is none */
  int run, keys, numbers_kept; /* manifest_linear */
  int ring_width;              /* of a row's sums of decays */
  int room, token_numbers;     /* manifest_linear */
  bool ring_erases;
  bool packed, erases, normalizes;
  bool cuts;     /* entries may be cut into segments */
  bool has_ways; /* backward: some gradient is of numbers of tokens; linear_source.c, as is */
  unsigned made; /* bits: rows of q, k and v that a kernel makes; linear_source.c */
  int num_entries;
  linear_entry entry[MANIFEST_MAX_ENTRIES];
  const char *constants; /* more lines of config.cuh, or NULL */
  const char *why;
} linear_plan;

/* Refuses numbers that no target has, and choices of attention alone. Errors: LUATTN_INVALID, LUATTN_UNSUPPORTED. */
luattn_status linear_plan_check(const luattn_target *target, luattn_error *err);

/* How many families there are, and the plan of number i of them for a target of this version's size whose head_dim_v is
 * said. Errors: LUATTN_UNSUPPORTED (what of the target the family lacks), LUATTN_NO_MEMORY. */
int linear_plan_families(void);
/* Whether family number i computes what the target asks for at all. */
bool linear_plan_is_of(int i, const luattn_target *target);
const char *linear_plan_family_name(int i);
luattn_status linear_plan_make(arena *a, const luattn_spec *spec, const luattn_target *target, int i, linear_plan *out,
                               luattn_error *err);

#endif
