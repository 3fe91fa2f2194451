/* source.c: the texts of one compilation, their key, and one run of NVRTC over them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cache/cache.h"
#include "gen/compile.h"

/* What a launch will refuse, where it is among the lengths that people have. */
static const char *length_fact(const compilation *c) {
  if (c->lowered->max_len >= 1 << 24) return "";
  return arena_printf(c->a, "lengths up to %lld: beyond, the spec's index arithmetic leaves 32 bits\n",
                      (long long)c->lowered->max_len);
}

/* A gather clamps: an input along q that is read at kv_idx, such as document ids, wants kv_len = q_len. */
static const char *gather_fact(const compilation *c) {
  const traced_spec *t = &c->spec.traced;
  for (ir_ref r = 1; r < ir_count(c->loaded); r++) {
    const ir_node *n = ir_get(c->loaded, r);
    for (int i = 0; n->op == IR_LOAD && i < n->nargs; i++) {
      const luattn_input_info *in = &t->input[n->imm.integer];
      const bool q_at_kv = in->axis[i] == LUATTN_AXIS_Q && ir_is_var(c->loaded, n->arg[i], VAR_KV),
                 kv_at_q = in->axis[i] == LUATTN_AXIS_KV && ir_is_var(c->loaded, n->arg[i], VAR_Q);
      if (q_at_kv || kv_at_q)
        return arena_printf(c->a,
                            "input '%s': its axis %s is read at %s too: right where q_len = kv_len; a free "
                            "axis serves both\n",
                            in->name, q_at_kv ? "q" : "kv", q_at_kv ? "kv_idx" : "q_idx");
    }
  }
  return "";
}

/* Who compiles forward alone learns in time that nothing else will come. */
static const char *backward_fact(const compilation *c) {
  const char *missing = c->spec.derived.missing;
  return missing == NULL ? "" : arena_printf(c->a, "no backward: %s\n", missing);
}

