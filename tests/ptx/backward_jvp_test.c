/* backward_jvp_test.c: tangents of gradients, by kernels that the PTX machine executes, against the CPU: batches of equal
 * lengths, packed sequences, parts of a whole, dropout, sinks, masks from data, rows that keep nothing, row passes, gradients
 * of inputs and scalars, deterministic ones, tangents that are missing; and what is refused.
 *
 * backward_jvp_test DTYPE [CELL [simt]]: f64, f32, f16, bf16; the last two by the family sm80, or simt
 * backward_jvp_test DTYPE drawn SEED: three specs whose score_mod, mask and online function are drawn
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 3, HEADS = 4, HEADS_KV = 2, SPARE = 2 };
static int dim_qk, dim_v;
static int q_lens[BATCH] = {37, 0, 41}, k_lens[BATCH] = {33, 9, 55}, most_q = 41, most_k = 55;
static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = UINT64_C(0x9876543210), .offset = 77};

/* Of the names, what has a tangent: q, k, v, o for dout, l for dlse, b(ias) or s(inks), and c(ap). */
typedef struct cell {
  const char *fields, *along;
  bool in_order; /* deterministic */
} cell;
#define BIAS                                                                                                       \
  "inputs = { bias = { axes = {'h', 'q', 'kv'}, dtype = 'f32', grad = true } }, score_mod = function(s, b, h, q, " \
  "kv) return s * (1 + 0.2 * bias[{h, q, kv}]) end, "
#define TURN "return x * cos(a) + where(eq(d % 2, 0), -1, 1) * x[d ~ 1] * sin(a) end, "
#define ROTATED                                                                                \
  "inputs = { sinks = { axes = {'h'}, grad = true, dtype = 'f32' } }, "                        \
  "query_mod = function(x, b, h, pos, d) local a = 0.05 * pos * (1 + d // 2) + sinks[h] " TURN \
  "key_mod = function(x, b, h, pos, d) local a = 0.05 * pos * (1 + d // 2) " TURN
#define BENT                                                                                \
  "scalars = { cap = 3 }, query_mod = function(x) return cap * tanh(x / cap) end, "         \
  "key_mod = function(x, b, h, pos, d) return x + 0.3 * sin(x) * x[head_dim - 1 - d] end, " \
  "value_mod = function(x) return x * sigmoid(x) end, "
/* Backward takes a row pass: sums that o is no multiple of, a maximum whose derivative goes to an element, or to the number
 * that it starts at, two of them. */
#define SUMS                                                                                                          \
  "online_func = { online_rowscales = { a = 0, l = 0 }, final_rowscales = { 'a', 'l' }, online_fwd = function(s, r) " \
  "local p = sigmoid(s) return p + 0.1 * p * p / (1 + p), { a = r.a + reduce_sum(p), l = r.l + reduce_sum(p * p) }, " \
  "1 end, online_fwd_epilogue = function(o, r) return o * tanh(0.2 * r.a) / sqrt(r.l), { a = r.a, l = r.l } end }"
#define MAXIMUM                                                                                                      \
  "online_func = { online_rowscales = { m = 0.3, l = 0 }, final_rowscales = { 'm', 'l' }, online_fwd = function(s, " \
  "r) local m = max(r.m, reduce_max(s)) local shift, p = exp(r.m - m), exp(s - m) return p, { m = m, l = r.l * "     \
  "shift + reduce_sum(p) }, shift end, online_fwd_epilogue = function(o, r) return o * (1 + 0.2 * sin(r.m)) / "      \
  "(r.l + 1.5), { m = r.m, l = r.l } end }"
#define MAXIMA                                                                                                     \
  "inputs = { sinks = { axes = {'h'}, grad = true, dtype = 'f32' } }, online_func = { online_rowscales = { m = "   \
  "function(b, h) return sinks[h] end, x = 1, l = 0 }, final_rowscales = { 'm', 'x', 'l' }, online_fwd = "         \
  "function(s, r) local m = max(r.m, reduce_max(s)) local shift, p = exp(r.m - m), exp(s - m) return p, { m = m, " \
  "x = max(r.x, reduce_max(abs(s - 0.5))), l = r.l * shift + reduce_sum(p) }, shift end, online_fwd_epilogue = "   \
  "function(o, r, b, h) return o * r.x / (r.l + 1 + abs(sinks[h])), { m = r.m, x = r.x, l = r.l } end }"
