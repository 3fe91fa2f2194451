/* pipeline.c: THE PIPELINE.
 *
 *   spec.lua -> front_trace -> derive_spec                                           load_spec.c
 *            -> mask_analyse                                                         compilation.c
 *            -> plan -> lower -> emit                                                attempt.c
 *            -> NVRTC -> image                                                       programs.c, ptxas.c
 *
 * with THE LOOP over tiles, which goes from plan to ptxas until a choice suits the spec; a key and the cache
 * before NVRTC; and where tiles were measured and remembered for the device, those.
 */
#include "gen/compile/pipeline.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gen/cache/cache.h"
#include "gen/compile/attempt.h"
#include "gen/compile/cache_key.h"
#include "gen/compile/programs.h"
#include "gen/compile/ptxas.h"
#include "gen/compile/tuned_tiles.h"

/* ---- the loop ---- */

/* What is wrong with an attempt, if anything. CROWDED: it is known to do better in other tiles. */
typedef enum verdict { FITS, REPLANNED, CROWDED, UNFIT, SPILLS } verdict;

typedef struct search {
  bool made;       /* c->at is, and the loop goes on with it */
  attempt crowded; /* the first one that is; lowered NULL: none */
  bool takes_crowded;
  luattn_error refusal; /* why the first attempt could not be made */
  const nvrtc *lib;     /* NULL: ptxas is not asked */
  const char *dir;      /* where a source is kept that NVRTC refuses */
  hash128 key;
  attempt best;
  nvrtc_result result, others, last; /* of the best one; of the last one */
  int least;                         /* spills of the best one; -1: there is none */
  bool found, fits;                  /* it is good, and a better one is looked for; it is good */
} search;

static search *search_new(compilation *c) {
  search *s = arena_new(c->a, sizeof *s);
  if (s != NULL) s->least = -1;
  return s;
}

static luattn_status refuse(const search *s, luattn_status status, luattn_error *err) {
  if (err != NULL) *err = s->refusal;
  return status;
}

/* NVRTC over c->at, which is kept if it is the best so far. What was found good stays, whatever comes of a
 * better one. */
static luattn_status ask_ptxas(compilation *c, search *s, verdict *v, luattn_error *err) {
  nvrtc_result others;
  int spills;
  const luattn_status status = programs_compile(c, s->lib, c->target.ptx, &s->last, &others, err);
  s->takes_crowded = true;
  *v = UNFIT;
  if (status != LUATTN_OK && s->found) return LUATTN_OK;
  if (status == LUATTN_COMPILE) programs_keep(c, s->dir, s->key, err);
  if (status != LUATTN_OK) return status;
  const ptxas_verdict said = ptxas_judge(c, &s->last, &spills);
  if (s->least < 0 || said != PTXAS_SPILLS || (spills < s->least && !s->found))
    s->best = c->at, s->result = s->last, s->others = others, s->least = spills;
  s->found |= said == PTXAS_CROWDED;
  s->fits |= said != PTXAS_SPILLS;
  *v = said == PTXAS_FITS ? FITS : SPILLS;
  return LUATTN_OK;
}

/* The plan to try after what c->at turned out to be; false: there is none. A plan that spills more first
 * gives up bias rows that are read ahead, and then gives way to the next of the table. */
static bool replan(compilation *c, search *s, verdict v) {
  if (v == REPLANNED) return true;
  if (v == CROWDED && s->crowded.lowered == NULL) s->crowded = c->at;
  if (v == UNFIT && s->crowded.lowered == NULL) s->takes_crowded = true;
  if (v == SPILLS && attempt_without_bias_rows(c)) return true;
  if (s->found) return false;
  if (attempt_next_tiles(c)) return true;
  if (s->takes_crowded) return false;
  c->at = s->crowded; /* all others are crowded, too */
  return s->takes_crowded = s->made = true;
}

/* Before ptxas is asked, each of whose answers takes as long as a compilation. */
static verdict judge_lowered(compilation *c) {
  if (attempt_for_softcap(c)) return REPLANNED;
  return c->at.lowered->crowded && !c->at.plan.forced ? CROWDED : FITS;
}

/* THE LOOP: c->at from its plan on, or the first plan after it that suits the spec. */
static luattn_status search_tiles(compilation *c, search *s, luattn_error *err) {
  for (verdict v = REPLANNED; replan(c, s, v);) {
    const bool first = c->at.plan.rank == 0 && !c->at.plan.no_bias_rows;
    const luattn_status status = s->made ? LUATTN_OK : attempt_make(c, first ? &s->refusal : NULL);
    s->made = false;
    if (status != LUATTN_OK && status != LUATTN_UNSUPPORTED && first) return refuse(s, status, err);
    v = status != LUATTN_OK ? UNFIT : s->takes_crowded ? FITS : judge_lowered(c);
    if (v == FITS && s->lib != NULL) TRY(ask_ptxas(c, s, &v, err));
    if (v == FITS) return compilation_memory(c, err);
  }
  TRY(compilation_memory(c, err));
  return s->lib != NULL ? LUATTN_OK : refuse(s, LUATTN_UNSUPPORTED, err);
}

