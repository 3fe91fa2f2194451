/* hand_kernels.h: for tests of kernels of templates/ that are compiled for a Spec by hand: their images, and a driver: the PTX
 * machine's, or a GPU's. */
#ifndef LUATTN_TESTS_HAND_KERNELS_H
#define LUATTN_TESTS_HAND_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/params.h"
#include "gen/nvrtc/embedded.h"

/* What an image is made of. */
typedef struct hand_source {
  arena *a;
  nvrtc lib;
  const char *entry, *text, *options[32];
  template_file headers[320];
  int num_headers, num_options;
} hand_source;

/* Opens the driver that LUATTN_LIBCUDA names: a set-up of tests. */
int hand_open_driver(void **state);

/* Begins an image of the kernels of `entry`, of templates/. Skips the test where there is no NVRTC. */
void hand_open_source(hand_source *s, const char *entry);
char *hand_read(hand_source *s, const char *path);
void hand_add_header(hand_source *s, const char *name, const char *text);
void hand_add_option(hand_source *s, const char *option);
/* Defines a macro as a number, or a word. */
void hand_define(hand_source *s, const char *name, int value);
void hand_define_word(hand_source *s, const char *name, const char *value);
/* The image, which ends the source. */
void *hand_load(hand_source *s);
void hand_unload(void *module);
/* Launches a kernel over a grid [x, y, z], which may be empty. */
void hand_launch(void *module, const char *name, const unsigned grid[3], int threads, int shared, void *p, void *maps);

/* Memory that begins with `from`, or with NaN. */
void *hand_device(size_t bytes, const void *from);
void hand_host(void *to, const void *from, size_t bytes);
void hand_release(void *data);
void hand_release_all(void *const *all, size_t count);

/* A tensor's descriptor, whose boxes are of dense elements, in rows of 128 bytes swizzled. */
typedef struct hand_map {
  void *data;
  unsigned axes;
  unsigned long long size[5], stride[4]; /* strides in bytes, but of axis 0 */
  unsigned box[5];
} hand_map;
LuattnTensorMap hand_encode(const hand_map *m, bool bf16);

/* Halves. */
float hand_of_bf16(uint16_t x);
uint16_t hand_to_bf16(float x);

#endif
