/* offsets_test.c: calls on parts of larger tensors (luattn/batch.h), from luattn_forward and luattn_backward
 * to the kernels, which the PTX machine executes. The whole problem is split in two along heads, queries and
 * keys. Each of the eight parts is a separate call with offsets and slices of the inputs. The merged results,
 * computed on the host, must equal the CPU path's results for the whole in one call: O and lse in forward,
 * dq, dk, dv and gradients of inputs in backward. Also tests device offsets that differ between batch entries
 * and change between two launches of one handle.
 *
 * offsets_test FAMILY DTYPE [SPEC]: simt f32, simt f64, sm80 f16, sm90 bf16, decode bf16 (LUATTN_DECODE_ALWAYS), ..,
 * cpu f64
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, Q_LEN = 150, KV_LEN = 140, DIM = 64, Q_CUT = 70, KV_CUT = 77, H_CUT = 2 };

/* Axes of an input, one letter each: b, h, q, k; a digit is a free axis of 16. */
typedef struct spec_row {
  const char *name, *text, *axes;
  kind input;
  bool grad, no_lse;
} spec_row;

static const spec_row specs[] = {
    {"alibi", "return attention { score_mod = alibi(), block_mask = causal() }", NULL, F32, false, false},
    {"window", "return attention { score_mod = softcap(20), block_mask = sliding_window(40, 10) }", NULL, F32, false,
     false},
    {"lengths",
     "return attention { score_mod = function(s, b, h, q, kv) return s + 0.3 * (q - kv) / (q_len + kv_len) + h / heads "
     "+ b end,\n"
     "  block_mask = function(b, h, q, kv) return kv - kv_len <= q - q_len + 30 end }",
     NULL, F32, false, false},
    {"documents",
     "return attention { inputs = { x = { axes = {'b', 'kv'}, dtype = 'i32' }, },\n"
     "  block_mask = function(b, h, q, kv) return x[{b, kv}] * 40 <= q and q - kv < 90 end }",
     "bk", I32, false, false},
    {"bias",
     "return attention { inputs = { x = { axes = {'h', 'q', 'kv'}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, kv) return s + x[{h, q, kv}] end, block_mask = causal_bottom_right() }",
     "hqk", F32, true, false},
    {"buckets",
     "return attention { inputs = { x = { axes = {'h', 16}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, kv) return s + x[{h, clamp((kv - q) // 10 + 8, 0, 15)}] end }",
     "h9", F32, true, false},
    {"grid",
     "return attention { block_mask = function(b, h, q, kv)\n"
     "  return abs(q // 12 - kv // 12) <= 3 and abs(q % 12 - kv % 12) <= 2 end }",
     NULL, F32, false, false},
    {"dilated", "return attention { block_mask = function(b, h, q, kv) return eq((q - kv) % 3, 0) and kv <= q end }",
     NULL, F32, false, false},
    {"row and column",
     "return attention { inputs = { x = { axes = {'q'}, grad = true } }, score_mod = function(s, b, h, q, kv)\n"
     "  return s * (1 + 0.1 * x[q]) + 0.01 * q - 0.02 * kv end }",
     "q", F32, true, false},
    {"mods",
     "return attention { inputs = { x = { axes = {'hkv', 'kv'}, grad = true } },\n"
     "  query_mod = function(x, b, h, pos, d) return x * (1 + 0.001 * pos + 0.1 * h) end,\n"
     "  key_mod = function(y, b, h, pos, d) return y * x[{h, pos}] end,\n"
     "  value_mod = function(y, b, h, pos, d) return y + 0.01 * pos + 0.1 * h end }",
     "gk", F32, true, false},
    {"rotary",
     "local function turn(x, b, h, pos, d)\n"
     "  local a = 0.02 * pos * (1 + d % (head_dim // 2)) + h\n"
     "  local other = where(d < head_dim // 2, -1, 1) * x[(d + head_dim // 2) % head_dim]\n"
     "  return (x + other * a) / (1 + a * a)\n"
     "end\n"
     "return attention { inputs = { x = { axes = {'hkv', 'kv'}, grad = true } }, query_mod = turn, block_mask = "
     "causal(),\n"
     "  key_mod = function(y, b, h, pos, d) return turn(y, b, h, pos, d) * x[{h, pos}] end }",
     "gk", F32, true, false},
    {"random",
     "return attention { score_mod = function(s, b, h, q, kv) return s + 2 * random(b, h, q, kv) end,\n"
     "  key_mod = function(x, b, h, pos, d) return x * (1 + random(b, h, pos, d)) end,\n"
     "  block_mask = function(b, h, q, kv) return kv <= q and random(b, h, q // 3, kv // 5) < 0.7 end }",
     NULL, F32, false, false},
    {"dropout", "return attention { online_func = dropout(0.3), block_mask = causal() }", NULL, F32, false, false},
    {"sigmoid", "return attention { online_func = sigmoid_attention, block_mask = causal() }", NULL, F32, false, true},
};
enum { NUM_SPECS = sizeof specs / sizeof *specs };

