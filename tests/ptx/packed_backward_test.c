/* packed_backward_test.c: backward over packed sequences, from luattn_forward and luattn_backward to the kernels, which
 * the PTX machine executes, or on the CPU. Each sequence must give the gradients of a dense call on the CPU for that
 * sequence alone; gradients of inputs and scalars are sums over sequences. Sequences differ in length; some have no
 * queries, no keys, or neither. Tests all sequences in one launch; each in a separate launch with NaN in all other
 * rows of Q, K, V, O, dO, lse, dlse and saved, which leaves rows of gradients before it unchanged, and writes 0 behind
 * it; all again, with some longer than the call's maximum, of which only the first rows count; all with offsets; and
 * all with large_scores.
 *
 * packed_backward_test FAMILY DTYPE [SPEC [SEQUENCE [D Dv]]]: simt f32, simt f64, sm80 f16, sm90 bf16, cpu f64, .. With
 * the number of a spec, only that one; with that of a sequence, or -1 for all in one launch, only this launch. With
 * `poison` for SPEC: single sequences with NaN, then infinities, in other rows of one tensor at a time, so that none
 * hides another's.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"

enum { BATCH = 7, HEADS = 4, HEADS_KV = 2, MARGIN = 3, CPU = 3 };
static const int q_lens[BATCH] = {37, 0, 130, 1, 64, 5, 0}, k_lens[BATCH] = {53, 9, 130, 200, 0, 77, 0};
static int32_t shift_q[BATCH] = {11, 3, 0, 100, 7, 2, 1}, shift_k[BATCH] = {40, 0, 9, 5, 1, 0, 2};

typedef struct spec_row {
  const char *text;
  bool has_lse, has_input;
} spec_row;
static const spec_row specs[] = {
    {"return attention { block_mask = causal_bottom_right() }", true, false},
    {"return attention { scalars = { c = 20 }, score_mod = function(s) return c * tanh(s / c) end,\n"
     "  block_mask = sliding_window(40, 10) }",
     true, false},
    {"return attention { inputs = { x = { axes = {'h'}, grad = true } },\n"
     "  score_mod = function(s, b, h, q, kv) return s - x[h] * abs(q - kv) + 0.3 * b end,\n"
     "  block_mask = function(b, h, q, kv) return kv < kv_len - b end }",
     true, true},
    {"return attention { online_func = online_retention, block_mask = causal() }", false, false},
    {"return attention { inputs = { x = { axes = {'h'}, grad = true } }, online_func = attention_sink('x'),\n"
     "  block_mask = causal() }",
     true, true},
    {"return attention { online_func = sigmoid_attention }", false, false},
};
enum { NUM_SPECS = sizeof specs / sizeof *specs };

typedef struct mode {
  int dim, dim_v, longest_q, longest_k, only; /* only: -1: all sequences */
  bool shifted, large_scores;
} mode;

enum { Q, K, V, O, DOUT, DQ, DK, DV, NUM_TENSORS };
static const char *const names[] = {[DQ] = "dq", [DK] = "dk", [DV] = "dv"};

typedef struct problem {
  int cu[2][BATCH + 1];
  int longest[2];
  array t[NUM_TENSORS], lse, dlse, saved, cu_q, cu_k, x, dx, dscalar;
} problem;

static int least(int a, int b) { return a < b ? a : b; }
static bool of_keys(int tensor) { return tensor == K || tensor == V || tensor == DK || tensor == DV; }

/* What rows of other sequences hold: `value` in one tensor, and 1.5 in the others; or `value` in all. */
static struct poison {
  int tensor;
  double value;
} poison = {-1, NAN};
enum { LSE = NUM_TENSORS, DLSE, SAVED, ALL_TENSORS };
static const char *const poisoned[] = {
    [Q] = "q", [K] = "k", [V] = "v", [O] = "o", [DOUT] = "dout", [LSE] = "lse", [DLSE] = "dlse", [SAVED] = "saved"};
static double foreign(int tensor) { return poison.tensor < 0 || poison.tensor == tensor ? poison.value : 1.5; }

