/* dtype_text.h: names an element type of DLPack in messages. */
#ifndef LUATTN_DTYPE_TEXT_H
#define LUATTN_DTYPE_TEXT_H

#include "luattn/tensors.h"

#include <stddef.h>

enum { DTYPE_TEXT_SIZE = 48 }; /* the longest, with its end */

/* "float32", "int64", "float8_e4m3fn", "float32x4" of four lanes, "unknown8" of a code that DLPack does not have. */
void dtype_text(DLDataType dtype, char *text, size_t size);

#endif
