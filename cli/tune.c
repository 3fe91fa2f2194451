#include "cli/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi/kernel_facts.h"
#include "cli/gpu.h"
#include "cli/problem.h"

double tune_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *tune_tiles_name(const luattn_tiles *t, char out[TUNE_NAME]) {
  int n = snprintf(out, TUNE_NAME, "%d x %d, %d thr, %d st", t->tile_m, t->tile_n, t->threads, t->stages);
  if (t->warps_n > 0) snprintf(out + n, (size_t)(TUNE_NAME - n), ", %d %d", t->warps_n, t->chunk_m);
  return out;
}

const char *tune_boxes_name(const luattn_box_pair *pair, int axes, char out[TUNE_NAME]) {
  const uint64_t size[] = {pair->query_tile_size, pair->key_tile_size};
  int n = 0;
  for (int i = 0; i < 2; i++)
    for (int a = axes - 1; a >= 0; a--)
      n += snprintf(out + n, (size_t)(TUNE_NAME - n), "%s%d",
                    a < axes - 1 ? "x"
                    : i > 0      ? " by "
                                 : "",
                    (int)(size[i] >> 16 * a & 0xffff));
  return out;
}

const char *tune_name(const tune_field *f, const tune_candidate *c, char out[TUNE_NAME]) {
  return f->axes > 0 ? tune_boxes_name(&c->boxes, f->axes, out) : tune_tiles_name(&c->tiles, out);
}

/* The kernel's own pairs are known by their numbers, whose images engines have. */
void tune_take(const tune_field *f, const tune_candidate *c, luattn_target *target) {
  if (f->axes == 0)
    target->tiles = &c->tiles;
  else if (c->boxes.boxes > 0)
    target->boxes = c->boxes.boxes > 1 ? c->boxes.boxes : 0;
  else
    target->query_tile_size = c->boxes.query_tile_size, target->key_tile_size = c->boxes.key_tile_size;
}

static bool is_same(const tune_field *f, const tune_candidate *of, const tune_candidate *other) {
  const luattn_tiles *a = &of->tiles, *b = &other->tiles;
  if (f->axes > 0)
    return of->boxes.query_tile_size == other->boxes.query_tile_size &&
           of->boxes.key_tile_size == other->boxes.key_tile_size;
  return a->tile_m == b->tile_m && a->tile_n == b->tile_n && a->threads == b->threads && a->stages == b->stages &&
         a->warps_n == b->warps_n && a->chunk_m == b->chunk_m;
}

luattn_lengths tune_lengths(const tune_field *f, const cli_problem *p) {
  return f->target.decode != 0 ? problem_decode_rows(p) : luattn_lengths_of(f->target.pass, p->q_len, p->kv_len);
}

const tune_candidate *tune_default(const tune_field *f, luattn_lengths lengths) {
  return &f->candidate[lengths == LUATTN_SHORT ? f->num_defaults - 1 : 0];
}

bool tune_competes(const tune_field *f, int i, luattn_lengths lengths) {
  return i >= f->num_defaults && !is_same(f, &f->candidate[i], tune_default(f, lengths));
}

/* ---- compiling ---- */

/* Compiles what c chooses, or the plan's choice. */
static luattn_status compile_one(cli_gpu *g, const tune_field *f, luattn_lengths lengths, bool own, tune_candidate *c,
                                 bool *every_length, luattn_error *err) {
  luattn_target target = f->target;
  luattn_compile_report report;
  luattn_image *image;
  const double start = tune_now();
  target.lengths = lengths;
  if (!own || f->axes > 0) tune_take(f, c, &target);
  TRY(luattn_compile(f->spec, &target, &image, &report, err));
  c->compile_ms = report.cache_hit ? 0 : (tune_now() - start) * 1e3;
  c->tiles = report.tiles;
  *every_length = report.every_length != 0;
  luattn_kernel_description d = {.struct_size = sizeof d};
  luattn_status status = luattn_image_describe(image, &d, err);
  for (size_t i = 0; status == LUATTN_OK && i < d.num_functions; i++) {
    const luattn_function_info *one = &d.functions[i];
    if (one->registers > c->registers) c->registers = one->registers;
    c->local_bytes += one->local_bytes;
  }
  if (status == LUATTN_OK) status = luattn_kernel_load(g->driver, g->device, image, &c->kernel, err);
  luattn_image_free(image);
  return status;
}

