/* memory_test.c: fails each allocation of a trace once, then all allocations from some point on. Of these allocations a tree draws
 * some, as a trace has thousands, most of them the prelude's. */
#include "traced.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/drawn.h"

enum { MOST = 400 }; /* allocations that a tree draws */

static const char source[] =
    "local W = 16\n"
    "return attention {\n"
    "  scalars = { cap = 50.0 },\n"
    "  inputs = { slopes = { axes = {'h'}, grad = true }, keep = { axes = {'kv'}, dtype = 'bool' } },\n"
    "  score_mod = function(score, b, h, q_idx, kv_idx)\n"
    "    if kv_idx < q_idx then score = score * slopes[h] end\n"
    "    return cap * tanh(score / cap)\n"
    "  end,\n"
    "  block_mask = function(b, h, q_idx, kv_idx) return keep[kv_idx] and (kv_idx <= q_idx or q_idx % W < 3) "
    "end,\n"
    "  online_func = attention_sink('slopes'),\n"
    "}\n";

typedef struct budget {
  long count, fail_at; /* allocations so far; index of the first that fails */
  int only_once;
  size_t held;
} budget;

static void *counted_realloc(void *user, void *ptr, size_t old_size, size_t new_size) {
  budget *b = user;
  if (new_size == 0) {
    b->held -= old_size;
    free(ptr);
    return NULL;
  }
  const long at = b->count++;
  if (b->only_once ? at == b->fail_at : at >= b->fail_at) return NULL;
  void *p = realloc(ptr, new_size);
  if (p != NULL) b->held += new_size - old_size;
  return p;
}

static luattn_status trace_with(budget *b) {
  const luattn_allocator allocator = {counted_realloc, b};
  arena *a = arena_open(&allocator);
  luattn_status status = LUATTN_NO_MEMORY;
  if (a != NULL) {
    luattn_error err;
    traced_spec spec;
    memset(&spec, 0xee, sizeof spec);
    const traced_spec before = spec;
    status = front_trace(a, "m.lua", source, sizeof source - 1, &spec, &err);
    if (status == LUATTN_NO_MEMORY) assert_string_equal(err.message, "m.lua: out of memory");
    if (status != LUATTN_OK) assert_memory_equal(&before, &spec, sizeof spec);
  }
  arena_close(a);
  assert_int_equal(b->held, 0);
  return status;
}

static void test_each_allocation(void **state) {
  (void)state;
  budget all = {.fail_at = -1, .only_once = 1};
  assert_int_equal(trace_with(&all), LUATTN_OK);
  assert_true(all.count > 200);
  const int parts = drawn_parts(all.count, MOST, 1);
  int failed = 0;
  for (long i = 0; i < all.count; i++) {
    if (!drawn("lua_memory", (int)(i % parts), parts)) continue;
    budget once = {.fail_at = i, .only_once = 1};
    const luattn_status status = trace_with(&once);
    /* Lua collects garbage and retries, so one failure need not be fatal. */
    assert_true(status == LUATTN_OK || status == LUATTN_NO_MEMORY);
    failed += status == LUATTN_NO_MEMORY;
  }
  assert_true(failed > 0);
}

static void test_from_each_allocation(void **state) {
  (void)state;
  budget all = {.fail_at = -1, .only_once = 1};
  assert_int_equal(trace_with(&all), LUATTN_OK);
  /* The number of allocations varies slightly with Lua's hash seed, so the last few are skipped. */
  const int parts = drawn_parts(all.count, MOST, 1);
  for (long i = 0; i < all.count - 16; i++) {
    if (!drawn("lua_memory from", (int)(i % parts), parts)) continue;
    budget from = {.fail_at = i};
    assert_int_equal(trace_with(&from), LUATTN_NO_MEMORY);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation),
                                     cmocka_unit_test(test_from_each_allocation)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
