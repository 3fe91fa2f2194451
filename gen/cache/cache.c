#include "gen/cache/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/image.h"
#include "common/fail.h"
#include "common/write_signal.h"
#include "gen/cache/entry.h"

#define MAX_ENTRY_BYTES ((off_t)1 << 31)

static luattn_status fit(int length, size_t size, const char *what, luattn_error *err) {
  if (length >= 0 && (size_t)length < size) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "cache: %s: its path is longer than %zu bytes; choose a shorter one", what,
                     size - 1);
}

/* The environment is read on each call, so that a program may change it; an empty variable counts as set. */
luattn_status cache_resolve(const char *cache_dir, char *path, size_t size, luattn_error *err) {
  const char *chosen = cache_dir != NULL ? cache_dir : getenv("LUATTN_CACHE_DIR");
  if (chosen != NULL) return fit(snprintf(path, size, "%s", chosen), size, "the chosen directory", err);
  const char *base = getenv("XDG_CACHE_HOME");
  if (base != NULL && base[0] == '/') /* the XDG specification says to ignore a relative path */
    return fit(snprintf(path, size, "%s/luattn", base), size, "XDG_CACHE_HOME", err);
  base = getenv("HOME");
  if (base != NULL && base[0] == '/') return fit(snprintf(path, size, "%s/.cache/luattn", base), size, "HOME", err);
  path[0] = '\0'; /* no directory to use */
  return LUATTN_OK;
}

/* Reads until `size` bytes or the end. */
static ssize_t read_all(int fd, unsigned char *bytes, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read(fd, bytes + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += (size_t)n;
  }
  return (ssize_t)done;
}

static bool is_foreign(const unsigned char *bytes, size_t size) {
  uint32_t version;
  if (size < 12 || memcmp(bytes, "LUATTNIM", 8) != 0) return false;
  memcpy(&version, bytes + 8, sizeof version);
  return version != IMAGE_FORMAT_VERSION;
}

static luattn_status read_image(int fd, size_t size, luattn_image **image, entry_state *state, luattn_error *err) {
  unsigned char *bytes = malloc(size);
  if (bytes == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cache: no memory for an entry of %zu bytes", size);
  const ssize_t got = read_all(fd, bytes, size);
  luattn_status status = LUATTN_OK;
  if (got >= 0) {
    status = luattn_image_open(bytes, (size_t)got, image, err);
    *state = status == LUATTN_OK ? ENTRY_SOUND : is_foreign(bytes, (size_t)got) ? ENTRY_FOREIGN : ENTRY_DAMAGED;
    if (status == LUATTN_IMAGE) status = LUATTN_OK;
  }
  free(bytes);
  return status;
}

/* O_NONBLOCK: opening a FIFO in the cache must not block. Opening fails on a symbolic link, which luattn does
 * not create. */
luattn_status entry_read(const char *path, bool is_use, luattn_image **image, entry_state *state, luattn_error *err) {
  *image = NULL;
  *state = ENTRY_NONE;
  const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ELOOP) *state = ENTRY_DAMAGED;
    return LUATTN_OK;
  }
  struct stat st;
  luattn_status status = LUATTN_OK;
  if (fstat(fd, &st) == 0) { /* if it fails, the file is neither used nor removed */
    if (!S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size > MAX_ENTRY_BYTES || distrust_of(&st) != NULL)
      *state = ENTRY_DAMAGED;
    else
      status = read_image(fd, (size_t)st.st_size, image, state, err);
  }
  if (*image != NULL && is_use) {
    const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    (void)futimens(fd, now); /* prune removes the least recently used; a read-only cache goes without */
  }
  close(fd);
  return status;
}

/* Checks the cache's directory and, if it is there, the entry's folder below it. *level, which may be NULL: the one
 * that is not trusted. */
static const char *levels_distrust(const char *dir, const char *folder, const char **level) {
  const char *distrust = cache_distrust(dir);
  if (level != NULL) *level = distrust != NULL ? dir : folder;
  return distrust != NULL ? distrust : folder_distrust(folder);
}

