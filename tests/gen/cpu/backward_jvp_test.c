/* backward_jvp_test.c: tangents of the CPU path's gradients, for specs of files: beside central differences of backward; and
 * the second derivatives are symmetric: <H t, u> = <t, H u>.
 *
 * usage: backward_jvp_test SPEC.. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check.h"
#include "cli/random_array.h"
#include "gen/spec.h"
#include "tests/support/worse.h"

#define OK(call) \
  if ((call) != LUATTN_OK) fail_msg("%s: %s", p->info.name, err.message)

static char **file;
static int files;

/* Like the tensors that have gradients, or their tangents: dout and dlse besides. */
enum { Q, K, V, DOUT, DLSE, INPUT, SCALARS = INPUT + 12, PARTS };
typedef struct vector {
  array part[PARTS];
} vector;

static void like(const cli_problem *p, const array *a, array *out) {
  luattn_error err;
  if (a->storage != NULL) OK(array_new(out, a->t.dtype, a->t.ndim, a->shape, false, &err));
}

static bool has_gradient(const cli_problem *p, size_t i) { return p->info.inputs[i].grad != 0; }

/* Random multiples of a quarter: a step along them is exact in float32. rows: with dout and dlse. */
static vector random_vector(const cli_problem *p, uint64_t seed, bool rows) {
  luattn_error err;
  vector v = {0};
  like(p, &p->q, &v.part[Q]), like(p, &p->k, &v.part[K]), like(p, &p->v, &v.part[V]);
  if (rows) like(p, &p->dout, &v.part[DOUT]), like(p, &p->dlse, &v.part[DLSE]);
  for (size_t i = 0; i < p->info.num_inputs; i++) /* a half type has no room for a step */
    if (has_gradient(p, i) && p->input[i].t.dtype.bits >= 32) like(p, &p->input[i], &v.part[INPUT + i]);
  if (p->info.num_scalars > 0)
    OK(array_new(&v.part[SCALARS], dtype_dl(LUATTN_F64), 1, (int64_t[]){(int64_t)p->info.num_scalars}, false, &err));
  for (int i = 0; i < PARTS; i++) {
    array *a = &v.part[i];
    if (a->storage == NULL) continue;
    random_normal(a, i == SCALARS ? 0.25 : 1, &seed);
    for (int64_t j = 0; j < array_count(a); j++) array_set(a, j, round(4 * array_get(a, j)) / 4);
  }
  return v;
}

static void vector_free(vector *v) {
  for (int i = 0; i < PARTS; i++) array_free(&v->part[i]);
}

/* The gradients of a result. */
static array *gradient_of(cli_result *r, int part) {
  return part == Q                         ? &r->dq
         : part == K                       ? &r->dk
         : part == V                       ? &r->dv
         : part >= INPUT && part < SCALARS ? &r->input_grad[part - INPUT]
         : part == SCALARS                 ? &r->scalar_grads
                                           : NULL;
}

static double dot(cli_result *r, const vector *v, double *size) {
  double sum = 0;
  for (int i = 0; i < PARTS; i++) {
    const array *a = gradient_of(r, i);
    for (int64_t j = 0; a != NULL && a->storage != NULL && v->part[i].storage != NULL && j < array_count(a); j++) {
      const double x = array_get(a, j) * array_get(&v->part[i], j);
      sum += x, *size += fabs(x);
    }
  }
  return sum;
}

/* Tangents of the gradients along v, in place of these. */
static void tangents_of(const cli_problem *p, vector *v, cli_result *r) {
  luattn_error err;
  cli_binding bind;
  luattn_input inputs[12];
  luattn_scalar scalars[CLI_MAX_PAIRS];
  luattn_args args = problem_args(p, r, true, &bind);
  luattn_tangents t = {.struct_size = sizeof t, .inputs = inputs, .scalars = scalars};
  t.q = array_tensor(&v->part[Q]), t.k = array_tensor(&v->part[K]), t.v = array_tensor(&v->part[V]);
  t.dout = array_tensor(&v->part[DOUT]), t.dlse = array_tensor(&v->part[DLSE]);
  t.dq = args.dq, t.dk = args.dk, t.dv = args.dv, t.scalar_grads = args.scalar_grads;
  for (size_t i = 0; i < p->info.num_inputs; i++)
    if (has_gradient(p, i))
      inputs[t.num_inputs++] =
          (luattn_input){p->info.inputs[i].name, array_tensor(&v->part[INPUT + i]), array_tensor(&r->input_grad[i])};
  for (size_t i = 0; i < p->info.num_scalars; i++)
    scalars[t.num_scalars++] = (luattn_scalar){p->info.scalar_names[i], array_get(&v->part[SCALARS], (int64_t)i)};
  args.tangents = &t;
  OK(luattn_cpu_backward_jvp(p->spec, &args, &err));
}

/* ---- differences ---- */

