/* packed_test.c: forward over packed sequences, from luattn_forward to the kernels, which the PTX machine
 * executes. Each sequence must give the CPU's result for that sequence alone. Sequences differ in length;
 * some have no queries, no keys, or neither. Tests all sequences in one launch; each in a separate launch
 * with NaN in all other rows, which leaves rows of O and lse before it unchanged, and writes 0 and -inf behind it; all
 * again, with some longer than the call's maximum, of which only the first rows are computed, from the first keys; all
 * with offsets, from arrays in host memory; finally a single row, and rows without any key.
 *
 * packed_test FAMILY DTYPE: simt f32, simt f64, sm80 f16, sm90 bf16, decode bf16 (LUATTN_DECODE_ALWAYS),
 * .. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"

enum { BATCH = 7, HEADS = 4, HEADS_KV = 2, MARGIN = 3 };
static int q_lens[BATCH] = {37, 0, 130, 1, 64, 5, 0}, k_lens[BATCH] = {53, 9, 130, 200, 0, 77, 0};
/* Tiny problems: a single row, whose strides must not matter, and no keys at all. */
static const int few_q_lens[][BATCH] = {{0, 0, 1}, {0, 70, 0, 0, 1}}, few_k_lens[][BATCH] = {{0, 0, 1}, {0}};

/* Offsets of the sequences in larger ones. */
static int32_t shift_q[BATCH] = {11, 3, 0, 100, 7, 2, 1}, shift_k[BATCH] = {40, 0, 9, 5, 1, 0, 2};

static const char *const specs[] = {
    "return attention { block_mask = causal_bottom_right() }",
    "return attention { score_mod = softcap(20), block_mask = sliding_window(40, 10) }",
    "return attention { score_mod = function(score, b, h, q, kv) return score + 0.05 * (h + 1) * (kv - q) + "
    "0.3 * b end }",
    "return attention { inputs = { slope = { axes = {'h'}, dtype = 'f32' } },\n"
    "  score_mod = function(score, b, h, q, kv) return score - slope[h] * abs(q - kv) end,\n"
    "  block_mask = function(b, h, q, kv) return kv < kv_len - b end }",
    "return attention { online_func = online_retention, block_mask = causal() }",
    "return attention { online_func = sigmoid_attention }",
};
enum { NUM_SPECS = sizeof specs / sizeof *specs };

/* ---- a problem ---- */

typedef struct problem {
  int dim, dim_v, total_q, total_k;
  int longest_q, longest_k; /* the call's max_seqlen */
  array q, k, v, o, lse, cu_q, cu_k, slope;
} problem;

static int least(int a, int b) { return a < b ? a : b; }

/* Draws random rows for sequence `only` (-1: all); other rows are NaN. */
static void draw_rows(array *a, const int *cu, int only) {
  const size_t width = (size_t)(a->shape[1] * a->shape[2]);
  for (size_t i = 0; i < a->count; ++i) put(a->k, a->host, i, NAN);
  for (size_t i = (size_t)cu[only < 0 ? 0 : only] * width; i < (size_t)cu[only < 0 ? BATCH : only + 1] * width; ++i)
    put(a->k, a->host, i, drawn());
  send(a);
}

/* Offsets of consecutive sequences. In memory, NaN rows precede the first and follow the last sequence,
 * outside of the totals. */
