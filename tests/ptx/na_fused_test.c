/* na_fused_test.c: luattn_na_forward and luattn_na_backward beside the same in two steps (luattn_na_qk, a softmax,
 * luattn_na_av and their gradients, which na_taps_test.c compares with sums), and what is refused.
 *
 * usage: ptx_na_fused_test cpu|cuda f64|f32|bf16 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/natten.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, DIM = 8, MOST = 3, AXES = MOST + 3 };

typedef struct problem {
  int rank, extent[MOST], kernel[MOST], dilation[MOST], causal[MOST];
  bool biased;
  int q_box[MOST], kv_box[MOST]; /* 0: the engine's choice */
} problem;

static const problem problems[] = {{1, {9}, {4}, {2}, {1}, true, {16}, {32}},
                                   {2, {5, 7}, {3, 3}, {1, 2}, {0, 0}, true, {4, 8}, {16, 1}},
                                   {2, {6, 5}, {4, 5}, {1, 1}, {1, 0}, false, {0}, {0}},
                                   {3, {3, 4, 4}, {2, 3, 2}, {1, 1, 2}, {1, 0, 0}, true, {2, 2, 8}, {4, 2, 2}}};

enum { Q, K, V, O, LSE, BIAS, DOUT, DQ, DK, DV, D_BIAS, TENSORS };
static const char *const names[] = {
    "query",       "key",        "value",    "output",     "logsumexp",        "rel_pos_bias",
    "grad_output", "grad_query", "grad_key", "grad_value", "grad_rel_pos_bias"};

/* On the device with heads last, and on the host as float64 with heads first, where the two steps are computed. */
typedef struct tensor {
  array a;
  DLTensor last, first;
  int64_t last_shape[AXES], first_shape[AXES], first_stride[AXES];
  int ndim, count;
  double *x; /* as `a` lies */
} tensor;

static int places_of(const problem *p) {
  int n = 1;
  for (int a = 0; a < p->rank; ++a) n *= p->extent[a];
  return n;
}

static int taps_of(const problem *p) {
  int n = 1;
  for (int a = 0; a < p->rank; ++a) n *= p->kernel[a];
  return n;
}

static void open_tensor(const problem *p, int i, kind k, tensor *t) {
  const bool of_keys = i == K || i == V || i == DK || i == DV, is_bias = i == BIAS || i == D_BIAS, is_row = i == LSE;
  const int heads = of_keys ? HEADS_KV : HEADS;
  int n = 0;
  memset(t, 0, sizeof *t);
  if (!is_bias) t->last_shape[n++] = BATCH;
  if (is_bias || is_row) t->last_shape[n++] = heads;
  for (int a = 0; a < p->rank; ++a) t->last_shape[n++] = is_bias ? 2 * p->kernel[a] - 1 : p->extent[a];
  if (!is_bias && !is_row) t->last_shape[n++] = heads, t->last_shape[n++] = DIM;
  t->ndim = n, t->count = 1;
  for (int j = 0; j < n; ++j) t->count *= (int)t->last_shape[j];
  make(&t->a, (is_row || i == D_BIAS) && k != F64 ? F32 : k, 1, (int64_t[]){t->count});
  t->x = calloc((size_t)t->count, sizeof *t->x);
  need(t->x != NULL, "memory");
  const bool is_given = i == Q || i == K || i == V || i == BIAS || i == DOUT;
  for (int j = 0; j < t->count; ++j) {
    put(t->a.k, t->a.host, (size_t)j, is_given ? drawn() : NAN);
    if (is_given) t->x[j] = get(t->a.k, t->a.host, (size_t)j);
  }
  send(&t->a);
  t->last = t->a.t, t->last.ndim = n, t->last.shape = t->last_shape;
  t->first = (DLTensor){.data = t->x, .device = {kDLCPU, 0}, .ndim = n, .dtype = {kDLFloat, 64, 1}};
  int64_t stride[AXES], step = 1;
  for (int j = n; j-- > 0; step *= t->last_shape[j]) stride[j] = step;
  for (int j = 0; j < n; ++j) {
    const int from = is_bias || is_row || j == 0 || j == n - 1 ? j : j == 1 ? n - 2 : j - 1;
    t->first_shape[j] = t->last_shape[from], t->first_stride[j] = stride[from];
  }
  t->first.shape = t->first_shape, t->first.strides = t->first_stride;
}

