/* image.c: reads and writes images: the container, its sections, and the code in the last section. */
#include "abi/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL /* header only, so that no library is linked */
#include <xxhash.h>

#include "abi/elf.h"
#include "common/fail.h"

#define BYTE_ORDER_MARK 0x01020304u
#define CHECKED_FROM 32u
#define REQUIRED 1u /* the only section flag */
#define PADDING 64  /* zero bytes after each code, where an ELF reader or a PTX parser stops */
#define MAX_CODE ((size_t)1 << 30)

typedef struct header {
  char magic[8];
  uint32_t version, byte_order;
  uint64_t checksum_low, checksum_high;
  uint64_t total_size, num_sections;
} header;

typedef struct section {
  char tag[4];
  uint32_t flags;
  uint64_t size;
} section;

/* Reading unpacks the sections into these members; writing assembles them from here. */
struct luattn_image {
  image_manifest manifest;
  luattn_function_info functions[MANIFEST_MAX_ENTRIES];
  luattn_tiles tiles;
  uint32_t every_length;
  const char *plan_text;
  bool has_tiles, has_every_length;
  size_t code_offset, code_size;
  size_t pass_offset[MANIFEST_MAX_PASSES], pass_size[MANIFEST_MAX_PASSES]; /* images of row passes; 0: not here */
  size_t size;
  _Alignas(16) unsigned char bytes[];
};

_Static_assert(sizeof(header) == 48 && sizeof(section) == 16, "neither has holes");
_Static_assert(sizeof(manifest_entry) == 92 && sizeof(luattn_input_info) == 96 && sizeof(luattn_scalar_info) == 72 &&
                   sizeof(manifest_stat) == 12 && sizeof(luattn_tiles) == 24,
               "what sections hold has no holes");
_Static_assert(offsetof(image_manifest, max_len) == offsetof(image_manifest, reads_ahead) + 4,
               "the fixed part of the manifest has no holes");

static const char magic[8] = {'L', 'U', 'A', 'T', 'T', 'N', 'I', 'M'};

/* One row per section, except for the plan's text and the code. Describes an array at offset `at` in
 * luattn_image; `count` is the offset of the number of elements if it varies. */
typedef struct section_kind {
  char tag[5];
  bool is_optional; /* readers that do not know the section may skip it */
  bool is_needed;   /* every image must have the section */
  size_t element, most, at, count;
} section_kind;

enum { NEED_REQUIRED = false, NEED_OPTIONAL = true };
#define AT(member) offsetof(struct luattn_image, member)
#define FACT_SIZE (offsetof(image_manifest, params_version))

static const section_kind kinds[] = {
    {"FACT", false, true, FACT_SIZE, 1, AT(manifest), 0},
    {"PARM", false, true, 2 * sizeof(uint32_t), 1, AT(manifest.params_version), 0},
    {"HASH", false, true, 2 * sizeof(uint64_t), 1, AT(manifest.source_hash), 0},
    {"ENTR", false, true, sizeof(manifest_entry), MANIFEST_MAX_ENTRIES, AT(manifest.entry), AT(manifest.num_entries)},
    {"INPT", false, false, sizeof(luattn_input_info), MANIFEST_MAX_INPUTS, AT(manifest.input), AT(manifest.num_inputs)},
    {"SCAL", false, false, sizeof(luattn_scalar_info), MANIFEST_MAX_SCALARS, AT(manifest.scalar),
     AT(manifest.num_scalars)},
    {"STAT", false, false, sizeof(manifest_stat), MANIFEST_MAX_STATS, AT(manifest.stat), AT(manifest.num_stats)},
    {"ELSE", false, false, sizeof(manifest_elsewhere), MANIFEST_MAX_ELSEWHERE, AT(manifest.elsewhere),
     AT(manifest.num_elsewhere)},
#define IMAGE_SECTION(tag, need, fact, when, takes, type, layout, range) \
  {tag, NEED_##need, false, sizeof(type), 1, AT(manifest.layout), AT(manifest.fact)},
#include "abi/kernel_facts.def"
    {"TILE", true, false, sizeof(luattn_tiles), 1, AT(tiles), 0},
    {"LENS", true, false, sizeof(uint32_t), 1, AT(every_length), 0},
};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };
static const char pass_tag[MANIFEST_MAX_PASSES][5] = {"PAS0", "PAS1"};

/* The driver takes no size: it reads PTX up to the terminating 0, and a cubin as far as its headers
 * say. */