/* A maximum that drops out, but for what it starts at, of which the sum is 1. */
#define WEIGHED_SINK                                                                                                 \
  "inputs = { sinks = { axes = {'h'}, grad = true, dtype = 'f32' } }, online_func = { online_rowscales = { m = "     \
  "function(b, h) return sinks[h] end, l = 1 }, final_rowscales = { 'lse' }, online_fwd = function(s, r) local m = " \
  "max(r.m, reduce_max(s)) local shift, p = exp(r.m - m), exp(s - m) return p, { m = m, l = r.l * shift + "          \
  "reduce_sum(p) }, shift end, online_fwd_epilogue = function(o, r) return o / r.l, { lse = r.m + log(r.l) } end }"
static const cell cells[] = {
    {"block_mask = causal_bottom_right()", "qkvol", false},
    {"scalars = { cap = 3 }, score_mod = softcap('cap'), block_mask = sliding_window(20, 5)", "qkvc", false},
    {BIAS "online_func = dropout(0.5, softmax_one)", "qkvbo", false},
    {"inputs = { sinks = { axes = {'h'}, grad = true, dtype = 'f32' } }, online_func = attention_sink('sinks')", "kvsl",
     true},
    {"online_func = sigmoid_attention, score_mod = alibi()", "qk", false},
    {"inputs = { ids = { axes = {'kv'}, dtype = 'i32' } }, block_mask = function(b, h, q, kv) return eq(ids[kv], 1) "
     "and "
     "kv < q - 12 end",
     "qkvo", false},
    {"block_mask = function(b, h, q, kv) return (kv + q * h) % 3 > 0 end", "v", false},
    {BIAS, "b", true},
    {"", "o", false},
    {"scalars = { cap = 3 }, score_mod = softcap('cap')", "qkvoc", true},
    {"online_func = online_retention, score_mod = function(s, b, h, q, kv) return s * 0.9 ^ abs(q - kv) end", "qvo",
     false},
    /* Mods: of other channels, positions and an input that learns; of every tensor, none linear, and of a scalar. */
    {ROTATED, "qkvos", false},
    {ROTATED, "vo", true},
    {BENT "block_mask = causal_bottom_right()", "qkvoc", false},
    {BENT, "kl", true},
    {"block_mask = causal_bottom_right(), " SUMS, "qkvo", false},
    {BIAS MAXIMUM, "qkvbo", false},
    {MAXIMA, "qks", true},
    {WEIGHED_SINK, "qksol", false}};
enum { CELLS = sizeof cells / sizeof *cells };

/* What gradients are of comes first, then dout and dlse, then tangents of all these, then what is written. */
enum {
  Q,
  K,
  V,
  DO,
  DLSE,
  TANGENT,
  DQ = 2 * TANGENT,
  DK,
  DV,
  INPUT,
  INPUT_T,
  INPUT_GRAD,
  SCALARS,
  CU_Q,
  CU_K,
  O,
  LSE,
  O_T,
  LSE_T,
  ARRAYS
};

typedef struct call {
  bool packed;
  int cu[2][BATCH + 1];
  array of[ARRAYS], workspace;
  double *want[ARRAYS]; /* of what is written */
  const char *input;    /* the spec's; NULL: none */
} call;

static bool has(const cell *x, char what) { return strchr(x->along, what) != NULL; }
static bool is_written(int i) { return (i >= DQ && i <= DV) || i == INPUT_GRAD || i == SCALARS; }

static void random_array(array *a, kind k, int ndim, const int64_t *shape, double size) {
  make(a, k, ndim, shape);
  for (size_t j = 0; j < a->count; ++j) put(k, a->host, j, k == I32 ? (double)(drawn() > -0.5) : size * drawn());
  send(a);
}

static void result_array(array *a, kind k, int ndim, const int64_t *shape) {
  make(a, k, ndim, shape);
  fill(a, NAN);
}

static void ends_array(array *a, const int *cu) {
  make(a, I32, 1, (int64_t[]){BATCH + 1});
  memcpy(a->host, cu, (BATCH + 1) * sizeof *cu);
  send(a);
}

/* Of q, k, v, dout and their like. */
static void open_rows(call *c, int at, int of, kind k, double size) {
  const int heads = of == K || of == V ? HEADS_KV : HEADS, rows = of == K || of == V ? most_k : most_q,
            dim = of == V || of == DO ? dim_v : dim_qk,
            total = rows == most_k ? c->cu[1][BATCH] : c->cu[0][BATCH] + SPARE;
  const int64_t dense[] = {BATCH, heads, rows, dim}, one[] = {total, heads, dim};
  if (size > 0)
    random_array(&c->of[at], k, c->packed ? 3 : 4, c->packed ? one : dense, size);
  else
    result_array(&c->of[at], k, c->packed ? 3 : 4, c->packed ? one : dense);
}