static void tell(const tune_field *f, const tune_candidate *c, int done, int all) {
  char name[TUNE_NAME];
  fprintf(stderr, "tune: %s: %d of %d compiled: %s: ", kernel_pass_name(f->target.pass), done, all,
          tune_name(f, c, name));
  if (c->kernel == NULL)
    fprintf(stderr, "%s\n", c->why);
  else if (c->compile_ms > 0)
    fprintf(stderr, "%.0f ms, %u registers\n", c->compile_ms, c->registers);
  else
    fprintf(stderr, "cached, %u registers\n", c->registers);
}

static luattn_status compile_defaults(cli_gpu *g, tune_field *f, luattn_error *err) {
  static const luattn_lengths lengths[] = {LUATTN_LONG, LUATTN_SHORT};
  bool every_length = false;
  f->num_defaults = 0;
  while (f->num_defaults < 2 && !every_length) {
    tune_candidate *c = &f->candidate[f->num_defaults];
    TRY(compile_one(g, f, lengths[f->num_defaults++], true, c, &every_length, err));
    f->count = f->num_defaults;
  }
  return LUATTN_OK;
}

/* Drops the candidate's name at the start of the message and the advice at its end. */
static void keep_reason(tune_candidate *c, const char *message) {
  const char *stages = strstr(message, " stages: ");
  const bool named = strncmp(message, "plan: tiles: ", 13) == 0 && stages != NULL;
  const char *from = named ? stages + strlen(" stages: ") : message, *advice = strstr(from, "; pick other");
  const int length = advice != NULL ? (int)(advice - from) : (int)strlen(from);
  snprintf(c->why, sizeof c->why, "refused: %.*s", length < 300 ? length : 300, from);
}

/* Compiles candidate number `i` of `all`, unless the time is over. */
static luattn_status compile_candidate(cli_gpu *g, const tune_field *f, luattn_lengths lengths, tune_candidate *c,
                                       int i, int all, double deadline, luattn_error *err) {
  bool ignored;
  luattn_error why;
  if (tune_now() > deadline) {
    snprintf(c->why, sizeof c->why, "not tried: half of --time-limit was over");
    return LUATTN_OK;
  }
  const luattn_status status = compile_one(g, f, lengths, false, c, &ignored, &why);
  if (status == LUATTN_NO_MEMORY) {
    if (err != NULL) *err = why;
    return status;
  }
  if (status != LUATTN_OK) keep_reason(c, why.message);
  tell(f, c, i, all);
  return LUATTN_OK;
}

luattn_status tune_compile(cli_gpu *g, tune_field *f, double deadline, luattn_error *err) {
  luattn_tiles list[TUNE_MAX_CANDIDATES - 2];
  int listed = 0;
  TRY(compile_defaults(g, f, err));
  TRY(luattn_plan_candidates(f->spec, &f->target, list, TUNE_MAX_CANDIDATES - 2, &listed, err));
  for (int i = 0; i < listed; i++) {
    tune_candidate *c = &f->candidate[f->count];
    c->tiles = list[i];
    if (f->num_defaults == 1 && is_same(f, c, &f->candidate[0])) continue;
    f->count++;
    TRY(compile_candidate(g, f, LUATTN_LONG, c, i + 1, listed, deadline, err));
  }
  return LUATTN_OK;
}

const luattn_args *tune_extents(const cli_problem *p, tune_call *out) {
  const int heads[] = {p->heads, p->heads_kv};
  for (int side = 0; side < 2; side++)
    out->tensor[side] = (DLTensor){.shape = out->shape[side],
                                   .ndim = problem_tensor_shape(p, heads[side], side, p->dim, out->shape[side])};
  out->args = (luattn_args){.struct_size = sizeof out->args, .q = &out->tensor[0], .k = &out->tensor[1]};
  return &out->args;
}

