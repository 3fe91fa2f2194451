#include "gen/base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void text_init(text *t, arena *a) { *t = (text){.a = a}; }

static bool reserve(text *t, size_t more) {
  if (t->failed) return false;
  if (more > SIZE_MAX / 2 - t->size - 1) return !(t->failed = true);
  const size_t need = t->size + more + 1;
  if (need <= t->capacity) return true;
  size_t capacity = t->capacity == 0 ? 256 : t->capacity;
  while (capacity < need) capacity *= 2;
  char *data = arena_new(t->a, capacity);
  if (data == NULL) return !(t->failed = true);
  if (t->size > 0) memcpy(data, t->data, t->size);
  t->data = data;
  t->capacity = capacity;
  return true;
}

/* Appends without handling line breaks. */
static void append(text *t, const char *s, size_t n) {
  if (n == 0 || !reserve(t, n)) return;
  memcpy(t->data + t->size, s, n);
  t->size += n;
  t->data[t->size] = 0;
}

void text_bytes(text *t, const char *s, size_t n) {
  while (n > 0) {
    const bool line_start = t->size == 0 || t->data[t->size - 1] == '\n';
    if (line_start && s[0] != '\n')
      for (int i = 0; i < t->indent; ++i) append(t, "  ", 2);
    const char *end = memchr(s, '\n', n);
    const size_t length = end == NULL ? n : (size_t)(end - s) + 1;
    append(t, s, length);
    if (t->failed) return;
    s += length;
    n -= length;
  }
}

void text_add(text *t, const char *fmt, ...) {
  char small[512];
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  const int n = vsnprintf(small, sizeof small, fmt, args);
  if (n < 0) {
    t->failed = true;
  } else if ((size_t)n < sizeof small) {
    text_bytes(t, small, (size_t)n);
  } else {
    char *large = arena_new(t->a, (size_t)n + 1);
    if (large == NULL) {
      t->failed = true;
    } else {
      vsnprintf(large, (size_t)n + 1, fmt, again);
      text_bytes(t, large, (size_t)n);
    }
  }
  va_end(again);
  va_end(args);
}

void text_insert(text *t, size_t at, const char *s) {
  const size_t n = strlen(s);
  if (!reserve(t, n)) return;
  memmove(t->data + at + n, t->data + at, t->size - at + 1);
  memcpy(t->data + at, s, n);
  t->size += n;
}

const char *text_get(const text *t) {
  if (t->failed) return NULL;
  return t->data == NULL ? "" : t->data;
}

bool text_failed(const text *t) { return t->failed; }
