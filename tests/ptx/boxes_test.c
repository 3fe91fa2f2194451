/* boxes_test.c: specs over grids of 2 to 4 axes, from luattn_forward and luattn_backward to the kernels, which the PTX
 * machine executes, beside the CPU path in double: O, lse, weights and all gradients. Extents are no multiples of boxes,
 * those of q and kv differ, tensors lie heads first and heads last, and NaN lies past the ends of every axis.
 *
 * boxes_test FAMILY DTYPE [SPEC]: simt f64, simt f32, sm80 bf16, .., cpu f64
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { HEADS = 2, HEADS_KV = 1, MOST_AXES = 4, DIMS = MOST_AXES + 3, INPUTS = 3 };

typedef struct input_row {
  const char *name;
  int ndim;
  int64_t shape[4];
} input_row;

typedef struct spec_row {
  const char *name, *text;
  int axes, batch, dim, dim_v;
  int64_t q[MOST_AXES], kv[MOST_AXES];
  input_row input[INPUTS];
  bool no_lse, f64_alone;
  bool is_wide;             /* sm90: head dims above 128 */
  uint64_t backward_box[2]; /* sm80 and sm90: of queries and keys, which the call names; 0: the plan's */
  bool of_sm80;             /* boxes that sm90 has not */
} spec_row;