static void draw_problem(problem *p, kind k, int dim, int dim_v, int longest_q, int longest_k, int only) {
  int cu_q[BATCH + 1] = {0}, cu_k[BATCH + 1] = {0};
  for (int b = 0; b < BATCH; ++b) cu_q[b + 1] = cu_q[b] + q_lens[b], cu_k[b + 1] = cu_k[b] + k_lens[b];
  *p = (problem){.dim = dim,
                 .dim_v = dim_v,
                 .total_q = cu_q[BATCH],
                 .total_k = cu_k[BATCH],
                 .longest_q = longest_q,
                 .longest_k = longest_k};
  make(&p->q, k, 3, (int64_t[]){p->total_q + MARGIN, HEADS, dim});
  make(&p->k, k, 3, (int64_t[]){p->total_k + MARGIN, HEADS_KV, dim});
  make(&p->v, k, 3, (int64_t[]){p->total_k + MARGIN, HEADS_KV, dim_v});
  make(&p->o, k, 3, (int64_t[]){p->total_q + MARGIN, HEADS, dim_v});
  make(&p->lse, k == F64 ? F64 : F32, 2, (int64_t[]){HEADS, p->total_q, 1});
  make(&p->cu_q, F32, 2, (int64_t[]){BATCH + 1, 1, 1});
  make(&p->cu_k, F32, 2, (int64_t[]){BATCH + 1, 1, 1});
  make(&p->slope, F32, 2, (int64_t[]){HEADS, 1, 1});
  draw_rows(&p->q, cu_q, only);
  draw_rows(&p->k, cu_k, only);
  draw_rows(&p->v, cu_k, only);
  for (int h = 0; h < HEADS; ++h) put(F32, p->slope.host, (size_t)h, 0.1 * (h + 1));
  memcpy(p->cu_q.host, cu_q, sizeof cu_q);
  memcpy(p->cu_k.host, cu_k, sizeof cu_k);
  send(&p->slope);
  p->cu_q.t.data = (char *)p->cu_q.device + (only < 0 ? 0 : only) * 4;
  p->cu_k.t.data = (char *)p->cu_k.device + (only < 0 ? 0 : only) * 4;
  send(&p->cu_q);
  send(&p->cu_k);
  if (only >= 0) p->cu_q.shape[0] = p->cu_k.shape[0] = 2;
  p->cu_q.t.ndim = p->cu_k.t.ndim = p->slope.t.ndim = 1;
  p->cu_q.t.dtype = p->cu_k.t.dtype = (DLDataType){kDLInt, 32, 1};
  for (size_t i = 0; i < p->o.count; ++i) put(k, p->o.host, i, 1.5);
  for (size_t i = 0; i < p->lse.count; ++i) put(p->lse.k, p->lse.host, i, 1.5);
  send(&p->o);
  send(&p->lse);
  p->q.shape[0] -= MARGIN, p->k.shape[0] -= MARGIN, p->v.shape[0] -= MARGIN, p->o.shape[0] -= MARGIN;
}
static void drop_problem(problem *p) {
  array *all[] = {&p->q, &p->k, &p->v, &p->o, &p->lse, &p->cu_q, &p->cu_k, &p->slope};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

/* ---- a single sequence, on the CPU in double precision ---- */

typedef struct alone {
  double *q, *k, *v, *o, *lse;
} alone;

static double *copy_sequence(const array *a, int first, int len, int batches) {
  const size_t width = (size_t)(a->shape[1] * a->shape[2]), one = (size_t)len * width;
  double *x = calloc(one * (size_t)batches + 1, sizeof *x);
  for (int b = 0; b < batches; ++b)
    for (size_t i = 0; i < one; ++i) x[(size_t)b * one + i] = get(a->k, a->host, (size_t)first * width + i);
  return x;
}

static DLTensor cpu_tensor(double *data, int64_t *shape, int64_t *strides, int ndim) {
  return (DLTensor){.data = data,
                    .device = {kDLCPU, 0},
                    .ndim = ndim,
                    .dtype = {kDLFloat, 64, 1},
                    .shape = shape,
                    .strides = strides};
}

/* Returns the largest differences of O and lse from the CPU's results for a sequence, which runs there as
 * entry b of a batch, for hooks that read b. */
static void compare(const luattn_spec *spec, const problem *p, bool has_lse, bool has_slope, int sequence, int b,
                    bool shifted, double *of_o, double *of_lse) {
  const int first_q = ((int *)p->cu_q.host)[sequence], first_k = ((int *)p->cu_k.host)[sequence],
            nq = least(q_lens[sequence], p->longest_q), nk = least(k_lens[sequence], p->longest_k);
  int64_t qs[] = {b + 1, HEADS, nq, p->dim}, ks[] = {b + 1, HEADS_KV, nk, p->dim},
          vs[] = {b + 1, HEADS_KV, nk, p->dim_v}, os[] = {b + 1, HEADS, nq, p->dim_v}, ls[] = {b + 1, HEADS, nq},
          ss[] = {HEADS};
  int64_t qt[] = {(int64_t)nq * HEADS * p->dim, p->dim, HEADS * p->dim, 1},
          kt[] = {(int64_t)nk * HEADS_KV * p->dim, p->dim, HEADS_KV * p->dim, 1},
          vt[] = {(int64_t)nk * HEADS_KV * p->dim_v, p->dim_v, HEADS_KV * p->dim_v, 1};
  alone a = {copy_sequence(&p->q, first_q, nq, b + 1), copy_sequence(&p->k, first_k, nk, b + 1),
             copy_sequence(&p->v, first_k, nk, b + 1), calloc((size_t)((b + 1) * nq * HEADS * p->dim_v + 1), 8),
             calloc((size_t)((b + 1) * nq * HEADS + 1), 8)};
  const DLTensor q = cpu_tensor(a.q, qs, qt, 4), k = cpu_tensor(a.k, ks, kt, 4), v = cpu_tensor(a.v, vs, vt, 4),
                 o = cpu_tensor(a.o, os, NULL, 4), lse = cpu_tensor(a.lse, ls, NULL, 3);
  DLTensor slope = p->slope.t;
  slope.data = p->slope.host, slope.device = (DLDevice){kDLCPU, 0}, slope.shape = ss;
  const luattn_input input = {.name = "slope", .tensor = &slope};
  const luattn_batch_options options = {
      .struct_size = sizeof options, .q_offset = shift_q[sequence], .kv_offset = shift_k[sequence]};
  luattn_batch *batch = NULL;
  if (shifted) need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch of a sequence");
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &q,
                            .k = &k,
                            .v = &v,
                            .o = &o,
                            .lse = has_lse ? &lse : NULL,
                            .inputs = &input,
                            .num_inputs = has_slope,
                            .batch = batch};
  need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "cpu");
  luattn_batch_close(batch);
  *of_o = *of_lse = 0;
  for (int h = 0; h < HEADS; ++h)
    for (int i = 0; i < nq; ++i) {
      for (int d = 0; d < p->dim_v; ++d) {
        const double want =
            a.o[(((size_t)b * HEADS + (size_t)h) * (size_t)nq + (size_t)i) * (size_t)p->dim_v + (size_t)d];
        const double got =
            get(p->o.k, p->o.host, ((size_t)(first_q + i) * HEADS + (size_t)h) * (size_t)p->dim_v + (size_t)d);
        if (!(fabs(got - want) <= *of_o)) *of_o = fabs(got - want);
      }
      const double want = a.lse[((size_t)b * HEADS + (size_t)h) * (size_t)nq + (size_t)i],
                   got = get(p->lse.k, p->lse.host, (size_t)h * (size_t)p->total_q + (size_t)(first_q + i));
      if (has_lse && got != want && !(fabs(got - want) <= *of_lse)) *of_lse = fabs(got - want);
    }
  free(a.q), free(a.k), free(a.v), free(a.o), free(a.lse);
}

