/* pack_find.c: finds the image of a pack that serves a program on a device, or reports what the pack has
 * instead. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/host.h"
#include "common/struct_size.h"
#include "luattn/compiler.h"
#include "runtime/pack/pack.h"

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

/* Formats luattn_wants as "dq+dk+dv". */
static void gradients_text(uint32_t wants, char text[32]) {
  static const char *const name[] = {"dq", "dk", "dv", "inputs", "scalars"};
  size_t used = 0;
  for (unsigned i = 0; i < sizeof name / sizeof *name; ++i)
    if (wants >> i & 1) used += (size_t)snprintf(text + used, 32 - used, "%s%s", used > 0 ? "+" : "", name[i]);
  if (used == 0) snprintf(text, 32, "none");
}

/* Formats a query as "forward of 'gemma2', bf16, head dim 128, sm_90a"; with the family and, in backward,
 * gradients where the query has them. */
static void entry_text(const pack_record *r, const luattn_pack_query *q, char *text, size_t size) {
  const luattn_pack_entry *e = &r->entry;
  const pack_variant *v = &r->variant;
  static const char *const lengths[] = {"", ", long", ", short"}; /* checked when the pack was opened */
  const bool with_gradients = e->pass == LUATTN_BACKWARD && q->pass == LUATTN_BACKWARD;
  char arch[24], dims[32], gradients[32], variants[80] = "";
  line more = {.text = variants, .size = sizeof variants};
#define KERNEL_UNPACKED(name, value, says, asked_by, are_for)
#define KERNEL_VARIANT(name, value, says) \
  do {                                    \
    const uint32_t x = v->name;           \
    if (x != 0) add(&more, ", %s", says); \
  } while (0);
#include "abi/kernel_facts.def"
  arch_text(pack_arch(e), arch);
  gradients_text(e->wants, gradients);
  if (e->head_dim_v == e->head_dim)
    snprintf(dims, sizeof dims, "%u", (unsigned)e->head_dim);
  else
    snprintf(dims, sizeof dims, "%ux%u", (unsigned)e->head_dim, (unsigned)e->head_dim_v);
  snprintf(text, size, "%s%s of '%s', %s, head dim %s, %s%s%s%s%s%s%s", e->deterministic ? "deterministic " : "",
           kernel_pass_name(e->pass), e->spec_name, kernel_dtype_name(e->dtype), dims, arch, q->family != 0 ? ", " : "",
           q->family != 0 ? kernel_family_name(e->family) : "", lengths[e->lengths], variants,
           with_gradients ? ", gradients " : "", with_gradients ? gradients : "");
}

/* A spec without a name of its own is called after its file, wherever that is; its hash is always the
 * same. */
static bool is_same_spec(const luattn_pack_entry *e, const luattn_pack_query *q) {
  if (q->spec_hash[0] != 0 || q->spec_hash[1] != 0)
    return e->spec_hash[0] == q->spec_hash[0] && e->spec_hash[1] == q->spec_hash[1];
  return q->spec_name == NULL || strcmp(e->spec_name, q->spec_name) == 0;
}

enum { TENSORS = LUATTN_WANT_DQ | LUATTN_WANT_DK | LUATTN_WANT_DV };

/* A launch may leave out gradients of inputs and scalars, but not those of q, k and v. */
static bool has_wants(unsigned image, unsigned wanted) {
  if (wanted == 0) wanted = TENSORS;
  return (image & TENSORS) == (wanted & TENSORS) && (image & wanted) == wanted;
}

/* Properties of the query that an image has; as a number, larger is nearer. */
enum {
  HAS_SPEC = 1,
  HAS_GRADIENTS = 2,
  HAS_ORDER = 4, /* deterministic, where the query is */
  HAS_FAMILY = 8,
  HAS_ARCH = 16,
  HAS_DIMS = 32,
  HAS_DTYPE = 64,
  HAS_VARIANT = 128, /* packed, pages, decode, types of results */
  HAS_PASS = 256,
  HAS_ALL = 511
};

/* Kernels for pages of any size read those of multiples of 8. */
static bool has_variant(const pack_variant *v, const luattn_pack_query *q) {
  const uint32_t pages = (uint32_t)q->pages;
  return v->packed == (uint32_t)q->packed && v->decode == (uint32_t)q->decode && v->out_f32 == (uint32_t)q->out_f32 &&
         v->grad_f32 == (uint32_t)q->grad_f32 && (v->pages == pages || (pages == 8 && v->pages == 1));
}

