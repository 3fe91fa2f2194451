/* na_taps_test.c: neighborhood attention in two steps (luattn/natten.h) beside sums over windows that are written out: 1 to 3
 * axes, dilation, causality, fewer heads of keys, a bias, tensors with gaps, and gradients of all.
 *
 * usage: ptx_na_taps_test cpu|cuda f64|f32|bf16|f16 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/natten.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { MOST = 3, AXES = MOST + 3 };

typedef struct problem {
  int rank, batch, heads, heads_kv, dim;
  int extent[MOST], kernel[MOST], dilation[MOST], causal[MOST];
} problem;

static const problem problems[] = {
    {1, 2, 2, 1, 5, {9}, {3}, {1}, {0}},
    {1, 1, 2, 2, 4, {11}, {4}, {2}, {1}},
    {2, 2, 4, 2, 7, {6, 9}, {3, 4}, {1, 2}, {0, 0}},
    {2, 1, 2, 2, 33, {7, 5}, {5, 2}, {1, 2}, {1, 0}},
    {3, 1, 2, 1, 3, {4, 5, 6}, {2, 3, 3}, {2, 1, 2}, {1, 0, 1}},
    {2,
     1,
     1,
     1,
     70,
     {5, 6},
     {5, 6},
     {1, 1},
     {0, 0}}, /* windows of all keys, and more channels than the CPU adds at once */
};

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

/* The key of a tap and its element of a head's bias; -1: there is none. */
static int key_of(const problem *p, int query, int tap, int *bias) {
  int key = 0, step = 1, bias_step = 1;
  *bias = 0;
  for (int a = p->rank; a-- > 0;) {
    const int k = p->kernel[a], d = p->dilation[a], L = p->extent[a], i = query % L, t = tap % k;
    const int g = i % d, at = i / d, n = (L - g + d - 1) / d;
    int first = at - k / 2;
    if (first > n - k) first = n - k;
    if (p->causal[a]) first = at - k + 1;
    if (first < 0) first = 0;
    if (p->causal[a] && first + t > at) return -1;
    key += (g + (first + t) * d) * step;
    *bias += (first + t - at + k - 1) * bias_step;
    step *= L, bias_step *= 2 * k - 1;
    query /= L, tap /= k;
  }
  return key;
}

/* A tensor of the device, with a gap behind each row, and what it should be. */
typedef struct tensor {
  array a;
  DLTensor t;
  int64_t shape[AXES], stride[AXES];
  int rows, width, gap;
  double *want;
} tensor;

static void open_tensor(tensor *t, kind k, int ndim, const int64_t *shape, int gap, bool is_given) {
  *t = (tensor){.rows = 1, .width = (int)shape[ndim - 1], .gap = gap};
  int64_t stride = 1;
  for (int i = ndim; i-- > 0;) {
    t->shape[i] = shape[i], t->stride[i] = stride;
    stride *= shape[i] + (i == ndim - 1 ? gap : 0);
    if (i < ndim - 1) t->rows *= (int)shape[i];
  }
  make(&t->a, k, 1, (int64_t[]){stride});
  t->want = calloc((size_t)t->rows * (size_t)t->width, sizeof *t->want);
  need(t->want != NULL, "memory");
  fill(&t->a, NAN);
  for (int r = 0; r < t->rows && is_given; ++r)
    for (int c = 0; c < t->width; ++c) {
      const size_t at = (size_t)r * (size_t)(t->width + gap) + (size_t)c;
      put(k, t->a.host, at, drawn());
      t->want[r * t->width + c] = get(k, t->a.host, at);
    }
  send(&t->a);
  t->t = t->a.t, t->t.ndim = ndim, t->t.shape = t->shape, t->t.strides = t->stride;
}

