#include "gen/compile/linear_source.h"

#include <stdio.h>
#include <string.h>

#include "common/fail.h"
#include "gen/compile/compilation.h"
#include "gen/compile/large_integers.h"
#include "gen/ir/passes.h"
#include "gen/plan/linear_family.h"

/* lower_linear, which also refuses integers that leave the 32 bits of kernels at every length. */
static luattn_status lower(linear_source *s, uint32_t real, linear_lowered *out, luattn_error *err) {
  const linear_plan *p = &s->plan;
  if (p->family->whole_hooks) {
    linear_hooks *h = &s->hooks;
    TRY(lower_linear_hooks(s->a, s->spec, p->k_dim, p->v_dim, p->packed, p->pass == LUATTN_BACKWARD, real, h, err));
    *out = (linear_lowered){.a = s->a, .g = h->g, .spec = h->spec, .packed = p->packed, .max_len = h->max_len};
    out->query_factor = h->hook[LINEAR_QUERY].sums.value, out->key_factor = h->hook[LINEAR_KEY].sums.value;
    if (h->max_len >= 1) return LUATTN_OK;
    return large_integers_refuse(&s->spec->traced, ir_get(h->g, h->too_large), h->reach, err);
  }
  const linear_lowering to = {.family = p->family,
                              .k_dim = p->k_dim,
                              .v_dim = p->v_dim,
                              .packed = p->packed,
                              .backward = p->pass == LUATTN_BACKWARD,
                              .wants = s->target.wants != 0 ? s->target.wants : (unsigned)LUATTN_WANT_ALL,
                              .real = real};
  TRY(lower_linear(s->a, s->spec, &to, out, err));
  if (out->max_len >= 1) return LUATTN_OK;
  return large_integers_refuse(&s->spec->traced, ir_get(out->g, out->too_large), out->reach, err);
}

static uint32_t real_of(luattn_dtype dtype) {
  return dtype == LUATTN_BF16  ? LUATTN_INPUT_BF16
         : dtype == LUATTN_F16 ? LUATTN_INPUT_F16
         : dtype == LUATTN_F64 ? LUATTN_INPUT_F64
                               : LUATTN_INPUT_F32;
}

/* Says in the plan why families were passed over. */
static luattn_status add_reasons(linear_source *s, const char *passed_over, luattn_error *err) {
  s->plan.why = passed_over != NULL ? arena_printf(s->a, "%s%s", s->plan.why, passed_over) : NULL;
  return s->plan.why != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "plan: out of memory");
}

/* The kernels around those of the family: rows before them. */
static luattn_status add_rows(linear_source *s, luattn_error *err) {
  static const char *const names[] = {"q", "k", "v"};
  linear_plan *p = &s->plan;
  p->has_ways = s->lowered.of_decay.count + s->lowered.of_write.count + s->lowered.of_read.count > 0;
  for (int i = 0; i < 3; i++) {
    if (!s->lowered.row[i].made) continue;
    if (p->made == 0) {
      memmove(&p->entry[1], &p->entry[0], (size_t)p->num_entries++ * sizeof p->entry[0]);
      p->entry[0] = (linear_entry){"luattn_linear_prepare", LUATTN_ROLE_LINEAR_PREPARE, 256, 0, false};
    }
    p->made |= 1u << i;
    p->why = arena_printf(
        s->a, "%srows of %s are made by a kernel before: their mod is no number of the token times the element\n",
        p->why, names[i]);
  }
  return p->why != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "plan: out of memory");
}

/* Takes the first family that takes the target and the spec. Where none does, it says what the first one lacks that takes
 * the target, or else the last of all, which takes most. */
