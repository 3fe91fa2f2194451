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

/* Returns the end of the string or character literal at `at`. A digit separator (1'000) starts no literal. */
static const char *skip_literal(const char *at) {
  const char quote = *at++;
  while (*at != 0 && *at != quote && *at != '\n') at += at[0] == '\\' && at[1] != 0 ? 2 : 1;
  return *at == quote ? at + 1 : at;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

char *memo_strip(const char *text) {
  char *out = malloc(strlen(text) + 2), *to = out;
  if (out == NULL) return NULL;
  bool gap = false; /* something was dropped since the last kept character */
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

/* Returns whether the word that ends at `end` occurs elsewhere in the text. */
static bool is_used(const char *text, const char *word, const char *end) {
  const size_t size = (size_t)(end - word);
  char name[1024];
  if (size >= sizeof name) return true;
  memcpy(name, word, size);
  name[size] = 0;
  for (const char *at = strstr(text, name); at != NULL; at = strstr(at + 1, name))
    if (at != word && (at == text || !is_word(at[-1])) && !is_word(at[size])) return true;
  return false;
}

/* Removes definitions of global variables that no other line mentions, such as constants of headers. */
static bool drop_unused(char *text) {
  char *kept = malloc(strlen(text) + 1), *to = kept;
  if (kept == NULL) return false;
  for (const char *at = text; *at != 0;) {
    const char *line_end = at + strcspn(at, "\n"), *end = at + strcspn(at, "=[;\n"),
               *next = line_end + (*line_end != 0);
    while (end > at && is_blank(end[-1])) end--;
    const char *word = end;
    while (word > at && is_word(word[-1])) word--;
    const bool is_global = strncmp(at, ".global ", 8) == 0 && word > at + 7 && word < end;
    if (!is_global || is_used(text, word, end)) {
      memcpy(to, at, (size_t)(next - at));
      to += next - at;
    }
    at = next;
  }
  *to = 0;
  strcpy(text, kept);
  free(kept);
  return true;
}

typedef struct piece {
  const char *at, *name; /* name: the kernel's name, up to the end of the line */
  size_t size;
} piece;

static int by_name(const void *a, const void *b) {
  const piece *x = a, *y = b;
  return strcmp(x->name, y->name);
}

static const char *kernel_at(const char *line) {
  if (strncmp(line, ".visible ", 9) == 0) line += 9;
  return strncmp(line, ".entry ", 7) == 0 ? line + 7 : NULL;
}

/* Returns the end of a kernel, which is a brace on its own line, or NULL if there is none. */
static const char *end_of_kernel(const char *at) {
  int depth = 0;
  for (; *at != 0; at++) {
    depth += *at == '{';
    if (*at == '}' && --depth == 0) return at + 1 + (at[1] == '\n');
  }
  return NULL;
}

enum { MAX_KERNELS = 64 };

/* Moves kernels to the end, sorted by name, because ptxas compiles each separately. False: out of memory. */
static bool sort_kernels(char *text) {
  piece kernel[MAX_KERNELS];
  int count = 0;
  char *sorted = malloc(strlen(text) + 1), *to = sorted;
  if (sorted == NULL) return false;
  for (const char *at = text; *at != 0;) {
    const char *name = kernel_at(at), *end = name != NULL && count < MAX_KERNELS ? end_of_kernel(at) : NULL;
    const char *next = at + strcspn(at, "\n");
    next += *next != 0;
    if (end != NULL) {
      kernel[count++] = (piece){at, name, (size_t)(end - at)};
      at = end;
    } else {
      memcpy(to, at, (size_t)(next - at));
      to += next - at, at = next;
    }
  }
  qsort(kernel, (size_t)count, sizeof *kernel, by_name);
  for (int i = 0; i < count; to += kernel[i++].size) memcpy(to, kernel[i].at, kernel[i].size);
  *to = 0;
  strcpy(text, sorted);
  free(sorted);
  return true;
}

/* For a word that contains the number of its function, such as $L__BB12_3 and __local_depot12, returns where
 * the number begins; otherwise 0. */
static size_t numbered(const char *word) {
  static const char *const starts[] = {"$L__BB", "__local_depot"};
  for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
    if (strncmp(word, starts[i], strlen(starts[i])) == 0) return strlen(starts[i]);
  return 0;
}

char *memo_rename(const char *ptx) {
  names n = {0};
  char *text = memo_strip(ptx);
  if (text == NULL || !drop_unused(text) || !sort_kernels(text)) return free(text), NULL;
  char *out = malloc(2 * strlen(text) + 16), *to = out;
  for (const char *at = text; out != NULL && *at != 0;) {
    size_t size = 0, skip = 0;
    while (is_word(at[size])) size++;
    const size_t number = numbered(at);
    if (number > 0) skip = strspn(at + number, "0123456789");
    if (number > 0) {
      memcpy(to, at, number);
      memcpy(to + number, at + number + skip, size - number - skip);
      to += size - skip;
    } else if (size < 2 || at[0] != '_' || at[1] != 'Z') {
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

/* Marks the headers that stripped text includes. */
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
