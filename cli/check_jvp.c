#include "cli/check_jvp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/random_array.h"
#include "gen/spec.h"

/* ---- tangents ---- */

/* Random multiples of a quarter, so that a step along them is exact in float32. */
static luattn_status fill_like(const array *like, bool heads_last, uint64_t *seed, array *out, luattn_error *err) {
  TRY(array_new(out, like->t.dtype, like->t.ndim, like->shape, heads_last, err));
  random_normal(out, 1, seed);
  for (int64_t i = 0, n = array_count(out); i < n; i++) array_set(out, i, round(4 * array_get(out, i)) / 4);
  return LUATTN_OK;
}

static bool is_real(const array *a) { return a->t.dtype.code == kDLFloat || a->t.dtype.code == kDLBfloat; }

static luattn_status fill(const cli_problem *p, uint64_t seed, cli_tangents *t, luattn_error *err) {
  const DLDataType real = dtype_dl(LUATTN_F64);
  TRY(fill_like(&p->q, p->heads_last, &seed, &t->q, err));
  TRY(fill_like(&p->k, p->heads_last, &seed, &t->k, err));
  TRY(fill_like(&p->v, p->heads_last, &seed, &t->v, err));
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    if (!is_real(&p->input[i])) continue;
    TRY(fill_like(&p->input[i], false, &seed, &t->input[i], err));
    t->inputs[t->given.num_inputs++] = (luattn_input){p->info.inputs[i].name, array_tensor(&t->input[i]), NULL};
  }
  for (size_t i = 0; i < p->info.num_scalars; i++)
    t->scalar[t->given.num_scalars++] =
        (luattn_scalar){p->info.scalar_names[i], round(8 * (random_uniform(&seed) - 0.5)) / 4 + 0.125};
  int64_t shape[ARRAY_MAX_AXES];
  const int ndim = p->q.t.ndim;
  memcpy(shape, p->q.shape, sizeof shape);
  shape[ndim - 1] = p->dim_v;
  TRY(array_new(&t->o, real, ndim, shape, p->heads_last, err));
  if (p->info.has_lse) TRY(array_new(&t->lse, real, ndim - 1, shape, false, err));
  if (p->dout.storage != NULL) TRY(fill_like(&p->dout, p->heads_last, &seed, &t->dout, err));
  if (p->dlse.storage != NULL) TRY(fill_like(&p->dlse, false, &seed, &t->dlse, err));
  t->given.q = array_tensor(&t->q), t->given.k = array_tensor(&t->k), t->given.v = array_tensor(&t->v);
  t->given.o = array_tensor(&t->o), t->given.lse = array_tensor(&t->lse);
  t->given.inputs = t->inputs, t->given.scalars = t->scalar;
  return LUATTN_OK;
}

luattn_status tangents_new(const cli_problem *p, uint64_t seed, cli_tangents *out, luattn_error *err) {
  *out = (cli_tangents){.given = {.struct_size = sizeof out->given}};
  luattn_status status =
      p->sequences == NULL
          ? LUATTN_OK
          : luattn_fail(err, LUATTN_UNSUPPORTED,
                        "--cu-seqlens: tangents of packed sequences are not shown by the command line; leave it out");
  if (status == LUATTN_OK) status = fill(p, seed, out, err);
  if (status != LUATTN_OK) tangents_free(out);
  return status;
}

void tangents_free(cli_tangents *t) {
  array *const all[] = {&t->q, &t->k, &t->v, &t->o, &t->lse, &t->dout, &t->dlse};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) array_free(all[i]);
  for (size_t i = 0; i < sizeof t->input / sizeof *t->input; i++) array_free(&t->input[i]);
}

/* ---- central differences ---- */

static void add(array *x, const array *along, double step) {
  for (int64_t i = 0, n = along->storage != NULL ? array_count(along) : 0; i < n; i++)
    array_set(x, i, array_get(x, i) + step * array_get(along, i));
}