static luattn_status choose(linear_source *s, uint32_t real, luattn_error *err) {
  bool takes_target = false;
  luattn_error first;
  const char *passed_over = "";
  fail_clear(&first);
  for (int i = 0; i < linear_plan_families(); i++) {
    luattn_error why;
    if (!linear_plan_is_of(i, &s->target)) continue;
    fail_clear(&why);
    const luattn_status planned = linear_plan_make(s->a, s->spec, &s->target, i, &s->plan, &why);
    const luattn_status status = planned == LUATTN_OK ? lower(s, real, &s->lowered, &why) : planned;
    if (status == LUATTN_OK) {
      TRY(add_rows(s, err));
      return add_reasons(s, passed_over, err);
    }
    passed_over = arena_printf(s->a, "%snot %s: %s\n", passed_over != NULL ? passed_over : "",
                               linear_plan_family_name(i), why.message);
    if (!takes_target) first = why;
    takes_target |= planned == LUATTN_OK;
    if (status != LUATTN_UNSUPPORTED) break;
  }
  if (err != NULL) *err = first;
  return first.status;
}

luattn_status linear_source_make(arena *a, const luattn_spec *spec, const luattn_target *target, linear_source *s,
                                 luattn_error *err) {
  *s = (linear_source){.a = a, .spec = arena_new(a, sizeof *s->spec)};
  if (s->spec == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", spec->traced.name);
  *s->spec = *spec;
  TRY(compilation_take_target(target, &s->target, err));
  luattn_target *t = &s->target;
  if (t->head_dim_v == 0) t->head_dim_v = t->head_dim;
  TRY(linear_plan_check(t, err));
  const uint32_t real = real_of(t->dtype);
  TRY(compilation_resolve_types(&s->spec->traced, t->input_types, (int)real, err));
  TRY(choose(s, real, err));
  TRY(s->plan.family->whole_hooks ? emit_linear_hooks(&s->hooks, &s->spec_text, err)
                                  : emit_linear_spec(&s->lowered, &s->spec_text, err));
  return emit_linear_config(a, &s->plan, &s->config, err);
}

static bool is_entry(const char *name) {
  const size_t n = strlen(name);
  return n > 3 && strcmp(name + n - 3, ".cu") == 0;
}

luattn_status linear_source_compile(const linear_source *s, const nvrtc *lib, int want_ptx, nvrtc_result *out,
                                    luattn_error *err) {
  const template_file *templates;
  char arch[16];
  const char *source = NULL, *options[COMPILATION_NVRTC_OPTIONS];
  int count, n = 0;
  TRY(templates_get(s->a, &templates, &count, err));
  template_file *headers = arena_array(s->a, (size_t)count + 2, sizeof *headers);
  if (headers == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  for (int i = 0; i < count; i++) {
    if (!is_entry(templates[i].name)) headers[n++] = templates[i];
    if (strcmp(templates[i].name, s->plan.source) == 0) source = templates[i].data;
  }
  if (source == NULL)
    return luattn_fail(err, LUATTN_INTERNAL, "compile: %s: is not among the templates", s->plan.source);
  headers[n++] = (template_file){"config.cuh", s->config, strlen(s->config)};
  headers[n++] = (template_file){"spec.cuh", s->spec_text, strlen(s->spec_text)};
  snprintf(arch, sizeof arch, "sm_%d%s", s->target.arch, s->plan.family->family == LUATTN_SM90 ? "a" : "");
  for (int apart = 0; apart < 2; apart++) {
    const nvrtc_options told = {.list = options,
                                .count = compilation_nvrtc_options(lib->major >= 13, apart != 0, options)};
    TRY(nvrtc_compile(lib, s->a, s->plan.source, source, headers, n, arch, told, want_ptx, out, err));
    if (out->lost_sign == NULL) return LUATTN_OK;
  }
  return luattn_fail(err, LUATTN_COMPILE,
                     "compile: %s: ptxas would leave out a minus in max(max(a, -b), c) or min(min(a, -b), c) of "
                     "integers; write max(x, y) of the spec as where(x < y, y, x) there, and please report this",
                     out->lost_sign);
}