static luattn_na_window window_of(const problem *p) {
  luattn_na_window w = {.rank = p->rank};
  for (int a = 0; a < p->rank; ++a)
    w.kernel_size[a] = p->kernel[a], w.dilation[a] = p->dilation[a], w.is_causal[a] = p->causal[a];
  return w;
}

/* Turns scores into weights, and lse. */
static void softmax(const problem *p, double *attn, double *lse) {
  const int taps = taps_of(p);
  for (int row = 0; row < BATCH * HEADS * places_of(p); ++row, attn += taps) {
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < taps; ++i) most = fmax(most, attn[i]);
    for (int i = 0; i < taps; ++i) sum += exp(attn[i] - most);
    lse[row] = most + log(sum);
    for (int i = 0; i < taps; ++i) attn[i] = exp(attn[i] - lse[row]);
  }
}

/* Of weights and their gradients, those of scores. */
static void softmax_backward(const problem *p, const double *attn, double *d) {
  const int taps = taps_of(p);
  for (int row = 0; row < BATCH * HEADS * places_of(p); ++row, attn += taps, d += taps) {
    double sum = 0;
    for (int i = 0; i < taps; ++i) sum += attn[i] * d[i];
    for (int i = 0; i < taps; ++i) d[i] = attn[i] * (d[i] - sum);
  }
}

static void two_steps(luattn_engine *cpu, const problem *p, tensor *t) {
  int64_t shape[AXES] = {BATCH, HEADS};
  const int n = p->rank + 3;
  for (int a = 0; a < p->rank; ++a) shape[2 + a] = p->extent[a];
  shape[n - 1] = taps_of(p);
  const size_t count = (size_t)(BATCH * HEADS * places_of(p) * taps_of(p));
  double *attn = calloc(count, sizeof *attn), *d = calloc(count, sizeof *d);
  need(attn != NULL && d != NULL, "memory");
  const double scale = 1 / sqrt(DIM);
  DLTensor taps = {.data = attn, .device = {kDLCPU, 0}, .ndim = n, .dtype = {kDLFloat, 64, 1}, .shape = shape},
           d_taps = taps;
  d_taps.data = d;
  for (int i = 0; i < t[Q].count; ++i) t[Q].x[i] *= scale;
  luattn_na_qk_args qk = {.struct_size = sizeof qk, .window = window_of(p), .query = &t[Q].first, .key = &t[K].first};
  luattn_na_av_args av = {.struct_size = sizeof av, .window = window_of(p), .attn = &taps, .value = &t[V].first};
  if (p->biased) qk.rel_pos_bias = &t[BIAS].first;
  qk.attn = &taps;
  need(luattn_na_qk(cpu, &qk, NULL, &err) == LUATTN_OK, "qk");
  softmax(p, attn, t[LSE].x);
  av.out = &t[O].first;
  need(luattn_na_av(cpu, &av, NULL, &err) == LUATTN_OK, "av");
  av.d_out = &t[DOUT].first, av.d_attn = &d_taps, av.d_value = &t[DV].first;
  need(luattn_na_av_backward(cpu, &av, NULL, &err) == LUATTN_OK, "av_backward");
  softmax_backward(p, attn, d);
  qk.d_attn = &d_taps, qk.d_query = &t[DQ].first, qk.d_key = &t[DK].first;
  if (p->biased) qk.d_rel_pos_bias = &t[D_BIAS].first;
  need(luattn_na_qk_backward(cpu, &qk, NULL, &err) == LUATTN_OK, "qk_backward");
  for (int i = 0; i < t[DQ].count; ++i) t[DQ].x[i] *= scale;
  free(attn), free(d);
}