static const spec_row specs[] = {
    {"window",
     "return attention { grid = {'t', 'y', 'x'}, inputs = { rows = { axes = {'h', 'q.y'}, grad = true }, columns = { "
     "axes "
     "= {'kv.x'}, grad = true }, relative = { axes = {7, 11, 21}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, k) return s + rows[{h, q.y}] * (k.t - q.t) + columns[k.x] + relative[{q.t - "
     "k.t "
     "+ 3, k.y - q.y + 5, k.x - q.x + 10}] end,\n"
     "  block_mask = neighborhood { kernel_size = {3, 4, 5}, stride = {1, 2, 1}, dilation = {1, 1, 2}, is_causal = "
     "{true, "
     "false, false} } }",
     3,
     1,
     16,
     16,
     {7, 9, 11},
     {7, 9, 11},
     {{"rows", 2, {HEADS, 9}}, {"columns", 1, {11}}, {"relative", 3, {7, 11, 21}}},
     .is_wide = false},
    {"disc",
     "return attention { grid = {'y', 'x'}, scalars = { cap = 3 }, score_mod = function(s, b, h, q, k)\n"
     "  return cap * tanh(s / cap) - 0.1 * (q.y - k.y) ^ 2 end, online_func = sigmoid_attention,\n"
     "  block_mask = function(b, h, q, k) local y, x = q.y - k.y, q.x - k.x; return y * y + x * x <= 14 and k.x < "
     "kv_len.x "
     "- b end }",
     2,
     2,
     8,
     12,
     {9, 7},
     {5, 13},
     {{NULL, 0, {0}}},
     .no_lse = true},
    {"mods",
     "return attention { grid = {'a', 't', 'y', 'x'}, inputs = { angles = { axes = {'q.y', 5}, grad = true } },\n"
     "  query_mod = function(x, b, h, pos, d) return x * (1 + 0.1 * angles[{pos.y, d % 5}]) + 0.01 * pos.a end,\n"
     "  key_mod = function(x, b, h, pos, d) return (x + 0.1 * pos.x * x[d ~ 1]) / (1 + 0.01 * pos.t) end,\n"
     "  value_mod = function(x, b, h, pos, d) return x + 0.05 * pos.t * (pos.x - pos.y) end,\n"
     "  score_mod = function(s, b, h, q, k) return s + random(b, h, q, k) end, online_func = attention_sink(0.5) }",
     4,
     1,
     8,
     8,
     {2, 3, 2, 5},
     {3, 2, 3, 3},
     {{"angles", 2, {2, 5}}},
     .is_wide = false},
    {"axial",
     "return attention { grid = {'y', 'x'}, block_mask = mask_or(axial('x'), mask_and(swin({4, 5}, {2, 3}), "
     "causal_along('y'))) }",
     2,
     1,
     16,
     16,
     {6, 19},
     {6, 19},
     {{NULL, 0, {0}}},
     .is_wide = false},
    {"dropout",
     "return attention { grid = {'t', 'y', 'x'}, online_func = dropout(0.3), block_mask = causal_along('t') }",
     3,
     1,
     16,
     16,
     {2, 7, 6},
     {3, 5, 9},
     {{NULL, 0, {0}}},
     .is_wide = false},
    {"rows_keep_nothing",
     "return attention { grid = {'y', 'x'}, inputs = { rows = { axes = {'h', 'q.y'}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, k) return s + 100 + rows[{h, q.y}] * k.x end,\n"
     "  block_mask = function(b, h, q, k) return k.x < q.x - 2 and k.y <= q.y end }",
     2,
     2,
     8,
     8,
     {5, 11},
     {9, 7},
     {{"rows", 2, {HEADS, 5}}},
     .is_wide = false},
    {"one_box",
     "return attention { grid = {'t', 'y', 'x'}, block_mask = neighborhood { kernel_size = {2, 3, 3} } }",
     3,
     1,
     8,
     8,
     {2, 3, 4},
     {2, 3, 4},
     {{NULL, 0, {0}}},
     .is_wide = false},
    {"many_boxes",
     "return attention { grid = {'y', 'x'}, scalars = { cap = 5 }, score_mod = function(s, b, h, q, k)\n"
     "  return cap * tanh(s / cap) end, block_mask = neighborhood { kernel_size = {7, 18}, stride = {2, 4} } }",
     2,
     1,
     8,
     8,
     {21, 37},
     {21, 37},
     {{NULL, 0, {0}}},
     .is_wide = false},
    {"wide",
     "return attention { grid = {'y', 'x'}, block_mask = function(b, h, q, k) return (q.y - k.y) ^ 2 + (q.x - k.x) ^ 2 "
     "<= 20 end }",
     2,
     1,
     8,
     8,
     {9, 13},
     {14, 17},
     {{NULL, 0, {0}}},
     .is_wide = true},
    {"wide_four",
     "return attention { grid = {'a', 't', 'y', 'x'}, block_mask = causal_along('t') }",
     4,
     1,
     8,
     8,
     {3, 2, 3, 5},
     {3, 3, 2, 7},
     {{NULL, 0, {0}}},
     .is_wide = true},
    {"dilated",
     "return attention { grid = {'t', 'y', 'x'}, inputs = { columns = { axes = {'kv.x'}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, k) return s + columns[k.x] * (k.t - q.t) end,\n"
     "  block_mask = neighborhood { kernel_size = {2, 3, 4}, stride = {1, 2, 1}, dilation = {2, 1, 3}, is_causal = "
     "{true, false, false} } }",
     3,
     1,
     16,
     16,
     {4, 4, 13},
     {4, 4, 13},
     {{"columns", 1, {13}}},
     .is_wide = false},
    {"dilated_bias",
     "return attention { grid = {'y', 'x'}, inputs = { rpb = { axes = {'h', 5, 7}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, k) return s + rpb[{h, (k.y - q.y) // 2 + 2, (k.x - q.x) // 3 + 3}] end,\n"
     "  block_mask = neighborhood { kernel_size = {3, 4}, dilation = {2, 3} } }",
     2,
     1,
     16,
     16,
     {7, 29},
     {7, 29},
     {{"rpb", 3, {HEADS, 5, 7}}},
     .is_wide = false},
    {"far",
     "return attention { grid = {'y', 'x'}, inputs = { rows = { axes = {'h', 'q.y'}, grad = true }, rpb = { axes = "
     "{'h', "
     "3, 3}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, k) return s + rows[{h, q.y}] * k.x + rpb[{h, (k.y - q.y) + 1, (k.x - q.x) // "
     "9 "
     "+ 1}] end,\n"
     "  key_mod = function(x, b, h, pos, d) return x * (1 + 0.1 * pos.x) end,\n"
     "  block_mask = neighborhood { kernel_size = {2, 2}, dilation = {1, 9}, is_causal = {false, true} } }",
     2,
     1,
     16,
     24,
     {3, 20},
     {3, 20},
     {{"rows", 2, {HEADS, 3}}, {"rpb", 3, {HEADS, 3, 3}}},
     .is_wide = false},
    {"far_dropout",
     "return attention { grid = {'t', 'y', 'x'}, online_func = dropout(0.3), block_mask = neighborhood { kernel_size = "
     "{2, 2, 2}, dilation = {1, 10, 1} } }",
     3,
     1,
     16,
     8,
     {2, 21, 2},
     {2, 21, 2},
     {{NULL, 0, {0}}},
     .is_wide = false},
    {"far_wide",
     "return attention { grid = {'y', 'x'}, block_mask = function(b, h, q, k) return eq((q.x - k.x) % 9, 0) and k.y "
     "<= "
     "q.y end }",
     2,
     1,
     8,
     8,
     {3, 11},
     {5, 18},
     {{NULL, 0, {0}}},
     .is_wide = true},
    {"bias_four",
     "return attention { grid = {'a', 't', 'y', 'x'}, inputs = { rpb = { axes = {'h', 3, 5}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, k) return s + rpb[{h, k.t - q.t + 1, k.x - q.x + 2}] end,\n"
     "  block_mask = function(b, h, q, k) return abs(k.t - q.t) <= 1 and abs(k.x - q.x) <= 2 end }",
     4,
     1,
     8,
     8,
     {2, 3, 3, 9},
     {2, 3, 3, 9},
     {{"rpb", 3, {HEADS, 3, 5}}},
     .is_wide = false},
    {"named_boxes",
     "return attention { grid = {'y', 'x'}, inputs = { rpb = { axes = {'h', 5, 9}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, k) return s + rpb[{h, k.y - q.y + 2, k.x - q.x + 4}] end,\n"
     "  block_mask = function(b, h, q, k) return abs(k.y - q.y) <= 2 and abs(k.x - q.x) <= 4 end }",
     2,
     1,
     8,
     8,
     {11, 35},
     {11, 35},
     {{"rpb", 3, {HEADS, 5, 9}}},
     .is_wide = false,
     .backward_box = {LUATTN_BOX(0, 0, 2, 32), LUATTN_BOX(0, 0, 8, 16)}},
    {"far_by_reach",
     "return attention { grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {2, 3}, dilation = {5, 1} } }",
     2,
     1,
     8,
     8,
     {13, 9},
     {13, 9},
     {{NULL, 0, {0}}},
     .is_wide = false,
     .backward_box = {LUATTN_BOX(0, 0, 8, 8), LUATTN_BOX(0, 0, 64, 2)}},
    {"few_queries",
     "return attention { grid = {'t', 'y', 'x'}, inputs = { rows = { axes = {'h', 'q.y'}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, k) return s + rows[{h, q.y}] * k.x end,\n"
     "  block_mask = neighborhood { kernel_size = {2, 5, 4}, stride = {1, 2, 1}, is_causal = {true, false, false} } }",
     3,
     1,
     8,
     8,
     {3, 9, 7},
     {3, 9, 7},
     {{"rows", 2, {HEADS, 9}}},
     .is_wide = false,
     .backward_box = {LUATTN_BOX(0, 2, 4, 4), LUATTN_BOX(0, 4, 8, 4)},
     .of_sm80 = true},
    {"tall_keys",
     "return attention { grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {13, 13} } }",
     2,
     1,
     8,
     8,
     {21, 27},
     {21, 27},
     {{NULL, 0, {0}}},
     .is_wide = false,
     .backward_box = {LUATTN_BOX(0, 0, 8, 8), LUATTN_BOX(0, 0, 16, 8)}},
    {"deep_keys",
     "return attention { grid = {'t', 'y', 'x'}, block_mask = neighborhood { kernel_size = {3, 7, 9} } }",
     3,
     1,
     8,
     8,
     {5, 11, 13},
     {5, 11, 13},
     {{NULL, 0, {0}}},
     .is_wide = false,
     .backward_box = {LUATTN_BOX(0, 2, 8, 4), LUATTN_BOX(0, 4, 4, 8)}},
};
enum { NUM_SPECS = sizeof specs / sizeof *specs };

