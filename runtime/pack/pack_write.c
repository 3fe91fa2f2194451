/* pack_write.c: writes images and texts as a pack, in the caller's order. The result does not depend on the
 * machine or the time. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL /* header only, so that no library is linked */
#include <xxhash.h>
#include <zstd.h>

#include "common/host.h"
#include "common/parallel.h"
#include "common/write_signal.h"
#include "runtime/pack/pack.h"

#define LEVEL 19 /* a cubin of 100 KB takes 20 ms, compiling it took 500; reading does not depend on it */

typedef struct writer {
  const luattn_pack_item *item;
  size_t count;
  pack_record *record;
  char *index; /* the records as the file has them */
  size_t index_size;
  unsigned char **stored; /* compressed bytes; NULL: the item's own */
} writer;

static const void *item_bytes(const luattn_pack_item *item, size_t *size) {
  if (item->kind == LUATTN_PACK_IMAGE) return luattn_image_bytes(item->image, size);
  *size = item->text_size;
  return item->text;
}

static luattn_status check_variants(const image_manifest *m, size_t index, luattn_error *err) {
  const char *what = NULL;
  if (m == NULL) return LUATTN_OK;
#define KERNEL_VARIANT(name, value, says)
#define KERNEL_UNPACKED(name, value, says, asked_by, are_for) \
  if ((value) != 0 && what == NULL) what = are_for " (luattn_target." #name ")";
#include "abi/kernel_facts.def"
  if (what == NULL) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "luattn_pack_write: item %zu: its image is for %s, which packs do not hold yet; "
                     "leave it out, and let an engine compile it",
                     index, what);
}

