/* choices.h: luattn_args of whatever version, and what a call chooses besides its tensors: scale, num_splits,
 * skip and the values of scalars. For the GPU and the CPU path. */
#ifndef LUATTN_CHOICES_H
#define LUATTN_CHOICES_H

#include <stdbool.h>

#include "common/fail.h"
#include "luattn/tensors.h"

enum { CHOICES_MAX_SPLITS = 64, CHOICES_MAX_INPUTS = 12, CHOICES_MAX_SCALARS = 32 };

/* The caller's arguments as this version has them. Errors: LUATTN_INVALID; `place` starts the message. */
luattn_status choices_take(const luattn_args *given, const char *place, luattn_args *out, luattn_error *err);

/* The first of the arguments of packed sequences that is given; NULL: none is. */
const char *choices_packed(const luattn_args *args);

/* As choices_take, where there are no packed sequences yet. Errors: LUATTN_UNSUPPORTED, too. */
luattn_status choices_take_dense(const luattn_args *given, const char *place, luattn_args *out,
                                 luattn_error *err);

/* Where a choice is out of range: false, and in *text a message without its place. `is_float64`: whether the
 * pass computes in that, not in float32. Does not check num_splits in forward, which has none. Whether a
 * kernel can do what is chosen is another matter. */
bool choices_ok(const luattn_args *args, bool is_forward, bool is_float64, char *text, size_t size);

/* The same for the value of a scalar. */
bool choices_scalar_ok(const char *name, double value, bool is_default, bool is_float64, char *text,
                       size_t size);

#endif