/* ---- plan -> lower -> emit, before anything is compiled ---- */

luattn_status pipeline_source(compilation *c, luattn_error *err) {
  search *s = search_new(c);
  if (s == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  TRY(plan_choose(c->a, &c->spec, &c->target, &c->at.plan, err));
  return search_tiles(c, s, err);
}

/* Where the first choices for short and for long lengths are the same, so is all that follows from them. */
static luattn_status compare_lengths(compilation *c, luattn_error *err) {
  luattn_target target = c->target;
  luattn_tiles first[2];
  for (int i = 0; i < 2; i++) {
    plan p;
    target.lengths = (luattn_lengths)i;
    TRY(plan_choose(c->a, &c->spec, &target, &p, err));
    first[i] = plan_tiles(&p);
  }
  c->other = first[c->target.lengths == LUATTN_LONG ? LUATTN_SHORT : LUATTN_LONG];
  c->every_length = plan_same_tiles(&first[0], &first[1]);
  return LUATTN_OK;
}

static luattn_status not_tuned(compilation *c, const tuned_record *r, const char *why, luattn_error *err) {
  return compilation_note(
      c, arena_printf(c->a, "tuned: not used, run luattn tune again: %s %s", r->path, why), err);
}

/* Plans again with the remembered tiles. */
static luattn_status use_tuned(compilation *c, const tuned_record *r, luattn_error *err) {
  const luattn_tiles own = plan_tiles(&c->at.plan);
  luattn_tiles *tiles = arena_new(c->a, sizeof *tiles);
  if (tiles == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  *tiles = r->tiles;
  c->target.tiles = tiles;
  const luattn_status status = pipeline_source(c, err);
  if (status == LUATTN_OK) {
    const char *lengths = c->target.lengths == LUATTN_SHORT ? "short" : "long";
    return compilation_note(
        c,
        arena_printf(c->a, "tuned: %.2f times as fast as %d x %d, %d stages, at %s lengths on %s: %s",
                     r->gain, own.tile_m, own.tile_n, own.stages, lengths, c->target.device, r->path),
        err);
  }
  if (status == LUATTN_NO_MEMORY) return status;
  c->target.tiles = NULL;
  TRY(pipeline_source(c, err));
  return not_tuned(c, r, "names tiles that are no candidates", err);
}

luattn_status pipeline_tuned_source(compilation *c, luattn_error *err) {
  tuned_record found[2]; /* by luattn_lengths */
  TRY(pipeline_source(c, err));
  TRY(compare_lengths(c, err));
  if (c->target.device == NULL || c->at.plan.forced) return LUATTN_OK;
  TRY(tuned_find(c, found, err));
  const tuned_record *r = &found[c->target.lengths],
                     *other = &found[c->target.lengths == LUATTN_LONG ? LUATTN_SHORT : LUATTN_LONG];
  if (other->state == TUNED_SOUND) c->other = other->tiles;
  if (other->state == TUNED_SOUND || r->state == TUNED_SOUND) c->every_length = false;
  if (r->state == TUNED_SOUND) return use_tuned(c, r, err);
  if (r->state == TUNED_DAMAGED) return not_tuned(c, r, "is damaged", err);
  if (r->state == TUNED_STALE)
    return not_tuned(c, r, "was made with another luattn, NVRTC or set of templates", err);
  return LUATTN_OK;
}

/* ---- an image that the cache had ---- */

static bool is_plan_of(const compilation *c, const image_manifest *info) {
  const plan *p = &c->at.plan;
  bool same = info->family == (uint32_t)p->family && info->num_entries == (uint32_t)p->num_entries &&
              info->reads_ahead == c->at.info.reads_ahead;
  for (int i = 0; same && i < p->num_entries; i++) {
    const plan_entry *a = &p->entry[i];
    const manifest_entry *b = &info->entry[i];
    same = b->role == (uint32_t)a->role && b->tile_m == (uint32_t)a->tile_m &&
           b->tile_n == (uint32_t)a->tile_n && b->threads == (uint32_t)a->threads &&
           b->shared_bytes == (uint32_t)a->shared_bytes;
  }
  return same;
}

bool pipeline_match(compilation *c, const luattn_image *image) {
  const attempt first = c->at;
  for (bool made = true; made;) {
    if (is_plan_of(c, image_get_manifest(image))) return true;
    made = false;
    while (!made && (attempt_without_bias_rows(c) || attempt_next_tiles(c)))
      made = attempt_make(c, NULL) == LUATTN_OK;
  }
  c->at = first;
  return false;
}

/* Of an image from the cache, which keeps one number for spills and stack. */
static const char *explain_image(const compilation *c, const luattn_image *image) {
  const image_manifest *info = image_get_manifest(image);
  const char *why = compilation_why(c);
  for (uint32_t i = 0; i < info->num_entries; i++) {
    const manifest_entry *e = &info->entry[i];
    const char *line = e->local_bytes == 0
                           ? NULL
                           : arena_printf(c->a, "%s has %u bytes of stack and spilled registers", e->name,
                                          (unsigned)e->local_bytes);
    if (line != NULL) why = compilation_add_line(c->a, why, line);
  }
  return why;
}

/* ---- NVRTC -> image ---- */

static luattn_status open_nvrtc(compilation *c, nvrtc *lib, luattn_error *err) {
  c->nvrtc_is_useless = true;
  TRY(nvrtc_open(&c->nvrtc, lib, err));
  TRY(nvrtc_check_driver(&c->search, lib, err));
  if (!nvrtc_supports(lib, c->at.plan.arch))
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "nvrtc: '%s': is version %d.%d, which does not know sm_%d; name another with LUATTN_NVRTC", lib->path,
        lib->major, lib->minor, c->at.plan.arch);
  c->nvrtc_is_useless = false;
  return LUATTN_OK;
}

static luattn_status make_image(const compilation *c, const nvrtc_result *r, const nvrtc_result *others,
                                hash128 key, luattn_image **image, luattn_error *err) {
  image_manifest info = c->at.info;
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
  return programs_image(c, &info, r, others, image, err);
}

/* Compiles c->at, or what follows it in the table. */
static luattn_status build(compilation *c, const char *dir, hash128 key, luattn_image **image,
                           luattn_error *err) {
  nvrtc lib;
  search *s = search_new(c);
  TRY(open_nvrtc(c, &lib, err));
  c->second = arena_open(NULL);
  if (s == NULL || c->second == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  s->made = true, s->lib = &lib, s->dir = dir, s->key = key;
  TRY(search_tiles(c, s, err));
  c->at = s->best;
  if (c->at.plan.picked && !s->fits) return ptxas_refuse_picked(c, &s->last, err);
  if (s->result.cubin == NULL) return ptxas_refuse_all(c, &s->result, err);
  c->why = ptxas_explain(c, &s->result);
  TRY(compilation_memory(c, err)); /* before anything is kept */
  return make_image(c, &s->result, &s->others, key, image, err);
}

/* ---- the whole ---- */

/* An NVRTC that was passed over is a fact of the plan. */
static void explain_nvrtc(compilation *c) {
  if (c->search.failed[0] == 0) return;
  const char *line = arena_printf(c->a, "nvrtc: %s; so '%s' is used", c->search.failed, c->nvrtc.path);
  if (line != NULL) c->why = compilation_add_line(c->a, c->why, line);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Publishes an image; what came in its way is a warning. */
static luattn_status keep(compilation *c, const char *dir, hash128 key, const luattn_image *image,
                          luattn_compile_report *report, luattn_error *err) {
  char warning[512] = "";
  size_t limit;
  TRY(cache_limit(&limit, err));
  TRY(cache_store(dir, key, image, warning, sizeof warning, err));
  if (dir[0] != 0 && warning[0] == 0) {
    TRY(cache_trim(dir, limit, err));
    report->is_kept = cache_has(dir, key);
    if (!report->is_kept)
      snprintf(warning, sizeof warning, "cache: %.200s: has no room for this kernel; raise LUATTN_CACHE_SIZE",
               dir);
  }
  explain_nvrtc(c);
  if (warning[0] != 0) c->why = compilation_add_line(c->a, c->why, warning);
  fail_clear(err); /* what failed on the way is no warning */
  if (warning[0] != 0) luattn_warn(err, "%s", warning);
  return LUATTN_OK;
}

luattn_status pipeline_run(compilation *c, luattn_image **image, luattn_compile_report *report,
                           luattn_error *err) {
  char dir[1024];
  size_t limit;
  hash128 key;
  const double start = now_ms();
  TRY(pipeline_tuned_source(c, err)); /* plan -> lower -> emit */
  const double planned = now_ms();
  TRY(cache_resolve(c->target.cache_dir, dir, sizeof dir, err));
  TRY(cache_limit(&limit, err));
  TRY(compilation_find_nvrtc(c, err));
  TRY(cache_key(c, &key, err));
  TRY(cache_find(dir, key, image, err));
  const double looked = now_ms();
  report->cache_hit = report->is_kept = *image != NULL;
  report->plan_ms = planned - start;
  report->cache_ms = looked - planned;
  if (*image != NULL) {
    (void)pipeline_match(c, *image); /* the report describes it */
    c->why = explain_image(c, *image);
    explain_nvrtc(c);
    fail_clear(err);
    return LUATTN_OK;
  }
  TRY(build(c, dir, key, image, err)); /* NVRTC -> image, with further plans where ptxas asks for them */
  report->nvrtc_ms = now_ms() - looked;
  return keep(c, dir, key, *image, report, err);
}
