/* room.h: a bump allocator over memory that the caller owns: a launch's workspace. */
#ifndef LUATTN_RUNTIME_ROOM_H
#define LUATTN_RUNTIME_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct room {
  uintptr_t base; /* 0: only measures */
  size_t used;
  bool overflow; /* more than size_t holds was asked for */
} room;

/* Takes a * b * c * d elements of `elem` bytes, at a multiple of 256 behind the base. NULL: there is no memory, or it
 * overflows. */
void *room_take(room *w, size_t elem, int64_t a, int64_t b, int64_t c, int64_t d);

#endif