static luattn_status check_one(const image_manifest *m, const void *code, size_t size, luattn_error *err) {
  if (m->is_ptx && ((const char *)code)[size - 1] != '\0')
    return luattn_fail(err, LUATTN_IMAGE, "image: PTX of %zu bytes: does not end in a 0; compile it again", size);
  static const unsigned char fatbin[] = {0x50, 0xed, 0x55, 0xba}; /* a fatbinary, which holds several cubins */
  if (size >= sizeof fatbin && memcmp(code, fatbin, sizeof fatbin) == 0)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: code of %zu bytes: is a fatbin, and luattn writes cubins and PTX; compile it again",
                       size);
  if (!elf_is_within(code, size))
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: cubin of %zu bytes: says that parts of it lie outside of it; compile it again", size);
  return LUATTN_OK;
}

static luattn_status check_code(const image_manifest *m, const void *code, size_t size, luattn_error *err) {
  static const unsigned char zeros[PADDING];
  const size_t second = m->second_code;
  if (second == 0) return check_one(m, code, size, err);
  if (second % 64 != 0 || second <= PADDING || second >= size ||
      memcmp((const char *)code + second - PADDING, zeros, PADDING) != 0)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: second_code: is %zu in a code of %zu bytes, expected a multiple of 64 inside it, "
                       "behind 64 zeros; compile it again",
                       second, size);
  TRY(check_one(m, code, second, err));
  return check_one(m, (const char *)code + second, size - second, err);
}

static XXH128_hash_t checksum(const void *bytes, size_t size) {
  return XXH3_128bits((const unsigned char *)bytes + CHECKED_FROM, size - CHECKED_FROM);
}

static size_t round_up(size_t size) { return (size + 15) / 16 * 16; }

/* ---- writing ---- */

/* Writes sections one after another; with bytes NULL it only counts. */
typedef struct writer {
  unsigned char *bytes;
  size_t used;
  uint64_t count;
} writer;

static void put(writer *w, const char *tag, uint32_t flags, const void *bytes, size_t size) {
  section s = {.flags = flags, .size = size};
  memcpy(s.tag, tag, sizeof s.tag);
  w->used = round_up(w->used);
  if (w->bytes != NULL) {
    memcpy(w->bytes + w->used, &s, sizeof s);
    memcpy(w->bytes + w->used + sizeof s, bytes, size);
  }
  w->used += sizeof s + size;
  w->count++;
}

static bool is_written(const luattn_image *from, const section_kind *kind) {
  if (kind->at == AT(tiles)) return from->has_tiles;
  if (kind->at == AT(every_length)) return from->has_every_length;
  return true;
}

static writer put_all(const luattn_image *from, const luattn_image *const *passes, const void *code,
                      unsigned char *bytes) {
  writer w = {.bytes = bytes, .used = sizeof(header)};
  for (int i = 0; i < NUM_KINDS; ++i) {
    const section_kind *k = &kinds[i];
    uint32_t count = 1;
    if (k->count > 0) memcpy(&count, (const char *)from + k->count, sizeof count);
    if (count > 0 && is_written(from, k))
      put(&w, k->tag, k->is_optional ? 0 : REQUIRED, (const char *)from + k->at, count * k->element);
  }
  if (from->plan_text != NULL) put(&w, "PLAN", 0, from->plan_text, strlen(from->plan_text) + 1);
  for (int i = 0; i < MANIFEST_MAX_PASSES; ++i)
    if (passes[i] != NULL) put(&w, pass_tag[i], REQUIRED, passes[i]->bytes, passes[i]->size);
  put(&w, "CODE", REQUIRED, code, from->code_size);
  return w;
}

static void sign(luattn_image *image, uint64_t num_sections) {
  header h = {.version = IMAGE_FORMAT_VERSION,
              .byte_order = BYTE_ORDER_MARK,
              .total_size = image->size,
              .num_sections = num_sections};
  memcpy(h.magic, magic, sizeof magic);
  memcpy(image->bytes, &h, sizeof h);
  const XXH128_hash_t sum = checksum(image->bytes, image->size);
  h.checksum_low = sum.low64;
  h.checksum_high = sum.high64;
  memcpy(image->bytes, &h, sizeof h);
}

/* ---- reading ---- */