/* ---- tensors ---- */

/* [batch, heads, axes of the grid, dim], or without dim: in memory with a place of NaN before and past each axis. */
typedef struct placed {
  array a;
  int64_t shape[DIMS], stride[DIMS], first, count;
  double *values; /* [count]: on the CPU, contiguous */
  DLTensor t, cpu;
} placed;

static int64_t element(const placed *x, int64_t flat) {
  int64_t at = x->first;
  for (int i = x->t.ndim - 1; i >= 0; --i) {
    at += flat % x->shape[i] * x->stride[i];
    flat /= x->shape[i];
  }
  return at;
}

static void place(placed *x, kind k, const spec_row *row, int heads, const int64_t *extent, int dim, bool heads_last,
                  bool drawn_values) {
  int64_t padded = 1;
  int order[DIMS], n = 0;
  memset(x, 0, sizeof *x);
  x->shape[n++] = row->batch, x->shape[n++] = heads;
  for (int a = 0; a < row->axes; ++a) x->shape[n++] = extent[a];
  if (dim > 0) x->shape[n++] = dim;
  const bool pads = dim > 0;
  const int beside = k == BF16 || k == F16 ? 8 : heads_last ? 4 : 3; /* rows of 16 bytes, or not */
  for (int i = 0; i < n; ++i) order[i] = i;
  if (heads_last && pads) {
    for (int i = 1; i < n - 2; ++i) order[i] = i + 1;
    order[n - 2] = 1;
  }
  x->count = 1;
  for (int o = n - 1; o >= 0; --o) {
    const int i = order[o];
    const bool of_grid = i >= 2 && i < 2 + row->axes;
    x->stride[i] = padded;
    if (pads && of_grid) x->first += padded;
    padded *= x->shape[i] + (pads && of_grid ? 2 : 0) + (pads && i == n - 1 ? beside : 0);
    x->count *= x->shape[i];
  }
  make(&x->a, k, 1, &padded);
  fill(&x->a, NAN);
  fetch(&x->a);
  x->values = calloc((size_t)x->count, sizeof *x->values);
  x->t = (DLTensor){.ndim = n};
  for (int64_t i = 0; i < x->count && drawn_values; ++i) {
    put(k, x->a.host, (size_t)element(x, i), drawn());
    x->values[i] = get(k, x->a.host, (size_t)element(x, i));
  }
  send(&x->a);
  x->t = x->a.t;
  x->t.ndim = n, x->t.shape = x->shape, x->t.strides = x->stride;
  x->t.byte_offset = (uint64_t)x->first * (x->a.t.dtype.bits / 8u);
  x->cpu =
      (DLTensor){.data = x->values, .device = {kDLCPU, 0}, .ndim = n, .dtype = {kDLFloat, 64, 1}, .shape = x->shape};
}

