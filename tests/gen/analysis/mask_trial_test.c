/* mask_trial_test.c: which masks of arithmetic on positions kernels evaluate for cells: those of which ranges and
 * bounds leave many empty tiles, and no other, the examples' least of all. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/masks/mask.h"
#include "gen/lua/front.h"

/* Traces and analyses a spec, and hands its mask to `check`. */
static void analyse(const char *name, const char *source, size_t size,
                    void (*check)(const char *name, const mask_info *m)) {
  luattn_error err;
  traced_spec t;
  mask_info m;
  arena *a = arena_open(NULL);
  if (front_trace(a, name, source, size, &t, &err) != LUATTN_OK || mask_analyse(a, &t, &m, &err) != LUATTN_OK)
    fail_msg("%s: %s", name, err.message);
  check(name, &m);
  arena_close(a);
}

static void is_evaluated(const char *name, const mask_info *m) {
  if (!m->evaluated.is || m->evaluated.why != IR_NONE) fail_msg("%s: %s", name, m->how);
}
static void is_not_evaluated(const char *name, const mask_info *m) {
  if (m->evaluated.is) fail_msg("%s: %s", name, m->how);
}
static void reads_data_alone(const char *name, const mask_info *m) {
  if (m->evaluated.is && m->evaluated.why == IR_NONE) fail_msg("%s: %s", name, m->how);
}

static void check_all(const char *const *masks, size_t count, void (*check)(const char *name, const mask_info *m)) {
  for (size_t i = 0; i < count; i++) {
    char source[1024];
    const int n = snprintf(source, sizeof source,
                           "return attention { inputs = { doc = { axes = {'n'}, dtype = 'i32' } }, block_mask = "
                           "function(b, h, q, k) %s end }",
                           masks[i]);
    analyse(masks[i], source, (size_t)n, check);
  }
}

static void test_hashes(void **state) {
  (void)state;
  static const char *const masks[] = {
      "return eq(q // 64, k // 64) or eq((q // 64 * 37 + k // 64 * 101 + h * 7) % 13, 0)",
      "return ((q // 64 * 2654435761 + k // 64 * 40503) & 0xFFFFFFFF) >> 28 < 1",
      "local x = (q // 32 * 73856093 ~ k // 32 * 19349663) & 0xFFFFFFFF x = x ~ (x >> 16) x = (x * 0x85ebca6b) & "
      "0xFFFFFFFF "
      "return k <= q and (eq(q // 32, k // 32) or (x ~ (x >> 13)) & 31 < 1)",
      "return sin(q // 64 * 12.9898 + k // 64 * 78.233) * 43758.5453 % 1.0 < 0.1",
      "return eq(doc[q], doc[k]) and eq((q // 64 * 37 + k // 64 * 101) % 13, 0)",
      "return (q // 96 * (q // 96) * 7 + k // 96 * (k // 96) * 11) % 17 < 2",
      "local x = q // 64 + k // 64 * 57 + 1 x = (x ~ (x << 13)) & 0xFFFFFFFF x = x ~ (x >> 17) return (x ~ (x << 5)) & "
      "15 < 1",
  };
  check_all(masks, sizeof masks / sizeof *masks, is_evaluated);
}

static void test_decided(void **state) {
  (void)state;
  static const char *const masks[] = {
      "return k <= q",
      "return k <= q and q - k < 300",
      "return abs(q - k) <= 600 and eq((q - k) % 7, 0)",
      "return (q - k) % 1024 < 128",
      "return k % 512 < 64",
      "return eq((q // 128 + k // 128) % 4, 0)",
      "return eq((k // 128 ~ q // 128) & 7, 5)",
      "return q // 256 >= k // 256",
      "return eq(doc[q], doc[k]) and k <= q",
      "return k <= q + 7 and q % 40 - 3 <= k % 40 and k % 40 <= q % 40 + 9 and q // 40 <= k // 40 + 2",
      "return (q * 2654435761 ~ k * 40503) & 255 < 100", /* keeps something of each tile */
      "return random(b, h, q, k) < 0.5",
  };
  check_all(masks, sizeof masks / sizeof *masks, is_not_evaluated);
}

static void test_examples(void **state) {
  (void)state;
  static char source[1 << 16];
  DIR *dir = opendir(LUATTN_EXAMPLES);
  assert_non_null(dir);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    const size_t n = strlen(entry->d_name);
    if (n < 5 || strcmp(entry->d_name + n - 4, ".lua") != 0) continue;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", LUATTN_EXAMPLES, entry->d_name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(source, 1, sizeof source, file);
    fclose(file);
    analyse(entry->d_name, source, size, reads_data_alone);
    count++;
  }
  closedir(dir);
  assert_true(count >= 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_hashes), cmocka_unit_test(test_decided),
                                     cmocka_unit_test(test_examples)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
