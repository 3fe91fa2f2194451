/* sandbox.c: a Lua state with a memory cap and budgets of instructions and of time; turns a Lua error into a
 * status. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/fail.h"
#include "gen/lua/state.h"
#include "gen/lua/syntax.h"

#define MEMORY_CAP_MIB 64
#define CHURN_CAP_GIB 1  /* copying strings for ever takes time but no instructions */
#define STRING_CAP_MIB 4 /* so that a C function handles one string within milliseconds */
#define CPU_SECONDS 10
#define INSTRUCTION_BUDGET 20000000LL
#define INSTRUCTIONS_A_CHECK 100
#define SHOWN_MAX 64
#define LABEL_MAX 200

front_state *front_of(lua_State *L) {
  front_state *s;
  memcpy(&s, lua_getextraspace(L), sizeof s);
  return s;
}

static void *sandbox_realloc(void *user, void *ptr, size_t old_size, size_t new_size) {
  front_state *s = user;
  const luattn_allocator *allocator = arena_allocator(s->a);
  const size_t kind = ptr == NULL ? old_size : LUA_TNIL; /* Lua passes the kind of a new object as its size */
  if (ptr == NULL) old_size = 0;
  if (new_size > old_size) {
    const size_t more = new_size - old_size;
    if (kind == LUA_TSTRING && new_size > (size_t)STRING_CAP_MIB << 20) {
      s->refusal = REFUSED_BY_LENGTH;
      return NULL;
    }
    if (more > ((size_t)MEMORY_CAP_MIB << 20) - s->memory) {
      s->refusal = REFUSED_BY_CAP;
      return NULL;
    }
    if (s->churn > (size_t)CHURN_CAP_GIB << 30) {
      s->refusal = REFUSED_BY_CHURN;
      return NULL;
    }
    s->churn += new_size;
  }
  void *p = allocator->realloc(allocator->user, ptr, old_size, new_size);
  if (p == NULL && new_size > 0) {
    s->refusal = REFUSED_BY_SYSTEM;
    return NULL;
  }
  s->memory = s->memory - old_size + new_size;
  return p;
}

/* The line of the innermost frame of the spec, or 0. */
static int running_line(lua_State *L) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame); level++) {
    lua_getinfo(L, "Sl", &frame);
    if (strcmp(frame.source, CHUNK_SPEC) == 0 && frame.currentline > 0) return frame.currentline;
  }
  return 0;
}

int front_line(lua_State *L) {
  const front_state *s = front_of(L);
  const int line = s->field_line > 0 ? s->field_line : running_line(L);
  return line > 0 ? line : s->hook_line;
}

