/* load.c: runs the text of a spec, up to the table of its attention {..}. */
#include <string.h>

#include "gen/lua/declare.h"
#include "gen/lua/functions.h"
#include "gen/lua/input.h"
#include "gen/lua/grid_positions.h"
#include "gen/lua/library.h"
#include "gen/lua/names.h"
#include "gen/lua/prelude.h"
#include "gen/lua/refuse.h"
#include "gen/lua/scan.h"
#include "gen/lua/value.h"

enum { PIECE_MAX = 256 };

typedef struct piece_reader {
  const char *at, *end;
  int line;
  bool counts;
} piece_reader;

/* Gives the parser at most one line at a time: some sources take it quadratic time, which the instruction
 * hook does not see, and some of its errors have no line. */
static const char *read_piece(lua_State *L, void *user, size_t *size) {
  piece_reader *r = user;
  const char *piece = r->at;
  *size = (size_t)(r->end - piece);
  if (*size > PIECE_MAX) *size = PIECE_MAX;
  const char *end = *size > 0 ? memchr(piece, '\n', *size) : NULL;
  if (end != NULL) *size = (size_t)(end + 1 - piece);
  r->at += *size;
  if (r->counts) front_of(L)->hook_line = r->line;
  r->line += end != NULL;
  sandbox_check_time(L);
  return *size > 0 ? piece : NULL;
}

/* Leaves the chunk as a function, or raises its syntax error. */
static void load_chunk(lua_State *L, const char *source, size_t size, const char *name) {
  piece_reader r = {.at = source, .end = source + size, .line = 1, .counts = strcmp(name, CHUNK_SPEC) == 0};
  if (lua_load(L, read_piece, &r, name, "t") != LUA_OK) lua_error(L);
  front_of(L)->hook_line = 0;
}

/* Loads a chunk and runs it in the environment of specs, with the `count` values at the top as its arguments, which
 * have no global names. Leaves its first result. */
static void run_chunk(lua_State *L, const char *source, size_t size, const char *name, int count) {
  load_chunk(L, source, size, name);
  names_push(L);
  lua_setupvalue(L, -2, 1); /* _ENV */
  lua_insert(L, -1 - count);
  lua_call(L, count, 1);
}

/* Runs the file with a guard on each of its tables, and leaves what it returns. The file becomes the body of
 * a function, next to which the guard is a local whose name the file does not contain. */
static void run_guarded(lua_State *L, const char *source, size_t size) {
  front_state *s = front_of(L);
  static const char *const own[] = {SCAN_GUARD, SCAN_TRUTH};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    const int line = scan_find_name(source, size, own[i]);
    if (line > 0) front_raise_at(L, line, "'%s' is a name of luattn's own; choose another", own[i]);
  }
  text guarded, conditions, truths;
  text_init(&conditions, s->a);
  text_init(&truths, s->a);
  if (!scan_truths(s->a, source, size, &truths)) {
    if (text_failed(&truths) || arena_failed(s->a)) front_no_memory(L);
    front_raise_at(L, 0, "brackets and blocks are nested too deeply");
  }
  source = text_get(&truths), size = truths.size;
  s->has_conditions = scan_conditions(source, size, &conditions) > 0;
  if (text_failed(&conditions)) front_no_memory(L);
  const bool functions = (s->all_select || s->num_select_hooks > 0) && s->has_conditions;
  if (functions) source = text_get(&conditions), size = conditions.size;
  text_init(&guarded, s->a);
  text_add(&guarded, "local %s, %s%s = ... return function(...) ", SCAN_GUARD, SCAN_TRUTH,
           functions ? ", " SCAN_CONDITION : "");
  if (!scan_guard_tables(source, size, &guarded)) {
    if (text_failed(&guarded)) front_no_memory(L);
    front_raise_at(L, 0, "table constructors are nested too deeply");
  }
  text_add(&guarded, "\nend"); /* the last line may be a comment */
  if (text_failed(&guarded)) front_no_memory(L);
  lua_pushcfunction(L, globals_guard_table);
  lua_pushcfunction(L, library_truth);
  lua_pushcfunction(L, functions_condition);
  run_chunk(L, text_get(&guarded), guarded.size, CHUNK_SPEC, 3);
  lua_call(L, 0, 1);
}

void front_load_file(lua_State *L) {
  front_state *s = front_of(L);
  globals_open(L);
  value_open(L);
  places_open(L);
  refuse_open(L);
  input_open(L);
  run_chunk(L, (const char *)front_prelude, front_prelude_size, CHUNK_PRELUDE, library_push(L));
  lua_pop(L, 1);
  names_lock(L);

  const char *source = s->source;
  size_t size = s->source_size;
  if (size >= 3 && memcmp(source, "\xef\xbb\xbf", 3) == 0) source += 3, size -= 3; /* byte order mark */
  if (size > 0 && *source == LUA_SIGNATURE[0]) front_raise_at(L, 0, "the file is Lua bytecode; a spec is Lua text");
  load_chunk(L, source, size, CHUNK_SPEC);
  lua_pop(L, 1); /* the syntax is right, so the text may be scanned by tokens */

  char message[256];
  int line = scan_equality(source, size, message, sizeof message);
  if (line == 0) line = scan_numbers(source, size, message, sizeof message);
  if (line > 0) front_raise_at(L, line, "%s", message);
  run_guarded(L, source, size);
  declare_push(L, lua_gettop(L));
}
