/* check_jvp_kernels.c: tangents that kernels compute, of forward and of backward, against the CPU path's. */
#include <math.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "cli/check_jvp.h"
#include "cli/gpu.h"
#include "cli/random_array.h"
#include "gen/cpu/cpu.h"

/* ---- one side's results ---- */

typedef struct side {
  cli_result of; /* o, lse and saved; in place of gradients their tangents */
  array o, lse;  /* tangents */
} side;

static void side_free(side *s) { result_free(&s->of), array_free(&s->o), array_free(&s->lse); }

static luattn_status side_new(const cli_problem *p, DLDataType storage, DLDataType real, side *s, luattn_error *err) {
  *s = (side){0};
  TRY(result_new(p, storage, real, p->info.has_backward, &s->of, err));
  const array *o = &s->of.o, *lse = &s->of.lse;
  luattn_status status = array_new(&s->o, o->t.dtype, o->t.ndim, o->shape, p->heads_last, err);
  if (status == LUATTN_OK && lse->storage != NULL)
    status = array_new(&s->lse, lse->t.dtype, lse->t.ndim, lse->shape, false, err);
  if (status != LUATTN_OK) side_free(s);
  return status;
}

/* ---- calls ---- */

/* A call of one pass; it points into itself. */
typedef struct jvp_call {
  luattn_args args;
  luattn_tangents along;
  luattn_input along_input[12];
  cli_binding bind;
} jvp_call;

static void call_forward(const cli_problem *p, const cli_tangents *t, const side *s, jvp_call *c) {
  c->args = problem_args(p, &s->of, false, &c->bind);
  c->along = t->given;
  c->along.inputs = c->along_input;
  memcpy(c->along_input, t->inputs, sizeof c->along_input);
  c->along.o = array_tensor(&s->o), c->along.lse = array_tensor(&s->lse);
  c->args.tangents = &c->along;
}

/* Tangents of gradients have the places of gradients in `tangents`. */
static void call_backward(const cli_problem *p, const cli_tangents *t, const side *s, jvp_call *c) {
  c->args = problem_args(p, &s->of, true, &c->bind);
  luattn_args *a = &c->args;
  c->along = t->given;
  c->along.inputs = c->along_input, c->along.num_inputs = 0;
  c->along.o = c->along.lse = NULL;
  c->along.dout = array_tensor(&t->dout), c->along.dlse = array_tensor(&t->dlse);
  c->along.dq = a->dq, c->along.dk = a->dk, c->along.dv = a->dv, c->along.scalar_grads = a->scalar_grads;
  a->o = a->lse = a->saved = a->dq = a->dk = a->dv = a->scalar_grads = NULL;
  for (size_t i = 0; i < a->num_inputs; i++) {
    luattn_input *in = &c->bind.inputs[i];
    if (t->input[i].storage != NULL || in->grad != NULL)
      c->along_input[c->along.num_inputs++] = (luattn_input){in->name, array_tensor(&t->input[i]), in->grad};
    in->grad = NULL;
  }
  a->tangents = &c->along;
}

static luattn_status run_cpu(const cli_problem *p, const cli_tangents *t, const side *s, luattn_error *err) {
  jvp_call c;
  call_forward(p, t, s, &c);
  TRY(luattn_cpu_forward_jvp(p->spec, &c.args, err));
  if (!p->info.has_backward) return LUATTN_OK;
  call_backward(p, t, s, &c);
  return luattn_cpu_backward_jvp(p->spec, &c.args, err);
}

/* ---- on the device ---- */

/* A call whose tensors lie in buffers; of results, where they come from. */
typedef struct gpu_call {
  jvp_call c;
  DLTensor copy[64];
  int count;
} gpu_call;

static luattn_status twin(gpu_buffers *b, gpu_call *g, const DLTensor **slot, bool upload, luattn_error *err) {
  return gpu_twin(b, slot, &g->copy[g->count++], upload, err);
}