luattn_status tune_list_boxes(tune_field *f, const cli_problem *p, luattn_error *err) {
  luattn_box_pair list[TUNE_MAX_CANDIDATES];
  tune_call call;
  luattn_target target = f->target;
  target.lengths = tune_lengths(f, p);
  f->axes = p->axes;
  TRY(luattn_plan_box_pairs(f->spec, &target, tune_extents(p, &call), list, TUNE_MAX_CANDIDATES, &f->count, err));
  for (int i = 0; i < f->count; i++) f->candidate[i].boxes = list[i];
  f->num_defaults = 1;
  return LUATTN_OK;
}

luattn_status tune_compile_boxes(cli_gpu *g, tune_field *f, const cli_problem *p, double deadline, luattn_error *err) {
  const luattn_lengths lengths = tune_lengths(f, p);
  bool ignored;
  TRY(tune_list_boxes(f, p, err));
  TRY(compile_one(g, f, lengths, true, &f->candidate[0], &ignored, err));
  for (int i = 1; i < f->count; i++)
    TRY(compile_candidate(g, f, lengths, &f->candidate[i], i, f->count - 1, deadline, err));
  return LUATTN_OK;
}

void tune_close(tune_field *f) {
  for (int i = 0; i < f->count; i++) luattn_kernel_unload(f->candidate[i].kernel);
  f->count = 0;
}

/* ---- one problem on the device ---- */

typedef struct session {
  cli_gpu *g;
  const cli_problem *p;
  tune_field *f;
  luattn_lengths lengths;
  gpu_buffers *b;
  luattn_args *args;
  cli_result *want, *got; /* results of the plan's choice, and of a candidate */
  luattn_timer *timer;
} session;

typedef struct output {
  const char *name;
  const DLTensor *device;
  size_t host; /* offset of its array in cli_result */
} output;

enum { MAX_OUTPUTS = 3 };

/* The compared outputs of a pass. Gradients of inputs and scalars are sums that may cancel to their own
 * rounding errors: luattn check judges those. */
static void list_outputs(const session *s, output out[MAX_OUTPUTS]) {
  const luattn_args *a = s->args;
  const output forward[] = {{"o", a->o, offsetof(cli_result, o)},
                            {"lse", a->lse, offsetof(cli_result, lse)},
                            {"saved", a->saved, offsetof(cli_result, saved)}};
  const output backward[] = {{"dq", a->dq, offsetof(cli_result, dq)},
                             {"dk", a->dk, offsetof(cli_result, dk)},
                             {"dv", a->dv, offsetof(cli_result, dv)}};
  memcpy(out, s->f->target.pass == LUATTN_FORWARD ? forward : backward, sizeof forward);
}

static array *host_of(cli_result *r, const output *o) { return (array *)(void *)((char *)r + o->host); }

static luattn_status launch(const session *s, const tune_candidate *c, luattn_error *err) {
  luattn_error why;
  char name[TUNE_NAME];
  const luattn_status status = luattn_launch(c->kernel, s->args, NULL, &why);
  return status == LUATTN_OK ? LUATTN_OK
                             : luattn_fail(err, status, "tune: %s: %s", tune_name(s->f, c, name), why.message);
}

/* Launches once into outputs full of NaN, and returns the results. */
static luattn_status run(const session *s, const tune_candidate *c, cli_result *r, luattn_error *err) {
  output out[MAX_OUTPUTS];
  luattn_error why;
  char name[TUNE_NAME];
  list_outputs(s, out);
  for (int i = 0; i < MAX_OUTPUTS; i++)
    if (out[i].device != NULL)
      TRY(luattn_device_fill(s->g->driver, s->g->device, out[i].device->data, 0xff, array_bytes(host_of(r, &out[i])),
                             NULL, err));
  TRY(launch(s, c, err));
  const luattn_status status = luattn_synchronize(s->g->driver, s->g->device, NULL, &why);
  if (status != LUATTN_OK) return luattn_fail(err, status, "tune: %s: %s", tune_name(s->f, c, name), why.message);
  for (int i = 0; i < MAX_OUTPUTS; i++) TRY(gpu_download(s->b, host_of(r, &out[i]), out[i].device, err));
  return LUATTN_OK;
}