/* Moves the problem, whose scalars all have a value, by a step along the tangents. */
static void move(cli_problem *p, const cli_tangents *t, double step) {
  add(&p->q, &t->q, step), add(&p->k, &t->k, step), add(&p->v, &t->v, step);
  for (size_t i = 0; i < p->info.num_inputs; i++) add(&p->input[i], &t->input[i], step);
  for (int i = 0; i < p->num_scalars; i++)
    for (size_t j = 0; j < t->given.num_scalars; j++)
      if (strcmp(p->scalar[i].name, t->scalar[j].name) == 0) p->scalar[i].value += step * t->scalar[j].value;
}

static void set_scalars(cli_problem *p) {
  for (size_t i = 0; i < p->info.num_scalars; i++) {
    int at = 0;
    while (at < p->num_scalars && strcmp(p->scalar[at].name, p->info.scalar_names[i]) != 0) at++;
    if (at == p->num_scalars)
      p->scalar[p->num_scalars++] = (luattn_scalar){p->info.scalar_names[i], p->info.scalar_defaults[i]};
  }
}

/* Of o and lse, one after the other: (f(x + step t) - f(x - step t)) / (2 step), into quotient. */
static luattn_status difference(const cli_options *o, cli_problem *p, const cli_tangents *t, double step,
                                cli_result *scratch, double *quotient, luattn_error *err) {
  const int64_t n = array_count(&scratch->o), rows = p->info.has_lse ? array_count(&scratch->lse) : 0;
  luattn_status status = LUATTN_OK;
  for (int side = 0; side < 2 && status == LUATTN_OK; side++) {
    const double to = side == 0 ? step : -step;
    move(p, t, to);
    status = naive_forward(o, p, scratch, err);
    move(p, t, -to);
    for (int64_t i = 0; i < n + rows && status == LUATTN_OK; i++) {
      const double x = i < n ? array_get(&scratch->o, i) : array_get(&scratch->lse, i - n);
      quotient[i] = side == 0 ? x / (2 * step) : quotient[i] - x / (2 * step);
    }
  }
  return status;
}

/* The least distance of each tangent to quotients of four lengths, freed of their first error (Richardson): short steps
 * round, and long ones cross kinks. error: as `difference` orders it. */
static luattn_status least_errors(const cli_options *o, cli_problem *p, const cli_tangents *t, cli_result *scratch,
                                  const double *tangent, int64_t n, double *error, luattn_error *err) {
  double *whole = malloc(2 * (size_t)n * sizeof *whole + 1), *half = whole + n;
  luattn_status status =
      whole != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for difference quotients");
  for (int64_t i = 0; i < n; i++) error[i] = INFINITY;
  for (double step = 0x1p-10; step >= 0x1p-22 && status == LUATTN_OK; step *= 0x1p-4) {
    status = difference(o, p, t, step, scratch, whole, err);
    if (status == LUATTN_OK) status = difference(o, p, t, step / 2, scratch, half, err);
    for (int64_t i = 0; i < n && status == LUATTN_OK; i++) {
      const double slope = (4 * half[i] - whole[i]) / 3;
      if (isnan(slope))
        error[i] = isfinite(tangent[i]) ? 0 : INFINITY; /* of lse, -inf on both sides */
      else
        error[i] = fmin(error[i], fabs(slope - tangent[i]));
    }
  }
  free(whole);
  return status;
}

static luattn_status beside_differences(const cli_options *o, cli_problem *p, const cli_tangents *t,
                                        cli_result *scratch, check_report *out, luattn_error *err) {
  const int64_t n = array_count(&t->o), rows = t->lse.storage != NULL ? array_count(&t->lse) : 0, all = n + rows;
  double *tangent = malloc(2 * (size_t)all * sizeof *tangent + 1), *error = tangent + all, most[2] = {0}, big[2] = {0};
  if (tangent == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "check: no memory for difference quotients");
  for (int64_t i = 0; i < all; i++) tangent[i] = i < n ? array_get(&t->o, i) : array_get(&t->lse, i - n);
  const luattn_status status = least_errors(o, p, t, scratch, tangent, all, error, err);
  for (int64_t i = 0; i < all && status == LUATTN_OK; i++) {
    most[i >= n] = fmax(most[i >= n], error[i]);
    big[i >= n] = fmax(big[i >= n], fabs(tangent[i]));
  }
  free(tangent);
  TRY(status);
  check_add(out, "tangent of o", most[0], 1e-8 * fmax(1, big[0]));
  if (rows > 0) check_add(out, "tangent of lse", most[1], 1e-8 * fmax(1, big[1]));
  return LUATTN_OK;
}

