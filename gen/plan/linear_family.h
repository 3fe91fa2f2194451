/* linear_family.h: a family of kernels of linear attention: what of a spec and of a target it takes, and how it is planned.
 * One that is new is a file here, a row of linear_families.def, its kernels in templates/linear/ and their entries in
 * templates/entry/. The first row that takes both is used. */
#ifndef LUATTN_GEN_LINEAR_FAMILY_H
#define LUATTN_GEN_LINEAR_FAMILY_H

#include "gen/plan/linear_plan.h"

/* What of a spec kernels take beyond: an additive update, a decay of nothing, a head or a token, numbers of tokens, any
 * value_mod and skip without sums over channels. */
enum {
  LINEAR_TAKES_READ = 1 << 0,          /* update.read: a number of the token times k */
  LINEAR_TAKES_READ_ROWS = 1 << 1,     /* any vector */
  LINEAR_TAKES_ERASE = 1 << 2,         /* update.erase */
  LINEAR_TAKES_BEFORE = 1 << 3,        /* update.before */
  LINEAR_TAKES_CHANNEL_DECAY = 1 << 4, /* a decay of channels */
  LINEAR_TAKES_WRITE_ROWS = 1 << 5,    /* update.write of channels of v */
  LINEAR_TAKES_NORMALIZE = 1 << 6
};

typedef struct linear_family {
  const char *name;
  luattn_family family; /* which argument rules a launch follows, and --family */
  luattn_pass pass;     /* the one that it computes */
  bool by_ring;         /* whether it has a ring: targets whose decode is 2 */
  unsigned takes;       /* LINEAR_TAKES_..; 0 where whole_hooks */
  bool whole_hooks;     /* takes hooks as gen/lower/linear_whole_hooks.h has them, and so any */
  /* Whether the target, whose head_dim_v is said, asks for what the kernels have. Errors: LUATTN_UNSUPPORTED. */
  luattn_status (*check)(const luattn_target *t, luattn_error *err);
  /* Fills a plan that is 0 but for dtype, pass, dims, packed and erases: entries, `source`, `why`, .. */
  void (*plan)(arena *a, const luattn_spec *spec, const luattn_target *t, linear_plan *p);
} linear_family;

#define LINEAR_FAMILY(name) extern const linear_family name;
#include "gen/plan/linear_families.def"

/* Adds an entry, in launch order. */
static inline void linear_plan_add(linear_plan *p, const char *name, luattn_role role, int threads, int shared_bytes) {
  p->entry[p->num_entries++] = (linear_entry){name, role, threads, shared_bytes, false};
}

#endif
