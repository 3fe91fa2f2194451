/* arena.h: zeroed bump allocation over a replaceable allocator. One arena per compilation; freed whole. */
#ifndef LUATTN_GEN_ARENA_H
#define LUATTN_GEN_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "luattn/status.h"

typedef struct arena arena;

/* `allocator` may be NULL (malloc); it is copied. NULL on out of memory. */
arena *arena_open(const luattn_allocator *allocator);
/* An arena for what is dropped soon: its memory comes from `from` and goes back there, for the next one, when it is
 * closed, which has to be before `from` is. */
arena *arena_borrow(arena *from);
void arena_close(arena *a);                             /* NULL is fine */
void *arena_new(arena *a, size_t size);                 /* zeroed, aligned for any type; NULL: out of memory */
void *arena_array(arena *a, size_t count, size_t size); /* likewise, with an overflow check */
/* As arena_array, but uninitialised: for large arrays, which threads then fill in parallel. */
void *arena_raw(arena *a, size_t count, size_t size);
/* Gives up what was allocated since a mark, as far as that lies where the arena still allocates. */
typedef struct arena_place {
  void *chunk;
  size_t used;
} arena_place;
arena_place arena_mark(const arena *a);
void arena_rewind(arena *a, arena_place mark);
char *arena_copy(arena *a, const char *s, size_t n); /* n bytes and a terminating 0 */
char *arena_printf(arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether any allocation was refused since the arena was opened. Code that continues after a refused
 * allocation relies on this check at the end: a result that is worse only for lack of memory must not be
 * cached. */
bool arena_failed(const arena *a);
void arena_fail(arena *a); /* as if it had: another arena, on which what lies in this one depends, has */
const luattn_allocator *arena_allocator(const arena *a);

#endif
