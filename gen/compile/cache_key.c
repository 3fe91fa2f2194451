#include "gen/compile/cache_key.h"

#include <string.h>

#include "gen/compile/programs.h"

static bool is_entry(const template_file *f) {
  const size_t n = strlen(f->name);
  return n > 3 && strcmp(f->name + n - 3, ".cu") == 0;
}

/* What is compiled, but for the spec and the plan's numbers, and by whom. */
static void hash_sources(const compilation *c, const char *arch, hasher *h) {
  for (int i = 0; i < c->num_templates; i++)
    if (!is_entry(&c->templates[i]) || strcmp(c->templates[i].name, c->at.plan.template_file) == 0)
      hasher_add(h, c->templates[i].name, c->templates[i].data, c->templates[i].size);
  hasher_add(h, "entry", c->at.plan.template_file, strlen(c->at.plan.template_file));
  hasher_add(h, "arch", arch, strlen(arch));
  hasher_add(h, "nvrtc", c->nvrtc.identity, strlen(c->nvrtc.identity));
}

luattn_status cache_key(const compilation *c, hash128 *key, luattn_error *err) {
  const char *options[PROGRAMS_MAX_OPTIONS], *arch = compilation_arch(c, c->a);
  const int num_options = programs_options(c, options);
  hasher h;
  if (arch == NULL || !hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  hash_sources(c, arch, &h);
  hasher_add(&h, "spec.cuh", c->at.spec_text, strlen(c->at.spec_text));
  hasher_add(&h, "config.cuh", c->at.config, strlen(c->at.config));
  hasher_add(&h, "manifest", &c->at.info, sizeof c->at.info);
  /* What is not forced may yield to a smaller tile, and what is picked is refused where it spills. */
  hasher_add(&h, "forced", &c->at.plan.forced, sizeof c->at.plan.forced);
  hasher_add(&h, "picked", &c->at.plan.picked, sizeof c->at.plan.picked);
  for (int i = 0; i < num_options; i++) hasher_add(&h, "option", options[i], strlen(options[i]));
  hasher_add(&h, "luattn", luattn_version(), strlen(luattn_version())); /* several versions share a cache */
  *key = hasher_close(&h);
  return LUATTN_OK;
}

luattn_status cache_key_origin(const compilation *c, hash128 *origin, luattn_error *err) {
  const char *arch = compilation_arch(c, c->a);
  hasher h;
  if (arch == NULL || !hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  hash_sources(c, arch, &h);
  *origin = hasher_close(&h);
  return LUATTN_OK;
}
