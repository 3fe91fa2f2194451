/* forward_jvp_test.c: forward with tangents, by kernels that the PTX machine executes, against an engine on the CPU: batches
 * of equal lengths, packed sequences, parts of a whole, with dropout, sinks, masks from data, rows that keep nothing, and
 * tangents that are missing; and what is refused.
 *
 * forward_jvp_test DTYPE [CELL [FAMILY]]: f64, f32, f16, bf16; sm80: its kernels, else what the engine chooses
 * forward_jvp_test DTYPE drawn SEED [FAMILY]: five specs whose score_mod, mask and online function are drawn
 * forward_jvp_test DTYPE wide: head dims above 128, with dropout, a sink and packed sequences
 * forward_jvp_test DTYPE sizes: the tangent of an input of another size is refused
 * forward_jvp_test targets: what is refused before anything is compiled
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 3, HEADS = 4, HEADS_KV = 2, MOST_Q = 75, MOST_K = 103, SPARE = 3 };
static int dim_qk, dim_v = 24; /* any number in f32 and f64 */
static const int q_lens[BATCH] = {37, 0, 75}, k_lens[BATCH] = {53, 9, 103};
static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = UINT64_C(0x9876543210), .offset = 77};

/* Of the names, what has a tangent: q, k, v, of the input b(ias) or s(inks), and of c(ap). m: keys have a mean; L: tangents are of
 * size 10000, so that those of weights are near the end of float16. */
typedef struct cell {
  const char *fields, *along;
} cell;
#define BIAS                                                                                                         \
  "inputs = { bias = { axes = {'h', 'q', 'kv'}, dtype = 'f32' } }, score_mod = function(s, b, h, q, kv) return s + " \
  "bias[{h, q, kv}] end, "
#define TURN "return x * cos(a) + where(eq(d % 2, 0), -1, 1) * x[d ~ 1] * sin(a) end, "
#define ROTATED                                                                                \
  "inputs = { sinks = { axes = {'h'}, dtype = 'f32' } }, "                                     \
  "query_mod = function(x, b, h, pos, d) local a = 0.05 * pos * (1 + d // 2) + sinks[h] " TURN \
  "key_mod = function(x, b, h, pos, d) local a = 0.05 * pos * (1 + d // 2) " TURN
#define BENT                                                                                \
  "scalars = { cap = 3 }, query_mod = function(x) return cap * tanh(x / cap) end, "         \
  "key_mod = function(x, b, h, pos, d) return x + 0.3 * sin(x) * x[head_dim - 1 - d] end, " \
  "value_mod = function(x) return x * sigmoid(x) end, "
/* A maximum that does not drop out of the derivative, and starts at a number. */
#define MAXIMUM                                                                                                      \
  "online_func = { online_rowscales = { m = 0.3, l = 0 }, final_rowscales = { 'm', 'l' }, online_fwd = function(s, " \
  "r) local m = max(r.m, reduce_max(s)) local shift, p = exp(r.m - m), exp(s - m) return p, { m = m, l = r.l * "     \
  "shift + reduce_sum(p) }, shift end, online_fwd_epilogue = function(o, r) return o * (1 + sin(r.m)) / (r.l + "     \
  "1.5), { m = r.m, l = r.l } end }"
/* A maximum that drops out, but for what it starts at, of which the sum is 1. */
#define WEIGHED_SINK                                                                                                 \
  "inputs = { sinks = { axes = {'h'}, grad = true, dtype = 'f32' } }, online_func = { online_rowscales = { m = "     \
  "function(b, h) return sinks[h] end, l = 1 }, final_rowscales = { 'lse' }, online_fwd = function(s, r) local m = " \
  "max(r.m, reduce_max(s)) local shift, p = exp(r.m - m), exp(s - m) return p, { m = m, l = r.l * shift + "          \
  "reduce_sum(p) }, shift end, online_fwd_epilogue = function(o, r) return o / r.l, { lse = r.m + log(r.l) } end }"
