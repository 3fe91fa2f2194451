/* gpu.c: runs a problem on a device through the engine. */
#include <stdlib.h>
#include <string.h>

#include "cli/gpu.h"

/* Parses cpu, cuda or cuda:N. *number = -1: the CPU. */
static luattn_status parse_device(const char *text, int *number, luattn_error *err) {
  *number = strcmp(text, "cpu") == 0 ? -1 : 0;
  if (*number < 0 || strcmp(text, "cuda") == 0) return LUATTN_OK;
  if (strncmp(text, "cuda:", 5) == 0 && parse_sizes(text + 5, 1, number) == 1) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "--device: '%s' is not a device; use cpu, cuda or cuda:N", text);
}

/* The engine options, except for the device. */
static luattn_status engine_options(const cli_options *o, luattn_engine_options *out, luattn_error *err) {
  *out = (luattn_engine_options){.struct_size = sizeof *out,
                                 .cache_dir = o->cache_dir,
                                 .no_tuned = o->no_tuned,
                                 .deterministic = o->deterministic};
  TRY(lengths_option(o, &out->lengths, err));
  return family_option(o, &out->family, err);
}

luattn_status gpu_pick(const cli_options *o, cli_gpu **out, luattn_error *err) {
  int number = 0;
  luattn_engine_options unused;
  *out = NULL;
  TRY(engine_options(o, &unused, err)); /* a misspelt option is reported on the CPU, too */
  if (o->device != NULL) TRY(parse_device(o->device, &number, err));
  if (number < 0) return LUATTN_OK;
  const luattn_status status = gpu_open(o, out, err);
  if (status == LUATTN_OK || status == LUATTN_INVALID || o->device != NULL) return status;
  printf("no GPU, so the CPU: %s\n", err->message);
  return LUATTN_OK;
}

luattn_status gpu_open(const cli_options *o, cli_gpu **out, luattn_error *err) {
  luattn_engine_options options;
  TRY(engine_options(o, &options, err));
  if (o->device != NULL) TRY(parse_device(o->device, &options.device, err));
  if (options.device < 0)
    return luattn_fail(err, LUATTN_INVALID, "--device: '%s' has no kernels; give cuda or cuda:N", o->device);
  cli_gpu *g = calloc(1, sizeof *g);
  if (g == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "--device: out of host memory");
  g->device = options.device;
  luattn_status status = luattn_engine_open(&options, &g->engine, err);
  if (status == LUATTN_OK) {
    g->driver = luattn_engine_driver(g->engine);
    status = luattn_device_get_info(g->driver, g->device, &g->info, err);
  }
  if (status != LUATTN_OK) {
    gpu_close(g);
    return status;
  }
  *out = g;
  return LUATTN_OK;
}

luattn_status gpu_look(const cli_options *o, luattn_device_info *out, int *driver_version, luattn_error *err) {
  luattn_driver *driver;
  int number;
  TRY(parse_device(o->device, &number, err));
  if (number < 0)
    return luattn_fail(err, LUATTN_INVALID, "--device: '%s' has no kernels; give cuda or cuda:N", o->device);
  TRY(luattn_driver_open(&driver, err));
  luattn_status status = luattn_device_get_info(driver, number, out, err);
  if (status == LUATTN_OK) status = luattn_driver_version(driver, driver_version, err);
  luattn_driver_close(driver);
  return status;
}

void gpu_close(cli_gpu *g) {
  if (g == NULL) return;
  luattn_engine_close(g->engine);
  free(g);
}

const char *gpu_name(const cli_gpu *g) { return g->info.name; }

/* Prints the lines of a text that begin with `prefix`. */
static void print_lines(const char *pass, const char *text, const char *prefix) {
  for (const char *line = text; *line != 0;) {
    const int n = (int)strcspn(line, "\n");
    if (strncmp(line, prefix, strlen(prefix)) == 0) printf("  %s %.*s\n", pass, n, line);
    line += n + (line[n] == '\n');
  }
}

