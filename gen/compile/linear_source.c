#include "gen/compile/linear_source.h"

#include <string.h>

#include "common/fail.h"
#include "gen/compile/compilation.h"
#include "gen/compile/large_integers.h"
#include "gen/ir/passes.h"

luattn_status linear_source_lower(arena *a, const luattn_spec *spec, int k_dim, int v_dim, bool packed, uint32_t real,
                                  linear_lowered *out, luattn_error *err) {
  TRY(lower_linear(a, spec, k_dim, v_dim, packed, real, out, err));
  if (out->max_len >= 1) return LUATTN_OK;
  return large_integers_refuse(&spec->traced, ir_get(out->g, out->too_large), out->reach, err);
}

luattn_status linear_source_make(arena *a, const luattn_spec *spec, const luattn_target *target, linear_source *s,
                                 luattn_error *err) {
  *s = (linear_source){.a = a, .spec = arena_new(a, sizeof *s->spec)};
  if (s->spec == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", spec->traced.name);
  *s->spec = *spec;
  TRY(compilation_take_target(target, &s->target, err));
  luattn_target *t = &s->target;
  if (t->head_dim_v == 0) t->head_dim_v = t->head_dim;
  TRY(linear_plan_make(a, spec, t, &s->plan, err));
  const uint32_t real = t->dtype == LUATTN_BF16 ? LUATTN_INPUT_BF16 : LUATTN_INPUT_F16;
  TRY(compilation_resolve_types(&s->spec->traced, t->input_types, (int)real, err));
  TRY(linear_source_lower(a, s->spec, t->head_dim, t->head_dim_v, s->plan.packed, real, &s->lowered, err));
  TRY(emit_linear_spec(&s->lowered, &s->spec_text, err));
  return emit_linear_config(a, &s->plan, &s->config, err);
}

static bool is_entry(const char *name) {
  const size_t n = strlen(name);
  return n > 3 && strcmp(name + n - 3, ".cu") == 0;
}

luattn_status linear_source_compile(const linear_source *s, const nvrtc *lib, int want_ptx, nvrtc_result *out,
                                    luattn_error *err) {
  const template_file *templates;
  const char *source = NULL, *options[COMPILATION_NVRTC_OPTIONS];
  int count, n = 0;
  TRY(templates_get(s->a, &templates, &count, err));
  template_file *headers = arena_array(s->a, (size_t)count + 2, sizeof *headers);
  if (headers == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  for (int i = 0; i < count; i++) {
    if (!is_entry(templates[i].name)) headers[n++] = templates[i];
    if (strcmp(templates[i].name, LINEAR_SOURCE_ENTRY) == 0) source = templates[i].data;
  }
  if (source == NULL)
    return luattn_fail(err, LUATTN_INTERNAL, "compile: %s: is not among the templates", LINEAR_SOURCE_ENTRY);
  headers[n++] = (template_file){"config.cuh", s->config, strlen(s->config)};
  headers[n++] = (template_file){"spec.cuh", s->spec_text, strlen(s->spec_text)};
  for (int apart = 0; apart < 2; apart++) {
    const nvrtc_options told = {.list = options,
                                .count = compilation_nvrtc_options(lib->major >= 13, apart != 0, options)};
    TRY(nvrtc_compile(lib, s->a, LINEAR_SOURCE_ENTRY, source, headers, n, LINEAR_SOURCE_ARCH, told, want_ptx, out,
                      err));
    if (out->lost_sign == NULL) return LUATTN_OK;
  }
  return luattn_fail(err, LUATTN_COMPILE,
                     "compile: %s: ptxas would leave out a minus in max(max(a, -b), c) or min(min(a, -b), c) of "
                     "integers; write max(x, y) of the spec as where(x < y, y, x) there, and please report this",
                     out->lost_sign);
}
