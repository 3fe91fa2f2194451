/* linear_commands.c: luattn run and luattn check for a spec of linear attention. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/check.h"
#include "cli/linear_gpu.h"
#include "cli/linear_tensors.h"
#include "cli/random_array.h"

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- run ---- */

static luattn_status make_folder(const cli_options *o, luattn_error *err) {
  struct stat st;
  if (o->out == NULL || mkdir(o->out, 0777) == 0) return LUATTN_OK;
  const int reason = errno;
  if (reason == EEXIST && stat(o->out, &st) == 0 && S_ISDIR(st.st_mode)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IO,
                     "--out: '%s' cannot be created: %s; name a folder in one that exists and can be written", o->out,
                     strerror(reason == EEXIST ? ENOTDIR : reason));
}

static luattn_status show(const cli_options *o, const char *name, const array *a, luattn_error *err) {
  double sum = 0, most = 0;
  int64_t nan = 0;
  const int64_t n = a->storage != NULL ? array_count(a) : 0;
  if (a->storage == NULL) return LUATTN_OK;
  for (int64_t i = 0; i < n; i++) {
    const double x = array_get(a, i);
    nan += isnan(x);
    if (isfinite(x)) sum += x * x, most = fmax(most, fabs(x));
  }
  printf("  %-14s rms %-11.5g max %-11.5g", name, n > 0 ? sqrt(sum / (double)n) : 0, most);
  if (nan > 0) printf("  %lld NaN", (long long)nan);
  if (o->out != NULL) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.npy", o->out, name);
    TRY(npy_write(path, a, err));
    printf("  -> %s", path);
  }
  printf("\n");
  return LUATTN_OK;
}

static luattn_status show_all(const cli_options *o, const linear_tensors *t, luattn_error *err) {
  char name[80];
  TRY(show(o, "out", &t->o, err));
  TRY(show(o, "final_state", &t->final, err));
  TRY(show(o, "dq", &t->dq, err));
  TRY(show(o, "dk", &t->dk, err));
  TRY(show(o, "dv", &t->dv, err));
  for (size_t i = 0; i < t->info.num_inputs; i++) {
    snprintf(name, sizeof name, "d_%s", t->info.inputs[i].name);
    TRY(show(o, name, &t->input_grad[i], err));
  }
  for (size_t i = 0; t->scalar_grads.storage != NULL && i < t->info.num_scalars; i++)
    printf("  d_%-12s %.9g\n", t->info.scalar_names[i], array_get(&t->scalar_grads, (int64_t)i));
  return LUATTN_OK;
}

static luattn_status run_there(cli_gpu *g, linear_tensors *t, bool backward, luattn_error *err) {
  TRY(linear_results_new(t, dtype_dl(t->dtype), linear_sums_type(t), backward, err));
  return linear_gpu_run(g, t, backward, NULL, 0, err);
}

static luattn_status run_here(linear_tensors *t, bool backward, luattn_error *err) {
  TRY(linear_results_new(t, dtype_dl(LUATTN_F64), dtype_dl(LUATTN_F64), backward, err));
  const luattn_linear_args args = linear_tensors_args(t);
  TRY(luattn_cpu_linear_forward(t->spec, &args, err));
  return backward ? luattn_cpu_linear_backward(t->spec, &args, err) : LUATTN_OK;
}

static luattn_status run(const cli_options *o, linear_tensors *t, cli_gpu *g, bool backward, luattn_error *err) {
  char text[PROBLEM_TEXT];
  TRY(make_folder(o, err));
  const double start = now_ms();
  TRY(g != NULL ? run_there(g, t, backward, err) : run_here(t, backward, err));
  printf("%s: %s on %s: %s %s, %.1f ms\n", t->info.name, backward ? "forward and backward" : "forward",
         g != NULL ? gpu_name(g) : "cpu, in double precision", linear_tensors_text(t, text),
         kernel_dtype_name(t->dtype), now_ms() - start);
  return show_all(o, t, err);
}

/* The device that --device names; NULL: the CPU, also without the option. */
static luattn_status pick(const cli_options *o, cli_gpu **out, luattn_error *err) {
  *out = NULL;
  return o->device != NULL ? gpu_pick(o, out, err) : LUATTN_OK;
}

int linear_run(const cli_options *o, const luattn_spec *spec) {
  linear_tensors t;
  luattn_error err;
  cli_gpu *g = NULL;
  luattn_status status = linear_tensors_read(spec, o, "1,256,2,2,64", false, &t, &err);
  if (status == LUATTN_OK) {
    status = pick(o, &g, &err);
    if (status == LUATTN_OK) status = run(o, &t, g, o->backward || o->dout != NULL, &err);
    gpu_close(g);
    linear_tensors_free(&t);
  }
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}

/* ---- check ---- */

static double most_of(const array *a) {
  double most = 0;
  for (int64_t i = 0, n = array_count(a); i < n; i++) most = fmax(most, fabs(array_get(a, i)));
  return most;
}