static luattn_status check_header(const header *h, size_t size, luattn_error *err) {
  if (memcmp(h->magic, magic, sizeof magic) != 0)
    return luattn_fail(err, LUATTN_IMAGE, "image: byte 0: magic is not LUATTNIM; this is no image of luattn");
  if (h->byte_order != BYTE_ORDER_MARK)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: byte 12: was written on a machine of another byte order; compile it here");
  if (h->version != IMAGE_FORMAT_VERSION)
    return luattn_fail(err, LUATTN_IMAGE, "image: byte 8: format version is %u, this luattn reads %u; compile it again",
                       (unsigned)h->version, IMAGE_FORMAT_VERSION);
  if (h->total_size != size)
    return luattn_fail(err, LUATTN_IMAGE, "image: byte 32: says %llu bytes, but there are %zu; it was cut or extended",
                       (unsigned long long)h->total_size, size);
  if (h->num_sections > IMAGE_MAX_SECTIONS)
    return luattn_fail(err, LUATTN_IMAGE, "image: byte 40: says %llu sections, at most %u fit; it is damaged",
                       (unsigned long long)h->num_sections, IMAGE_MAX_SECTIONS);
  return LUATTN_OK;
}

/* The tag as a message shows it. */
static const char *tag_text(const char tag[4], char out[5]) {
  for (int i = 0; i < 4; ++i) {
    const char c = tag[i];
    const bool is_plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    out[i] = is_plain ? c : '?';
  }
  out[4] = '\0';
  return out;
}

static luattn_status bad_size(const section *s, const char *expected, luattn_error *err) {
  char tag[5];
  return luattn_fail(err, LUATTN_IMAGE, "image: section '%s': has %llu bytes, expected %s; compile it again",
                     tag_text(s->tag, tag), (unsigned long long)s->size, expected);
}

static luattn_status read_kind(luattn_image *image, const section_kind *k, const section *s, const unsigned char *bytes,
                               luattn_error *err) {
  char expected[64];
  if (k->count == 0) {
    snprintf(expected, sizeof expected, "%zu", k->element);
    if (s->size != k->element) return bad_size(s, expected, err);
  } else {
    snprintf(expected, sizeof expected, "%zu for each of 1 to %zu", k->element, k->most);
    if (s->size == 0 || s->size % k->element != 0 || s->size / k->element > k->most) return bad_size(s, expected, err);
    const uint32_t count = (uint32_t)(s->size / k->element);
    memcpy((char *)image + k->count, &count, sizeof count);
  }
  memcpy((char *)image + k->at, bytes, (size_t)s->size);
  if (k->at == AT(tiles)) image->has_tiles = true;
  if (k->at == AT(every_length)) image->has_every_length = true;
  return LUATTN_OK;
}

/* Reads one section; its bytes lie within the image. */
static luattn_status read_section(luattn_image *image, const section *s, const unsigned char *bytes,
                                  luattn_error *err) {
  char tag[5];
  for (int i = 0; i < NUM_KINDS; ++i)
    if (memcmp(s->tag, kinds[i].tag, sizeof s->tag) == 0) return read_kind(image, &kinds[i], s, bytes, err);
  if (memcmp(s->tag, "PLAN", sizeof s->tag) == 0) {
    if (s->size == 0 || memchr(bytes, '\0', (size_t)s->size) != bytes + s->size - 1)
      return bad_size(s, "a text that ends in its only 0", err);
    image->plan_text = (const char *)bytes;
    return LUATTN_OK;
  }
  if (memcmp(s->tag, "CODE", sizeof s->tag) == 0) {
    if (s->size == 0 || s->size > MAX_CODE) return bad_size(s, "1 to 1073741824", err);
    image->code_offset = (size_t)(bytes - image->bytes);
    image->code_size = (size_t)s->size;
    return LUATTN_OK;
  }
  for (int i = 0; i < MANIFEST_MAX_PASSES; ++i) {
    if (memcmp(s->tag, pass_tag[i], sizeof s->tag) != 0) continue;
    image->pass_offset[i] = (size_t)(bytes - image->bytes);
    image->pass_size[i] = (size_t)s->size;
    return LUATTN_OK;
  }
  if (s->flags == 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IMAGE,
                     "image: section '%s': its kernels need it, and luattn %s does not know it; use a later "
                     "luattn, or compile it again",
                     tag_text(s->tag, tag), luattn_version());
}

