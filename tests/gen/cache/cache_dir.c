#define _XOPEN_SOURCE 700 /* nftw */
#include "tests/gen/cache/cache_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "abi/image.h"

char dir[128];

const hash128 key = {0x0123456789abcdefu, 0xfedcba9876543210u};

int fresh_dir(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "%s/luattn-cache-test-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
  return mkdtemp(dir) != NULL ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
  (void)st, (void)type, (void)at;
  return remove(path);
}

int remove_dir(void **state) {
  (void)state;
  return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Creates an image whose cubin is `size` bytes of `fill`. */
luattn_image *make_image_for(hash128 k, size_t size, int fill) {
  image_manifest info = {.spec_name = "cached",
                         .arch = 90,
                         .head_dim = 64,
                         .head_dim_v = 64,
                         .params_bytes = 64,
                         .num_entries = 1,
                         .source_hash = {k.lo, k.hi},
                         .max_len = 4096};
  memcpy(info.entry[0].name, "luattn_fwd", 11);
  info.entry[0].role = LUATTN_ROLE_FORWARD;
  info.entry[0].threads = 128;
  info.entry[0].tile_m = info.entry[0].tile_n = 64;
  void *cubin = malloc(size);
  memset(cubin, fill, size);
  luattn_image *image = NULL;
  luattn_error err;
  if (image_create(&info, NULL, cubin, size, &image, &err) != LUATTN_OK) fail_msg("%s", err.message);
  free(cubin);
  return image;
}

luattn_image *make_image(size_t size, int fill) { return make_image_for(key, size, fill); }

void store(hash128 k, const luattn_image *image) {
  char warning[256];
  luattn_error err;
  assert_int_equal(cache_store(dir, k, image, warning, sizeof warning, &err), LUATTN_OK);
  assert_string_equal(warning, "");
}

luattn_image *find(hash128 k) {
  luattn_image *image = NULL;
  luattn_error err;
  assert_int_equal(cache_find(dir, k, &image, &err), LUATTN_OK);
  return image;
}

int same_bytes(const luattn_image *a, const luattn_image *b) {
  size_t na, nb;
  const void *x = luattn_image_bytes(a, &na), *y = luattn_image_bytes(b, &nb);
  return na == nb && memcmp(x, y, na) == 0;
}

void path_of(const char *name, char path[512]) { snprintf(path, 512, "%s/%s", dir, name); }

int exists(const char *name) {
  char path[512];
  struct stat st;
  path_of(name, path);
  return lstat(path, &st) == 0;
}

int count_temporaries(void) {
  char path[512];
  path_of("fe", path);
  DIR *d = opendir(path);
  int count = 0;
  for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d))
    count += strncmp(e->d_name, ".tmp-", 5) == 0;
  if (d != NULL) closedir(d);
  return count;
}

void set_file(const char *name, const void *bytes, size_t size) {
  char path[512];
  path_of(name, path);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  if (size > 0) assert_int_equal(fwrite(bytes, 1, size, f), size);
  fclose(f);
}

void set_age(const char *name, time_t seconds) {
  char path[512];
  const struct timespec then[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
  path_of(name, path);
  assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
}
