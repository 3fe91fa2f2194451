/* device_weights_test.c: the weights of V that luattn_weights writes, by kernels that the PTX machine executes or on
 * the CPU, against luattn_cpu_weights: batches of equal lengths, packed sequences (each against what the CPU gives for
 * it as entry b of a batch), parts of a whole, with dropout and without; and what is refused.
 *
 * device_weights_test DTYPE: f64, f32, f16, bf16; or cpu: an engine on the CPU, f64
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 3, HEADS = 4, HEADS_KV = 2, DIM_V = 8, MOST_Q = 43, MOST_K = 71 };
static int dim_qk; /* any number in f32 and f64 */
static const int q_lens[BATCH] = {37, 0, 43}, k_lens[BATCH] = {53, 9, 71};
static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = UINT64_C(0x9876543210), .offset = 77};

typedef struct cell {
  const char *fields;
  bool has_bias, rounds; /* rounds: q' is rounded to the storage type */
} cell;
static const cell cells[] = {
    /* Every tile has a larger maximum than the one before. */
    {"score_mod = function(s, b, h, q, kv) return s + 0.3 * kv end, block_mask = causal_bottom_right()", false, false},
    {"online_func = dropout(0.3), block_mask = sliding_window(20, 5)", false, false},
    {"inputs = { bias = { axes = {'h', 'q', 'kv'}, dtype = 'f32' } }, score_mod = function(s, b, h, q, kv) return s + "
     "bias[{h, q, kv}] end, "
     "online_func = dropout(0.5, softmax_one)",
     true, false},
    {"online_func = dropout(0.25, sigmoid_attention), block_mask = causal(), query_mod = function(x, b, h, pos, d) "
     "return x * 0.2 * d end",
     false, true},
    {"online_func = { online_fwd = function(s) return exp(0.1 * s) end, online_fwd_epilogue = function(o) return o * 3 "
     "end }, "
     "score_mod = alibi(), block_mask = function(b, h, q, kv) return (kv + q * h) % 3 > 0 end",
     false, false}};
enum { CELLS = sizeof cells / sizeof *cells };

/* A call's arrays: packed, or as BATCH entries of the longest lengths. */
typedef struct call {
  bool packed;
  int cu[2][BATCH + 1];
  array q, k, v, bias, weights, cu_q, cu_k, workspace;
  luattn_input input;
  luattn_args args;
} call;

static void random_array(array *a, kind k, int ndim, const int64_t *shape) {
  make(a, k, ndim, shape);
  for (size_t j = 0; j < a->count; ++j) put(k, a->host, j, drawn());
  send(a);
}

static void ends_array(array *a, const int *cu) {
  make(a, I32, 1, (int64_t[]){BATCH + 1});
  memcpy(a->host, cu, (BATCH + 1) * sizeof *cu);
  send(a);
}

static void call_open(call *c, kind k, const cell *x, bool packed) {
  memset(c, 0, sizeof *c);
  c->packed = packed;
  for (int b = 0; b < BATCH; ++b) c->cu[0][b + 1] = c->cu[0][b] + q_lens[b], c->cu[1][b + 1] = c->cu[1][b] + k_lens[b];
  const int total_q = c->cu[0][BATCH], total_k = c->cu[1][BATCH];
  for (int i = 0; i < 3; ++i) {
    const int heads = i == 0 ? HEADS : HEADS_KV, rows = i == 0 ? MOST_Q : MOST_K, dim = i == 2 ? DIM_V : dim_qk;
    const int64_t dense[] = {BATCH, heads, rows, dim}, one[] = {i == 0 ? total_q : total_k, heads, dim};
    random_array(i == 0 ? &c->q : i == 1 ? &c->k : &c->v, k, packed ? 3 : 4, packed ? one : dense);
  }
  random_array(&c->bias, F32, 3, (int64_t[]){HEADS, packed ? total_q : MOST_Q, MOST_K});
  ends_array(&c->cu_q, c->cu[0]), ends_array(&c->cu_k, c->cu[1]);
  make(&c->weights, k == F64 ? F64 : F32, 4, (int64_t[]){BATCH, HEADS, MOST_Q, MOST_K});
  fill(&c->weights, NAN);
  c->input = (luattn_input){.name = "bias", .tensor = &c->bias.t};
  c->args = (luattn_args){.struct_size = sizeof c->args,
                          .q = &c->q.t,
                          .k = &c->k.t,
                          .v = &c->v.t,
                          .inputs = x->has_bias ? &c->input : NULL,
                          .num_inputs = x->has_bias,
                          .random = &numbers};
}