static luattn_status to_device(gpu_buffers *b, gpu_call *g, luattn_error *err) {
  luattn_args *a = &g->c.args;
  luattn_tangents *t = &g->c.along;
  const DLTensor **const reads[] = {&a->q, &a->k, &a->v, &a->dout, &a->dlse, &t->q, &t->k, &t->v, &t->dout, &t->dlse};
  const DLTensor **const writes[] = {&a->o,  &a->lse, &a->saved, &t->o,           &t->lse,
                                     &t->dq, &t->dk,  &t->dv,    &t->scalar_grads};
  for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) TRY(twin(b, g, reads[i], true, err));
  for (size_t i = 0; i < sizeof writes / sizeof *writes; i++) TRY(twin(b, g, writes[i], false, err));
  for (size_t i = 0; i < a->num_inputs; i++) TRY(twin(b, g, &g->c.bind.inputs[i].tensor, true, err));
  for (size_t i = 0; i < t->num_inputs; i++) {
    TRY(twin(b, g, &g->c.along_input[i].tensor, true, err));
    TRY(twin(b, g, &g->c.along_input[i].grad, false, err));
  }
  return LUATTN_OK;
}

static luattn_status launch(gpu_buffers *b, const cli_problem *p, luattn_pass pass, luattn_args *a, luattn_error *err) {
  luattn_engine *engine = b->g->engine;
  const bool forward = pass == LUATTN_FORWARD;
  a->workspace = NULL;
  TRY((forward ? luattn_forward_jvp_workspace_size : luattn_backward_jvp_workspace_size)(engine, p->spec, a,
                                                                                         &a->workspace_size, err));
  if (a->workspace_size > 0) TRY(gpu_buffer_new(b, a->workspace_size, &a->workspace, err));
  TRY((forward ? luattn_forward_jvp : luattn_backward_jvp)(engine, p->spec, a, NULL, err));
  TRY(luattn_synchronize(b->g->driver, b->g->device, NULL, err));
  return gpu_guards_intact(b, err);
}

static luattn_status forward_on_device(gpu_buffers *b, const cli_problem *p, const cli_tangents *t, side *s,
                                       gpu_call *g, luattn_error *err) {
  call_forward(p, t, s, &g->c);
  TRY(to_device(b, g, err));
  TRY(launch(b, p, LUATTN_FORWARD, &g->c.args, err));
  TRY(gpu_download(b, &s->of.o, g->c.args.o, err));
  TRY(gpu_download(b, &s->of.lse, g->c.args.lse, err));
  TRY(gpu_download(b, &s->of.saved, g->c.args.saved, err));
  TRY(gpu_download(b, &s->o, g->c.along.o, err));
  return gpu_download(b, &s->lse, g->c.along.lse, err);
}

/* rows: forward's call, whose o, lse and tangents are given; NULL: they are found anew. */
static luattn_status backward_on_device(gpu_buffers *b, const cli_problem *p, const cli_tangents *t, side *s,
                                        const gpu_call *rows, gpu_call *g, luattn_error *err) {
  call_backward(p, t, s, &g->c);
  TRY(to_device(b, g, err));
  const luattn_tangents *along = &g->c.along;
  if (rows != NULL) {
    g->c.args.o = rows->c.args.o, g->c.args.lse = rows->c.args.lse;
    g->c.along.o = rows->c.along.o, g->c.along.lse = rows->c.along.lse;
  }
  TRY(launch(b, p, LUATTN_BACKWARD, &g->c.args, err));
  TRY(gpu_download(b, &s->of.dq, along->dq, err));
  TRY(gpu_download(b, &s->of.dk, along->dk, err));
  TRY(gpu_download(b, &s->of.dv, along->dv, err));
  TRY(gpu_download(b, &s->of.scalar_grads, along->scalar_grads, err));
  for (size_t i = 0, at = 0; i < p->info.num_inputs && at < along->num_inputs; i++)
    if (strcmp(along->inputs[at].name, p->info.inputs[i].name) == 0)
      TRY(gpu_download(b, &s->of.input_grad[i], along->inputs[at++].grad, err));
  return LUATTN_OK;
}

