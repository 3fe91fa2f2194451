/* state.h: what the C functions that Lua calls share while one spec is run, and the sandbox that they run in.
 *
 * Inside a lua_CFunction an error is a longjmp, so these functions hold no malloc, FILE or lock: memory comes
 * from the arena or from Lua. There is one lua_pcall for each entry of front.h, in sandbox_call.
 */
#ifndef LUATTN_GEN_LUA_STATE_H
#define LUATTN_GEN_LUA_STATE_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "gen/lua/front.h"

typedef enum front_mode {
  FRONT_LOADING, /* the file itself runs: hooks are declared, not called */
  FRONT_TRACING, /* hooks are called with traced values */
  FRONT_NUMBERS  /* hooks are called with plain numbers: the oracle */
} front_mode;

/* Why Lua was refused memory. */
typedef enum front_refusal {
  REFUSED_NOTHING,
  REFUSED_BY_SYSTEM,
  REFUSED_BY_CAP,
  REFUSED_BY_CHURN,
  REFUSED_BY_LENGTH
} front_refusal;

struct replay;
struct front_numbers;

typedef struct front_state {
  arena *a;
  ir *g;
  traced_spec *spec;
  const char *file, *source; /* the file as front_label has it */
  const char *path;          /* in full; while it is loaded */
  size_t source_size;
  front_mode mode;
  /* Limits of the sandbox. */
  size_t memory, churn; /* bytes in use; bytes ever asked for */
  front_refusal refusal;
  long long instructions;
  uint32_t computed_with; /* a bit for each input of which a number was an operand, or a result */
  double cpu_limit;       /* seconds of this thread; 0: the usual limit */
  double deadline;        /* on the thread's clock */
  double wall_deadline;   /* on the wall's, before which the thread's cannot have reached its own */
  int last_line;  /* of the spec, as the instruction hook saw it: the place of an error that has no stack */
  bool no_memory; /* the arena is out of memory */
  /* The hook being called. */
  const char *hook;
  int hook_line;       /* where it was written: the place of errors that no line of the spec is running for */
  int declared_line;   /* of attention {..} */
  uint32_t generation; /* of the call: a value kept from an earlier call is stale */
  struct replay *replay;
  struct front_numbers *numbers; /* FRONT_NUMBERS */
} front_state;

front_state *front_of(lua_State *L);

/* load.c: defines the globals, runs the prelude and the file, and leaves the table of attention {..} on the
 * stack. */
void front_load_file(lua_State *L);

/* Raises `name:line: message`, where the line is the innermost line of the spec that is running. */
int front_raise(lua_State *L, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));
/* Raises a message at a given line of the spec. */
int front_raise_at(lua_State *L, int line, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* A message part that lives in the arena; never NULL. */
const char *front_format(lua_State *L, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A name or a text of the spec as messages show it: at most 64 characters, those that do not print as '?'.
 * The string at `index`; what is no string as front_kind has it. */
const char *front_shown(lua_State *L, int index);
int front_no_memory(lua_State *L) __attribute__((noreturn));
int front_line(lua_State *L);                    /* line of the spec that is running, else hook_line */
const char *front_kind(lua_State *L, int index); /* "a number", "an input", "nil": for messages */

/* "; did you mean 'x'?" for the name nearest to `word`, or "". The result lives in the arena. */
typedef struct front_suggestion {
  const char *word, *best;
  size_t distance;
} front_suggestion;
void front_suggest_start(front_suggestion *s, const char *word);
void front_suggest_try(front_suggestion *s, const char *candidate);
const char *front_suggest_end(lua_State *L, const front_suggestion *s);

/* A file's name as messages and generated code show it: at most 200 characters, the end of a longer path,
 * those that do not print as '?'. NULL: out of memory. */
const char *front_label(arena *a, const char *name);

/* Opens the sandbox: a Lua state whose globals are the standard library of specs and nothing else. */
luattn_status sandbox_open(front_state *s, lua_State **out, luattn_error *err);
void sandbox_close(lua_State *L); /* NULL is fine */
/* Runs f (with no arguments) in protected mode and turns an error into a status and a message. */
luattn_status sandbox_call(lua_State *L, lua_CFunction f, luattn_error *err);
void sandbox_refill(front_state *s);   /* fresh budgets of instructions and of time */
void sandbox_check_time(lua_State *L); /* raises once the time is over: for what may take long in C */

#define DIVIDED_BY_ZERO "; divide by max(n, 1)"

/* The environment that the file and the prelude run in (globals.c). */
void globals_open(lua_State *L);
void globals_push(lua_State *L); /* leaves it on the stack */
int globals_guard_table(
    lua_State *L);               /* a lua_CFunction: gives a table of the spec its guard, and returns it */
void globals_lock(lua_State *L); /* what is defined by now is predefined: a spec cannot redefine it */
bool globals_predefined(lua_State *L, const char *name);
bool globals_defined(lua_State *L, const char *name);

#define CHUNK_SPEC "=(spec)" /* stands for the file's name until the message is complete */
#define CHUNK_PRELUDE "=(luattn)"

#endif
