/* image.c: an image as bytes, all offsets from its start, numbers in the machine's byte order:
 *
 *    0  magic "LUATTNIM"
 *    8  format version, byte-order mark        u32 each
 *   16  XXH3-128 of everything from byte 32    u64 low, high
 *   32  total size, manifest size, cubin offset, cubin size   u64 each
 *   64  manifest (luattn_image_info)
 *       zeros up to a multiple of 64, then the cubin, which ends the image; or two, 64 zeros and more between
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL /* no library to link: the header carries the whole function */
#include <xxhash.h>

#include "common/fail.h"
#include "luattn/compiler.h"
#include "luattn/image.h"
#include "runtime/elf.h"

#define FORMAT_VERSION ((uint32_t)LUATTN_IMAGE_FORMAT)
#define BYTE_ORDER_MARK 0x01020304u
#define CHECKED_FROM 32u
#define PADDING 64 /* zeros behind a code: what is no cubin ends there, as a text or as a header */
#define MAX_CUBIN ((size_t)1 << 30)

typedef struct header {
  char magic[8];
  uint32_t version, byte_order;
  uint64_t checksum_low, checksum_high;
  uint64_t total_size, manifest_size, cubin_offset, cubin_size;
} header;

_Static_assert(sizeof(header) == 64, "the header has no holes");
_Static_assert(sizeof(luattn_entry_info) == 92 && sizeof(luattn_input_info) == 96,
               "the manifest's parts have no holes");
_Static_assert(offsetof(luattn_image_info, max_len) == offsetof(luattn_image_info, reads_ahead) + 4,
               "the manifest has no holes");

static const char magic[8] = {'L', 'U', 'A', 'T', 'T', 'N', 'I', 'M'};

struct luattn_image {
  size_t size;
  _Alignas(16) unsigned char bytes[];
};

#define MANIFEST_OFFSET sizeof(header)
#define CUBIN_OFFSET ((sizeof(header) + sizeof(luattn_image_info) + 63) / 64 * 64)

static luattn_status bad(luattn_error *err, const char *subject, long long value, const char *expected) {
  return luattn_fail(err, LUATTN_IMAGE, "image: %s: is %lld, expected %s; compile it again", subject, value,
                     expected);
}

