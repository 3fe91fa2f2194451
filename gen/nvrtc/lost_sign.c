/* lost_sign.c: reads PTX line by line, a function at a time, and marks its 32-bit registers. */
#include "gen/nvrtc/lost_sign.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* What a register may hold. NVRTC's PTX assigns a register in several places where control flow joins, so marks add up.
 * NVVM writes 0 - x and -1 * x as neg.s32. */
enum { NEGATED = 1, MAX_OF_NEGATED = 2, MIN_OF_NEGATED = 4 };

typedef struct function_text {
  const char *begin, *end;
  unsigned char *mark; /* of %r0 .. */
  unsigned registers;
} function_text;

typedef enum opcode { OTHER, MOVE, NEGATE, MAXIMUM, MINIMUM } opcode;
typedef struct instruction {
  opcode op;
  unsigned to;
  int num_args;
  long arg[2]; /* the number of a register, or -1 */
} instruction;

static const char *after_spaces(const char *at) { return at + strspn(at, " \t"); }

/* Reads %r7: its number, or -1 and the text as it is. */
static long read_register(const function_text *f, const char *at, const char **rest) {
  char *end;
  if (strncmp(at, "%r", 2) != 0) return -1;
  const unsigned long n = strtoul(at + 2, &end, 10);
  if (end == at + 2 || n >= f->registers) return -1;
  *rest = end;
  return (long)n;
}

/* Reads an instruction that these marks depend on; false: another one. */
static bool read_instruction(const function_text *f, const char *at, instruction *out) {
  static const struct {
    const char *name;
    opcode op;
  } known[] = {{"mov.u32", MOVE},   {"mov.b32", MOVE},    {"mov.s32", MOVE},
               {"neg.s32", NEGATE}, {"max.s32", MAXIMUM}, {"min.s32", MINIMUM}};
  at = after_spaces(at);
  if (*at == '@') at = after_spaces(at + strcspn(at, " \t\n"));
  const size_t length = strcspn(at, " \t\n");
  *out = (instruction){.op = OTHER};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strlen(known[i].name) == length && memcmp(known[i].name, at, length) == 0) out->op = known[i].op;
  if (out->op == OTHER) return false;
  at = after_spaces(at + length);
  const long to = read_register(f, at, &at);
  if (to < 0) return false;
  out->to = (unsigned)to;
  while (*at == ',' && out->num_args < 2) {
    at = after_spaces(at + 1);
    const long arg = out->arg[out->num_args++] = read_register(f, at, &at);
    if (arg < 0) at += strcspn(at, ",;\n");
  }
  return true;
}

/* The marks that an instruction gives its result. */
static unsigned marks_of(const function_text *f, const instruction *n) {
  unsigned args = 0;
  for (int i = 0; i < n->num_args; i++)
    if (n->arg[i] >= 0) args |= f->mark[n->arg[i]];
  switch (n->op) {
    case MOVE:
      return args;
    case NEGATE:
      return NEGATED;
    case MAXIMUM:
      return (args & NEGATED) != 0 ? MAX_OF_NEGATED : 0;
    case MINIMUM:
      return (args & NEGATED) != 0 ? MIN_OF_NEGATED : 0;
    default:
      return 0;
  }
}

static bool loses_sign(const function_text *f, const instruction *n) {
  const unsigned inner = n->op == MAXIMUM ? MAX_OF_NEGATED : n->op == MINIMUM ? MIN_OF_NEGATED : 0;
  for (int i = 0; i < n->num_args; i++)
    if (n->arg[i] >= 0 && n->arg[i] != (long)n->to && (f->mark[n->arg[i]] & inner) != 0) return true;
  return false;
}

/* Registers may be used above the line that assigns them, in loops, so marks are spread until none is new. */
static bool function_loses_sign(const function_text *f) {
  for (bool spread = true, changed = true; spread; spread = changed) {
    changed = false;
    for (const char *at = f->begin; at < f->end; at += strcspn(at, "\n") + 1) {
      instruction n;
      if (!read_instruction(f, at, &n)) continue;
      const unsigned marks = f->mark[n.to] | marks_of(f, &n);
      if (marks != f->mark[n.to]) f->mark[n.to] = (unsigned char)marks, changed = true;
      if (loses_sign(f, &n)) return true;
    }
  }
  return false;
}

/* The next line with .entry or .func from `at` on, or NULL. */
static const char *next_function(const char *at) {
  const char *entry = strstr(at, ".entry "), *func = strstr(at, ".func ");
  return entry == NULL ? func : func == NULL || entry < func ? entry : func;
}

luattn_status ptx_find_lost_sign(arena *a, const char *ptx, const char **entry, luattn_error *err) {
  *entry = NULL;
  for (const char *at = next_function(ptx); at != NULL && *entry == NULL;) {
    const char *next = next_function(at + 1);
    function_text f = {.begin = at, .end = next != NULL ? next : at + strlen(at)};
    const char *declared = strstr(at, ".b32 \t%r<");
    if (declared != NULL && declared < f.end)
      f.registers = (unsigned)strtoul(declared + strlen(".b32 \t%r<"), NULL, 10);
    f.mark = arena_new(a, f.registers + 1);
    if (f.mark == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "nvrtc: out of memory");
    memset(f.mark, 0, f.registers + 1);
    if (function_loses_sign(&f)) {
      const char *name = strchr(at, ' ') + 1;
      if (*name == '(')
        name = strchr(name, ')') != NULL ? after_spaces(strchr(name, ')') + 1) : name; /* a function's result */
      *entry = arena_copy(a, name, strcspn(name, "(\n"));
      if (*entry == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "nvrtc: out of memory");
    }
    at = next;
  }
  return LUATTN_OK;
}