static const cell cells[] = {
    {"block_mask = causal_bottom_right()", "qkv"},
    {"scalars = { cap = 3 }, score_mod = softcap('cap'), block_mask = sliding_window(20, 5)", "qkvc"},
    {BIAS "online_func = dropout(0.5, softmax_one)", "qkvb"},
    {"inputs = { sinks = { axes = {'h'}, grad = true, dtype = 'f32' } }, online_func = attention_sink('sinks')", "kvs"},
    {"online_func = sigmoid_attention, score_mod = alibi()", "qk"},
    {"inputs = { ids = { axes = {'kv'}, dtype = 'i32' } }, block_mask = function(b, h, q, kv) return eq(ids[kv], 1) "
     "and kv < q - 20 "
     "end",
     "qkv"},
    {"block_mask = function(b, h, q, kv) return (kv + q * h) % 3 > 0 end", "v"},
    {BIAS, "b"},
    /* Sums that the weights are divided by, of numbers without a maximum, and a rescale that has a tangent. */
    {"online_func = { online_rowscales = { n = 0 }, online_fwd = function(s, r) local n = r.n + reduce_sum(s * s); "
     "return "
     "s * exp(-0.1 * n), { n = n }, exp(-0.1 * (n - r.n)) end, online_fwd_epilogue = function(o, r) return o * (1 + "
     "r.n) end }",
     "qkv"},
    {"online_func = online_retention, score_mod = function(s, b, h, q, kv) return s * 0.9 ^ abs(q - kv) end", "qv"},
    /* Keys with a common mean of 16 times their spread, which moves tangents of scores alone. */
    {"score_mod = function(s) return s end", "qkvm"},
    /* Mods: of other channels, positions and an input, all with tangents; without those of q; of every tensor, none linear;
     * and a tangent that comes from a scalar alone. */
    {ROTATED, "qkvs"},
    {ROTATED, "ks"},
    {BENT "block_mask = causal_bottom_right()", "qkvc"},
    {"scalars = { cap = 3 }, value_mod = function(x) return cap * x + x * x end", "c"},
    {BIAS MAXIMUM, "qkvb"},
    {"block_mask = causal_bottom_right(), " MAXIMUM, "k"},
    {WEIGHED_SINK, "qks"},
    {WEIGHED_SINK, "qkv"},
    {"block_mask = causal_bottom_right()", "qkvL"}};
enum { CELLS = sizeof cells / sizeof *cells };

/* Of the specs, all save at most one number of a row, or with a maximum two. */
enum { Q, K, V, Q_T, K_T, V_T, O, LSE, O_T, LSE_T, SAVED, INPUT, INPUT_T, CU_Q, CU_K, ARRAYS };

/* A call's arrays: packed, or as BATCH entries of the longest lengths. */
typedef struct call {
  bool packed;
  int cu[2][BATCH + 1];
  array of[ARRAYS], workspace;
  const char *input; /* the spec's; NULL: none */
} call;

static bool has(const cell *x, char what) { return strchr(x->along, what) != NULL; }

static void random_array(array *a, kind k, int ndim, const int64_t *shape, double size) {
  make(a, k, ndim, shape);
  for (size_t j = 0; j < a->count; ++j) put(k, a->host, j, k == I32 ? (double)(drawn() > -0.5) : size * drawn());
  send(a);
}

/* Adds a multiple of 16 to each channel. */
static void add_mean(array *a, int dim) {
  for (size_t j = 0; j < a->count; ++j)
    put(a->k, a->host, j, get(a->k, a->host, j) + 16 * ((int)(j % (size_t)dim) % 3 - 1));
  send(a);
}

static void ends_array(array *a, const int *cu) {
  make(a, I32, 1, (int64_t[]){BATCH + 1});
  memcpy(a->host, cu, (BATCH + 1) * sizeof *cu);
  send(a);
}

