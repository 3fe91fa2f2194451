/* sweep.c: walks the whole cache: info, clear, prune. Touches only files whose names are the cache's. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gen/cache/cache.h"
#include "gen/cache/entry.h"

#define MAX_NAME 48
#define ABANDONED_AFTER 3600 /* seconds; an older temporary file belongs to a process that died */

typedef enum file_kind { FILE_ENTRY, FILE_COMPANION, FILE_RECORD, FILE_TEMPORARY, FILE_FOREIGN } file_kind;

typedef struct cached_file {
  char name[56]; /* relative to the cache's directory */
  file_kind kind;
  bool is_folder; /* a directory in the place of an entry */
  size_t bytes;
  struct timespec used; /* two within one second are common */
} cached_file;

typedef luattn_status visit(void *user, const char *path, const cached_file *file, luattn_error *err);

static bool is_hex(const char *s, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (!isdigit((unsigned char)s[i]) && !(s[i] >= 'a' && s[i] <= 'f')) return false;
  return true;
}

static file_kind kind_of(const char *folder, const char *name) {
  if (strncmp(name, ENTRY_TEMPORARY, strlen(ENTRY_TEMPORARY)) == 0) return FILE_TEMPORARY;
  if (!is_hex(name, 32) || strncmp(folder, name, 2) != 0 || name[32] != '.') return FILE_FOREIGN;
  if (strcmp(name + 32, RECORD_SUFFIX) == 0) return FILE_RECORD;
  return strcmp(name + 32, ENTRY_SUFFIX) == 0 ? FILE_ENTRY : FILE_COMPANION;
}

static luattn_status io_fail(luattn_error *err, const char *path, const char *what, int error) {
  char reason[128];
  if (strerror_r(error, reason, sizeof reason) != 0) snprintf(reason, sizeof reason, "error %d", error);
  return luattn_fail(err, LUATTN_IO, "cache: %s: cannot %s: %s; check its owner and permissions", path, what, reason);
}

static luattn_status visit_folder(const char *dir, const char *folder, visit *call, void *user, luattn_error *err) {
  char path[ENTRY_PATH_SIZE + 64];
  snprintf(path, sizeof path, "%s/%s", dir, folder);
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
    return LUATTN_OK; /* removed meanwhile, or not owned by the cache */
  DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
  if (d == NULL) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return io_fail(err, path, "read it", error);
  }
  luattn_status status = LUATTN_OK;
  for (const struct dirent *e = readdir(d); e != NULL && status == LUATTN_OK; e = readdir(d)) {
    struct stat st;
    cached_file file = {.kind = kind_of(folder, e->d_name)};
    if (file.kind == FILE_FOREIGN || strlen(e->d_name) > MAX_NAME) continue;
    if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
    file.is_folder = S_ISDIR(st.st_mode);
    if (file.is_folder && file.kind != FILE_ENTRY) continue;
    snprintf(file.name, sizeof file.name, "%s/%.*s", folder, MAX_NAME, e->d_name);
    snprintf(path, sizeof path, "%s/%s", dir, file.name);
    file.bytes = file.is_folder ? 0 : (size_t)st.st_size;
    file.used = st.st_mtim;
    status = call(user, path, &file, err);
  }
  closedir(d);
  return status;
}

static luattn_status visit_all(const char *dir, visit *call, void *user, luattn_error *err) {
  if (dir[0] == '\0') return LUATTN_OK;
  if (strlen(dir) >= ENTRY_PATH_SIZE) return io_fail(err, dir, "read it", ENAMETOOLONG);
  DIR *d = opendir(dir);
  if (d == NULL) return errno == ENOENT ? LUATTN_OK : io_fail(err, dir, "read it", errno);
  luattn_status status = LUATTN_OK;
  for (const struct dirent *e = readdir(d); e != NULL && status == LUATTN_OK; e = readdir(d))
    if (strlen(e->d_name) == 2 && is_hex(e->d_name, 2)) status = visit_folder(dir, e->d_name, call, user, err);
  closedir(d);
  return status;
}

