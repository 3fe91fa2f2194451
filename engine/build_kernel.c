#include "engine/build_kernel.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/fail.h"
#include "engine/cpu_device.h"
#include "engine/log_line.h"

static bool knows_spec(const luattn_pack *pack, const uint64_t hash[2]) {
  const luattn_pack_entry *e;
  for (size_t i = 0; (e = luattn_pack_get_entry(pack, i)) != NULL; ++i)
    if (e->kind == LUATTN_PACK_IMAGE && e->spec_hash[0] == hash[0] && e->spec_hash[1] == hash[1]) return true;
  return false;
}

/* Searches the packs for a key that leaves nothing open. *kernel stays NULL if no pack has the kernel for this device;
 * *err then holds the message of the first pack that knows the spec, or else of the last one. A damaged pack, or one
 * made for another luattn, is an error: compiling instead would hide it. */
static luattn_status search_packs(const engine_setup *e, const kernel_key *key, luattn_kernel **kernel,
                                  luattn_compile_report *report, luattn_error *err) {
  luattn_spec_info info;
  luattn_spec_get_info(key->spec, &info);
  luattn_pack_query query = {.struct_size = sizeof query,
                             .spec_name = info.name,
                             .spec_hash = {info.hash[0], info.hash[1]},
                             .family = e->family,
                             .deterministic = e->deterministic};
  kernel_key_fill_query(key, &query);
  bool told = false;
  for (size_t i = 0; i < e->num_packs; ++i) {
    size_t index;
    luattn_error said;
    const luattn_status status = luattn_pack_kernel(e->packs[i], e->driver, e->device, &query, kernel, &index, &said);
    if (status == LUATTN_OK || !told || status != LUATTN_UNSUPPORTED) *err = said;
    if (status == LUATTN_UNSUPPORTED) {
      told = told || knows_spec(e->packs[i], info.hash);
      continue;
    }
    TRY(status);
    /* If only an image for the other lengths exists, it serves these too. */
    const uint32_t lengths = luattn_pack_get_entry(e->packs[i], index)->lengths;
    report->every_length = lengths != 1 + (uint32_t)key->lengths;
    snprintf(report->plan, sizeof report->plan, "from pack number %zu of the engine's, entry %zu\n", i, index);
    return status;
  }
  return LUATTN_OK;
}

/* Where the key leaves open whether it is decode, the kernel for all lengths serves if no pack has the decode kernel,
 * as it does for a spec that has none. Of linear attention it serves a few tokens, too, where nothing may be compiled. */
static luattn_status look_in_packs(const engine_setup *e, const kernel_key *given, luattn_kernel **kernel,
                                   luattn_compile_report *report, luattn_error *err) {
  const bool is_linear = luattn_spec_form(given->spec) == LUATTN_FORM_LINEAR;
  kernel_key key = *given;
  key.decode = given->decode != 0;
  TRY(search_packs(e, &key, kernel, report, err));
  if (*kernel != NULL || (given->decode != 2 && !(is_linear && given->decode != 0 && e->never_compile)))
    return LUATTN_OK;
  kernel_key_leave_decode(&key);
  TRY(search_packs(e, &key, kernel, report, err));
  if (*kernel == NULL) return LUATTN_OK;
  report->every_length = 1;
  const size_t used = strlen(report->plan);
  snprintf(report->plan + used, sizeof report->plan - used,
           "not the decode kernel: no pack has one of this spec, type and head dims for this device\n");
  return LUATTN_OK;
}

static luattn_status compile(const engine_setup *e, const kernel_key *key, luattn_kernel **kernel,
                             luattn_compile_report *report, luattn_error *err) {
  luattn_target target = {.struct_size = sizeof target,
                          .arch = e->arch,
                          .family = key->weights ? 0 : e->family, /* the kernel is of simt */
                          .cache_dir = e->cache_dir,
                          .device = e->no_tuned ? NULL : e->device_name,
                          .nvrtc = e->nvrtc,
                          .deterministic = e->deterministic,
                          .driver_version = e->driver_version};
  kernel_key_fill_target(key, &target);
  luattn_image *image;
  luattn_error said;
  TRY(luattn_compile(key->spec, &target, &image, report, err));
  const luattn_status status = luattn_kernel_load(e->driver, e->device, image, kernel, &said);
  luattn_image_free(image);
  if (status != LUATTN_OK) *err = said; /* otherwise keeps a warning of the compilation */
  return status;
}

static luattn_status build(const engine_setup *e, const kernel_key *key, luattn_kernel **kernel,
                           luattn_compile_report *report, luattn_error *err) {
  if (e->device == LUATTN_CPU) {
    const cpu_device how = {e->family, e->deterministic, e->cpu_relaxed};
    return cpu_device_kernel(&how, key, kernel, report, err);
  }
  const char *asked_by, *unpacked = kernel_key_unpacked(key, &asked_by);
  if (unpacked == NULL && key->decode == 2 && luattn_spec_form(key->spec) == LUATTN_FORM_LINEAR)
    asked_by = "ring_k", unpacked = "rings";
  if (e->never_compile && unpacked != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_engine: %s: is given, never_compile is set, and packs hold no kernels for %s; "
                       "leave never_compile 0",
                       asked_by, unpacked);
  if (e->num_packs > 0 && unpacked == NULL) {
    TRY(look_in_packs(e, key, kernel, report, err));
    if (*kernel != NULL) return LUATTN_OK;
  }
  if (e->never_compile && e->num_packs > 0) return LUATTN_UNSUPPORTED; /* the message is a pack's */
  if (e->never_compile)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_engine: never_compile is set and there are no packs; give some");
  fail_clear(err); /* drops the message about what packs lack */
  return compile(e, key, kernel, report, err);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

luattn_status build_kernel(const engine_setup *e, const kernel_key *key, luattn_kernel **kernel,
                           luattn_compile_report *report, luattn_error *err) {
  const double start = now_ms();
  TRY(build(e, key, kernel, report, err));
  if (e->log == NULL || e->device == LUATTN_CPU) return LUATTN_OK;
  char line[256];
  log_line(key, report, now_ms() - start, line, sizeof line);
  e->log(e->log_user, line);
  return LUATTN_OK;
}
