/* pack_find.c: which image of a pack serves a program on a device, or what there is instead. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/pack.h"

static const char *dtype_name(uint32_t dtype) {
  static const char *const name[] = {"f64", "f32", "bf16", "f16"};
  return dtype < sizeof name / sizeof *name ? name[dtype] : "?";
}

/* "forward of 'gemma2', bf16, head dim 128, sm_90a"; the family too, where that was asked for. */
static void entry_text(const luattn_pack_entry *e, bool with_family, char *text, size_t size) {
  static const char *const family[] = {", simt", ", sm80", ", sm90"}; /* checked, as lengths are */
  char arch[24], dims[32];
  arch_text(pack_arch(e), arch);
  if (e->head_dim_v == e->head_dim)
    snprintf(dims, sizeof dims, "%u", (unsigned)e->head_dim);
  else
    snprintf(dims, sizeof dims, "%ux%u", (unsigned)e->head_dim, (unsigned)e->head_dim_v);
  static const char *const lengths[] = {"", ", long", ", short"};
  snprintf(text, size, "%s%s of '%s', %s, head dim %s, %s%s%s", e->deterministic ? "deterministic " : "",
           e->pass == LUATTN_FORWARD ? "forward" : "backward", e->spec_name, dtype_name(e->dtype), dims, arch,
           with_family ? family[e->family] : "", lengths[e->lengths]);
}

/* A spec without a name of its own is called like its file, wherever that is; its hash is always the same. */
static bool is_same_spec(const luattn_pack_entry *e, const luattn_pack_query *q) {
  if (q->spec_hash[0] != 0 || q->spec_hash[1] != 0)
    return e->spec_hash[0] == q->spec_hash[0] && e->spec_hash[1] == q->spec_hash[1];
  return q->spec_name == NULL || strcmp(e->spec_name, q->spec_name) == 0;
}

/* Gradients of inputs and scalars may be left out of a launch, those of q, k and v may not. */
static bool has_wants(unsigned image, unsigned wanted) {
  const unsigned tensors = 7; /* LUATTN_WANT_DQ, DK, DV */
  if (wanted == 0) wanted = 31;
  return (image & tensors) == (wanted & tensors) && (image & wanted) == wanted;
}

static bool is_wanted(const luattn_pack_entry *e, const luattn_pack_query *q) {
  const int dim_v = q->head_dim_v != 0 ? q->head_dim_v : q->head_dim;
  if (e->kind != LUATTN_PACK_IMAGE || !is_same_spec(e, q)) return false;
  if (e->pass != (uint32_t)q->pass || e->dtype != (uint32_t)q->dtype) return false;
  if (q->head_dim != 0 && (e->head_dim != (uint32_t)q->head_dim || e->head_dim_v != (uint32_t)dim_v))
    return false;
  if (q->family != 0 && e->family + 1 != (uint32_t)q->family) return false;
  return q->pass == LUATTN_FORWARD ||
         (has_wants(e->wants, q->wants) && (e->deterministic || !q->deterministic));
}

/* The larger, the better; 0: not at all. The architecture weighs most, then that nobody waits for an order
 * that was not asked for, then the tiles. */
static int serves(const luattn_pack_entry *e, const luattn_pack_query *q) {
  const int match = is_wanted(e, q) ? arch_match(pack_arch(e), q->arch) : 0;
  const uint32_t lengths = q->lengths != 0 ? (uint32_t)q->lengths : 1;
  return match == 0 ? 0
                    : 4 * match + 2 * (q->deterministic || !e->deterministic) +
                          (e->lengths == 0 || e->lengths == lengths);
}

typedef struct line {
  char *text;
  size_t size, used;
} line;

