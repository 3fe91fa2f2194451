/* skip_test.c: tests that exactly the tiles with negligible P are skipped. NaN values of keys that no query
 * can reach reveal which tiles were computed, because 0 * NaN is NaN. Distant keys that matter because of
 * their norms are tested as well.
 *
 * usage: gpu_skip [--only SUBSTRING]. Prints a line for each failing case, and `N passed, N failed`. Exit:
 * 0, 1, or 77 without a GPU of the sm90 family. */
#include <math.h>
#include <string.h>

#include "cli/check.h"
#include "cli/gpu.h"

/* Queries at the end of a long kv sequence, with a slope per head. Mirrored: slopes of the opposite sign, so
 * that the first keys have the largest scores of all rows. */
static const char text[] =
    "return attention { name = 'skip', inputs = { slopes = { axes = {'h'}, grad = true } },\n"
    "  score_mod = function(s, b, h, q, kv) return s + slopes[h] * (kv - (q + kv_len - q_len)) end,\n"
    "  block_mask = causal_bottom_right() }";

enum { NONE = -1, FAR = 1024, NEAR = 1100 }; /* keys before FAR, and from NEAR on, of 2000 or more */

/* What a case changes, and whether its results are then finite. `before`, `from`: values of keys before or
 * from an index are NaN. `loud`: a key that is 1000 times as long, or NaN. */
typedef struct test_case {
  const char *name, *dtype, *shape;
  double slope[2];
  int before, from, loud;
  bool nan_key, finite[2]; /* forward, backward */
  int skip;
  bool deterministic;
  int splits;
} test_case;

/* clang-format off */
#define BF16 "bf16", "1,2,1,72,2100,128"
#define SLOPES {1, 0.25}
static const test_case cases[] = {
    {"far values", BF16, SLOPES, FAR, NONE, NONE, false, {true, true}, LUATTN_SKIP_ALWAYS, false, 0},
    {"far values", "f16", "2,2,2,130,2001,64", SLOPES, FAR, NONE, NONE, false, {true, true}, LUATTN_SKIP_ALWAYS, false, 0},
    {"far values, wide", "bf16", "1,2,1,72,2100,256", SLOPES, FAR, NONE, NONE, false, {true, true}, LUATTN_SKIP_ALWAYS, false, 0},
    {"far values, in turn", BF16, SLOPES, FAR, NONE, NONE, false, {true, true}, LUATTN_SKIP_ALWAYS, true, 0},
    {"far values, shared", BF16, SLOPES, FAR, NONE, NONE, false, {true, true}, LUATTN_SKIP_ALWAYS, false, 3},
    {"by itself", "bf16", "1,1,1,3072,4800,64", {1}, FAR, NONE, NONE, false, {true, true}, LUATTN_SKIP_AUTO, false, 0},
    {"mirrored", BF16, {-1, -0.25}, NONE, NEAR, NONE, false, {true, true}, LUATTN_SKIP_ALWAYS, false, 0},
    {"every tile", BF16, SLOPES, FAR, NONE, NONE, false, {false, false}, LUATTN_SKIP_NEVER, false, 0},
    {"too short", BF16, SLOPES, FAR, NONE, NONE, false, {false, false}, LUATTN_SKIP_AUTO, false, 0},
    {"flat head", BF16, {1, 0}, FAR, NONE, NONE, false, {false, false}, LUATTN_SKIP_ALWAYS, false, 0},
    {"loud key", BF16, SLOPES, FAR, NONE, 700, false, {false, false}, LUATTN_SKIP_ALWAYS, false, 0},
    {"loud key beside", BF16, SLOPES, 500, NONE, 700, false, {true, true}, LUATTN_SKIP_ALWAYS, false, 0},
    {"far key of NaN", BF16, SLOPES, NONE, NONE, 700, true, {false, false}, LUATTN_SKIP_ALWAYS, false, 0},
    {"near key of NaN", "f16", "1,2,2,72,2100,64", SLOPES, NONE, NONE, 2050, true, {false, false}, LUATTN_SKIP_ALWAYS, false, 0},
};
/* clang-format on */
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* Fills positions from .. to - 1 of all heads. */
static void fill(array *x, int from, int to, double value) {
  const int64_t len = x->shape[2], dim = x->shape[3], heads = x->shape[0] * x->shape[1];
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = (h * len + from) * dim; i < (h * len + to) * dim; i++) array_set(x, i, value);
}