/* Returns whether the launch computes a row. */
static bool is_computed(const problem *p, int only, int row) {
  const int *cu = p->cu_q.host;
  for (int b = only < 0 ? 0 : only; b < (only < 0 ? BATCH : only + 1); ++b)
    if (row >= cu[b] && row < cu[b] + least(q_lens[b], p->longest_q)) return true;
  return false;
}

/* Returns whether rows of O and lse that no sequence of the launch has are 0 and -inf, and rows in front of the first
 * sequence and behind the tensors unchanged. */
static bool others_are_right(const problem *p, int only, bool has_lse) {
  const size_t width = (size_t)(HEADS * p->dim_v);
  const int first = ((const int *)p->cu_q.host)[only < 0 ? 0 : only];
  for (size_t i = 0; i < p->o.count; ++i) {
    const int row = (int)(i / width);
    if (!is_computed(p, only, row) && get(p->o.k, p->o.host, i) != (row < first || row >= p->total_q ? 1.5 : 0))
      return false;
  }
  for (size_t i = 0; i < p->lse.count; ++i) {
    const int row = (int)(i % (size_t)p->total_q);
    if (!is_computed(p, only, row) && get(p->lse.k, p->lse.host, i) != (row < first || !has_lse ? 1.5 : -INFINITY))
      return false;
  }
  return true;
}

