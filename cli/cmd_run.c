/* cmd_run.c: luattn run. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/check_jvp.h"
#include "cli/linear_tensors.h"
#include "cli/packed_cpu.h"

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* A [batch, len, heads, dim] view of [batch, heads, len, dim]: the same elements, owned by the given
 * array. */
static array swapped(const array *a) {
  array view = *a;
  array_move_axis(&view, 1, a->t.ndim - 2);
  return view;
}

/* Prints one output, and writes it if a folder is given. */
static luattn_status show(const cli_options *o, const char *name, const array *a, luattn_error *err) {
  if (a->storage == NULL) return LUATTN_OK;
  double sum = 0, big = 0;
  int64_t nan = 0;
  const int64_t n = array_count(a);
  for (int64_t i = 0; i < n; i++) {
    const double x = array_get(a, i);
    if (isnan(x))
      nan++;
    else if (isfinite(x))
      sum += x * x, big = fmax(big, fabs(x));
  }
  printf("  %-14s rms %-11.5g max %-11.5g", name, n > 0 ? sqrt(sum / (double)n) : 0, big);
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

/* A tensor with heads, in the axis order of the files of --q, --k and --v. */
static luattn_status show_tensor(const cli_options *o, const char *name, const cli_problem *p, const array *a,
                                 luattn_error *err) {
  const array file = p->heads_last ? swapped(a) : *a;
  return show(o, name, &file, err);
}

static luattn_status show_all(const cli_options *o, const cli_problem *p, const cli_result *r, luattn_error *err) {
  TRY(show_tensor(o, "out", p, &r->o, err));
  TRY(show(o, "lse", &r->lse, err));
  TRY(show(o, "weights", &r->weights, err));
  TRY(show_tensor(o, "dq", p, &r->dq, err));
  TRY(show_tensor(o, "dk", p, &r->dk, err));
  TRY(show_tensor(o, "dv", p, &r->dv, err));
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    char name[80];
    snprintf(name, sizeof name, "d_%s", p->info.inputs[i].name);
    TRY(show(o, name, &r->input_grad[i], err));
  }
  for (size_t i = 0; r->scalar_grads.storage != NULL && i < p->info.num_scalars; i++) {
    printf("  d_%-12s %.9g\n", p->info.scalar_names[i], array_get(&r->scalar_grads, (int64_t)i));
    if (o->out == NULL) continue;
    char path[4096];
    array one;
    snprintf(path, sizeof path, "%s/d_%s.npy", o->out, p->info.scalar_names[i]);
    TRY(array_new(&one, r->scalar_grads.t.dtype, 0, NULL, false, err));
    array_set(&one, 0, array_get(&r->scalar_grads, (int64_t)i));
    const luattn_status status = npy_write(path, &one, err);
    array_free(&one);
    TRY(status);
  }
  return LUATTN_OK;
}

static luattn_status run_cpu(const cli_problem *p, bool backward, cli_result *r, luattn_error *err) {
  cli_binding bind;
  if (p->sequences != NULL) return packed_run_cpu(p, backward, r, err);
  const luattn_args args = problem_args(p, r, backward, &bind);
  if (r->weights.storage == NULL) {
    TRY(luattn_cpu_forward(p->spec, &args, err));
  } else {
    TRY(luattn_cpu_weights(p->spec, &args, &r->weights.t, err));
  }
  return backward ? luattn_cpu_backward(p->spec, &args, err) : LUATTN_OK;
}

/* Checked before the work, so that a run of minutes does not end on a misspelt folder. */
static luattn_status make_folder(const cli_options *o, luattn_error *err) {
  if (o->out == NULL || mkdir(o->out, 0777) == 0) return LUATTN_OK;
  struct stat st;
  const int reason = errno;
  if (reason == EEXIST && stat(o->out, &st) == 0 && S_ISDIR(st.st_mode)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IO,
                     "--out: '%s' cannot be created: %s; name a folder in one that exists and can be written", o->out,
                     strerror(reason == EEXIST ? ENOTDIR : reason));
}

/* Refuses --dlse alone: it matters only in backward, which was not asked for. */
static luattn_status check_gradients(const cli_options *o, bool backward, luattn_error *err) {
  if (o->dlse == NULL || backward) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "--dlse: '%s' is a gradient that forward does not read; add --dout do.npy, or --backward "
                     "for a random dout",
                     o->dlse);
}

