/* results_f32_test.c: o, dq, dk and dv in float32 beside q, k and v of a half type. Rounded to that type, they are bit
 * by bit what the call without out_f32 and grad_f32 gives, so nothing but the store differs; nothing between rows is
 * written, and rows of no sequence are zero. Against double on the CPU their error is the smaller one, and so it is
 * where four parts of the keys are merged and their gradients added up.
 *
 * results_f32_test sm80|sm90|decode bf16|f16 DIM DIM_V [packed] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/merge.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, KEYS = 150, GAP = 8, PARTS = 4, UNUSED = 5 };
static const double poison = 0.625; /* of every type */
static int queries = 70, dim, dim_v, failures;
static bool is_packed, is_decode;
static kind type;
static luattn_engine *engine, *reference;
static luattn_driver *device;
static array ends[2][2]; /* on the CPU and on the device: cu_seqlens_q and cu_seqlens_k */

/* Rows [batch or 1][position][head][width and a gap]. */
typedef struct tensor {
  array a;
  int64_t shape[4], stride[4];
  int heads, len, width, batch;
  DLTensor t;
} tensor;

/* Packed: entry 0 has 60 % of the positions, and the last UNUSED of all belong to none. */
static int total(int len) { return is_packed ? BATCH * len : len; }
static int first_unused(int len) { return total(len) - UNUSED; }

static void describe(tensor *x, int first, int len) {
  const int64_t pitch = x->width + GAP, row = x->heads * pitch, shape[] = {x->batch, x->heads, len, x->width},
                stride[] = {x->len * row, pitch, row, 1};
  const int64_t packed[] = {len, x->heads, x->width};
  memcpy(x->shape, is_packed ? packed : shape, is_packed ? sizeof packed : sizeof shape);
  memcpy(x->stride, is_packed ? (const int64_t[]){row, pitch, 1} : stride, is_packed ? 3 * sizeof row : sizeof stride);
  x->t = x->a.t;
  x->t.ndim = is_packed ? 3 : 4, x->t.shape = x->shape, x->t.strides = x->stride;
  x->t.byte_offset = (uint64_t)(first * row) * (x->a.t.dtype.bits / 8u);
}

static void open_tensor(tensor *x, kind k, int heads, int len, int width) {
  *x = (tensor){.heads = heads, .len = total(len), .width = width, .batch = is_packed ? 1 : BATCH};
  make(&x->a, k, 1, (int64_t[]){(int64_t)x->batch * x->len * heads * (width + GAP)});
  fill(&x->a, poison);
  describe(x, 0, x->len);
}

static size_t at(const tensor *x, int b, int position, int h, int d) {
  return (((size_t)b * (size_t)x->len + (size_t)position) * (size_t)x->heads + (size_t)h) * (size_t)(x->width + GAP) +
         (size_t)d;
}

static double value(const tensor *x, int b, int position, int h, int d) {
  return get(x->a.k, x->a.host, at(x, b, position, h, d));
}

/* Calls `body` for every element, and counts gaps that have been written to. */
#define EACH(x)                            \
  for (int b = 0; b < (x)->batch; b++)     \
    for (int i = 0; i < (x)->len; i++)     \
      for (int h = 0; h < (x)->heads; h++) \
        for (int d = 0; d < (x)->width; d++)

static void fail(const char *what, const tensor *x, double got, double want) {
  if (failures++ < 12)
    fprintf(stderr, "FAILED: %s, %d x %d: is %.9g, expected %.9g\n", what, x->width, x->len, got, want);
}

static void check_gaps(const char *what, const tensor *x) {
  for (int b = 0; b < x->batch; b++)
    for (int i = 0; i < x->len; i++)
      for (int h = 0; h < x->heads; h++)
        for (int d = x->width; d < x->width + GAP; d++)
          if (value(x, b, i, h, d) != poison) fail(what, x, value(x, b, i, h, d), poison);
}

/* ---- calls ---- */

typedef struct call {
  tensor q, k, v, dout, o, dq, dk, dv;
  array lse;
} call;

/* rows: the type of q, k and v; results: of o and gradients. */
static void open_call(call *c, kind rows, kind results) {
  open_tensor(&c->q, rows, HEADS, queries, dim), open_tensor(&c->dout, rows, HEADS, queries, dim_v);
  open_tensor(&c->k, rows, HEADS_KV, KEYS, dim), open_tensor(&c->v, rows, HEADS_KV, KEYS, dim_v);
  open_tensor(&c->o, results, HEADS, queries, dim_v), open_tensor(&c->dq, results, HEADS, queries, dim);
  open_tensor(&c->dk, results, HEADS_KV, KEYS, dim), open_tensor(&c->dv, results, HEADS_KV, KEYS, dim_v);
  const int64_t dense[] = {BATCH, HEADS, queries}, packed[] = {HEADS, total(queries)};
  make(&c->lse, rows == F64 ? F64 : F32, is_packed ? 2 : 3, is_packed ? packed : dense);
  send(&c->lse);
}

