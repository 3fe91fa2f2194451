#include "gen/lua/scan.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/real.h"

typedef enum token_kind { TOKEN_END, TOKEN_NAME, TOKEN_KEYWORD, TOKEN_NUMBER, TOKEN_STRING, TOKEN_SIGN } token_kind;

typedef struct token {
  token_kind kind;
  const char *start;
  size_t size;
  int line;
} token;

typedef struct scanner {
  const char *at, *end;
  int line;
} scanner;

static bool is_token(const token *t, const char *word) {
  return t->size == strlen(word) && memcmp(t->start, word, t->size) == 0;
}

/* Level of a long bracket ([[, [=[, ..) at s->at, or -1. */
static int long_bracket(const scanner *s) {
  const char *p = s->at + 1;
  if (s->at >= s->end || *s->at != '[') return -1;
  while (p < s->end && *p == '=') p++;
  return p < s->end && *p == '[' ? (int)(p - s->at - 1) : -1;
}

static void skip_long(scanner *s, int level) {
  s->at += level + 2;
  while (s->at < s->end) {
    if (*s->at == '\n') s->line++;
    if (*s->at != ']') {
      s->at++;
      continue;
    }
    const char *p = s->at + 1;
    while (p < s->end && *p == '=') p++;
    if (p < s->end && *p == ']' && p - s->at - 1 == level) {
      s->at = p + 1;
      return;
    }
    s->at = p;
  }
}

static void skip_space(scanner *s) {
  while (s->at < s->end) {
    if (*s->at == '\n') s->line++;
    if (isspace((unsigned char)*s->at)) {
      s->at++;
    } else if (s->end - s->at >= 2 && s->at[0] == '-' && s->at[1] == '-') {
      s->at += 2;
      const int level = long_bracket(s);
      if (level >= 0)
        skip_long(s, level);
      else
        while (s->at < s->end && *s->at != '\n') s->at++;
    } else {
      return;
    }
  }
}

static void skip_string(scanner *s) {
  const char quote = *s->at++;
  while (s->at < s->end && *s->at != quote && *s->at != '\n') {
    if (*s->at == '\\' && s->at + 1 < s->end) {
      s->at++;
      if (*s->at == '\n') s->line++;
    }
    s->at++;
  }
  if (s->at < s->end && *s->at == quote) s->at++;
}

static void skip_number(scanner *s) {
  const bool hex = s->end - s->at >= 2 && s->at[0] == '0' && (s->at[1] == 'x' || s->at[1] == 'X');
  while (s->at < s->end) {
    const char c = *s->at;
    const bool exponent = hex ? c == 'p' || c == 'P' : c == 'e' || c == 'E';
    if (!isalnum((unsigned char)c) && c != '.') return;
    s->at++;
    if (exponent && s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
  }
}

static token_kind word_kind(const token *t) {
  static const char *const keywords[] = {
      "and", "break", "do",  "else", "elseif", "end",    "false",  "for",  "function", "goto",  "if",
      "in",  "local", "nil", "not",  "or",     "repeat", "return", "then", "true",     "until", "while",
  };
  for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
    if (is_token(t, keywords[i])) return TOKEN_KEYWORD;
  }
  return TOKEN_NAME;
}

static token next_token(scanner *s) {
  static const char *const signs[] = {"...", "..", "==", "~=", "<=", ">=", "//", "::", "<<", ">>"};
  skip_space(s);
  token t = {.kind = TOKEN_END, .start = s->at, .size = 0, .line = s->line};
  if (s->at >= s->end) return t;
  const unsigned char c = (unsigned char)*s->at;
  const bool dot_digit = c == '.' && s->end - s->at >= 2 && isdigit((unsigned char)s->at[1]);
  if (isalpha(c) || c == '_') {
    while (s->at < s->end && (isalnum((unsigned char)*s->at) || *s->at == '_')) s->at++;
    t.size = (size_t)(s->at - t.start);
    t.kind = word_kind(&t);
    return t;
  }
  if (isdigit(c) || dot_digit) {
    t.kind = TOKEN_NUMBER;
    skip_number(s);
  } else if (c == '"' || c == '\'') {
    t.kind = TOKEN_STRING;
    skip_string(s);
  } else if (long_bracket(s) >= 0) {
    t.kind = TOKEN_STRING;
    skip_long(s, long_bracket(s));
  } else {
    t.kind = TOKEN_SIGN;
    size_t size = 1;
    for (size_t i = 0; i < sizeof signs / sizeof *signs && size == 1; i++) {
      const size_t n = strlen(signs[i]);
      if ((size_t)(s->end - s->at) >= n && memcmp(s->at, signs[i], n) == 0) size = n;
    }
    s->at += size;
  }
  t.size = (size_t)(s->at - t.start);
  return t;
}

