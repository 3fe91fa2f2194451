#include "gen/plan/check_target.h"

#include <inttypes.h>
#include <stdio.h>

#include "abi/kernel_facts.h"
#include "gen/plan/tiles.h"

static luattn_status check_ranges(const luattn_target *t, luattn_error *err) {
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

/* What decode lacks is said here, but for an online function whose parts cannot be merged (gen/lower). */
luattn_status target_check_decode(const luattn_target *t, luattn_error *err) {
  const bool half = t->dtype == LUATTN_BF16 || t->dtype == LUATTN_F16;
  if (t->decode == 0) return LUATTN_OK;
  if (t->pass != LUATTN_FORWARD)
    return luattn_fail(err, LUATTN_INVALID,
                       "target: decode: is %d for a %s kernel, and is of forward alone; leave it 0", t->decode,
                       kernel_pass_name(t->pass));
  if (!half)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: decode: is %d for %s, and the decode kernel runs f16 and bf16; leave it 0", t->decode,
                       kernel_dtype_name(t->dtype));
  if (t->family != 0 && t->family != 1 + (int)LUATTN_SM80)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: decode: is %d for the family %s, and the decode kernel is of sm80; leave family 0",
                       t->decode, kernel_family_name((uint32_t)t->family - 1));
  return LUATTN_OK;
}

static luattn_status check_paged(const luattn_target *t, luattn_error *err) {
  if (t->pages == 0 || t->pass == LUATTN_FORWARD) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "target: pages: is %d, and there is no %s over keys in pages; copy them to k and v of equal lengths, or "
      "to packed sequences",
      (int)t->pages, kernel_pass_name(t->pass));
}

static luattn_status check_keys_modified(const luattn_target *t, luattn_error *err) {
  if (t->keys_modified == 0 || t->pass == LUATTN_FORWARD) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: keys_modified: is 1, and there is no %s over keys that key_mod has changed already; "
                     "leave it 0, and give k "
                     "and v as they were before",
                     kernel_pass_name(t->pass));
}

static luattn_status check_weights(const luattn_target *t, luattn_error *err) {
  char pass[32];
  snprintf(pass, sizeof pass, "a %s pass", kernel_pass_name(t->pass));
  const char *beside = t->pass != LUATTN_FORWARD ? pass
                       : t->decode != 0          ? "decode"
                       : t->large_scores != 0    ? "large_scores"
                                                 : NULL;
  if (t->weights == 0) return LUATTN_OK;
  if (beside != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "target: weights: is 1 beside %s, and is a kernel of its own; leave one of both 0", beside);
  if (t->pages != 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: weights: is 1 for keys in pages, of which there are no weights; copy them to k of "
                       "equal lengths, or to "
                       "packed sequences");
  if (t->family > 1 + (int)LUATTN_SIMT)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: weights: is 1 for the family %s, and the kernel is of simt; leave family 0",
                       kernel_family_name((uint32_t)t->family - 1));
  return LUATTN_OK;
}

luattn_status target_check(const luattn_target *t, luattn_error *err) {
  TRY(check_ranges(t, err));
  TRY(check_arch(t, err));
  TRY(check_paged(t, err));
  TRY(check_keys_modified(t, err));
  TRY(target_check_decode(t, err));
  return check_weights(t, err);
}
