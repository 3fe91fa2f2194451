#include "runtime/parts/room.h"

void *room_take(room *w, size_t elem, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t factor[] = {a, b, c, d};
  size_t bytes = elem;
  for (int i = 0; i < 4; ++i) {
    if (__builtin_mul_overflow(bytes, (size_t)factor[i], &bytes) || bytes > SIZE_MAX / 2) w->overflow = true;
    if (w->overflow) return NULL;
  }
  const size_t start = w->used;
  if (bytes > SIZE_MAX / 2 - start - 255) {
    w->overflow = true;
    return NULL;
  }
  w->used = start + (bytes + 255) / 256 * 256;
  return w->base != 0 ? (void *)(w->base + start) : NULL;
}