/* Results of the same rows: o of q's type, and numbers of rows. */
static void result_array(array *a, kind k, int ndim, const int64_t *shape) {
  make(a, k, ndim, shape);
  fill(a, NAN);
}

static void open_input(call *c, const cell *x) {
  const int64_t total_q = c->packed ? c->cu[0][BATCH] + SPARE : MOST_Q, total_k = c->packed ? c->cu[1][BATCH] : MOST_K;
  const int64_t bias[] = {HEADS, total_q, MOST_K}, sinks[] = {HEADS}, ids[] = {total_k};
  c->input = strstr(x->fields, "bias") != NULL    ? "bias"
             : strstr(x->fields, "sinks") != NULL ? "sinks"
             : strstr(x->fields, "ids") != NULL   ? "ids"
                                                  : NULL;
  if (c->input == NULL) return;
  const int ndim = c->input[0] == 'b' ? 3 : 1;
  for (int i = 0; i < 2; ++i)
    random_array(&c->of[INPUT + i], c->input[0] == 'i' ? I32 : F32, ndim,
                 ndim == 3            ? bias
                 : c->input[0] == 's' ? sinks
                                      : ids,
                 1);
}

static void call_open(call *c, kind k, const cell *x, bool packed) {
  memset(c, 0, sizeof *c);
  c->packed = packed;
  for (int b = 0; b < BATCH; ++b) c->cu[0][b + 1] = c->cu[0][b] + q_lens[b], c->cu[1][b + 1] = c->cu[1][b] + k_lens[b];
  const int total_q = c->cu[0][BATCH] + SPARE, total_k = c->cu[1][BATCH];
  for (int i = 0; i < 6; ++i) {
    const int of = i % 3, heads = of == 0 ? HEADS : HEADS_KV, rows = of == 0 ? MOST_Q : MOST_K,
              dim = of == 2 ? dim_v : dim_qk;
    const int64_t dense[] = {BATCH, heads, rows, dim}, one[] = {of == 0 ? total_q : total_k, heads, dim};
    random_array(&c->of[i], k, packed ? 3 : 4, packed ? one : dense, i == Q ? 3 : i >= Q_T && has(x, 'L') ? 1e4 : 1);
    if (i == K && has(x, 'm')) add_mean(&c->of[i], dim);
  }
  for (int i = 0; i < 2; ++i) {
    const int64_t o[] = {BATCH, HEADS, MOST_Q, dim_v}, one[] = {total_q, HEADS, dim_v}, lse[] = {BATCH, HEADS, MOST_Q},
                  lines[] = {HEADS, total_q};
    result_array(&c->of[O + 2 * i], k, packed ? 3 : 4, packed ? one : o);
    result_array(&c->of[LSE + 2 * i], k == F64 ? F64 : F32, packed ? 2 : 3, packed ? lines : lse);
  }
  const int num_saved = strstr(x->fields, "reduce_max") != NULL ? 2 : 1;
  const int64_t saved[] = {num_saved, BATCH, HEADS, MOST_Q}, saved_lines[] = {num_saved, HEADS, total_q};
  result_array(&c->of[SAVED], k == F64 ? F64 : F32, packed ? 3 : 4, packed ? saved_lines : saved);
  open_input(c, x);
  ends_array(&c->of[CU_Q], c->cu[0]), ends_array(&c->of[CU_K], c->cu[1]);
}

static void call_close(call *c) {
  for (int i = 0; i < ARRAYS; ++i)
    if (c->of[i].host != NULL) drop(&c->of[i]);
}

/* The tensors of a run: on the device, or all of real numbers in float64 on the host. */
typedef struct run {
  DLTensor of[ARRAYS];
  double *copy[INPUT];
  luattn_input input, input_t;
  luattn_scalar cap_t;
  luattn_tangents tangents;
  luattn_args args;
  luattn_batch *batch;
} run;

