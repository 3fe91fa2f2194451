/* compile.c: THE PIPELINE.
 *
 *   spec.lua -> front_trace -> derive_spec                                              luattn_spec_load
 *            -> mask_analyse -> plan_and_emit -> key -> cache, or NVRTC -> image         luattn_compile
 *
 * plan_and_emit (tuned.c, source.c) is plan_choose and emit_spec; where tiles were measured and remembered
 * for the device, once more with them.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/host.h"
#include "common/struct_size.h"
#include "gen/cache/cache.h"
#include "gen/compile.h"

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

luattn_status compile_open(const luattn_spec *spec, const luattn_target *target, compilation **out,
                           luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_target, wants);
  luattn_target taken;
  *out = NULL;
  TRY(struct_take(&rule, "target", target, &taken, err));
  if (taken.pass == LUATTN_BACKWARD && spec->derived.missing != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "%s", spec->derived.missing);
  arena *a = arena_open(arena_allocator(spec->a));
  compilation *c = a == NULL ? NULL : arena_new(a, sizeof *c);
  if (c == NULL) {
    arena_close(a);
    return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", spec->traced.name);
  }
  *out = c;
  c->a = a;
  c->target = taken;
  nvrtc_search_start(&c->search, taken.nvrtc, (int)taken.driver_version, taken.ptx != 0);
  c->spec = *spec;
  c->loaded = spec->traced.g;
  c->spec.traced.g = ir_clone(c->a, spec->traced.g);
  if (c->spec.traced.g == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", spec->traced.name);
  ir_set_line(c->spec.traced.g, 0);
  TRY(templates_get(c->a, &c->templates, &c->num_templates, err));
  return mask_analyse(c->a, &c->spec.traced, &c->mask, err);
}

luattn_status compile_find_nvrtc(compilation *c, luattn_error *err) {
  return c->nvrtc.path[0] != 0 ? LUATTN_OK : nvrtc_next(&c->search, &c->nvrtc, err);
}

void compile_close(compilation *c) {
  if (c == NULL) return;
  arena_close(c->beside);
  arena_close(c->a); /* with c in it */
}

luattn_status compile_memory(const compilation *c, luattn_error *err) {
  if (!arena_failed(c->a) && (c->beside == NULL || !arena_failed(c->beside))) return LUATTN_OK;
  return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", c->spec.traced.name);
}

static bool is_launched(const compilation *c, const char *entry) {
  for (int i = 0; i < c->plan.num_entries; i++)
    if (strcmp(c->plan.entry[i].name, entry) == 0) return true;
  return false;
}

/* Spilled bytes of the entries that will be launched and of what they call. */
static int spilled(const compilation *c, const nvrtc_result *r) {
  int bytes = r->called_spill_bytes;
  for (int i = 0; i < r->num_entries; i++)
    if (is_launched(c, r->entry[i].name)) bytes += r->entry[i].spill_bytes;
  return bytes;
}

/* A remark weighs more than any spill. */
static int damage(const compilation *c, const nvrtc_result *r) {
  return (r->remark != NULL ? 1 << 20 : 0) + spilled(c, r);
}

static const char *add_line(arena *a, const char *text, const char *line) {
  const char *both = arena_printf(a, "%s%s\n", text, line);
  return both != NULL ? both : text;
}

/* A few registers that are spilled outside of the inner loops cost less than smaller tiles would. So does
 * more of them beside hooks that are called, whose time no tiles change: four bytes are a store and a load,
 * so that a quarter of the hooks' instructions in bytes is an eighth of their time at most. But more bytes
 * than a thread has registers are accumulators, spilled around each product. What follows the sm90 backward's
 * first tiles is slower by a third; what follows it above head dim 128 takes 1.3 to 1.8 times as long, and
 * with gradients of parameters up to 80 times. There the loading warps, which have time, spill up to 200 of
 * the bytes, and the one that sums dS up to 400; below it up to 88, for lines that they fetch ahead: with 390
 * in all such a kernel is 1.4 times as fast as what follows. Three consumers of the sm90 forward spill around
 * each call: 144 bytes there cost two thirds of the speed. */
static int spills_accepted(const compilation *c) {
  const bool three =
      c->plan.family == LUATTN_SM90 && c->plan.pass == LUATTN_FORWARD && c->plan.threads == 512;
  const int beside_hooks = three ? 0 : c->lowered->outlined_work / 4;
  const bool slow_next = c->plan.family == LUATTN_SM90 && c->plan.pass == LUATTN_BACKWARD;
  const int loading = slow_next && c->lowered->rows.line_bytes > 0 ? 112 : 0;
  const int alone = tiles_wide(&c->plan) ? 768 : slow_next ? 288 + loading : 64;
  return alone + (beside_hooks < 1024 ? beside_hooks : 1024);
}

