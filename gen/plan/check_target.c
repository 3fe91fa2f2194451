#include "gen/plan/check_target.h"

#include <inttypes.h>

#include "abi/kernel_facts.h"
#include "gen/plan/tiles.h"

luattn_status target_check_ranges(const luattn_target *t, luattn_error *err) {
#define TARGET_FACT(name, type, range, expected, key)                                               \
  do {                                                                                              \
    const long long x = (long long)t->name;                                                         \
    (void)x;                                                                                        \
    if (!(range)) return luattn_fail(err, LUATTN_INVALID, "target: " #name ": " expected, t->name); \
  } while (0);
#include "abi/kernel_facts.def"
  return LUATTN_OK;
}

static luattn_status check_arch(const luattn_target *t, luattn_error *err) {
  if (tiles_shared_limit(t->arch) != 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: arch: sm_%d is not known here; use 80, 86, 87, 89, 90, 100, 101, 103, 110, 120 or 121",
                     t->arch);
}

luattn_status target_check_decode(const luattn_target *t, luattn_error *err) {
  return family_decode.check_target(t, err);
}

static luattn_status check_paged(const luattn_target *t, luattn_error *err) {
  if (t->pages == 0 || t->pass == LUATTN_FORWARD) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "target: pages: is %d, and there is no %s over keys in pages; copy them to k and v of equal lengths, or "
      "to packed sequences",
      (int)t->pages, kernel_pass_name(t->pass));
}

static luattn_status check_choices(const luattn_target *t, luattn_error *err) {
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks)                                                   \
  if ((lacks)[0] != 0 && t->name != 0 && t->pass != LUATTN_FORWARD)                                                  \
    return luattn_fail(err, LUATTN_UNSUPPORTED, "target: " #name ": is %d, and there is no %s over " lacks, t->name, \
                       kernel_pass_name(t->pass));
#include "abi/kernel_facts.def"
  return LUATTN_OK;
}

static luattn_status check_results(const luattn_target *t, luattn_error *err) {
  const bool is_half = t->dtype == LUATTN_BF16 || t->dtype == LUATTN_F16;
  if (t->grad_f32 != 0 && t->pass == LUATTN_FORWARD)
    return luattn_fail(err, LUATTN_INVALID,
                       "target: grad_f32: is 1 for a %s kernel, which writes no gradients; leave it 0",
                       kernel_pass_name(t->pass));
  if ((t->out_f32 == 0 && t->grad_f32 == 0) || is_half) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: %s: is 1 for dtype %s, and is of bf16 and f16: results of others have the type of q, k "
                     "and v; leave it 0",
                     t->out_f32 != 0 ? "out_f32" : "grad_f32", kernel_dtype_name(t->dtype));
}

luattn_status target_check(const luattn_target *t, luattn_error *err) {
  TRY(target_check_ranges(t, err));
  TRY(check_arch(t, err));
  TRY(check_paged(t, err));
  TRY(check_choices(t, err));
  TRY(check_results(t, err));
  return family_check_target(t, err);
}