static void take_host(run *r, const call *c) {
  for (int i = 0; i < ARRAYS; ++i) r->of[i].data = c->of[i].host, r->of[i].device = (DLDevice){kDLCPU, 0};
  for (int i = 0; i < INPUT; ++i) {
    const array *a = &c->of[i];
    r->copy[i] = calloc(a->count + 1, sizeof *r->copy[i]);
    for (size_t at = 0; at < a->count; ++at) r->copy[i][at] = get(a->k, a->host, at);
    r->of[i].data = r->copy[i], r->of[i].dtype = (DLDataType){kDLFloat, 64, 1};
  }
}

static void run_open(run *r, const luattn_spec *spec, const call *c, const cell *x, bool on_host, bool in_part) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  memset(r, 0, sizeof *r);
  for (int i = 0; i < ARRAYS; ++i) r->of[i] = c->of[i].t;
  if (on_host) take_host(r, c);
  const luattn_batch_options part = {.struct_size = sizeof part, .q_offset = 21, .kv_offset = 3};
  const luattn_batch_options sequences = {.struct_size = sizeof sequences,
                                          .cu_seqlens_q = &r->of[CU_Q],
                                          .cu_seqlens_k = &r->of[CU_K],
                                          .max_seqlen_q = MOST_Q,
                                          .max_seqlen_k = MOST_K};
  if (c->packed || in_part)
    need(luattn_batch_open(c->packed ? &sequences : &part, &r->batch, &err) == LUATTN_OK, "batch");
  r->input = (luattn_input){c->input, &r->of[INPUT], NULL},
  r->input_t = (luattn_input){c->input, &r->of[INPUT_T], NULL};
  r->cap_t = (luattn_scalar){"cap", 0.7};
  r->tangents = (luattn_tangents){.struct_size = sizeof r->tangents,
                                  .q = has(x, 'q') ? &r->of[Q_T] : NULL,
                                  .k = has(x, 'k') ? &r->of[K_T] : NULL,
                                  .v = has(x, 'v') ? &r->of[V_T] : NULL,
                                  .o = &r->of[O_T],
                                  .lse = info.has_lse ? &r->of[LSE_T] : NULL,
                                  .inputs = &r->input_t,
                                  .num_inputs = has(x, 'b') || has(x, 's'),
                                  .scalars = &r->cap_t,
                                  .num_scalars = has(x, 'c')};
  r->args = (luattn_args){.struct_size = sizeof r->args,
                          .q = &r->of[Q],
                          .k = &r->of[K],
                          .v = &r->of[V],
                          .o = &r->of[O],
                          .lse = info.has_lse ? &r->of[LSE] : NULL,
                          .saved = info.num_saved > 0 ? &r->of[SAVED] : NULL,
                          .inputs = &r->input,
                          .num_inputs = c->input != NULL,
                          .random = &numbers,
                          .batch = r->batch,
                          .tangents = &r->tangents};
}

static void run_on_device(luattn_engine *engine, const luattn_spec *spec, call *c, run *r) {
  size_t size;
  need(luattn_forward_jvp_workspace_size(engine, spec, &r->args, &size, &err) == LUATTN_OK, "workspace");
  make(&c->workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  r->args.workspace = size > 0 ? c->workspace.device : NULL, r->args.workspace_size = size;
  need(luattn_forward_jvp(engine, spec, &r->args, NULL, &err) == LUATTN_OK, "forward_jvp");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&c->workspace);
  for (int i = O; i <= LSE_T; ++i) fetch(&c->of[i]);
}

/* Kernels round what mods make of q and k, by which scores are off as if these were rounded themselves. */
static bool rounds_rows(const cell *x) { return strstr(x->fields, "_mod = function(x") != NULL; }

/* What is lost where o and its tangent are rounded to their type; numbers of rows are float32. The kernels of half types
 * round P and P', too. */