/* Shows to the user that remembered tiles were used, or could not be, and what kernels and boxes calls take. */
void gpu_print_tuning(const cli_gpu *g) {
  for (uint32_t pass = 0; pass < KERNEL_PASSES; pass++)
    if (g->plan[pass] != NULL) print_lines(kernel_pass_name(pass), g->plan[pass], "tuned:");
  for (uint32_t pass = 0; pass < KERNEL_PASSES; pass++) print_lines(kernel_pass_name(pass), g->choice[pass], "");
}

/* Every buffer is surrounded by bytes 0xff, which is NaN in every float type: reading there shows in the
 * results, writing there in guards_intact. The buffer itself is filled with them too, so that an element that
 * no kernel writes shows. */
enum { GUARD = 4096 };

luattn_status gpu_buffer_new(gpu_buffers *b, size_t size, void **ptr, luattn_error *err) {
  void *base;
  if (b->count == GPU_MAX_BUFFERS)
    return luattn_fail(err, LUATTN_INTERNAL, "more than %d device buffers", GPU_MAX_BUFFERS);
  TRY(luattn_device_alloc(b->g->driver, b->g->device, size + 2 * GUARD, &base, err));
  b->size[b->count] = size;
  b->base[b->count++] = base;
  *ptr = (char *)base + GUARD;
  return luattn_device_fill(b->g->driver, b->g->device, base, 0xff, size + 2 * GUARD, NULL, err);
}

luattn_status gpu_guards_intact(const gpu_buffers *b, luattn_error *err) {
  unsigned char guard[GUARD];
  for (int i = 0; i < b->count; i++) {
    for (int side = 0; side < 2; side++) {
      const char *at = (char *)b->base[i] + (side == 0 ? 0 : GUARD + b->size[i]);
      TRY(luattn_copy_to_host(b->g->driver, b->g->device, guard, at, GUARD, err));
      for (int j = 0; j < GUARD; j++)
        if (guard[j] != 0xff)
          return luattn_fail(err, LUATTN_INTERNAL, "a kernel wrote %s buffer %d of %zu bytes",
                             side == 0 ? "before" : "behind", i, b->size[i]);
    }
  }
  return LUATTN_OK;
}

void gpu_buffers_free(gpu_buffers *b) {
  for (int i = 0; i < b->count; i++) luattn_device_free(b->g->driver, b->g->device, b->base[i], NULL);
  b->count = 0;
}

luattn_status gpu_twin(gpu_buffers *b, const DLTensor **slot, DLTensor *copy, bool upload, luattn_error *err) {
  if (*slot == NULL) return LUATTN_OK;
  size_t size = (*slot)->dtype.bits / 8u;
  for (int i = 0; i < (*slot)->ndim; i++) size *= (size_t)(*slot)->shape[i];
  *copy = **slot;
  copy->device = (DLDevice){kDLCUDA, b->g->device};
  TRY(gpu_buffer_new(b, size, &copy->data, err));
  if (upload) TRY(luattn_copy_to_device(b->g->driver, b->g->device, copy->data, (*slot)->data, size, err));
  *slot = copy;
  return LUATTN_OK;
}

/* Where sequences start and end. */
static luattn_status upload_batch(gpu_buffers *b, const cli_problem *p, luattn_error *err) {
  size_t size;
  void *memory;
  if (p->sequences == NULL) return LUATTN_OK;
  TRY(luattn_batch_size(p->sequences, &size, err));
  TRY(gpu_buffer_new(b, size, &memory, err));
  return luattn_batch_prepare(p->sequences, b->g->driver, b->g->device, memory, size, NULL, err);
}