static void open_input(call *c, kind real, const cell *x) {
  const int64_t total_q = c->packed ? c->cu[0][BATCH] + SPARE : most_q, total_k = c->packed ? c->cu[1][BATCH] : most_k;
  const int64_t bias[] = {HEADS, total_q, most_k}, heads[] = {HEADS}, keys[] = {total_k}, one[] = {1};
  c->input = strstr(x->fields, "bias") != NULL    ? "bias"
             : strstr(x->fields, "sinks") != NULL ? "sinks"
             : strstr(x->fields, "ids") != NULL   ? "ids"
                                                  : NULL;
  result_array(&c->of[SCALARS], real, 1, one);
  if (c->input == NULL) return;
  const int ndim = c->input[0] == 'b' ? 3 : 1;
  const int64_t *shape = ndim == 3 ? bias : c->input[0] == 's' ? heads : keys;
  for (int i = 0; i < 2; ++i) random_array(&c->of[INPUT + i], c->input[0] == 'i' ? I32 : F32, ndim, shape, 1);
  result_array(&c->of[INPUT_GRAD], real, ndim, shape);
}

static void call_open(call *c, kind k, const cell *x, bool packed) {
  const kind real = k == F64 ? F64 : F32;
  memset(c, 0, sizeof *c);
  c->packed = packed;
  for (int b = 0; b < BATCH; ++b) c->cu[0][b + 1] = c->cu[0][b] + q_lens[b], c->cu[1][b + 1] = c->cu[1][b] + k_lens[b];
  const int64_t lse[] = {BATCH, HEADS, most_q}, lines[] = {HEADS, c->cu[0][BATCH] + SPARE};
  for (int i = 0; i < 2; ++i) {
    for (int of = Q; of <= DO; ++of) open_rows(c, i * TANGENT + of, of, k, of == Q && i == 0 ? 3 : 1);
    random_array(&c->of[i * TANGENT + DLSE], real, packed ? 2 : 3, packed ? lines : lse, 1);
  }
  for (int of = Q; of <= V; ++of) open_rows(c, DQ + of, of, k, 0);
  for (int i = 0; i < 2; ++i) {
    open_rows(c, O + 2 * i, DO, k, 0);
    result_array(&c->of[LSE + 2 * i], real, packed ? 2 : 3, packed ? lines : lse);
  }
  open_input(c, real, x);
  for (int i = 0; i < ARRAYS; ++i)
    if (is_written(i)) c->want[i] = calloc(c->of[i].count + 1, sizeof *c->want[i]);
  ends_array(&c->of[CU_Q], c->cu[0]), ends_array(&c->of[CU_K], c->cu[1]);
}

static void call_close(call *c) {
  for (int i = 0; i < ARRAYS; ++i) {
    if (c->of[i].host != NULL) drop(&c->of[i]);
    free(c->want[i]);
  }
}

/* ---- a run ---- */

typedef struct run {
  DLTensor of[ARRAYS];
  luattn_input input, input_t;
  luattn_scalar cap_t;
  luattn_tangents tangents;
  luattn_args args;
} run;

static void take_args(run *r, const luattn_spec *spec, const call *c, const cell *x, luattn_batch *batch) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  const bool learns = c->input != NULL && c->input[0] != 'i', scalars = info.num_scalars > 0;
  const DLTensor *t = &r->of[TANGENT];
  r->input = (luattn_input){c->input, &r->of[INPUT], NULL};
  r->input_t = (luattn_input){c->input, has(x, 'b') || has(x, 's') ? &r->of[INPUT_T] : NULL, &r->of[INPUT_GRAD]};
  r->cap_t = (luattn_scalar){"cap", 0.7};
  r->tangents = (luattn_tangents){.struct_size = sizeof r->tangents,
                                  .q = has(x, 'q') ? &t[Q] : NULL,
                                  .k = has(x, 'k') ? &t[K] : NULL,
                                  .v = has(x, 'v') ? &t[V] : NULL,
                                  .dout = has(x, 'o') ? &t[DO] : NULL,
                                  .dlse = has(x, 'l') && info.has_lse ? &t[DLSE] : NULL,
                                  .dq = &r->of[DQ],
                                  .dk = &r->of[DK],
                                  .dv = &r->of[DV],
                                  .scalar_grads = scalars ? &r->of[SCALARS] : NULL,
                                  .inputs = &r->input_t,
                                  .num_inputs = learns,
                                  .scalars = &r->cap_t,
                                  .num_scalars = has(x, 'c')};
  r->args = (luattn_args){.struct_size = sizeof r->args,
                          .q = &r->of[Q],
                          .k = &r->of[K],
                          .v = &r->of[V],
                          .dout = &r->of[DO],
                          .dlse = info.has_lse ? &r->of[DLSE] : NULL,
                          .inputs = &r->input,
                          .num_inputs = c->input != NULL,
                          .random = &numbers,
                          .batch = batch,
                          .tangents = &r->tangents};
}