/* Opens a batch with offsets from sequence `first` on. Its arrays are in host memory; `copies` gets device memory. */
static luattn_batch *open_shifted(const problem *p, luattn_batch_options options, int first, array *copies) {
  int64_t entries = p->cu_q.shape[0] - 1, ends = p->cu_q.shape[0];
  DLTensor cu_q = p->cu_q.t, cu_k = p->cu_k.t;
  cu_q.data = (int *)p->cu_q.host + first, cu_k.data = (int *)p->cu_k.host + first;
  cu_q.device = cu_k.device = (DLDevice){kDLCPU, 0};
  cu_q.shape = cu_k.shape = &ends;
  DLTensor offsets_q = cu_q, offsets_k = cu_k;
  offsets_q.shape = offsets_k.shape = &entries;
  offsets_q.data = shift_q + first, offsets_k.data = shift_k + first;
  options.cu_seqlens_q = &cu_q, options.cu_seqlens_k = &cu_k;
  options.q_offsets = &offsets_q, options.kv_offsets = &offsets_k;
  luattn_batch *batch;
  size_t size;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  need(luattn_batch_size(batch, &size, &err) == LUATTN_OK && size > 0, "size of a batch");
  make(copies, F32, 2, (int64_t[]){(int64_t)(size / 4), 1});
  need(luattn_batch_prepare(batch, driver, 0, copies->device, size, NULL, &err) == LUATTN_OK, "prepare");
  return batch;
}

static bool large_scores, decode; /* of the calls of check */

/* Whether m + log l is lse, in rows that have one. */
static bool saved_is_lse(const problem *p, const array *saved) {
  for (int64_t i = 0; i < (int64_t)p->lse.count; ++i) {
    const double lse = get(p->lse.k, p->lse.host, (size_t)i),
                 sum = get(saved->k, saved->host, (size_t)i) + get(saved->k, saved->host, p->lse.count + (size_t)i);
    if (isfinite(lse) && !(fabs(sum - lse) <= 1e-5)) return false;
  }
  return true;
}

/* O is at most about 1, except for retention without decay, which sums `kv` terms, so its tolerance is scaled
 * by that. `what`: as messages begin. */
static bool sequences_are_right(luattn_spec *spec, const problem *p, kind k, bool has_lse, bool has_slope, int only,
                                bool shifted, const char *what) {
  bool ok = true;
  for (int b = only < 0 ? 0 : only; b < (only < 0 ? BATCH : only + 1); ++b) {
    double of_o, of_lse;
    compare(spec, p, has_lse, has_slope, b, only < 0 ? b : 0, shifted, &of_o, &of_lse);
    const double tolerance = (k == F64 ? 1e-12 : k == F32 ? 2e-6 : 4 * kind_unit[k]) * (has_lse ? 1 : 64);
    if (of_o <= tolerance && of_lse <= (k == F64 ? 1e-12 : 2e-5)) continue;
    fprintf(stderr, "FAILED: %s sequence %d (%d x %d): O %g (allowed %g), lse %g\n", what, b, q_lens[b], k_lens[b],
            of_o, tolerance, of_lse);
    ok = false;
  }
  return ok;
}