/* ---- the whole ---- */

enum { Q, K, V, O, DOUT, DQ, DK, DV, NUM_TENSORS };
static const int64_t shapes[NUM_TENSORS][4] = {
    [Q] = {BATCH, HEADS, Q_LEN, DIM},      [K] = {BATCH, HEADS_KV, KV_LEN, DIM}, [V] = {BATCH, HEADS_KV, KV_LEN, DIM},
    [O] = {BATCH, HEADS, Q_LEN, DIM},      [DOUT] = {BATCH, HEADS, Q_LEN, DIM},  [DQ] = {BATCH, HEADS, Q_LEN, DIM},
    [DK] = {BATCH, HEADS_KV, KV_LEN, DIM}, [DV] = {BATCH, HEADS_KV, KV_LEN, DIM}};
enum { ELEMENTS = BATCH * HEADS * Q_LEN * DIM };

typedef struct whole {
  array t[NUM_TENSORS], lse, input;     /* arguments of calls; O and lse hold the CPU's results */
  double *want[NUM_TENSORS], *want_lse; /* results of the CPU */
  double *want_grad;
  int input_dims;
} whole;

static int64_t size_of_axis(char axis) {
  switch (axis) {
    case 'b':
      return BATCH;
    case 'h':
      return HEADS;
    case 'g':
      return HEADS_KV;
    case 'q':
      return Q_LEN;
    case 'k':
      return KV_LEN;
    default:
      return 16;
  }
}

static DLTensor on_cpu(double *data, const int64_t *shape, int ndim) {
  return (DLTensor){.data = data,
                    .device = {kDLCPU, 0},
                    .ndim = ndim,
                    .dtype = {kDLFloat, 64, 1},
                    .shape = (int64_t *)(uintptr_t)shape};
}

static double *doubles(const array *a) {
  double *x = calloc(a->count + 1, sizeof *x);
  for (size_t i = 0; i < a->count; ++i) x[i] = get(a->k, a->host, i);
  return x;
}

static bool always_decode; /* forward by the kernel for few queries */
static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = 77, .offset = 12};

/* Computes the whole problem on the CPU in one call without offsets. */
static void compute(const luattn_spec *spec, const spec_row *row, whole *w) {
  static const int64_t lse_shape[] = {BATCH, HEADS, Q_LEN};
  DLTensor t[NUM_TENSORS], lse = on_cpu(w->want_lse, lse_shape, 3);
  for (int i = 0; i < NUM_TENSORS; ++i) {
    if (i < O || i == DOUT) w->want[i] = doubles(&w->t[i]);
    t[i] = on_cpu(w->want[i], shapes[i], 4);
  }
  DLTensor input = w->input.t, grad = on_cpu(w->want_grad, w->input.shape, w->input_dims);
  input.data = w->input.host, input.device = (DLDevice){kDLCPU, 0};
  const luattn_input given = {.name = "x", .tensor = &input, .grad = row->grad ? &grad : NULL};
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &t[Q],
                            .k = &t[K],
                            .v = &t[V],
                            .o = &t[O],
                            .lse = row->no_lse ? NULL : &lse,
                            .dout = &t[DOUT],
                            .dq = &t[DQ],
                            .dk = &t[DK],
                            .dv = &t[DV],
                            .inputs = &given,
                            .num_inputs = row->axes != NULL,
                            .random = &numbers};
  need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "cpu forward");
  need(luattn_cpu_backward(spec, &args, &err) == LUATTN_OK, "cpu backward");
}