static luattn_na_args args_of(const problem *p, const tensor *t) {
  luattn_na_args a = {.struct_size = sizeof a,
                      .window = window_of(p),
                      .query = &t[Q].last,
                      .key = &t[K].last,
                      .value = &t[V].last,
                      .output = &t[O].last,
                      .logsumexp = &t[LSE].last,
                      .grad_output = &t[DOUT].last,
                      .grad_query = &t[DQ].last,
                      .grad_key = &t[DK].last,
                      .grad_value = &t[DV].last};
  for (int axis = 0; axis < p->rank; ++axis)
    a.query_tile_size[axis] = p->q_box[axis], a.key_tile_size[axis] = p->kv_box[axis], a.num_splits_key[axis] = 1;
  if (p->biased) a.rel_pos_bias = &t[BIAS].last, a.grad_rel_pos_bias = &t[D_BIAS].last;
  return a;
}

static void run(luattn_engine *engine, luattn_pass pass, luattn_na_args args) {
  array memory;
  need(luattn_na_workspace_size(engine, pass, &args, &args.workspace_size, &err) == LUATTN_OK, "workspace");
  make(&memory, F32, 1, (int64_t[]){(int64_t)(args.workspace_size / 4 + 64)});
  args.workspace = memory.device;
  need((pass == LUATTN_FORWARD ? luattn_na_forward : luattn_na_backward)(engine, &args, NULL, &err) == LUATTN_OK,
       "run");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&memory);
}

static bool check(luattn_engine *engine, luattn_engine *cpu, int number, kind k) {
  const problem *p = &problems[number];
  tensor t[TENSORS];
  bool ok = true;
  for (int i = 0; i < TENSORS; ++i) open_tensor(p, i, k, &t[i]);
  const luattn_na_args args = args_of(p, t);
  run(engine, LUATTN_FORWARD, args);
  run(engine, LUATTN_BACKWARD, args);
  two_steps(cpu, p, t);
  for (int i = 0; i < TENSORS; ++i) {
    const bool is_result = i == O || i == LSE || (i >= DQ && (i != D_BIAS || p->biased));
    double worst = 0;
    if (is_result) fetch(&t[i].a);
    for (int j = 0; is_result && j < t[i].count; ++j) {
      const double off = fabs(get(t[i].a.k, t[i].a.host, (size_t)j) - t[i].x[j]) / (1 + fabs(t[i].x[j]));
      worst = worse(worst, off);
    }
    if (!(worst <= 40 * kind_unit[k])) {
      fprintf(stderr, "FAILED: problem %d: %s: off by %g\n", number, names[i], worst);
      ok = false;
    }
  }
  for (int i = 0; i < TENSORS; ++i) drop(&t[i].a), free(t[i].x);
  return ok;
}

static bool refuses(luattn_engine *engine, luattn_na_args args, luattn_status expected, const char *message) {
  const luattn_status status = luattn_na_forward(engine, &args, NULL, &err);
  if (status == expected && strcmp(err.message, message) == 0) return true;
  fprintf(stderr, "FAILED: refused as '%s', expected '%s'\n", status == LUATTN_OK ? "" : err.message, message);
  return false;
}

