/* struct_size.h: structs that callers give with their size, of this or of another version of luattn. */
#ifndef LUATTN_STRUCT_SIZE_H
#define LUATTN_STRUCT_SIZE_H

#include <stdbool.h>
#include <stddef.h>

/* A caller's struct of `given` bytes can be read as the one of `known` bytes: it has all of its fields, and what a
 * later version added behind them is zero, so that nothing is asked for that this one would pass over. */
static inline bool struct_size_ok(const void *s, size_t given, size_t known) {
  const unsigned char *byte = s;
  if (given < known || given > known + 4096) return false;
  for (size_t i = known; i < given; i++)
    if (byte[i] != 0) return false;
  return true;
}

#endif