/* Random rows of the sequences of the call; other rows are foreign. */
static void draw_rows(array *a, int tensor, const int *cu, int only, bool rows_last) {
  const size_t total = (size_t)a->shape[rows_last ? 1 : 0], width = a->count / total;
  const size_t first = (size_t)cu[only < 0 ? 0 : only], last = (size_t)cu[only < 0 ? BATCH : only + 1];
  for (size_t i = 0; i < a->count; ++i) {
    const size_t row = rows_last ? i % total : i / width;
    put(a->k, a->host, i, row >= first && row < last ? drawn() : foreign(tensor));
  }
  send(a);
}

static void int_array(array *a, const int32_t *values, int count) {
  make(a, F32, 2, (int64_t[]){count, 1, 1});
  memcpy(a->host, values, (size_t)count * 4);
  send(a);
  a->t.ndim = 1, a->t.dtype = (DLDataType){kDLInt, 32, 1};
}

static void draw_problem(problem *p, kind k, const mode *m, size_t num_saved) {
  const kind real = k == F64 ? F64 : F32;
  memset(p, 0, sizeof *p);
  for (int b = 0; b < BATCH; ++b) p->cu[0][b + 1] = p->cu[0][b] + q_lens[b], p->cu[1][b + 1] = p->cu[1][b] + k_lens[b];
  p->longest[0] = m->longest_q, p->longest[1] = m->longest_k;
  for (int i = 0; i < NUM_TENSORS; ++i) {
    const int width = i == Q || i == K || i == DQ || i == DK ? m->dim : m->dim_v;
    make(&p->t[i], k, 3, (int64_t[]){p->cu[of_keys(i)][BATCH] + MARGIN, of_keys(i) ? HEADS_KV : HEADS, width});
    if (i == O || i >= DQ)
      fill(&p->t[i], i == O ? foreign(O) : 1.5);
    else
      draw_rows(&p->t[i], i, p->cu[of_keys(i)], m->only, false);
    p->t[i].shape[0] -= MARGIN;
  }
  make(&p->lse, real, 2, (int64_t[]){HEADS, p->cu[0][BATCH], 1});
  make(&p->dlse, real, 2, p->lse.shape);
  make(&p->saved, real, 3, (int64_t[]){(int64_t)num_saved, HEADS, p->cu[0][BATCH]});
  fill(&p->lse, foreign(LSE)), fill(&p->saved, foreign(SAVED));
  draw_rows(&p->dlse, DLSE, p->cu[0], m->only, true);
  const int first = m->only < 0 ? 0 : m->only, count = m->only < 0 ? BATCH + 1 : 2;
  int_array(&p->cu_q, p->cu[0] + first, count);
  int_array(&p->cu_k, p->cu[1] + first, count);
  make(&p->x, F32, 2, (int64_t[]){HEADS, 1, 1});
  for (int h = 0; h < HEADS; ++h) put(F32, p->x.host, (size_t)h, 0.1 * (h + 1));
  send(&p->x);
  make(&p->dx, real, 2, (int64_t[]){HEADS, 1, 1});
  make(&p->dscalar, real, 2, (int64_t[]){1, 1, 1});
  fill(&p->dx, NAN), fill(&p->dscalar, NAN);
  p->x.t.ndim = p->dx.t.ndim = p->dscalar.t.ndim = 1;
}

static void drop_problem(problem *p) {
  for (int i = 0; i < NUM_TENSORS; ++i) drop(&p->t[i]);
  array *all[] = {&p->lse, &p->dlse, &p->saved, &p->cu_q, &p->cu_k, &p->x, &p->dx, &p->dscalar};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

/* ---- a single sequence, on the CPU in double precision ---- */

typedef struct dense {
  double *data[NUM_TENSORS], *lse, *dlse, *saved, dx[HEADS], dscalar;
  int64_t shape[NUM_TENSORS][4], row_shape[3], saved_shape[4];
  DLTensor t[NUM_TENSORS], row[3];
} dense;

static DLTensor host_tensor(double *data, int64_t *shape, int ndim) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 64, 1}, .shape = shape};
}

