/* dropout_test.c: dropout, or random() in hooks, over packed sequences, with seed and offset in device memory, from
 * luattn_forward and luattn_backward to the kernels, which the PTX machine executes, or on the CPU. Each sequence must
 * give what the CPU path gives for it alone, as entry b of a dense batch, with the same numbers from the host. The same
 * launch with another offset in memory must give other results.
 *
 * dropout_test FAMILY DTYPE [random]: simt f32, simt f64, sm80 f16, sm90 bf16, decode bf16 (LUATTN_DECODE_ALWAYS), ..,
 * cpu f64
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 4, HEADS = 4, HEADS_KV = 2, DIM = 64, MOST = 130 };
static const int q_lens[BATCH] = {37, 0, 130, 1}, k_lens[BATCH] = {53, 9, 130, 90};
static const uint64_t seed = UINT64_C(0x9876543210), offset = UINT64_C(0xfffffffe);

enum { Q, K, V, O, DOUT, DQ, DK, DV, NUM_TENSORS };
static const char *const names[NUM_TENSORS] = {"q", "k", "v", "o", "dout", "dq", "dk", "dv"};
static bool of_keys(int i) { return i == K || i == V || i == DK || i == DV; }

static bool always_decode; /* forward by the kernel for few queries */

typedef struct packed {
  int cu[2][BATCH + 1];
  array t[NUM_TENSORS], lse, cu_q, cu_k, numbers; /* numbers: 64 bits each of seed and offset, as 32-bit words */
} packed;

static void send_words(array *a, const void *words, int count) {
  make(a, I32, 1, (int64_t[]){count});
  memcpy(a->host, words, (size_t)count * 4);
  send(a);
}

static void open_packed(packed *p, kind k) {
  memset(p, 0, sizeof *p);
  for (int b = 0; b < BATCH; ++b) p->cu[0][b + 1] = p->cu[0][b] + q_lens[b], p->cu[1][b + 1] = p->cu[1][b] + k_lens[b];
  for (int i = 0; i < NUM_TENSORS; ++i) {
    make(&p->t[i], k, 3, (int64_t[]){p->cu[of_keys(i)][BATCH], of_keys(i) ? HEADS_KV : HEADS, DIM});
    for (size_t j = 0; j < p->t[i].count; ++j) put(k, p->t[i].host, j, i == O || i >= DQ ? NAN : drawn());
    send(&p->t[i]);
  }
  make(&p->lse, k == F64 ? F64 : F32, 2, (int64_t[]){HEADS, p->cu[0][BATCH]});
  fill(&p->lse, NAN);
  send_words(&p->cu_q, p->cu[0], BATCH + 1);
  send_words(&p->cu_k, p->cu[1], BATCH + 1);
  send_words(&p->numbers, (const uint64_t[]){seed, offset - 5}, 4);
}

static void close_packed(packed *p) {
  for (int i = 0; i < NUM_TENSORS; ++i) drop(&p->t[i]);
  drop(&p->lse), drop(&p->cu_q), drop(&p->cu_k), drop(&p->numbers);
}

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

static void run_packed(luattn_engine *engine, const luattn_spec *spec, packed *p) {
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .cu_seqlens_q = &p->cu_q.t,
                                        .cu_seqlens_k = &p->cu_k.t,
                                        .max_seqlen_q = MOST,
                                        .max_seqlen_k = MOST};
  const uint64_t *numbers = p->numbers.device;
  const luattn_random random = {
      .struct_size = sizeof random, .seed = 1, .offset = 5, .seed_at = numbers, .offset_at = numbers + 1};
  luattn_batch *batch;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  luattn_args args = {.struct_size = sizeof args,
                      .q = &p->t[Q].t,
                      .k = &p->t[K].t,
                      .v = &p->t[V].t,
                      .o = &p->t[O].t,
                      .lse = &p->lse.t,
                      .batch = batch,
                      .random = &random,
                      .decode = always_decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_AUTO};
  launch(engine, spec, LUATTN_FORWARD, &args);
  args.dout = &p->t[DOUT].t, args.dq = &p->t[DQ].t, args.dk = &p->t[DK].t, args.dv = &p->t[DV].t;
  launch(engine, spec, LUATTN_BACKWARD, &args);
  luattn_batch_close(batch);
  for (int i = O; i < NUM_TENSORS; ++i)
    if (i != DOUT) fetch(&p->t[i]);
}

/* ---- one sequence on the CPU, as the last entry of a dense batch ---- */

typedef struct dense {
  double *data[NUM_TENSORS], *lse;
  int64_t shape[NUM_TENSORS][4];
} dense;

static size_t at_packed(const packed *p, int i, int b, size_t element) {
  const size_t rows = (size_t)(of_keys(i) ? k_lens : q_lens)[b], heads = of_keys(i) ? HEADS_KV : HEADS;
  const size_t d = element % DIM, row = element / DIM % rows, h = element / DIM / rows;
  return (((size_t)p->cu[of_keys(i)][b] + row) * heads + h) * DIM + d;
}

static size_t size_of(int i, int b) { return (size_t)(of_keys(i) ? HEADS_KV * k_lens[b] : HEADS * q_lens[b]) * DIM; }