static tensor *const *all_of(call *c, tensor *to[8]) {
  tensor *const all[8] = {&c->q, &c->k, &c->v, &c->dout, &c->o, &c->dq, &c->dk, &c->dv};
  memcpy(to, all, sizeof all);
  return to;
}

static void close_call(call *c) {
  tensor *all[8];
  all_of(c, all);
  for (int i = 0; i < 8; i++) drop(&all[i]->a);
  drop(&c->lse);
}

static void fetch_call(call *c) {
  tensor *all[8];
  all_of(c, all);
  for (int i = 4; i < 8; i++) fetch(&all[i]->a);
  fetch(&c->lse);
}

/* The same q, k, v and dout as those of another call. */
static void take_values(call *c, const call *from) {
  const tensor *const given[] = {&from->q, &from->k, &from->v, &from->dout};
  tensor *all[8];
  all_of(c, all);
  for (int n = 0; n < 4; n++) {
    EACH(all[n]) put(all[n]->a.k, all[n]->a.host, at(all[n], b, i, h, d), value(given[n], b, i, h, d));
    send(&all[n]->a);
  }
}

static luattn_batch *open_batch(int first, int keys, bool is_part) {
  luattn_batch *batch = NULL;
  const luattn_batch_options part = {
      .struct_size = sizeof part, .kv_offset = first, .q_len = queries, .kv_len = is_part ? KEYS : keys};
  const luattn_batch_options packed = {.struct_size = sizeof packed,
                                       .cu_seqlens_q = &ends[driver != NULL][0].t,
                                       .cu_seqlens_k = &ends[driver != NULL][1].t,
                                       .max_seqlen_q = total(queries),
                                       .max_seqlen_k = total(KEYS)};
  if (is_packed || is_part) need(luattn_batch_open(is_packed ? &packed : &part, &batch, &err) == LUATTN_OK, "batch");
  return batch;
}

/* Keys first .. first + keys - 1. */
static void run(luattn_engine *e, const luattn_spec *spec, luattn_pass pass, call *c, int first, int keys, bool out_f32,
                bool grad_f32) {
  luattn_batch *batch = open_batch(first, keys, keys < KEYS);
  tensor *const of_keys[] = {&c->k, &c->v, &c->dk, &c->dv};
  for (int i = 0; i < 4; i++) describe(of_keys[i], first, keys < KEYS ? keys : of_keys[i]->len);
  luattn_args a = {.struct_size = sizeof a,
                   .q = &c->q.t,
                   .k = &c->k.t,
                   .v = &c->v.t,
                   .o = &c->o.t,
                   .lse = &c->lse.t,
                   .dout = &c->dout.t,
                   .dq = &c->dq.t,
                   .dk = &c->dk.t,
                   .dv = &c->dv.t,
                   .batch = batch,
                   .num_splits = is_decode ? 2 : 0,
                   .decode = is_decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER,
                   .out_f32 = out_f32,
                   .grad_f32 = grad_f32};
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(e, spec, pass, &a, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  a.workspace = size > 0 ? workspace.device : NULL, a.workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(e, spec, &a, NULL, &err) == LUATTN_OK, "run");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
  luattn_batch_close(batch);
}

/* ---- checks ---- */

static double rounded(double x) {
  char to[8];
  if (type == F16 && fabs(x) < 0x1p-14) return rint(x * 0x1p24) * 0x1p-24; /* which put takes for 0 */
  put(type, to, 0, x);
  return get(type, to, 0);
}

/* That both are the same but for the store. */
static void check_same(const char *what, const tensor *wide, const tensor *half) {
  bool differs = false;
  EACH(wide) {
    const double x = value(wide, b, i, h, d), y = value(half, b, i, h, d);
    if (rounded(x) != y) fail(what, wide, x, y);
    if (is_packed && i >= wide->len - UNUSED && x != 0) fail("a row of no sequence", wide, x, 0);
    differs |= x != y;
  }
  if (!differs) fail("all of float32 has been rounded", wide, 0, 1);
  check_gaps(what, wide);
}

static double error_of(const tensor *x, const tensor *want) {
  double most = 0;
  EACH(x) most = worse(most, fabs(value(x, b, i, h, d) - value(want, b, i, h, d)));
  return most;
}

static void check_error(const char *what, const tensor *wide, const tensor *half, const tensor *want) {
  const double error = error_of(wide, want), of_half = error_of(half, want);
  if (!(error < of_half)) fail(what, wide, error, of_half);
}

/* ---- parts ---- */