static void call_close(call *c) {
  array *const all[] = {&c->q, &c->k, &c->v, &c->bias, &c->weights, &c->cu_q, &c->cu_k};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

static void weigh(luattn_engine *engine, const luattn_spec *spec, call *c) {
  size_t size;
  need(luattn_weights_workspace_size(engine, spec, &c->args, &size, &err) == LUATTN_OK, "workspace");
  make(&c->workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  c->args.workspace = size > 0 ? c->workspace.device : NULL, c->args.workspace_size = size;
  need(luattn_weights(engine, spec, &c->args, &c->weights.t, NULL, &err) == LUATTN_OK, "weights");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&c->workspace);
  fetch(&c->weights);
}

/* What the CPU gives for entry b, of a batch whose entries before it are the same: [b + 1, heads, q_len, kv_len]. */
static double *wanted(const luattn_spec *spec, const call *c, int b, int q_len, int kv_len, const luattn_batch *batch) {
  const array *const from[] = {&c->q, &c->k, &c->v};
  DLTensor t[4];
  int64_t shape[3][4], stride[3][4], bias_shape[] = {HEADS, q_len, kv_len},
                                     bias_stride[] = {c->bias.shape[1] * MOST_K, MOST_K, 1};
  for (int i = 0; i < 3; ++i) {
    const array *a = from[i];
    const int64_t heads = i == 0 ? HEADS : HEADS_KV, rows = i == 0 ? q_len : kv_len, dim = i == 2 ? DIM_V : dim_qk,
                  size = a->t.dtype.bits / 8;
    const int64_t all = i == 0 ? MOST_Q : MOST_K,
                  first = c->packed ? c->cu[i > 0][b] * heads * dim : b * heads * all * dim;
    memcpy(shape[i], (int64_t[]){b + 1, heads, rows, dim}, sizeof shape[i]);
    memcpy(stride[i], (int64_t[]){0, c->packed ? dim : all * dim, c->packed ? heads * dim : dim, 1}, sizeof stride[i]);
    t[i] = a->t;
    t[i].data = (char *)a->host + first * size, t[i].device = (DLDevice){kDLCPU, 0}, t[i].ndim = 4,
    t[i].shape = shape[i], t[i].strides = stride[i];
  }
  const DLTensor bias = {.data = (float *)c->bias.host + (c->packed ? c->cu[0][b] * MOST_K : 0),
                         .device = {kDLCPU, 0},
                         .ndim = 3,
                         .dtype = {kDLFloat, 32, 1},
                         .shape = bias_shape,
                         .strides = bias_stride};
  const luattn_input input = {.name = "bias", .tensor = &bias};
  int64_t to_shape[] = {b + 1, HEADS, q_len, kv_len};
  double *out = calloc((size_t)((b + 1) * HEADS * q_len * kv_len) + 1, sizeof *out);
  t[3] = (DLTensor){.data = out, .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 64, 1}, .shape = to_shape};
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &t[0],
                            .k = &t[1],
                            .v = &t[2],
                            .inputs = &input,
                            .num_inputs = c->args.num_inputs,
                            .random = &numbers,
                            .batch = batch};
  need(luattn_cpu_weights(spec, &args, &t[3], &err) == LUATTN_OK, "cpu weights");
  return out;
}