/* ---- are the results the same? ---- */

/* The largest distance of two rows, over the length of the row. Weights and results are rounded to the
 * storage type, in each kernel after its own maximum: two independent rounding errors each, so that for
 * random v rows differ by about one unit roundoff; four are allowed. f32 and f64 differ by the order of their
 * sums. */
static double tolerance(luattn_dtype dtype) {
  return dtype == LUATTN_F64 ? 1e-10 : dtype == LUATTN_F32 ? 1e-4 : 4 * kernel_dtype(dtype)->unit;
}

typedef struct norms {
  double want, difference;
  bool differs; /* one is not finite and the other differs */
} norms;

static norms compare_row(const array *want, const array *got, int64_t at, int64_t length) {
  norms n = {0};
  for (int64_t i = at; i < at + length; i++) {
    const double x = array_get(want, i), y = array_get(got, i);
    if (isfinite(x) && isfinite(y)) {
      n.want += x * x;
      n.difference += (x - y) * (x - y);
    } else {
      n.differs |= !(isnan(x) && isnan(y)) && x != y;
    }
  }
  n.want = sqrt(n.want), n.difference = sqrt(n.difference);
  return n;
}

/* Compares a sample of the rows of large tensors, a few in each tile: wrong tiles are wrong in whole rows of
 * tiles. A row that cancels to nearly nothing is compared relative to the largest. */
bool tune_agrees(const char *name, const array *want, const array *got, luattn_dtype dtype, char *why, size_t size) {
  const int64_t length = want->t.ndim > 0 ? want->shape[want->t.ndim - 1] : 1;
  const int64_t rows = length > 0 ? array_count(want) / length : 0, step = rows > 2048 ? 31 : 1;
  double largest = 0;
  for (int64_t r = 0; r < rows; r += step) largest = fmax(largest, compare_row(want, want, r * length, length).want);
  for (int64_t r = 0; r < rows; r += step) {
    const norms n = compare_row(want, got, r * length, length);
    const double allowed = tolerance(dtype) * n.want + (dtype == LUATTN_F64 ? 1e-12 : 1e-5) * largest;
    if (!n.differs && n.difference <= allowed) continue;
    snprintf(why, size, "WRONG: %s, row %lld: differs from the plan's choice by %.3g of %.3g, %.3g is allowed", name,
             (long long)r, n.differs ? INFINITY : n.difference, n.want, allowed);
    return false;
  }
  return true;
}

static luattn_status check(const session *s, tune_candidate *c, luattn_error *err) {
  output out[MAX_OUTPUTS];
  list_outputs(s, out);
  TRY(run(s, c, s->got, err));
  for (int i = 0; i < MAX_OUTPUTS && !c->is_wrong; i++) {
    if (out[i].device == NULL) continue;
    c->is_wrong = !tune_agrees(out[i].name, host_of(s->want, &out[i]), host_of(s->got, &out[i]), s->p->dtype, c->why,
                               sizeof c->why);
  }
  return LUATTN_OK;
}

/* ---- time ---- */

static luattn_status time_one(const session *s, const tune_candidate *c, int launches, double *ms, luattn_error *err) {
  TRY(luattn_timer_start(s->timer, NULL, err));
  for (int i = 0; i < launches; i++) TRY(launch(s, c, err));
  TRY(luattn_timer_stop(s->timer, NULL, err));
  TRY(luattn_timer_read(s->timer, ms, err));
  *ms /= launches;
  return LUATTN_OK;
}

