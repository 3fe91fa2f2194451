/* syntax.c: recognises Python and C syntax by the errors of Lua's parser. */
#include "gen/lua/syntax.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct span {
  const char *start, *end;
} span;

/* A hint for a message that contains `message`, if its line contains `word` and `also`, which may be NULL.
 * With `also`, the two may be in the previous line: the parser then failed only in the next. */
typedef struct syntax_row {
  const char *message, *word, *also, *hint;
} syntax_row;

static const char comment[] = "; a comment starts with --";
static const char colon[] =
    "; write `then` for the colon of if, `do` for that of a loop, none after else, and an `end`";
static const char conditional[] = "; write where(condition, a, b) for `a if condition else b`";
static const char local[] = "; a variable is declared by local x = ..";
static const char function[] = "; Lua writes function(score, b, h, q_idx, kv_idx) return .. end for def and lambda";

/* The first match counts. */
static const syntax_row rows[] = {
    {"']' expected near ','", NULL, NULL, "; several indices stand in braces: t[{i, j}]"},
    {" near '!'", NULL, NULL, "; Lua writes ~= for != and `not` for !, and traced numbers compare by ne(a, b)"},
    {"unexpected symbol near '*'", NULL, NULL, "; a power is written x ^ y"},
    {"unexpected symbol near '&'", NULL, NULL, "; write `and` for &&"},
    {"unexpected symbol near '|'", NULL, NULL, "; write `or` for ||"},
    {"unexpected symbol near '/", NULL, NULL, comment},
    {" near '#'", NULL, NULL, comment},
    {" near '?'", NULL, NULL, "; write where(condition, a, b)"},
    {"syntax error near '+'", NULL, NULL, "; write x = x + y for x += y"},
    {"syntax error near '-'", NULL, NULL, "; write x = x - y for x -= y"},
    {"syntax error near '*'", NULL, NULL, "; write x = x * y for x *= y"},
    {"unexpected symbol near '['", NULL, NULL, "; a list is written {a, b}"},
    {" near 'elif'", NULL, NULL, "; write elseif"},
    {" near 'AND'", NULL, NULL, "; write `and`"},
    {" near 'And'", NULL, NULL, "; write `and`"},
    {" near 'OR'", NULL, NULL, "; write `or`"},
    {" near 'Or'", NULL, NULL, "; write `or`"},
    {" near '", "NOT", NULL, "; write `not`"},
    {" near '", "Not", NULL, "; write `not`"},
    {" near '", "\ndef", NULL, function},
    {" near '", "lambda", NULL, function},
    {" near '", "=>", NULL, "; a function is written function(a, b) return .. end"},
    {" near '", ":=", NULL, "; write x = y for x := y"},
    {"'}' expected near ':'", NULL, NULL, "; a field is written name = value"},
    {"<name> expected near '", ":", "if", colon},
    {"<name> expected near '", ":", "elseif", colon},
    {"<name> expected near '", ":", "else", colon},
    {"<name> expected near '", ":", "for", colon},
    {"<name> expected near '", ":", "while", colon},
    {" near ':'", ":", "else", colon},
    {"function arguments expected near '", ":", "if", colon},
    {"function arguments expected near '", ":", "for", colon},
    {"function arguments expected near '", ":", "while", colon},
    {"<name> expected near '", ":", NULL, "; a field is written name = value"},
    {"function arguments expected near '", ":", NULL, "; a field is written name = value"},
    {"'then' expected near 'else'", "if", NULL, conditional},
    {" near 'if'", "else", NULL, conditional},
    {"'then' expected near '='", NULL, NULL, "; write eq(a, b) for a == b"},
    {"'then' expected near 'is'", NULL, NULL, "; write x == nil for x is None, eq(a, b) for numbers"},
    {"'then' expected near '", NULL, NULL, "; write if condition then .. end"},
    {"syntax error near '", "continue", "continue", "; Lua has no continue; put the rest into an if"},
    {"syntax error near '", "import", NULL, "; a spec imports nothing; its functions are predefined"},
    {"syntax error near '", "let", NULL, local},
    {"syntax error near '", "var", NULL, local},
    {"syntax error near '", "const", NULL, local},
    {"syntax error near '", "auto", NULL, local},
    {"syntax error near '", "int", NULL, local},
    {"syntax error near '", "float", NULL, local},
    {"unexpected symbol near '", ") {", NULL, "; blocks are `then .. end` and `do .. end`, without braces"},
    {"'end' expected near '", "return", NULL, "; a return is the last of its block, so an `end` is missing after it"},
    {"'end' expected (to close 'function'", "//", NULL, "; // divides and rounds down, and a comment starts with --"},
    {"'}' expected near '", NULL, NULL, "; is a comma missing before it?"},
};

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Matches whole words; signs anywhere; "\nword" only at the start of a line. */
static bool contains(span text, const char *word) {
  const bool first = *word == '\n';
  word += first;
  const size_t n = strlen(word);
  const bool whole = is_word(*word);
  for (const char *p = text.start; (size_t)(text.end - p) >= n; p++) {
    if (memcmp(p, word, n) != 0 || (first && p != text.start)) continue;
    if (!whole || ((p == text.start || !is_word(p[-1])) && (p + n == text.end || !is_word(p[n])))) return true;
  }
  return false;
}

static const char *without_comment(const char *start, const char *end) {
  for (const char *p = start; p + 1 < end; p++) {
    if (p[0] == '-' && p[1] == '-') return p;
  }
  return end;
}

/* The line of the message, or the last non-empty one before it. */
static span find_line(const char *source, size_t size, long line, bool before) {
  const char *const end = source + size;
  span last = {source, source}, here = {source, source};
  for (long n = 1; n <= line && here.start < end; n++) {
    const char *stop = memchr(here.start, '\n', (size_t)(end - here.start));
    here.end = without_comment(here.start, stop != NULL ? stop : end);
    if (n == line) return before ? last : here;
    for (const char *p = here.start; p < here.end; p++) {
      if (!isspace((unsigned char)*p)) last = here;
    }
    here.start = stop != NULL ? stop + 1 : end;
  }
  return last; /* at the end of the file */
}

static bool fits(const syntax_row *row, span text) {
  return (row->word == NULL || contains(text, row->word)) && (row->also == NULL || contains(text, row->also));
}

const char *syntax_hint(const char *source, size_t size, const char *message) {
  const char *place = strchr(message, ':');
  if (place == NULL || strstr(message, " near ") == NULL) return NULL;
  const long line = strtol(place + 1, NULL, 10);
  const span here = find_line(source, size, line, false), before = find_line(source, size, line, true);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const syntax_row *row = &rows[i];
    if (strstr(message, row->message) == NULL) continue;
    if (fits(row, here)) return row->hint;
    if (row->also != NULL && !contains(here, row->word) && fits(row, before)) return row->hint;
  }
  return NULL;
}
