#include "gen/compile/merge_code.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/call/need_attention.h"
#include "common/host.h"
#include "gen/analysis/online/merge.h"
#include "gen/emit/emit.h"
#include "gen/ir/passes.h"
#include "gen/nvrtc/nvrtc.h"
#include "luattn/merge.h"

/* What is compiled. */
typedef struct code_source {
  const char *name; /* of the function, for messages */
  const char *entry;
  const merge_code_target *target; /* config.cuh has its types; page tables have its arch and NVRTC alone */
} code_source;

/* config.cuh. */
static luattn_status config_of(arena *a, const merge_code_target *t, const char **out, luattn_error *err) {
  static const char *const elems[] = {"double", "float", "bf16_t", "half_t"};
  const char *rule = "struct Rule { static constexpr bool by_lse = true; };\n";
  if (t->spec != NULL) TRY(emit_part_rule(a, t->spec, &rule, err));
  *out =
      arena_printf(a,
                   "#pragma once\n#include \"arch/types.cuh\"\nstruct Config { using Part = %s; using Elem = "
                   "%s; using Real = %s;\n  static constexpr int most_parts = %d;\n  static constexpr bool backward = "
                   "%s, fast_math = false;\n};\n%s",
                   elems[t->part], elems[t->elem], t->part == LUATTN_F64 ? "double" : "float", t->most_parts,
                   t->pass == LUATTN_BACKWARD ? "true" : "false", rule);
  return *out != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "luattn_merge: out of memory");
}

/* Orders the templates as headers after the entry, with config.cuh. */
static luattn_status compile(arena *a, const code_source *s, const nvrtc *lib, nvrtc_result *out, luattn_error *err) {
  static const char *const options[] = {"-std=c++20", "-default-device", "--ptxas-options=-v"};
  const template_file *files, *entry = NULL;
  int count, n = 0;
  TRY(templates_get(a, &files, &count, err));
  template_file *headers = arena_array(a, (size_t)count + 1, sizeof *headers);
  const char *arch = arena_printf(a, "sm_%d", s->target->arch), *config;
  TRY(config_of(a, s->target, &config, err));
  if (headers == NULL || arch == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", s->name);
  for (int i = 0; i < count; i++) {
    const size_t length = strlen(files[i].name);
    if (strcmp(files[i].name, s->entry) == 0) entry = &files[i];
    if (length < 3 || strcmp(files[i].name + length - 3, ".cu") != 0) headers[n++] = files[i];
  }
  headers[n++] = (template_file){"config.cuh", config, strlen(config)};
  if (entry == NULL) return luattn_fail(err, LUATTN_INTERNAL, "%s: %s: is not among the templates", s->name, s->entry);
  return nvrtc_compile(lib, a, entry->name, entry->data, headers, n, arch,
                       (nvrtc_options){.list = options, .count = sizeof options / sizeof *options}, 0, out, err);
}

static luattn_status make(arena *a, const code_source *s, void **cubin, size_t *size, luattn_error *err) {
  nvrtc_search search;
  nvrtc_file file;
  nvrtc lib;
  nvrtc_result result;
  nvrtc_search_start(&search, s->target->nvrtc, s->target->driver_version, false);
  TRY(nvrtc_open_first(&search, &file, &lib, err));
  TRY(compile(a, s, &lib, &result, err));
  *cubin = result.cubin == NULL ? NULL : malloc(result.cubin_size);
  if (*cubin == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", s->name);
  memcpy(*cubin, result.cubin, result.cubin_size);
  *size = result.cubin_size;
  return LUATTN_OK;
}

typedef struct code_call {
  code_source source;
  void **cubin;
  size_t *size;
} code_call;

static luattn_status run(void *arguments, luattn_error *err) {
  const code_call *c = arguments;
  arena *a = arena_open(NULL);
  if (a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", c->source.name);
  const luattn_status status = make(a, &c->source, c->cubin, c->size, err);
  arena_close(a);
  if (status == LUATTN_OK) fail_clear(err); /* other NVRTCs may have failed first */
  return status;
}

luattn_status merge_code(const merge_code_target *target, void **cubin, size_t *size, luattn_error *err) {
  return host_run(run, &(code_call){{"luattn_merge", "entry/merge.cu", target}, cubin, size}, err);
}

luattn_status page_table_code(int arch, int driver_version, const char *library, void **cubin, size_t *size,
                              luattn_error *err) {
  const merge_code_target target = {.arch = arch, .driver_version = driver_version, .nvrtc = library};
  return host_run(run, &(code_call){{"luattn_page_table", "entry/page_table.cu", &target}, cubin, size}, err);
}

luattn_status na_taps_code(luattn_dtype type, int arch, int driver_version, const char *library, void **cubin,
                           size_t *size, luattn_error *err) {
  const merge_code_target target = {
      .part = type, .elem = type, .arch = arch, .driver_version = driver_version, .nvrtc = library};
  return host_run(run, &(code_call){{"luattn_na_taps", "entry/na_taps.cu", &target}, cubin, size}, err);
}

luattn_status merge_code_get_rows(const luattn_spec *spec, merge_code_rows *out, luattn_error *err) {
  const part_rule *rule = spec->parts;
  if (rule == NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_merge: spec: %s is no spec of parts; make one of it with luattn_spec_parts, and call "
                       "forward of that one for "
                       "each part",
                       spec->traced.name);
  *out = (merge_code_rows){spec->traced.name,
                           rule->num_rows,
                           rule->num_saved,
                           {spec->hash[0], spec->hash[1]},
                           {spec->whole_hash[0], spec->whole_hash[1]},
                           rule->whole_rows};
  return LUATTN_OK;
}

/* ---- whether it holds for a spec ---- */

static luattn_status test_spec(void *spec, luattn_error *err) {
  const luattn_spec *s = spec;
  arena *a = arena_open(arena_allocator(s->a));
  traced_spec *t = a == NULL ? NULL : arena_new(a, sizeof *t);
  luattn_status status = LUATTN_NO_MEMORY;
  if (t != NULL) {
    *t = s->traced;
    t->g = ir_clone(a, s->traced.g);
    if (t->g != NULL) status = merge_test_lse(a, t, err);
  }
  if (t == NULL || t->g == NULL)
    (void)luattn_fail(err, status, "luattn_spec_merges: %s: out of memory", s->traced.name);
  arena_close(a);
  return status;
}

luattn_status luattn_spec_merges(const luattn_spec *spec, luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  return host_run(test_spec, (void *)(uintptr_t)spec, err);
}