/* Refuses an image that lacks a required section. Members of absent optional sections are already zero. */
static luattn_status check_complete(const section *seen, uint64_t count, luattn_error *err) {
  for (int i = -1; i < NUM_KINDS; ++i) {
    const char *tag = i < 0 ? "CODE" : kinds[i].tag;
    bool is_there = i >= 0 && !kinds[i].is_needed;
    for (uint64_t j = 0; j < count; ++j) is_there |= memcmp(seen[j].tag, tag, sizeof seen[j].tag) == 0;
    if (!is_there) return luattn_fail(err, LUATTN_IMAGE, "image: section '%s': is missing; compile it again", tag);
  }
  return LUATTN_OK;
}

static luattn_status read_sections(luattn_image *image, luattn_error *err) {
  section seen[IMAGE_MAX_SECTIONS];
  char tag[5];
  header h;
  size_t at = sizeof h;
  memcpy(&h, image->bytes, sizeof h);
  for (uint64_t i = 0; i < h.num_sections; ++i) {
    section *s = &seen[i];
    at = round_up(at);
    if (at > image->size || image->size - at < sizeof *s)
      return luattn_fail(err, LUATTN_IMAGE, "image: byte %zu: there is no section %llu of %llu; it was cut or extended",
                         at, (unsigned long long)i, (unsigned long long)h.num_sections);
    memcpy(s, image->bytes + at, sizeof *s);
    at += sizeof *s;
    tag_text(s->tag, tag);
    if (s->size > image->size - at)
      return luattn_fail(err, LUATTN_IMAGE,
                         "image: section '%s': says %llu bytes, and %zu are left; it was cut or extended", tag,
                         (unsigned long long)s->size, image->size - at);
    if (s->flags > REQUIRED)
      return luattn_fail(err, LUATTN_IMAGE,
                         "image: section '%s': has flags %u, which luattn %s does not know; use a later "
                         "luattn, or compile it again",
                         tag, (unsigned)s->flags, luattn_version());
    for (uint64_t j = 0; j < i; ++j)
      if (memcmp(seen[j].tag, s->tag, sizeof s->tag) == 0)
        return luattn_fail(err, LUATTN_IMAGE, "image: section '%s': stands twice; it is damaged", tag);
    TRY(read_section(image, s, image->bytes + at, err));
    at += (size_t)s->size;
  }
  TRY(check_complete(seen, h.num_sections, err));
  if (image->code_offset + image->code_size != image->size)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: section 'CODE': ends at byte %zu of %zu, and must be the last; it is damaged",
                       image->code_offset + image->code_size, image->size);
  return LUATTN_OK;
}

static luattn_status check_plan(const luattn_image *image, luattn_error *err) {
  const luattn_tiles *t = &image->tiles;
  const int number[] = {t->tile_m, t->tile_n, t->threads, t->stages, t->warps_n, t->chunk_m};
  for (size_t i = 0; i < sizeof number / sizeof *number; ++i)
    if (number[i] < 0 || number[i] > 1 << 20)
      return luattn_fail(err, LUATTN_IMAGE,
                         "image: section 'TILE': number %zu is %d, expected 0 to 1048576; compile it again", i,
                         number[i]);
  if (image->every_length <= 1) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IMAGE, "image: section 'LENS': is %u, expected 0 to 1; compile it again",
                     (unsigned)image->every_length);
}

/* Parses `out`, whose bytes and size are set. Stores it in *image, or frees it on an error. */
static luattn_status take_apart(luattn_image *out, luattn_image **image, luattn_error *err) {
  luattn_status status = read_sections(out, err);
  if (status == LUATTN_OK) status = manifest_check(&out->manifest, err);
  if (status == LUATTN_OK) status = check_plan(out, err);
  if (status == LUATTN_OK) status = check_code(&out->manifest, out->bytes + out->code_offset, out->code_size, err);
  if (status != LUATTN_OK) {
    free(out);
    return status;
  }
  manifest_functions(&out->manifest, out->functions);
  *image = out;
  return LUATTN_OK;
}

luattn_status luattn_image_open(const void *bytes, size_t size, luattn_image **image, luattn_error *err) {
  header h;
  fail_clear(err);
  NEED(bytes);
  NEED(image);
  if (size < sizeof h)
    return luattn_fail(err, LUATTN_IMAGE, "image: has %zu bytes, fewer than its header of %zu; it was cut", size,
                       sizeof h);
  memcpy(&h, bytes, sizeof h);
  TRY(check_header(&h, size, err));
  const XXH128_hash_t sum = checksum(bytes, size);
  if (sum.low64 != h.checksum_low || sum.high64 != h.checksum_high)
    return luattn_fail(err, LUATTN_IMAGE, "image: byte 16: checksum does not match the contents; it is damaged");
  luattn_image *out = calloc(1, sizeof *out + size + PADDING);
  if (out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "image: no memory for %zu bytes", size);
  out->size = size;
  memcpy(out->bytes, bytes, size);
  return take_apart(out, image, err);
}