/* Each entry by itself, because it is to its own hooks that its spills compare. */
static bool is_accepted(const compilation *c, const nvrtc_result *r) {
  const int accepted = spills_accepted(c);
  if (c->lowered->outlined_work == 0) return damage(c, r) <= accepted;
  bool ok = r->remark == NULL && r->called_spill_bytes <= accepted;
  for (int i = 0; i < r->num_entries; i++)
    ok &= !is_launched(c, r->entry[i].name) || r->entry[i].spill_bytes <= accepted;
  return ok;
}

/* What ptxas could not keep in registers, by entry: a plan that spills after all says so. */
static const char *explain_damage(const compilation *c, const nvrtc_result *r) {
  const char *why = c->plan.why;
  if (r->remark != NULL) {
    const char *line = arena_copy(c->a, r->remark, strcspn(r->remark, "\n"));
    if (line != NULL) why = add_line(c->a, why, line);
  }
  for (int i = 0; i < r->num_entries; i++) {
    const nvrtc_entry *e = &r->entry[i];
    const char *line = NULL;
    if (!is_launched(c, e->name)) continue;
    if (e->spill_bytes > 0)
      line = arena_printf(c->a, "%s spills %d bytes: %s", e->name, e->spill_bytes,
                          c->plan.forced                         ? "the tiles were asked for"
                          : e->spill_bytes <= spills_accepted(c) ? "less than smaller tiles would cost"
                                                                 : "no other tiles of the table do better");
    else if (e->stack_bytes > 0)
      line = arena_printf(c->a, "%s has %d bytes of stack, for accurate functions or hooks out of line",
                          e->name, e->stack_bytes);
    if (line != NULL) why = add_line(c->a, why, line);
  }
  if (r->called_spill_bytes > 0) {
    const char *line = arena_printf(c->a, "functions that are called spill %d bytes", r->called_spill_bytes);
    if (line != NULL) why = add_line(c->a, why, line);
  }
  return why;
}

/* Of an image from the cache, which keeps one number for spills and stack. */
static const char *explain_image(const compilation *c, const luattn_image *image) {
  const image_manifest *info = image_get_manifest(image);
  const char *why = c->plan.why;
  for (uint32_t i = 0; i < info->num_entries; i++) {
    const manifest_entry *e = &info->entry[i];
    const char *line = e->local_bytes == 0
                           ? NULL
                           : arena_printf(c->a, "%s has %u bytes of stack and spilled registers", e->name,
                                          (unsigned)e->local_bytes);
    if (line != NULL) why = add_line(c->a, why, line);
  }
  return why;
}

/* Tiles that are picked were measured or are about to be. What ptxas could not do well does not take part. */
static luattn_status refuse_damage(const compilation *c, const nvrtc_result *r, luattn_error *err) {
  const plan *p = &c->plan;
  if (r->remark != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "plan: tiles: %d x %d, %d threads, %d stages: ptxas says: %.*s; pick other tiles",
                       p->tile_m, p->tile_n, p->threads, p->stages, (int)strcspn(r->remark, "\n"), r->remark);
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "plan: tiles: %d x %d, %d threads, %d stages: spill %d bytes of registers, more than %d; "
      "pick other tiles",
      p->tile_m, p->tile_n, p->threads, p->stages, spilled(c, r), spills_accepted(c));
}

/* After the last choice of tiles. */
static luattn_status refuse_all(const compilation *c, const nvrtc_result *r, luattn_error *err) {
  const plan *p = &c->plan;
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "plan: tiles: %d x %d, %d threads, %d stages: ptxas finds no registers for them%s: %.*s; "
      "%s, or use f32",
      p->tile_m, p->tile_n, p->threads, p->stages, p->forced ? "" : ", nor for others of the table",
      (int)strcspn(r->remark, "\n"), r->remark, p->forced ? "pick other tiles" : "write shorter hooks");
}

/* Lines that are read ahead make a sm90 backward kernel 1.05 to 1.5 times as fast up to 190 spilled bytes,
 * and cost it 0.09 of its speed at 270 and 290: then it is better off without, if it is accepted so. Above
 * head dim 128 they gain at 600 as well. */
static bool lines_crowd(const compilation *c, const nvrtc_result *r) {
  if (c->plan.pass != LUATTN_BACKWARD || c->lowered->rows.line_bytes == 0 || tiles_wide(&c->plan))
    return false;
  for (int i = 0; i < r->num_entries; i++)
    if (strcmp(r->entry[i].name, "luattn_dkdv") == 0) return r->entry[i].spill_bytes > 240;
  return false;
}

