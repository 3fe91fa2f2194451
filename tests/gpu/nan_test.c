/* nan_test.c: tests that a NaN that a row reads appears in its results. A row of NaN must differ from a row
 * that keeps nothing, whose O is 0, and must not affect other rows. A row whose scores are all -inf gives no
 * gradient, even if the incoming gradient of its lse is infinite.
 *
 * usage: gpu_nan [--only FAMILY] Prints a line for each case that fails, and `N passed, N failed`. Exit: 0,
 * 1, or 77 without a GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/gpu.h"

static const char causal_text[] = "return attention { name = 'nan', block_mask = causal() }";
static const char weightless_text[] =
    "return attention { name = 'weightless', inputs = { m = { axes = {'q'} } },\n"
    "  score_mod = function(s, b, h, q, kv) return s + log(relu(m[q])) end }";

enum { ROW = 37, KEY = 70, HEAD = 1 }; /* HEAD: a q head; its kv head may serve all q heads */

typedef struct test_case {
  const char *family, *dtype, *shape;
} test_case;

static const test_case cases[] = {
    {"simt", "f64", "1,2,1,130,130,32"},   {"simt", "f32", "1,2,1,130,130,64"},   {"sm80", "f16", "1,2,1,130,130,64"},
    {"sm80", "bf16", "1,2,1,130,130,128"}, {"sm80", "bf16", "1,2,1,130,130,256"}, {"sm90", "f16", "1,2,1,130,130,64"},
    {"sm90", "bf16", "1,2,1,130,130,128"}, {"sm90", "bf16", "1,2,1,130,130,256"},
};

static double at(const array *x, int head, int row, int d) {
  const int64_t rows = x->shape[2], dim = x->t.ndim == 4 ? x->shape[3] : 1;
  return array_get(x, (head * rows + row) * dim + d);
}

static bool row_is_nan(const cli_result *r, int head, int row) {
  bool yes = isnan(at(&r->lse, head, row, 0)) != 0;
  for (int d = 0; d < r->o.shape[3]; d++) yes &= isnan(at(&r->o, head, row, d)) != 0;
  return yes;
}

static bool row_is_same(const cli_result *r, const cli_result *before, int head, int row) {
  bool yes = at(&r->lse, head, row, 0) == at(&before->lse, head, row, 0);
  for (int d = 0; d < r->o.shape[3]; d++) yes &= at(&r->o, head, row, d) == at(&before->o, head, row, d);
  return yes;
}

/* Makes one query NaN. Only its row may become NaN. */
static luattn_status spoil_query(cli_gpu *gpu, cli_problem *p, const cli_result *before, cli_result *r,
                                 luattn_error *err) {
  const int64_t index = ((int64_t)HEAD * p->q_len + ROW) * p->dim;
  const double kept = array_get(&p->q, index);
  array_set(&p->q, index, NAN);
  TRY(gpu_run(gpu, p, false, r, err));
  array_set(&p->q, index, kept);
  for (int h = 0; h < p->heads; h++)
    for (int row = 0; row < p->q_len; row++)
      if (!(h == HEAD && row == ROW ? row_is_nan(r, h, row) : row_is_same(r, before, h, row)))
        return luattn_fail(err, LUATTN_INTERNAL, "a query of NaN: row %d of head %d is wrong", row, h);
  return LUATTN_OK;
}

/* Makes one key NaN. Every row that keeps it must become NaN; other rows of its tile may. */
static luattn_status spoil_key(cli_gpu *gpu, cli_problem *p, cli_result *r, luattn_error *err) {
  array_set(&p->k, (int64_t)KEY * p->dim, NAN);
  TRY(gpu_run(gpu, p, false, r, err));
  for (int h = 0; h < p->heads; h++)
    for (int row = KEY; row < p->q_len; row++)
      if (!row_is_nan(r, h, row))
        return luattn_fail(err, LUATTN_INTERNAL, "a key of NaN: row %d of head %d is not", row, h);
  return LUATTN_OK;
}

static bool all_finite(const array *x) {
  bool yes = true;
  for (int64_t i = 0, n = array_count(x); i < n; i++) yes &= isfinite(array_get(x, i)) != 0;
  return yes;
}