/* ---- on the CPU, entry by entry where sequences are packed ---- */

/* Where the rows of an entry lie: its axes in the packed array, as dense ones. */
typedef struct part {
  int ndim;
  int64_t shape[4], stride[4], first;
} part;

static part whole(const array *a) {
  part p = {.ndim = a->t.ndim};
  for (int i = p.ndim, n = 1; i-- > 0; n *= (int)p.shape[i]) p.shape[i] = a->shape[i], p.stride[i] = n;
  return p;
}

static part part_of(const call *c, int i, int entry) {
  const array *a = &c->of[i];
  part p = whole(a);
  const bool of_keys = i % TANGENT == K || i % TANGENT == V || (i >= INPUT && c->input[0] == 'i');
  const int first = c->cu[of_keys][entry], rows = (of_keys ? k_lens : q_lens)[entry];
  if (!c->packed || i == SCALARS || (i >= INPUT && c->input[0] == 's')) return p;
  const bool is_row = i < INPUT && i % TANGENT == DLSE, is_input = i >= INPUT;
  const int axis = is_row || (is_input && p.ndim == 3) ? 1 : 0;
  p.first = first * p.stride[axis], p.shape[axis] = rows;
  if (is_input && p.ndim == 3) p.shape[2] = k_lens[entry];
  if (is_input) return p;
  if (is_row) return (part){3, {1, HEADS, rows}, {0, p.stride[0], 1}, p.first};
  return (part){4, {1, p.shape[1], rows, p.shape[2]}, {0, p.stride[1], p.stride[0], 1}, p.first};
}

/* Element number i of a part, in its array. */
static size_t place_in(const part *p, size_t i) {
  size_t at = (size_t)p->first;
  for (int a = p->ndim; a-- > 0; i /= (size_t)p->shape[a]) at += i % (size_t)p->shape[a] * (size_t)p->stride[a];
  return at;
}

static size_t size_of(const part *p) {
  size_t n = 1;
  for (int a = 0; a < p->ndim; ++a) n *= (size_t)p->shape[a];
  return n;
}

static void run_entry(const luattn_spec *spec, call *c, const cell *x, luattn_batch *batch, int entry) {
  run r = {0};
  part of[ARRAYS];
  double *copy[ARRAYS] = {0};
  for (int i = 0; i < CU_Q; ++i) {
    if (c->of[i].host == NULL) continue;
    of[i] = part_of(c, i, entry);
    copy[i] = calloc(size_of(&of[i]) + 1, sizeof *copy[i]);
    for (size_t j = 0; j < size_of(&of[i]) && !is_written(i); ++j)
      copy[i][j] = get(c->of[i].k, c->of[i].host, place_in(&of[i], j));
    r.of[i] = (DLTensor){
        .data = copy[i], .device = {kDLCPU, 0}, .ndim = of[i].ndim, .dtype = {kDLFloat, 64, 1}, .shape = of[i].shape};
    if (c->of[i].k != I32) continue;
    for (size_t j = 0; j < size_of(&of[i]); ++j) ((int *)(void *)copy[i])[j] = (int)copy[i][j];
    r.of[i].dtype = (DLDataType){kDLInt, 32, 1};
  }
  take_args(&r, spec, c, x, batch);
  need(luattn_cpu_backward_jvp(spec, &r.args, &err) == LUATTN_OK, "on the CPU");
  for (int i = 0; i < CU_Q; ++i) {
    for (size_t j = 0; is_written(i) && copy[i] != NULL && j < size_of(&of[i]); ++j)
      c->want[i][place_in(&of[i], j)] += copy[i][j];
    free(copy[i]);
  }
}

/* ---- on the device ---- */