static double distance(const array *a, const array *b) {
  double most = 0;
  for (int64_t i = 0, n = array_count(a); i < n; i++) most = check_worse(most, fabs(array_get(a, i) - array_get(b, i)));
  return most;
}

/* The loss of which `dout` and `dfinal` are the gradients, where what `moved` points to has moved by `step` along `way`. */
static luattn_status loss_at(linear_tensors *t, array *moved, const array *way, double step, double *loss,
                             luattn_error *err) {
  const int64_t n = array_count(moved);
  luattn_linear_args args = linear_tensors_args(t);
  for (int64_t i = 0; i < n; i++) array_set(moved, i, array_get(moved, i) + step * array_get(way, i));
  const luattn_status status = luattn_cpu_linear_forward(t->spec, &args, err);
  *loss = 0;
  for (int64_t i = 0; i < array_count(&t->o); i++) *loss += array_get(&t->o, i) * array_get(&t->dout, i);
  for (int64_t i = 0; i < array_count(&t->final); i++) *loss += array_get(&t->final, i) * array_get(&t->dfinal, i);
  return status;
}

/* The change of the loss along a random direction beside what the gradient says. A bend within the step of one quotient
 * is not within that of the other. */
static luattn_status check_slope(linear_tensors *t, const char *name, array *x, const array *grad, uint64_t *seed,
                                 check_report *r, luattn_error *err) {
  array way, kept;
  double found = 0, error = INFINITY, size = 0;
  TRY(array_new(&way, dtype_dl(LUATTN_F64), x->t.ndim, x->shape, false, err));
  luattn_status status = array_new(&kept, dtype_dl(LUATTN_F64), x->t.ndim, x->shape, false, err);
  if (status != LUATTN_OK) return array_free(&way), status;
  random_normal(&way, 1, seed);
  for (int64_t i = 0, n = array_count(x); i < n; i++) {
    array_set(&kept, i, array_get(x, i));
    found += array_get(grad, i) * array_get(&way, i);
    size += fabs(array_get(grad, i) * array_get(&way, i));
  }
  for (double step = 1e-4; step > 1e-6 && status == LUATTN_OK; step /= 8) {
    double high = 0, low = 0;
    status = loss_at(t, x, &way, step, &high, err);
    for (int64_t i = 0; i < array_count(x); i++) array_set(x, i, array_get(&kept, i));
    if (status == LUATTN_OK) status = loss_at(t, x, &way, -step, &low, err);
    for (int64_t i = 0; i < array_count(x); i++) array_set(x, i, array_get(&kept, i));
    const double off = fabs((high - low) / (2 * step) - found);
    if (off < error) error = off;
    size = fmax(size, fabs(high) * 1e-4);
  }
  if (status == LUATTN_OK) check_add(r, name, isnan(found) ? NAN : error, 1e-6 * (1e-3 + size));
  array_free(&way);
  array_free(&kept);
  return status;
}

/* The change of the loss between a scalar's value plus and less a step. */
static luattn_status scalar_change(linear_tensors *t, double *value, double step, double *change, double *loss,
                                   luattn_error *err) {
  const double kept = *value;
  double high = 0, low = 0;
  array none = {.t = {.ndim = 1}};
  *value = kept + step;
  luattn_status status = loss_at(t, &none, &none, 0, &high, err);
  *value = kept - step;
  if (status == LUATTN_OK) status = loss_at(t, &none, &none, 0, &low, err);
  *value = kept;
  *change = high - low, *loss = fabs(high);
  return status;
}

/* A change that does not shrink with the step is that of a jump, where there is no derivative. */
static luattn_status check_scalar(linear_tensors *t, int i, check_report *r, luattn_error *err) {
  char name[80];
  const double at = array_get(&t->scalar_grads, i);
  double error = INFINITY, size = fabs(at), first = 0, change = 0, loss;
  int mine = 0;
  while (mine < t->num_scalars && strcmp(t->scalar[mine].name, t->info.scalar_names[i]) != 0) mine++;
  const bool is_new = mine == t->num_scalars;
  if (is_new && mine == CLI_MAX_PAIRS) return LUATTN_OK;
  if (is_new) t->scalar[t->num_scalars++] = (luattn_scalar){t->info.scalar_names[i], t->info.scalar_defaults[i]};
  luattn_status status = LUATTN_OK;
  for (double step = 1e-4; step > 1e-6 && status == LUATTN_OK; step /= 8) {
    status = scalar_change(t, &t->scalar[mine].value, step, &change, &loss, err);
    if (first == 0) first = change;
    error = fmin(error, fabs(change / (2 * step) - at));
    size = fmax(size, loss * 1e-4);
  }
  t->num_scalars -= is_new;
  snprintf(name, sizeof name, "d_%s", t->info.scalar_names[i]);
  const double tolerance = 1e-6 * (1e-3 + size);
  r->scalar_names = t->info.scalar_names;
  if (status == LUATTN_OK && error > tolerance && fabs(change) > 0.5 * fabs(first))
    r->jumps |= UINT32_C(1) << i;
  else if (status == LUATTN_OK)
    check_add(r, name, isnan(at) ? NAN : error, tolerance);
  return status;
}