static luattn_status check_range(luattn_error *err, const char *subject, uint64_t value, uint64_t low,
                                 uint64_t high) {
  if (value >= low && value <= high) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IMAGE, "image: %s: is %llu, expected %llu to %llu; compile it again",
                     subject, (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

static luattn_status check_name(luattn_error *err, const char *subject, const char *name, size_t size,
                                bool may_be_empty) {
  if (memchr(name, '\0', size) == NULL)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: %s: its name does not end within %zu bytes; compile it again", subject, size);
  if (!may_be_empty && name[0] == '\0')
    return luattn_fail(err, LUATTN_IMAGE, "image: %s: its name is empty; compile it again", subject);
  return LUATTN_OK;
}

static bool role_in_pass(uint32_t role, uint32_t pass) {
  if (role == LUATTN_ROLE_STATS || role == LUATTN_ROLE_MOD || role == LUATTN_ROLE_NORMS ||
      role == LUATTN_ROLE_REACH)
    return true;
  return (role == LUATTN_ROLE_FORWARD) == (pass == LUATTN_FORWARD);
}

static bool has_parameters(const luattn_image_info *m) {
  bool some = (m->wants & LUATTN_WANT_SCALARS) != 0 && m->num_scalars > 0;
  for (uint32_t i = 0; i < m->num_inputs; ++i)
    some |= (m->wants & LUATTN_WANT_INPUTS) != 0 && m->input[i].grad != 0;
  return some;
}

static luattn_status check_entries(const luattn_image_info *m, luattn_error *err) {
  TRY(check_range(err, "num_entries", m->num_entries, 1, LUATTN_MAX_ENTRIES));
  bool finishes = false, rounds = false, adds = false, norms = false, reaches = false;
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const luattn_entry_info *e = &m->entry[i];
    TRY(check_name(err, "entry", e->name, sizeof e->name, false));
    TRY(check_range(err, "entry: role", e->role, 0, LUATTN_ROLE_COUNT - 1));
    if (!role_in_pass(e->role, m->pass))
      return luattn_fail(err, LUATTN_IMAGE,
                         "image: entry '%s': role %u does not belong to a %s pass; compile it again", e->name,
                         (unsigned)e->role, m->pass == LUATTN_FORWARD ? "forward" : "backward");
    TRY(check_range(err, "entry: threads", e->threads, 32, 1024));
    TRY(check_range(err, "entry: shared_bytes", e->shared_bytes, 0, 1u << 20));
    /* A launch divides by these. */
    const bool by_m = e->role != LUATTN_ROLE_STATS,
               by_n = e->role == LUATTN_ROLE_FORWARD || e->role == LUATTN_ROLE_DKDV;
    TRY(check_range(err, "entry: tile_m", e->tile_m, by_m, 1u << 20));
    TRY(check_range(err, "entry: tile_n", e->tile_n, by_n, 1u << 20));
    finishes = finishes || e->role == LUATTN_ROLE_FINISH;
    rounds = rounds || e->role == LUATTN_ROLE_ROUND;
    adds = adds || e->role == LUATTN_ROLE_DKDV;
    norms = norms || e->role == LUATTN_ROLE_NORMS;
    reaches = reaches || e->role == LUATTN_ROLE_REACH;
  }
  if (norms != reaches)
    return luattn_fail(
        err, LUATTN_IMAGE,
        "image: entries: one of the norms of q and k and of the tiles that they leave is missing; "
        "compile it again");
  if (m->deterministic && has_parameters(m) && !rounds)
    return luattn_fail(
        err, LUATTN_IMAGE,
        "image: deterministic: no entry rounds the sums of inputs and scalars; compile it again");
  if (m->accumulates_dq && m->deterministic && !adds)
    return luattn_fail(err, LUATTN_IMAGE, "image: deterministic: no entry adds to dq_acc; compile it again");
  if (m->accumulates_dq && (m->wants & LUATTN_WANT_DQ) && !finishes)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: accumulates_dq: no entry turns the sums into dq; compile it again");
  return LUATTN_OK;
}

static luattn_status check_inputs(const luattn_image_info *m, luattn_error *err) {
  TRY(check_range(err, "num_inputs", m->num_inputs, 0, sizeof m->input / sizeof *m->input));
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    const luattn_input_info *in = &m->input[i];
    TRY(check_name(err, "input", in->name, sizeof in->name, false));
    TRY(check_range(err, "input: dtype", in->dtype, 0, LUATTN_INPUT_BOOL));
    TRY(check_range(err, "input: num_axes", in->num_axes, 0, 4));
    TRY(check_range(err, "input: grad", in->grad, 0, 1));
    for (uint32_t a = 0; a < 8; ++a)
      TRY(check_range(err, "input: pairs", in->pairs >> 4 * a & 15, 0,
                      a < in->num_axes ? LUATTN_INDEX_KV : 0));
    for (uint32_t a = 0; a < in->num_axes; ++a)
      if (in->axis[a] < LUATTN_AXIS_KV) return bad(err, "input: axis", in->axis[a], "a size, or -5 to 0");
    for (uint32_t j = 0; j < i; ++j)
      if (strcmp(in->name, m->input[j].name) == 0)
        return luattn_fail(err, LUATTN_IMAGE, "image: input '%s': stands twice; compile it again", in->name);
  }
  return LUATTN_OK;
}

static luattn_status check_scalars(const luattn_image_info *m, luattn_error *err) {
  TRY(check_range(err, "num_scalars", m->num_scalars, 0,
                  sizeof m->scalar_default / sizeof *m->scalar_default));
  for (uint32_t i = 0; i < m->num_scalars; ++i) {
    TRY(check_name(err, "scalar", m->scalar_name[i], sizeof m->scalar_name[i], false));
    if (i > 0 && strcmp(m->scalar_name[i - 1], m->scalar_name[i]) >= 0)
      return luattn_fail(err, LUATTN_IMAGE, "image: scalar '%s': names are not in order; compile it again",
                         m->scalar_name[i]);
  }
  return LUATTN_OK;
}

static luattn_status check_stats(const luattn_image_info *m, luattn_error *err) {
  TRY(check_range(err, "num_stats", m->num_stats, 0, sizeof m->stat / sizeof *m->stat));
  for (uint32_t i = 0; i < m->num_stats; ++i) {
    const luattn_stat_info *s = &m->stat[i];
    if (s->input >= m->num_inputs) return bad(err, "stat: input", s->input, "the number of an input");
    const luattn_input_info *in = &m->input[s->input];
    if (in->dtype != LUATTN_INPUT_I32) return bad(err, "stat: dtype of its input", in->dtype, "4 (int32)");
    if (s->axis + (uint64_t)1 != in->num_axes)
      return bad(err, "stat: axis", s->axis, "its input's last axis");
    TRY(check_range(err, "stat: block", s->block, 1, 1u << 20));
  }
  return LUATTN_OK;
}