static void scale_key(array *x, int key, double factor) {
  const int64_t len = x->shape[2], dim = x->shape[3], heads = x->shape[0] * x->shape[1];
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = (h * len + key) * dim; i < (h * len + key + 1) * dim; i++)
      array_set(x, i, factor * array_get(x, i));
}

static bool all_finite(const array *x) {
  bool yes = true;
  for (int64_t i = 0, n = array_count(x); i < n; i++) yes &= isfinite(array_get(x, i)) != 0;
  return yes;
}

/* Without NaN values, kernels that skip must agree with the CPU path. With them, results must be NaN as
 * expected. */
static luattn_status run(cli_gpu *gpu, const test_case *t, cli_problem *p, cli_result *r, check_report *report,
                         luattn_error *err) {
  p->skip = t->skip;
  for (int i = 0; i < p->heads; i++) array_set(&p->input[0], i, t->slope[i]);
  if (t->loud >= 0) scale_key(&p->k, t->loud, t->nan_key ? NAN : 1000);
  if (!t->nan_key && t->skip == LUATTN_SKIP_ALWAYS) TRY(check_kernels(gpu, p, LUATTN_WANT_ALL, report, err));
  if (t->before >= 0) fill(&p->v, 0, t->before, NAN);
  if (t->from >= 0) fill(&p->v, t->from, p->kv_len, NAN);
  TRY(gpu_run(gpu, p, true, r, err));
  const bool finite[2] = {all_finite(&r->o) && all_finite(&r->lse), all_finite(&r->dq)};
  for (int i = 0; i < 2; i++)
    if (finite[i] != t->finite[i])
      return luattn_fail(err, LUATTN_INTERNAL, "%s %s finite", i == 0 ? "o, lse:" : "dq:", finite[i] ? "is" : "is not");
  return LUATTN_OK;
}

static luattn_status run_case(const luattn_spec *spec, const test_case *t, check_report *report, luattn_error *err) {
  const cli_options o = {.dtype = t->dtype,
                         .family = "sm90",
                         .shape = t->shape,
                         .seed = 3,
                         .splits = t->splits,
                         .deterministic = t->deterministic,
                         .no_tuned = true};
  cli_problem p = {0};
  cli_result r = {0};
  cli_gpu *gpu = NULL;
  luattn_status status = gpu_open(&o, &gpu, err);
  if (status == LUATTN_OK) status = problem_read(spec, &o, true, &p, err);
  if (status == LUATTN_OK) status = result_new(&p, dtype_dl(p.dtype), dtype_dl(LUATTN_F32), true, &r, err);
  if (status == LUATTN_OK) status = run(gpu, t, &p, &r, report, err);
  result_free(&r);
  problem_free(&p);
  gpu_close(gpu);
  return status;
}

static bool has_family(luattn_error *err) {
  const cli_options o = {.no_tuned = true};
  cli_gpu *gpu;
  if (gpu_open(&o, &gpu, err) != LUATTN_OK) return false;
  const bool yes = gpu->info.arch == 90;
  gpu_close(gpu);
  if (!yes) (void)luattn_fail(err, LUATTN_UNSUPPORTED, "the device does not have the sm90 family");
  return yes;
}

int main(int argc, char **argv) {
  const char *only = argc == 3 && strcmp(argv[1], "--only") == 0 ? argv[2] : "";
  luattn_spec *spec;
  luattn_error err;
  int passed = 0, failed = 0;
  if (argc != 1 && argc != 3) return 2;
  if (!has_family(&err)) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  if (luattn_spec_load_text("skip.lua", text, strlen(text), NULL, &spec, &err) != LUATTN_OK) {
    printf("%s\n", err.message);
    return 1;
  }
  for (int i = 0; i < COUNT(cases); i++) {
    const test_case *t = &cases[i];
    check_report report = {0};
    char title[128];
    snprintf(title, sizeof title, "%s, %s %s", t->name, t->dtype, t->shape);
    if (strstr(title, only) == NULL) continue;
    const luattn_status status = run_case(spec, t, &report, &err);
    const bool ok = status == LUATTN_OK && report.failed == 0;
    if (report.failed > 0) check_print(title, &report);
    if (status != LUATTN_OK) printf("%s: %s\n", title, err.message);
    *(ok ? &passed : &failed) += 1;
    fflush(stdout);
  }
  luattn_spec_free(spec);
  printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0;
}