static void draw_input(const spec_row *row, whole *w) {
  int64_t shape[4] = {1, 1, 1, 1};
  w->input_dims = row->axes != NULL ? (int)strlen(row->axes) : 1;
  for (int i = 0; i < w->input_dims && row->axes != NULL; ++i) shape[i] = size_of_axis(row->axes[i]);
  make(&w->input, row->input, w->input_dims, shape);
  for (size_t i = 0; i < w->input.count; ++i)
    put(row->input, w->input.host, i, row->input == I32 ? (double)(i % KV_LEN / 33) : drawn());
  send(&w->input);
}

static void open_whole(const luattn_spec *spec, const spec_row *row, kind k, whole *w) {
  memset(w, 0, sizeof *w);
  for (int i = 0; i < NUM_TENSORS; ++i) {
    make(&w->t[i], k, 4, shapes[i]);
    for (size_t j = 0; j < w->t[i].count; ++j) put(k, w->t[i].host, j, drawn());
    if (i >= O && i != DOUT) w->want[i] = calloc(ELEMENTS, sizeof(double));
  }
  make(&w->lse, k == F64 ? F64 : F32, 3, (int64_t[]){BATCH, HEADS, Q_LEN});
  w->want_lse = calloc(w->lse.count, sizeof(double));
  draw_input(row, w);
  w->want_grad = calloc(w->input.count, sizeof(double));
  compute(spec, row, w);
  for (size_t i = 0; i < w->t[O].count; ++i) put(k, w->t[O].host, i, w->want[O][i]);
  for (size_t i = 0; i < w->lse.count; ++i) put(w->lse.k, w->lse.host, i, w->want_lse[i]);
  send(&w->lse);
  for (int i = 0; i < NUM_TENSORS; ++i) send(&w->t[i]);
}

static void close_whole(whole *w) {
  for (int i = 0; i < NUM_TENSORS; ++i) drop(&w->t[i]), free(w->want[i]);
  drop(&w->lse), drop(&w->input);
  free(w->want_lse), free(w->want_grad);
}

/* ---- a part ---- */

/* Ranges [first, end) of query heads, kv heads, queries and keys. */
typedef struct part {
  int h[2], g[2], q[2], k[2];
} part;

static const int *range_of(const part *p, char axis) {
  static const int all[][2] = {{0, BATCH}, {0, 16}};
  return axis == 'h' ? p->h : axis == 'g' ? p->g : axis == 'q' ? p->q : axis == 'k' ? p->k : all[axis != 'b'];
}

/* A slice of a contiguous array. */
typedef struct slice {
  DLTensor t;
  int64_t shape[4], stride[4];
} slice;

static void cut(const array *a, const char *axes, const part *p, slice *out) {
  int64_t stride = 1, first = 0;
  const int n = (int)strlen(axes);
  for (int i = n - 1; i >= 0; --i) {
    const bool channel = axes[i] == 'd';
    const int *range = channel ? NULL : range_of(p, axes[i]);
    out->shape[i] = channel ? DIM : range[1] - range[0];
    out->stride[i] = stride;
    first += channel ? 0 : range[0] * stride;
    stride *= a->shape[i];
  }
  out->t = a->t;
  out->t.ndim = n, out->t.shape = out->shape, out->t.strides = out->stride;
  out->t.byte_offset = (uint64_t)first * (a->t.dtype.bits / 8u);
}

static const char *const axes_of[NUM_TENSORS] = {"bhqd", "bgkd", "bgkd", "bhqd", "bhqd", "bhqd", "bgkd", "bgkd"};

typedef struct run {
  luattn_engine *engine;
  const luattn_spec *spec;
  const spec_row *row;
  kind k;
  const luattn_batch *batch;
} run;

/* Adds a contiguous array of the part's shape to the part's slice of the whole. */
static void add_to(double *sum, const array *whole_shape, const char *axes, const part *p, const array *part_array) {
  slice s;
  cut(whole_shape, axes, p, &s);
  const int n = s.t.ndim;
  int64_t at[4] = {0};
  const int64_t first = (int64_t)s.t.byte_offset / (s.t.dtype.bits / 8);
  for (size_t i = 0; i < part_array->count; ++i) {
    int64_t place = first;
    for (int d = 0; d < n; ++d) place += at[d] * s.stride[d];
    sum[place] += get(part_array->k, part_array->host, i);
    for (int d = n - 1; d >= 0 && ++at[d] == s.shape[d]; --d) at[d] = 0;
  }
}

