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

extern const char SPEC[]; /* with an input, a scalar, a mask and gradients of all */

luattn_spec *load(const char *source); /* fails the test on an error */
/* A float32 backward pass for sm_80, without a disk cache, by the fake NVRTC. */
luattn_target target_new(void);
/* The image's cubin holds a hash of everything that was compiled: equal input, equal bytes. Fails the test on
 * an error. */
luattn_image *compile(const luattn_spec *spec, const luattn_target *target, luattn_compile_report *report);

/* A folder of its own in the build folder's temporary directory. */
typedef struct folder {
  char path[64];
} folder;
folder folder_new(void);
void folder_remove(const folder *f);
int folder_count(const folder *f,
                 const char *pattern); /* files below it whose names match, as with `find -name` */

void fake_mode(const char *mode); /* LUATTN_FAKE_NVRTC; NULL: it works normally */

#endif