static luattn_status check_manifest(const luattn_image_info *m, luattn_error *err) {
  TRY(check_name(err, "spec", m->spec_name, sizeof m->spec_name, true));
  TRY(check_range(err, "pass", m->pass, 0, LUATTN_BACKWARD));
  TRY(check_range(err, "family", m->family, 0, LUATTN_SM90));
  TRY(check_range(err, "dtype", m->dtype, 0, LUATTN_F16));
  TRY(check_range(err, "arch", m->arch, 50, 999));
  TRY(check_name(err, "arch_suffix", m->arch_suffix, sizeof m->arch_suffix, true));
  if (m->arch_suffix[0] != '\0' && strcmp(m->arch_suffix, "a") != 0)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: arch_suffix: is '%s', expected 'a' or nothing; compile it again",
                       m->arch_suffix);
  TRY(check_range(err, "head_dim", m->head_dim, 1, 1024));
  TRY(check_range(err, "head_dim_v", m->head_dim_v, 1, 1024));
  TRY(check_range(err, "num_saved", m->num_saved, 0, 64));
  TRY(check_range(err, "num_bwd_rows", m->num_bwd_rows, 0, 64));
  const struct {
    const char *name;
    uint32_t value;
  } flag[] = {
      {"has_lse", m->has_lse},
      {"has_query_mod", m->has_query_mod},
      {"has_key_mod", m->has_key_mod},
      {"has_value_mod", m->has_value_mod},
      {"accumulates_dq", m->accumulates_dq},
      {"draws_tiles", m->draws_tiles},
      {"is_ptx", m->is_ptx},
      {"deterministic", m->deterministic},
      {"can_split", m->can_split},
      {"has_mask", m->has_mask},
      {"reads_ahead", m->reads_ahead},
  };
  for (size_t i = 0; i < sizeof flag / sizeof *flag; ++i)
    TRY(check_range(err, flag[i].name, flag[i].value, 0, 1));
  TRY(check_range(err, "wants", m->wants, 0, LUATTN_WANT_ALL));
  if (m->max_len < 1 || m->max_len > INT32_MAX) return bad(err, "max_len", m->max_len, "1 to 2147483647");
  TRY(check_inputs(m, err));
  TRY(check_scalars(m, err));
  TRY(check_entries(m, err));
  return check_stats(m, err);
}

/* The driver is given no size: it reads PTX up to its terminating 0, and a cubin as far as that says. */
static luattn_status check_one(const luattn_image_info *m, const void *code, size_t size, luattn_error *err) {
  if (m->is_ptx && ((const char *)code)[size - 1] != '\0')
    return luattn_fail(err, LUATTN_IMAGE, "image: PTX of %zu bytes: does not end in a 0; compile it again",
                       size);
  static const unsigned char fatbin[] = {0x50, 0xed, 0x55,
                                         0xba}; /* which holds cubins and sizes of its own */
  if (size >= sizeof fatbin && memcmp(code, fatbin, sizeof fatbin) == 0)
    return luattn_fail(
        err, LUATTN_IMAGE,
        "image: code of %zu bytes: is a fatbin, and luattn writes cubins and PTX; compile it again", size);
  if (!elf_is_within(code, size))
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: cubin of %zu bytes: says that parts of it lie outside of it; compile it again",
                       size);
  return LUATTN_OK;
}

static luattn_status check_code(const luattn_image_info *m, const void *code, size_t size,
                                luattn_error *err) {
  static const unsigned char zeros[PADDING];
  const size_t second = m->second_code;
  if (second == 0) return check_one(m, code, size, err);
  if (second % 64 != 0 || second <= PADDING || second >= size ||
      memcmp((const char *)code + second - PADDING, zeros, PADDING) != 0)
    return luattn_fail(
        err, LUATTN_IMAGE,
        "image: second_code: is %zu in a code of %zu bytes, expected a multiple of 64 inside it, "
        "behind 64 zeros; compile it again",
        second, size);
  TRY(check_one(m, code, second, err));
  return check_one(m, (const char *)code + second, size - second, err);
}

static XXH128_hash_t checksum(const void *bytes, size_t size) {
  return XXH3_128bits((const unsigned char *)bytes + CHECKED_FROM, size - CHECKED_FROM);
}