static bool check_refused_choices(luattn_engine *engine, const luattn_na_args *all) {
  luattn_na_args half = *all, more = *all, large = *all, splits = *all, many = *all, none = *all, keys = *all;
  half.query_tile_size[1] = 0, more.key_tile_size[2] = 4, large.query_tile_size[0] = 257;
  splits.key_tile_size[1] = 2, splits.num_splits_key[1] = 3;
  many.key_tile_size[0] = many.key_tile_size[1] = 0, many.num_splits_key[0] = 6;
  none.query_tile_size[1] = 5, keys.key_tile_size[1] = 3;
  bool ok =
      refuses(engine, half, LUATTN_INVALID,
              "luattn_na_forward: query_tile_size[1]: is 0, expected 1 to 256 along each axis of a box, or 0 along "
              "all, for the engine's choice");
  ok &= refuses(engine, more, LUATTN_INVALID,
                "luattn_na_forward: key_tile_size[2]: is 4, and the window has a rank of 2; give 0");
  ok &= refuses(engine, large, LUATTN_INVALID,
                "luattn_na_forward: query_tile_size[0]: is 257, expected 1 to 256 along each axis of a box, or 0 along "
                "all, for the engine's choice");
  ok &= refuses(engine, splits, LUATTN_INVALID,
                "luattn_na_forward: num_splits_key[1]: is 3, expected at most 2, the boxes of 2 keys along that axis, "
                "or 0");
  ok &= refuses(engine, many, LUATTN_INVALID,
                "luattn_na_forward: num_splits_key[0]: is 6, expected at most 5, the boxes of 1 keys along that axis, "
                "or 0");
  if (driver == NULL) return ok;
  ok &=
      refuses(engine, none, LUATTN_INVALID,
              "target: query_tile_size: a box of 20 queries is not possible: the simt family takes powers of two from "
              "16 to 256; leave it 0 to let the plan choose");
  return ok & refuses(engine, keys, LUATTN_INVALID,
                      "target: key_tile_size: a box of 48 keys is not possible: the simt family takes powers of two "
                      "from 16 to 256; leave it 0 to let the plan choose");
}

static bool check_refused(luattn_engine *engine, kind k) {
  const problem *p = &problems[1];
  tensor t[TENSORS];
  for (int i = 0; i < TENSORS; ++i) open_tensor(p, i, k, &t[i]);
  const luattn_na_args all = args_of(p, t);
  luattn_na_args wide = all, stride = all, key = all, delta = all;
  wide.window.kernel_size[1] = 4, stride.stride[0] = 4, key.key = NULL;
  delta.compute_delta_with_torch = 2;
  bool ok =
      refuses(engine, wide, LUATTN_INVALID,
              "luattn_na_forward: window: kernel_size[1]: is 4 with a dilation of 2, and the tensors have 7 places "
              "along that axis; give at most 3");
  ok &= refuses(engine, stride, LUATTN_INVALID,
                "luattn_na_forward: stride[0]: is 4, expected 1 to kernel_size, which is 3, or 0 for 1");
  ok &= refuses(engine, key, LUATTN_INVALID, "luattn_na_forward: key: is missing");
  ok &= refuses(engine, delta, LUATTN_INVALID, "luattn_na_forward: compute_delta_with_torch: is 2, expected 0 or 1");
  ok &= check_refused_choices(engine, &all);
  for (int i = 0; i < TENSORS; ++i) drop(&t[i].a), free(t[i].x);
  return ok;
}

int main(int argc, char **argv) {
  int k = 0, failed = 0;
  luattn_engine *engine, *cpu;
  if (argc < 3) return 2;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (k == 4) return 2;
  const luattn_engine_options options = {.struct_size = sizeof options,
                                         .device = strcmp(argv[1], "cpu") == 0 ? LUATTN_CPU : 0},
                              host = {.struct_size = sizeof host, .device = LUATTN_CPU};
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  need(luattn_engine_open(&host, &cpu, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  for (int i = 0; i < (int)(sizeof problems / sizeof *problems); ++i)
    if (argc == 3 || atoi(argv[3]) == i) failed += !check(engine, cpu, i, (kind)k);
  failed += !check_refused(engine, (kind)k);
  luattn_engine_close(cpu);
  luattn_engine_close(engine);
  if (failed == 0) printf("right\n");
  return failed != 0;
}