/* 0: another spec, or no image. */
static int nearness(const pack_record *r, const luattn_pack_query *q) {
  const luattn_pack_entry *e = &r->entry;
  const uint32_t dim = (uint32_t)q->head_dim, dim_v = q->head_dim_v != 0 ? (uint32_t)q->head_dim_v : dim;
  const bool forward = q->pass == LUATTN_FORWARD;
  int has = HAS_SPEC;
  if (e->kind != LUATTN_PACK_IMAGE || !is_same_spec(e, q)) return 0;
  if (forward || has_wants(e->wants, q->wants)) has |= HAS_GRADIENTS;
  if ((forward && !q->decode) || e->deterministic || !q->deterministic) has |= HAS_ORDER;
  if (q->family == 0 || e->family + 1 == (uint32_t)q->family) has |= HAS_FAMILY;
  if (arch_match(pack_arch(e), q->arch) > 0) has |= HAS_ARCH;
  if (dim == 0 || (e->head_dim == dim && e->head_dim_v == dim_v)) has |= HAS_DIMS;
  if (e->dtype == (uint32_t)q->dtype) has |= HAS_DTYPE;
  if (has_variant(&r->variant, q)) has |= HAS_VARIANT;
  if (e->pass == (uint32_t)q->pass) has |= HAS_PASS;
  return has;
}

/* Rates an image: larger is better, 0 does not run. The architecture weighs most, then the sizes of pages, then the
 * parameters' gradients where all were asked for, then not being deterministic where that was not asked for, then the
 * tiles. */
static int serves(const pack_record *r, const luattn_pack_query *q) {
  const luattn_pack_entry *e = &r->entry;
  const uint32_t lengths = q->lengths != 0 ? (uint32_t)q->lengths : 1;
  if (nearness(r, q) != HAS_ALL) return 0;
  const int parameters = ((e->wants & LUATTN_WANT_INPUTS) != 0) + ((e->wants & LUATTN_WANT_SCALARS) != 0);
  const int more = q->wants == 0 ? parameters : 0;
  return 32 * arch_match(pack_arch(e), q->arch) + 16 * (r->variant.pages == (uint32_t)q->pages) + 4 * more +
         2 * (q->deterministic || !e->deterministic) + (e->lengths == 0 || e->lengths == lengths);
}

/* The best image so far, and its rating, which starts at 0. Of equal images the first one wins. */
typedef struct place {
  int match;
  size_t index;
} place;

static bool is_better(place a, place b) { return a.match != b.match ? a.match > b.match : a.index < b.index; }

/* The image with the best `match` below `last`. */
static bool find_next(const luattn_pack *pack, const luattn_pack_query *query,
                      int (*match)(const pack_record *, const luattn_pack_query *), place *last) {
  place best = {.match = 0};
  for (size_t i = 0; i < pack->count; ++i) {
    const place at = {match(&pack->record[i], query), i};
    if (at.match == 0 || (last->match > 0 && !is_better(*last, at))) continue;
    if (best.match == 0 || is_better(at, best)) best = at;
  }
  *last = best;
  return best.match > 0;
}

/* Lists the images of the spec, the nearest first, or else the pack's specs. A message has room for only a
 * few. */
