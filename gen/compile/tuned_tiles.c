/* tuned_tiles.c: reads and writes tiles that were measured on a device, remembered next to the cache. A
 * record's key covers spec, pass, types, dims, device and class of lengths; its origin covers everything else
 * that was compiled. A record with another origin or a damaged record is not used, and the plan says so.
 *
 *   luattn tuned 1 <32 digits: hash of what follows>
 *   luattn <version>
 *   key <32 digits, as in its name>
 *   origin <32 digits>
 *   tiles <tile_m> <tile_n> <threads> <stages> <warps_n> <chunk_m>
 *   gain <times as fast as the plan's own>
 *   own <the plan's own tiles>
 *   other <those that the other class of lengths tries first>
 *   for <spec> on <device> ..                            for people */
#include "gen/compile/tuned_tiles.h"

#include <stdio.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "common/real.h"
#include "gen/cache/cache.h"
#include "gen/compile/cache_key.h"

enum { PATH_SIZE = 4096, FIELDS_SIZE = 900 };

/* ---- the text ---- */

#define TILES "%d %d %d %d %d %d"
#define TILES_OF(t) (t).tile_m, (t).tile_n, (t).threads, (t).stages, (t).warps_n, (t).chunk_m
#define TILES_INTO(t) &(t).tile_m, &(t).tile_n, &(t).threads, &(t).stages, &(t).warps_n, &(t).chunk_m

static void record_write(const tuned_record *r, hash128 key, hash128 origin, const char *about,
                         char text[RECORD_SIZE]) {
  char fields[FIELDS_SIZE], gain[REAL_SIZE];
  snprintf(fields, sizeof fields, "tiles " TILES "\ngain %s\nown " TILES "\nother " TILES "\nfor %s\n",
           TILES_OF(r->tiles), real_write(r->gain, 1, gain), TILES_OF(r->own), TILES_OF(r->other), about);
  tuned_record_write(key, origin, fields, text);
}

/* A record without the plan's own tiles is of an earlier build. */
static void record_read(const char *text, hash128 key, hash128 origin, tuned_record *out) {
  char gain[REAL_SIZE], *end;
  bool is_stale;
  out->state = TUNED_DAMAGED;
  const char *fields = tuned_record_read(text, key, origin, &is_stale);
  if (fields == NULL) return;
  const int read = sscanf(fields, "tiles " TILES " gain %31s own " TILES " other " TILES, TILES_INTO(out->tiles), gain,
                          TILES_INTO(out->own), TILES_INTO(out->other));
  if (read != 19 && read != 7) return;
  out->gain = real_read(gain, &end);
  if (end == gain || *end != 0) return;
  out->state = read == 19 && !is_stale ? TUNED_SOUND : TUNED_STALE;
}

/* ---- looking up ---- */

/* The paths are allocated in the arena: they are too large for the stack during planning. */
luattn_status tuned_find(compilation *c, tuned_record found[2], luattn_error *err) {
  char *dir = arena_new(c->a, PATH_SIZE), *text[2];
  hash128 keys[2], origin = {0, 0};
  bool is_there[2], any = false;
  if (dir == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  TRY(cache_resolve(c->target.cache_dir, dir, PATH_SIZE, err));
  TRY(cache_key_tuned(c, keys, err));
  for (int i = 0; i < 2; i++) {
    found[i].state = TUNED_NONE;
    found[i].path = arena_new(c->a, PATH_SIZE);
    text[i] = arena_new(c->a, RECORD_SIZE);
    if (found[i].path == NULL || text[i] == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
    is_there[i] = cache_find_record(dir, keys[i], text[i], RECORD_SIZE, found[i].path, PATH_SIZE);
    any |= is_there[i];
  }
  if (!any) return LUATTN_OK;
  TRY(compilation_find_nvrtc(c, err));
  TRY(cache_key_origin(c, &origin, err));
  for (int i = 0; i < 2; i++)
    if (is_there[i]) record_read(text[i], keys[i], origin, &found[i]);
  return LUATTN_OK;
}

static const char *about(const compilation *c) {
  const plan *p = &c->at.plan;
  return arena_printf(c->a, "%.64s on %.128s, sm_%d: %s, %s, head dims %d and %d, %s lengths", c->spec.traced.name,
                      c->target.device, p->arch, kernel_pass_name(p->pass), kernel_dtype_name(p->dtype), p->head_dim,
                      p->head_dim_v, c->target.lengths == LUATTN_SHORT ? "short" : "long");
}

luattn_status tuned_store(compilation *c, const tuned_record *r, char *path, size_t size, luattn_error *err) {
  char dir[PATH_SIZE], text[RECORD_SIZE];
  hash128 origin, keys[2];
  TRY(cache_resolve(c->target.cache_dir, dir, sizeof dir, err));
  TRY(cache_key_origin(c, &origin, err));
  TRY(cache_key_tuned(c, keys, err));
  const hash128 key = keys[c->target.lengths];
  if (r == NULL) return cache_store_record(dir, key, NULL, path, size, err);
  const char *what = about(c);
  if (what == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  record_write(r, key, origin, what, text);
  return cache_store_record(dir, key, text, path, size, err);
}