static double seconds(clockid_t clock) {
  struct timespec t;
  if (clock_gettime(clock, &t) != 0) return 0;
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* C functions take time without Lua instructions, so clocks are read besides the count. The thread's clock
 * never runs faster than the wall clock, which needs no system call: until the wall clock has passed the
 * deadline, only that is read. */
void sandbox_check_time(lua_State *L) {
  const front_state *s = front_of(L);
  if (seconds(CLOCK_MONOTONIC) <= s->wall_deadline) return;
  if (seconds(CLOCK_THREAD_CPUTIME_ID) > s->deadline) {
    front_raise(L, "time budget: the spec ran for more than %g s; bound its loops, and keep its tables short",
                s->cpu_limit);
  }
}

static void check_budget(lua_State *L, lua_Debug *event) {
  (void)event;
  front_state *s = front_of(L);
  const int line = running_line(L);
  if (line > 0) s->last_line = line;
  s->instructions -= INSTRUCTIONS_A_CHECK;
  if (s->instructions < 0) {
    front_raise(L, "instruction budget: the spec ran more than %lld Lua instructions; bound its loops",
                INSTRUCTION_BUDGET);
  }
  sandbox_check_time(L);
}

/* The budget of time is renewed at most every hundredth of it: hooks called for each score would otherwise
 * read the thread's clock, a system call, each time. */
void sandbox_refill(front_state *s) {
  if (s->cpu_limit <= 0) s->cpu_limit = CPU_SECONDS;
  s->instructions = INSTRUCTION_BUDGET;
  const double wall_deadline = seconds(CLOCK_MONOTONIC) + s->cpu_limit;
  if (wall_deadline - s->wall_deadline < s->cpu_limit / 100) return;
  s->deadline = seconds(CLOCK_THREAD_CPUTIME_ID) + s->cpu_limit;
  s->wall_deadline = wall_deadline;
}

typedef struct message_text {
  char text[sizeof((luattn_error *)0)->message];
} message_text;

static void write_message(message_text *m, int line, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
static void write_message(message_text *m, int line, const char *fmt, va_list args) {
  const int used =
      line > 0 ? snprintf(m->text, sizeof m->text, "(spec):%d: ", line) : snprintf(m->text, sizeof m->text, "(spec): ");
  if (used > 0) vsnprintf(m->text + used, sizeof m->text - (size_t)used, fmt, args);
}

int front_raise(lua_State *L, const char *fmt, ...) {
  message_text m;
  va_list args;
  va_start(args, fmt);
  write_message(&m, front_line(L), fmt, args);
  va_end(args);
  lua_pushstring(L, m.text);
  lua_error(L);
  __builtin_unreachable();
}

int front_raise_at(lua_State *L, int line, const char *fmt, ...) {
  message_text m;
  va_list args;
  va_start(args, fmt);
  write_message(&m, line, fmt, args);
  va_end(args);
  lua_pushstring(L, m.text);
  lua_error(L);
  __builtin_unreachable();
}

const char *front_format(lua_State *L, const char *fmt, ...) {
  char text[512];
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  const char *copy = n < 0 ? NULL : arena_copy(front_of(L)->a, text, strlen(text));
  if (copy == NULL) front_no_memory(L);
  return copy;
}

static bool is_inside_utf8(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

static void clean(char *text) {
  for (; *text != '\0'; text++) {
    if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
  }
}

const char *front_shown(lua_State *L, int index) {
  size_t size;
  if (lua_type(L, index) != LUA_TSTRING) return front_kind(L, index);
  const char *name = lua_tolstring(L, index, &size);
  char text[SHOWN_MAX + 3] = "";
  size_t shown = size > SHOWN_MAX ? SHOWN_MAX : size;
  while (shown < size && shown > 0 && is_inside_utf8(name[shown])) shown--;
  for (size_t i = 0; i < shown; i++) text[i] = name[i] != '\0' ? name[i] : '?';
  if (shown < size) memcpy(text + shown, "..", 3);
  clean(text);
  return front_format(L, "%s", text);
}

const char *front_label(arena *a, const char *name) {
  const size_t size = strlen(name);
  const char *tail = size > LABEL_MAX ? name + size - LABEL_MAX : name;
  while (tail > name && is_inside_utf8(*tail)) tail++;
  char *label = arena_printf(a, "%s%s", tail > name ? ".." : "", tail);
  if (label != NULL) clean(label);
  return label;
}

int front_no_memory(lua_State *L) {
  front_of(L)->no_memory = true;
  lua_pushnil(L); /* allocates nothing */
  lua_error(L);
  __builtin_unreachable();
}

const char *front_kind(lua_State *L, int index) {
  if (lua_isnoneornil(L, index)) return "nil";
  if (luaL_getmetafield(L, index, "__name") == LUA_TSTRING) {
    const char *name = lua_tostring(L, -1); /* anchored by the metatable */
    lua_pop(L, 1);
    return front_format(L, "%s %s", *name == 'i' ? "an" : "a", name);
  }
  return front_format(L, "a %s", luaL_typename(L, index));
}

luattn_status sandbox_open(front_state *s, lua_State **out, luattn_error *err) {
  sandbox_refill(s);
  lua_State *L = lua_newstate(sandbox_realloc, s);
  if (L == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", s->file);
  memcpy(lua_getextraspace(L), &s, sizeof s);
  lua_sethook(L, check_budget, LUA_MASKCOUNT, INSTRUCTIONS_A_CHECK);
  *out = L;
  return LUATTN_OK;
}

void sandbox_close(lua_State *L) {
  if (L != NULL) lua_close(L);
}

/* Completes Lua's own messages: they say "a nil value" where a traced value is meant. */
static const char *hint(const front_state *s, const char *message) {
  if (strstr(message, "'for' limit") != NULL || strstr(message, "'for' initial value") != NULL) {
    return "; a loop cannot run to a traced value: loop to a constant and decide inside";
  }
  if (strstr(message, "number expected, got traced number") != NULL) {
    return "; it needs a number that is known now, and a traced one is not: compute with + - * / // % ^, "
           "floor, exp, sin, tanh, ..";
  }
  if (strstr(message, "a nil value (global '") != NULL) /* an undefined name is an error before its use */
    return "; _ENV was replaced by a table without that name";
  if (strstr(message, "nested too deeply") != NULL) return ""; /* the handler itself ran out of stack */
  if (strstr(message, "C stack overflow") != NULL) return "; brackets or calls are nested too deeply";
  if (strstr(message, "stack overflow") != NULL) return "; a function calls itself without end";
  if (strstr(message, "attempt to perform 'n") != NULL || strstr(message, "divide by zero") != NULL)
    return DIVIDED_BY_ZERO;
  const char *found = syntax_hint(s->source, s->source_size, message);
  return found != NULL ? found : "";
}

/* Message handler: gives every error a line of the spec. Errors inside the prelude carry the prelude's line,
 * which says nothing to a user, so the caller's line replaces it. */
static int complete_message(lua_State *L) {
  const front_state *s = front_of(L);
  if (s->no_memory) return 1;
  const int line = front_line(L);
  const char *place = line > 0 ? lua_pushfstring(L, "(spec):%d: ", line) : lua_pushliteral(L, "(spec): ");
  if (lua_type(L, 1) != LUA_TSTRING) {
    lua_pushfstring(L, "%serror() was called with %s; give it a string", place, front_kind(L, 1));
    return 1;
  }
  const char *message = lua_tostring(L, 1);
  const char *end = strchr(message, '\n'); /* "stack overflow" includes a traceback */
  const size_t size = end != NULL ? (size_t)(end - message) : strlen(message);
  lua_pushlstring(L, message, size);
  message = lua_tostring(L, -1);
  if (strncmp(message, "(spec):", 7) == 0) {
    lua_pushfstring(L, "%s%s", message, hint(s, message));
    return 1;
  }
  if (strncmp(message, "(luattn):", 9) == 0) {
    const char *text = strstr(message, ": ");
    if (text != NULL) message = text + 2;
  }
  lua_pushfstring(L, "%s%s%s", place, message, hint(s, message));
  return 1;
}

/* Copies a message with "(spec)" replaced by the file's name, and with long words cut: Lua's own messages
 * quote names of any length. */
static void name_file(const char *message, const char *file, char *out, size_t size) {
  size_t used = 0;
  for (int word = 0; *message != '\0' && used + 1 < size;) {
    word = isalnum((unsigned char)*message) || *message == '_' ? word + 1 : 0;
    if (word > SHOWN_MAX) {
      for (int dot = 0; word == SHOWN_MAX + 1 && dot < 2 && used + 1 < size; dot++) out[used++] = '.';
      message++;
      continue;
    }
    if (strncmp(message, "(spec):", 7) == 0) {
      const int n = snprintf(out + used, size - used, "%s", file);
      used += n > 0 && (size_t)n < size - used ? (size_t)n : size - used - 1;
      message += 6;
    } else {
      out[used++] = *message++;
    }
  }
  out[used] = '\0';
}

static luattn_status fail_on_memory(const front_state *s, luattn_error *err) {
  char line[24] = "";
  if (s->last_line > 0) snprintf(line, sizeof line, ":%d", s->last_line);
  switch (s->refusal) {
    case REFUSED_BY_CAP:
      return luattn_fail(err, LUATTN_SPEC,
                         "%s%s: memory cap: the spec used more than %d MiB of Lua memory; "
                         "keep less data, or pass it as an input; a function that calls itself needs an end",
                         s->file, line, MEMORY_CAP_MIB);
    case REFUSED_BY_CHURN:
      return luattn_fail(err, LUATTN_SPEC,
                         "%s%s: memory cap: the spec allocated more than %d GiB in all; "
                         "build fewer strings and tables",
                         s->file, line, CHURN_CAP_GIB);
    case REFUSED_BY_LENGTH:
      return luattn_fail(err, LUATTN_SPEC,
                         "%s%s: memory cap: the spec made a string longer than %d MiB; a spec needs no text "
                         "but short names",
                         s->file, line, STRING_CAP_MIB);
    case REFUSED_NOTHING:
    case REFUSED_BY_SYSTEM:
      break;
  }
  return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", s->file);
}

luattn_status sandbox_call(lua_State *L, lua_CFunction f, luattn_error *err) {
  front_state *s = front_of(L);
  lua_settop(L, 0);
  s->refusal = REFUSED_NOTHING;
  lua_pushcfunction(L, complete_message); /* a light C function: allocates nothing outside the pcall */
  lua_pushcfunction(L, f);
  const int status = lua_pcall(L, 0, 0, 1);
  if (status == LUA_OK) return LUATTN_OK;
  if (s->no_memory) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", s->file);
  if (status == LUA_ERRMEM) return fail_on_memory(s, err);
  const char *message = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error without a message";
  char text[sizeof err->message];
  name_file(message, s->file, text, sizeof text);
  return luattn_fail(err, LUATTN_SPEC, "%s", text);
}
