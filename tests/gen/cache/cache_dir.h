/* cache_dir.h: creates a directory for each test, and images to store in it. */
#ifndef LUATTN_TESTS_CACHE_DIR_H
#define LUATTN_TESTS_CACHE_DIR_H

#include <time.h>

#include "gen/cache/cache.h"

extern char dir[128]; /* a new one for each test */
int fresh_dir(void **state);
int remove_dir(void **state);

extern const hash128 key;
#define KEY_PATH "fe/fedcba98765432100123456789abcdef.lai"

/* Create an image whose cubin is `size` bytes of `fill`, with cache key `key` or k. */
luattn_image *make_image(size_t size, int fill);
luattn_image *make_image_for(hash128 k, size_t size, int fill);
int same_bytes(const luattn_image *a, const luattn_image *b);

void store(hash128 k, const luattn_image *image); /* without a warning */
luattn_image *find(hash128 k);                    /* NULL: not found */

/* Functions on files of the directory, by name. */
void path_of(const char *name, char path[512]);
int exists(const char *name);
int count_temporaries(void); /* in the folder of `key` */
void set_file(const char *name, const void *bytes, size_t size);
void set_age(const char *name, time_t seconds);

#endif