/* Entry b of a batch of b + 1, for hooks that read b; other entries are zero and so is their dO. */
static void open_dense(const problem *p, int sequence, int b, size_t num_saved, dense *out) {
  const int len[2] = {least(q_lens[sequence], p->longest[0]), least(k_lens[sequence], p->longest[1])};
  for (int i = 0; i < NUM_TENSORS; ++i) {
    const array *a = &p->t[i];
    const int heads = (int)a->shape[1], width = (int)a->shape[2], rows = len[of_keys(i)];
    const size_t one = (size_t)heads * (size_t)rows * (size_t)width;
    memcpy(out->shape[i], (int64_t[]){b + 1, heads, rows, width}, sizeof out->shape[i]);
    out->data[i] = calloc(one * (size_t)(b + 1) + 1, sizeof(double));
    out->t[i] = host_tensor(out->data[i], out->shape[i], 4);
    for (int h = 0; h < heads && i <= DOUT && i != O; ++h)
      for (int r = 0; r < rows; ++r)
        for (int d = 0; d < width; ++d)
          out->data[i][one * (size_t)b + (size_t)((h * rows + r) * width + d)] =
              get(a->k, a->host, (size_t)(((p->cu[of_keys(i)][sequence] + r) * heads + h) * width + d));
  }
  const size_t numbers = (size_t)(HEADS * len[0]), all = numbers * (size_t)(b + 1);
  out->lse = calloc(all + 1, 8), out->dlse = calloc(all + 1, 8), out->saved = calloc(all * (num_saved + 1) + 1, 8);
  for (int h = 0; h < HEADS; ++h)
    for (int r = 0; r < len[0]; ++r)
      out->dlse[numbers * (size_t)b + (size_t)(h * len[0] + r)] =
          get(p->dlse.k, p->dlse.host, (size_t)(h * p->cu[0][BATCH] + p->cu[0][sequence] + r));
  memcpy(out->row_shape, (int64_t[]){b + 1, HEADS, len[0]}, sizeof out->row_shape);
  memcpy(out->saved_shape, (int64_t[]){(int64_t)num_saved, b + 1, HEADS, len[0]}, sizeof out->saved_shape);
  out->row[0] = host_tensor(out->lse, out->row_shape, 3), out->row[1] = host_tensor(out->dlse, out->row_shape, 3);
  out->row[2] = host_tensor(out->saved, out->saved_shape, 4);
}

static void run_dense(const luattn_spec *spec, const problem *p, const spec_row *row, int sequence, bool shifted,
                      dense *d) {
  int64_t heads = HEADS, one = 1;
  DLTensor x = p->x.t, dx = host_tensor(d->dx, &heads, 1), dscalar = host_tensor(&d->dscalar, &one, 1);
  x.data = p->x.host, x.device = (DLDevice){kDLCPU, 0}, x.shape = &heads;
  const luattn_input input = {.name = "x", .tensor = &x, .grad = &dx};
  const luattn_batch_options options = {
      .struct_size = sizeof options, .q_offset = shift_q[sequence], .kv_offset = shift_k[sequence]};
  luattn_spec_info info;
  luattn_batch *batch = NULL;
  luattn_spec_get_info(spec, &info);
  if (shifted) need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch of a sequence");
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &d->t[Q],
                            .k = &d->t[K],
                            .v = &d->t[V],
                            .o = &d->t[O],
                            .dout = &d->t[DOUT],
                            .dq = &d->t[DQ],
                            .dk = &d->t[DK],
                            .dv = &d->t[DV],
                            .lse = row->has_lse ? &d->row[0] : NULL,
                            .dlse = row->has_lse ? &d->row[1] : NULL,
                            .saved = info.num_saved > 0 ? &d->row[2] : NULL,
                            .inputs = &input,
                            .num_inputs = row->has_input,
                            .scalar_grads = info.num_scalars > 0 ? &dscalar : NULL,
                            .batch = batch};
  need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "cpu forward");
  need(luattn_cpu_backward(spec, &args, &err) == LUATTN_OK, "cpu backward");
  luattn_batch_close(batch);
}

static void close_dense(dense *d) {
  for (int i = 0; i < NUM_TENSORS; ++i) free(d->data[i]);
  free(d->lse), free(d->dlse), free(d->saved);
}

/* ---- comparison ---- */

typedef struct result {
  double error[NUM_TENSORS], biggest[NUM_TENSORS];
  double dx[HEADS], dscalar, size; /* wanted, and the sum of magnitudes over sequences */
} result;