/* ---- <J t, u> = <t, J' u> ---- */

static double dot(const array *a, const array *b, double *size) {
  double sum = 0;
  for (int64_t i = 0; a->storage != NULL && b->storage != NULL && i < array_count(a); i++) {
    const double x = array_get(a, i) * array_get(b, i);
    sum += x, *size += fabs(x);
  }
  return sum;
}

static void add_adjoint(const cli_problem *p, const cli_tangents *t, const cli_result *r, check_report *out) {
  double size = 0, left = dot(&t->o, &p->dout, &size) + dot(&t->lse, &p->dlse, &size);
  double right = dot(&t->q, &r->dq, &size) + dot(&t->k, &r->dk, &size) + dot(&t->v, &r->dv, &size);
  for (size_t i = 0; i < p->info.num_inputs; i++) right += dot(&t->input[i], &r->input_grad[i], &size);
  for (size_t i = 0; i < t->given.num_scalars && r->scalar_grads.storage != NULL; i++) {
    const double x = t->scalar[i].value * array_get(&r->scalar_grads, (int64_t)i);
    right += x, size += fabs(x);
  }
  check_add(out, "<J t, u> - <t, J' u>", fabs(left - right), 1e-12 * fmax(1, size));
}

/* Inputs that say no grad have no place in J'. */
static luattn_status beside_backward(const cli_problem *p, cli_tangents *t, cli_result *r, check_report *out,
                                     luattn_error *err) {
  cli_binding bind;
  size_t n = 0;
  for (size_t i = 0; i < p->info.num_inputs; i++)
    if (!p->info.inputs[i].grad) array_free(&t->input[i]), t->input[i] = (array){0};
  for (size_t i = 0; i < p->info.num_inputs; i++)
    if (t->input[i].storage != NULL)
      t->inputs[n++] = (luattn_input){p->info.inputs[i].name, array_tensor(&t->input[i]), NULL};
  t->given.num_inputs = n;
  luattn_args args = problem_args(p, r, true, &bind);
  TRY(luattn_cpu_forward(p->spec, &args, err));
  TRY(luattn_cpu_backward(p->spec, &args, err));
  args.tangents = &t->given;
  TRY(luattn_cpu_forward_jvp(p->spec, &args, err));
  add_adjoint(p, t, r, out);
  return LUATTN_OK;
}

static luattn_status check_along(const cli_options *o, cli_problem *p, cli_tangents *t, cli_result *r,
                                 check_report *out, luattn_error *err) {
  cli_binding bind;
  luattn_args args = problem_args(p, r, false, &bind);
  args.tangents = &t->given;
  TRY(luattn_cpu_forward_jvp(p->spec, &args, err));
  out->stops_gradient = spec_stops_gradient(p->spec);
  if (!out->stops_gradient) TRY(beside_differences(o, p, t, r, out, err));
  if (!p->info.has_backward || spec_gives_backward(p->spec)) return LUATTN_OK;
  return beside_backward(p, t, r, out, err);
}

luattn_status check_jvp(const cli_options *o, cli_problem *p, check_report *out, luattn_error *err) {
  cli_tangents t;
  cli_result r;
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  *out = (check_report){0};
  set_scalars(p);
  TRY(tangents_new(p, (uint64_t)o->seed + 1, &t, err));
  luattn_status status = result_new(p, f64, f64, p->info.has_backward, &r, err);
  if (status == LUATTN_OK) {
    status = check_along(o, p, &t, &r, out, err);
    result_free(&r);
  }
  tangents_free(&t);
  return status;
}