/* The merged results of the parts. */
typedef struct merged {
  double *sum[NUM_TENSORS]; /* O's is not divided yet */
  double *most, *weight;    /* per row: the largest lse so far, and the sum of exp(lse - most) */
  double *grad;
} merged;

static void merge_rows(merged *m, const part *p, const array *o, const array *lse, bool no_lse) {
  const int heads = p->h[1] - p->h[0], len = p->q[1] - p->q[0];
  for (int row = 0; row < BATCH * heads * len; ++row) {
    const int b = row / len / heads, h = p->h[0] + row / len % heads, q = p->q[0] + row % len;
    const size_t to = ((size_t)b * HEADS + (size_t)h) * Q_LEN + (size_t)q;
    const double x = no_lse ? 0 : get(lse->k, lse->host, (size_t)row), most = fmax(m->most[to], x);
    if (most == -INFINITY) continue;
    const double old = no_lse ? 1 : exp(m->most[to] - most), new = no_lse ? 1 : exp(x - most);
    m->weight[to] = m->weight[to] * old + new;
    m->most[to] = most;
    for (int d = 0; d < DIM; ++d) {
      double *sum = &m->sum[O][to * DIM + (size_t)d];
      *sum = *sum * old + get(o->k, o->host, (size_t)row * DIM + (size_t)d) * new;
    }
  }
}