bool scan_is_keyword(const char *name) {
  return word_kind(&(token){.kind = TOKEN_NAME, .start = name, .size = strlen(name)}) == TOKEN_KEYWORD;
}

/* Whether an integer in hexadecimal has more than 64 bits: Lua keeps the last ones. */
static bool is_cut(const token *t) {
  const char *p = t->start + 2, *end = t->start + t->size;
  if (t->size < 3 || *t->start != '0' || (t->start[1] | 32) != 'x') return false;
  for (const char *q = p; q < end; q++)
    if (!isxdigit((unsigned char)*q)) return false; /* a float */
  while (p < end && *p == '0') p++;
  return end - p > 16;
}

int scan_numbers(const char *source, size_t source_size, char *message, size_t size) {
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  for (token t = next_token(&s); t.kind != TOKEN_END; t = next_token(&s)) {
    char digits[64];
    if (t.kind != TOKEN_NUMBER || t.size >= sizeof digits) continue;
    memcpy(digits, t.start, t.size);
    digits[t.size] = '\0';
    const bool cut = is_cut(&t);
    if (!cut && !isinf(real_read(digits, &(char *){NULL}))) continue;
    snprintf(message, size,
             cut ? "%s has more than 64 bits, and Lua would keep the last 64; write fewer digits"
                 : "%s is larger than float64 holds, and Lua would read it as infinity; write math.huge",
             digits);
    return t.line;
  }
  return 0;
}

static bool is_literal(const token *t) {
  return t->kind == TOKEN_STRING || is_token(t, "nil") || is_token(t, "true") || is_token(t, "false");
}

static bool is_simple(const token *t) { return t->kind == TOKEN_NAME || t->kind == TOKEN_NUMBER; }

/* Whether the token continues an operand, so that the name or number before or after it is only a part of
 * that. */
static bool binds(const token *t) {
  if (t->kind == TOKEN_STRING) return true;
  if (t->kind != TOKEN_SIGN || t->size == 0) return false;
  return is_token(t, "..") || (t->size == 1 && strchr(".:[({+-*/%^#&|~", *t->start) != NULL) || is_token(t, "//");
}

int scan_equality(const char *source, size_t source_size, char *message, size_t size) {
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  token window[5]; /* .. a == b .. with == in the middle */
  memset(window, 0, sizeof window);
  window[0].start = window[1].start = source;
  for (int i = 2; i < 5; i++) window[i] = next_token(&s);
  for (; window[2].kind != TOKEN_END; memmove(window, window + 1, 4 * sizeof *window), window[4] = next_token(&s)) {
    const token *op = &window[2], *left = &window[1], *right = &window[3];
    const bool equal = is_token(op, "=="), unequal = is_token(op, "~=");
    if (op->kind != TOKEN_SIGN || (!equal && !unequal) || is_literal(left) || is_literal(right)) continue;
    const char *name = equal ? "eq" : "ne";
    const bool simple = is_simple(left) && is_simple(right) && !binds(&window[0]) && !binds(&window[4]);
    if (simple) {
      snprintf(message, size, "%.*s cannot be traced (beside a number it is always %s); write %s(%.*s, %.*s)",
               (int)op->size, op->start, equal ? "false" : "true", name, (int)left->size, left->start, (int)right->size,
               right->start);
    } else {
      snprintf(message, size, "%.*s cannot be traced (beside a number it is always %s); write %s(a, b) for a %.*s b",
               (int)op->size, op->start, equal ? "false" : "true", name, (int)op->size, op->start);
    }
    return op->line;
  }
  return 0;
}

enum { NESTING_MAX = 200 };

int scan_find_name(const char *source, size_t source_size, const char *name) {
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  for (token t = next_token(&s); t.kind != TOKEN_END; t = next_token(&s)) {
    if (t.kind == TOKEN_NAME && is_token(&t, name)) return t.line;
  }
  return 0;
}