static void compare_sequence(const problem *p, const dense *d, int sequence, int b, result *out) {
  for (int i = DQ; i <= DV; ++i) {
    const array *a = &p->t[i];
    const int64_t *s = d->shape[i];
    for (int64_t h = 0; h < s[1]; ++h)
      for (int64_t r = 0; r < s[2]; ++r)
        for (int64_t c = 0; c < s[3]; ++c) {
          const double want = d->data[i][((b * s[1] + h) * s[2] + r) * s[3] + c],
                       got = get(a->k, a->host, (size_t)(((p->cu[of_keys(i)][sequence] + r) * s[1] + h) * s[3] + c));
          if (!(fabs(got - want) <= out->error[i])) out->error[i] = fabs(got - want);
          out->biggest[i] = fmax(out->biggest[i], fabs(want));
        }
  }
  for (int h = 0; h < HEADS; ++h) out->dx[h] += d->dx[h], out->size += fabs(d->dx[h]);
  out->dscalar += d->dscalar, out->size += fabs(d->dscalar);
}

/* Whether rows of gradients that no sequence of the call has are 0, and rows in front of the first sequence and behind
 * the tensors unchanged. */
static bool others_are_right(const problem *p, int only) {
  for (int i = DQ; i <= DV; ++i) {
    const int *cu = p->cu[of_keys(i)], *lens = of_keys(i) ? k_lens : q_lens;
    const size_t width = (size_t)(p->t[i].shape[1] * p->t[i].shape[2]);
    for (size_t at = 0; at < p->t[i].count; ++at) {
      bool computed = false;
      for (int b = only < 0 ? 0 : only; b < (only < 0 ? BATCH : only + 1); ++b)
        computed |= (int)(at / width) >= cu[b] && (int)(at / width) < cu[b] + least(lens[b], p->longest[of_keys(i)]);
      const bool outside = (int)(at / width) < cu[only < 0 ? 0 : only] || (int)(at / width) >= cu[BATCH];
      if (!computed && get(p->t[i].k, p->t[i].host, at) != (outside ? 1.5 : 0)) return false;
    }
  }
  return true;
}

static double allowed(kind k) { return k == F64 ? 1e-11 : k == F32 ? 3e-5 : 16 * kind_unit[k]; }

static bool compare(const luattn_spec *spec, int number, const problem *p, kind k, const mode *m, const char *family,
                    size_t num_saved, bool has_scalar) {
  result r = {.size = 0};
  bool ok = true;
  for (int s = m->only < 0 ? 0 : m->only; s < (m->only < 0 ? BATCH : m->only + 1); ++s) {
    dense d = {.lse = NULL};
    const int b = m->only < 0 ? s : 0;
    open_dense(p, s, b, num_saved, &d);
    run_dense(spec, p, &specs[number], s, m->shifted, &d);
    compare_sequence(p, &d, s, b, &r);
    close_dense(&d);
  }
  for (int i = DQ; i <= DV; ++i) {
    if (r.error[i] <= allowed(k) * (r.biggest[i] + 1e-3)) continue;
    fprintf(stderr, "FAILED: spec %d %s %s D %d Dv %d only %d longest %d %d: %s off by %g of %g\n", number, family,
            kind_name[k], m->dim, m->dim_v, m->only, m->longest_q, m->longest_k, names[i], r.error[i], r.biggest[i]);
    ok = false;
  }
  for (int h = 0; h < HEADS; ++h) {
    const double off = specs[number].has_input ? fabs(get(p->dx.k, p->dx.host, (size_t)h) - r.dx[h]) : 0;
    if (off <= allowed(k) * (r.size + 1)) continue;
    fprintf(stderr, "FAILED: spec %d %s %s only %d: d_x[%d] off by %g of %g\n", number, family, kind_name[k], m->only,
            h, off, r.dx[h]);
    ok = false;
  }
  if (has_scalar && !(fabs(get(p->dscalar.k, p->dscalar.host, 0) - r.dscalar) <= allowed(k) * (r.size + 1)))
    fprintf(stderr, "FAILED: spec %d: d_c is %g, expected %g\n", number, get(p->dscalar.k, p->dscalar.host, 0),
            r.dscalar),
        ok = false;
  if (!others_are_right(p, m->only))
    fprintf(stderr, "FAILED: spec %d %s D %d sequence %d: rows of no sequence are not 0, or others not as they were\n",
            number, family, m->dim, m->only),
        ok = false;
  return ok;
}

