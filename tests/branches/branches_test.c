/* branches_test.c: compares the CPU path on random functions with nested branches (branches.h), and on four
 * functions from practice, with a reference that computes only the taken arms. */
#include "tests/branches/attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPECS = 100 };

/* ---- random functions ---- */

static branches_dual random_function(const attention *r, double x, int b, int h, int i, int j) {
  branches_point at = {.x = x, .w = r->w[h], .c = r->c[h], .i = abs(i - j), .position = j};
  (void)b;
  if (r->kind == BRANCHES_MODS) at.i = i % 3;
  if (r->kind == BRANCHES_ONLINE) at.i = x > 0.5, at.position = 3 * x;
  return branches_value(r->program, &at);
}

/* Returns NULL for a spec that is refused, because conditions on w and c split the row's sum into more
 * reductions than a spec may have, or because a reduction is inside an arm. */
static luattn_spec *load_random(const char *lua) {
  luattn_spec *spec;
  luattn_error err;
  if (luattn_spec_load_text("branches.lua", lua, strlen(lua), NULL, &spec, &err) == LUATTN_OK) return spec;
  static const char *const refused[] = {"more than 8 reductions", "a reduction is reached only by the elements",
                                        "more than 16 numbers per row"};
  for (int i = 0; i < 3; i++)
    if (strstr(err.message, refused[i]) != NULL) return NULL;
  fail_msg("%s in\n%s", err.message, lua);
  return NULL;
}

static void run_kind(branches_kind kind) {
  static char lua[1 << 16];
  int compared = 0;
  for (uint64_t seed = 1; seed <= SPECS; seed++) {
    branches program;
    branches_random(&program, seed, seed % 4 == 0);
    assert_true(branches_lua(&program, kind, lua, sizeof lua) < sizeof lua);
    luattn_spec *spec = load_random(lua);
    if (spec == NULL) continue;
    attention *r = calloc(1, sizeof *r);
    assert_non_null(r);
    *r = (attention){.kind = kind, .f = random_function, .program = &program, .c = {0.75, 0.75}};
    for (int h = 0; h < HEADS; h++) r->w[h] = (h == 0 ? 0.4 : -1.1) * (seed % 3 == 0 ? 6 : 1);
    attention_compare(r, spec, lua);
    compared++;
    free(r);
    luattn_spec_free(spec);
  }
  assert_true(compared >= (kind == BRANCHES_ONLINE ? SPECS / 3 : SPECS));
}

static void test_score_mod(void **state) {
  (void)state;
  run_kind(BRANCHES_SCORE);
}

static void test_input_mods(void **state) {
  (void)state;
  run_kind(BRANCHES_MODS);
}

static void test_online_func(void **state) {
  (void)state;
  run_kind(BRANCHES_ONLINE);
}

/* ---- functions from practice, also in specs/ ---- */

/* guarded_terms.lua: a square root of the positive part, w log(d) / d, and a square root of |w|. */
static branches_dual guarded_terms(const attention *r, double x, int b, int h, int i, int j) {
  const int d = abs(i - j);
  const double w = r->w[h];
  branches_dual y = {0};
  (void)b;
  if (x > 0) y.value = sqrt(x), y.by_x = 0.5 / sqrt(x);
  if (d > 0) y.value += w * log(d) / d, y.by_w += log(d) / d;
  if (d > 2) y.value += sqrt(fabs(w)), y.by_w += 0.5 / sqrt(fabs(w)) * (w > 0 ? 1 : -1);
  return y;
}

/* two_conditions.lua: a square root of the positive part, and 1 for keys from the third on. */
static branches_dual two_conditions(const attention *r, double x, int b, int h, int i, int j) {
  (void)r, (void)b, (void)h, (void)i;
  branches_dual y = {0};
  if (x > 0) y.value = sqrt(x), y.by_x = 0.5 / sqrt(x);
  if (j > 2) y.value += 1;
  return y;
}

/* log_distance.lua: -w log(d) except at d = 0, plus u within a group. */
static branches_dual log_distance(const attention *r, double x, int b, int h, int i, int j) {
  const int d = abs(i - j);
  branches_dual y = {x, 1, 0, 0};
  if (d > 0) y.value -= r->w[h] * log(d), y.by_w = -log(d);
  if (r->group[b * KV_LEN + i] == r->group[b * KV_LEN + j]) y.value += r->c[h], y.by_c = 1;
  return y;
}

/* steep_arm.lua: an exp that overflows for scores of 2 or more, for which its arm is not taken. */
static branches_dual steep_arm(const attention *r, double x, int b, int h, int i, int j) {
  (void)r, (void)b, (void)h, (void)i;
  branches_dual y = {x, 1, 0, 0};
  if (x < 1) y.value = exp(900 * (x - 1)), y.by_x = 900 * y.value;
  if (j > 2) y.value += 1;
  return y;
}

static void run_file(const char *name, attention_function f) {
  char path[4096];
  luattn_spec *spec;
  luattn_error err;
  snprintf(path, sizeof path, "%s/%s.lua", SPECS_DIR, name);
  if (luattn_spec_load(path, NULL, &spec, &err) != LUATTN_OK) fail_msg("%s", err.message);
  attention *r = calloc(1, sizeof *r);
  assert_non_null(r);
  *r = (attention){.kind = BRANCHES_SCORE, .f = f, .w = {1.4, -0.3}, .c = {0.5, -2}};
  for (int n = 0; n < BATCH * KV_LEN; n++) r->group[n] = n * n % 7 % 3;
  attention_compare(r, spec, path);
  free(r);
  luattn_spec_free(spec);
}

static void test_files(void **state) {
  (void)state;
  run_file("guarded_terms", guarded_terms);
  run_file("two_conditions", two_conditions);
  run_file("log_distance", log_distance);
  run_file("steep_arm", steep_arm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_score_mod),
      cmocka_unit_test(test_input_mods),
      cmocka_unit_test(test_online_func),
      cmocka_unit_test(test_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