static int end_of(int part) { return part == PARTS - 1 ? KEYS : (part + 1) * (KEYS / PARTS); }

static void add(tensor *to, const tensor *x, bool is_first) {
  EACH(to)
  put(to->a.k, to->a.host, at(to, b, i, h, d), (is_first ? 0 : value(to, b, i, h, d)) + value(x, b, i, h, d));
}

/* o and lse of the merge of four parts of the keys; then dq, dk and dv of these, added up in float32. */
static void attend_parts(const luattn_spec *spec, call *c, bool is_f32) {
  call part[PARTS];
  luattn_part given[PARTS];
  for (int i = 0, first = 0; i < PARTS; first = end_of(i++)) {
    open_call(&part[i], type, is_f32 ? F32 : type);
    take_values(&part[i], c);
    run(engine, spec, LUATTN_FORWARD, &part[i], first, end_of(i) - first, is_f32, false);
    given[i] = (luattn_part){.o = &part[i].o.t, .lse = &part[i].lse.t};
  }
  const luattn_merge_args a = {
      .struct_size = sizeof a, .parts = given, .num_parts = PARTS, .o = &c->o.t, .lse = &c->lse.t};
  need(luattn_merge(engine, &a, NULL, &err) == LUATTN_OK, "merge");
  for (int i = 0, first = 0; i < PARTS; first = end_of(i++)) {
    call *p = &part[i];
    const tensor o = p->o;
    const array lse = p->lse;
    if (!is_decode) {
      p->o = c->o, p->lse = c->lse;
      run(engine, spec, LUATTN_BACKWARD, p, first, end_of(i) - first, is_f32, is_f32);
      p->o = o, p->lse = lse;
      fetch_call(p);
      add(&c->dq, &p->dq, first == 0);
    }
    close_call(p);
  }
  fetch(&c->o.a);
}

static void check_parts(const luattn_spec *spec, const call *values, const call *whole, const call *want) {
  call wide, half;
  open_call(&wide, type, F32), open_call(&half, type, type);
  take_values(&wide, values), take_values(&half, values);
  attend_parts(spec, &wide, true), attend_parts(spec, &half, false);
  check_error("o of merged parts", &wide.o, &half.o, &want->o);
  const double of_merge = error_of(&wide.o, &want->o), of_whole = error_of(&whole->o, &want->o);
  if (of_merge > 2 * of_whole) fail("o of merged parts against the whole", &wide.o, of_merge, of_whole);
  if (!is_decode) check_error("dq of added parts", &wide.dq, &half.dq, &want->dq);
  close_call(&wide), close_call(&half);
}

static void check(const luattn_spec *spec, bool has_parts) {
  call values, want, half, wide;
  driver = NULL;
  open_call(&values, type, type);
  tensor *all[8];
  all_of(&values, all);
  for (int n = 0; n < 4; n++) EACH(all[n]) put(type, all[n]->a.host, at(all[n], b, i, h, d), drawn());
  open_call(&want, F64, F64);
  take_values(&want, &values);
  run(reference, spec, LUATTN_FORWARD, &want, 0, KEYS, false, false);
  if (!is_decode) run(reference, spec, LUATTN_BACKWARD, &want, 0, KEYS, false, false);
  driver = device;
  open_call(&half, type, type), open_call(&wide, type, F32);
  take_values(&half, &values), take_values(&wide, &values);
  run(engine, spec, LUATTN_FORWARD, &half, 0, KEYS, false, false);
  run(engine, spec, LUATTN_FORWARD, &wide, 0, KEYS, true, true); /* forward does not read grad_f32 */
  fetch_call(&half), fetch_call(&wide);
  check_same("o", &wide.o, &half.o);
  check_error("o", &wide.o, &half.o, &want.o);
  if (memcmp(wide.lse.host, half.lse.host, wide.lse.count * sizeof(float)) != 0) fail("lse", &wide.o, 0, 0);
  if (!is_decode) {
    const tensor o = wide.o;
    run(engine, spec, LUATTN_BACKWARD, &half, 0, KEYS, false, false);
    wide.o = half.o; /* of the half type: gradients alone are float32 */
    run(engine, spec, LUATTN_BACKWARD, &wide, 0, KEYS, false, true);
    wide.o = o;
    fetch_call(&half), fetch_call(&wide);
    check_same("dq", &wide.dq, &half.dq), check_same("dk", &wide.dk, &half.dk), check_same("dv", &wide.dv, &half.dv);
    run(engine, spec, LUATTN_BACKWARD, &wide, 0, KEYS, true, true);
    fetch_call(&wide);
    check_error("dq", &wide.dq, &half.dq, &want.dq), check_error("dk", &wide.dk, &half.dk, &want.dk);
    check_error("dv", &wide.dv, &half.dv, &want.dv);
  }
  if (has_parts) check_parts(spec, &values, &wide, &want);
  close_call(&half), close_call(&wide);
  driver = NULL;
  close_call(&want), close_call(&values);
  driver = device;
}