static void add(line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(line *l, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(l->text + l->used, l->size - l->used, fmt, args);
  va_end(args);
  if (n > 0) l->used += (size_t)n < l->size - l->used ? (size_t)n : l->size - l->used - 1;
}

/* The images of the spec that was asked for, or else the specs there are. Room in a message is short: the
 * first few. */
static void list_instead(const luattn_pack *p, const luattn_pack_query *q, line *out) {
  enum { SHOWN = 6 };
  size_t images = 0, shown = 0;
  for (size_t i = 0; i < p->count; ++i) {
    const luattn_pack_entry *e = &p->record[i].entry;
    char text[192];
    if (e->kind != LUATTN_PACK_IMAGE || !is_same_spec(e, q)) continue;
    entry_text(e, q->family != 0, text, sizeof text);
    if (images++ < SHOWN) add(out, "%s%s", images > 1 ? "; " : "", text);
  }
  if (images > SHOWN) add(out, "; and %zu more", images - SHOWN);
  if (images > 0) return;
  const char *last = NULL; /* images of a spec stand together */
  for (size_t i = 0; i < p->count; ++i) {
    const luattn_pack_entry *e = &p->record[i].entry;
    if (e->kind != LUATTN_PACK_IMAGE || (last != NULL && strcmp(e->spec_name, last) == 0)) continue;
    last = e->spec_name;
    if (shown++ < SHOWN)
      add(out, "%s'%s'%s", shown > 1 ? ", " : "specs ", last,
          q->spec_name != NULL && strcmp(last, q->spec_name) == 0 ? " (of another text)" : "");
  }
  if (shown > SHOWN) add(out, " and more");
  if (shown == 0) add(out, "nothing");
}

static luattn_status not_found(const luattn_pack *p, const luattn_pack_query *q, luattn_error *err) {
  luattn_pack_entry wanted = {.pass = q->pass,
                              .deterministic = q->pass == LUATTN_BACKWARD && q->deterministic != 0,
                              .family = q->family != 0 ? (uint32_t)q->family - 1 : 0,
                              .dtype = q->dtype,
                              .arch = (uint32_t)q->arch,
                              .head_dim = (uint32_t)q->head_dim,
                              .head_dim_v = (uint32_t)(q->head_dim_v != 0 ? q->head_dim_v : q->head_dim)};
  char text[192], instead[560] = "";
  line l = {.text = instead, .size = sizeof instead};
  snprintf(wanted.spec_name, sizeof wanted.spec_name, "%s", q->spec_name != NULL ? q->spec_name : "");
  entry_text(&wanted, q->family != 0, text, sizeof text);
  list_instead(p, q, &l);
  return luattn_fail(err, LUATTN_UNSUPPORTED, "pack: %s: has no %s; it has %s; add it with luattn pack",
                     p->name, text, instead);
}

static luattn_status check_query(const luattn_pack_query *query, luattn_error *err) {
  if (query->struct_size != sizeof *query)
    return luattn_fail(
        err, LUATTN_INVALID,
        "luattn_pack_query: struct_size is %zu, expected %zu; set it to sizeof(luattn_pack_query)",
        query->struct_size, sizeof *query);
  if (query->pass != LUATTN_FORWARD && query->pass != LUATTN_BACKWARD)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_pack_query: pass is %d, expected LUATTN_FORWARD (%d) or LUATTN_BACKWARD (%d)",
                       (int)query->pass, (int)LUATTN_FORWARD, (int)LUATTN_BACKWARD);
  if (query->family < 0 || query->family > 1 + LUATTN_SM90)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_pack_query: family is %d, expected 1 + luattn_family, 1 to %d, or 0 for any",
                       query->family, 1 + LUATTN_SM90);
  return LUATTN_OK;
}

/* What was found: 0 at first. Of images that serve equally well, the one that comes first is better. */
typedef struct place {
  int match;
  size_t index;
} place;

static bool is_better(place a, place b) { return a.match != b.match ? a.match > b.match : a.index < b.index; }

/* The best image of those that are worse than `last`. */
static bool find_next(const luattn_pack *pack, const luattn_pack_query *query, place *last) {
  place best = {.match = 0};
  for (size_t i = 0; i < pack->count; ++i) {
    const place at = {serves(&pack->record[i].entry, query), i};
    if (at.match == 0 || (last->match > 0 && !is_better(*last, at))) continue;
    if (best.match == 0 || is_better(at, best)) best = at;
  }
  *last = best;
  return best.match > 0;
}

luattn_status luattn_pack_find(const luattn_pack *pack, const luattn_pack_query *query, size_t *index,
                               luattn_error *err) {
  place at = {.match = 0};
  TRY(check_query(query, err));
  if (!find_next(pack, query, &at)) return not_found(pack, query, err);
  *index = at.index;
  return LUATTN_OK;
}

static luattn_status load(const luattn_pack *pack, size_t index, luattn_driver *driver, int device,
                          luattn_kernel **kernel, luattn_error *err) {
  luattn_image *image;
  TRY(luattn_pack_image(pack, index, &image, err));
  const luattn_status status = luattn_kernel_load(driver, device, image, kernel, err);
  luattn_image_free(image);
  return status;
}

luattn_status luattn_pack_kernel(const luattn_pack *pack, luattn_driver *driver, int device,
                                 const luattn_pack_query *query, luattn_kernel **kernel, size_t *index,
                                 luattn_error *err) {
  luattn_device_info info;
  place at = {.match = 0};
  TRY(check_query(query, err));
  TRY(luattn_device_get_info(driver, device, &info, err));
  luattn_pack_query here = *query;
  here.arch = info.arch;
  if (!find_next(pack, &here, &at)) return not_found(pack, &here, err);
  luattn_status status = load(pack, at.index, driver, device, kernel, err);
  while (status == LUATTN_UNSUPPORTED && find_next(pack, &here, &at)) {
    luattn_error other; /* where nothing fits, the best image's message stands */
    status = load(pack, at.index, driver, device, kernel, &other);
    if (status != LUATTN_OK && status != LUATTN_UNSUPPORTED && err != NULL) *err = other;
  }
  if (status == LUATTN_OK && index != NULL) *index = at.index;
  return status;
}
