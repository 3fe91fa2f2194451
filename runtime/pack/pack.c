/* pack.c: opens packs and reads entries. Nothing in a pack is used before it was checked. */
#include "runtime/pack/pack.h"
#include "common/host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL /* header only, so that no library is linked */
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

static luattn_status io_fail(const luattn_pack *p, const char *what, luattn_error *err) {
  char reason[128];
  if (strerror_r(errno, reason, sizeof reason) != 0) snprintf(reason, sizeof reason, "error %d", errno);
  return luattn_fail(err, LUATTN_IO, "pack: %s: cannot %s: %s; check its path and permissions", p->name, what, reason);
}

/* Reads bytes [offset, offset + size), which the caller knows to be within the pack. */
static luattn_status fetch(const luattn_pack *p, uint64_t offset, void *out, size_t size, luattn_error *err) {
  if (p->fd < 0) {
    memcpy(out, p->bytes + offset, size);
    return LUATTN_OK;
  }
  for (size_t done = 0; done < size;) {
    const ssize_t n = pread(p->fd, (char *)out + done, size - done, (off_t)(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_fail(p, "read it", err);
    if (n == 0)
      return luattn_fail(err, LUATTN_IMAGE, "pack: %s: ends at byte %llu while it is open; it was cut", p->name,
                         (unsigned long long)(offset + done));
    done += (size_t)n;
  }
  return LUATTN_OK;
}

static luattn_status check_header(const luattn_pack *p, uint64_t size, luattn_error *err) {
  const pack_header *h = &p->header;
  if (memcmp(h->magic, PACK_MAGIC, sizeof h->magic) != 0)
    return luattn_fail(err, LUATTN_IMAGE, "pack: %s: byte 0: magic is not " PACK_MAGIC "; this is no pack of luattn",
                       p->name);
  if (h->byte_order != PACK_BYTE_ORDER)
    return luattn_fail(err, LUATTN_IMAGE,
                       "pack: %s: byte 12: was written on a machine of another byte order; make it again here",
                       p->name);
  if (h->version < 1 || h->version > PACK_FORMAT_VERSION)
    return luattn_fail(err, LUATTN_IMAGE,
                       "pack: %s: byte 8: format version is %u, this luattn (%s) reads 1 to %u; make it again", p->name,
                       (unsigned)h->version, luattn_version(), PACK_FORMAT_VERSION);
  if (h->total_size != size)
    return luattn_fail(err, LUATTN_IMAGE,
                       "pack: %s: byte 32: says %llu bytes, but there are %llu; it was cut or extended", p->name,
                       (unsigned long long)h->total_size, (unsigned long long)size);
  if (h->num_entries > PACK_MAX_ENTRIES || h->num_entries * pack_record_size(h->version) > size - sizeof *h)
    return luattn_fail(err, LUATTN_IMAGE, "pack: %s: byte 40: says %llu entries, which do not fit; it is damaged",
                       p->name, (unsigned long long)h->num_entries);
  return LUATTN_OK;
}

static bool ends(const char *text, size_t size) { return memchr(text, '\0', size) != NULL; }

/* Checks that numbers are in range, and that the entry's bytes begin exactly where the previous entry's
 * end. */
static bool is_sound(const pack_record *r, uint64_t offset, uint64_t total) {
  const luattn_pack_entry *e = &r->entry;
  const bool names = ends(e->spec_name, sizeof e->spec_name) && ends(e->arch_suffix, sizeof e->arch_suffix);
  const bool values = e->kind <= LUATTN_PACK_SOURCE && e->pass < KERNEL_PASSES && e->family < KERNEL_FAMILIES &&
                      e->dtype < KERNEL_DTYPES && e->arch <= 999 && e->is_ptx <= 1 && e->lengths <= 2 &&
                      e->deterministic <= 1 && e->head_dim <= 1024 && e->head_dim_v <= 1024;
  const pack_variant *v = &r->variant;
  const bool variant = v->packed <= 1 && (v->pages <= 1 || v->pages == 8) && v->decode <= 1 && v->out_f32 <= 1 &&
                       v->grad_f32 <= 1 && v->unused == 0;
  const bool sizes = e->size <= PACK_MAX_ENTRY_BYTES && e->stored_size <= e->size && r->offset == offset &&
                     e->stored_size <= total - offset;
  return names && values && variant && sizes;
}

static luattn_status check_index(const luattn_pack *p, const void *index, luattn_error *err) {
  const pack_header *h = &p->header;
  const size_t index_size = p->count * pack_record_size(h->version);
  XXH3_state_t *state = XXH3_createState();
  if (state == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "pack: %s: out of memory", p->name);
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, (const char *)h + PACK_CHECKED_FROM, sizeof *h - PACK_CHECKED_FROM);
  if (index_size > 0) XXH3_128bits_update(state, index, index_size);
  const XXH128_hash_t sum = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  if (sum.low64 != h->checksum_low || sum.high64 != h->checksum_high)
    return luattn_fail(err, LUATTN_IMAGE, "pack: %s: byte 16: checksum does not match header and index; it is damaged",
                       p->name);
  if (!ends(h->luattn_version, sizeof h->luattn_version) || !ends(h->nvrtc_version, sizeof h->nvrtc_version))
    return luattn_fail(err, LUATTN_IMAGE, "pack: %s: byte 48: a version does not end within 32 bytes; it is damaged",
                       p->name);
  uint64_t offset = sizeof *h + index_size;
  for (size_t i = 0; i < p->count; ++i) {
    if (!is_sound(&p->record[i], offset, h->total_size))
      return luattn_fail(err, LUATTN_IMAGE, "pack: %s: entry %zu: has values that no pack has; it is damaged", p->name,
                         i);
    offset += p->record[i].entry.stored_size;
  }
  if (offset != h->total_size)
    return luattn_fail(err, LUATTN_IMAGE, "pack: %s: entries end at byte %llu of %llu; it is damaged", p->name,
                       (unsigned long long)offset, (unsigned long long)h->total_size);
  return LUATTN_OK;
}

static luattn_status read_index(luattn_pack *p, uint64_t size, luattn_error *err) {
  if (size < sizeof p->header)
    return luattn_fail(err, LUATTN_IMAGE, "pack: %s: has %llu bytes, fewer than its header of %zu; it was cut", p->name,
                       (unsigned long long)size, sizeof p->header);
  TRY(fetch(p, 0, &p->header, sizeof p->header, err));
  TRY(check_header(p, size, err));
  p->count = (size_t)p->header.num_entries;
  const size_t each = pack_record_size(p->header.version);
  p->record = calloc(p->count + 1, sizeof *p->record);
  char *index = malloc(p->count * each + 1);
  luattn_status status = LUATTN_OK;
  if (p->record == NULL || index == NULL)
    status = luattn_fail(err, LUATTN_NO_MEMORY, "pack: %s: no memory for %zu entries", p->name, p->count);
  if (status == LUATTN_OK) status = fetch(p, sizeof p->header, index, p->count * each, err);
  for (size_t i = 0; status == LUATTN_OK && i < p->count; ++i) memcpy(&p->record[i], index + i * each, each);
  if (status == LUATTN_OK) status = check_index(p, index, err);
  free(index);
  return status;
}

void pack_describe(const image_manifest *m, pack_record *r) {
  luattn_pack_entry *e = &r->entry;
  memcpy(e->spec_name, m->spec_name, sizeof e->spec_name);
  e->pass = m->pass;
  e->family = m->family;
  e->dtype = m->dtype;
  e->arch = m->arch;
  memcpy(e->arch_suffix, m->arch_suffix, sizeof e->arch_suffix);
  e->is_ptx = m->is_ptx;
  e->head_dim = m->head_dim;
  e->head_dim_v = m->head_dim_v;
  e->wants = m->wants;
  e->deterministic = m->deterministic;
#define KERNEL_UNPACKED(name, value, says, asked_by, are_for)
#define KERNEL_VARIANT(name, value, says) r->variant.name = value;
#include "abi/kernel_facts.def"
}

/* Treats a single image as a pack of one entry. The image has a hash of its own; this one makes sure that the
 * same image is there when it is read. */
static luattn_status adopt_image(luattn_pack *p, uint64_t size, luattn_error *err) {
  if (size > PACK_MAX_ENTRY_BYTES)
    return luattn_fail(err, LUATTN_IMAGE, "pack: %s: is an image of %llu bytes; at most %llu can be read", p->name,
                       (unsigned long long)size, (unsigned long long)PACK_MAX_ENTRY_BYTES);
  unsigned char *bytes = malloc((size_t)size);
  p->record = calloc(1, sizeof *p->record);
  luattn_image *image = NULL;
  luattn_status status = LUATTN_OK;
  if (bytes == NULL || p->record == NULL)
    status =
        luattn_fail(err, LUATTN_NO_MEMORY, "pack: %s: no memory for %llu bytes", p->name, (unsigned long long)size);
  if (status == LUATTN_OK) status = fetch(p, 0, bytes, (size_t)size, err);
  if (status == LUATTN_OK) status = luattn_image_open(bytes, (size_t)size, &image, err);
  if (status == LUATTN_OK) {
    const XXH128_hash_t sum = XXH3_128bits(bytes, (size_t)size);
    pack_describe(image_get_manifest(image), p->record);
    p->record->entry.size = p->record->entry.stored_size = size;
    p->record->checksum_low = sum.low64;
    p->record->checksum_high = sum.high64;
    p->header.total_size = size;
    p->count = 1;
  }
  luattn_image_free(image);
  free(bytes);
  return status;
}

/* Takes ownership of fd, also on failure. */
static luattn_status open_pack(const char *name, int fd, const void *bytes, uint64_t size, luattn_pack **pack,
                               luattn_error *err) {
  luattn_pack *p = calloc(1, sizeof *p);
  const size_t name_size = strlen(name) + 1;
  if (p != NULL) p->name = malloc(name_size);
  if (p == NULL || p->name == NULL) {
    if (fd >= 0) close(fd);
    free(p);
    return luattn_fail(err, LUATTN_NO_MEMORY, "pack: %s: out of memory", name);
  }
  memcpy(p->name, name, name_size);
  p->fd = fd;
  p->bytes = bytes;
  char magic[8] = {0};
  luattn_status status = size >= sizeof magic ? fetch(p, 0, magic, sizeof magic, err) : LUATTN_OK;
  if (status == LUATTN_OK)
    status = memcmp(magic, "LUATTNIM", sizeof magic) == 0 ? adopt_image(p, size, err) : read_index(p, size, err);
  if (status == LUATTN_OK)
    *pack = p;
  else
    luattn_pack_close(p);
  return status;
}

luattn_status luattn_pack_open(const char *path, luattn_pack **pack, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(path);
  NEED(pack);
  const luattn_pack named = {.name = (char *)(uintptr_t)path};
  const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO must not hang us */
  struct stat st;
  if (fd < 0) return io_fail(&named, "open it", err);
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return luattn_fail(err, LUATTN_IO, "pack: %s: is not a regular file; name a file that luattn pack wrote", path);
  }
  return open_pack(path, fd, NULL, (uint64_t)st.st_size, pack, err);
}