static void launch(const run *r, luattn_pass pass, luattn_args *args) {
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(r->engine, r->spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(r->engine, r->spec, args, NULL, &err) == LUATTN_OK,
       pass == LUATTN_FORWARD ? "forward" : "backward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
}

static void run_part(const run *r, const whole *w, const part *p, merged *m) {
  const spec_row *row = r->row;
  const int heads = p->h[1] - p->h[0], heads_kv = p->g[1] - p->g[0], nq = p->q[1] - p->q[0], nk = p->k[1] - p->k[0];
  slice in[NUM_TENSORS], lse_in, x;
  for (int i = 0; i < NUM_TENSORS; ++i) cut(&w->t[i], axes_of[i], p, &in[i]);
  cut(&w->lse, "bhq", p, &lse_in);
  cut(&w->input, row->axes != NULL ? row->axes : "9", p, &x);
  if (row->axes == NULL) x.shape[0] = 1;
  array o, lse, dq, dk, dv, grad;
  make(&o, r->k, 4, (int64_t[]){BATCH, heads, nq, DIM});
  make(&lse, w->lse.k, 3, (int64_t[]){BATCH, heads, nq});
  make(&dq, r->k, 4, o.shape);
  make(&dk, r->k, 4, (int64_t[]){BATCH, heads_kv, nk, DIM});
  make(&dv, r->k, 4, dk.shape);
  make(&grad, w->lse.k, x.t.ndim, x.shape);
  array *out[] = {&o, &lse, &dq, &dk, &dv, &grad};
  for (size_t i = 0; i < sizeof out / sizeof *out; ++i) fill(out[i], NAN);
  const luattn_input given = {.name = "x", .tensor = &x.t, .grad = row->grad ? &grad.t : NULL};
  luattn_args args = {.struct_size = sizeof args,
                      .q = &in[Q].t,
                      .k = &in[K].t,
                      .v = &in[V].t,
                      .o = &o.t,
                      .lse = row->no_lse ? NULL : &lse.t,
                      .inputs = &given,
                      .num_inputs = row->axes != NULL,
                      .batch = r->batch,
                      .random = &numbers,
                      .decode = always_decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_AUTO};
  launch(r, LUATTN_FORWARD, &args);
  fetch(&o), fetch(&lse);
  merge_rows(m, p, &o, &lse, row->no_lse);
  args.o = &in[O].t, args.lse = row->no_lse ? NULL : &lse_in.t, args.dout = &in[DOUT].t;
  args.dq = &dq.t, args.dk = &dk.t, args.dv = &dv.t;
  launch(r, LUATTN_BACKWARD, &args);
  for (size_t i = 2; i < sizeof out / sizeof *out; ++i) fetch(out[i]);
  add_to(m->sum[DQ], &w->t[DQ], axes_of[DQ], p, &dq);
  add_to(m->sum[DK], &w->t[DK], axes_of[DK], p, &dk);
  add_to(m->sum[DV], &w->t[DV], axes_of[DV], p, &dv);
  if (row->grad) add_to(m->grad, &w->input, row->axes, p, &grad);
  for (size_t i = 0; i < sizeof out / sizeof *out; ++i) drop(out[i]);
}

static merged open_merged(const whole *w) {
  merged m = {.most = calloc(w->lse.count, 8), .weight = calloc(w->lse.count, 8), .grad = calloc(w->input.count, 8)};
  for (int i = 0; i < NUM_TENSORS; ++i) m.sum[i] = calloc(ELEMENTS, sizeof(double));
  for (size_t i = 0; i < w->lse.count; ++i) m.most[i] = -INFINITY;
  return m;
}

static void close_merged(merged *m) {
  for (int i = 0; i < NUM_TENSORS; ++i) free(m->sum[i]);
  free(m->most), free(m->weight), free(m->grad);
}

/* Returns the largest difference relative to the largest expected value. */
static double difference(const double *got, const double *want, size_t n) {
  double most = 1e-30, worst = 0;
  for (size_t i = 0; i < n; ++i) {
    most = fmax(most, fabs(want[i]));
    worst = worse(worst, fabs(got[i] - want[i]));
  }
  return worst / most;
}

/* Parts round as often as the whole does, and a sum has at most four parts. */
static bool judge(const run *r, const char *what, const char *of, double off) {
  const double allowed = r->k == F64 ? 1e-12 : r->k == F32 ? 2e-5 : 16 * kind_unit[r->k];
  if (off <= allowed) return true;
  fprintf(stderr, "FAILED: %s %s %s %s: off by %g, allowed %g\n", r->row->name, kind_name[r->k], what, of, off,
          allowed);
  return false;
}

static bool compare(const run *r, const whole *w, merged *m, const char *what) {
  static const char *const names[] = {[O] = "o", [DQ] = "dq", [DK] = "dk", [DV] = "dv"};
  bool ok = true;
  for (size_t row = 0; row < w->lse.count; ++row) {
    for (int d = 0; d < DIM && !r->row->no_lse; ++d)
      m->sum[O][row * DIM + (size_t)d] /= m->weight[row] > 0 ? m->weight[row] : 1;
    if (!r->row->no_lse) m->most[row] += log(m->weight[row]);
    if (m->most[row] == w->want_lse[row]) m->most[row] = w->want_lse[row] = 0; /* -inf */
  }
  for (int i = O; i < NUM_TENSORS; ++i)
    if (names[i] != NULL) ok &= judge(r, what, names[i], difference(m->sum[i], w->want[i], w->t[i].count));
  if (!r->row->no_lse) ok &= judge(r, what, "lse", difference(m->most, w->want_lse, w->lse.count));
  if (r->row->grad) ok &= judge(r, what, "grad", difference(m->grad, w->want_grad, w->input.count));
  return ok;
}

static luattn_batch *open_batch(const luattn_batch_options *given) {
  luattn_batch_options options = *given;
  luattn_batch *batch;
  options.struct_size = sizeof options;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  return batch;
}

static bool check_parts(run *r, whole *w) {
  static const int h_cut[] = {0, H_CUT, HEADS}, q_cut[] = {0, Q_CUT, Q_LEN}, k_cut[] = {0, KV_CUT, KV_LEN};
  merged m = open_merged(w);
  for (int i = 0; i < 8; ++i) {
    const int h = i & 1, q = i >> 1 & 1, k = i >> 2;
    const part p = {{h_cut[h], h_cut[h + 1]},
                    {h_cut[h] * HEADS_KV / HEADS, h_cut[h + 1] * HEADS_KV / HEADS},
                    {q_cut[q], q_cut[q + 1]},
                    {k_cut[k], k_cut[k + 1]}};
    luattn_batch *batch = open_batch(&(luattn_batch_options){.q_offset = p.q[0],
                                                             .kv_offset = p.k[0],
                                                             .q_len = Q_LEN,
                                                             .kv_len = KV_LEN,
                                                             .head_offset = p.h[0],
                                                             .heads = HEADS,
                                                             .heads_kv = HEADS_KV});
    r->batch = batch;
    run_part(r, w, &p, &m);
    luattn_batch_close(batch);
  }
  const bool ok = compare(r, w, &m, "parts");
  close_merged(&m);
  return ok;
}

/* Tests per-entry offsets in device memory. Only rows are compared, because the two entries have different
 * offsets. */
static bool check_arrays(run *r, whole *w) {
  enum { LEN = 40 };
  static const int first[][BATCH] = {{13, 90}, {110, 0}, {-5, 1000}},
                   real[][BATCH] = {{13, 90}, {110, 0}, {0, Q_LEN - LEN}};
  array offsets, o, q;
  bool ok = true;
  make(&offsets, I32, 1, (int64_t[]){BATCH});
  make(&o, r->k, 4, (int64_t[]){BATCH, HEADS, LEN, DIM});
  make(&q, r->k, 4, o.shape);
  offsets.t.shape = offsets.shape;
  luattn_batch *batch = open_batch(&(luattn_batch_options){.q_offsets = &offsets.t, .q_len = Q_LEN});
  r->batch = batch;
  for (size_t n = 0; n < sizeof first / sizeof *first; ++n) {
    for (int b = 0; b < BATCH; ++b) put(I32, offsets.host, (size_t)b, first[n][b]);
    for (size_t i = 0; i < q.count; ++i) {
      const size_t row = i / DIM, b = row / LEN / HEADS, h = row / LEN % HEADS;
      const size_t from = ((b * HEADS + h) * Q_LEN + row % LEN + (size_t)real[n][b]) * DIM + i % DIM;
      put(r->k, q.host, i, get(r->k, w->t[Q].host, from));
    }
    send(&offsets), send(&q);
    fill(&o, NAN);
    const luattn_args given = {.struct_size = sizeof given,
                               .q = &q.t,
                               .k = &w->t[K].t,
                               .v = &w->t[V].t,
                               .o = &o.t,
                               .batch = batch,
                               .random = &numbers,
                               .decode = always_decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_AUTO};
    luattn_args args = given;
    launch(r, LUATTN_FORWARD, &args);
    fetch(&o);
    double *got = doubles(&o), *want = calloc(o.count, 8);
    for (size_t i = 0; i < o.count; ++i) {
      const size_t row = i / DIM, b = row / LEN / HEADS, h = row / LEN % HEADS;
      want[i] = w->want[O][((b * HEADS + h) * Q_LEN + row % LEN + (size_t)real[n][b]) * DIM + i % DIM];
    }
    ok &= judge(r, "arrays", "o", difference(got, want, o.count));
    free(got), free(want);
  }
  luattn_batch_close(batch);
  drop(&offsets), drop(&o), drop(&q);
  return ok;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"simt", "sm80", "sm90", "cpu", "decode"};
  enum { CPU = 3, DECODE = 4 };
  if (argc < 3) return 2;
  int family = 0, k = 0, failed = 0;
  while (family < 5 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 5 || k == 4) return 2;
  always_decode = family == DECODE;
  const luattn_engine_options options = {.struct_size = sizeof options,
                                         .device = family == CPU ? LUATTN_CPU : 0,
                                         .family = family >= CPU ? 0 : 1 + family};
  run r = {.k = (kind)k};
  need(luattn_engine_open(&options, &r.engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(r.engine);
  for (int i = 0; i < NUM_SPECS; ++i) {
    if (argc > 3 && strcmp(argv[3], specs[i].name) != 0) continue;
    luattn_spec *spec;
    whole w;
    need(luattn_spec_load_text(specs[i].name, specs[i].text, strlen(specs[i].text), NULL, &spec, &err) == LUATTN_OK,
         "spec");
    r.spec = spec, r.row = &specs[i];
    open_whole(spec, &specs[i], r.k, &w);
    const bool ok = check_parts(&r, &w);
    failed += !ok;
    if (specs[i].axes == NULL) failed += !check_arrays(&r, &w);
    close_whole(&w);
    need(luattn_engine_forget(r.engine, spec, &err) == LUATTN_OK, "forget");
    luattn_spec_free(spec);
  }
  luattn_engine_close(r.engine);
  return failed != 0;
}
