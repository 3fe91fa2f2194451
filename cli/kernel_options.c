/* kernel_options.c: options that say for which kernels a command asks: type, family, pass, architecture, lengths. */
#include <string.h>

#include "abi/kernel_facts.h"
#include "cli/cli.h"

typedef const char *name_of(uint32_t number);

/* Finds a name; else writes all of them: "use f64, f32, bf16 or f16". */
static bool find_name(const char *text, name_of *name, int count, int *out, char *list, size_t size) {
  size_t used = 0;
  for (int i = 0; i < count; i++) {
    if (strcmp(text, name((uint32_t)i)) == 0) return *out = i, true;
    used += (size_t)snprintf(list + used, size - used, "%s%s",
                             i == 0          ? "use "
                             : i + 1 < count ? ", "
                                             : " or ",
                             name((uint32_t)i));
  }
  return false;
}

bool dtype_parse(const char *name, luattn_dtype *out) {
  char list[64];
  int number;
  if (!find_name(name, kernel_dtype_name, KERNEL_DTYPES, &number, list, sizeof list)) return false;
  return *out = (luattn_dtype)number, true;
}

luattn_status dtype_option(const cli_options *o, luattn_dtype *out, luattn_error *err) {
  char list[64];
  int number;
  if (o->dtype == NULL) return LUATTN_OK;
  if (find_name(o->dtype, kernel_dtype_name, KERNEL_DTYPES, &number, list, sizeof list))
    return *out = (luattn_dtype)number, LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "--dtype: '%s' is not a type of q, k, v; %s", o->dtype, list);
}

luattn_status family_option(const cli_options *o, int *out, luattn_error *err) {
  char list[64];
  int number;
  *out = 0;
  if (o->family == NULL) return LUATTN_OK;
  if (find_name(o->family, kernel_family_name, KERNEL_FAMILIES, &number, list, sizeof list))
    return *out = 1 + number, LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "--family: '%s' is not a kernel family; %s", o->family, list);
}

luattn_status pass_option(const cli_options *o, luattn_pass *out, luattn_error *err) {
  char list[64];
  int number;
  if (o->pass == NULL) return LUATTN_OK;
  if (find_name(o->pass, kernel_pass_name, KERNEL_PASSES, &number, list, sizeof list))
    return *out = (luattn_pass)number, LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "--pass: '%s' is not a pass; %s", o->pass, list);
}

/* sm_90a and sm_90 mean the same here: a family that needs the suffix gets it. */
luattn_status arch_option(const char *text, luattn_target *out, luattn_error *err) {
  char number[32];
  out->ptx = strncmp(text, "compute_", 8) == 0;
  snprintf(number, sizeof number, "%s", out->ptx ? text + 8 : strncmp(text, "sm_", 3) == 0 ? text + 3 : "");
  if (strcmp(number, "90a") == 0) number[2] = 0;
  if (parse_sizes(number, 1, &out->arch) == 1) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "--arch: '%s' is not an architecture; give sm_80, sm_90a, .., or compute_80 for PTX", text);
}

/* A length stands for its class, in either pass. */
luattn_status lengths_option(const cli_options *o, int *out, luattn_error *err) {
  int length = 0;
  *out = 0;
  if (o->lengths == NULL) return LUATTN_OK;
  if (strcmp(o->lengths, "long") == 0) return *out = 1 + LUATTN_LONG, LUATTN_OK;
  if (strcmp(o->lengths, "short") == 0) return *out = 1 + LUATTN_SHORT, LUATTN_OK;
  if (parse_sizes(o->lengths, 1, &length) == 1)
    return *out = 1 + (int)luattn_lengths_of(LUATTN_FORWARD, length, length), LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "--lengths: '%s' is not a class of lengths; use short or long, or one length",
                     o->lengths);
}