static luattn_status check_header(const header *h, size_t size, luattn_error *err) {
  if (memcmp(h->magic, magic, sizeof magic) != 0)
    return luattn_fail(err, LUATTN_IMAGE, "image: byte 0: magic is not LUATTNIM; this is no image of luattn");
  if (h->byte_order != BYTE_ORDER_MARK)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: byte 12: was written on a machine of another byte order; compile it here");
  if (h->version != FORMAT_VERSION)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: byte 8: format version is %u, this luattn reads %u; compile it again",
                       (unsigned)h->version, FORMAT_VERSION);
  if (h->total_size != size)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: byte 32: says %llu bytes, but there are %zu; it was cut or extended",
                       (unsigned long long)h->total_size, size);
  if (h->manifest_size != sizeof(luattn_image_info))
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: byte 40: manifest has %llu bytes, this luattn's has %zu; compile it again",
                       (unsigned long long)h->manifest_size, sizeof(luattn_image_info));
  if (h->cubin_offset != CUBIN_OFFSET)
    return luattn_fail(err, LUATTN_IMAGE, "image: byte 48: cubin starts at %llu, expected %zu; it is damaged",
                       (unsigned long long)h->cubin_offset, CUBIN_OFFSET);
  if (size <= CUBIN_OFFSET || h->cubin_size != size - CUBIN_OFFSET || h->cubin_size > MAX_CUBIN)
    return luattn_fail(
        err, LUATTN_IMAGE,
        "image: byte 56: cubin has %llu bytes, which does not fit an image of %zu; it is damaged",
        (unsigned long long)h->cubin_size, size);
  return LUATTN_OK;
}

luattn_status luattn_image_create(const luattn_image_info *info, const void *cubin, size_t cubin_size,
                                  luattn_image **image, luattn_error *err) {
  fail_clear(err);
  NEED(info);
  NEED(cubin);
  NEED(image);
  TRY(check_manifest(info, err));
  if (cubin_size == 0 || cubin_size > MAX_CUBIN)
    return luattn_fail(err, LUATTN_IMAGE, "image: cubin: has %zu bytes, expected 1 to %zu", cubin_size,
                       MAX_CUBIN);
  TRY(check_code(info, cubin, cubin_size, err));
  const size_t size = CUBIN_OFFSET + cubin_size;
  luattn_image *out = calloc(1, sizeof *out + size + PADDING);
  if (out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "image: no memory for %zu bytes", size);
  out->size = size;
  header h = {.version = FORMAT_VERSION,
              .byte_order = BYTE_ORDER_MARK,
              .total_size = size,
              .manifest_size = sizeof *info,
              .cubin_offset = CUBIN_OFFSET,
              .cubin_size = cubin_size};
  memcpy(h.magic, magic, sizeof magic);
  memcpy(out->bytes + MANIFEST_OFFSET, info, sizeof *info);
  memcpy(out->bytes + CUBIN_OFFSET, cubin, cubin_size);
  memcpy(out->bytes, &h, sizeof h);
  const XXH128_hash_t sum = checksum(out->bytes, size);
  h.checksum_low = sum.low64;
  h.checksum_high = sum.high64;
  memcpy(out->bytes, &h, sizeof h);
  *image = out;
  return LUATTN_OK;
}

luattn_status luattn_image_open(const void *bytes, size_t size, luattn_image **image, luattn_error *err) {
  header h;
  fail_clear(err);
  NEED(bytes);
  NEED(image);
  if (size < sizeof h)
    return luattn_fail(err, LUATTN_IMAGE, "image: has %zu bytes, fewer than its header of %zu; it was cut",
                       size, sizeof h);
  memcpy(&h, bytes, sizeof h);
  TRY(check_header(&h, size, err));
  const XXH128_hash_t sum = checksum(bytes, size);
  if (sum.low64 != h.checksum_low || sum.high64 != h.checksum_high)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: byte 16: checksum does not match the contents; it is damaged");
  luattn_image *out = malloc(sizeof *out + size + PADDING);
  if (out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "image: no memory for %zu bytes", size);
  out->size = size;
  memcpy(out->bytes, bytes, size);
  memset(out->bytes + size, 0, PADDING);
  luattn_status status = check_manifest(luattn_image_get_info(out), err);
  if (status == LUATTN_OK)
    status = check_code(luattn_image_get_info(out), out->bytes + CUBIN_OFFSET, size - CUBIN_OFFSET, err);
  if (status != LUATTN_OK) {
    free(out);
    return status;
  }
  *image = out;
  return LUATTN_OK;
}

void luattn_image_free(luattn_image *image) { free(image); }

const void *luattn_image_bytes(const luattn_image *image, size_t *size) {
  if (size != NULL) *size = image != NULL ? image->size : 0;
  return image != NULL ? image->bytes : NULL;
}

const luattn_image_info *luattn_image_get_info(const luattn_image *image) {
  return image == NULL ? NULL : (const luattn_image_info *)(const void *)(image->bytes + MANIFEST_OFFSET);
}

const void *luattn_image_cubin(const luattn_image *image, size_t *size) {
  if (size != NULL) *size = image != NULL ? image->size - CUBIN_OFFSET : 0;
  return image != NULL ? image->bytes + CUBIN_OFFSET : NULL;
}