luattn_status gpu_upload(gpu_buffers *b, const cli_problem *p, const cli_result *r, bool backward, gpu_args *d,
                         luattn_error *err) {
  d->args = problem_args(p, r, backward, &d->bind);
  luattn_args *a = &d->args;
  const DLTensor **const reads[] = {&a->q, &a->k, &a->v, &a->dout, &a->dlse};
  const DLTensor **const writes[] = {&a->o, &a->lse, &a->saved, &a->dq, &a->dk, &a->dv, &a->scalar_grads};
  int n = 0;
  for (size_t i = 0; i < sizeof reads / sizeof *reads; i++, n++) TRY(gpu_twin(b, reads[i], &d->tensor[n], true, err));
  for (size_t i = 0; i < sizeof writes / sizeof *writes; i++, n++)
    TRY(gpu_twin(b, writes[i], &d->tensor[n], false, err));
  for (size_t i = 0; i < a->num_inputs; i++) {
    TRY(gpu_twin(b, &d->bind.inputs[i].tensor, &d->input[i], true, err));
    TRY(gpu_twin(b, &d->bind.inputs[i].grad, &d->input_grad[i], false, err));
  }
  return upload_batch(b, p, err);
}

luattn_status gpu_download(gpu_buffers *b, array *to, const DLTensor *from, luattn_error *err) {
  if (from == NULL || to->storage == NULL) return LUATTN_OK;
  return luattn_copy_to_host(b->g->driver, b->g->device, to->storage, from->data, array_bytes(to), err);
}

static luattn_status download_all(gpu_buffers *b, const gpu_args *d, cli_result *r, luattn_error *err) {
  const luattn_args *a = &d->args;
  TRY(gpu_download(b, &r->o, a->o, err));
  TRY(gpu_download(b, &r->lse, a->lse, err));
  TRY(gpu_download(b, &r->saved, a->saved, err));
  TRY(gpu_download(b, &r->dq, a->dq, err));
  TRY(gpu_download(b, &r->dk, a->dk, err));
  TRY(gpu_download(b, &r->dv, a->dv, err));
  TRY(gpu_download(b, &r->scalar_grads, a->scalar_grads, err));
  for (size_t i = 0; i < a->num_inputs; i++) TRY(gpu_download(b, &r->input_grad[i], d->bind.inputs[i].grad, err));
  return LUATTN_OK;
}

luattn_args gpu_forward_args(const cli_problem *p, const luattn_args *a) {
  luattn_args f = *a;
  f.dout = f.dlse = f.dq = f.dk = f.dv = f.scalar_grads = NULL;
  f.num_splits = p->decode ? p->num_splits : 0;
  f.query_tile_size = p->query_tile_size, f.key_tile_size = p->key_tile_size;
  return f;
}

luattn_status gpu_workspace(gpu_buffers *b, const cli_problem *p, luattn_pass pass, luattn_args *a, luattn_error *err) {
  TRY(luattn_engine_workspace_size(b->g->engine, p->spec, pass, a, &a->workspace_size, err));
  if (err->message[0] != 0)
    fprintf(stderr, "luattn: warning: %s\n", err->message); /* a warning of the
                                                             * compilation */
  TRY(luattn_engine_plan(b->g->engine, p->spec, pass, a, &b->g->plan[pass], err));
  TRY(luattn_engine_choice(b->g->engine, p->spec, pass, a, b->g->choice[pass], sizeof b->g->choice[pass], err));
  if (a->workspace_size == 0) return LUATTN_OK;
  return gpu_buffer_new(b, a->workspace_size, &a->workspace, err);
}

/* The weights of V, with the arguments of a forward pass. */
static luattn_status weigh(gpu_buffers *b, const cli_problem *p, const luattn_args *forward, cli_result *r,
                           luattn_error *err) {
  const DLTensor *to = &r->weights.t;
  luattn_args a = *forward;
  DLTensor copy;
  a.workspace = NULL;
  TRY(gpu_twin(b, &to, &copy, false, err));
  TRY(luattn_weights_workspace_size(b->g->engine, p->spec, &a, &a.workspace_size, err));
  if (a.workspace_size > 0) TRY(gpu_buffer_new(b, a.workspace_size, &a.workspace, err));
  TRY(luattn_weights(b->g->engine, p->spec, &a, to, NULL, err));
  return gpu_download(b, &r->weights, to, err);
}