luattn_status luattn_pack_open_bytes(const char *name, const void *bytes, size_t size, luattn_pack **pack,
                                     luattn_error *err) {
  fail_clear(err);
  NEED(name);
  NEED(bytes);
  NEED(pack);
  return open_pack(name, -1, bytes, size, pack, err);
}

void luattn_pack_close(luattn_pack *pack) {
  if (pack == NULL) return;
  if (pack->fd >= 0) close(pack->fd);
  free(pack->record);
  free(pack->name);
  free(pack);
}

void luattn_pack_get_info(const luattn_pack *pack, luattn_pack_info *info) {
  if (info != NULL) memset(info, 0, sizeof *info);
  if (info == NULL || pack == NULL) return;
  memcpy(info->luattn_version, pack->header.luattn_version, sizeof info->luattn_version);
  memcpy(info->nvrtc_version, pack->header.nvrtc_version, sizeof info->nvrtc_version);
  info->num_entries = pack->count;
  info->bytes = (size_t)pack->header.total_size;
}

const luattn_pack_entry *luattn_pack_get_entry(const luattn_pack *pack, size_t index) {
  return pack != NULL && index < pack->count ? &pack->record[index].entry : NULL;
}

/* Decompresses bytes whose hash was right; zstd then fails only by a writer's fault, malice, or lack of
 * memory. */
