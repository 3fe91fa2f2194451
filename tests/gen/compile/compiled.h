/* compiled.h: compiles with a fake NVRTC that compiles nothing. */
#ifndef LUATTN_TESTS_COMPILED_H
#define LUATTN_TESTS_COMPILED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h> /* needs those above */

#include "abi/image.h"
#include "luattn/compiler.h"

extern const char SPEC[]; /* has an input, a scalar, a mask, and all gradients */

luattn_spec *load(const char *source); /* fails the test on an error */
/* Returns a target for a float32 backward pass on sm_80, with the fake NVRTC and without a disk cache. */
luattn_target target_new(void);
/* The image's cubin holds a hash of everything that was compiled, so equal input gives equal bytes. Fails the
 * test on an error. */
luattn_image *compile(const luattn_spec *spec, const luattn_target *target, luattn_compile_report *report);
bool same_image(const luattn_image *a, const luattn_image *b);

/* A new folder in the build folder's temporary directory. */
typedef struct folder {
  char path[64];
} folder;
folder folder_new(void);
void folder_remove(const folder *f);
int folder_count(const folder *f,
                 const char *pattern); /* counts files in its tree whose names match, as `find -name` does */

void fake_mode(const char *mode); /* sets LUATTN_FAKE_NVRTC; NULL: the fake works normally */

#endif
