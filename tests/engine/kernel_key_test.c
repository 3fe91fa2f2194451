/* kernel_key_test.c: keys that differ in a fact of the table are keys of different kernels, or of different classes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/kernel_key.h"

static void each_fact_tells_keys_apart(void **state) {
  (void)state;
  const kernel_key zero = {.spec = NULL};
#define IS_ANOTHER(name, type, is_same, is_same_class)                     \
  do {                                                                     \
    kernel_key other = zero;                                               \
    luattn_target target = {.struct_size = sizeof target};                 \
    other.name = (type)1;                                                  \
    assert_int_equal(kernel_key_same(&other, &zero), is_same);             \
    assert_int_equal(kernel_key_same_class(&other, &zero), is_same_class); \
    kernel_key_fill_target(&other, &target);                               \
    assert_int_equal(target.name, 1);                                      \
  } while (0);
#define TARGET_FACT(name, type, range, expected, key) \
  OF_CALL(key, IS_ANOTHER(name, type, false, true))   \
  OF_CLASS(key, IS_ANOTHER(name, type, true, false))
#include "abi/kernel_facts.def"
}

/* What packs hold is asked of them, and what they do not hold says by which argument it was asked for. */
static void packs_hold_some(void **state) {
  (void)state;
  const kernel_key zero = {.spec = NULL};
  const char *asked_by;
  assert_null(kernel_key_unpacked(&zero, &asked_by));
#define KERNEL_VARIANT(name, value, says)                    \
  do {                                                       \
    kernel_key key = zero;                                   \
    luattn_pack_query query = {.struct_size = sizeof query}; \
    key.name = 1;                                            \
    assert_null(kernel_key_unpacked(&key, &asked_by));       \
    kernel_key_fill_query(&key, &query);                     \
    assert_int_equal(query.name, 1);                         \
  } while (0);
#define KERNEL_UNPACKED(name, value, says, asks, are_for)               \
  do {                                                                  \
    kernel_key key = zero;                                              \
    key.name = 1;                                                       \
    assert_string_equal(kernel_key_unpacked(&key, &asked_by), are_for); \
    assert_string_equal(asked_by, asks);                                \
  } while (0);
#include "abi/kernel_facts.def"
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_fact_tells_keys_apart), cmocka_unit_test(packs_hold_some)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