static void list_instead(const luattn_pack *p, const luattn_pack_query *q, line *out) {
  enum { SHOWN = 4 };
  size_t images = 0, shown = 0;
  place at = {.match = 0};
  for (size_t i = 0; i < p->count; ++i) images += nearness(&p->record[i], q) > 0;
  for (size_t i = 0; i < SHOWN && find_next(p, q, nearness, &at); ++i) {
    char text[288];
    entry_text(&p->record[at.index], q, text, sizeof text);
    add(out, "%s%s", i > 0 ? "; " : "", text);
  }
  if (images > SHOWN) add(out, "; and %zu more", images - SHOWN);
  if (images > 0) return;
  const char *last = NULL; /* images of a spec are adjacent */
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
  pack_record wanted = {.entry = {.pass = q->pass,
                                  .deterministic = (q->pass == LUATTN_BACKWARD || q->decode) && q->deterministic != 0,
                                  .family = q->family != 0 ? (uint32_t)q->family - 1 : 0,
                                  .dtype = q->dtype,
                                  .arch = (uint32_t)q->arch,
                                  .head_dim = (uint32_t)q->head_dim,
                                  .head_dim_v = (uint32_t)(q->head_dim_v != 0 ? q->head_dim_v : q->head_dim),
                                  .wants = q->wants != 0 ? q->wants : (uint32_t)TENSORS},
                        .variant = {
#define KERNEL_UNPACKED(name, value, says, asked_by, are_for)
#define KERNEL_VARIANT(name, value, says) .name = (uint32_t)q->name,
#include "abi/kernel_facts.def"
                        }};
  char text[288], instead[560] = "";
  line l = {.text = instead, .size = sizeof instead};
  place nearest = {.match = 0};
  snprintf(wanted.entry.spec_name, sizeof wanted.entry.spec_name, "%s", q->spec_name != NULL ? q->spec_name : "");
  entry_text(&wanted, q, text, sizeof text);
  list_instead(p, q, &l);
  const bool only_gradients = find_next(p, q, nearness, &nearest) && (nearest.match | HAS_GRADIENTS) == HAS_ALL;
  return luattn_fail(err, LUATTN_UNSUPPORTED, "pack: %s: has no %s; it has %s; %s", p->name, text, instead,
                     only_gradients ? "ask for gradients that it has" : "add it with luattn pack");
}

static luattn_status take_query(const luattn_pack_query *given, luattn_pack_query *query, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_pack_query, head_dim_v);
  TRY(struct_take(&rule, "pack", given, query, err));
  if ((unsigned)query->pass >= KERNEL_PASSES)
    return luattn_fail(err, LUATTN_INVALID, "luattn_pack_query: pass is %d, expected a luattn_pass, 0 to %d",
                       (int)query->pass, KERNEL_PASSES - 1);
  if (query->family < 0 || query->family > KERNEL_FAMILIES)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_pack_query: family is %d, expected 1 + luattn_family, 1 to %d, or 0 for any",
                       query->family, KERNEL_FAMILIES);
  const struct {
    const char *name;
    int value;
  } flags[] = {
      {"packed", query->packed}, {"decode", query->decode}, {"out_f32", query->out_f32}, {"grad_f32", query->grad_f32}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; ++i)
    if ((unsigned)flags[i].value > 1)
      return luattn_fail(err, LUATTN_INVALID, "luattn_pack_query: %s is %d, expected 0 or 1", flags[i].name,
                         flags[i].value);
  if (query->pages != 0 && query->pages != 1 && query->pages != 8)
    return luattn_fail(err, LUATTN_INVALID, "luattn_pack_query: pages is %d, expected 0, 1 or 8, as in luattn_target",
                       query->pages);
  return LUATTN_OK;
}

luattn_status luattn_pack_find(const luattn_pack *pack, const luattn_pack_query *query, size_t *index,
                               luattn_error *err) {
  place at = {.match = 0};
  luattn_pack_query q;
  fail_clear(err);
  NEED(pack);
  NEED(query);
  NEED(index);
  TRY(take_query(query, &q, err));
  if (!find_next(pack, &q, serves, &at)) return not_found(pack, &q, err);
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
  HOST_SCOPE;
  luattn_device_info info;
  place at = {.match = 0};
  luattn_pack_query here;
  fail_clear(err);
  NEED(pack);
  NEED(driver);
  NEED(query);
  NEED(kernel);
  TRY(take_query(query, &here, err));
  TRY(luattn_device_get_info(driver, device, &info, err));
  here.arch = info.arch;
  if (!find_next(pack, &here, serves, &at)) return not_found(pack, &here, err);
  luattn_status status = load(pack, at.index, driver, device, kernel, err);
  while (status == LUATTN_UNSUPPORTED && find_next(pack, &here, serves, &at)) {
    luattn_error other; /* if nothing fits, the message of the best image is reported */
    status = load(pack, at.index, driver, device, kernel, &other);
    if (status != LUATTN_OK && status != LUATTN_UNSUPPORTED && err != NULL) *err = other;
  }
  if (status == LUATTN_OK && index != NULL) *index = at.index;
  if (status == LUATTN_OK && err != NULL) err->status = status; /* the message of a better image may remain */
  return status;
}