/* ---- refusals ---- */

static void check_refused(const char *what, luattn_status status, const char *says) {
  if (status != LUATTN_OK && strstr(err.message, says) != NULL) return;
  failures++;
  fprintf(stderr, "FAILED: %s: status %d: '%s', expected '%s'\n", what, (int)status, err.message, says);
}

static void check_refusals(const luattn_spec *spec) {
  call half, single;
  open_call(&half, type, type), open_call(&single, F32, F32);
  luattn_args a = {.struct_size = sizeof a,
                   .q = &half.q.t,
                   .k = &half.k.t,
                   .v = &half.v.t,
                   .o = &half.o.t,
                   .lse = &half.lse.t,
                   .out_f32 = 1};
  check_refused("o of the half type", luattn_forward(engine, spec, &a, NULL, &err), "o: has dtype ");
  check_refused("o of the half type", luattn_forward(engine, spec, &a, NULL, &err),
                "expected float32; convert it, or leave out_f32 and grad_f32 0");
  a.out_f32 = 2;
  check_refused("2", luattn_forward(engine, spec, &a, NULL, &err), "out_f32: is 2, expected 0 or 1");
  a.q = &single.q.t, a.k = &single.k.t, a.v = &single.v.t, a.o = &single.o.t, a.out_f32 = 1;
  check_refused("float32", luattn_forward(reference, spec, &a, NULL, &err),
                "out_f32: is 1, and q, k and v are f32: o has their type, unless it is bf16 or f16; leave it 0");
  single.o.t.data = (char *)single.o.t.data + 4;
  a.q = &half.q.t, a.k = &half.k.t, a.v = &half.v.t;
  check_refused("an address", luattn_forward(engine, spec, &a, NULL, &err), "o: address ");
  close_call(&half), close_call(&single);
}

static void set_ends(array *a, int len) {
  make(a, I32, 1, (int64_t[]){BATCH + 1});
  put(I32, a->host, 1, first_unused(len) * 3 / 5), put(I32, a->host, 2, first_unused(len));
  send(a);
}

int main(int argc, char **argv) {
  static const char *const texts[] = {
      "return attention { name = 'plain', block_mask = causal_bottom_right() }",
      "return attention { name = 'mods', block_mask = causal_bottom_right(), query_mod = function(x, b, h, q, d) "
      "return "
      "0.7 * x + 0.1 end, key_mod = function(x, b, h, kv, d) return tanh(x) end, value_mod = function(x, b, h, kv, d) "
      "return x * (1 + 0.01 * d) end }",
      "return attention { name = 'rotary', query_mod = function(x, b, h, q, d) return x[d] * cos(0.1 * q) + "
      "where(d < 8, -x[(d + 8) % 16], x[(d + 8) % 16]) * sin(0.1 * q) end }"};
  if (argc < 5) return 2;
  is_decode = strcmp(argv[1], "decode") == 0, is_packed = argc > 5;
  type = strcmp(argv[2], "f16") == 0 ? F16 : BF16;
  dim = atoi(argv[3]), dim_v = atoi(argv[4]);
  queries = is_decode ? 3 : queries;
  const luattn_engine_options options = {.struct_size = sizeof options,
                                         .family = strcmp(argv[1], "sm90") == 0 ? 1 + LUATTN_SM90 : 1 + LUATTN_SM80,
                                         .deterministic = 1};
  const luattn_engine_options on_cpu = {.struct_size = sizeof on_cpu, .device = LUATTN_CPU, .cpu_relaxed = !is_packed};
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  need(luattn_engine_open(&on_cpu, &reference, &err) == LUATTN_OK, "engine");
  device = driver = luattn_engine_driver(engine);
  for (int i = 0; i < 2; i++) {
    driver = i == 0 ? NULL : device;
    set_ends(&ends[i][0], queries), set_ends(&ends[i][1], KEYS);
  }
  for (int i = 0; i < (dim == 16 ? 3 : 2); i++) {
    luattn_spec *spec;
    need(luattn_spec_load_text("test.lua", texts[i], strlen(texts[i]), NULL, &spec, &err) == LUATTN_OK, "spec");
    check(spec, !is_packed && i == 0);
    if (i == 0 && !is_packed) check_refusals(spec);
    need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
    need(luattn_engine_forget(reference, spec, &err) == LUATTN_OK, "forget");
    luattn_spec_free(spec);
  }
  luattn_engine_close(engine), luattn_engine_close(reference);
  if (failures > 0) fprintf(stderr, "%d failures\n", failures);
  return failures > 0;
}
