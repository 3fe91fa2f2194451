#include "engine/engine_setup.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "common/struct_size.h"

/* Checks what stands for a choice. */
static luattn_status check_options(const luattn_engine_options *o, luattn_error *err) {
  const struct {
    const char *name;
    int value, least, most;
    const char *means;
  } all[] = {{"device", o->device, LUATTN_CPU, INT_MAX, "the number of a GPU, or LUATTN_CPU"},
             {"family", o->family, 0, KERNEL_FAMILIES, "0, or 1 + a luattn_family"},
             {"no_tuned", o->no_tuned, 0, 1, "0 or 1"},
             {"lengths", o->lengths, 0, 1 + (int)LUATTN_SHORT, "0, or 1 + a luattn_lengths"},
             {"never_compile", o->never_compile, 0, 1, "0 or 1"},
             {"deterministic", o->deterministic, 0, 1, "0 or 1"},
             {"cpu_relaxed", o->cpu_relaxed, 0, 1, "0 or 1"}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (all[i].value < all[i].least || all[i].value > all[i].most)
      return luattn_fail(err, LUATTN_INVALID, "luattn_engine_options: %s: is %d, expected %s", all[i].name,
                         all[i].value, all[i].means);
  return LUATTN_OK;
}

static luattn_status copy_packs(engine_setup *e, const luattn_engine_options *options, luattn_error *err) {
  e->never_compile = options->never_compile != 0;
  e->deterministic = options->deterministic != 0;
  if (options->num_packs == 0) return LUATTN_OK;
  for (size_t i = 0; i < options->num_packs; ++i)
    if (options->packs == NULL || options->packs[i] == NULL)
      return luattn_fail(err, LUATTN_INVALID, "luattn_engine_options: packs: number %zu of %zu is NULL; open it first",
                         i, options->num_packs);
  e->packs = calloc(options->num_packs, sizeof *e->packs);
  if (e->packs == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_open: out of memory");
  for (size_t i = 0; i < options->num_packs; ++i) e->packs[i] = options->packs[i];
  e->num_packs = options->num_packs;
  return LUATTN_OK;
}

static luattn_status copy_text(const char *text, char **out, luattn_error *err) {
  if (text == NULL) return LUATTN_OK;
  const size_t size = strlen(text) + 1;
  *out = malloc(size);
  if (*out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_open: out of memory");
  memcpy(*out, text, size);
  return LUATTN_OK;
}

luattn_status engine_setup_open(engine_setup *e, const luattn_engine_options *given, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_engine_options, device);
  if (given != NULL) {
    luattn_engine_options taken;
    const luattn_engine_options *options = &taken;
    TRY(struct_take(&rule, "luattn_engine_open", given, &taken, err));
    TRY(check_options(options, err));
    e->device = options->device;
    e->cpu_relaxed = options->cpu_relaxed != 0;
    e->family = options->family;
    e->no_tuned = options->no_tuned != 0;
    e->lengths = options->lengths;
    e->log = options->log;
    e->log_user = options->log_user;
    TRY(copy_text(options->cache_dir, &e->cache_dir, err));
    TRY(copy_text(options->nvrtc, &e->nvrtc, err));
    TRY(copy_packs(e, options, err));
  }
  if (e->device == LUATTN_CPU) return LUATTN_OK;
  if (e->cpu_relaxed)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_engine_options: cpu_relaxed: is set, and device is %d; a GPU takes no other arguments, "
                       "leave it 0, or set device to LUATTN_CPU",
                       e->device);
  TRY(luattn_driver_open(&e->driver, err));
  luattn_device_info info;
  TRY(luattn_device_get_info(e->driver, e->device, &info, err));
  TRY(luattn_driver_version(e->driver, &e->driver_version, err));
  e->arch = info.arch;
  e->multiprocessors = info.multiprocessors;
  memcpy(e->device_name, info.name, sizeof e->device_name);
  return LUATTN_OK;
}

void engine_setup_close(engine_setup *e) {
  luattn_driver_close(e->driver);
  free(e->cache_dir);
  free(e->nvrtc);
  free(e->packs);
}