static bool compare(const call *c, const cell *x, kind k, const run *host, const char *what) {
  static const char *const name[] = {"o", "lse", "tangent of o", "tangent of lse"};
  bool ok = true;
  for (int i = 0; i < 4; ++i) {
    const array *a = &c->of[O + i];
    if ((i == 1 && host->args.lse == NULL) || (i == 3 && host->tangents.lse == NULL)) continue;
    const double *want = host->copy[O + i];
    double worst = 0, most = 1;
    for (size_t at = 0; at < a->count; ++at)
      if (isfinite(want[at])) most = fmax(most, fabs(want[at]));
    for (size_t at = 0; at < a->count; ++at) {
      const double got = get(a->k, a->host, at), off = got == want[at] ? 0 : fabs(got - want[at]);
      worst = worse(worst, off);
    }
    const double allowed = k == F64 ? 1e-12 : k == F32 || (i % 2 == 1 && !rounds_rows(x)) ? 2e-5 : 4 * kind_unit[k];
    if (worst <= allowed * most) continue;
    fprintf(stderr, "FAILED: %s, %s, along %s: %s is off by %g of %g, allowed %g of it\n", what, x->fields, x->along,
            name[i], worst, most, allowed);
    ok = false;
  }
  return ok;
}

static luattn_spec *load(const char *fields) {
  char text[900];
  luattn_spec *spec;
  snprintf(text, sizeof text, "return attention { %s }", fields);
  need(luattn_spec_load_text("jvp", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  return spec;
}

static bool check(luattn_engine *engine, luattn_engine *cpu, kind k, const cell *x, bool packed, bool in_part) {
  luattn_spec *spec = load(x->fields);
  call c;
  run device, host;
  call_open(&c, k, x, packed);
  run_open(&device, spec, &c, x, false, in_part), run_open(&host, spec, &c, x, true, in_part);
  need(luattn_forward_jvp(cpu, spec, &host.args, NULL, &err) == LUATTN_OK, "on the CPU");
  run_on_device(engine, spec, &c, &device);
  const bool ok = compare(&c, x, k, &host, packed ? "packed" : in_part ? "a part" : "dense");
  luattn_batch_close(device.batch), luattn_batch_close(host.batch);
  for (int i = 0; i < INPUT; ++i) free(host.copy[i]);
  call_close(&c);
  need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
  need(luattn_engine_forget(cpu, spec, &err) == LUATTN_OK, "forget");
  luattn_spec_free(spec);
  return ok;
}

/* ---- drawn specs ---- */

static int pick(int n) { return (int)((drawn() + 1) / 2 * n); }

/* An expression of the score, positions, a bias and a scalar, that is bounded where the score is. */
static void draw_expression(char *out, size_t size, int depth) {
  static const char *const leaf[] = {"s", "s", "cap", "bias[{h, q, kv}]", "0.02 * (kv - q)", "0.3"},
                           *const one[] = {"tanh(%s)",           "sin(%s)",       "sigmoid(%s)",     "softplus(%s)",
                                           "sqrt(1 + (%s) ^ 2)", "exp(-abs(%s))", "log1p((%s) ^ 2)", "erf(%s)"},
                           *const two[] = {"(%s + %s)",
                                           "(%s - %s)",
                                           "0.5 * (%s) * tanh(%s)",
                                           "max(%s, %s)",
                                           "where(kv > q and q > 5, %s, %s)",
                                           "(%s) / (2 + abs(%s))"};
  char a[160], b[160];
  const int nargs = depth == 0 ? 0 : pick(3);
  if (nargs == 0) {
    snprintf(out, size, "%s", leaf[pick(6)]);
    return;
  }
  draw_expression(a, sizeof a, depth - 1), draw_expression(b, sizeof b, depth - 1);
  if (strlen(a) > 60 || strlen(b) > 60) snprintf(a, sizeof a, "s"), snprintf(b, sizeof b, "cap");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  if (nargs == 1)
    snprintf(out, size, one[pick(8)], a);
  else
    snprintf(out, size, two[pick(6)], a, b);
#pragma GCC diagnostic pop
}

static void draw_cell(char *fields, size_t size) {
  static const char *const online[] = {"online_softmax", "softmax_one", "sigmoid_attention", "dropout(0.25)",
                                       "online_softmax"},
                           *const mask[] = {"true", "kv <= q", "q - kv < 30 and kv - q < 11", "(kv + h) % 4 > 0"};
  char x[160];
  draw_expression(x, sizeof x, 3);
  snprintf(fields, size,
           "scalars = { cap = 3 }, inputs = { bias = { axes = {'h', 'q', 'kv'}, dtype = 'f32' } }, score_mod = "
           "function(s, b, h, q, "
           "kv) return s + %s end, online_func = %s, block_mask = function(b, h, q, kv) return %s end",
           x, online[pick(5)], mask[pick(4)]);
}

static bool check_drawn(luattn_engine *engine, luattn_engine *cpu, kind k, int seed) {
  char fields[700];
  bool ok = true;
  for (int i = 0; i < 97 * seed; ++i) (void)drawn();
  for (int i = 0; i < 5; ++i) {
    draw_cell(fields, sizeof fields);
    ok &= check(engine, cpu, k, &(cell){fields, "qkvbc"}, i % 2 == 1, false);
  }
  return ok;
}

/* ---- what is refused ---- */

static bool refuses(luattn_status status, luattn_status want, const char *part) {
  if (status == want && strstr(err.message, part) != NULL) return true;
  fprintf(stderr, "FAILED: status %d, '%s', expected %d and '%s'\n", (int)status, err.message, (int)want, part);
  return false;
}

/* Targets, which are planned, and lowered by luattn_emit. */
static bool check_targets(void) {
  static const struct {
    const char *fields;
    luattn_target t;
    luattn_status status;
    const char *part;
  } bad[] = {
      {"",
       {.tangents = LUATTN_TANGENT_DOUT},
       LUATTN_INVALID,
       "tangents: has the bits 0x1000000000000, and 'jvp' has no such input of real numbers"},
      {"", {.tangents = 1, .decode = 1}, LUATTN_INVALID, "tangents: are given beside decode"},
      {"", {.tangents = 1, .weights = 1}, LUATTN_INVALID, "tangents: are given beside weights"},
      {"", {.tangents = 1, .large_scores = 1}, LUATTN_UNSUPPORTED, "tangents: are given beside large_scores"},
      {"", {.tangents = 1, .pages = 8}, LUATTN_UNSUPPORTED, "tangents: are given for keys in pages"},
      {"",
       {.tangents = 1, .head_dim = 136, .family = 1 + LUATTN_SM80},
       LUATTN_UNSUPPORTED,
       "sm80 has forward with tangents for multiples of 16 above 128"},
      {"", {.tangents = 1, .head_dim = 20}, LUATTN_UNSUPPORTED, "needs multiples of 8 in bf16"},
      {"", {.tangents = 8}, LUATTN_INVALID, "tangents: has the bits 0x8, and 'jvp' has no such input of real numbers"},
      {"inputs = { ids = { axes = {'kv'}, dtype = 'i32' } }, block_mask = function(b, h, q, kv) return eq(ids[kv], 1) "
       "end",
       {.tangents = 8},
       LUATTN_INVALID,
       "has the bits 0x8"},
      {"grid = {'y', 'x'}",
       {.tangents = 1, .family = 1 + LUATTN_SM80},
       LUATTN_UNSUPPORTED,
       "tangents: are given over a grid of 2 axes, of which sm80 has no kernels with tangents"},
      {"",
       {.tangents = 1, .pass = LUATTN_BACKWARD, .head_dim = 192, .family = 1 + LUATTN_SM80},
       LUATTN_UNSUPPORTED,
       "sm80 has kernels with tangents up to 128"},
      {"",
       {.tangents = 1, .pass = LUATTN_BACKWARD, .family = 1 + LUATTN_SM90},
       LUATTN_UNSUPPORTED,
       "pass: is backward, and the sm90 family has no kernel of it"}};
  bool ok = true;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    luattn_spec *spec = load(bad[i].fields);
    luattn_target t = bad[i].t;
    char *text = NULL;
    t.struct_size = sizeof t, t.dtype = LUATTN_BF16, t.head_dim = t.head_dim > 0 ? t.head_dim : 64, t.arch = 80,
    t.cache_dir = "";
    ok &= refuses(luattn_emit(spec, &t, "spec", &text, &err), bad[i].status, bad[i].part);
    luattn_spec_free(spec);
  }
  return ok;
}

/* The tangent of an input has its sizes, of axes of any size, too. */
static bool check_sizes(luattn_engine *engine) {
  luattn_spec *spec = load(
      "inputs = { far = { axes = {'far'}, dtype = 'f32' } }, score_mod = function(s, b, h, q, kv) "
      "return s + far[kv] end");
  array q, o, far, less;
  make(&q, F32, 4, (int64_t[]){1, 1, 16, 16}), make(&o, F32, 4, (int64_t[]){1, 1, 16, 16});
  make(&far, F32, 1, (int64_t[]){16}), make(&less, F32, 1, (int64_t[]){1});
  send(&q), send(&o), send(&far), send(&less);
  const luattn_input input = {.name = "far", .tensor = &far.t}, tangent = {.name = "far", .tensor = &less.t};
  const luattn_tangents along = {.struct_size = sizeof along, .inputs = &tangent, .num_inputs = 1};
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &q.t,
                            .k = &q.t,
                            .v = &q.t,
                            .o = &o.t,
                            .inputs = &input,
                            .num_inputs = 1,
                            .tangents = &along};
  const bool ok = refuses(luattn_forward_jvp(engine, spec, &args, NULL, &err), LUATTN_INVALID,
                          "tangent of input 'far': axis 0 has size 1, expected 16, that of the input");
  drop(&q), drop(&o), drop(&far), drop(&less);
  need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
  luattn_spec_free(spec);
  return ok;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "targets") == 0) return !check_targets();
  int k = 0;
  while (k < 4 && (argc < 2 || strcmp(argv[1], kind_name[k]) != 0)) ++k;
  if (k == 4) return 2;
  const bool is_wide = argc > 2 && strcmp(argv[2], "wide") == 0;
  dim_qk = k == F64 || k == F32 ? 20 : 24;
  if (is_wide) dim_qk = 200, dim_v = 176;
  const luattn_engine_options options = {.struct_size = sizeof options,
                                         .family = strcmp(argv[argc - 1], "sm80") == 0 ? 1 + LUATTN_SM80 : 0},
                              of_cpu = {.struct_size = sizeof of_cpu, .device = LUATTN_CPU};
  luattn_engine *engine, *cpu;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  need(luattn_engine_open(&of_cpu, &cpu, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  const bool is_drawn = argc > 3 && strcmp(argv[2], "drawn") == 0, of_sizes = argc > 2 && strcmp(argv[2], "sizes") == 0;
  bool ok = is_drawn ? check_drawn(engine, cpu, (kind)k, atoi(argv[3])) : of_sizes ? check_sizes(engine) : true;
  for (int i = 0; i < 4 && is_wide; ++i) /* causal and packed, dropout with a bias, a sink */
    if (i != 1) ok &= check(engine, cpu, (kind)k, &cells[i], i == 0, false);
  for (int i = 0; i < CELLS && !is_drawn && !of_sizes && !is_wide; ++i) {
    if (argc > 2 && atoi(argv[2]) != i) continue;
    for (int form = 0; form < 3; ++form) ok &= check(engine, cpu, (kind)k, &cells[i], form == 1, form == 2);
  }
  luattn_engine_close(engine), luattn_engine_close(cpu);
  return !ok;
}