static luattn_status open_nvrtc(compilation *c, nvrtc *lib, luattn_error *err) {
  c->nvrtc_is_useless = true;
  TRY(nvrtc_open(&c->nvrtc, lib, err));
  TRY(nvrtc_check_driver(&c->search, lib, err));
  if (!nvrtc_supports(lib, c->plan.arch))
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "nvrtc: '%s': is version %d.%d, which does not know sm_%d; name another with LUATTN_NVRTC", lib->path,
        lib->major, lib->minor, c->plan.arch);
  c->nvrtc_is_useless = false;
  return LUATTN_OK;
}

/* Compiles; a plan that spills more first gives up lines that are read ahead, and then gives way to the next
 * of the table, unless the caller forced it. What was found good stays, whatever comes of a better one. */
static luattn_status build(compilation *c, const char *dir, hash128 key, nvrtc_result *out,
                           nvrtc_result *others, luattn_error *err) {
  nvrtc lib;
  TRY(open_nvrtc(c, &lib, err));
  c->beside = arena_open(NULL);
  compilation *attempt = arena_new(c->a, sizeof *attempt);
  if (c->beside == NULL || attempt == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  *attempt = *c;
  int least = -1;
  bool found = false;
  for (;;) {
    nvrtc_result r, rest;
    const luattn_status status = parts_compile(attempt, &lib, c->target.ptx, &r, &rest, err);
    if (status != LUATTN_OK && found) break;
    if (status == LUATTN_COMPILE) source_keep(attempt, dir, key, err);
    if (status != LUATTN_OK) return status;
    const int spills = r.cubin == NULL ? INT_MAX : damage(attempt, &r);
    const bool accepted = r.cubin != NULL && is_accepted(attempt, &r);
    if (least < 0 || accepted || (spills < least && !found))
      *c = *attempt, *out = r, *others = rest, least = spills;
    if (accepted && !lines_crowd(attempt, &r)) break;
    found |= accepted;
    if (source_without_lines(attempt)) continue;
    if (found) break;
    if (c->plan.picked) return refuse_damage(c, &r, err);
    if (!source_alternative(attempt)) break;
  }
  if (out->cubin == NULL) return refuse_all(c, out, err);
  c->plan.why = explain_damage(c, out);
  return LUATTN_OK;
}

static luattn_status make_image(const compilation *c, const nvrtc_result *r, const nvrtc_result *others,
                                hash128 key, luattn_image **image, luattn_error *err) {
  image_manifest info = c->info;
  info.source_hash[0] = key.lo;
  info.source_hash[1] = key.hi;
  for (uint32_t j = 0; j < info.num_entries; j++)
    for (int i = 0; i < r->num_entries; i++) {
      const nvrtc_entry *e = &r->entry[i];
      if (strcmp(e->name, info.entry[j].name) != 0) continue;
      info.entry[j].registers = (uint32_t)e->registers;
      info.entry[j].local_bytes =
          (uint32_t)(e->stack_bytes > e->spill_bytes ? e->stack_bytes : e->spill_bytes);
    }
  return parts_image(c, &info, r, others, image, err);
}

static bool is_plan_of(const compilation *c, const image_manifest *info) {
  const plan *p = &c->plan;
  bool same = info->family == (uint32_t)p->family && info->num_entries == (uint32_t)p->num_entries &&
              info->reads_ahead == c->info.reads_ahead;
  for (int i = 0; same && i < p->num_entries; i++) {
    const plan_entry *a = &p->entry[i];
    const manifest_entry *b = &info->entry[i];
    same = b->role == (uint32_t)a->role && b->tile_m == (uint32_t)a->tile_m &&
           b->tile_n == (uint32_t)a->tile_n && b->threads == (uint32_t)a->threads &&
           b->shared_bytes == (uint32_t)a->shared_bytes;
  }
  return same;
}

bool compile_match_plan(compilation *c, const luattn_image *image) {
  const plan first = c->plan;
  do {
    if (is_plan_of(c, image_get_manifest(image))) return true;
  } while (source_without_lines(c) || source_alternative(c));
  c->plan = first;
  return false;
}

/* An NVRTC that was passed over is a fact of the plan. */
static void explain_nvrtc(compilation *c) {
  if (c->search.failed[0] == 0) return;
  const char *line = arena_printf(c->a, "nvrtc: %s; so '%s' is used", c->search.failed, c->nvrtc.path);
  if (line != NULL) c->plan.why = add_line(c->a, c->plan.why, line);
}

static luattn_status compile(compilation *c, luattn_image **image, luattn_compile_report *report,
                             luattn_error *err) {
  char dir[1024], warning[512] = "";
  size_t limit;
  hash128 key;
  const double start = now_ms();
  TRY(plan_and_emit(c, err));
  const double planned = now_ms();
  TRY(cache_resolve(c->target.cache_dir, dir, sizeof dir, err));
  TRY(cache_limit(&limit, err));
  TRY(compile_find_nvrtc(c, err));
  TRY(source_key(c, &key, err));
  *image = NULL;
  TRY(cache_find(dir, key, image, err));
  const double looked = now_ms();
  report->cache_hit = report->is_kept = *image != NULL;
  report->plan_ms = planned - start;
  report->cache_ms = looked - planned;
  if (*image != NULL) {
    (void)compile_match_plan(c, *image); /* the report describes it */
    c->plan.why = explain_image(c, *image);
    explain_nvrtc(c);
    fail_clear(err);
    return LUATTN_OK;
  }
  nvrtc_result result, others;
  TRY(build(c, dir, key, &result, &others, err));
  TRY(compile_memory(c, err)); /* before anything is kept */
  report->nvrtc_ms = now_ms() - looked;
  TRY(make_image(c, &result, &others, key, image, err));
  TRY(cache_store(dir, key, *image, warning, sizeof warning, err));
  if (dir[0] != 0 && warning[0] == 0) {
    TRY(cache_trim(dir, limit, err));
    report->is_kept = cache_has(dir, key);
    if (!report->is_kept)
      snprintf(warning, sizeof warning, "cache: %.200s: has no room for this kernel; raise LUATTN_CACHE_SIZE",
               dir);
  }
  explain_nvrtc(c);
  if (warning[0] != 0) c->plan.why = add_line(c->a, c->plan.why, warning);
  fail_clear(err); /* what failed on the way is no warning */
  if (warning[0] != 0) luattn_warn(err, "%s", warning);
  return LUATTN_OK;
}

typedef struct version_call {
  const char *path;
  int *major, *minor;
} version_call;

static luattn_status version_within(void *arguments, luattn_error *err) {
  const version_call *v = arguments;
  nvrtc_search search;
  nvrtc_file file;
  nvrtc lib;
  nvrtc_search_start(&search, v->path, 0, false);
  TRY(nvrtc_open_first(&search, &file, &lib, err));
  *v->major = lib.major;
  *v->minor = lib.minor;
  return LUATTN_OK;
}

luattn_status luattn_nvrtc_version(const char *path, int *major, int *minor, luattn_error *err) {
  fail_clear(err);
  NEED(major);
  NEED(minor);
  return host_run(version_within, &(version_call){path, major, minor}, err);
}

typedef struct compile_call {
  const luattn_spec *spec;
  const luattn_target *target;
  luattn_image **image;
  luattn_compile_report *report;
} compile_call;

static void fill_report(const compilation *c, luattn_compile_report *r) {
  snprintf(r->plan, sizeof r->plan, "%s", c->plan.why);
  r->tiles = plan_tiles(&c->plan);
  r->every_length = c->every_length || plan_same_tiles(&r->tiles, &c->other);
}

/* With the next NVRTC of `search`, which is kept in it. *next: that one is of no use, and there may be
 * another. Not inlined, for the sake of the frame. */
__attribute__((noinline)) static luattn_status compile_once(const compile_call *given, nvrtc_search *search,
                                                            bool *next, luattn_image **image,
                                                            luattn_compile_report *report,
                                                            luattn_error *err) {
  compilation *c;
  luattn_error said; /* the caller may have none, and what failed is needed here */
  fail_clear(&said);
  luattn_status status = compile_open(given->spec, given->target, &c, &said);
  if (status == LUATTN_OK && *next) c->search = *search;
  if (status == LUATTN_OK) status = compile(c, image, report, &said);
  if (status == LUATTN_OK) status = compile_memory(c, &said);
  if (status == LUATTN_OK) fill_report(c, report);
  *next = status != LUATTN_OK && c != NULL && c->nvrtc_is_useless && nvrtc_pass_over(&c->search, &said);
  if (*next) *search = c->search;
  if (err != NULL) *err = said;
  compile_close(c);
  return status;
}

static luattn_status compile_within(void *arguments, luattn_error *err) {
  const compile_call *given = arguments;
  luattn_compile_report r;
  luattn_image *made = NULL;
  nvrtc_search search;
  bool next = false;
  luattn_status status;
  do {
    memset(&r, 0, sizeof r);
    r.trace_ms = given->spec->load_ms;
    status = compile_once(given, &search, &next, &made, &r, err);
  } while (next);
  if (status == LUATTN_OK) {
    if (given->report != NULL) *given->report = r;
    *given->image = made;
  } else {
    luattn_image_free(made);
  }
  return status;
}

luattn_status luattn_compile(const luattn_spec *spec, const luattn_target *target, luattn_image **image,
                             luattn_compile_report *report, luattn_error *err) {
  fail_clear(err);
  NEED(spec);
  NEED(target);
  NEED(image);
  return host_run(compile_within, &(compile_call){spec, target, image, report}, err);
}
