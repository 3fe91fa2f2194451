#include "gen/compile/tuned_boxes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "common/real.h"
#include "gen/cache/cache.h"
#include "gen/compile/cache_key.h"

enum { PATH_SIZE = 4096, FIELDS_SIZE = 900 };

#define BOXES "%" PRIx64 " %" PRIx64

static luattn_status key_of(const compilation *c, const box_call *of, hash128 *key, luattn_error *err) {
  hash128 spec[2];
  hasher h;
  TRY(cache_key_tuned(c, spec, err));
  if (!hasher_open(&h)) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  const int64_t heads[] = {of->heads, of->heads_kv};
  hasher_add(&h, "boxes of", &spec[LUATTN_LONG], sizeof spec[LUATTN_LONG]);
  hasher_add(&h, "q", of->q, sizeof of->q);
  hasher_add(&h, "kv", of->kv, sizeof of->kv);
  hasher_add(&h, "heads", heads, sizeof heads);
  *key = hasher_close(&h);
  return LUATTN_OK;
}

static void read_record(const char *text, hash128 key, hash128 origin, tuned_boxes *out) {
  char gain[REAL_SIZE], *end;
  bool is_stale;
  out->state = TUNED_DAMAGED;
  const char *fields = tuned_record_read(text, key, origin, &is_stale);
  if (fields == NULL) return;
  if (sscanf(fields, "boxes " BOXES " gain %31s own " BOXES, &out->boxes.q, &out->boxes.kv, gain, &out->own.q,
             &out->own.kv) != 5)
    return;
  out->gain = real_read(gain, &end);
  if (end == gain || *end != 0) return;
  out->state = is_stale ? TUNED_STALE : TUNED_SOUND;
}

luattn_status tuned_boxes_find(compilation *c, const box_call *of, tuned_boxes *found, luattn_error *err) {
  hash128 key, origin = {0, 0};
  *found = (tuned_boxes){.state = TUNED_NONE};
  char *dir = arena_new(c->a, PATH_SIZE), *path = arena_new(c->a, PATH_SIZE), *text = arena_new(c->a, RECORD_SIZE);
  if (dir == NULL || path == NULL || text == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  TRY(cache_resolve(c->target.cache_dir, dir, PATH_SIZE, err));
  TRY(key_of(c, of, &key, err));
  if (!cache_find_record(dir, key, text, RECORD_SIZE, path, PATH_SIZE)) return LUATTN_OK;
  snprintf(found->path, sizeof found->path, "%s", path);
  TRY(compilation_find_nvrtc(c, err));
  TRY(cache_key_origin(c, &origin, err));
  read_record(text, key, origin, found);
  return LUATTN_OK;
}

/* "24 x 32"; NULL: out of memory. */
static const char *extents_text(const compilation *c, const int64_t extent[LUATTN_MAX_AXES]) {
  const char *text = "";
  for (int a = 0; a < c->spec.traced.grid_axes && text != NULL; a++)
    text = arena_printf(c->a, "%s%s%" PRId64, text, a > 0 ? " x " : "", extent[a]);
  return text;
}

static const char *about(const compilation *c, const box_call *of) {
  const plan *p = &c->at.plan;
  const char *const q = extents_text(c, of->q), *const kv = extents_text(c, of->kv);
  if (q == NULL || kv == NULL) return NULL;
  return arena_printf(c->a,
                      "for %.64s on %.128s, sm_%d: %s, %s, head dims %d and %d, %s queries, %s keys, %" PRId64
                      " and %" PRId64 " heads\n",
                      c->spec.traced.name, c->target.device, p->arch, kernel_pass_name(p->pass),
                      kernel_dtype_name(p->dtype), p->head_dim, p->head_dim_v, q, kv, of->heads, of->heads_kv);
}

luattn_status tuned_boxes_store(compilation *c, const box_call *of, const tuned_boxes *r, char *path, size_t size,
                                luattn_error *err) {
  char dir[PATH_SIZE], text[RECORD_SIZE], fields[FIELDS_SIZE], gain[REAL_SIZE];
  hash128 key, origin;
  TRY(cache_resolve(c->target.cache_dir, dir, sizeof dir, err));
  TRY(key_of(c, of, &key, err));
  if (r == NULL) return cache_store_record(dir, key, NULL, path, size, err);
  TRY(cache_key_origin(c, &origin, err));
  const char *what = about(c, of);
  if (what == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tuned: out of memory");
  snprintf(fields, sizeof fields, "boxes " BOXES "\ngain %s\nown " BOXES "\n%s", r->boxes.q, r->boxes.kv,
           real_write(r->gain, 1, gain), r->own.q, r->own.kv, what);
  tuned_record_write(key, origin, fields, text);
  return cache_store_record(dir, key, text, path, size, err);
}