int scan_find_field(const char *source, size_t source_size, const char *name) {
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  token before = {.kind = TOKEN_END};
  int line = 0;
  for (token t = next_token(&s); t.kind != TOKEN_END; before = t, t = next_token(&s)) {
    scanner ahead = s;
    const bool begins = before.kind == TOKEN_SIGN && before.size == 1 && strchr("{,;", *before.start) != NULL;
    if (!begins || !is_token(&t, name)) continue;
    const token next = next_token(&ahead);
    if (!is_token(&next, "=")) continue;
    if (line > 0) return 0;
    line = t.line;
  }
  return line;
}

static bool compares(const token *t) {
  static const char *const signs[] = {"<", "<=", ">", ">=", "==", "~="};
  for (size_t i = 0; t->kind == TOKEN_SIGN && i < sizeof signs / sizeof *signs; i++)
    if (is_token(t, signs[i])) return true;
  return false;
}

/* Ends the reach of an earlier `not`: an operand of `and` and the like, or an outer bracket. */
static bool ends_operand(const token *t) {
  if (t->kind == TOKEN_KEYWORD)
    return !is_token(t, "not") && !is_token(t, "nil") && !is_token(t, "true") && !is_token(t, "false");
  return t->kind == TOKEN_END || (t->kind == TOKEN_SIGN && t->size == 1 && strchr(",;=", *t->start) != NULL);
}

bool scan_negates_side(const char *source, size_t source_size, int line) {
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  for (token t = next_token(&s); t.kind != TOKEN_END && t.line <= line; t = next_token(&s)) {
    if (t.line < line || t.kind != TOKEN_KEYWORD || !is_token(&t, "not")) continue;
    scanner ahead = s;
    int depth = 0;
    for (token u = next_token(&ahead); depth >= 0; u = next_token(&ahead)) {
      if (depth == 0 && compares(&u)) return true;
      if ((depth == 0 && ends_operand(&u)) || u.kind == TOKEN_END) break;
      if (u.kind != TOKEN_SIGN || u.size != 1) continue;
      depth += strchr("([{", *u.start) != NULL;
      depth -= strchr(")]}", *u.start) != NULL;
    }
  }
  return false;
}

static bool is_sign(const token *t, char c) { return t->kind == TOKEN_SIGN && t->size == 1 && *t->start == c; }

/* Whether each `where` of the file that is no field is called at once, so that it can only be the predefined
 * one. */
static bool where_is_predefined(const char *source, size_t source_size) {
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  token before = {.kind = TOKEN_END};
  for (token t = next_token(&s); t.kind != TOKEN_END; before = t, t = next_token(&s)) {
    if (t.kind != TOKEN_NAME || !is_token(&t, "where") || is_sign(&before, '.') || is_sign(&before, ':')) continue;
    scanner ahead = s;
    const token after = next_token(&ahead);
    if (!is_sign(&after, '(') || is_token(&before, "function")) return false;
  }
  return true;
}

/* The end of the first argument of a call, if others follow and it can be the result of another function;
 * NULL: not so. `s` is behind the bracket. */
static const char *end_of_condition(scanner s) {
  int depth = 0;
  const char *end = s.at;
  for (token t = next_token(&s); t.kind != TOKEN_END; end = t.start + t.size, t = next_token(&s)) {
    if (depth == 0 && is_sign(&t, ',')) return end;
    if (is_token(&t, "function") || is_token(&t, "...")) return NULL;
    if (t.kind != TOKEN_SIGN || t.size != 1) continue;
    depth += strchr("([{", *t.start) != NULL;
    depth -= strchr(")]}", *t.start) != NULL;
    if (depth < 0) return NULL;
  }
  return NULL;
}

int scan_conditions(const char *source, size_t source_size, text *out) {
  if (scan_find_name(source, source_size, SCAN_CONDITION) > 0 || scan_find_name(source, source_size, "_ENV") > 0 ||
      !where_is_predefined(source, source_size))
    return 0;
  const char *copied = source, *ends[NESTING_MAX]; /* of the conditions around this place */
  int count = 0, depth = 0;
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  token before = {.kind = TOKEN_END}, t = next_token(&s);
  for (; t.kind != TOKEN_END; before = t, t = next_token(&s)) {
    if (t.kind == TOKEN_NAME && is_token(&t, "where") && !is_sign(&before, '.') && !is_sign(&before, ':')) {
      before = t;
      t = next_token(&s); /* the bracket */
      const char *end = depth < NESTING_MAX ? end_of_condition(s) : NULL;
      if (end != NULL) {
        text_bytes(out, copied, (size_t)(s.at - copied));
        text_add(out, SCAN_CONDITION "(function() return ");
        copied = s.at;
        ends[depth++] = end;
        count++;
      }
    }
    while (depth > 0 && t.start + t.size == ends[depth - 1]) {
      text_bytes(out, copied, (size_t)(ends[--depth] - copied));
      text_add(out, " end)");
      copied = ends[depth];
    }
  }
  if (count > 0) text_bytes(out, copied, (size_t)(source + source_size - copied));
  return count;
}

