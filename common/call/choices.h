/* choices.h: reads luattn_args of any version, and what a call chooses besides its tensors: scale,
 * num_splits, skip and the values of scalars. Shared by the GPU and the CPU path. */
#ifndef LUATTN_CHOICES_H
#define LUATTN_CHOICES_H

#include <stdbool.h>

#include "common/fail.h"
#include "common/call/scalar_range.h"
#include "luattn/tensors.h"

enum { CHOICES_MAX_SPLITS = 64, CHOICES_MAX_INPUTS = 12, CHOICES_MAX_SCALARS = 32 };

/* The caller's arguments as this version has them, which have no tangents. Errors: LUATTN_INVALID; `place` starts the
 * message. */
luattn_status choices_take(const luattn_args *given, const char *place, luattn_args *out, luattn_error *err);

/* As choices_take, but refuses packed sequences: LUATTN_UNSUPPORTED. */
luattn_status choices_take_dense(const luattn_args *given, const char *place, luattn_args *out, luattn_error *err);

/* As choices_take, of a call that computes tangents, which *tangents has then. Errors besides: LUATTN_UNSUPPORTED for
 * what has no forward mode. */
luattn_status choices_take_tangents(const luattn_args *given, const char *place, luattn_args *out,
                                    luattn_tangents *tangents, luattn_error *err);

/* Makes the arguments of a backward call those of its tangents: it writes tangents where gradients would be, and neither
 * reads nor writes o, lse and saved, but for o and lse that come with their tangents. inputs: room for CHOICES_MAX_INPUTS, as long as *args is used. */
void choices_write_tangents(luattn_args *args, const luattn_tangents *tangents, luattn_input *inputs);

/* Returns false where a choice is out of range, with a message without its place in *text. `is_float64`: the
 * pass computes in float64, not float32. num_splits is not checked in forward, which has none. Whether a
 * kernel supports the choices, and those for which it is compiled (CALL_CHOICE in abi/kernel_facts.def), are checked
 * elsewhere. */
bool choices_ok(const luattn_args *args, bool is_forward, bool is_float64, char *text, size_t size);

/* The same for the value of a scalar. range: what the spec takes it for; NULL: anything. */
bool choices_scalar_ok(const char *name, double value, const scalar_range *range, bool is_default, bool is_float64,
                       char *text, size_t size);

/* Returns seed and offset of a call that draws random numbers, in *out, or false if it has none, with a message as
 * above. */
bool choices_random(const luattn_args *args, luattn_random *out, char *text, size_t size);

#endif