static bool compare(tensor *t, const char *name, int number, double unit, double terms) {
  double worst = 0;
  int gaps = 0;
  fetch(&t->a);
  for (int r = 0; r < t->rows; ++r)
    for (int c = 0; c < t->width + t->gap; ++c) {
      const double have = get(t->a.k, t->a.host, (size_t)r * (size_t)(t->width + t->gap) + (size_t)c);
      if (c >= t->width) {
        gaps += !isnan(have);
        continue;
      }
      const double want = t->want[r * t->width + c], off = have == want ? 0 : fabs(have - want) / (1 + fabs(want));
      worst = worse(worst, off);
    }
  if (worst <= unit * (2 + terms) && gaps == 0) return true;
  fprintf(stderr, "FAILED: problem %d: %s: off by %g, %d numbers in gaps\n", number, name, worst, gaps);
  return false;
}

enum { Q, K, ATTN, BIAS, D_ATTN, D_Q, D_K, D_BIAS, WEIGHT, V, OUT, D_OUT, D_WEIGHT, D_V, TENSORS };
static const char *const names[] = {"query",  "key",    "attn",  "bias", "d_attn", "d_query",  "d_key",
                                    "d_bias", "weight", "value", "out",  "d_out",  "d_weight", "d_value"};

static void open_all(const problem *p, kind k, tensor *t) {
  static const bool is_given[TENSORS] = {
      [Q] = true, [K] = true, [BIAS] = true, [D_ATTN] = true, [WEIGHT] = true, [V] = true, [D_OUT] = true};
  for (int i = 0; i < TENSORS; ++i) {
    const bool of_keys = i == K || i == D_K || i == V || i == D_V, is_bias = i == BIAS || i == D_BIAS,
               is_attn = i == ATTN || i == D_ATTN || i == WEIGHT || i == D_WEIGHT;
    int64_t shape[AXES];
    int n = 0;
    if (!is_bias) shape[n++] = p->batch;
    shape[n++] = of_keys ? p->heads_kv : p->heads;
    for (int a = 0; a < p->rank; ++a) shape[n++] = is_bias ? 2 * p->kernel[a] - 1 : p->extent[a];
    if (!is_bias) shape[n++] = is_attn ? taps_of(p) : p->dim;
    open_tensor(&t[i], i == D_BIAS && k != F64 ? F32 : k, n, shape, is_bias ? 0 : i % 3, is_given[i]);
  }
}

static void reference(const problem *p, tensor *t) {
  const int places = places_of(p), taps = taps_of(p), group = p->heads / p->heads_kv, dim = p->dim;
  const int biases = t[BIAS].rows * t[BIAS].width / p->heads;
  for (int row = 0; row < p->batch * p->heads * places; ++row) {
    const int i = row % places, h = row / places % p->heads, b = row / places / p->heads;
    const double *q = t[Q].want + row * dim, *d_out = t[D_OUT].want + row * dim;
    for (int n = 0; n < taps; ++n) {
      int bias;
      const int key = key_of(p, i, n, &bias), at = ((b * p->heads_kv + h / group) * places + key) * dim,
                e = row * taps + n;
      t[ATTN].want[e] = key < 0 ? -INFINITY : t[BIAS].want[h * biases + bias];
      t[D_WEIGHT].want[e] = 0;
      if (key < 0) continue;
      t[D_BIAS].want[h * biases + bias] += t[D_ATTN].want[e];
      for (int d = 0; d < dim; ++d) {
        t[ATTN].want[e] += q[d] * t[K].want[at + d];
        t[D_Q].want[row * dim + d] += t[D_ATTN].want[e] * t[K].want[at + d];
        t[D_K].want[at + d] += t[D_ATTN].want[e] * q[d];
        t[OUT].want[row * dim + d] += t[WEIGHT].want[e] * t[V].want[at + d];
        t[D_WEIGHT].want[e] += d_out[d] * t[V].want[at + d];
        t[D_V].want[at + d] += t[WEIGHT].want[e] * d_out[d];
      }
    }
  }
}

static luattn_na_window window_of(const problem *p) {
  luattn_na_window w = {.rank = p->rank};
  for (int a = 0; a < p->rank; ++a)
    w.kernel_size[a] = p->kernel[a], w.dilation[a] = p->dilation[a], w.is_causal[a] = p->causal[a];
  return w;
}

