/* tuning.c: answers questions about tiles: the plan's, those that could be measured, and which are
 * remembered. */
#include <math.h>

#include "common/call/need_attention.h"
#include "common/host.h"
#include "gen/cache/cache.h"
#include "gen/compile/pipeline.h"
#include "gen/compile/tuned_tiles.h"

/* The state of a question; each question uses a part of it. */
typedef struct tiles_call {
  const luattn_spec *spec;
  const luattn_target *target;
  int *tile_m, *tile_n;
  luattn_tiles *out;
  int most, *count;
} tiles_call;

static luattn_status answer_tiles(void *arguments, luattn_error *err) {
  const tiles_call *given = arguments;
  compilation *c;
  luattn_status status = compilation_open(given->spec, given->target, &c, err);
  if (status == LUATTN_OK) status = pipeline_tuned_source(c, err);
  if (status == LUATTN_OK) {
    *given->tile_m = c->at.plan.tile_m;
    *given->tile_n = c->at.plan.tile_n;
  }
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err);
  return status;
}

luattn_status luattn_plan_tiles(const luattn_spec *spec, const luattn_target *target, int *tile_m, int *tile_n,
                                luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(target);
  NEED(tile_m);
  NEED(tile_n);
  tiles_call call = {.spec = spec, .target = target, .tile_m = tile_m, .tile_n = tile_n};
  return host_run(answer_tiles, &call, err);
}

static luattn_status answer_candidates(void *arguments, luattn_error *err) {
  const tiles_call *given = arguments;
  luattn_tiles list[PLAN_MAX_CANDIDATES];
  compilation *c;
  int count;
  luattn_status status = compilation_open(given->spec, given->target, &c, err);
  if (status == LUATTN_OK) status = plan_list(&c->spec, &c->target, list, &count, err);
  if (status == LUATTN_OK) {
    *given->count = count < given->most ? count : given->most;
    for (int i = 0; i < *given->count; i++) given->out[i] = list[i];
  }
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err);
  return status;
}

luattn_status luattn_plan_candidates(const luattn_spec *spec, const luattn_target *target, luattn_tiles *out, int most,
                                     int *count, luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(target);
  NEED(count);
  if (out == NULL && most > 0) return fail_null(err, __func__, "out");
  if (most < 0) return luattn_fail(err, LUATTN_INVALID, "candidates: most: is %d, expected the length of `out`", most);
  tiles_call call = {.spec = spec, .target = target, .out = out, .most = most, .count = count};
  return host_run(answer_candidates, &call, err);
}

/* ---- records ---- */

enum { MAX_PATH = 4096 };

static luattn_status store(compilation *c, double gain, char *path, size_t size, luattn_error *err) {
  const luattn_tiles *tiles = c->target.tiles;
  char dir[MAX_PATH];
  plan p;
  nvrtc lib;
  if (c->target.device == NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "tuned: device: is NULL; give the luattn_device_info.name that was measured");
  if (tiles != NULL && !(isfinite(gain) && gain > 0))
    return luattn_fail(err, LUATTN_INVALID, "tuned: gain: is %g, expected how many times as fast they are", gain);
  TRY(cache_resolve(c->target.cache_dir, dir, sizeof dir, err));
  if (dir[0] == 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "tuned: there is no cache on disk to remember tiles beside, as its directory is empty; "
                       "name one with cache_dir or LUATTN_CACHE_DIR");
  if (tiles != NULL) TRY(plan_choose(c->a, &c->spec, &c->target, &p, err)); /* fails if it is no candidate */
  luattn_target other = c->target;
  other.tiles = NULL, other.lengths = c->target.lengths == LUATTN_LONG ? LUATTN_SHORT : LUATTN_LONG;
  c->target.tiles = NULL;
  TRY(pipeline_source(c, err)); /* the plan's own choice */
  tuned_record r = {.gain = gain, .own = plan_tiles(&c->at.plan)};
  TRY(plan_choose(c->a, &c->spec, &other, &p, err));
  r.other = plan_tiles(&p);
  if (tiles != NULL) r.tiles = *tiles;
  TRY(plan_start(&c->spec, &c->target, &c->at.plan, err));
  TRY(nvrtc_open_first(&c->search, &c->nvrtc, &lib, err)); /* the NVRTC that compiled them */
  return tuned_store(c, tiles != NULL ? &r : NULL, path, size, err);
}

typedef struct store_call {
  const luattn_spec *spec;
  const luattn_target *target;
  double gain;
  char *path;
  size_t size;
} store_call;

static luattn_status store_within(void *arguments, luattn_error *err) {
  const store_call *s = arguments;
  compilation *c;
  luattn_status status = compilation_open(s->spec, s->target, &c, err);
  if (status == LUATTN_OK) status = store(c, s->gain, s->path, s->path != NULL ? s->size : 0, err);
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err);
  return status;
}

luattn_status luattn_tuned_store(const luattn_spec *spec, const luattn_target *target, double gain, char *path,
                                 size_t size, luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(target);
  return host_run(store_within, &(store_call){spec, target, gain, path, size}, err);
}