static void move(cli_problem *p, const vector *v, double step) {
  array *const tensors[] = {[Q] = &p->q, [K] = &p->k, [V] = &p->v, [DOUT] = &p->dout, [DLSE] = &p->dlse};
  for (int i = 0; i < SCALARS; i++) {
    array *x = i < INPUT ? tensors[i] : &p->input[i - INPUT];
    for (int64_t j = 0; v->part[i].storage != NULL && j < array_count(x); j++)
      array_set(x, j, array_get(x, j) + step * array_get(&v->part[i], j));
  }
  for (int i = 0; i < p->num_scalars; i++)
    for (size_t j = 0; j < p->info.num_scalars; j++)
      if (strcmp(p->scalar[i].name, p->info.scalar_names[j]) == 0)
        p->scalar[i].value += step * array_get(&v->part[SCALARS], (int64_t)j);
}

static void gradients(const cli_problem *p, cli_result *r) {
  luattn_error err;
  cli_binding bind;
  luattn_args args = problem_args(p, r, true, &bind);
  OK(luattn_cpu_forward(p->spec, &args, &err));
  OK(luattn_cpu_backward(p->spec, &args, &err));
}

/* The least distance of each tangent to quotients of several lengths, freed of their first error. */
static void beside_differences(cli_problem *p, const vector *v, cli_result *got, cli_result r[4]) {
  double error[PARTS] = {0}, big = 0;
  for (int i = 0; i < PARTS; i++) {
    array *a = gradient_of(got, i);
    if (a == NULL || a->storage == NULL) continue;
    double *least = malloc((size_t)array_count(a) * sizeof *least + 1);
    for (int64_t j = 0; j < array_count(a); j++) least[j] = INFINITY, big = fmax(big, fabs(array_get(a, j)));
    for (double step = 0x1p-9; step >= 0x1p-21; step *= 0x1p-4) {
      for (int k = 0; k < 4; k++) {
        const double to = (k % 2 == 0 ? step : -step) / (k < 2 ? 1 : 2);
        move(p, v, to), gradients(p, &r[k]), move(p, v, -to);
      }
      for (int64_t j = 0; j < array_count(a); j++) {
        const double whole = (array_get(gradient_of(&r[0], i), j) - array_get(gradient_of(&r[1], i), j)) / (2 * step),
                     half = (array_get(gradient_of(&r[2], i), j) - array_get(gradient_of(&r[3], i), j)) / step;
        least[j] = fmin(least[j], fabs((4 * half - whole) / 3 - array_get(a, j)));
      }
    }
    for (int64_t j = 0; j < array_count(a); j++) error[i] = worse(error[i], least[j]);
    free(least);
  }
  for (int i = 0; i < PARTS; i++)
    if (!(error[i] <= 1e-6 * fmax(big, 1)))
      fail_msg("%s: the tangent of gradient %d is off by %g (largest %g)", p->info.name, i, error[i], big);
}

static void set_scalars(cli_problem *p) {
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    int at = 0;
    while (at < p->num_scalars && strcmp(p->scalar[at].name, p->info.scalar_names[i]) != 0) at++;
    if (at == p->num_scalars)
      p->scalar[p->num_scalars++] = (luattn_scalar){p->info.scalar_names[i], p->info.scalar_defaults[i]};
  }
}

/* Differences say nothing of what stop_gradient stops, or a backward by hand leaves out. */
static bool differs(const luattn_spec *spec) { return spec_stops_gradient(spec) || spec_gives_backward(spec); }

/* Times of which nine digits are lost (forward_jvp_test.c). */
static double tolerance_of(const char *path) { return strstr(path, "wide_reals") != NULL ? 1e-8 : 1e-11; }

static void check_spec(const char *path) {
  luattn_error err;
  luattn_spec *spec;
  cli_problem of = {.info = {.name = path}}, *p = &of;
  cli_result r[5];
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  const cli_options o = {.spec = path, .dtype = "f64", .shape = "1,2,1,3,66,16,16", .seed = 3};
  double size = 0;
  OK(luattn_spec_load(path, NULL, &spec, &err));
  if (spec->traced.grid_axes <= 1 && spec->derived.missing == NULL) {
    OK(problem_read(spec, &o, true, p, &err));
    set_scalars(p);
    for (int i = 0; i < 5; i++) OK(result_new(p, f64, f64, true, &r[i], &err));
    vector all = random_vector(p, 5, true), t = random_vector(p, 6, false), u = random_vector(p, 7, false);
    if (!differs(spec)) {
      tangents_of(p, &all, &r[0]);
      beside_differences(p, &all, &r[0], &r[1]);
    }
    tangents_of(p, &t, &r[0]), tangents_of(p, &u, &r[1]);
    const double left = dot(&r[0], &u, &size), right = dot(&r[1], &t, &size);
    if (!differs(spec) && !(fabs(left - right) <= tolerance_of(path) * fmax(size, 1)))
      fail_msg("%s: <H t, u> is %.17g, and <t, H u> %.17g (terms of %g)", p->info.name, left, right, size);
    for (int i = 0; i < 5; i++) result_free(&r[i]);
    vector_free(&all), vector_free(&t), vector_free(&u);
    problem_free(p);
  }
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