static luattn_status emit_plan(compilation *c, luattn_error *err) {
  lowered *f = arena_new(c->a, sizeof *f);
  if (f == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", c->spec.traced.name);
  TRY(lower_spec(c->a, &c->spec, &c->mask, &c->plan, f, err));
  TRY(emit_spec(f, &c->spec_text, err));
  c->lowered = f;
  const char *lengths = length_fact(c), *gathers = gather_fact(c), *backward = backward_fact(c);
  c->plan.why =
      lengths != NULL && gathers != NULL && backward != NULL
          ? arena_printf(c->a, "%s%s%s%s%s", c->plan.why, c->lowered->notes, lengths, gathers, backward)
          : NULL;
  if (c->plan.why == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  TRY(emit_config(c->a, &c->plan, &c->lowered->rows, &c->config, err));
  TRY(plan_entries(c->a, &c->plan, &c->spec, &c->lowered->rows, err));
  return manifest_fill(c, &c->info, err);
}

bool source_without_lines(compilation *c) {
  if (c->plan.pass != LUATTN_BACKWARD || c->lowered->rows.line_bytes == 0) return false;
  const char *why = arena_printf(
      c->a, "%sscores read every input themselves: ahead of them it would take too many registers\n",
      c->plan.why);
  c->plan.no_lines = true;
  if (why == NULL || emit_plan(c, NULL) != LUATTN_OK) return false;
  c->plan.why = why;
  return true;
}

bool source_alternative(compilation *c) {
  while (plan_alternative(c->a, &c->spec, &c->target, c->plan.small_dots, c->plan.rank + 1, &c->plan))
    if (emit_plan(c, NULL) == LUATTN_OK) return true;
  return false;
}

/* That the spec weighs small dots apart is known once it has been emitted, and may ask for other tiles. */
static bool suits_small_dots(compilation *c) {
  plan other;
  if (!plan_alternative(c->a, &c->spec, &c->target, true, 0, &other)) return false;
  const luattn_tiles now = plan_tiles(&c->plan), then = plan_tiles(&other);
  if (plan_same_tiles(&now, &then)) return false;
  c->plan = other;
  return true;
}

/* Takes the next choice of tiles that does not crowd the spec; where there is none, the plan stays. */
static void avoid_crowding(compilation *c) {
  if (!c->lowered->crowded || c->plan.forced) return;
  compilation *first = arena_new(c->a, sizeof *first);
  if (first == NULL) return; /* compile_memory says so */
  *first = *c;
  while (c->lowered->crowded && !c->plan.forced)
    if (!source_alternative(c)) {
      *c = *first;
      return;
    }
}

luattn_status source_plan(compilation *c, luattn_error *err) {
  TRY(plan_choose(c->a, &c->spec, &c->target, &c->plan, err));
  luattn_status status = emit_plan(c, err);
  if (status == LUATTN_OK && (c->lowered->softcap_limit != IR_NONE) && suits_small_dots(c)) status = emit_plan(c, err);
  if (status == LUATTN_OK) avoid_crowding(c);
  if (status == LUATTN_UNSUPPORTED && source_alternative(c)) return compile_memory(c, err);
  return status != LUATTN_OK ? status : compile_memory(c, err);
}

/* "sm_90a"; NULL: out of memory. */
static const char *arch_name(const compilation *c, arena *a) {
  const char suffix[2] = {c->plan.arch_suffix, 0};
  return arena_printf(a, "sm_%d%s", c->plan.arch, suffix);
}

/* Passes of NVVM's optimizer that a kernel does without: to combine instructions, or to do so again and
 * again, and to hoist what a loop does not change. They take a fortieth to a tenth of the time that it takes
 * to compile, in sm80's backward up to a sixth, and leave most kernels as fast; T5's forward above head dim
 * 192 is 5 % slower, sm80's backward up to D 128 without a mask and that of some grids 2 to 3 %. Which ones
 * was measured on an H200 and an H100 (bench/journal: compile_time.md, simt.md, parameter_gradients_sm80.md).
 * More would cost narrow heads, the masks of grids forward, f32's forward and all other backward kernels some
 * speed. The option is in no manual; an NVRTC that refuses it compiles with all passes, and one that does not
 * know a pass by this name leaves none out. Only options that end with the compilation stand here: others
 * stay on for whatever the process compiles next (parameter_gradients_sm80.md). */
enum { MAX_LEFT_OUT = 2 };
static const char combine_less_often[] = "-full-inst-combine=0",
                  combine_nothing[] = "-disable-InstructionCombiningPass",
                  hoist_nothing[] = "-disable-LICMPass";

static int left_out_of_forward(const plan *p, bool is_grid, const char *out[MAX_LEFT_OUT]) {
  const bool is_wide = p->head_dim > 192 && p->head_dim_v > 192;
  const bool simt = p->family == LUATTN_SIMT, is_narrow = p->family == LUATTN_SM90 && !is_wide;
  int n = 0;
  out[n++] = simt || is_grid || is_narrow ? combine_less_often : combine_nothing;
  if (is_wide && !is_grid && (simt || p->family == LUATTN_SM90)) out[n++] = hoist_nothing;
  return n;
}

static int left_out_of_backward(const plan *p, const char *out[MAX_LEFT_OUT]) {
  const bool simt = p->family == LUATTN_SIMT, sm80 = p->family == LUATTN_SM80;
  int n = 0;
  if (simt) out[n++] = combine_less_often;
  if (sm80) out[n++] = combine_nothing;
  if (simt || sm80) out[n++] = hoist_nothing;
  return n;
}

static int passes_left_out(const compilation *c, const char *out[MAX_LEFT_OUT]) {
  if (c->plan.dtype == LUATTN_F64) return 0;
  if (c->plan.pass == LUATTN_BACKWARD) return left_out_of_backward(&c->plan, out);
  return left_out_of_forward(&c->plan, c->mask.rows.period >= MASK_GRID, out);
}

enum { MAX_OPTIONS = 7 + 4 * MAX_LEFT_OUT };

/* No flag of fast arithmetic: ops/math.cuh decides that for each function. `recent`: what not every NVRTC 12
 * knows. Minimal: without the declarations of textures and of the CUDA runtime, a tenth of the front end's
 * time. No cache: NVRTC would start CUDA to look among the driver's cached kernels, and luattn has a cache of
 * its own. */
static nvrtc_options options(const compilation *c, source_part part, bool recent,
                             const char *out[MAX_OPTIONS]) {
  const char *line_info = getenv("LUATTN_LINEINFO"), *left_out[MAX_LEFT_OUT];
  int n = 0;
  out[n++] = "-std=c++20";
  out[n++] = "-default-device";
  out[n++] = "--ptxas-options=-v";
  if (line_info != NULL && strcmp(line_info, "1") == 0) out[n++] = "-lineinfo";
  if (recent) out[n++] = "--minimal";
  if (recent) out[n++] = "--no-cache";
  if (part != PART_ALL) out[n++] = part == PART_MAIN ? "-DLUATTN_PART=1" : "-DLUATTN_PART=2";
  const int num_left_out = recent ? passes_left_out(c, left_out) : 0;
  for (int i = 0; i < num_left_out; i++) {
    out[n++] = "-Xnvvm"; /* to NVVM: what follows is for its optimizer */
    out[n++] = "-Xopt";
    out[n++] = "-Xnvvm";
    out[n++] = left_out[i];
  }
  return (nvrtc_options){.list = out, .count = n, .optional = 4 * num_left_out};
}

static const template_file *entry_file(const compilation *c) {
  for (int i = 0; i < c->num_templates; i++)
    if (strcmp(c->templates[i].name, c->plan.template_file) == 0) return &c->templates[i];
  return NULL;
}

static bool is_entry(const template_file *f) {
  const size_t n = strlen(f->name);
  return n > 3 && strcmp(f->name + n - 3, ".cu") == 0;
}

/* What is compiled, but for the spec and the plan's numbers, and by whom. */
static void hash_sources(const compilation *c, const char *arch, hasher *h) {
  for (int i = 0; i < c->num_templates; i++)
    if (!is_entry(&c->templates[i]) || strcmp(c->templates[i].name, c->plan.template_file) == 0)
      hasher_add(h, c->templates[i].name, c->templates[i].data, c->templates[i].size);
  hasher_add(h, "entry", c->plan.template_file, strlen(c->plan.template_file));
  hasher_add(h, "arch", arch, strlen(arch));
  hasher_add(h, "nvrtc", c->nvrtc.identity, strlen(c->nvrtc.identity));
}

luattn_status source_key(const compilation *c, hash128 *key, luattn_error *err) {
  const char *opts[MAX_OPTIONS], *arch = arch_name(c, c->a);
  const nvrtc_options told = options(c, parts_has_two(c) ? PART_MAIN : PART_ALL, true, opts);
  hasher h;
  if (arch == NULL || !hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  hash_sources(c, arch, &h);
  hasher_add(&h, "spec.cuh", c->spec_text, strlen(c->spec_text));
  hasher_add(&h, "config.cuh", c->config, strlen(c->config));
  hasher_add(&h, "manifest", &c->info, sizeof c->info);
  /* What is not forced may yield to a smaller tile, and what is picked is refused where it spills. */
  hasher_add(&h, "forced", &c->plan.forced, sizeof c->plan.forced);
  hasher_add(&h, "picked", &c->plan.picked, sizeof c->plan.picked);
  for (int i = 0; i < told.count; i++) hasher_add(&h, "option", told.list[i], strlen(told.list[i]));
  hasher_add(&h, "luattn", luattn_version(), strlen(luattn_version())); /* several versions share a cache */
  *key = hasher_close(&h);
  return LUATTN_OK;
}

luattn_status source_origin(const compilation *c, hash128 *origin, luattn_error *err) {
  const char *arch = arch_name(c, c->a);
  hasher h;
  if (arch == NULL || !hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  hash_sources(c, arch, &h);
  *origin = hasher_close(&h);
  return LUATTN_OK;
}

luattn_status source_compile(const compilation *c, const nvrtc *lib, source_part part, nvrtc_watcher *watcher,
                             int want_ptx, nvrtc_result *out, luattn_error *err) {
  arena *a = part == PART_OTHERS ? c->beside : c->a;
  const char *opts[MAX_OPTIONS], *arch = arch_name(c, a);
  const template_file *entry = entry_file(c);
  template_file *headers = arena_array(a, (size_t)c->num_templates + 2, sizeof *headers);
  if (arch == NULL || headers == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  if (entry == NULL)
    return luattn_fail(err, LUATTN_INTERNAL, "compile: %s: is not among the templates",
                       c->plan.template_file);
  int n = 0;
  for (int i = 0; i < c->num_templates; i++)
    if (!is_entry(&c->templates[i])) headers[n++] = c->templates[i];
  headers[n++] = (template_file){"config.cuh", c->config, strlen(c->config)};
  headers[n++] = (template_file){"spec.cuh", c->spec_text, strlen(c->spec_text)};
  nvrtc_options told = options(c, part, lib->major >= 13, opts);
  told.watcher = watcher;
  return nvrtc_compile(lib, a, entry->name, entry->data, headers, n, arch, told, want_ptx, out, err);
}

void source_keep(const compilation *c, const char *dir, hash128 key, luattn_error *err) {
  char path[512];
  const char *text = arena_printf(c->a, "// %s\n\n// ---- config.cuh\n%s\n// ---- spec.cuh\n%s",
                                  err != NULL ? err->message : "", c->config, c->spec_text);
  if (text == NULL) return; /* the message stands without it */
  cache_keep_source(dir, key, text, path, sizeof path);
  if (err == NULL || path[0] == 0) return;
  const size_t used = strlen(err->message);
  snprintf(err->message + used, sizeof err->message - used, "; the generated source is in %s", path);
}