/* ---- comparison ---- */

typedef struct comparison {
  check_report *out;
  luattn_dtype dtype;
  double shaken_by; /* what the shaken side's inputs moved by, in units of the type's roundings */
  double scores;    /* what rounded scores do, relative to the result: sides */
} comparison;

static double unit_of(luattn_dtype type) {
  return type == LUATTN_F64 ? 0x1p-53 : type == LUATTN_F32 ? 0x1p-24 : kernel_dtype(type)->unit;
}

/* Relative to the largest number, and absolute where that is below 1. Allowed: of f64 and f32 what sums round, of half
 * types what P, dS and their tangents do; what one rounding of q, k and v does to the result, of f64 and f32 four times
 * that; what roundings of scores do to weights; and of sums that cancel, as large as the gradient's terms are, the same
 * part of these. terms: NULL: none. */
static void compare(const comparison *c, const char *name, const array *got, const array *want, const array *shaken,
                    const array *terms) {
  double worst = 0, most = 1, moved = 0;
  if (want->storage == NULL || got->storage == NULL) return;
  for (int64_t i = 0, n = array_count(want); i < n; i++) {
    const double x = array_get(got, i), y = array_get(want, i), z = array_get(shaken, i);
    const double off = x == y ? 0 : fabs(x - y); /* equal infinities of lse */
    worst = check_worse(worst, off);
    if (isfinite(y)) most = fmax(most, fabs(y));
    if (isfinite(y) && isfinite(z)) moved = fmax(moved, fabs(z - y));
  }
  const double base = c->dtype == LUATTN_F64 ? 1e-12 : c->dtype == LUATTN_F32 ? 2e-5 : 4 * unit_of(c->dtype);
  const bool is_half = c->dtype == LUATTN_F16 || c->dtype == LUATTN_BF16;
  double sum = 0;
  for (int64_t i = 0, n = terms != NULL && terms->storage != NULL ? array_count(terms) : 0; i < n; i++)
    sum = fmax(sum, fabs(array_get(terms, i)));
  check_add(c->out, name, worst / most,
            base * (1 + sum / most) + 4 * c->scores + (is_half ? 1 : 4) * moved / most / c->shaken_by);
}

/* Rows that keep nothing have tangents of exactly 0. */
static void check_empty_rows(const comparison *c, const side *got, const side *want) {
  if (want->of.lse.storage == NULL) return;
  const int64_t rows = array_count(&want->of.lse), dim = rows > 0 ? array_count(&want->o) / rows : 0;
  double most = 0;
  int64_t found = 0;
  for (int64_t r = 0; r < rows; r++) {
    if (array_get(&want->of.lse, r) != -INFINITY) continue;
    found++;
    for (int64_t d = -1; d < dim; d++) {
      most = check_worse(most, fabs(d < 0 ? array_get(&got->lse, r) : array_get(&got->o, r * dim + d)));
    }
  }
  if (found > 0) check_add(c->out, "rows that keep nothing", most, 0);
}

static void compare_forward(const comparison *c, const side *got, const side *want, const side *shaken) {
  compare(c, "out", &got->of.o, &want->of.o, &shaken->of.o, NULL);
  compare(c, "lse", &got->of.lse, &want->of.lse, &shaken->of.lse, NULL);
  compare(c, "tangent of out", &got->o, &want->o, &shaken->o, NULL);
  compare(c, "tangent of lse", &got->lse, &want->lse, &shaken->lse, NULL);
  check_empty_rows(c, got, want);
}

typedef struct sides {
  side got, want, shaken, terms; /* terms: of gradients, the root of the sum of squares of what each adds up */
  double scores; /* what roundings of hooks do to o, and those of scores by their size to weights (check.c) */
} sides;