static bool check(luattn_engine *engine, int number, kind k) {
  const problem *p = &problems[number];
  tensor t[TENSORS];
  open_all(p, k, t);
  reference(p, t);
  luattn_na_qk_args qk = {.struct_size = sizeof qk, .window = window_of(p), .query = &t[Q].t, .key = &t[K].t};
  luattn_na_av_args av = {.struct_size = sizeof av, .window = window_of(p), .attn = &t[WEIGHT].t, .value = &t[V].t};
  qk.rel_pos_bias = &t[BIAS].t, qk.attn = &t[ATTN].t;
  need(luattn_na_qk(engine, &qk, NULL, &err) == LUATTN_OK, "qk");
  qk.d_attn = &t[D_ATTN].t, qk.d_query = &t[D_Q].t, qk.d_key = &t[D_K].t, qk.d_rel_pos_bias = &t[D_BIAS].t;
  need(luattn_na_qk_backward(engine, &qk, NULL, &err) == LUATTN_OK, "qk_backward");
  av.out = &t[OUT].t;
  need(luattn_na_av(engine, &av, NULL, &err) == LUATTN_OK, "av");
  av.d_out = &t[D_OUT].t, av.d_attn = &t[D_WEIGHT].t, av.d_value = &t[D_V].t;
  need(luattn_na_av_backward(engine, &av, NULL, &err) == LUATTN_OK, "av_backward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  bool ok = true;
  const double unit = kind_unit[k], sums = k == F64 || k == F32 ? places_of(p) : 0;
  for (int i = 0; i < TENSORS; ++i)
    ok &= compare(&t[i], names[i], number, i == D_BIAS && k != F64 ? kind_unit[F32] : unit,
                  i == D_BIAS ? p->batch * places_of(p) : sums);
  for (int i = 0; i < TENSORS; ++i) drop(&t[i].a), free(t[i].want);
  return ok;
}

static bool refuses(luattn_engine *engine, luattn_na_qk_args args, const char *message) {
  const luattn_status status = luattn_na_qk(engine, &args, NULL, &err);
  if (status == LUATTN_INVALID && strcmp(err.message, message) == 0) return true;
  fprintf(stderr, "FAILED: refused as '%s', expected '%s'\n", status == LUATTN_OK ? "" : err.message, message);
  return false;
}

static bool check_refused(luattn_engine *engine, kind k) {
  const problem *p = &problems[2];
  tensor t[TENSORS];
  open_all(p, k, t);
  luattn_na_qk_args all = {.struct_size = sizeof all, .window = window_of(p), .query = &t[Q].t, .key = &t[K].t};
  all.attn = &t[ATTN].t;
  luattn_na_qk_args wide = all, flat = all, none = all, rank = all, same = all;
  wide.window.kernel_size[1] = 5, flat.window.kernel_size[0] = 1, none.attn = NULL, rank.window.rank = 4;
  same.attn = &t[Q].t, same.window.kernel_size[1] = 4;
  bool ok = refuses(engine, wide,
                    "luattn_na_qk: window: kernel_size[1]: is 5 with a dilation of 2, and the tensors have 9 places "
                    "along that axis; give at most 4");
  ok &= refuses(engine, flat, "luattn_na_qk: window: kernel_size[0]: is 1, expected at least 2");
  ok &= refuses(engine, none, "luattn_na_qk: attn: is missing");
  ok &= refuses(engine, rank, "luattn_na_qk: window: rank: is 4, expected 1 to 3");
  ok &=
      refuses(engine, same,
              "luattn_na_qk: attn: has shape [2, 4, 6, 9, 7], expected [2, 4, 6, 9, 12] = [batch, heads, .., head dim "
              "or taps]");
  for (int i = 0; i < TENSORS; ++i) drop(&t[i].a), free(t[i].want);
  return ok;
}

int main(int argc, char **argv) {
  int k = 0, failed = 0;
  luattn_engine *engine;
  if (argc != 3) return 2;
  const bool on_cpu = strcmp(argv[1], "cpu") == 0;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (k == 4) return 2;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = on_cpu ? LUATTN_CPU : 0};
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  for (int i = 0; i < (int)(sizeof problems / sizeof *problems); ++i) failed += !check(engine, i, (kind)k);
  failed += !check_refused(engine, (kind)k);
  luattn_engine_close(engine);
  if (failed == 0) printf("right\n");
  return failed != 0;
}