static luattn_status weights_option(const cli_options *o, const cli_problem *p, bool on_gpu, cli_result *r,
                                    luattn_error *err) {
  if (!o->weights) return LUATTN_OK;
  const int64_t rows = p->sequences != NULL ? p->longest[0] : p->q_len,
                columns = p->sequences != NULL ? p->longest[1] : p->kv_len;
  TRY(array_new(&r->weights, dtype_dl(on_gpu && p->dtype != LUATTN_F64 ? LUATTN_F32 : LUATTN_F64), 4,
                (int64_t[]){p->batch, p->heads, rows, columns}, false, err));
  r->weights.t.shape = r->weights.shape, r->weights.t.strides = r->weights.stride;
  return LUATTN_OK;
}

/* --tangents: those of out and lse along random ones. */
static luattn_status show_tangents(const cli_options *o, const cli_problem *p, const cli_result *r, luattn_error *err) {
  cli_tangents t;
  cli_binding bind;
  if (!o->tangents) return LUATTN_OK;
  luattn_args args = problem_args(p, r, false, &bind);
  TRY(tangents_new(p, (uint64_t)o->seed + 1, &t, err));
  args.tangents = &t.given;
  luattn_status status = luattn_cpu_forward_jvp(p->spec, &args, err);
  if (status == LUATTN_OK) status = show_tensor(o, "q_tangent", p, &t.q, err);
  if (status == LUATTN_OK) status = show_tensor(o, "k_tangent", p, &t.k, err);
  if (status == LUATTN_OK) status = show_tensor(o, "v_tangent", p, &t.v, err);
  for (size_t i = 0; i < p->info.num_inputs && status == LUATTN_OK; i++) {
    char name[80];
    snprintf(name, sizeof name, "%s_tangent", p->info.inputs[i].name);
    status = show(o, name, &t.input[i], err);
  }
  for (size_t i = 0; i < t.given.num_scalars && status == LUATTN_OK; i++)
    printf("  %s_tangent %.9g\n", t.scalar[i].name, t.scalar[i].value);
  if (status == LUATTN_OK) status = show_tensor(o, "out_tangent", p, &t.o, err);
  if (status == LUATTN_OK) status = show(o, "lse_tangent", &t.lse, err);
  tangents_free(&t);
  return status;
}

static luattn_status run(const cli_options *o, const cli_problem *p, bool backward, luattn_error *err) {
  cli_gpu *gpu;
  cli_result r;
  TRY(make_folder(o, err));
  TRY(gpu_pick(o, &gpu, err));
  if (gpu != NULL && o->tangents) {
    gpu_close(gpu);
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "--tangents: the command line shows tangents of the CPU path alone; give --device cpu, too");
  }
  const luattn_dtype real = gpu == NULL || p->dtype == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32;
  /* On the CPU everything is written as float64, without loss. */
  luattn_status status =
      result_new(p, dtype_dl(gpu == NULL ? LUATTN_F64 : p->dtype), dtype_dl(real), backward, &r, err);
  if (status == LUATTN_OK) {
    const double start = now_ms();
    status = weights_option(o, p, gpu != NULL, &r, err);
    if (status == LUATTN_OK) status = gpu != NULL ? gpu_run(gpu, p, backward, &r, err) : run_cpu(p, backward, &r, err);
    if (status == LUATTN_OK) {
      char text[PROBLEM_TEXT];
      printf("%s: %s on %s: %s %s, %.1f ms\n", p->info.name, backward ? "forward and backward" : "forward",
             gpu != NULL ? gpu_name(gpu) : "cpu, in double precision", problem_text(p, text),
             kernel_dtype_name(p->dtype), now_ms() - start);
      if (gpu != NULL) gpu_print_tuning(gpu);
      status = show_all(o, p, &r, err);
      if (status == LUATTN_OK) status = show_tangents(o, p, &r, err);
    }
    result_free(&r);
  }
  gpu_close(gpu);
  return status;
}

int cmd_run(const cli_options *o) {
  luattn_error err;
  luattn_spec *spec;
  cli_problem p;
  const bool backward = o->backward || o->dout != NULL;
  if (check_gradients(o, backward, &err) != LUATTN_OK) return cli_fail(&err);
  if (spec_option(o, &spec, &err) != LUATTN_OK) return cli_fail(&err);
  if (luattn_spec_form(spec) == LUATTN_FORM_LINEAR) {
    const int code = linear_run(o, spec);
    luattn_spec_free(spec);
    return code;
  }
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  luattn_status status = backward && !info.has_backward
                             ? luattn_fail(&err, LUATTN_UNSUPPORTED, "%s", info.why_no_backward)
                             : problem_read(spec, o, backward, &p, &err);
  if (status == LUATTN_OK) {
    status = run(o, &p, backward, &err);
    problem_free(&p);
  }
  luattn_spec_free(spec);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