/* Writes <dir>/<2 digits> to `folder`, and the entry's path to `path`. */
static luattn_status file_path(const char *dir, hash128 key, const char *suffix, char folder[ENTRY_PATH_SIZE],
                               char path[ENTRY_PATH_SIZE], luattn_error *err) {
  char hex[33];
  hash_hex(key, hex);
  TRY(fit(snprintf(folder, ENTRY_PATH_SIZE, "%s/%.2s", dir, hex), ENTRY_PATH_SIZE, dir, err));
  return fit(snprintf(path, ENTRY_PATH_SIZE, "%s/%.2s/%s%s", dir, hex, hex, suffix), ENTRY_PATH_SIZE, dir, err);
}

static luattn_status entry_path(const char *dir, hash128 key, char folder[ENTRY_PATH_SIZE], char path[ENTRY_PATH_SIZE],
                                luattn_error *err) {
  return file_path(dir, key, ENTRY_SUFFIX, folder, path, err);
}

luattn_status cache_find(const char *dir, hash128 key, luattn_image **image, luattn_error *err) {
  *image = NULL;
  if (dir[0] == '\0') return LUATTN_OK;
  char folder[ENTRY_PATH_SIZE], path[ENTRY_PATH_SIZE];
  if (entry_path(dir, key, folder, path, NULL) != LUATTN_OK)
    return LUATTN_OK; /* a path that is too long names no entry */
  if (levels_distrust(dir, folder, NULL) != NULL) return LUATTN_OK;
  entry_state state;
  TRY(entry_read(path, true, image, &state, err));
  bool damaged = state == ENTRY_DAMAGED;
  if (*image != NULL) {
    const uint64_t *hash = image_get_manifest(*image)->source_hash;
    damaged = hash[0] != key.lo || hash[1] != key.hi;
  }
  if (damaged) {
    luattn_image_free(*image);
    *image = NULL;
  }
  /* If another process has just replaced the entry with a sound one, the sound one is removed: a lost entry
   * costs only a compilation. */
  if (damaged) (void)remove(path); /* removes an empty directory; store reports any other */
  return LUATTN_OK;
}

/* mkdir -p, accessible to the owner only. The first error says most: later directories fail because an
 * earlier one is missing. */
static int make_dirs(char *path) {
  int first = 0;
  for (char *p = path + 1; *p != '\0'; ++p) {
    if (*p != '/') continue;
    *p = '\0';
    if (mkdir(path, 0700) != 0 && errno != EEXIST && first == 0) first = errno;
    *p = '/';
  }
  if (mkdir(path, 0700) == 0 || errno == EEXIST) return 0;
  if (errno == ENOENT && first != 0) errno = first;
  return -1;
}

static int write_all(int fd, const unsigned char *bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    bytes += n;
    size -= (size_t)n;
  }
  return 0;
}

/* Readers see the whole entry or none: it gets its name only once it is complete and on disk. Returns what
 * failed, with errno set, or NULL. */
static const char *publish(char *folder, const char *path, const void *bytes, size_t size) {
  WRITE_SIGNAL_SCOPE;
  char temporary[ENTRY_PATH_SIZE + 16];
  snprintf(temporary, sizeof temporary, "%s/" ENTRY_TEMPORARY "XXXXXX", folder);
  if (make_dirs(folder) != 0) return "create its directory";
  const int fd = mkstemp(temporary); /* O_EXCL, mode 0600 */
  if (fd < 0) return "create a file";
  const char *failed = NULL;
  if (write_all(fd, bytes, size) != 0) failed = "write it";
  if (failed == NULL && fsync(fd) != 0) failed = "flush it";
  int error = errno;
  if (close(fd) != 0 && failed == NULL) {
    failed = "close it";
    error = errno;
  }
  if (failed == NULL && rename(temporary, path) != 0) {
    error = errno;
    failed = error == EISDIR ? "replace the directory of that name, which has to be removed" : "rename it";
  }
  if (failed != NULL) (void)unlink(temporary);
  errno = error;
  return failed;
}

static void explain(int error, char *reason, size_t size) {
  if (strerror_r(error, reason, size) != 0) snprintf(reason, size, "error %d", error);
}