static int compare_double(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The kernels that the rounds of a shape take in turn. */
typedef struct lineup {
  tune_candidate *runner[TUNE_MAX_CANDIDATES];
  int count, launches, repeat;
} lineup;

static luattn_status run_rounds(const session *s, const lineup *r, int shape, double deadline, luattn_error *err) {
  double *ms = malloc((size_t)r->count * (size_t)r->repeat * sizeof *ms);
  if (ms == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "tune: no memory for %d times", r->count * r->repeat);
  luattn_status status = LUATTN_OK;
  int done = 0;
  while (status == LUATTN_OK && done < r->repeat && (done < 3 || tune_now() < deadline)) {
    for (int i = 0; i < r->count && status == LUATTN_OK; i++)
      status = time_one(s, r->runner[i], r->launches, &ms[i * r->repeat + done], err);
    done++;
  }
  for (int i = 0; i < r->count && status == LUATTN_OK; i++) {
    qsort(&ms[i * r->repeat], (size_t)done, sizeof *ms, compare_double);
    r->runner[i]->ms[shape] = ms[i * r->repeat + done / 2];
  }
  free(ms);
  return status;
}

/* Room for the largest workspace. */
static luattn_status make_workspace(session *s, luattn_error *err) {
  size_t most = 0;
  for (int i = 0; i < s->f->count; i++) {
    size_t size = 0;
    if (s->f->candidate[i].kernel == NULL) continue;
    TRY(luattn_workspace_size(s->f->candidate[i].kernel, s->args, &size, err));
    if (size > most) most = size;
  }
  s->args->workspace_size = most;
  return most > 0 ? gpu_buffer_new(s->b, most, &s->args->workspace, err) : LUATTN_OK;
}

static luattn_status measure_pass(session *s, int shape, int repeat, double deadline, luattn_error *err) {
  tune_field *f = s->f;
  tune_candidate *own = (tune_candidate *)(uintptr_t)tune_default(f, s->lengths);
  lineup r = {.runner = {own}, .count = 1, .repeat = repeat};
  double ms;
  TRY(make_workspace(s, err));
  TRY(run(s, own, s->want, err));
  for (int i = 0; i < f->count; i++) {
    tune_candidate *c = &f->candidate[i];
    if (!tune_competes(f, i, s->lengths) || c->kernel == NULL || c->is_wrong) continue;
    TRY(check(s, c, err));
    if (!c->is_wrong) r.runner[r.count++] = c;
  }
  TRY(time_one(s, own, 1, &ms, err));
  r.launches = ms > 1 ? 1 : ms > 0.0625 ? (int)(1 / ms) + 1 : 16; /* about a millisecond a measurement */
  return run_rounds(s, &r, shape, deadline, err);
}

/* Backward reads what forward has written, with the plan's own choice. */
static luattn_status measure_both(session *s, gpu_args *d, tune_field *f, int passes, int shape, int repeat,
                                  double deadline, luattn_error *err) {
  const double start = tune_now();
  luattn_args forward = gpu_forward_args(s->p, &d->args);
  TRY(luattn_timer_open(s->g->driver, s->g->device, &s->timer, err));
  for (int pass = 0; pass < passes; pass++) {
    s->f = &f[pass];
    s->args = pass == LUATTN_FORWARD ? &forward : &d->args;
    s->lengths = tune_lengths(s->f, s->p);
    if (pass == LUATTN_BACKWARD) {
      TRY(gpu_workspace(s->b, s->p, LUATTN_FORWARD, &forward, err));
      TRY(luattn_forward(s->g->engine, s->p->spec, &forward, NULL, err));
    }
    TRY(measure_pass(s, shape, repeat, start + (deadline - start) * (pass + 1) / passes, err));
  }
  return LUATTN_OK;
}

luattn_status tune_measure(cli_gpu *g, const cli_problem *p, tune_field *f, int passes, int shape, int repeat,
                           double deadline, luattn_error *err) {
  const bool backward = passes > 1;
  const DLDataType real = dtype_dl(p->dtype == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32);
  cli_result want, got;
  gpu_args d;
  gpu_buffers b = {.g = g};
  session s = {.g = g, .p = p, .b = &b, .want = &want, .got = &got};
  TRY(result_new(p, dtype_dl(p->dtype), real, backward, &want, err));
  luattn_status status = result_new(p, dtype_dl(p->dtype), real, backward, &got, err);
  if (status == LUATTN_OK) {
    status = gpu_upload(&b, p, &want, backward, &d, err);
    if (status == LUATTN_OK) status = measure_both(&s, &d, f, passes, shape, repeat, deadline, err);
    luattn_timer_close(s.timer);
    gpu_buffers_free(&b);
    result_free(&got);
  }
  result_free(&want);
  return status;
}