static luattn_status expand(const luattn_pack *p, size_t index, const void *stored, void *out, luattn_error *err) {
  const luattn_pack_entry *e = &p->record[index].entry;
  const size_t n = ZSTD_decompress(out, (size_t)e->size, stored, (size_t)e->stored_size);
  if (!ZSTD_isError(n) && n == e->size) return LUATTN_OK;
  if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation)
    return luattn_fail(err, LUATTN_NO_MEMORY, "pack: %s: entry %zu: no memory to decompress %llu bytes", p->name, index,
                       (unsigned long long)e->size);
  return luattn_fail(err, LUATTN_IMAGE, "pack: %s: entry %zu: cannot be decompressed to its %llu bytes; it is damaged",
                     p->name, index, (unsigned long long)e->size);
}

luattn_status luattn_pack_read(const luattn_pack *pack, size_t index, void **bytes, size_t *size, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(pack);
  NEED(bytes);
  NEED(size);
  if (index >= pack->count)
    return luattn_fail(err, LUATTN_INVALID, "pack: %s: entry %zu: there are %zu", pack->name, index, pack->count);
  const pack_record *r = &pack->record[index];
  const size_t stored_size = (size_t)r->entry.stored_size, full_size = (size_t)r->entry.size;
  unsigned char *stored = malloc(stored_size + 1), *full = NULL;
  luattn_status status = LUATTN_OK;
  if (stored_size < full_size) full = malloc(full_size);
  if (stored == NULL || (stored_size < full_size && full == NULL))
    status = luattn_fail(err, LUATTN_NO_MEMORY, "pack: %s: entry %zu: no memory for %zu bytes", pack->name, index,
                         full_size);
  if (status == LUATTN_OK) status = fetch(pack, r->offset, stored, stored_size, err);
  if (status == LUATTN_OK) {
    const XXH128_hash_t sum = XXH3_128bits(stored, stored_size);
    if (sum.low64 != r->checksum_low || sum.high64 != r->checksum_high)
      status = luattn_fail(err, LUATTN_IMAGE,
                           "pack: %s: entry %zu: checksum does not match its bytes; it is damaged, or the file was "
                           "written over",
                           pack->name, index);
  }
  if (status == LUATTN_OK && full != NULL) status = expand(pack, index, stored, full, err);
  if (status != LUATTN_OK || full != NULL) free(stored);
  if (status != LUATTN_OK) {
    free(full);
    return status;
  }
  *bytes = full != NULL ? full : stored;
  *size = full_size;
  return LUATTN_OK;
}

void luattn_pack_free(void *bytes) { free(bytes); }

luattn_status luattn_pack_image(const luattn_pack *pack, size_t index, luattn_image **image, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(pack);
  NEED(image);
  const luattn_pack_entry *e = luattn_pack_get_entry(pack, index);
  if (e != NULL && e->kind != LUATTN_PACK_IMAGE)
    return luattn_fail(err, LUATTN_INVALID, "pack: %s: entry %zu: is a text, not an image", pack->name, index);
  void *bytes;
  size_t size;
  luattn_image *opened;
  TRY(luattn_pack_read(pack, index, &bytes, &size, err));
  const luattn_status status = luattn_image_open(bytes, size, &opened, err);
  free(bytes);
  if (status != LUATTN_OK) return status;
  pack_record real = pack->record[index];
  pack_describe(image_get_manifest(opened), &real);
  if (memcmp(&real, &pack->record[index], sizeof real) != 0) {
    luattn_image_free(opened);
    return luattn_fail(err, LUATTN_IMAGE, "pack: %s: entry %zu: is not the image that the index says; it is damaged",
                       pack->name, index);
  }
  *image = opened;
  return LUATTN_OK;
}