luattn_status cache_store(const char *dir, hash128 key, const luattn_image *image, char *warning, size_t warning_size,
                          luattn_error *err) {
  if (warning_size > 0) warning[0] = '\0';
  if (dir[0] == '\0') return LUATTN_OK;
  char folder[ENTRY_PATH_SIZE], path[ENTRY_PATH_SIZE];
  TRY(entry_path(dir, key, folder, path, err));
  const char *level, *distrust = levels_distrust(dir, folder, &level);
  if (distrust != NULL) {
    if (warning_size > 0)
      snprintf(warning, warning_size, "cache: %s: %s; it is not used, and the kernel is not kept", level, distrust);
    return LUATTN_OK;
  }
  size_t size;
  const void *bytes = luattn_image_bytes(image, &size);
  const char *failed = publish(folder, path, bytes, size);
  if (failed == NULL || warning_size == 0) return LUATTN_OK;
  char reason[128];
  explain(errno, reason, sizeof reason);
  snprintf(warning, warning_size, "cache: %s: cannot %s: %s; the kernel works but is not kept", path, failed, reason);
  return LUATTN_OK;
}

bool cache_has(const char *dir, hash128 key) {
  char folder[ENTRY_PATH_SIZE], path[ENTRY_PATH_SIZE];
  struct stat st;
  return dir[0] != '\0' && entry_path(dir, key, folder, path, NULL) == LUATTN_OK &&
         levels_distrust(dir, folder, NULL) == NULL && lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
         distrust_of(&st) == NULL;
}

void cache_keep_source(const char *dir, hash128 key, const char *text, char *path, size_t size) {
  WRITE_SIGNAL_SCOPE;
  char folder[ENTRY_PATH_SIZE], entry[ENTRY_PATH_SIZE];
  path[0] = '\0';
  if (dir[0] == '\0' || entry_path(dir, key, folder, entry, NULL) != LUATTN_OK ||
      levels_distrust(dir, folder, NULL) != NULL || make_dirs(folder) != 0)
    return;
  const int stem = (int)(strlen(entry) - strlen(ENTRY_SUFFIX));
  const int length = snprintf(path, size, "%.*s.cu", stem, entry);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = (size_t)length < size ? open(path, flags, 0600) : -1;
  FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (fd >= 0 && f == NULL) close(fd);
  const int written = f != NULL && fputs(text, f) >= 0;
  if ((f != NULL && fclose(f) != 0) || !written) path[0] = '\0';
}

bool cache_find_record(const char *dir, hash128 key, char *text, size_t size, char *path, size_t path_size) {
  char folder[ENTRY_PATH_SIZE], name[ENTRY_PATH_SIZE];
  if (dir[0] == '\0' || file_path(dir, key, RECORD_SUFFIX, folder, name, NULL) != LUATTN_OK) return false;
  if (levels_distrust(dir, folder, NULL) != NULL) return false;
  snprintf(path, path_size, "%s", name);
  const int fd = open(name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* as entry_read */
  text[0] = '\0';
  if (fd < 0) return errno == ELOOP; /* luattn creates no links: the file exists, but is not sound */
  struct stat st;                    /* what others own or may write is as if it were not sound */
  const ssize_t got =
      fstat(fd, &st) == 0 && distrust_of(&st) == NULL ? read_all(fd, (unsigned char *)text, size - 1) : 0;
  text[got > 0 ? got : 0] = '\0';
  close(fd);
  return true;
}

luattn_status cache_store_record(const char *dir, hash128 key, const char *text, char *path, size_t path_size,
                                 luattn_error *err) {
  char folder[ENTRY_PATH_SIZE], name[ENTRY_PATH_SIZE], reason[128];
  TRY(file_path(dir, key, RECORD_SUFFIX, folder, name, err));
  const char *failed = NULL, *level, *distrust = levels_distrust(dir, folder, &level);
  if (distrust != NULL)
    return luattn_fail(err, LUATTN_IO, "cache: %s: %s, so it is not used; name another directory with LUATTN_CACHE_DIR",
                       level, distrust);
  if (text != NULL)
    failed = publish(folder, name, text, strlen(text));
  else if (unlink(name) != 0 && errno != ENOENT)
    failed = "remove it";
  if (failed == NULL) {
    if (path_size > 0) snprintf(path, path_size, "%s", strlen(name) < path_size ? name : "");
    return LUATTN_OK;
  }
  explain(errno, reason, sizeof reason);
  return luattn_fail(err, LUATTN_IO,
                     "cache: %s: cannot %s: %s; check its owner and permissions, or name another "
                     "directory with LUATTN_CACHE_DIR",
                     name, failed, reason);
}
