#include "cli/linear_gpu.h"

#include <math.h>
#include <string.h>

#include "cli/gpu.h"
#include "cli/random_array.h"

typedef luattn_status (*size_function)(luattn_engine *, const luattn_spec *, const luattn_linear_args *, size_t *,
                                       luattn_error *);
typedef luattn_status (*pass_function)(luattn_engine *, const luattn_spec *, const luattn_linear_args *, void *,
                                       luattn_error *);

/* ---- run ---- */

typedef struct linear_there {
  luattn_linear_args args;
  DLTensor tensor[16], input[12], input_grad[12];
  luattn_input binding[12];
} linear_there;

static luattn_status upload(gpu_buffers *b, linear_tensors *t, linear_there *d, luattn_error *err) {
  d->args = linear_tensors_args(t);
  luattn_linear_args *a = &d->args;
  const DLTensor **const reads[] = {&a->q, &a->k, &a->v, &a->dout, &a->cu_seqlens, &a->initial_state, &a->dfinal_state};
  const DLTensor **const writes[] = {&a->o,  &a->final_state,    &a->dq,          &a->dk,
                                     &a->dv, &a->dinitial_state, &a->scalar_grads};
  int n = 0;
  for (size_t i = 0; i < sizeof reads / sizeof *reads; i++, n++) TRY(gpu_twin(b, reads[i], &d->tensor[n], true, err));
  for (size_t i = 0; i < sizeof writes / sizeof *writes; i++, n++)
    TRY(gpu_twin(b, writes[i], &d->tensor[n], false, err));
  memcpy(d->binding, t->binding, sizeof d->binding);
  for (size_t i = 0; i < a->num_inputs; i++) {
    TRY(gpu_twin(b, &d->binding[i].tensor, &d->input[i], true, err));
    TRY(gpu_twin(b, &d->binding[i].grad, &d->input_grad[i], false, err));
  }
  a->inputs = d->binding;
  return LUATTN_OK;
}

static luattn_status download(gpu_buffers *b, const linear_there *d, linear_tensors *t, luattn_error *err) {
  const luattn_linear_args *a = &d->args;
  TRY(gpu_download(b, &t->o, a->o, err));
  TRY(gpu_download(b, &t->final, a->final_state, err));
  TRY(gpu_download(b, &t->dq, a->dq, err));
  TRY(gpu_download(b, &t->dk, a->dk, err));
  TRY(gpu_download(b, &t->dv, a->dv, err));
  TRY(gpu_download(b, &t->dinitial, a->dinitial_state, err));
  TRY(gpu_download(b, &t->scalar_grads, a->scalar_grads, err));
  for (size_t i = 0; i < a->num_inputs; i++) TRY(gpu_download(b, &t->input_grad[i], d->binding[i].grad, err));
  return LUATTN_OK;
}

static luattn_status run_pass(gpu_buffers *b, const linear_tensors *t, linear_there *d, size_function size_of,
                              pass_function pass, luattn_error *err) {
  luattn_linear_args *a = &d->args;
  a->workspace = NULL;
  TRY(size_of(b->g->engine, t->spec, a, &a->workspace_size, err));
  if (a->workspace_size > 0) TRY(gpu_buffer_new(b, a->workspace_size, &a->workspace, err));
  return pass(b->g->engine, t->spec, a, NULL, err);
}

static luattn_status run(gpu_buffers *b, linear_tensors *t, bool backward, char *no_backward, size_t size,
                         luattn_error *err) {
  linear_there d;
  TRY(upload(b, t, &d, err));
  TRY(run_pass(b, t, &d, luattn_linear_workspace_size, luattn_linear_forward, err));
  luattn_status status = LUATTN_OK;
  if (backward) status = run_pass(b, t, &d, luattn_linear_backward_workspace_size, luattn_linear_backward, err);
  if (no_backward != NULL) no_backward[0] = 0;
  if (status == LUATTN_UNSUPPORTED && no_backward != NULL) {
    snprintf(no_backward, size, "%s", err->message);
    status = LUATTN_OK;
  }
  if (status != LUATTN_OK) return status;
  TRY(luattn_synchronize(b->g->driver, b->g->device, NULL, err));
  TRY(gpu_guards_intact(b, err));
  return download(b, &d, t, err);
}

luattn_status linear_gpu_run(cli_gpu *g, linear_tensors *t, bool backward, char *no_backward, size_t size,
                             luattn_error *err) {
  gpu_buffers b = {.g = g};
  const luattn_status status = run(&b, t, backward, no_backward, size, err);
  gpu_buffers_free(&b);
  return status;
}

/* ---- check ---- */

/* Adds the root mean square of the difference, relative to that of `want`. */
static void compare(check_report *r, const char *name, const array *got, const array *want, double most) {
  double off = 0, size = 0;
  if (want->storage == NULL) return;
  for (int64_t i = 0, n = array_count(want); i < n; i++) {
    const double x = array_get(got, i), y = array_get(want, i);
    off += (x - y) * (x - y), size += y * y;
  }
  check_add(r, name, size > 0 ? sqrt(off / size) : sqrt(off), most);
}

/* t without results. */
static linear_tensors without_results(const linear_tensors *t) {
  linear_tensors u = *t;
  array *const results[] = {&u.o, &u.final, &u.dq, &u.dk, &u.dv, &u.dinitial, &u.scalar_grads};
  for (size_t i = 0; i < sizeof results / sizeof *results; i++) *results[i] = (array){0};
  for (int i = 0; i < 12; i++) u.input_grad[i] = (array){0};
  return u;
}