static bool compare(const luattn_spec *spec, const cell *x, kind k, const call *c, const luattn_batch *batch,
                    const char *what) {
  const double allowed = k == F64 ? 1e-12 : x->rounds && k != F32 ? 40 * kind_unit[k] : 2e-5;
  double worst = 0, most = 1e-30;
  size_t negative = 0, beyond = 0;
  for (int b = 0; b < BATCH; ++b) {
    const int q_len = c->packed ? q_lens[b] : MOST_Q, kv_len = c->packed ? k_lens[b] : MOST_K;
    double *want = wanted(spec, c, b, q_len, kv_len, batch);
    for (int at = 0; at < HEADS * MOST_Q * MOST_K; ++at) {
      const int kv = at % MOST_K, q = at / MOST_K % MOST_Q, h = at / MOST_K / MOST_Q;
      const double got = get(c->weights.k, c->weights.host, (size_t)(b * HEADS * MOST_Q * MOST_K + at));
      const bool inside = q < q_len && kv < kv_len;
      const double to = inside ? want[((b * HEADS + h) * q_len + q) * kv_len + kv] : 0, off = fabs(got - to);
      negative += got < 0, beyond += !inside && got != 0;
      most = fmax(most, fabs(to));
      worst = worse(worst, off);
    }
    free(want);
  }
  const bool drops = strstr(x->fields, "dropout") != NULL,
             ok = worst <= allowed * most && beyond == 0 && (negative > 0) == drops;
  if (!ok)
    fprintf(stderr,
            "FAILED: %s, %s: off by %g of %g, allowed %g of it; %zu are negative, %zu past the ends are not 0\n", what,
            x->fields, worst, most, allowed, negative, beyond);
  return ok;
}