static void compare_backward(const comparison *c, const luattn_spec_info *info, const char *how, const sides *s) {
  static const struct {
    const char *name;
    size_t at;
  } of[] = {{"dq", offsetof(cli_result, dq)},
            {"dk", offsetof(cli_result, dk)},
            {"dv", offsetof(cli_result, dv)},
            {"scalar gradients", offsetof(cli_result, scalar_grads)}};
  const cli_result *const r[] = {&s->got.of, &s->want.of, &s->shaken.of, &s->terms.of};
  char name[80];
  for (size_t i = 0; i < 4 + info->num_inputs; i++) {
    const size_t at = i < 4 ? of[i].at : offsetof(cli_result, input_grad) + (i - 4) * sizeof(array);
    const array *x[4];
    for (int k = 0; k < 4; k++) x[k] = (const array *)(const void *)((const char *)r[k] + at);
    snprintf(name, sizeof name, "tangent of %s%.40s%s", i < 4 ? "" : "d_",
             i < 4 ? of[i].name : info->inputs[i - 4].name, how);
    compare(c, name, x[0], x[1], x[2], i < 3 ? NULL : x[3]);
  }
}

/* ---- how much roundings matter ---- */

/* Moves each element by a part in 2^bits, up or down. */
static luattn_status shake(const array *x, const cli_problem *p, int bits, uint64_t *seed, array *out,
                           luattn_error *err) {
  TRY(array_new(out, dtype_dl(LUATTN_F64), x->t.ndim, x->shape, p->heads_last, err));
  for (int64_t i = 0, n = array_count(x); i < n; i++)
    array_set(out, i, array_get(x, i) * (1 + (random_uniform(seed) < 0.5 ? -1 : 1) * ldexp(1, -bits)));
  return LUATTN_OK;
}

static int shaken_bits(luattn_dtype type) { return type == LUATTN_F64 ? 40 : 20; }

static luattn_status run_shaken(const cli_problem *p, const cli_tangents *t, side *s, luattn_error *err) {
  cli_problem moved = *p;
  uint64_t seed = 77;
  array *const to[] = {&moved.q, &moved.k, &moved.v};
  const array *const from[] = {&p->q, &p->k, &p->v};
  for (int i = 0; i < 3; i++) *to[i] = (array){0};
  luattn_status status = LUATTN_OK;
  for (int i = 0; i < 3 && status == LUATTN_OK; i++)
    status = shake(from[i], p, shaken_bits(p->dtype), &seed, to[i], err);
  if (status == LUATTN_OK) status = run_cpu(&moved, t, s, err);
  for (int i = 0; i < 3; i++) array_free(to[i]);
  return status;
}

/* ---- the check ---- */

/* Of finite numbers, relative to the largest, and absolute where that is below 1, as in compare. */
static double distance(const array *got, const array *want) {
  double worst = 0, most = 1;
  for (int64_t i = 0, n = want->storage != NULL ? array_count(want) : 0; i < n; i++) {
    const double x = array_get(got, i), y = array_get(want, i);
    if (!isfinite(x) || !isfinite(y)) continue;
    worst = fmax(worst, fabs(x - y)), most = fmax(most, fabs(y));
  }
  return worst / most;
}

/* By plain arithmetic of hooks as they are written, and as kernels merge their constants; of f64 with 16 bits less.
 * `shaken` serves as memory. */
static luattn_status measure_scores(const cli_problem *p, sides *s, luattn_error *err) {
  const cli_result *got = &s->shaken.of, *want = &s->want.of;
  const bool f64 = p->dtype == LUATTN_F64;
  const luattn_dtype real = f64 ? LUATTN_F64 : LUATTN_F32;
  double exponent, worst = 0;
  cli_binding bind;
  const luattn_args args = problem_args(p, got, false, &bind);
  TRY(cpu_forward_score_noise(p->spec, &args, &exponent, err));
  for (int merged = 0; merged < 2; merged++) {
    TRY(merged ? cpu_forward_merged(p->spec, &args, real, err)
        : f64  ? cpu_forward_coarse(p->spec, &args, err)
               : luattn_cpu_forward_in(p->spec, &args, real, err));
    worst = fmax(worst, fmax(distance(&got->o, &want->o), distance(&got->lse, &want->lse)));
  }
  s->scores = worst / (f64 ? CPU_COARSENESS : 1) + 0.82 * (f64 ? 0x1p-53 : 0x1p-24) * exponent;
  return LUATTN_OK;
}

