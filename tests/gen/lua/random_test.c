/* random_test.c: random hooks in plain Lua with nested conditions, early returns and local variables. Trace
 * and oracle must agree on all of them. */
#include "tests/support/drawn.h"
#include "traced.h"

#include <stdio.h>
#include <string.h>

typedef struct writer {
  char text[16384];
  size_t size;
  uint64_t seed;
  int questions; /* number of comparisons left, each of which doubles the replays */
} writer;

static int pick(writer *w, int n) {
  w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
  return (int)((w->seed >> 33) % (unsigned)n);
}

static void put(writer *w, const char *s) {
  const size_t n = strlen(s);
  assert_true(w->size + n < sizeof w->text);
  memcpy(w->text + w->size, s, n + 1);
  w->size += n;
}

static void put_int(writer *w, int n) {
  char s[32];
  snprintf(s, sizeof s, "%d", n);
  put(w, s);
}

static void condition(writer *w, int depth);

/* Writes an integer expression. */
static void integer(writer *w, int depth) {
  static const char *const leaf[] = {"q_idx",  "kv_idx",     "h",           "b",    "q_len",
                                     "kv_len", "doc[q_idx]", "doc[kv_idx]", "heads"};
  const int choice = depth <= 0 ? pick(w, 8) : pick(w, 16);
  if (choice == 0) {
    put_int(w, pick(w, 40) - 8);
  } else if (choice < 8) {
    put(w, leaf[pick(w, 9)]);
  } else if (choice == 8 && w->questions > 0) {
    put(w, "where(");
    condition(w, depth - 1);
    put(w, ", ");
    integer(w, depth - 1);
    put(w, ", ");
    integer(w, depth - 1);
    put(w, ")");
  } else if (choice < 11) {
    put(w, "(");
    integer(w, depth - 1);
    put(w, choice == 9 ? " // " : " % ");
    put_int(w, pick(w, 7) + 1);
    put(w, ")");
  } else {
    static const char *const infix[] = {" + ", " - ", " * "};
    const bool call = choice >= 14;
    put(w, call ? choice == 14 ? "min(" : "max(" : "(");
    integer(w, depth - 1);
    put(w, call ? ", " : infix[choice - 11 < 3 ? choice - 11 : 0]);
    if (!call && choice == 13)
      put_int(w, pick(w, 5) - 2);
    else
      integer(w, depth - 1);
    put(w, ")");
  }
}

static void real(writer *w, int depth) {
  const int choice = depth <= 0 ? 0 : pick(w, 9);
  static const char *const call[] = {"tanh(", "sigmoid(", "abs(", "relu(", "sin("};
  if (choice < 2) {
    static const char *const leaf[] = {"score", "cap", "slopes[h]", "0.25", "-1.5"};
    put(w, leaf[pick(w, 5)]);
  } else if (choice < 4) {
    put(w, "(");
    real(w, depth - 1);
    put(w, choice == 2 ? " + " : " * ");
    real(w, depth - 1);
    put(w, ")");
  } else if (choice == 4 && w->questions > 0) {
    put(w, "where(");
    condition(w, depth - 1);
    put(w, ", ");
    real(w, depth - 1);
    put(w, ", ");
    real(w, depth - 1);
    put(w, ")");
  } else if (choice == 5) {
    put(w, "(0.01 * ");
    integer(w, depth - 1);
    put(w, ")");
  } else {
    put(w, call[pick(w, 5)]);
    real(w, depth - 1);
    put(w, ")");
  }
}

static void condition(writer *w, int depth) {
  static const char *const compare[] = {" < ", " <= ", " > ", " >= "};
  const int choice = depth <= 0 || w->questions <= 1 ? pick(w, 5) : pick(w, 9);
  if (choice < 5) {
    w->questions--;
    if (choice == 3) put(w, pick(w, 2) ? "eq(" : "ne(");
    if (choice == 4) {
      put(w, "keep[kv_idx]");
      return;
    }
    integer(w, depth < 1 ? depth : 1);
    put(w, choice == 3 ? ", " : compare[pick(w, 4)]);
    if (choice == 2)
      put(w, pick(w, 2) ? "2.5" : "7.0");
    else
      integer(w, depth < 1 ? depth : 1);
    if (choice == 3) put(w, ")");
    return;
  }
  put(w, choice == 5 ? "not (" : "(");
  condition(w, depth - 1);
  if (choice != 5) {
    put(w, choice < 8 ? " and " : " or ");
    condition(w, depth - 1);
  }
  put(w, ")");
}

/* Writes statements that return on every path. */
static void body(writer *w, int depth, bool mask) {
  const int choice = depth <= 0 || w->questions <= 0 ? 0 : pick(w, 4);
  if (choice == 1) {
    put(w, " local i = ");
    integer(w, 2);
    put(w, mask ? " if i < " : " score = score + 0.1 * i if i <= ");
    integer(w, 1);
    w->questions--;
    put(w, " then");
    body(w, depth - 1, mask);
    put(w, " end");
    body(w, depth - 1, mask);
  } else if (choice >= 2) {
    put(w, " if ");
    condition(w, 2);
    put(w, " then");
    body(w, depth - 1, mask);
    put(w, " else");
    body(w, depth - 1, mask);
    put(w, " end");
  } else {
    put(w, " do return ");
    if (mask)
      condition(w, 3);
    else
      real(w, 4);
    put(w, " end");
  }
}

static void test_random_hooks(void **state) {
  (void)state;
  static writer w;
  for (int i = 0; i < 600; i++) {
    if (!drawn("random hooks", i / 4, 3)) continue;
    const bool mask = i % 2 == 0;
    w = (writer){.seed = 1000u + (unsigned)i, .questions = 9};
    put(&w,
        "return attention { scalars = { cap = 1.5 }, inputs = { slopes = { axes = {'h'} }, "
        "doc = { axes = {'t'}, dtype = 'i32' }, keep = { axes = {'kv'}, dtype = 'bool' } }, ");
    put(&w, mask ? "block_mask = function(b, h, q_idx, kv_idx)" : "score_mod = function(score, b, h, q_idx, kv_idx)");
    body(&w, 4, mask);
    put(&w, " end }");
    compare_with_oracle_any(w.text, w.text, w.size, 4);
    if (i % 4 < 2) compare_selects_with_oracle(w.text, w.text, w.size, 4);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_hooks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
