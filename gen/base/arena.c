#include "gen/base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CHUNK = 16 * 1024, LARGEST_CHUNK = 1024 * 1024 };

typedef struct chunk {
  struct chunk *next;
  size_t size, used; /* of the whole allocation, including this header */
} chunk;

struct arena {
  luattn_allocator allocator;
  chunk *chunks; /* the first one is the one being filled */
  size_t next_size;
  bool failed;
  arena *lender; /* NULL: none */
  chunk *spare;  /* what borrowers gave back */
};

static void *default_realloc(void *user, void *ptr, size_t old_size, size_t new_size) {
  (void)user;
  (void)old_size;
  if (new_size == 0) {
    free(ptr);
    return NULL;
  }
  return realloc(ptr, new_size);
}

static size_t aligned(size_t n) { return (n + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1); }

arena *arena_open(const luattn_allocator *allocator) {
  const luattn_allocator standard = {default_realloc, NULL};
  const luattn_allocator use = allocator != NULL ? *allocator : standard;
  arena *a = use.realloc(use.user, NULL, 0, sizeof *a);
  if (a != NULL) *a = (arena){.allocator = use, .chunks = NULL, .next_size = FIRST_CHUNK};
  return a;
}

arena *arena_borrow(arena *from) {
  arena *a = arena_open(&from->allocator);
  if (a != NULL) a->lender = from;
  return a;
}

static void free_chunks(const luattn_allocator *use, chunk *c) {
  for (chunk *next; c != NULL; c = next) {
    next = c->next;
    use->realloc(use->user, c, c->size, 0);
  }
}

static void give_back(arena *lender, chunk *c) {
  for (chunk *next; c != NULL; c = next) {
    next = c->next;
    c->next = lender->spare;
    lender->spare = c;
  }
}

void arena_close(arena *a) {
  if (a == NULL) return;
  const luattn_allocator use = a->allocator;
  for (int i = 0; i < 2; i++) {
    chunk *const c = i == 0 ? a->chunks : a->spare;
    if (a->lender != NULL)
      give_back(a->lender, c);
    else
      free_chunks(&use, c);
  }
  use.realloc(use.user, a, sizeof *a, 0);
}

/* A chunk of at least `size` bytes that was given back to a lender, or to one of which that borrows; NULL: none. */
static chunk *take_spare(arena *a, size_t size) {
  for (arena *lender = a->lender; lender != NULL; lender = lender->lender) {
    for (chunk **at = &lender->spare; *at != NULL; at = &(*at)->next) {
      chunk *c = *at;
      if (c->size < size) continue;
      *at = c->next;
      return c;
    }
  }
  return NULL;
}

/* A large block gets a chunk of its own, after the one being filled, so that the rest of that one stays
 * usable. */
static void *new_chunk(arena *a, size_t need) {
  const size_t header = aligned(sizeof(chunk));
  if (need > SIZE_MAX - header) return NULL;
  const bool alone = a->chunks != NULL && need >= a->next_size / 2;
  size_t size = need + header;
  if (!alone && size < a->next_size) size = a->next_size;
  chunk *c = take_spare(a, size);
  if (c != NULL)
    size = c->size;
  else
    c = a->allocator.realloc(a->allocator.user, NULL, 0, size);
  if (c == NULL) return NULL;
  *c = (chunk){.next = NULL, .size = size, .used = header + need};
  if (alone) {
    c->next = a->chunks->next;
    a->chunks->next = c;
  } else {
    c->next = a->chunks;
    a->chunks = c;
    if (a->next_size < LARGEST_CHUNK) a->next_size *= 2;
  }
  return (char *)c + header;
}

static void *take(arena *a, size_t size, size_t *bytes) {
  if (size > SIZE_MAX - alignof(max_align_t)) {
    a->failed = true;
    return NULL;
  }
  const size_t need = aligned(size == 0 ? 1 : size);
  chunk *c = a->chunks;
  void *p = NULL;
  if (c != NULL && need <= c->size - c->used) {
    p = (char *)c + c->used;
    c->used += need;
  } else {
    p = new_chunk(a, need);
  }
  if (p == NULL) a->failed = true;
  *bytes = need;
  return p;
}

void *arena_new(arena *a, size_t size) {
  size_t bytes;
  void *p = take(a, size, &bytes);
  return p == NULL ? NULL : memset(p, 0, bytes);
}

bool arena_failed(const arena *a) { return a->failed; }

void arena_fail(arena *a) { a->failed = true; }

void *arena_array(arena *a, size_t count, size_t size) {
  return arena_new(a, size != 0 && count > SIZE_MAX / size ? SIZE_MAX : count * size);
}

void *arena_raw(arena *a, size_t count, size_t size) {
  size_t bytes;
  return take(a, size != 0 && count > SIZE_MAX / size ? SIZE_MAX : count * size, &bytes);
}

arena_place arena_mark(const arena *a) { return (arena_place){a->chunks, a->chunks == NULL ? 0 : a->chunks->used}; }

void arena_rewind(arena *a, arena_place mark) {
  if (a->chunks != NULL && a->chunks == mark.chunk) a->chunks->used = mark.used;
}

char *arena_copy(arena *a, const char *s, size_t n) {
  char *p = arena_new(a, n < SIZE_MAX ? n + 1 : n);
  if (p != NULL && n > 0) memcpy(p, s, n);
  return p;
}

char *arena_printf(arena *a, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  const int n = vsnprintf(NULL, 0, fmt, args);
  char *p = n < 0 ? NULL : arena_new(a, (size_t)n + 1);
  if (p != NULL) vsnprintf(p, (size_t)n + 1, fmt, again);
  va_end(again);
  va_end(args);
  return p;
}

const luattn_allocator *arena_allocator(const arena *a) { return &a->allocator; }