static luattn_spec *load(const char *fields) {
  char text[600];
  luattn_spec *spec;
  snprintf(text, sizeof text, "return attention { %s }", fields);
  need(luattn_spec_load_text("weights", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  return spec;
}

static bool check(luattn_engine *engine, kind k, const cell *x, bool packed, bool in_part) {
  const luattn_batch_options part = {.struct_size = sizeof part, .q_offset = 21, .kv_offset = 3};
  luattn_spec *spec = load(x->fields);
  luattn_batch *batch = NULL;
  call c;
  call_open(&c, k, x, packed);
  const luattn_batch_options sequences = {.struct_size = sizeof sequences,
                                          .cu_seqlens_q = &c.cu_q.t,
                                          .cu_seqlens_k = &c.cu_k.t,
                                          .max_seqlen_q = MOST_Q,
                                          .max_seqlen_k = MOST_K};
  if (packed || in_part) need(luattn_batch_open(packed ? &sequences : &part, &batch, &err) == LUATTN_OK, "batch");
  c.args.batch = batch;
  weigh(engine, spec, &c);
  const bool ok = compare(spec, x, k, &c, packed ? NULL : batch, packed ? "packed" : in_part ? "a part" : "dense");
  luattn_batch_close(batch);
  call_close(&c);
  need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
  luattn_spec_free(spec);
  return ok;
}

/* ---- what is refused ---- */

static bool refuses(luattn_status status, luattn_status want, const char *part) {
  if (status == want && strstr(err.message, part) != NULL) return true;
  fprintf(stderr, "FAILED: status %d, '%s', expected %d and '%s'\n", (int)status, err.message, (int)want, part);
  return false;
}

static bool check_errors(luattn_engine *engine, kind k) {
  luattn_spec *spec = load(cells[0].fields);
  const luattn_kernel *kernel;
  luattn_batch *pages;
  array used;
  call c;
  bool ok = true;
  call_open(&c, k, &cells[0], false);
  DLTensor other = c.weights.t;
  int64_t shape[] = {BATCH, HEADS, MOST_Q, MOST_K - 1};
  other.shape = shape;
  ok &= refuses(luattn_weights(engine, spec, &c.args, &other, NULL, &err), LUATTN_INVALID,
                "weights: has shape [3, 4, 43, 70], expected [3, 4, 43, 71]");
  other = c.weights.t, other.dtype = (DLDataType){kDLFloat, 16, 1};
  ok &= refuses(luattn_weights(engine, spec, &c.args, &other, NULL, &err), LUATTN_INVALID, "weights: has");
  other = c.weights.t, other.data = c.q.t.data;
  ok &= refuses(luattn_weights(engine, spec, &c.args, &other, NULL, &err), LUATTN_INVALID, "weights: its memory");
  ok &= refuses(luattn_weights(engine, spec, &c.args, NULL, NULL, &err), LUATTN_INVALID, "weights");
  c.args.o = &c.q.t; /* of the wrong shape, and not looked at */
  need(luattn_engine_kernel(engine, spec, LUATTN_FORWARD, &c.args, &kernel, &err) == LUATTN_OK, "kernel");
  ok &= refuses(luattn_launch_weights(kernel, &c.args, &c.weights.t, NULL, &err), LUATTN_INVALID,
                "the kernel writes none");
  make(&used, I32, 1, (int64_t[]){BATCH});
  send(&used);
  const luattn_batch_options cache = {.struct_size = sizeof cache, .seqused_k = &used.t};
  need(luattn_batch_open(&cache, &pages, &err) == LUATTN_OK, "pages");
  c.args.batch = pages;
  ok &= refuses(luattn_weights(engine, spec, &c.args, &c.weights.t, NULL, &err), LUATTN_UNSUPPORTED,
                "weights: batch: has seqused_k");
  luattn_batch_close(pages);
  drop(&used);
  call_close(&c);
  luattn_spec_free(spec);
  return ok;
}

/* Targets, which are planned alone. */
static bool check_targets(void) {
  static const struct {
    luattn_target t;
    luattn_status status;
    const char *part;
  } bad[] = {{{.weights = 2}, LUATTN_INVALID, "weights: is 2, expected 0 or 1"},
             {{.weights = 1, .pass = LUATTN_BACKWARD}, LUATTN_INVALID, "is 1 beside a backward pass"},
             {{.weights = 1, .decode = 1}, LUATTN_INVALID, "is 1 beside decode"},
             {{.weights = 1, .large_scores = 1}, LUATTN_INVALID, "is 1 beside large_scores"},
             {{.weights = 1, .pages = 8}, LUATTN_UNSUPPORTED, "for keys in pages"},
             {{.weights = 1, .family = 1 + LUATTN_SM90}, LUATTN_UNSUPPORTED, "for the family sm90"},
             {{.weights = 1, .head_dim = 20}, LUATTN_UNSUPPORTED, "needs multiples of 8 in bf16"}};
  luattn_spec *spec = load(cells[0].fields);
  bool ok = true;
  int m, n;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    luattn_target t = bad[i].t;
    t.struct_size = sizeof t, t.dtype = LUATTN_BF16, t.head_dim = t.head_dim > 0 ? t.head_dim : 64, t.arch = 90;
    ok &= refuses(luattn_plan_tiles(spec, &t, &m, &n, &err), bad[i].status, bad[i].part);
  }
  luattn_spec_free(spec);
  return ok;
}

int main(int argc, char **argv) {
  const bool on_cpu = argc > 1 && strcmp(argv[1], "cpu") == 0;
  int k = 0;
  while (!on_cpu && k < 4 && (argc < 2 || strcmp(argv[1], kind_name[k]) != 0)) ++k;
  if (k == 4) return 2;
  dim_qk = k == F64 || k == F32 ? 20 : 24;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = on_cpu ? LUATTN_CPU : 0};
  luattn_engine *engine;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  bool ok = true;
  for (int i = 0; i < CELLS; ++i)
    for (int packed = 0; packed < 2; ++packed) ok &= check(engine, (kind)k, &cells[i], packed != 0, false);
  ok &= check(engine, (kind)k, &cells[1], false, true); /* draws at offsets that split patches */
  ok &= check(engine, (kind)k, &cells[4], false, true);
  if (k == 0) ok &= check_errors(engine, (kind)k);
  if (on_cpu) ok &= check_targets();
  luattn_engine_close(engine);
  return !ok;
}