static void run_dense(const luattn_spec *spec, const packed *p, int b, dense *out) {
  DLTensor t[NUM_TENSORS], lse;
  const int64_t lse_shape[] = {b + 1, HEADS, q_lens[b]};
  for (int i = 0; i < NUM_TENSORS; ++i) {
    const size_t one = size_of(i, b);
    const int64_t shape[] = {b + 1, of_keys(i) ? HEADS_KV : HEADS, (of_keys(i) ? k_lens : q_lens)[b], DIM};
    memcpy(out->shape[i], shape, sizeof shape);
    out->data[i] = calloc(one * (size_t)(b + 1) + 1, sizeof(double));
    for (size_t j = 0; j < one && (i < O || i == DOUT); ++j)
      out->data[i][one * (size_t)b + j] = get(p->t[i].k, p->t[i].host, at_packed(p, i, b, j));
    t[i] = (DLTensor){
        .data = out->data[i], .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 64, 1}, .shape = out->shape[i]};
  }
  out->lse = calloc((size_t)((b + 1) * HEADS * q_lens[b]) + 1, sizeof(double));
  lse = t[O], lse.data = out->lse, lse.ndim = 3, lse.shape = (int64_t *)(uintptr_t)lse_shape;
  const luattn_random random = {.struct_size = sizeof random, .seed = seed, .offset = offset};
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &t[Q],
                            .k = &t[K],
                            .v = &t[V],
                            .o = &t[O],
                            .lse = &lse,
                            .dout = &t[DOUT],
                            .dq = &t[DQ],
                            .dk = &t[DK],
                            .dv = &t[DV],
                            .random = &random};
  need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "cpu forward");
  need(luattn_cpu_backward(spec, &args, &err) == LUATTN_OK, "cpu backward");
}

/* Dropped weights are those of the CPU: otherwise results would differ by a good part of themselves. */
static bool compare(const packed *p, const dense *d, int b) {
  bool ok = true;
  for (int i = O; i < NUM_TENSORS; ++i) {
    const size_t one = size_of(i, b);
    const kind k = p->t[i].k;
    double worst = 0, most = 1e-30;
    for (size_t j = 0; j < one && i != DOUT; ++j) {
      const double want = d->data[i][one * (size_t)b + j],
                   off = fabs(get(k, p->t[i].host, at_packed(p, i, b, j)) - want);
      most = fmax(most, fabs(want));
      worst = worse(worst, off);
    }
    const double allowed = k == F64 ? 1e-12 : k == F32 ? 2e-5 : 16 * kind_unit[k];
    if (worst <= allowed * most) continue;
    fprintf(stderr, "FAILED: sequence %d: %s is off by %g of %g, allowed %g of it\n", b, names[i], worst, most,
            allowed);
    ok = false;
  }
  return ok;
}

static bool check(luattn_engine *engine, const luattn_spec *spec, kind k) {
  packed p;
  bool ok = true;
  open_packed(&p, k);
  run_packed(engine, spec, &p);
  for (int b = 0; b < BATCH; ++b) {
    dense d;
    run_dense(spec, &p, b, &d);
    ok &= compare(&p, &d, b);
    for (int i = 0; i < NUM_TENSORS; ++i) free(d.data[i]);
    free(d.lse);
  }
  double *before = calloc(p.t[O].count, sizeof *before);
  size_t changed = 0;
  for (size_t i = 0; i < p.t[O].count; ++i) before[i] = get(k, p.t[O].host, i);
  ((uint32_t *)p.numbers.host)[2] += BATCH * HEADS; /* of the offset in memory */
  send(&p.numbers);
  run_packed(engine, spec, &p);
  for (size_t i = 0; i < p.t[O].count; ++i) changed += get(k, p.t[O].host, i) != before[i];
  free(before);
  if (changed < p.t[O].count / 2)
    fprintf(stderr, "FAILED: another offset changes %zu of %zu numbers\n", changed, p.t[O].count);
  ok &= changed >= p.t[O].count / 2;
  close_packed(&p);
  return ok;
}

int main(int argc, char **argv) {
  static const char dropped[] = "return attention { block_mask = causal_bottom_right(), online_func = dropout(0.3) }";
  static const char drawn_by_hooks[] =
      "return attention { score_mod = function(s, b, h, q, kv) return s - log(-log1p(-max(random(b, h, q, kv), 2.0 ^ "
      "-25))) end,\n"
      "  query_mod = function(x, b, h, pos, d) return x * (0.5 + random(b, h, pos, d)) end,\n"
      "  value_mod = function(x, b, h, pos, d) return x * where(random(b, h, pos, -1) < 0.3, 0, 1) end,\n"
      "  block_mask = function(b, h, q, kv) return kv <= q + kv_len - q_len and random(b, h, q // 16, kv // 16) < 0.8 "
      "end }";
  static const char *const families[] = {"simt", "sm80", "sm90", "cpu", "decode"};
  enum { CPU = 3, DECODE = 4 };
  if (argc < 3) return 2;
  const char *text = argc > 3 && strcmp(argv[3], "random") == 0 ? drawn_by_hooks : dropped;
  int family = 0, k = 0;
  while (family < 5 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 5 || k == 4) return 2;
  always_decode = family == DECODE;
  const luattn_engine_options options = {.struct_size = sizeof options,
                                         .device = family == CPU ? LUATTN_CPU : 0,
                                         .family = family >= CPU ? 0 : 1 + family};
  luattn_engine *engine;
  luattn_spec *spec;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  need(luattn_spec_load_text("dropout", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  const bool ok = check(engine, spec, (kind)k);
  luattn_engine_close(engine);
  luattn_spec_free(spec);
  return !ok;
}
