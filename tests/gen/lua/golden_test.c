/* Every file in tests/golden/spec is a spec with an error. Its first line says which: `-- expect:` and the
 * whole message, or
 * `-- expect-parts:` and pieces of it in order, apart by ` | `, where the rest is Lua's own wording. */
#include "traced.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 400 };

static void expect_parts(const char *file, const char *message, char *parts) {
  const char *at = message;
  for (char *part = parts; part != NULL;) {
    char *end = strstr(part, " | ");
    if (end != NULL) *end = '\0';
    const char *found = strstr(at, part);
    if (found == NULL || (part == parts && found != message)) fail_msg("%s: '%s' is not in: %s", file, part, message);
    at = found + strlen(part);
    part = end != NULL ? end + 3 : NULL;
  }
}

static void check_file(const char *path) {
  static const char exact[] = "-- expect: ", in_parts[] = "-- expect-parts: ";
  size_t size;
  char *source = read_file(path, &size);
  const char *file = strrchr(path, '/') + 1;
  char expected[1024];
  snprintf(expected, sizeof expected, "%.*s", (int)strcspn(source, "\n"), source);
  luattn_error err;
  traced_spec spec;
  arena *a = arena_open(NULL);
  const luattn_status status = front_trace(a, file, source, size, &spec, &err);
  if (status != LUATTN_SPEC) fail_msg("%s: status %d, not LUATTN_SPEC", file, status);
  if (strncmp(expected, in_parts, sizeof in_parts - 1) == 0) {
    expect_parts(file, err.message, expected + sizeof in_parts - 1);
  } else if (strncmp(expected, exact, sizeof exact - 1) != 0 || strcmp(expected + sizeof exact - 1, err.message) != 0) {
    fail_msg("%s\n  says    %s\n  but is  %s", file, expected, err.message);
  }
  arena_close(a);
  free(source);
}

static void test_all(void **state) {
  (void)state;
  char *path[FILES_MAX];
  const int n = list_lua(LUATTN_GOLDEN_SPEC_DIR, path, FILES_MAX);
  assert_true(n >= 100);
  for (int i = 0; i < n; i++) {
    check_file(path[i]);
    free(path[i]);
  }
}

static void test_bytecode(void **state) {
  (void)state;
  expect_error("\x1bLua\x54", "test.lua: the file is Lua bytecode; a spec is Lua text");
}

static void expect_label(const char *label, const char *source, const char *message) {
  luattn_error err;
  traced_spec spec;
  arena *a = arena_open(NULL);
  assert_int_equal(front_trace(a, label, source, strlen(source), &spec, &err), LUATTN_SPEC);
  assert_string_equal(err.message, message);
  arena_close(a);
}

/* A label goes into messages and into the comments of generated code: it is one line, and not too long. */
static void test_labels(void **state) {
  (void)state;
  static const char source[] = "return attention {}";
  char label[3000], expected[512];
  luattn_error err;
  traced_spec spec;
  arena *a = arena_open(NULL);
  expect_label("label\n#error injected\n\x7f", "x =", "label?#error injected??:1: unexpected symbol near <eof>");
  assert_int_equal(front_trace(a, "label\n#error injected\n", source, sizeof source - 1, &spec, &err), LUATTN_OK);
  assert_string_equal(spec.file, "label?#error injected?");
  assert_string_equal(spec.name, "label__error_injected_");
  memset(label, 'd', sizeof label);
  memcpy(label + sizeof label - 10, "/spec.lua", 10);
  snprintf(expected, sizeof expected, "..%.191s/spec.lua:1: unexpected symbol near <eof>", label);
  expect_label(label, "x =", expected);
  assert_int_equal(front_trace(a, label, source, sizeof source - 1, &spec, &err), LUATTN_OK);
  assert_string_equal(spec.name, "spec");
  arena_close(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_bytecode),
                                     cmocka_unit_test(test_labels)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