/* f{..} is a call, so f__table{..} would be another name: it becomes f(__table{..}). */
static bool is_call_argument(const token *before) {
  if (before->kind == TOKEN_NAME || before->kind == TOKEN_STRING) return true;
  return before->kind == TOKEN_SIGN && before->size == 1 && strchr(")]}", *before->start) != NULL;
}

bool scan_guard_tables(const char *source, size_t source_size, text *out) {
  bool call[NESTING_MAX];
  int depth = 0;
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  const char *copied = source;
  token before = {.kind = TOKEN_END};
  for (token t = next_token(&s); t.kind != TOKEN_END; before = t, t = next_token(&s)) {
    if (t.kind != TOKEN_SIGN || t.size != 1) continue;
    if (*t.start == '{') {
      if (depth == NESTING_MAX) return false;
      call[depth] = is_call_argument(&before);
      text_bytes(out, copied, (size_t)(t.start - copied));
      text_add(out, "%s", call[depth] ? "(" SCAN_GUARD : SCAN_GUARD);
      depth++;
      copied = t.start;
    } else if (*t.start == '}') {
      if (depth == 0) return false;
      depth--;
      text_bytes(out, copied, (size_t)(t.start + 1 - copied));
      if (call[depth]) text_add(out, ")");
      copied = t.start + 1;
    }
  }
  text_bytes(out, copied, (size_t)(source + source_size - copied));
  return depth == 0 && !text_failed(out);
}

/* ---- scan_truths ---- */

/* A bracket, a body or a block. */
typedef struct truth_frame {
  const char *operand; /* where the operand of `and`, `or` or a comparison began; NULL: with the next token */
  const char *negated; /* what the last `not` negates, which has not ended; NULL: there is none */
  bool negates_next, is_condition; /* the token before was `not`; of if, elseif or while, up to then or do */
} truth_frame;

typedef struct truth_edge {
  const char *at;
  bool opens, is_call;
  int decides; /* 1: by if, elseif, while, until or not; 2: it is also written as a number */
} truth_edge;

typedef struct truth_scan {
  truth_frame frame[NESTING_MAX];
  int depth;
  token before;
  truth_edge *edges;
  size_t count;
} truth_scan;

static bool ends_call(const token *t) { return is_sign(t, ')') || is_sign(t, '}') || t->kind == TOKEN_STRING; }

/* From `start` to the end of the token before. */
static void wrap(truth_scan *s, const char *start, bool decides) {
  const char *end = s->before.start + s->before.size;
  const bool is_literal_number = s->before.kind == TOKEN_NUMBER && s->before.start == start;
  s->edges[s->count++] = (truth_edge){start, true, false, 0};
  s->edges[s->count++] = (truth_edge){end, false, ends_call(&s->before), !decides ? 0 : is_literal_number ? 2 : 1};
}

static bool is_any(const token *t, token_kind kind, const char *const *words) {
  for (; t->kind == kind && *words != NULL; words++)
    if (is_token(t, *words)) return true;
  return false;
}

/* f in not f.g(x): what is negated goes on with this token. */
static bool is_suffix(const token *before, const token *t) {
  if (is_sign(before, '.') || is_sign(before, ':') || t->kind == TOKEN_STRING) return true;
  return t->kind == TOKEN_SIGN && t->size == 1 && strchr(".:([{", *t->start) != NULL;
}

