#include "tests/templates/memo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_comment(const char *at) {
  if (at[1] == '/') return at + strcspn(at, "\n");
  const char *end = strstr(at + 2, "*/");
  return end != NULL ? end + 2 : at + strlen(at);
}

static bool is_comment(const char *at) { return at[0] == '/' && (at[1] == '/' || at[1] == '*'); }

/* Behind the string or character that starts at `at`; a separator of digits (1'000) starts none. */
static const char *skip_literal(const char *at) {
  const char quote = *at++;
  while (*at != 0 && *at != quote && *at != '\n') at += at[0] == '\\' && at[1] != 0 ? 2 : 1;
  return *at == quote ? at + 1 : at;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

char *memo_strip(const char *text) {
  char *out = malloc(strlen(text) + 2), *to = out;
  if (out == NULL) return NULL;
  bool gap = false; /* something was left out since the last character that stayed */
  for (const char *at = text; *at != 0;) {
    if (is_blank(*at) || is_comment(at)) {
      at = is_blank(*at) ? at + 1 : skip_comment(at);
      gap = true;
    } else if (*at == '\n') {
      if (to > out && to[-1] != '\n') *to++ = '\n';
      at++, gap = false;
    } else {
      if (gap && to > out && to[-1] != '\n') *to++ = ' ';
      gap = false;
      const bool is_literal = *at == '"' || (*at == '\'' && at[1] != 0 && (at[1] == '\\' || at[2] == '\''));
      const char *end = is_literal ? skip_literal(at) : at + 1;
      memcpy(to, at, (size_t)(end - at));
      to += end - at, at = end;
    }
  }
  *to = 0;
  return out;
}

static bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
         c == '%' || c == '.';
}

typedef struct names {
  const char **name;
  size_t *size;
  int count, room;
} names;

static int find_name(names *n, const char *at, size_t size) {
  for (int i = 0; i < n->count; i++)
    if (n->size[i] == size && memcmp(n->name[i], at, size) == 0) return i;
  if (n->count == n->room) {
    const int room = 2 * n->room + 64;
    const char **name = realloc(n->name, (size_t)room * sizeof *name);
    if (name != NULL) n->name = name;
    size_t *sizes = realloc(n->size, (size_t)room * sizeof *sizes);
    if (sizes != NULL) n->size = sizes;
    if (name == NULL || sizes == NULL) return -1;
    n->room = room;
  }
  n->name[n->count] = at, n->size[n->count] = size;
  return n->count++;
}

char *memo_rename(const char *ptx) {
  names n = {0};
  char *text = memo_strip(ptx), *out = text == NULL ? NULL : malloc(2 * strlen(text) + 16), *to = out;
  for (const char *at = text; out != NULL && *at != 0;) {
    size_t size = 0;
    while (is_word(at[size])) size++;
    if (size < 2 || at[0] != '_' || at[1] != 'Z') {
      size = size == 0 ? 1 : size;
      memcpy(to, at, size);
      to += size;
    } else {
      const int k = find_name(&n, at, size);
      if (k < 0)
        free(out), out = NULL;
      else
        to += sprintf(to, "_Z%d", k);
    }
    at += size;
  }
  if (out != NULL) *to = 0;
  free(text), free(n.name), free(n.size);
  return out;
}

typedef struct walk {
  const memo_file *headers;
  int num;
  bool *taken, all;
} walk;

/* Marks what stripped text includes. */
static bool take_includes(walk *w, const char *text);

static bool take_header(walk *w, int i) {
  if (w->taken[i]) return true;
  w->taken[i] = true;
  char *text = memo_strip(w->headers[i].text);
  const bool ok = text != NULL && take_includes(w, text);
  free(text);
  return ok;
}

static bool take_includes(walk *w, const char *text) {
  for (const char *at = text; at != NULL && *at != 0; at = strchr(at, '\n'), at += at != NULL) {
    if (*at != '#') continue;
    const char *word = at + 1 + strspn(at + 1, " ");
    if (strncmp(word, "include", 7) != 0) continue;
    word += 7 + strspn(word + 7, " ");
    int found = -1;
    const size_t size = *word == '"' ? strcspn(word + 1, "\"\n") : 0;
    for (int i = 0; i < w->num && size > 0; i++)
      if (strlen(w->headers[i].name) == size && memcmp(w->headers[i].name, word + 1, size) == 0) found = i;
    if (found < 0)
      w->all = true;
    else if (!take_header(w, found))
      return false;
  }
  return true;
}

static bool add_stripped(hasher *h, const char *name, const char *text) {
  char *stripped = memo_strip(text);
  if (stripped == NULL) return false;
  hasher_add(h, name, stripped, strlen(stripped));
  free(stripped);
  return true;
}

bool memo_hash_source(const char *source, const memo_file *headers, int num_headers, hash128 *out) {
  hasher h;
  if (!hasher_open(&h)) return false;
  walk w = {headers, num_headers, calloc((size_t)num_headers + 1, sizeof(bool)), false};
  char *text = memo_strip(source);
  bool ok = w.taken != NULL && text != NULL && take_includes(&w, text);
  ok = ok && add_stripped(&h, "source", source);
  for (int i = 0; ok && i < num_headers; i++)
    if (w.all || w.taken[i]) ok = add_stripped(&h, headers[i].name, headers[i].text);
  free(w.taken), free(text);
  *out = hasher_close(&h);
  return ok;
}
