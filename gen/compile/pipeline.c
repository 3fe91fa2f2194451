/* pipeline.c: THE PIPELINE.
 *
 *   load     spec.lua -> front_trace -> derive_spec                       load_spec.c
 *            -> mask_analyse                                              compilation.c
 *   key      of the IR, the target, the build and NVRTC: on a hit the
 *            image comes from the cache, and nothing below runs           cache_key.c
 *   plan -> lower -> emit                                                 attempt.c
 *   NVRTC    which may ask for other tiles: THE LOOP                      search.c, programs.c, ptxas.c
 *   image    stored in the cache                                          fill_manifest.c, gen/cache
 *
 * Tiles that were measured and remembered for the device (tuned_tiles.c) become part of the target, and so of
 * the key.
 */
#include "gen/compile/pipeline.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gen/analysis/specs/adjoint.h"
#include "gen/cache/cache.h"
#include "gen/compile/attempt.h"
#include "gen/compile/cache_key.h"
#include "gen/compile/programs.h"
#include "gen/compile/ptxas.h"
#include "gen/compile/search.h"
#include "gen/compile/tuned_tiles.h"

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- plan -> lower -> emit, without compiling ---- */

luattn_status pipeline_source(compilation *c, luattn_error *err) {
  search *s = search_new(c);
  if (s == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  return search_tiles(c, s, err);
}

static bool is_plan_of(const compilation *c, const image_manifest *info) {
  const plan *p = &c->at.plan;
  bool same = info->family == (uint32_t)p->family->id && info->num_entries == (uint32_t)p->num_entries &&
              info->reads_ahead == c->at.info.reads_ahead;
  for (int i = 0; same && i < p->num_entries; i++) {
    const plan_entry *a = &p->entry[i];
    const manifest_entry *b = &info->entry[i];
    same = b->role == (uint32_t)a->role && b->tile_m == (uint32_t)a->tile_m && b->tile_n == (uint32_t)a->tile_n &&
           b->threads == (uint32_t)a->threads && b->shared_bytes == (uint32_t)a->shared_bytes;
  }
  return same;
}

luattn_status pipeline_source_of(compilation *c, const luattn_image *image, luattn_error *err) {
  const image_manifest *m = image_get_manifest(image);
  image_plan planned;
  bool same = image_get_plan(image, &planned) &&
              plan_of_tiles(c->a, &c->spec, &c->target, (luattn_family)m->family, &planned.tiles, &c->at.plan) &&
              attempt_make(c, err) == LUATTN_OK;
  if (same && !m->reads_ahead && attempt_without_bias_rows(c)) same = attempt_make(c, err) == LUATTN_OK;
  TRY(compilation_memory(c, err));
  if (same && is_plan_of(c, m)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "emit: image: has tiles that this target's plan does not choose; give the target that it "
                     "was compiled for, with its `tiles` where they were given");
}

/* ---- tuned tiles ---- */

/* Tuning records for the target's lengths and for the other lengths. */
typedef struct tuned {
  tuned_record found[2]; /* by luattn_lengths */
  bool is_used;
} tuned;

static luattn_status not_tuned(compilation *c, const tuned_record *r, const char *why, luattn_error *err) {
  return compilation_note(c, arena_printf(c->a, "tuned: not used, run luattn tune again: %s %s", r->path, why), err);
}

/* Makes remembered tiles part of the target. c->at.plan is started. */
static luattn_status use_tuned(compilation *c, tuned *t, luattn_error *err) {
  if (c->target.device == NULL || c->at.plan.forced) return LUATTN_OK;
  TRY(tuned_find(c, t->found, err));
  const tuned_record *r = &t->found[c->target.lengths];
  if (r->state == TUNED_DAMAGED) return not_tuned(c, r, "is damaged", err);
  if (r->state == TUNED_STALE) return not_tuned(c, r, "was made with another luattn, NVRTC or set of templates", err);
  t->is_used = r->state == TUNED_SOUND;
  if (t->is_used) c->target.tiles = &r->tiles;
  return plan_start(&c->spec, &c->target, &c->at.plan, err);
}

static luattn_status note_tuned(compilation *c, const tuned *t, luattn_error *err) {
  const tuned_record *r = &t->found[c->target.lengths];
  const char *lengths = c->target.lengths == LUATTN_SHORT ? "short" : "long";
  if (!t->is_used) return LUATTN_OK;
  return compilation_note(
      c,
      arena_printf(c->a, "tuned: %.2f times as fast as %d x %d, %d stages, at %s lengths on %s: %s", r->gain,
                   r->own.tile_m, r->own.tile_n, r->own.stages, lengths, c->target.device, r->path),
      err);
}

/* Runs after the first part of the compilation returned `failed`: ignores stored tiles that are not
 * candidates. */
static luattn_status without_tuned(compilation *c, tuned *t, luattn_status failed, luattn_error *err) {
  if (!t->is_used || failed == LUATTN_NO_MEMORY) return failed;
  t->is_used = false;
  c->target.tiles = NULL;
  TRY(not_tuned(c, &t->found[c->target.lengths], "names tiles that are no candidates", err));
  return plan_start(&c->spec, &c->target, &c->at.plan, err);
}

/* Kernels read keys where they lie, and have no room for what a mod makes of a whole cache. The CPU path makes it of
 * one entry. With keys_modified no mod is left here. */
static luattn_status refuse_mods(const compilation *c, luattn_error *err) {
  const traced_spec *t = &c->spec.traced;
  if (c->target.pages == 0 || (t->key_mod == IR_NONE && t->value_mod == IR_NONE)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "target: pages: is %d, and %s has %s: kernels read keys in pages as they are; set keys_modified = "
                     "1 (no pack holds such a kernel), with "
                     "which luattn_append applies it to a row before it is written to the cache",
                     (int)c->target.pages, t->name, t->key_mod != IR_NONE ? "key_mod" : "value_mod");
}

luattn_status pipeline_tuned_source(compilation *c, luattn_error *err) {
  tuned *t = arena_new(c->a, sizeof *t);
  if (t == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  TRY(plan_start(&c->spec, &c->target, &c->at.plan, err));
  TRY(refuse_mods(c, err));
  TRY(use_tuned(c, t, err));
  const luattn_status status = pipeline_source(c, err);
  if (status != LUATTN_OK) {
    TRY(without_tuned(c, t, status, err));
    TRY(pipeline_source(c, err));
  }
  return note_tuned(c, t, err);
}

/* Whether an image that serves every length by the plan's choices does so by the remembered tiles. */
static bool is_for_every_length(const compilation *c, const tuned *t) {
  const luattn_lengths lengths = c->target.lengths;
  const tuned_record *r = &t->found[lengths], *other = &t->found[lengths == LUATTN_LONG ? LUATTN_SHORT : LUATTN_LONG];
  if (other->state == TUNED_SOUND) return plan_same_tiles(&c->planned.tiles, &other->tiles);
  return t->is_used ? plan_same_tiles(&c->planned.tiles, &r->other) : c->planned.every_length;
}

/* ---- NVRTC -> image ---- */

/* If the first choices for short and for long lengths are equal, so is everything that follows from them. */
static luattn_status compare_lengths(compilation *c, const luattn_tiles *tiles, bool *same, luattn_error *err) {
  luattn_target target = c->target;
  luattn_tiles first[2];
  for (int i = 0; i < 2; i++) {
    plan p;
    target.lengths = (luattn_lengths)i;
    TRY(plan_choose(c->a, &c->spec, &target, &p, err));
    first[i] = plan_tiles(&p);
  }
  *same = plan_same_tiles(&first[0], &first[1]) ||
          plan_same_tiles(tiles, &first[c->target.lengths == LUATTN_LONG ? LUATTN_SHORT : LUATTN_LONG]);
  return LUATTN_OK;
}

typedef struct run {
  tuned tuned;
  char dir[1024]; /* where images are kept; "": nowhere */
  size_t limit;
  hash128 key[2]; /* cache_key, by `one_code` */
  bool asked;     /* NVRTC was asked whether tiles are candidates */
  char warning[512];
  luattn_compile_report *report;
} run;

static hash128 key_of(const run *r, const compilation *c, const image_manifest *m) {
  return r->key[c->target.one_code && programs_may_be_two(m)];
}

static luattn_status make_image(const compilation *c, const run *r, const search *s, luattn_image **image,
                                luattn_error *err) {
  image_manifest info = c->at.info;
  const hash128 key = key_of(r, c, &info);
  info.source_hash[0] = key.lo;
  info.source_hash[1] = key.hi;
  for (uint32_t j = 0; j < info.num_entries; j++)
    for (int i = 0; i < s->result.num_entries; i++) {
      const nvrtc_entry *e = &s->result.entry[i];
      if (strcmp(e->name, info.entry[j].name) != 0) continue;
      info.entry[j].registers = (uint32_t)e->registers;
      info.entry[j].local_bytes = (uint32_t)(e->stack_bytes > e->spill_bytes ? e->stack_bytes : e->spill_bytes);
    }
  return programs_image(c, &info, &s->result, &s->others, image, err);
}

static luattn_status build(compilation *c, run *r, luattn_image **image, luattn_error *err) {
  const double start = now_ms();
  search *s = search_new(c);
  if (c->second == NULL) c->second = arena_open(NULL);
  if (s == NULL || c->second == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  s->compiles = true, s->dir = r->dir, s->key = r->key[0];
  const luattn_status status = search_tiles(c, s, err); /* plan -> lower -> emit -> NVRTC */
  r->asked = s->nvrtc_ms > 0;
  if (status != LUATTN_OK) return status;
  c->at = s->best;
  if (c->at.plan.picked && !s->fits) return ptxas_refuse_picked(c, &s->last, err);
  if (s->result.cubin == NULL) return ptxas_refuse_all(c, &s->result, err);
  c->planned = (image_plan){.text = ptxas_explain(c, &s->result), .tiles = plan_tiles(&c->at.plan)};
  TRY(compare_lengths(c, &c->planned.tiles, &c->planned.every_length, err));
  TRY(compilation_memory(c, err)); /* before anything is stored */
  TRY(make_image(c, r, s, image, err));
  r->report->nvrtc_ms = s->nvrtc_ms;
  r->report->plan_ms = now_ms() - start - s->nvrtc_ms;
  return LUATTN_OK;
}

/* ---- the cache ---- */

/* Takes the cache's image and its plan; an image without a plan is not used. */
static luattn_status find_one(compilation *c, run *r, bool one_code, luattn_image **image, luattn_error *err) {
  TRY(cache_find(r->dir, r->key[one_code], image, err));
  if (*image == NULL) return LUATTN_OK;
  const bool suits = one_code || !c->target.one_code || !programs_may_be_two(image_get_manifest(*image));
  if (suits && image_get_plan(*image, &c->planned)) return LUATTN_OK;
  luattn_image_free(*image);
  *image = NULL;
  return LUATTN_OK;
}

/* Where all kernels are to be in one code, an image that has only one code in any case is the same for both
 * keys. */
static luattn_status find(compilation *c, run *r, luattn_image **image, luattn_error *err) {
  const double start = now_ms();
  for (int one_code = 0; one_code <= (c->target.one_code != 0) && *image == NULL; one_code++) {
    TRY(cache_key(c, one_code != 0, &r->key[one_code], err));
    TRY(find_one(c, r, one_code != 0, image, err));
  }
  r->report->cache_hit = r->report->is_kept = *image != NULL;
  r->report->cache_ms = now_ms() - start;
  return LUATTN_OK;
}

/* Publishes an image; a failure becomes a warning. */
static luattn_status keep(const compilation *c, run *r, const luattn_image *image, luattn_error *err) {
  const hash128 key = key_of(r, c, image_get_manifest(image));
  TRY(cache_store(r->dir, key, image, r->warning, sizeof r->warning, err));
  if (r->dir[0] == 0 || r->warning[0] != 0) return LUATTN_OK;
  TRY(cache_trim(r->dir, r->limit, err));
  r->report->is_kept = cache_has(r->dir, key);
  if (!r->report->is_kept)
    snprintf(r->warning, sizeof r->warning, "cache: %.200s: has no room for this kernel; raise LUATTN_CACHE_SIZE",
             r->dir);
  return LUATTN_OK;
}

/* ---- the whole pipeline ---- */

/* Where images are kept, how many, and which NVRTC compiles them. */
static luattn_status look_around(compilation *c, run *r, luattn_error *err) {
  TRY(cache_resolve(c->target.cache_dir, r->dir, sizeof r->dir, err));
  TRY(cache_limit(&r->limit, err));
  return compilation_find_nvrtc(c, err);
}

static luattn_status image_of(compilation *c, run *r, luattn_image **image, luattn_error *err) {
  TRY(find(c, r, image, err));
  if (*image != NULL) return LUATTN_OK;
  TRY(build(c, r, image, err));
  return keep(c, r, *image, err);
}

/* The stored reasons, and notes about this run. An NVRTC that was passed over is noted, too. */
static luattn_status fill_report(compilation *c, run *r, luattn_error *err) {
  TRY(note_tuned(c, &r->tuned, err));
  if (c->search.failed[0] != 0)
    TRY(compilation_note(c, arena_printf(c->a, "nvrtc: %s; so '%s' is used", c->search.failed, c->nvrtc.path), err));
  if (r->warning[0] != 0) TRY(compilation_note(c, r->warning, err));
  snprintf(r->report->plan, sizeof r->report->plan, "%s%s", c->planned.text, c->note);
  r->report->tiles = c->planned.tiles;
  r->report->every_length = is_for_every_length(c, &r->tuned);
  fail_clear(err); /* earlier failures are no warning */
  if (r->warning[0] != 0) luattn_warn(err, "%s", r->warning);
  return LUATTN_OK;
}

luattn_status pipeline_run(compilation *c, luattn_image **image, luattn_compile_report *report, luattn_error *err) {
  run *r = arena_new(c->a, sizeof *r);
  luattn_error said;
  if (r == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  r->report = report;
  TRY(plan_start(&c->spec, &c->target, &c->at.plan, err)); /* fills the target's defaults */
  TRY(refuse_mods(c, err));
  const luattn_status ready = look_around(c, r, &said);
  if (ready != LUATTN_OK) {
    TRY(pipeline_source(c, err)); /* errors of the target come first */
    if (err != NULL) *err = said;
    return ready;
  }
  TRY(use_tuned(c, &r->tuned, err));
  const luattn_status status = image_of(c, r, image, err); /* key -> cache, or plan -> lower -> emit -> NVRTC */
  if (status != LUATTN_OK) {
    if (r->asked) return status;
    TRY(without_tuned(c, &r->tuned, status, err));
    TRY(image_of(c, r, image, err));
  }
  return fill_report(c, r, err);
}