/* The operands that end before token t, or begin with it. */
static void take_operands(truth_scan *s, const token *t, const token *after) {
  static const char *const unary[] = {"not", "-", "#", "~", NULL};
  truth_frame *f = &s->frame[s->depth];
  if (f->negated != NULL && !is_suffix(&s->before, t)) wrap(s, f->negated, true), f->negated = NULL;
  if (f->negates_next && !is_any(t, t->kind, unary)) f->negated = t->start;
  f->negates_next = t->kind == TOKEN_KEYWORD && is_token(t, "not");
  const bool joins = t->kind == TOKEN_KEYWORD && (is_token(t, "and") || is_token(t, "or"));
  const bool decides = t->kind == TOKEN_KEYWORD && (is_token(t, "then") || is_token(t, "do")) && f->is_condition;
  const bool equals = t->kind == TOKEN_SIGN && (is_token(t, "==") || is_token(t, "~=")) && is_literal(after) &&
                      !is_token(after, "nil") && !is_literal(&s->before);
  if ((joins || decides || equals) && f->operand != NULL) wrap(s, f->operand, decides);
  if (f->operand == NULL) f->operand = t->start;
}

/* What follows token t: a new operand, or another frame. False: too deep, or an end too many. */
static bool take_frames(truth_scan *s, const token *t) {
  static const char *const starts[] = {"and", "or", "return", "if", "elseif", "while", "until", "in", NULL};
  static const char *const start_signs[] = {"=", ",", ";", NULL};
  static const char *const opens[] = {"function", "then", "do", "repeat", NULL}, *const closes[] = {"end", "elseif",
                                                                                                    "until", NULL};
  static const char *const open_signs[] = {"(", "[", "{", NULL}, *const close_signs[] = {")", "]", "}", NULL};
  if (is_any(t, TOKEN_KEYWORD, closes) || is_any(t, TOKEN_SIGN, close_signs)) {
    if (s->depth == 0) return false;
    s->depth--;
  }
  truth_frame *f = &s->frame[s->depth];
  if (is_any(t, TOKEN_KEYWORD, starts) || is_any(t, TOKEN_SIGN, start_signs)) f->operand = NULL;
  if (t->kind == TOKEN_KEYWORD && (is_token(t, "if") || is_token(t, "elseif") || is_token(t, "while")))
    f->is_condition = true;
  if (is_any(t, TOKEN_KEYWORD, opens) || is_any(t, TOKEN_SIGN, open_signs)) {
    if (is_token(t, "then") || is_token(t, "do")) f->is_condition = false;
    if (s->depth + 1 == NESTING_MAX) return false;
    s->frame[++s->depth] = (truth_frame){.operand = NULL};
  }
  return true;
}

/* In the order of the text; where one ends and another begins, the end first. */
static int compare_edges(const void *a, const void *b) {
  const truth_edge *x = a, *y = b;
  if (x->at != y->at) return x->at < y->at ? -1 : 1;
  return (int)x->opens - (int)y->opens;
}

bool scan_truths(arena *a, const char *source, size_t source_size, text *out) {
  scanner s = {.at = source, .end = source + source_size, .line = 1};
  truth_scan *scan = arena_new(a, sizeof *scan);
  static const char *const words[] = {"and", "or", "not", "then", "do", NULL}, *const signs[] = {"==", "~=", NULL};
  size_t most = 0; /* operands */
  for (token t = next_token(&s); t.kind != TOKEN_END; t = next_token(&s))
    most += is_any(&t, TOKEN_KEYWORD, words) || is_any(&t, TOKEN_SIGN, signs);
  if (scan == NULL || (scan->edges = arena_array(a, 2 * most + 1, sizeof *scan->edges)) == NULL) return false;
  s = (scanner){.at = source, .end = source + source_size, .line = 1};
  scan->before = (token){.kind = TOKEN_END, .start = source};
  for (token t = next_token(&s); t.kind != TOKEN_END; scan->before = t, t = next_token(&s)) {
    scanner ahead = s;
    const token after = next_token(&ahead);
    take_operands(scan, &t, &after);
    if (!take_frames(scan, &t)) return false;
  }
  take_operands(scan, &(token){.kind = TOKEN_END, .start = source + source_size}, &scan->before);
  if (scan->count > 0) qsort(scan->edges, scan->count, sizeof *scan->edges, compare_edges);
  const char *copied = source;
  for (size_t i = 0; i < scan->count; copied = scan->edges[i++].at) {
    const truth_edge *e = &scan->edges[i];
    text_bytes(out, copied, (size_t)(e->at - copied));
    if (e->opens)
      text_add(out, " " SCAN_TRUTH "((");
    else
      text_add(out, "), %s, %d)", e->is_call ? "true" : "false", e->decides);
  }
  text_bytes(out, copied, (size_t)(source + source_size - copied));
  return !text_failed(out);
}