/* ---- a call ---- */

static void launch(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, luattn_args *args) {
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(engine, spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(engine, spec, args, NULL, &err) == LUATTN_OK,
       pass == LUATTN_FORWARD ? "forward" : "backward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
}

/* Offsets come from arrays in host memory; `copies` gets the memory of the batch. */
static luattn_batch *open_batch(const problem *p, const mode *m, array *copies) {
  luattn_batch *batch;
  luattn_batch_options options = {.struct_size = sizeof options,
                                  .cu_seqlens_q = &p->cu_q.t,
                                  .cu_seqlens_k = &p->cu_k.t,
                                  .max_seqlen_q = m->longest_q,
                                  .max_seqlen_k = m->longest_k};
  const int first = m->only < 0 ? 0 : m->only;
  DLTensor cu_q = p->cu_q.t, cu_k = p->cu_k.t, shift[2] = {cu_q, cu_k};
  int64_t entries = p->cu_q.shape[0] - 1;
  size_t size = 0;
  if (m->shifted) {
    cu_q.data = p->cu_q.host, cu_k.data = p->cu_k.host;
    shift[0].data = shift_q + first, shift[1].data = shift_k + first;
    cu_q.device = cu_k.device = shift[0].device = shift[1].device = (DLDevice){kDLCPU, 0};
    shift[0].shape = shift[1].shape = &entries;
    options.cu_seqlens_q = &cu_q, options.cu_seqlens_k = &cu_k;
    options.q_offsets = &shift[0], options.kv_offsets = &shift[1];
  }
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  if (m->shifted && driver != NULL) need(luattn_batch_size(batch, &size, &err) == LUATTN_OK, "size of a batch");
  make(copies, F32, 2, (int64_t[]){(int64_t)(size / 4 + 64), 1});
  if (size > 0) need(luattn_batch_prepare(batch, driver, 0, copies->device, size, NULL, &err) == LUATTN_OK, "prepare");
  return batch;
}

static bool check(luattn_engine *engine, const luattn_spec *spec, int number, kind k, const mode *m,
                  const char *family) {
  problem p;
  array copies;
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  const size_t num_saved = m->large_scores ? info.num_saved_large_scores : info.num_saved;
  draw_problem(&p, k, m, num_saved);
  const luattn_input input = {.name = "x", .tensor = &p.x.t, .grad = &p.dx.t};
  luattn_batch *batch = open_batch(&p, m, &copies);
  luattn_args args = {.struct_size = sizeof args,
                      .q = &p.t[Q].t,
                      .k = &p.t[K].t,
                      .v = &p.t[V].t,
                      .o = &p.t[O].t,
                      .dout = &p.t[DOUT].t,
                      .dq = &p.t[DQ].t,
                      .dk = &p.t[DK].t,
                      .dv = &p.t[DV].t,
                      .lse = specs[number].has_lse ? &p.lse.t : NULL,
                      .dlse = specs[number].has_lse ? &p.dlse.t : NULL,
                      .saved = num_saved > 0 ? &p.saved.t : NULL,
                      .inputs = &input,
                      .num_inputs = specs[number].has_input,
                      .scalar_grads = info.num_scalars > 0 ? &p.dscalar.t : NULL,
                      .batch = batch,
                      .large_scores = m->large_scores};
  launch(engine, spec, LUATTN_FORWARD, &args);
  launch(engine, spec, LUATTN_BACKWARD, &args);
  for (int i = DQ; i <= DV; ++i) fetch(&p.t[i]);
  fetch(&p.dx), fetch(&p.dscalar);
  if (m->shifted) p.longest[0] = p.longest[1] = INT32_MAX;
  const bool ok = compare(spec, number, &p, k, m, family, num_saved, info.num_scalars > 0);
  luattn_batch_close(batch);
  drop(&copies);
  drop_problem(&p);
  return ok;
}

/* Spec i: half of the specs, and all with other head dims, by a deterministic backward. */
static int check_spec(luattn_engine *const engine[2], const luattn_spec *spec, int i, kind k, const char *family,
                      bool is_cpu) {
  int failed = 0;
  mode m = {64, 64, 130 + i, 200, -1, false, false};
  for (m.only = -1; m.only < (is_cpu ? 0 : BATCH); ++m.only) /* the CPU has all rows in some sequence */
    failed += !check(engine[i % 2], spec, i, k, &m, family);
  m.only = -1;
  m.dim = 128, m.dim_v = 72;
  if (i < 3) failed += !check(engine[1 - i % 2], spec, i, k, &m, family);
  m.dim = 136, m.dim_v = 192;
  for (m.only = -1; m.only < 3 && i < 3 && k != F64; m.only += 3)
    failed += !check(engine[i % 2], spec, i, k, &m, family);
  m.only = -1;
  m.dim = m.dim_v = 64;
  m.longest_q = 50, m.longest_k = 60; /* the CPU sees that they are too small */
  if (!is_cpu && i % 2 == 0) failed += !check(engine[0], spec, i, k, &m, family);
  m.longest_q = 0, m.longest_k = 0, m.shifted = true;
  if (i % 2 == 0) failed += !check(engine[0], spec, i, k, &m, family);
  const mode large = {64, 64, 130, 200, -1, false, true};
  if (i == 0) failed += !check(engine[0], spec, 0, k, &large, family);
  return failed;
}

/* Sequences 0 and 2, whose ends lie within tiles, beside NaN and infinities in one tensor at a time. */
static int check_poison(luattn_engine *engine, const luattn_spec *spec, int number, kind k, const char *family) {
  int failed = 0;
  for (int tensor = Q; tensor < ALL_TENSORS; ++tensor)
    for (int i = 0; i < 4; ++i) {
      const mode m = {64, 64, 130, 200, i % 2 * 2, false, false};
      if (tensor >= DQ && tensor < LSE) continue;
      poison = (struct poison){tensor, i < 2 ? NAN : INFINITY};
      if (check(engine, spec, number, k, &m, family)) continue;
      fprintf(stderr, "FAILED: with %g in other rows of %s\n", poison.value, poisoned[tensor]);
      ++failed;
    }
  poison = (struct poison){-1, NAN};
  return failed;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"simt", "sm80", "sm90", "cpu"};
  if (argc < 3) return 2;
  int family = 0, k = 0, failed = 0;
  while (family < 4 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 4 || k == 4) return 2;
  luattn_engine *engine[2]; /* the second is deterministic */
  for (int i = 0; i < 2; ++i) {
    const luattn_engine_options options = {.struct_size = sizeof options,
                                           .device = family == CPU ? LUATTN_CPU : 0,
                                           .family = family == CPU ? 0 : 1 + family,
                                           .deterministic = i};
    need(luattn_engine_open(&options, &engine[i], &err) == LUATTN_OK, "engine");
  }
  driver = luattn_engine_driver(engine[0]);
  luattn_spec *spec[NUM_SPECS];
  for (int i = 0; i < NUM_SPECS; ++i)
    need(luattn_spec_load_text("packed", specs[i].text, strlen(specs[i].text), NULL, &spec[i], &err) == LUATTN_OK,
         "spec");
  const bool is_poisoned = argc > 3 && strcmp(argv[3], "poison") == 0;
  for (int i = 0; i < NUM_SPECS && is_poisoned; i += 3) /* causal; retention, which saves rows and has no lse */
    failed += check_poison(engine[i % 2], spec[i], i, (kind)k, argv[1]);
  const int first = is_poisoned ? NUM_SPECS : argc > 3 ? atoi(argv[3]) : 0, last = argc > 3 ? first : NUM_SPECS - 1;
  for (int i = first; i <= last && last < NUM_SPECS; ++i) {
    const int dim = argc > 6 ? atoi(argv[5]) : 64, dim_v = argc > 6 ? atoi(argv[6]) : 64;
    const mode m = {dim, dim_v, 130, 200, argc > 4 ? atoi(argv[4]) : -1, false, false};
    if (argc > 4)
      failed += !check(engine[i % 2], spec[i], i, (kind)k, &m, argv[1]);
    else
      failed += check_spec(engine, spec[i], i, (kind)k, argv[1], family == CPU);
  }
  for (int i = 0; i < 2; ++i) luattn_engine_close(engine[i]);
  for (int i = 0; i < NUM_SPECS; ++i) luattn_spec_free(spec[i]);
  return failed != 0;
}