static bool check(luattn_engine *engine, luattn_spec *spec, int number, kind k, int dim, int dim_v, const char *family,
                  int longest_q, int longest_k, int only, bool shifted) {
  problem p;
  bool ok = true;
  const bool has_slope = strstr(specs[number], "slope") != NULL, retention = strstr(specs[number], "retention") != NULL,
             has_lse = !retention && strstr(specs[number], "sigmoid") == NULL;
  draw_problem(&p, k, dim, dim_v, shifted ? INT32_MAX : longest_q, shifted ? INT32_MAX : longest_k, only);
  const luattn_input input = {.name = "slope", .tensor = &p.slope.t};
  luattn_args args = {.struct_size = sizeof args,
                      .q = &p.q.t,
                      .k = &p.k.t,
                      .v = &p.v.t,
                      .o = &p.o.t,
                      .lse = has_lse ? &p.lse.t : NULL,
                      .inputs = &input,
                      .num_inputs = has_slope,
                      .num_splits = decode ? 3 : 0,
                      .decode = decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_AUTO};
  luattn_batch_options options = {.struct_size = sizeof options,
                                  .cu_seqlens_q = &p.cu_q.t,
                                  .cu_seqlens_k = &p.cu_k.t,
                                  .max_seqlen_q = longest_q,
                                  .max_seqlen_k = longest_k};
  array copies;
  luattn_batch *batch = shifted ? open_shifted(&p, options, only < 0 ? 0 : only, &copies) : NULL;
  if (!shifted) need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  args.batch = batch;
  array saved, workspace;
  make(&saved, p.lse.k, 3, (int64_t[]){large_scores ? 2 : 1, HEADS, p.total_q});
  send(&saved);
  if (retention || large_scores) args.saved = &saved.t;
  args.large_scores = large_scores;
  size_t size;
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 2, (int64_t[]){(int64_t)(size / 4 + 64), 1});
  args.workspace = size > 0 ? workspace.device : NULL, args.workspace_size = size;
  need(luattn_forward(engine, spec, &args, NULL, &err) == LUATTN_OK, "forward");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&p.o), fetch(&p.lse), fetch(&saved);
  if (large_scores && !saved_is_lse(&p, &saved)) {
    fprintf(stderr, "FAILED: spec %d %s: the saved maximum and log l are not lse\n", number, family);
    ok = false;
  }
  char what[120];
  snprintf(what, sizeof what, "spec %d%s %s %s D %d Dv %d", number, shifted ? " with offsets" : "", family,
           kind_name[k], dim, dim_v);
  ok &= sequences_are_right(spec, &p, k, has_lse, has_slope, only, shifted, what);
  if (!others_are_right(&p, only, has_lse)) {
    fprintf(stderr,
            "FAILED: spec %d %s D %d sequence %d: rows of no sequence are not 0 and -inf, or others not as they were\n",
            number, family, dim, only);
    ok = false;
  }
  drop(&saved);
  luattn_batch_close(batch);
  drop(&workspace);
  drop_problem(&p);
  return ok;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"simt", "sm80", "sm90", "decode"};
  if (argc != 3) return 2;
  int family = 0, k = 0, failed = 0;
  while (family < 4 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 4 || k == 4) return 2;
  decode = family == 3;
  const luattn_engine_options options = {.struct_size = sizeof options, .family = decode ? 0 : 1 + family};
  luattn_engine *engine;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  static const int dims[][2] = {{64, 64}, {128, 72}};
  luattn_spec *spec[NUM_SPECS];
  for (int i = 0; i < NUM_SPECS; ++i)
    need(luattn_spec_load_text("packed", specs[i], strlen(specs[i]), NULL, &spec[i], &err) == LUATTN_OK, "spec");
  for (int i = 0; i < NUM_SPECS; ++i)
    for (int d = 0; d < 2; ++d)
      for (int only = -1; only < BATCH && (d == 0 || i < 2); ++only)
        failed += !check(engine, spec[i], i, (kind)k, dims[d][0], dims[d][1], argv[1], 130 + i, 200, only, false);
  for (int i = 0; i < NUM_SPECS; ++i) /* max_seqlen is less than two q lengths and three kv lengths */
    failed += !check(engine, spec[i], i, (kind)k, dims[0][0], dims[0][1], argv[1], 50, 60, -1, false);
  for (int i = 0; i < NUM_SPECS; ++i)
    failed += !check(engine, spec[i], i, (kind)k, dims[0][0], dims[0][1], argv[1], 0, 0, -1, true);
  large_scores = true;
  for (int shifted = 0; shifted < 2; ++shifted)
    failed += !check(engine, spec[0], 0, (kind)k, dims[0][0], dims[0][1], argv[1], 130, 200, -1, shifted != 0);
  large_scores = false;
  for (int few = 0; few < 2; ++few) {
    memcpy(q_lens, few_q_lens[few], sizeof q_lens);
    memcpy(k_lens, few_k_lens[few], sizeof k_lens);
    for (int i = 0; i < NUM_SPECS; ++i)
      failed += !check(engine, spec[i], i, (kind)k, dims[0][0], dims[0][1], argv[1], 70, few == 0, -1, false);
  }
  luattn_engine_close(engine);
  for (int i = 0; i < NUM_SPECS; ++i) luattn_spec_free(spec[i]);
  return failed != 0;
}
