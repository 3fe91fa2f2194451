/* state.h: the state of one run of a spec that C functions called by Lua share, and the sandbox that they run
 * in.
 *
 * Inside a lua_CFunction an error is a longjmp, so these functions hold no malloc, FILE or lock: memory comes
 * from the arena or from Lua. Each function of front.h makes one lua_pcall, in sandbox_call.
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

/* The limit for which Lua was refused memory. */
typedef enum front_refusal {
  REFUSED_NOTHING,
  REFUSED_BY_SYSTEM,
  REFUSED_BY_CAP,
  REFUSED_BY_CHURN,
  REFUSED_BY_LENGTH
} front_refusal;

struct replay;
struct front_numbers;

enum { FRONT_MAX_SELECT_HOOKS = 16 };

typedef struct front_state {
  arena *a;
  ir *g;
  traced_spec *spec;
  const char *file, *source; /* the file, as front_label formats it */
  const char *path;          /* the full path, while it is loaded */
  size_t source_size;
  front_mode mode;
  /* Limits of the sandbox. */
  size_t memory, churn; /* bytes in use; bytes ever asked for */
  front_refusal refusal;
  long long instructions;
  uint32_t computed_with; /* a bit for each input of which a number was an operand, or a result */
  double cpu_limit;       /* seconds of this thread; 0: the usual limit */
  double deadline;        /* on the thread's clock */
  double wall_deadline;   /* on the wall clock; before it the thread's clock cannot have reached its own */
  int last_line;          /* of the spec, from the instruction hook: the line of an error that has no stack */
  bool no_memory;         /* the arena is out of memory */
  /* The running hook. */
  const char *hook;
  int hook_line;       /* its line, for errors while no line of the spec is running */
  int declared_line;   /* of attention {..} */
  int field_line;      /* of the field of a table that is being checked, which an error names, or 0 */
  uint32_t generation; /* of this call: a value kept from an earlier call is stale */
  struct replay *replay;
  bool has_conditions; /* the text has conditions of where() that can be functions */
  bool all_select;     /* they are, and where() gives select nodes, in every hook, or in these: */
  const char *select_hook[FRONT_MAX_SELECT_HOOKS];
  int num_select_hooks;
  bool selects;                  /* in the running hook */
  const char *wants_selects;     /* the hook whose comparisons branch too often without that; NULL: none */
  struct front_numbers *numbers; /* FRONT_NUMBERS */
} front_state;

front_state *front_of(lua_State *L);

/* load.c: defines the globals, runs the prelude and the file, and leaves the table of attention {..} on the
 * stack. */
void front_load_file(lua_State *L);

/* Raises `name:line: message` with the innermost running line of the spec. */
int front_raise(lua_State *L, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));
/* Raises a message at a given line of the spec. */
int front_raise_at(lua_State *L, int line, const char *fmt, ...) __attribute__((noreturn, format(printf, 3, 4)));
/* A part of a message, in the arena; never NULL. */
const char *front_format(lua_State *L, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A name or a text of the spec for messages: at most 64 characters, with '?' for those that do not print. The
 * string at `index`; other values as front_kind. */
const char *front_shown(lua_State *L, int index);
int front_no_memory(lua_State *L) __attribute__((noreturn));
int front_line(lua_State *L);                    /* the running line of the spec, else hook_line */
const char *front_kind(lua_State *L, int index); /* "a number", "an input", "nil": for messages */

/* "; did you mean 'x'?" for the name nearest to `word`, or "". In the arena. */
typedef struct front_suggestion {
  const char *word, *best;
  size_t distance;
} front_suggestion;
void front_suggest_start(front_suggestion *s, const char *word);
void front_suggest_try(front_suggestion *s, const char *candidate);
const char *front_suggest_end(lua_State *L, const front_suggestion *s);

/* A file's name for messages and generated code: at most 200 characters, the end of a longer path, with '?'
 * for those that do not print. NULL: out of memory. */
const char *front_label(arena *a, const char *name);

/* Opens the sandbox: a Lua state whose globals are the standard library of specs and nothing else. */
luattn_status sandbox_open(front_state *s, lua_State **out, luattn_error *err);
void sandbox_close(lua_State *L); /* NULL is fine */
/* Runs f (with no arguments) in protected mode and turns an error into a status and a message. */
luattn_status sandbox_call(lua_State *L, lua_CFunction f, luattn_error *err);
void sandbox_refill(front_state *s);   /* renews the budgets of instructions and of time */
void sandbox_check_time(lua_State *L); /* raises once the time is over; for C functions that may take long */

#define DIVIDED_BY_ZERO "; divide by max(n, 1)"

/* Opens the environment that the file and the prelude run in (globals.c, names.h). */
void globals_open(lua_State *L);
int globals_guard_table(lua_State *L); /* a lua_CFunction: gives a table of the spec its guard, and returns it */

#define CHUNK_SPEC "=(spec)" /* replaced by the file's name when the message is complete */
#define CHUNK_PRELUDE "=(luattn)"

#endif