static luattn_status run_on_device(gpu_buffers *b, const cli_problem *p, bool backward, cli_result *r,
                                   luattn_error *err) {
  gpu_args d;
  TRY(gpu_upload(b, p, r, backward, &d, err));
  luattn_args forward = gpu_forward_args(p, &d.args);
  TRY(gpu_workspace(b, p, LUATTN_FORWARD, &forward, err));
  TRY(luattn_forward(b->g->engine, p->spec, &forward, NULL, err));
  if (r->weights.storage != NULL) TRY(weigh(b, p, &forward, r, err));
  if (backward) {
    TRY(gpu_workspace(b, p, LUATTN_BACKWARD, &d.args, err));
    TRY(luattn_backward(b->g->engine, p->spec, &d.args, NULL, err));
  }
  TRY(luattn_synchronize(b->g->driver, b->g->device, NULL, err));
  TRY(gpu_guards_intact(b, err));
  return download_all(b, &d, r, err);
}

luattn_status gpu_run(cli_gpu *g, const cli_problem *p, bool backward, cli_result *r, luattn_error *err) {
  gpu_buffers b = {.g = g};
  const luattn_status status = run_on_device(&b, p, backward, r, err);
  gpu_buffers_free(&b);
  return status;
}

static int compare_double(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

typedef luattn_status (*pass_function)(luattn_engine *, const luattn_spec *, const luattn_args *, void *,
                                       luattn_error *);

static luattn_status time_pass(cli_gpu *g, pass_function pass, const cli_problem *p, const luattn_args *a, int repeat,
                               double *median, luattn_error *err) {
  luattn_timer *timer;
  double ms[1000];
  if (repeat > 1000) repeat = 1000;
  TRY(luattn_timer_open(g->driver, g->device, &timer, err));
  luattn_status status = LUATTN_OK;
  for (int i = -5; i < repeat && status == LUATTN_OK; i++) { /* five to warm up */
    status = luattn_timer_start(timer, NULL, err);
    if (status == LUATTN_OK) status = pass(g->engine, p->spec, a, NULL, err);
    if (status == LUATTN_OK) status = luattn_timer_stop(timer, NULL, err);
    if (status == LUATTN_OK) status = luattn_timer_read(timer, &ms[i < 0 ? 0 : i], err);
  }
  luattn_timer_close(timer);
  if (status != LUATTN_OK) return status;
  qsort(ms, (size_t)repeat, sizeof *ms, compare_double);
  *median = ms[repeat / 2];
  return LUATTN_OK;
}

static luattn_status bench_on_device(gpu_buffers *b, const cli_problem *p, bool backward, int repeat,
                                     double *forward_ms, double *backward_ms, luattn_error *err) {
  gpu_args d;
  cli_result r;
  const DLDataType real = dtype_dl(p->dtype == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32);
  TRY(result_new(p, dtype_dl(p->dtype), real, backward, &r, err));
  luattn_status s = gpu_upload(b, p, &r, backward, &d, err);
  luattn_args forward = gpu_forward_args(p, &d.args);
  if (s == LUATTN_OK) s = gpu_workspace(b, p, LUATTN_FORWARD, &forward, err);
  if (s == LUATTN_OK) s = time_pass(b->g, luattn_forward, p, &forward, repeat, forward_ms, err);
  if (s == LUATTN_OK && backward) {
    s = gpu_workspace(b, p, LUATTN_BACKWARD, &d.args, err);
    if (s == LUATTN_OK) s = time_pass(b->g, luattn_backward, p, &d.args, repeat, backward_ms, err);
  }
  result_free(&r);
  return s;
}

luattn_status gpu_bench(cli_gpu *g, const cli_problem *p, bool backward, int repeat, double *forward_ms,
                        double *backward_ms, luattn_error *err) {
  gpu_buffers b = {.g = g};
  const luattn_status status = bench_on_device(&b, p, backward, repeat, forward_ms, backward_ms, err);
  gpu_buffers_free(&b);
  return status;
}