static luattn_status check_gradients(linear_tensors *t, uint64_t seed, check_report *r, luattn_error *err) {
  const struct {
    const char *name;
    array *x;
    const array *grad;
  } all[] = {{"dq", &t->q, &t->dq},
             {"dk", &t->k, &t->dk},
             {"dv", &t->v, &t->dv},
             {"d_initial_state", &t->initial, &t->dinitial}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    TRY(check_slope(t, all[i].name, all[i].x, all[i].grad, &seed, r, err));
  for (size_t i = 0; i < t->info.num_inputs; i++) {
    char name[80];
    snprintf(name, sizeof name, "d_%s", t->info.inputs[i].name);
    if (t->input_grad[i].storage != NULL) TRY(check_slope(t, name, &t->input[i], &t->input_grad[i], &seed, r, err));
  }
  for (size_t i = 0; i < t->info.num_scalars; i++) TRY(check_scalar(t, (int)i, r, err));
  return LUATTN_OK;
}

static luattn_status check(const cli_options *o, linear_tensors *t, check_report *r, luattn_error *err) {
  array out, final;
  TRY(linear_results_new(t, dtype_dl(LUATTN_F64), dtype_dl(LUATTN_F64), true, err));
  const luattn_linear_args args = linear_tensors_args(t);
  TRY(luattn_cpu_linear_forward(t->spec, &args, err));
  TRY(luattn_cpu_linear_backward(t->spec, &args, err));
  TRY(array_new(&out, dtype_dl(LUATTN_F64), 4, t->o.shape, false, err));
  luattn_status status = array_new(&final, dtype_dl(LUATTN_F64), 4, t->final.shape, false, err);
  for (int64_t i = 0; status == LUATTN_OK && i < array_count(&out); i++) array_set(&out, i, 0);
  if (status == LUATTN_OK) status = linear_naive(o, t, &out, &final, err);
  if (status == LUATTN_OK) {
    check_add(r, "out", distance(&t->o, &out), 1e-12 + 1e-12 * most_of(&out));
    check_add(r, "final_state", distance(&t->final, &final), 1e-12 + 1e-12 * most_of(&final));
    status = check_gradients(t, (uint64_t)o->seed + 1, r, err);
  }
  array_free(&out);
  array_free(&final);
  return status;
}

static int finish(const check_report *r, luattn_status status, luattn_error *err) {
  if (status != LUATTN_OK) return cli_fail(err);
  printf(r->failed > 0 ? "FAILED\n" : "all within tolerance\n");
  return r->failed > 0 ? 1 : 0;
}

/* Kernels against the CPU. */
static int check_there(const cli_options *given, const luattn_spec *spec, cli_gpu *g) {
  cli_options o = *given;
  linear_tensors t;
  luattn_error err;
  check_report r = {.count = 0};
  char text[PROBLEM_TEXT], title[512];
  if (o.dtype == NULL) o.dtype = "bf16";
  luattn_status status = linear_tensors_read(spec, &o, "2,200,1,2,64,64", true, &t, &err);
  if (status != LUATTN_OK) return cli_fail(&err);
  status = linear_gpu_check(g, &t, &r, &err);
  if (status == LUATTN_OK) {
    snprintf(title, sizeof title,
             "%s: %s on %s against the CPU path, in double precision, relative root mean squares (%s)", t.info.name,
             o.dtype, gpu_name(g), linear_tensors_text(&t, text));
    check_print(title, &r);
  }
  linear_tensors_free(&t);
  return finish(&r, status, &err);
}

/* Differences need float64, and so do tensors that are moved. */
static int check_here(const cli_options *given, const luattn_spec *spec) {
  cli_options o = *given;
  linear_tensors t;
  luattn_error err;
  check_report r = {.count = 0};
  char text[PROBLEM_TEXT], title[512];
  if (given->dtype != NULL) printf("no kernels run, so --dtype changes nothing: plain Lua is in f64\n");
  o.dtype = "f64";
  luattn_status status = spec_can_be_reread(o.spec, &err);
  if (status == LUATTN_OK) status = linear_tensors_read(spec, &o, "2,19,1,2,6,5", true, &t, &err);
  if (status != LUATTN_OK) return cli_fail(&err);
  status = check(&o, &t, &r, &err);
  if (status == LUATTN_OK) {
    snprintf(title, sizeof title,
             "%s: the CPU path against plain Lua, where a token reads what each one before it has written, and against "
             "differences (%s)",
             t.info.name, linear_tensors_text(&t, text));
    check_print(title, &r);
  }
  linear_tensors_free(&t);
  return finish(&r, status, &err);
}

int linear_check(const cli_options *given, const luattn_spec *spec) {
  luattn_error err;
  cli_gpu *g;
  if (pick(given, &g, &err) != LUATTN_OK) return cli_fail(&err);
  if (g == NULL) return check_here(given, spec);
  const int code = check_there(given, spec, g);
  gpu_close(g);
  return code;
}
