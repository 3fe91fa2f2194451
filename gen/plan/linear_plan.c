#include "gen/plan/linear_plan.h"

#include <stddef.h>

#include "common/fail.h"
#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/plan/check_target.h"
#include "gen/plan/linear_family.h"

/* What is of attention alone. */
static luattn_status refuse_choices(const luattn_target *t, luattn_error *err) {
  const struct {
    const char *name;
    long long value;
  } choice[] = {{"tile_m", t->tile_m},
                {"tile_n", t->tile_n},
                {"pages", t->pages},
                {"offsets", t->offsets},
                {"large_scores", t->large_scores},
                {"keys_modified", t->keys_modified},
                {"many_rows", t->many_rows},
                {"weights", t->weights},
                {"out_f32", t->out_f32},
                {"grad_f32", t->grad_f32},
                {"boxes", t->boxes},
                {"query_tile_size", (long long)t->query_tile_size},
                {"key_tile_size", (long long)t->key_tile_size},
                {"tangents", (long long)t->tangents},
                {"tiles", t->tiles != NULL}};
  for (size_t i = 0; i < sizeof choice / sizeof *choice; i++)
    if (choice[i].value != 0)
      return luattn_fail(err, LUATTN_UNSUPPORTED,
                         "target: %s: is %lld, and kernels of linear attention have no such choice; leave it 0",
                         choice[i].name, choice[i].value);
  return LUATTN_OK;
}

luattn_status linear_plan_check(const luattn_target *t, luattn_error *err) {
  TRY(target_check_ranges(t, err));
  return refuse_choices(t, err);
}

static const linear_family *const families[] = {
#define LINEAR_FAMILY(name) &name,
#include "gen/plan/linear_families.def"
};

int linear_plan_families(void) { return (int)(sizeof families / sizeof *families); }

bool linear_plan_is_of(int i, const luattn_target *t) {
  return families[i]->pass == t->pass && families[i]->by_ring == (t->decode == 2);
}

const char *linear_plan_family_name(int i) { return families[i]->name; }

static luattn_status check_family(const linear_family *f, const luattn_target *t, luattn_error *err) {
  if (t->family != 0 && t->family != 1 + (int)f->family)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: family: is %s, and these kernels of linear attention are of the %s family; leave it 0",
                       kernel_family_name((uint32_t)t->family - 1), kernel_family_name(f->family));
  return f->check(t, err);
}

luattn_status linear_plan_make(arena *a, const luattn_spec *spec, const luattn_target *t, int i, linear_plan *out,
                               luattn_error *err) {
  const linear_family *f = families[i];
  TRY(check_family(f, t, err));
  linear_plan p = {.family = f,
                   .dtype = t->dtype,
                   .pass = t->pass,
                   .k_dim = t->head_dim,
                   .v_dim = t->head_dim_v,
                   .packed = t->packed != 0,
                   .erases = spec->linear->class.reads};
  f->plan(a, spec, t, &p);
  *out = p;
  return p.why != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "plan: out of memory");
}