/* Writes what `from` says with `code`, and takes that apart again. */
static luattn_status make(const luattn_image *from, const luattn_image *const *passes, const void *code,
                          luattn_image **image, luattn_error *err) {
  const size_t size = put_all(from, passes, code, NULL).used;
  luattn_image *out = calloc(1, sizeof *out + size + PADDING);
  if (out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "image: no memory for %zu bytes", size);
  out->size = size;
  sign(out, put_all(from, passes, code, out->bytes).count);
  return take_apart(out, image, err);
}

luattn_status image_create(const image_manifest *manifest, const image_plan *plan, const void *code, size_t code_size,
                           luattn_image **image, luattn_error *err) {
  static const luattn_image *const none[MANIFEST_MAX_PASSES];
  TRY(manifest_check(manifest, err));
  if (code_size == 0 || code_size > MAX_CODE)
    return luattn_fail(err, LUATTN_IMAGE, "image: code: has %zu bytes, expected 1 to %zu", code_size, MAX_CODE);
  TRY(check_code(manifest, code, code_size, err));
  luattn_image from = {.manifest = *manifest, .code_size = code_size};
  if (plan != NULL) {
    from.plan_text = plan->text;
    from.tiles = plan->tiles;
    from.every_length = plan->every_length;
    from.has_tiles = from.has_every_length = true;
  }
  return make(&from, none, code, image, err);
}

luattn_status image_join(const luattn_image *image, const luattn_image *const passes[MANIFEST_MAX_PASSES],
                         luattn_image **whole, luattn_error *err) {
  return make(image, passes, image->bytes + image->code_offset, whole, err);
}

luattn_status image_open_pass(const luattn_image *image, int number, luattn_image **pass, luattn_error *err) {
  const image_manifest *m = &image->manifest;
  if (image->pass_size[number] == 0)
    return luattn_fail(err, LUATTN_IMAGE, "image: section '%s': is missing, and kernels need it; compile it again",
                       pass_tag[number]);
  TRY(luattn_image_open(image->bytes + image->pass_offset[number], image->pass_size[number], pass, err));
  const image_manifest *of = &(*pass)->manifest;
  const uint32_t rows = m->passes[0].num_rows[number], sums = number == 0 ? m->passes[0].num_sums : 0;
  const bool suits = of->pass == LUATTN_FORWARD && of->dtype == m->dtype && of->head_dim == m->head_dim &&
                     of->head_dim_v == m->head_dim_v && of->packed == m->packed &&
                     of->num_inputs == m->num_inputs + rows && of->num_saved == sums && !of->has_lse && !of->weights;
  if (suits) return LUATTN_OK;
  luattn_image_free(*pass);
  *pass = NULL;
  return luattn_fail(err, LUATTN_IMAGE, "image: section '%s': is no row pass of this backward; compile it again",
                     pass_tag[number]);
}

/* ---- accessors ---- */

void luattn_image_free(luattn_image *image) { free(image); }

const void *luattn_image_bytes(const luattn_image *image, size_t *size) {
  if (size != NULL) *size = image != NULL ? image->size : 0;
  return image != NULL ? image->bytes : NULL;
}

const image_manifest *image_get_manifest(const luattn_image *image) { return image != NULL ? &image->manifest : NULL; }

bool image_get_plan(const luattn_image *image, image_plan *plan) {
  if (image->plan_text == NULL || !image->has_tiles || !image->has_every_length) return false;
  *plan = (image_plan){image->plan_text, image->tiles, image->every_length != 0};
  return true;
}

luattn_status luattn_image_describe(const luattn_image *image, luattn_kernel_description *description,
                                    luattn_error *err) {
  fail_clear(err);
  NEED(image);
  NEED(description);
  return manifest_describe(&image->manifest, image->functions, "luattn_image_describe", description, err);
}

const void *luattn_image_cubin(const luattn_image *image, size_t *size) {
  if (size != NULL) *size = image != NULL ? image->code_size : 0;
  return image != NULL ? image->bytes + image->code_offset : NULL;
}
