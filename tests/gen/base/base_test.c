/* base_test.c: tests arena, text and hash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/base/arena.h"
#include "gen/base/hash.h"
#include "gen/base/text.h"

typedef struct counter {
  long live, calls, fail_at;
} counter;

static void *count_realloc(void *user, void *ptr, size_t old_size, size_t new_size) {
  counter *c = user;
  if (new_size == 0) {
    if (ptr != NULL) c->live -= (long)old_size;
    free(ptr);
    return NULL;
  }
  if (c->calls++ == c->fail_at) return NULL;
  c->live += (long)new_size - (long)old_size;
  return realloc(ptr, new_size);
}

static void test_arena_zeroes_and_aligns(void **state) {
  (void)state;
  counter c = {.fail_at = -1};
  const luattn_allocator allocator = {count_realloc, &c};
  arena *a = arena_open(&allocator);
  for (size_t size = 0; size < 3000; size += 37) {
    unsigned char *p = arena_new(a, size);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    for (size_t i = 0; i < size; ++i) assert_int_equal(p[i], 0);
    memset(p, 0xff, size);
  }
  unsigned char *large = arena_new(a, 5000000), *after = arena_new(a, 100);
  assert_non_null(large);
  assert_non_null(after);
  assert_int_equal(large[4999999], 0);
  assert_string_equal(arena_copy(a, "hello world", 5), "hello");
  assert_string_equal(arena_printf(a, "%s=%d", "x", 42), "x=42");
  assert_ptr_equal(arena_allocator(a)->user, &c);
  assert_true(c.live > 5000000);
  arena_close(a);
  assert_int_equal(c.live, 0);
  arena_close(NULL);
}

/* Memory that was given back serves the next borrower, and comes zeroed. */
static void test_arena_borrow(void **state) {
  (void)state;
  counter c = {.fail_at = -1};
  const luattn_allocator allocator = {count_realloc, &c};
  arena *a = arena_open(&allocator);
  long before = 0;
  for (int round = 0; round < 4; round++) {
    arena *b = arena_borrow(a), *inner = arena_borrow(b);
    unsigned char *p = arena_new(b, 3000000), *q = arena_new(inner, 70000);
    for (int i = 0; i < 3000000; i++) assert_int_equal(p[i], 0);
    for (int i = 0; i < 70000; i++) assert_int_equal(q[i], 0);
    memset(p, 1, 3000000);
    memset(q, 2, 70000);
    assert_int_equal(p[2999999], 1);
    arena_close(inner);
    arena_close(b);
    if (round > 0) assert_int_equal(c.calls - before, 2); /* the arenas themselves */
    before = c.calls;
  }
  arena_close(a);
  assert_int_equal(c.live, 0);
}

/* What is rewound serves again, zeroed; what lies before the mark stays. */
static void test_arena_rewind(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  unsigned char *kept = arena_new(a, 100);
  memset(kept, 1, 100);
  const arena_place mark = arena_mark(a);
  unsigned char *first = arena_new(a, 1000);
  memset(first, 2, 1000);
  arena_rewind(a, mark);
  unsigned char *again = arena_new(a, 1000);
  assert_ptr_equal(again, first);
  for (int i = 0; i < 1000; i++) assert_int_equal(again[i], 0);
  const arena_place before = arena_mark(a);
  assert_non_null(arena_new(a, 3000000)); /* elsewhere: nothing is given up */
  arena_rewind(a, before);
  assert_int_equal(kept[99], 1);
  arena_close(a);
}

static void test_arena_out_of_memory(void **state) {
  (void)state;
  counter c = {.fail_at = 0};
  const luattn_allocator allocator = {count_realloc, &c};
  assert_null(arena_open(&allocator));
  c.fail_at = 2;
  arena *a = arena_open(&allocator);
  assert_non_null(a);
  assert_null(arena_new(a, 10));
  assert_non_null(arena_new(a, 10));
  assert_null(arena_array(a, SIZE_MAX / 2, 4));
  assert_null(arena_array(a, SIZE_MAX, 1));
  assert_null(arena_raw(a, SIZE_MAX / 2, 4));
  assert_null(arena_raw(a, SIZE_MAX, 1));
  assert_null(arena_new(a, SIZE_MAX));
  assert_null(arena_new(a, SIZE_MAX - 20));
  arena_close(a);
  assert_int_equal(c.live, 0);
}

static void test_text_indents(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  text t;
  text_init(&t, a);
  assert_string_equal(text_get(&t), "");
  text_add(&t, "a {\n");
  t.indent = 2;
  text_add(&t, "b;");
  text_add(&t, " c;\n\n%s", "d;\ne;\n");
  t.indent = 0;
  text_add(&t, "}\n");
  assert_string_equal(text_get(&t), "a {\n    b; c;\n\n    d;\n    e;\n}\n");
  arena_close(a);
}

static void test_text_long_and_failing(void **state) {
  (void)state;
  counter c = {.fail_at = -1};
  const luattn_allocator allocator = {count_realloc, &c};
  arena *a = arena_open(&allocator);
  text t;
  text_init(&t, a);
  char big[4000];
  memset(big, 'x', sizeof big);
  big[sizeof big - 1] = 0;
  text_add(&t, "%s", big);
  assert_string_equal(text_get(&t), big);
  c.fail_at = c.calls;
  for (int i = 0; i < 100; ++i) text_add(&t, "%s", big);
  assert_true(text_failed(&t));
  assert_null(text_get(&t));
  c.fail_at = -1;
  text_add(&t, "y");
  assert_null(text_get(&t)); /* failures are sticky */
  arena_close(a);
  assert_int_equal(c.live, 0);
}

static hash128 hash_pieces(const char *l1, const char *d1, const char *l2, const char *d2) {
  hasher h;
  assert_true(hasher_open(&h));
  hasher_add(&h, l1, d1, strlen(d1));
  hasher_add(&h, l2, d2, strlen(d2));
  return hasher_close(&h);
}

static void test_hash(void **state) {
  (void)state;
  char x[33], y[33];
  hash_hex(hash_bytes("", 0), x);
  assert_string_equal(x, "99aa06d3014798d86001c324468d497f"); /* XXH3's published value for no input */
  hash_hex(hash_bytes(NULL, 0), y);
  assert_string_equal(x, y);
  const hash128 a = hash_pieces("a", "bc", "d", "e");
  const hash128 others[] = {hash_pieces("ab", "c", "d", "e"), hash_pieces("a", "bcd", "", "e"),
                            hash_pieces("a", "b", "cd", "e"), hash_pieces("d", "e", "a", "bc")};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i)
    assert_true(a.lo != others[i].lo || a.hi != others[i].hi);
  const hash128 again = hash_pieces("a", "bc", "d", "e");
  assert_true(a.lo == again.lo && a.hi == again.hi);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_arena_zeroes_and_aligns),
      cmocka_unit_test(test_arena_borrow),
      cmocka_unit_test(test_arena_rewind),
      cmocka_unit_test(test_arena_out_of_memory),
      cmocka_unit_test(test_text_indents),
      cmocka_unit_test(test_text_long_and_failing),
      cmocka_unit_test(test_hash),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