/* Forward's o and lse, and their tangents along the same. */
static void give_rows(luattn_engine *engine, const luattn_spec *spec, call *c, run *r) {
  size_t size;
  luattn_tangents along = r->tangents;
  luattn_args args = r->args;
  along.dout = along.dlse = along.dq = along.dk = along.dv = along.scalar_grads = NULL;
  luattn_input input = r->input_t;
  input.grad = NULL;
  along.inputs = &input, along.num_inputs = input.tensor != NULL;
  along.o = &r->of[O_T], along.lse = &r->of[LSE_T];
  args.o = &r->of[O], args.lse = &r->of[LSE], args.tangents = &along;
  need(luattn_forward_jvp_workspace_size(engine, spec, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&c->workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  args.workspace = c->workspace.device, args.workspace_size = size;
  need(luattn_forward_jvp(engine, spec, &args, NULL, &err) == LUATTN_OK, "forward_jvp");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&c->workspace);
  r->args.o = args.o, r->args.lse = args.lse, r->tangents.o = along.o, r->tangents.lse = along.lse;
}

static void run_on_device(luattn_engine *engine, const luattn_spec *spec, call *c, const cell *x, luattn_batch *batch,
                          bool gives_rows) {
  run r = {0};
  size_t size;
  for (int i = 0; i < ARRAYS; ++i) r.of[i] = c->of[i].t;
  take_args(&r, spec, c, x, batch);
  if (gives_rows) give_rows(engine, spec, c, &r);
  need(luattn_backward_jvp_workspace_size(engine, spec, &r.args, &size, &err) == LUATTN_OK, "workspace");
  make(&c->workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&c->workspace, NAN);
  r.args.workspace = size > 0 ? c->workspace.device : NULL, r.args.workspace_size = size;
  need(luattn_backward_jvp(engine, spec, &r.args, NULL, &err) == LUATTN_OK, "backward_jvp");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&c->workspace);
  for (int i = 0; i < CU_Q; ++i)
    if (is_written(i) && c->of[i].host != NULL) fetch(&c->of[i]);
}

/* What is lost where results are rounded to their type; those of half types round P, dS and tangents too, and what mods make
 * of q, k and v, over all of whose elements a mod's numbers are summed: twice that. */
static bool compare(const call *c, const cell *x, kind k, const char *what) {
  static const char *const name[ARRAYS] = {[DQ] = "dq", "dk", "dv", [INPUT_GRAD] = "input", "scalars"};
  bool ok = true;
  for (int i = 0; i < CU_Q; ++i) {
    const array *a = &c->of[i];
    double worst = 0, most = 1;
    if (!is_written(i) || a->host == NULL || (i == SCALARS && strstr(x->fields, "scalars") == NULL)) continue;
    if (i == INPUT_GRAD && c->input[0] == 'i') continue;
    for (size_t at = 0; at < a->count; ++at) most = fmax(most, fabs(c->want[i][at]));
    for (size_t at = 0; at < a->count; ++at) {
      const double off = fabs(get(a->k, a->host, at) - c->want[i][at]);
      worst = worse(worst, off);
    }
    const bool sums_of_rounded = (i == SCALARS || i == INPUT_GRAD) && strstr(x->fields, "_mod = function(x") != NULL;
    const double allowed = k == F64 ? 1e-12 : k == F32 ? 2e-5 : (sums_of_rounded ? 8 : 4) * kind_unit[k];
    if (worst <= allowed * most) continue;
    fprintf(stderr, "FAILED: %s, %s, along %s: tangent of %s is off by %g of %g, allowed %g of it\n", what, x->fields,
            x->along, name[i], worst, most, allowed);
    ok = false;
  }
  return ok;
}