static luattn_status count_file(void *user, const char *path, const cached_file *file, luattn_error *err) {
  cache_stats *stats = user;
  stats->bytes += file->bytes;
  stats->records += file->kind == FILE_RECORD;
  if (file->kind != FILE_ENTRY) return LUATTN_OK;
  luattn_image *image;
  entry_state state;
  TRY(entry_read(path, false, &image, &state, err));
  luattn_image_free(image);
  ++stats->entries;
  stats->damaged += state == ENTRY_DAMAGED;
  stats->foreign += state == ENTRY_FOREIGN;
  return LUATTN_OK;
}

luattn_status cache_info(const char *dir, cache_stats *out, luattn_error *err) {
  cache_stats stats = {0};
  TRY(visit_all(dir, count_file, &stats, err));
  *out = stats;
  return LUATTN_OK;
}

/* A recent temporary file may be in use by another process. */
static bool is_in_use(const cached_file *file) {
  return file->kind == FILE_TEMPORARY && time(NULL) - file->used.tv_sec < ABANDONED_AFTER;
}

static luattn_status remove_file(const char *path, luattn_error *err) {
  if (unlink(path) == 0 || errno == ENOENT) return LUATTN_OK;
  return io_fail(err, path, "remove it", errno);
}

static luattn_status clear_file(void *user, const char *path, const cached_file *file, luattn_error *err) {
  if (is_in_use(file)) return LUATTN_OK;
  if (file->is_folder) { /* the cache does not own its contents */
    *(size_t *)user += rmdir(path) == 0;
    return LUATTN_OK;
  }
  TRY(remove_file(path, err));
  *(size_t *)user += file->kind == FILE_ENTRY;
  return LUATTN_OK;
}

luattn_status cache_clear(const char *dir, size_t *removed, luattn_error *err) {
  size_t count = 0;
  TRY(visit_all(dir, clear_file, &count, err));
  *removed = count;
  return LUATTN_OK;
}

typedef struct file_list {
  cached_file *file;
  size_t count, capacity, bytes;
} file_list;

static luattn_status list_file(void *user, const char *path, const cached_file *file, luattn_error *err) {
  file_list *list = user;
  if (is_in_use(file) || file->kind == FILE_RECORD || file->is_folder) return LUATTN_OK;
  if (file->kind == FILE_TEMPORARY) return remove_file(path, err);
  if (list->count == list->capacity) {
    const size_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
    cached_file *grown = realloc(list->file, capacity * sizeof *grown);
    if (grown == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cache: no memory to list %zu files", capacity);
    list->file = grown;
    list->capacity = capacity;
  }
  list->file[list->count++] = *file;
  list->bytes += file->bytes;
  return LUATTN_OK;
}

static int by_use(const void *a, const void *b) {
  const cached_file *x = a, *y = b;
  if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
  if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* If the entries exceed `over` bytes, removes the least recently used until `down_to` bytes are left. */
static luattn_status prune(const char *dir, size_t over, size_t down_to, size_t *removed, luattn_error *err) {
  file_list list = {.file = NULL};
  size_t count = 0;
  luattn_status status = visit_all(dir, list_file, &list, err);
  const size_t max_bytes = list.bytes > over ? down_to : over;
  if (status == LUATTN_OK && list.count > 0) qsort(list.file, list.count, sizeof *list.file, by_use);
  for (size_t i = 0; i < list.count && status == LUATTN_OK && list.bytes > max_bytes; ++i) {
    char path[ENTRY_PATH_SIZE + 64];
    snprintf(path, sizeof path, "%s/%s", dir, list.file[i].name);
    status = remove_file(path, err);
    list.bytes -= list.file[i].bytes;
    if (status == LUATTN_OK) count += list.file[i].kind == FILE_ENTRY;
  }
  free(list.file);
  if (status == LUATTN_OK) *removed = count;
  return status;
}

luattn_status cache_prune(const char *dir, size_t max_bytes, size_t *removed, luattn_error *err) {
  return prune(dir, max_bytes, max_bytes, removed, err);
}

luattn_status cache_trim(const char *dir, size_t max_bytes, luattn_error *err) {
  size_t removed;
  if (max_bytes == 0) return LUATTN_OK;
  const luattn_status status = prune(dir, max_bytes, max_bytes - max_bytes / 10, &removed, err);
  return status == LUATTN_NO_MEMORY ? status : LUATTN_OK;
}