static luattn_status describe_item(const luattn_pack_item *item, size_t index, pack_record *r, luattn_error *err) {
  luattn_pack_entry *e = &r->entry;
  if ((unsigned)item->kind > LUATTN_PACK_SOURCE)
    return luattn_fail(err, LUATTN_INVALID, "luattn_pack_write: item %zu: kind is %d, expected 0 to %d", index,
                       (int)item->kind, (int)LUATTN_PACK_SOURCE);
  const char *missing = item->kind == LUATTN_PACK_SPEC ? (item->spec_name == NULL ? "spec_name" : NULL)
                                                       : (item->image == NULL ? "image" : NULL);
  if (item->kind != LUATTN_PACK_IMAGE && item->text == NULL) missing = "text";
  if (missing != NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_pack_write: item %zu: its %s is missing", index, missing);
  size_t size;
  (void)item_bytes(item, &size);
  if (size > PACK_MAX_ENTRY_BYTES)
    return luattn_fail(err, LUATTN_INVALID, "luattn_pack_write: item %zu: has %zu bytes, at most %llu fit", index, size,
                       (unsigned long long)PACK_MAX_ENTRY_BYTES);
  const image_manifest *m = item->image != NULL ? image_get_manifest(item->image) : NULL;
  TRY(check_variants(m, index, err));
  if (item->lengths < 0 || item->lengths > 2)
    return luattn_fail(err, LUATTN_INVALID, "luattn_pack_write: item %zu: lengths is %d, expected 0 to 2", index,
                       item->lengths);
  e->kind = item->kind;
  e->lengths = (uint32_t)item->lengths;
  memcpy(e->spec_hash, item->spec_hash, sizeof e->spec_hash);
  e->size = size;
  if (item->image != NULL)
    pack_describe(image_get_manifest(item->image), r);
  else
    snprintf(e->spec_name, sizeof e->spec_name, "%s", item->spec_name);
  return LUATTN_OK;
}

static luattn_status compress_item(void *user, size_t index, luattn_error *err) {
  writer *w = user;
  pack_record *r = &w->record[index];
  TRY(describe_item(&w->item[index], index, r, err));
  size_t size;
  const void *bytes = item_bytes(&w->item[index], &size);
  const size_t bound = ZSTD_compressBound(size);
  unsigned char *out = malloc(bound);
  if (out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_pack_write: no memory for %zu bytes", bound);
  size_t stored = ZSTD_compress(out, bound, bytes, size, LEVEL);
  if (ZSTD_isError(stored)) {
    free(out);
    return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_pack_write: zstd: %s", ZSTD_getErrorName(stored));
  }
  if (stored >= size) { /* short texts do not compress */
    free(out);
    out = NULL;
    stored = size;
  }
  w->stored[index] = out;
  r->entry.stored_size = stored;
  const XXH128_hash_t sum = XXH3_128bits(out != NULL ? out : bytes, stored);
  r->checksum_low = sum.low64;
  r->checksum_high = sum.high64;
  return LUATTN_OK;
}

/* The earliest version that has all of the entries' variants, so that an earlier luattn reads what it can. */
static uint32_t version_of(const writer *w) {
  static const pack_variant none;
  uint32_t version = 1;
  for (size_t i = 0; i < w->count; ++i) {
    const pack_variant *v = &w->record[i].variant;
    if (v->out_f32 != 0 || v->grad_f32 != 0) return PACK_FORMAT_VERSION;
    if (memcmp(v, &none, sizeof none) != 0) version = 2;
  }
  return version;
}

static void fill_header(writer *w, const char *nvrtc_version, pack_header *h) {
  *h = (pack_header){.version = version_of(w), .byte_order = PACK_BYTE_ORDER, .num_entries = w->count};
  memcpy(h->magic, PACK_MAGIC, sizeof h->magic);
  snprintf(h->luattn_version, sizeof h->luattn_version, "%s", luattn_version());
  snprintf(h->nvrtc_version, sizeof h->nvrtc_version, "%s", nvrtc_version != NULL ? nvrtc_version : "");
  h->total_size = sizeof *h + w->count * pack_record_size(h->version);
  for (size_t i = 0; i < w->count; ++i) {
    w->record[i].offset = h->total_size;
    h->total_size += w->record[i].entry.stored_size;
  }
  w->index_size = w->count * pack_record_size(h->version);
  for (size_t i = 0; i < w->count; ++i)
    memcpy(w->index + i * pack_record_size(h->version), &w->record[i], pack_record_size(h->version));
}

static luattn_status sign_header(const writer *w, pack_header *h, luattn_error *err) {
  XXH3_state_t *state = XXH3_createState();
  if (state == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_pack_write: out of memory");
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, (const char *)h + PACK_CHECKED_FROM, sizeof *h - PACK_CHECKED_FROM);
  if (w->count > 0) XXH3_128bits_update(state, w->index, w->index_size);
  const XXH128_hash_t sum = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  h->checksum_low = sum.low64;
  h->checksum_high = sum.high64;
  return LUATTN_OK;
}

static bool put(int fd, const void *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = write(fd, (const char *)bytes + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += (size_t)n;
  }
  return true;
}

static bool put_all(const writer *w, const pack_header *h, int fd) {
  bool ok = put(fd, h, sizeof *h) && put(fd, w->index, w->index_size);
  for (size_t i = 0; i < w->count && ok; ++i) {
    size_t size;
    const void *bytes = item_bytes(&w->item[i], &size);
    ok = put(fd, w->stored[i] != NULL ? w->stored[i] : bytes, (size_t)w->record[i].entry.stored_size);
  }
  return ok && fsync(fd) == 0;
}

/* A rename would replace a device or a link, which is there for a reason. */
static luattn_status check_path(const char *path, luattn_error *err) {
  struct stat st;
  if (lstat(path, &st) != 0 || S_ISREG(st.st_mode)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "pack: %s: is %s", path,
                     S_ISLNK(st.st_mode)   ? "a symbolic link; name the file that it points to"
                     : S_ISDIR(st.st_mode) ? "a folder; name a file in it"
                                           : "a device, a pipe or a socket; name a regular file or a new one");
}

/* Writes to a temporary name until the file is complete. */
static luattn_status publish(const writer *w, const pack_header *h, const char *path, luattn_error *err) {
  WRITE_SIGNAL_SCOPE;
  char temporary[4096];
  const int n = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
  if (n < 0 || (size_t)n >= sizeof temporary)
    return luattn_fail(err, LUATTN_INVALID, "pack: %s: its path is too long; choose a shorter one", path);
  const int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  const char *failed = fd < 0 ? "create it" : !put_all(w, h, fd) ? "write it" : NULL;
  int error = errno;
  if (fd >= 0 && close(fd) != 0 && failed == NULL) {
    failed = "close it";
    error = errno;
  }
  if (failed == NULL && rename(temporary, path) != 0) {
    failed = "rename it into place";
    error = errno;
  }
  if (failed == NULL) return LUATTN_OK;
  if (fd >= 0) (void)unlink(temporary);
  char reason[128];
  if (strerror_r(error, reason, sizeof reason) != 0) snprintf(reason, sizeof reason, "error %d", error);
  if (fd < 0)
    return luattn_fail(err, LUATTN_IO, "pack: %s: cannot create %s: %s; nothing was changed", path, temporary, reason);
  return luattn_fail(err, LUATTN_IO, "pack: %s: cannot %s: %s; nothing was changed", path, failed, reason);
}

luattn_status luattn_pack_write(const char *path, const char *nvrtc_version, const luattn_pack_item *items,
                                size_t num_items, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(path);
  if (items == NULL && num_items > 0) return fail_null(err, __func__, "items");
  if (num_items > PACK_MAX_ENTRIES)
    return luattn_fail(err, LUATTN_INVALID, "luattn_pack_write: %zu items, at most %u fit; write several packs",
                       num_items, PACK_MAX_ENTRIES);
  TRY(check_path(path, err));
  writer w = {.item = items, .count = num_items};
  pack_header h;
  w.record = calloc(num_items + 1, sizeof *w.record);
  w.index = calloc(num_items + 1, sizeof *w.record);
  w.stored = calloc(num_items + 1, sizeof *w.stored);
  luattn_status status = LUATTN_OK;
  if (w.record == NULL || w.index == NULL || w.stored == NULL)
    status = luattn_fail(err, LUATTN_NO_MEMORY, "luattn_pack_write: no memory for %zu items", num_items);
  if (status == LUATTN_OK) status = parallel_run(num_items, 0, compress_item, NULL, &w, err);
  if (status == LUATTN_OK) {
    fill_header(&w, nvrtc_version, &h);
    status = sign_header(&w, &h, err);
  }
  if (status == LUATTN_OK) status = publish(&w, &h, path, err);
  for (size_t i = 0; i < num_items && w.stored != NULL; ++i) free(w.stored[i]);
  free(w.stored);
  free(w.record);
  free(w.index);
  return status;
}