static void clear(placed *x) {
  drop(&x->a);
  free(x->values);
}

/* The largest difference relative to the largest expected value. NaN past the ends has to stay. */
static double difference(placed *x) {
  double most = 1e-30, worst = 0;
  fetch(&x->a);
  bool *inside = calloc(x->a.count, sizeof *inside);
  for (int64_t i = 0; i < x->count; ++i) {
    const double got = get(x->a.k, x->a.host, (size_t)element(x, i)), want = x->values[i];
    inside[element(x, i)] = true;
    if (got == want) continue;
    most = fmax(most, fabs(want));
    worst = worse(worst, fabs(got - want));
  }
  for (int64_t i = 0; i < x->count; ++i) most = isfinite(x->values[i]) ? fmax(most, fabs(x->values[i])) : most;
  for (size_t i = 0; i < x->a.count; ++i)
    if (!inside[i] && !isnan(get(x->a.k, x->a.host, i))) worst = INFINITY;
  free(inside);
  return worst / most;
}

/* ---- calls ---- */

typedef struct run {
  luattn_engine *engine;
  const luattn_spec *spec;
  const spec_row *row;
  kind k;
  bool is_sm90, is_sm80;
} run;

static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = 77, .offset = 12};

static void launch(const run *r, luattn_pass pass, luattn_args *args) {
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(r->engine, r->spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(r->engine, r->spec, args, NULL, &err) == LUATTN_OK,
       pass == LUATTN_FORWARD ? "forward" : "backward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
}

static bool judge(const run *r, const char *what, double off) {
  const double allowed = r->k == F64 ? 1e-12 : r->k == F32 ? 3e-5 : 16 * kind_unit[r->k];
  if (off <= allowed) return true;
  fprintf(stderr, "FAILED: %s %s %s: off by %g, allowed %g\n", r->row->name, kind_name[r->k], what, off, allowed);
  return false;
}

typedef struct extra {
  array tensor, grad;
  double *values, *want;
  DLTensor cpu, cpu_grad;
} extra;

static int open_inputs(const run *r, extra *x, luattn_input *given, luattn_input *on_cpu) {
  const kind k = r->k == F64 ? F64 : F32;
  int n = 0;
  for (; n < INPUTS && r->row->input[n].name != NULL; ++n) {
    const input_row *in = &r->row->input[n];
    make(&x[n].tensor, F32, in->ndim, in->shape), make(&x[n].grad, k, in->ndim, in->shape);
    fill(&x[n].grad, NAN);
    x[n].values = calloc(x[n].tensor.count, sizeof(double)), x[n].want = calloc(x[n].tensor.count, sizeof(double));
    for (size_t i = 0; i < x[n].tensor.count; ++i) {
      put(F32, x[n].tensor.host, i, drawn());
      x[n].values[i] = get(F32, x[n].tensor.host, i);
    }
    send(&x[n].tensor);
    x[n].tensor.t.shape = x[n].tensor.shape, x[n].grad.t.shape = x[n].grad.shape;
    x[n].cpu = (DLTensor){.data = x[n].values,
                          .device = {kDLCPU, 0},
                          .ndim = in->ndim,
                          .dtype = {kDLFloat, 64, 1},
                          .shape = (int64_t *)(uintptr_t)in->shape};
    x[n].cpu_grad = x[n].cpu, x[n].cpu_grad.data = x[n].want;
    given[n] = (luattn_input){in->name, &x[n].tensor.t, &x[n].grad.t};
    on_cpu[n] = (luattn_input){in->name, &x[n].cpu, &x[n].cpu_grad};
  }
  return n;
}

static bool check_input(const run *r, extra *x, const char *name) {
  double worst = 0, most = 1e-30;
  fetch(&x->grad);
  for (size_t i = 0; i < x->grad.count; ++i) {
    const double off = fabs(get(x->grad.k, x->grad.host, i) - x->want[i]);
    worst = worse(worst, off);
    most = fmax(most, fabs(x->want[i]));
  }
  const bool ok = judge(r, name, worst / most);
  drop(&x->tensor), drop(&x->grad);
  free(x->values), free(x->want);
  return ok;
}

static bool check_weights(const run *r, luattn_args *args, const luattn_args *on_cpu) {
  int64_t rows = 1, columns = 1, shape[4];
  size_t size;
  for (int a = 0; a < r->row->axes; ++a) rows *= r->row->q[a], columns *= r->row->kv[a];
  shape[0] = r->row->batch, shape[1] = HEADS, shape[2] = rows, shape[3] = columns;
  array got, workspace;
  make(&got, r->k == F64 ? F64 : F32, 4, shape);
  got.t.shape = got.shape;
  fill(&got, NAN);
  double *want = calloc(got.count, sizeof *want), worst = 0, most = 1e-30;
  DLTensor cpu = {.data = want, .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 64, 1}, .shape = shape};
  need(luattn_cpu_weights(r->spec, on_cpu, &cpu, &err) == LUATTN_OK, "cpu weights");
  need(luattn_engine_workspace_size(r->engine, r->spec, LUATTN_FORWARD, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need(luattn_weights(r->engine, r->spec, args, &got.t, NULL, &err) == LUATTN_OK, "weights");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&got);
  for (size_t i = 0; i < got.count; ++i) {
    const double off = fabs(get(got.k, got.host, i) - want[i]);
    worst = worse(worst, off);
    most = fmax(most, fabs(want[i]));
  }
  free(want);
  drop(&got), drop(&workspace);
  return judge(r, "weights", worst / most);
}

/* Runs backward again. false: some bits of the gradients differ. */
static bool same_bits(const run *r, luattn_args *args, placed *const gradient[3], extra *x, int n) {
  array *all[3 + INPUTS];
  void *before[3 + INPUTS];
  bool same = true;
  for (int i = 0; i < 3 + n; ++i) {
    all[i] = i < 3 ? &gradient[i]->a : &x[i - 3].grad;
    fetch(all[i]);
    const size_t bytes = all[i]->count * (all[i]->t.dtype.bits / 8u);
    before[i] = malloc(bytes);
    memcpy(before[i], all[i]->host, bytes);
    fill(all[i], NAN);
  }
  launch(r, LUATTN_BACKWARD, args);
  for (int i = 0; i < 3 + n; ++i) {
    fetch(all[i]);
    same &= memcmp(before[i], all[i]->host, all[i]->count * (all[i]->t.dtype.bits / 8u)) == 0;
    free(before[i]);
  }
  if (!same) fprintf(stderr, "FAILED: %s %s: two runs differ\n", r->row->name, kind_name[r->k]);
  return same;
}

static bool check(const run *r, bool heads_last, bool deterministic) {
  const spec_row *row = r->row;
  const kind k = r->k, real = k == F64 ? F64 : F32;
  const bool on_tensor_cores = r->is_sm90 || r->is_sm80;
  const int dim = !on_tensor_cores ? row->dim
                  : row->is_wide   ? 136
                  : heads_last     ? 128
                                   : 64,
            dim_v = !on_tensor_cores ? row->dim_v
                    : row->is_wide   ? 192
                    : heads_last     ? 72
                                     : 64;
  placed q, key, v, o, lse, dout, dlse, dq, dk, dv;
  extra x[INPUTS];
  luattn_input given[INPUTS], on_cpu[INPUTS];
  place(&q, k, row, HEADS, row->q, dim, heads_last, true);
  place(&key, k, row, HEADS_KV, row->kv, dim, heads_last, true);
  place(&v, k, row, HEADS_KV, row->kv, dim_v, heads_last, true);
  place(&dout, k, row, HEADS, row->q, dim_v, !heads_last, true);
  place(&dlse, real, row, HEADS, row->q, 0, false, true);
  place(&o, k, row, HEADS, row->q, dim_v, heads_last, false), place(&lse, real, row, HEADS, row->q, 0, false, false);
  place(&dq, k, row, HEADS, row->q, dim, heads_last, false);
  place(&dk, k, row, HEADS_KV, row->kv, dim, heads_last, false);
  place(&dv, k, row, HEADS_KV, row->kv, dim_v, heads_last, false);
  const int n = open_inputs(r, x, given, on_cpu);
  luattn_args args = {.struct_size = sizeof args,
                      .q = &q.t,
                      .k = &key.t,
                      .v = &v.t,
                      .o = &o.t,
                      .lse = row->no_lse ? NULL : &lse.t,
                      .dout = &dout.t,
                      .dlse = row->no_lse ? NULL : &dlse.t,
                      .dq = &dq.t,
                      .dk = &dk.t,
                      .dv = &dv.t,
                      .inputs = given,
                      .num_inputs = (size_t)n,
                      .random = &numbers};
  luattn_args want = args;
  want.q = &q.cpu, want.k = &key.cpu, want.v = &v.cpu, want.o = &o.cpu, want.lse = row->no_lse ? NULL : &lse.cpu;
  want.dout = &dout.cpu, want.dlse = row->no_lse ? NULL : &dlse.cpu;
  want.dq = &dq.cpu, want.dk = &dk.cpu, want.dv = &dv.cpu, want.inputs = on_cpu;
  need(luattn_cpu_forward(r->spec, &want, &err) == LUATTN_OK, "cpu forward");
  need(luattn_cpu_backward(r->spec, &want, &err) == LUATTN_OK, "cpu backward");
  launch(r, LUATTN_FORWARD, &args);
  bool ok = judge(r, "o", difference(&o)) & (row->no_lse || judge(r, "lse", difference(&lse)));
  if (on_tensor_cores) args.query_tile_size = row->backward_box[0], args.key_tile_size = row->backward_box[1];
  launch(r, LUATTN_BACKWARD, &args);
  ok &= judge(r, "dq", difference(&dq)) & judge(r, "dk", difference(&dk)) & judge(r, "dv", difference(&dv));
  if (deterministic && on_tensor_cores) ok &= same_bits(r, &args, (placed *[]){&dq, &dk, &dv}, x, n);
  if (!on_tensor_cores && !heads_last && n == 0) ok &= check_weights(r, &args, &want);
  for (int i = 0; i < n; ++i) ok &= check_input(r, &x[i], row->input[i].name);
  placed *const all[] = {&q, &key, &v, &o, &lse, &dout, &dlse, &dq, &dk, &dv};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) clear(all[i]);
  return ok;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"simt", "sm80", "sm90", "cpu"};
  enum { SM80 = 1, SM90, CPU };
  if (argc < 3) return 2;
  int family = 0, k = 0, failed = 0;
  while (family < 4 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 4 || k == 4) return 2;
  for (int deterministic = 0; deterministic < 2; ++deterministic) {
    const luattn_engine_options options = {.struct_size = sizeof options,
                                           .device = family == CPU ? LUATTN_CPU : 0,
                                           .family = family == CPU ? 0 : 1 + family,
                                           .deterministic = deterministic};
    run r = {.k = (kind)k, .is_sm90 = family == SM90, .is_sm80 = family == SM80};
    need(luattn_engine_open(&options, &r.engine, &err) == LUATTN_OK, "engine");
    driver = luattn_engine_driver(r.engine);
    for (int i = 0; i < NUM_SPECS; ++i) {
      if ((argc > 3 && strcmp(argv[3], specs[i].name) != 0) || (r.is_sm90 && specs[i].of_sm80)) continue;
      luattn_spec *spec;
      need(luattn_spec_load_text(specs[i].name, specs[i].text, strlen(specs[i].text), NULL, &spec, &err) == LUATTN_OK,
           "spec");
      r.spec = spec, r.row = &specs[i];
      failed += !check(&r, deterministic, deterministic);
      need(luattn_engine_forget(r.engine, spec, &err) == LUATTN_OK, "forget");
      luattn_spec_free(spec);
    }
    luattn_engine_close(r.engine);
  }
  return failed != 0;
}