/* Sums over tokens may cancel to nearly nothing, whatever their terms are off by. How large the terms of each are: the root of
 * the sum of their squares, relative to the sum's. */
typedef struct sum_sizes {
  double scalars, input[12];
} sum_sizes;

static double squares_of(const array *a) {
  double sum = 0;
  for (int64_t i = 0, n = a->storage != NULL ? array_count(a) : 0; i < n; i++) sum += array_get(a, i) * array_get(a, i);
  return sum;
}

/* Gives each row of a, which has so many channels, a sign at random. */
static void flip_rows(array *a, uint64_t *seed) {
  if (a->storage == NULL) return;
  const int64_t channels = a->shape[3];
  for (int64_t row = 0, rows = array_count(a) / channels; row < rows; row++)
    if (random_uniform(seed) < 0.5)
      for (int64_t i = row * channels; i < (row + 1) * channels; i++) array_set(a, i, -array_get(a, i));
}

/* A gradient is a linear function of dout and dfinal: with signs at random for their rows, the mean of its squares is the sum
 * of the squares of its terms, one of each row. want: of dout as it is, which it is again in the end. */
static luattn_status find_sizes(linear_tensors *want, sum_sizes *out, luattn_error *err) {
  enum { TIMES = 8 };
  uint64_t seed = 1;
  sum_sizes squares = {0};
  for (int time = 0; time < TIMES; time++) {
    uint64_t back = seed;
    flip_rows(&want->dout, &seed), flip_rows(&want->dfinal, &seed);
    linear_tensors signs = without_results(want);
    luattn_status status = linear_results_new(&signs, dtype_dl(LUATTN_F64), dtype_dl(LUATTN_F64), true, err);
    const luattn_linear_args args = linear_tensors_args(&signs);
    if (status == LUATTN_OK) status = luattn_cpu_linear_backward(signs.spec, &args, err);
    squares.scalars += squares_of(&signs.scalar_grads) / TIMES;
    for (int i = 0; i < 12; i++) squares.input[i] += squares_of(&signs.input_grad[i]) / TIMES;
    linear_results_free(&signs);
    flip_rows(&want->dout, &back), flip_rows(&want->dfinal, &back);
    TRY(status);
  }
  const double scalars = squares_of(&want->scalar_grads);
  out->scalars = scalars > 0 ? sqrt(squares.scalars / scalars) : 1;
  for (int i = 0; i < 12; i++) {
    const double sum = squares_of(&want->input_grad[i]);
    out->input[i] = sum > 0 ? sqrt(squares.input[i] / sum) : 1;
  }
  return LUATTN_OK;
}

/* Twice what a plain kernel of chunks is off by that rounds operands to bf16 and adds in float: 0.0058 for rows at beta to 2,
 * 0.0047 for gradients of tokens' numbers. Sums over tokens are smaller than their terms, and are allowed 10 times that; those
 * that cancel further, 4 times that of the size of their terms, of which neighbours are off alike. float32 and float64 run
 * token by token. */
static void compare_all(check_report *r, const linear_tensors *got, const linear_tensors *want, const sum_sizes *sizes,
                        bool backward) {
  const bool is_half = got->dtype == LUATTN_BF16 || got->dtype == LUATTN_F16;
  const double rows = is_half ? 0.0116 : got->dtype == LUATTN_F64 ? 1e-12 : 1e-5;
  char name[80];
  compare(r, "out", &got->o, &want->o, rows);
  compare(r, "final_state", &got->final, &want->final, rows);
  if (!backward) return;
  compare(r, "dq", &got->dq, &want->dq, rows);
  compare(r, "dk", &got->dk, &want->dk, rows);
  compare(r, "dv", &got->dv, &want->dv, rows);
  compare(r, "dinitial", &got->dinitial, &want->dinitial, rows);
  for (size_t i = 0; i < got->info.num_inputs; i++) {
    const luattn_input_info *info = &got->info.inputs[i];
    bool by_token = false;
    for (uint32_t k = 0; k < info->num_axes; k++) by_token |= info->axis[k] == LUATTN_AXIS_T;
    snprintf(name, sizeof name, "d_%s", info->name);
    compare(r, name, &got->input_grad[i], &want->input_grad[i], by_token ? rows : rows * fmax(10, 4 * sizes->input[i]));
  }
  compare(r, "d_scalars", &got->scalar_grads, &want->scalar_grads, rows * fmax(10, 4 * sizes->scalars));
}

luattn_status linear_gpu_check(cli_gpu *g, linear_tensors *t, check_report *r, luattn_error *err) {
  char no_backward[512];
  TRY(linear_results_new(t, dtype_dl(LUATTN_F64), dtype_dl(LUATTN_F64), true, err));
  const luattn_linear_args args = linear_tensors_args(t);
  TRY(luattn_cpu_linear_forward(t->spec, &args, err));
  TRY(luattn_cpu_linear_backward(t->spec, &args, err));
  sum_sizes sizes;
  TRY(find_sizes(t, &sizes, err));
  linear_tensors there = without_results(t);
  luattn_status status = linear_results_new(&there, dtype_dl(t->dtype), linear_sums_type(t), true, err);
  if (status == LUATTN_OK) status = linear_gpu_run(g, &there, true, no_backward, sizeof no_backward, err);
  if (status == LUATTN_OK) compare_all(r, &there, t, &sizes, no_backward[0] == 0);
  if (status == LUATTN_OK && no_backward[0] != 0) printf("gradients are not compared: %s\n", no_backward);
  linear_results_free(&there);
  return status;
}
