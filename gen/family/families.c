/* families.c: the table of families, and how one is chosen for a call and for tiles. */
#include "gen/family/family.h"

#include "common/fail.h"

static const struct family *const families[] = {
#define FAMILY(name) &family_##name,
#include "gen/family/families.def"
#undef FAMILY
};
enum { NUM_FAMILIES = sizeof families / sizeof families[0] };

/* The family that runs a type on every architecture: the last one of the table that does; or NULL. */
static const struct family *of_every_arch(luattn_dtype dtype) {
  const struct family *found = NULL;
  for (int i = 0; i < NUM_FAMILIES; i++)
    if ((1u << dtype & families[i]->dtypes) != 0 && families[i]->is_for == NULL && families[i]->arch == 0)
      found = families[i];
  return found;
}

static luattn_status refuse_dtype(const struct family *f, const plan *p, luattn_error *err) {
  const struct family *other = of_every_arch(p->dtype);
  if (other == NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "target: dtype: is %s, which no kernel family runs; convert q, k and v",
                       kernel_dtype_name(p->dtype));
  return luattn_fail(err, LUATTN_UNSUPPORTED, "target: family: %s does not run %s; %s does, or leave family 0",
                     kernel_family_name(f->id), kernel_dtype_name(p->dtype), kernel_family_name(other->id));
}

luattn_status family_refuse_chunks(const struct family *f, const plan *p, luattn_error *err) {
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "target: offsets: are chunks, and %s%s kernels of the %s family take none%s yet; call for each range "
      "of positions with q_offset and kv_offset, and merge the parts",
      f->takes_tangents ? "tangents' " : "", kernel_pass_name(p->pass), kernel_family_name(f->id),
      !f->kernel[p->pass].takes_chunks ? p->head_dim > 128 || p->head_dim_v > 128 ? " at these head dims" : ""
                                       : " with gradients of inputs or scalars");
}

luattn_status family_can_run(const struct family *f, const plan *p, luattn_error *err) {
  if ((1u << p->dtype & (p->axes > 0 ? f->grid_dtypes : f->dtypes)) == 0) return refuse_dtype(f, p, err);
  if (f->kernel[p->pass].file == NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "target: pass: is %s, and the %s family has no kernel of it",
                       kernel_pass_name(p->pass), kernel_family_name(f->id));
  const family_kernel *kernel = &f->kernel[p->pass];
  if (p->offsets == LUATTN_OFFSET_CHUNKS && (!kernel->takes_chunks || (kernel->sums_no_chunks && p->has_parameters)))
    return family_refuse_chunks(f, p, err);
  if (f->can_run != NULL) TRY(f->can_run(p, err));
  if (f->arch == 0 || f->arch == p->arch) return LUATTN_OK;
  const struct family *other = of_every_arch(p->dtype);
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: family: %s has kernels for arch %d, not %d; %s%s%sleave family 0",
                     kernel_family_name(f->id), f->arch, p->arch, other != NULL ? "use " : "",
                     other != NULL ? kernel_family_name(other->id) : "", other != NULL ? ", or " : "");
}

int family_arch(int family) {
  for (int i = 0; i < NUM_FAMILIES; i++)
    if (families[i]->is_for == NULL && family == 1 + (int)families[i]->id) return families[i]->arch;
  return 0;
}

const struct family *family_choose(const plan *p, const luattn_target *t) {
  for (int i = 0; i < NUM_FAMILIES; i++) {
    const struct family *f = families[i];
    if (f->takes_tangents != (t->tangents != 0) || (f->is_for != NULL && !f->is_for(t))) continue;
    if (t->family == 1 + (int)f->id || (t->family == 0 && family_can_run(f, p, NULL) == LUATTN_OK)) return f;
  }
  return t->tangents != 0 ? &family_jvp_simt : &family_simt; /* says what it cannot run */
}

void family_settle(plan *p) {
  if (p->family->takes_tiles == NULL) return;
  for (int i = 0; i < NUM_FAMILIES; i++)
    if (families[i]->id == p->family->id && families[i]->takes_tiles != NULL && families[i]->takes_tiles(p)) {
      p->family = families[i];
      return;
    }
}

luattn_status family_check_target(const luattn_target *t, luattn_error *err) {
  for (int i = NUM_FAMILIES; i-- > 0;)
    if (families[i]->check_target != NULL) TRY(families[i]->check_target(t, err));
  return LUATTN_OK;
}
