/* input_dtype.h: classifies the types of extra inputs. */
#ifndef LUATTN_COMMON_INPUT_DTYPE_H
#define LUATTN_COMMON_INPUT_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#include "luattn/image.h"

#define INPUT_DTYPES (LUATTN_INPUT_ANY + 1)

/* Integers are compared, computed with and used as indices; a bool is none of them. */
static inline bool input_is_integer(uint32_t dtype) {
  return dtype == LUATTN_INPUT_I32 || (dtype >= LUATTN_INPUT_I64 && dtype <= LUATTN_INPUT_U8);
}

static inline bool input_is_real(uint32_t dtype) { return !input_is_integer(dtype) && dtype != LUATTN_INPUT_BOOL; }

#endif
