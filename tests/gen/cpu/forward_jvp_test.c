/* forward_jvp_test.c: tangents of the CPU path beside dual numbers (naive_dual.h), for specs of files: along everything
 * that may have one, and along each alone; and <J t, u> = <t, J' u> with the gradients of backward.
 *
 * usage: forward_jvp_test SPEC.. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/spec.h"
#include "tests/gen/cpu/naive_dual.h"

#define OK(call) \
  if ((call) != LUATTN_OK) fail_msg("%s: %s", p->info.name, err.message)

/* Along what: a bit each. */
enum { OF_Q = 1, OF_K = 2, OF_V = 4, OF_INPUTS = 8, OF_SCALARS = 16, OF_ALL = 31 };

static char **file;
static int files;

typedef struct tangents {
  dual_tangents dual;
  luattn_tangents given;
  luattn_input input[12];
  luattn_scalar scalar[32];
} tangents;

static bool is_real(const array *a) { return a->t.dtype.code == kDLFloat || a->t.dtype.code == kDLBfloat; }

/* Tangents are the tensors of another seed. */
static void take(const cli_problem *p, const cli_problem *other, int of, tangents *t) {
  *t = (tangents){.given = {.struct_size = sizeof t->given, .inputs = t->input, .scalars = t->scalar}};
  if (of & OF_Q) t->dual.q = other->q, t->given.q = array_tensor(&t->dual.q);
  if (of & OF_K) t->dual.k = other->k, t->given.k = array_tensor(&t->dual.k);
  if (of & OF_V) t->dual.v = other->v, t->given.v = array_tensor(&t->dual.v);
  for (size_t i = 0; of & OF_INPUTS && i < p->info.num_inputs; i++) {
    if (!is_real(&p->input[i])) continue;
    t->dual.input[i] = other->input[i];
    t->input[t->given.num_inputs++] = (luattn_input){p->info.inputs[i].name, array_tensor(&t->dual.input[i]), NULL};
  }
  for (size_t i = 0; of & OF_SCALARS && i < p->info.num_scalars; i++) {
    t->dual.scalar[i] = 0.3 - 0.2 * (double)i;
    t->scalar[t->given.num_scalars++] = (luattn_scalar){p->info.scalar_names[i], t->dual.scalar[i]};
  }
}

static double largest(const double *x, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; i++)
    if (isfinite(x[i])) most = fmax(most, fabs(x[i]));
  return most;
}

static void expect(const cli_problem *p, int of, const char *what, const array *got, const double *want) {
  const int64_t n = array_count(got);
  const double size = fmax(largest(want, n), 1e-3);
  for (int64_t i = 0; i < n; i++) {
    const double x = array_get(got, i);
    if (x == want[i] || fabs(x - want[i]) <= 1e-12 * size) continue;
    fail_msg("%s, along %d: %s[%lld] is %.17g, expected %.17g (largest %g)", p->info.name, of, what, (long long)i, x,
             want[i], size);
  }
}

/* What dropout drops; NULL: nothing. */
static unsigned char *dropped(const cli_problem *p, const luattn_args *args) {
  luattn_error err;
  array w;
  if (p->spec->traced.online.keep == SPEC_KEEP_ALL) return NULL;
  OK(array_new(&w, dtype_dl(LUATTN_F64), 4, (int64_t[]){p->batch, p->heads, p->q_len, p->kv_len}, false, &err));
  OK(luattn_cpu_weights(p->spec, args, array_tensor(&w), &err));
  unsigned char *out = malloc((size_t)array_count(&w));
  for (int64_t i = 0; i < array_count(&w); i++) out[i] = signbit(array_get(&w, i)) != 0;
  array_free(&w);
  return out;
}

typedef struct results {
  cli_result value;
  array o, lse; /* tangents */
} results;

static void results_new(const cli_problem *p, results *r) {
  luattn_error err;
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  OK(result_new(p, f64, f64, true, &r->value, &err));
  OK(array_new(&r->o, f64, 4, r->value.o.shape, false, &err));
  OK(array_new(&r->lse, f64, 3, r->value.o.shape, false, &err));
}

static void results_free(results *r) { result_free(&r->value), array_free(&r->o), array_free(&r->lse); }

static void run(const cli_problem *p, tangents *t, results *r) {
  luattn_error err;
  cli_binding bind;
  luattn_args args = problem_args(p, &r->value, false, &bind);
  t->given.o = array_tensor(&r->o);
  if (p->info.has_lse) t->given.lse = array_tensor(&r->lse);
  args.tangents = &t->given;
  OK(luattn_cpu_forward_jvp(p->spec, &args, &err));
}

/* ---- beside dual numbers ---- */

