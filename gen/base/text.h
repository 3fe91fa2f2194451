/* text.h: growable text with indentation, for emitted code and dumps. Failure is sticky: check text_failed() at the
 * end. */
#ifndef LUATTN_GEN_TEXT_H
#define LUATTN_GEN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "gen/base/arena.h"

typedef struct text {
  arena *a;
  char *data; /* 0-terminated once something was added */
  size_t size, capacity;
  int indent; /* levels of two spaces, put at the start of each line */
  bool failed;
} text;

void text_init(text *t, arena *a);
void text_add(text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_bytes(text *t, const char *s, size_t n);
void text_insert(text *t, size_t at, const char *s); /* before the text at `at`, unindented */
const char *text_get(const text *t);                 /* "" if empty; NULL if it failed */
bool text_failed(const text *t);

#endif