static luattn_status spoil_weightless(cli_gpu *gpu, cli_problem *p, cli_result r[2], luattn_error *err) {
  for (int row = 0; row < p->q_len; row++) array_set(&p->input[0], row, row == ROW ? -1 : 1);
  for (int h = 0; h < p->heads; h++) array_set(&p->dlse, (int64_t)h * p->q_len + ROW, INFINITY);
  TRY(gpu_run(gpu, p, true, r, err));
  bool none = true;
  for (int h = 0; h < p->heads; h++)
    for (int d = 0; d < p->dim; d++) none &= at(&r->dq, h, ROW, d) == 0;
  if (none && all_finite(&r->dq) && all_finite(&r->dk) && all_finite(&r->dv)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INTERNAL, "a row without weight has gradients");
}

/* Runs a case, which modifies its own problem; r has room for two results. */
typedef luattn_status (*case_run)(cli_gpu *gpu, cli_problem *p, cli_result r[2], luattn_error *err);

static luattn_status spoil_causal(cli_gpu *gpu, cli_problem *p, cli_result r[2], luattn_error *err) {
  TRY(gpu_run(gpu, p, false, &r[0], err));
  TRY(spoil_query(gpu, p, &r[0], &r[1], err));
  return spoil_key(gpu, p, &r[1], err);
}

static luattn_status run_case(const luattn_spec *spec, const cli_options *o, bool backward, case_run run,
                              luattn_error *err) {
  cli_problem p = {0};
  cli_result r[2] = {0};
  cli_gpu *gpu = NULL;
  luattn_status status = gpu_open(o, &gpu, err);
  if (status == LUATTN_OK) status = problem_read(spec, o, backward, &p, err);
  const DLDataType real = dtype_dl(p.dtype == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32);
  for (int i = 0; i < 2 && status == LUATTN_OK; i++)
    status = result_new(&p, dtype_dl(p.dtype), real, backward, &r[i], err);
  if (status == LUATTN_OK) status = run(gpu, &p, r, err);
  result_free(&r[0]), result_free(&r[1]);
  problem_free(&p);
  gpu_close(gpu);
  return status;
}

/* Returns the device's architecture, or 0 without a device. */
static int device_arch(luattn_error *err) {
  const cli_options o = {.no_tuned = true};
  cli_gpu *gpu;
  if (gpu_open(&o, &gpu, err) != LUATTN_OK) return 0;
  const int arch = gpu->info.arch;
  gpu_close(gpu);
  return arch;
}

static bool load(const char *text, luattn_spec **out) {
  luattn_error err;
  const bool ok = luattn_spec_load_text("nan.lua", text, strlen(text), NULL, out, &err) == LUATTN_OK;
  if (!ok) printf("%s\n", err.message);
  return ok;
}

int main(int argc, char **argv) {
  const char *only = argc == 3 && strcmp(argv[1], "--only") == 0 ? argv[2] : "";
  luattn_spec *causal, *weightless;
  luattn_error err;
  int passed = 0, failed = 0;
  if (argc != 1 && argc != 3) return 2;
  const int arch = device_arch(&err);
  if (arch == 0) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  if (!load(causal_text, &causal) || !load(weightless_text, &weightless)) return 1;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const test_case *t = &cases[i];
    const cli_options o = {.dtype = t->dtype, .family = t->family, .shape = t->shape, .seed = 5, .no_tuned = true};
    if (strstr(t->family, only) == NULL || (strcmp(t->family, "sm90") == 0 && arch != 90)) continue;
    const bool ok = run_case(causal, &o, false, spoil_causal, &err) == LUATTN_OK &&
                    run_case(weightless, &o, true, spoil_weightless, &err) == LUATTN_OK;
    if (!ok) printf("%s %s %s: %s\n", t->family, t->dtype, t->shape, err.message);
    passed += ok, failed += !ok;
  }
  printf("%d passed, %d failed\n", passed, failed);
  luattn_spec_free(causal), luattn_spec_free(weightless);
  return passed == 0 || failed > 0;
}