static luattn_spec *load(const char *fields) {
  char text[1200];
  luattn_spec *spec;
  snprintf(text, sizeof text, "return attention { %s }", fields);
  need(luattn_spec_load_text("jvp", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  return spec;
}

enum { DENSE, PACKED, PART, GIVEN_ROWS, FORMS };

static bool check(luattn_engine *const engine[2], kind k, const cell *x, int form) {
  static const char *const name[] = {"dense", "packed", "a part", "rows given"};
  luattn_spec *spec = load(x->fields);
  luattn_batch *batch = NULL;
  call c;
  call_open(&c, k, x, form == PACKED);
  const luattn_batch_options offset = {.struct_size = sizeof offset, .q_offset = 21, .kv_offset = 3};
  const luattn_batch_options sequences = {.struct_size = sizeof sequences,
                                          .cu_seqlens_q = &c.of[CU_Q].t,
                                          .cu_seqlens_k = &c.of[CU_K].t,
                                          .max_seqlen_q = most_q,
                                          .max_seqlen_k = most_k};
  if (form == PACKED || form == PART)
    need(luattn_batch_open(form == PACKED ? &sequences : &offset, &batch, &err) == LUATTN_OK, "batch");
  for (int entry = 0; entry < (form == PACKED ? BATCH : 1); ++entry)
    if (form != PACKED || q_lens[entry] > 0) run_entry(spec, &c, x, form == PART ? batch : NULL, entry);
  run_on_device(engine[x->in_order], spec, &c, x, batch, form == GIVEN_ROWS);
  const bool ok = compare(&c, x, k, name[form]);
  luattn_batch_close(batch);
  call_close(&c);
  for (int i = 0; i < 2; ++i) need(luattn_engine_forget(engine[i], spec, &err) == LUATTN_OK, "forget");
  luattn_spec_free(spec);
  return ok;
}

/* Whether forward has an lse, and a tangent to begin with. */
static bool gives_rows(const cell *x) {
  return strstr(x->fields, "sigmoid_") == NULL && strstr(x->fields, "retention") == NULL &&
         strstr(x->fields, "rowscales") == NULL && strpbrk(x->along, "qkvbs") != NULL;
}

/* ---- drawn specs ---- */

static int pick(int n) { return (int)((drawn() + 1) / 2 * n); }

static bool check_drawn(luattn_engine *const engine[2], kind k, int seed) {
  static const char *const score[] = {"s * sigmoid(s + bias[{h, q, kv}])", "cap * tanh((s + bias[{h, q, kv}]) / cap)",
                                      "s + bias[{h, q, kv}] * sin(cap * s)",
                                      "where(kv > q, 0.5 * s, s * bias[{h, q, kv}])"},
                           *const online[] = {"online_softmax", "softmax_one", "sigmoid_attention"},
                           *const mask[] = {"true", "kv <= q", "q - kv < 30 and kv - q < 11", "(kv + h) % 4 > 0"};
  char fields[700];
  bool ok = true;
  for (int i = 0; i < 97 * seed; ++i) (void)drawn();
  for (int i = 0; i < 3; ++i) {
    snprintf(fields, sizeof fields,
             "scalars = { cap = 3 }, inputs = { bias = { axes = {'h', 'q', 'kv'}, dtype = 'f32', grad = true } }, "
             "score_mod = function(s, b, h, q, kv) return %s end, online_func = %s, block_mask = function(b, h, q, kv) "
             "return %s end",
             score[pick(4)], online[pick(3)], mask[pick(4)]);
    ok &= check(engine, k, &(cell){fields, "qkvobcl", i == 1}, i == 2 ? PACKED : DENSE);
  }
  return ok;
}

int main(int argc, char **argv) {
  int k = 0;
  while (k < 4 && (argc < 2 || strcmp(argv[1], kind_name[k]) != 0)) ++k;
  if (k == 4) return 2;
  const bool is_half = k != F64 && k != F32;
  dim_qk = is_half ? 24 : 20, dim_v = is_half ? 32 : 12;
  if (is_half) q_lens[2] = most_q = 141, k_lens[2] = most_k = 157; /* more than one tile */
  luattn_engine *engine[2];
  for (int i = 0; i < 2; ++i) {
    const luattn_engine_options options = {.struct_size = sizeof options,
                                           .deterministic = i,
                                           .family = argc > 3 && argv[3][0] == 's' ? 1 + LUATTN_SIMT : 0};
    need(luattn_engine_open(&options, &engine[i], &err) == LUATTN_OK, "engine");
  }
  driver = luattn_engine_driver(engine[0]);
  const bool is_drawn = argc > 3 && strcmp(argv[2], "drawn") == 0;
  bool ok = is_drawn ? check_drawn(engine, (kind)k, atoi(argv[3])) : true;
  for (int i = 0; i < CELLS && !is_drawn; ++i) {
    if (argc > 2 && atoi(argv[2]) != i) continue;
    for (int form = 0; form < FORMS; ++form) /* an entry's draws are those of its number, which the CPU's runs lack */
      if ((form != PACKED || strstr(cells[i].fields, "dropout") == NULL) &&
          (form != GIVEN_ROWS || gives_rows(&cells[i])))
        ok &= check(engine, (kind)k, &cells[i], form);
  }
  for (int i = 0; i < 2; ++i) luattn_engine_close(engine[i]);
  return !ok;
}
