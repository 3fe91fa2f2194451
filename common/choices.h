/* choices.h: what a call chooses besides its tensors: scale, num_splits and skip. For the GPU and the CPU
 * path. */
#ifndef LUATTN_CHOICES_H
#define LUATTN_CHOICES_H

#include <stdbool.h>

#include "luattn/tensors.h"

enum { CHOICES_MAX_SPLITS = 64 };

/* Where a choice is out of range: false, and in *text a message without its place. `is_float64`: whether the
 * pass computes in that, not in float32. Whether a kernel can do what is chosen is another matter. */
bool choices_ok(const luattn_args *args, bool is_float64, char *text, size_t size);

#endif