static void compare(const cli_problem *p, const cli_problem *other, int of) {
  luattn_error err;
  cli_binding bind;
  results r, plain;
  tangents t;
  take(p, other, of, &t);
  results_new(p, &r), results_new(p, &plain);
  run(p, &t, &r);
  luattn_args args = problem_args(p, &plain.value, false, &bind);
  OK(luattn_cpu_forward(p->spec, &args, &err));
  const size_t n = (size_t)array_count(&r.o), rows = (size_t)array_count(&r.lse);
  double *want = malloc((2 * n + 2 * rows) * sizeof *want), *lse = want + 2 * n;
  unsigned char *drop = dropped(p, &args);
  naive_dual(p, &t.dual, drop, want, want + n, lse, lse + rows);
  for (size_t i = 0; i < n; i++)
    if (memcmp(array_at(&r.value.o, (int64_t)i), array_at(&plain.value.o, (int64_t)i), sizeof(double)) != 0)
      fail_msg("%s: o[%zu] is not that of forward", p->info.name, i);
  expect(p, of, "o", &r.value.o, want);
  expect(p, of, "o's tangent", &r.o, want + n);
  if (p->info.has_lse) expect(p, of, "lse's tangent", &r.lse, lse + rows);
  free(want), free(drop);
  results_free(&r), results_free(&plain);
}

/* ---- beside backward ---- */

static double dot(const array *a, const array *b, double *size) {
  double sum = 0;
  for (int64_t i = 0; a->storage != NULL && b->storage != NULL && i < array_count(a); i++) {
    const double x = array_get(a, i) * array_get(b, i);
    sum += x, *size += fabs(x);
  }
  return sum;
}

static void transpose(const cli_problem *p, const cli_problem *other, double tolerance) {
  luattn_error err;
  cli_binding bind;
  results r;
  tangents t;
  double size = 0;
  if (p->spec->derived.missing != NULL || p->spec->traced.online.backward != IR_NONE) return;
  take(p, other, OF_ALL, &t);
  for (size_t i = 0; i < p->info.num_inputs; i++)
    if (!p->info.inputs[i].grad) t.dual.input[i] = (array){0};
  t.given.num_inputs = 0;
  for (size_t i = 0; i < p->info.num_inputs; i++)
    if (t.dual.input[i].storage != NULL)
      t.input[t.given.num_inputs++] = (luattn_input){p->info.inputs[i].name, array_tensor(&t.dual.input[i]), NULL};
  results_new(p, &r);
  run(p, &t, &r);
  luattn_args args = problem_args(p, &r.value, true, &bind);
  OK(luattn_cpu_backward(p->spec, &args, &err));
  double left = dot(&r.o, &p->dout, &size), right = dot(&t.dual.q, &r.value.dq, &size);
  if (p->info.has_lse) left += dot(&r.lse, &p->dlse, &size);
  right += dot(&t.dual.k, &r.value.dk, &size) + dot(&t.dual.v, &r.value.dv, &size);
  for (size_t i = 0; i < p->info.num_inputs; i++) right += dot(&t.dual.input[i], &r.value.input_grad[i], &size);
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    const double x = t.dual.scalar[i] * array_get(&r.value.scalar_grads, (int64_t)i);
    right += x, size += fabs(x);
  }
  if (!(fabs(left - right) <= tolerance * size))
    fail_msg("%s: <J t, u> is %.17g, and <t, J' u> %.17g (terms of %g)", p->info.name, left, right, size);
  results_free(&r);
}

/* Of integers of 64 bits, which the doubles of naive_dual do not hold. */
static bool beyond_doubles(const char *path) { return strstr(path, "wide_sums") != NULL; }

/* Backward subtracts times before it adds what both have, forward as it is written: that loses nine digits. */
static double tolerance_of(const char *path) { return strstr(path, "wide_reals") != NULL ? 1e-9 : 1e-12; }

static void check_spec(const char *path) {
  luattn_error err;
  luattn_spec *spec;
  cli_problem of = {.info = {.name = path}}, other, *p = &of;
  const cli_options o = {.spec = path, .dtype = "f64", .shape = "2,2,1,6,70,16,16", .seed = 3},
                    o2 = {.spec = path, .dtype = "f64", .shape = "2,2,1,6,70,16,16", .seed = 4};
  OK(luattn_spec_load(path, NULL, &spec, &err));
  if (spec->traced.grid_axes > 1) { /* test_grid */
    luattn_spec_free(spec);
    return;
  }
  OK(problem_read(spec, &o, true, p, &err));
  OK(problem_read(spec, &o2, true, &other, &err));
  for (int of_one = 1; of_one < OF_ALL && !beyond_doubles(path); of_one *= 2) compare(p, &other, of_one);
  if (!beyond_doubles(path)) compare(p, &other, OF_ALL);
  transpose(p, &other, tolerance_of(path));
  problem_free(p), problem_free(&other);
  luattn_spec_free(spec);
}

static void test_files(void **state) {
  (void)state;
  for (int i = 0; i < files; i++) check_spec(file[i]);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_files)};
  file = argv + 1, files = argc - 1;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