/* Of gradients whose tangents are compared. */
static luattn_status measure_terms(const cli_problem *p, sides *s, luattn_error *err) {
  cli_binding bind, of_want;
  if (!p->info.has_backward) return LUATTN_OK;
  const luattn_args want = problem_args(p, &s->want.of, true, &of_want);
  luattn_args args = problem_args(p, &s->terms.of, true, &bind);
  args.o = want.o, args.lse = want.lse, args.saved = want.saved;
  return cpu_gradient_noise(p->spec, &args, err);
}

static luattn_status check_on_device(gpu_buffers *b, const cli_problem *p, const cli_tangents *t, sides *s,
                                     check_report *out, luattn_error *err) {
  const comparison c = {out, p->dtype, ldexp(1 / unit_of(p->dtype), -shaken_bits(p->dtype)), s->scores};
  gpu_call forward = {0};
  TRY(forward_on_device(b, p, t, &s->got, &forward, err));
  compare_forward(&c, &s->got, &s->want, &s->shaken);
  luattn_status status = LUATTN_OK;
  for (int rows = 0; rows < 2 && p->info.has_backward && status == LUATTN_OK; rows++) {
    if (rows && (!p->info.has_lse || problem_num_saved(p) > 0)) break; /* there are none, or more than o and lse */
    gpu_buffers own = {.g = b->g};
    gpu_call backward = {0};
    status = backward_on_device(&own, p, t, &s->got, rows ? &forward : NULL, &backward, err);
    gpu_buffers_free(&own);
    if (status == LUATTN_OK) compare_backward(&c, &p->info, rows ? ", from rows" : "", s);
  }
  return status;
}

static luattn_status check_sides(cli_gpu *gpu, const cli_problem *p, const cli_tangents *t, sides *s, check_report *out,
                                 luattn_error *err) {
  gpu_buffers b = {.g = gpu};
  TRY(run_cpu(p, t, &s->want, err));
  TRY(measure_scores(p, s, err));
  TRY(measure_terms(p, s, err));
  TRY(run_shaken(p, t, &s->shaken, err));
  const luattn_status status = check_on_device(&b, p, t, s, out, err);
  gpu_buffers_free(&b);
  return status;
}

/* Leaves out what is not in `along`. */
static void keep_along(cli_tangents *t, unsigned along) {
  if (!(along & CHECK_ALONG_Q)) t->given.q = NULL;
  if (!(along & CHECK_ALONG_KV)) t->given.k = t->given.v = NULL;
  if (along & CHECK_ALONG_OTHERS) return;
  for (size_t i = 0; i < sizeof t->input / sizeof *t->input; i++) array_free(&t->input[i]);
  t->given.num_inputs = t->given.num_scalars = 0;
}

luattn_status check_jvp_kernels(cli_gpu *gpu, const cli_options *o, const cli_problem *p, unsigned along,
                                check_report *out, luattn_error *err) {
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  cli_tangents t;
  sides s = {0};
  *out = (check_report){0};
  TRY(tangents_new(p, (uint64_t)o->seed + 1, &t, err));
  keep_along(&t, along);
  luattn_status status = side_new(p, f64, f64, &s.want, err);
  if (status == LUATTN_OK) status = side_new(p, f64, f64, &s.shaken, err);
  if (status == LUATTN_OK) status = side_new(p, f64, f64, &s.terms, err);
  if (status == LUATTN_OK)
    status = side_new(p, dtype_dl(p->dtype), p->dtype == LUATTN_F64 ? f64 : dtype_dl(LUATTN_F32), &s.got, err);
  if (status == LUATTN_OK) status = check_sides(gpu, p, &t, &s, out, err);
  side_free(&s.want), side_free(&s.shaken), side_free(&s.got);
  side_free(&s.terms), tangents_free(&t);
  return status;
}
