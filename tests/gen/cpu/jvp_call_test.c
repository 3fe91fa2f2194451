/* jvp_call_test.c: calls for tangents: packed sequences beside each alone, on an engine and without; parts of a whole; what
 * is refused, and by which words; no tangent is dropped by a call that computes none. */
#include "tests/support/cpu_call.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/engine.h"

enum { H = 4, HKV = 2, D = 6, DV = 5, SEQUENCES = 3, TOTAL_Q = 20, TOTAL_K = 90 };

static const char source[] =
    "return attention { inputs = { bias = { axes = {'h', 'kv'}, grad = true }, ids = { axes = {'kv'}, dtype = 'i32' } "
    "}, "
    "scalars = { cap = 2.0 }, "
    "score_mod = function(score, b, h, q_idx, kv_idx) return cap * tanh((score + bias[{h, kv_idx}]) / cap) end, "
    "block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + 3 and ids[kv_idx] >= 0 end, "
    "key_mod = function(x, b, h, pos, d) return x * cos(0.1 * pos * d) end }";

static void make(tensor *t, DLDataType type, int ndim, int64_t a, int64_t b, int64_t c, int64_t d, uint64_t seed) {
  const int64_t shape[] = {a, b, c, d};
  tensor_new(t, type, ndim, shape, DENSE);
  t->t.shape = t->shape, t->t.strides = t->stride;
  if (seed > 0) tensor_fill(t, seed);
}

/* q, k, v, o, lse and their tangents; bias, its tangent, ids. */
typedef struct tensors {
  tensor q[2], k[2], v[2], o[2], lse[2], bias[2], ids;
  luattn_input inputs[2], input_tangent;
  luattn_scalar cap;
  luattn_tangents tangents;
  luattn_args args;
} tensors;

static void tensors_new(tensors *c, bool packed, int q_len, int kv_len) {
  for (int i = 0; i < 2; i++) {
    const uint64_t seed = 10 + 10 * (uint64_t)i;
    if (packed) {
      make(&c->q[i], F64, 3, q_len, H, D, 0, seed), make(&c->k[i], F64, 3, kv_len, HKV, D, 0, seed + 1);
      make(&c->v[i], F64, 3, kv_len, HKV, DV, 0, seed + 2), make(&c->o[i], F64, 3, q_len, H, DV, 0, 0);
      make(&c->lse[i], F64, 2, H, q_len, 0, 0, 0);
    } else {
      make(&c->q[i], F64, 4, 1, H, q_len, D, seed), make(&c->k[i], F64, 4, 1, HKV, kv_len, D, seed + 1);
      make(&c->v[i], F64, 4, 1, HKV, kv_len, DV, seed + 2), make(&c->o[i], F64, 4, 1, H, q_len, DV, 0);
      make(&c->lse[i], F64, 3, 1, H, q_len, 0, 0);
    }
    make(&c->bias[i], F32, 2, H, kv_len, 0, 0, seed + 3);
  }
  make(&c->ids, I32, 1, kv_len, 0, 0, 0, 0);
  for (int i = 0; i < kv_len; i++) tensor_set(&c->ids, i, i % 5 == 3 ? -1 : i);
  c->inputs[0] = (luattn_input){"bias", &c->bias[0].t, NULL}, c->inputs[1] = (luattn_input){"ids", &c->ids.t, NULL};
  c->input_tangent = (luattn_input){"bias", &c->bias[1].t, NULL};
  c->cap = (luattn_scalar){"cap", 0.3};
  c->tangents = (luattn_tangents){.struct_size = sizeof c->tangents,
                                  .q = &c->q[1].t,
                                  .k = &c->k[1].t,
                                  .v = &c->v[1].t,
                                  .inputs = &c->input_tangent,
                                  .num_inputs = 1,
                                  .scalars = &c->cap,
                                  .num_scalars = 1,
                                  .o = &c->o[1].t,
                                  .lse = &c->lse[1].t};
  c->args = (luattn_args){.struct_size = sizeof c->args,
                          .q = &c->q[0].t,
                          .k = &c->k[0].t,
                          .v = &c->v[0].t,
                          .o = &c->o[0].t,
                          .lse = &c->lse[0].t,
                          .inputs = c->inputs,
                          .num_inputs = 2,
                          .tangents = &c->tangents};
}

static void tensors_free(tensors *c) {
  for (int i = 0; i < 2; i++) {
    tensor *const all[] = {&c->q[i], &c->k[i], &c->v[i], &c->o[i], &c->lse[i], &c->bias[i]};
    for (size_t j = 0; j < sizeof all / sizeof *all; j++) tensor_free(all[j]);
  }
  tensor_free(&c->ids);
}

#define OK(call) \
  if ((call) != LUATTN_OK) fail_msg("%s", err.message)

/* ---- packed sequences ---- */

static const int32_t first_q[SEQUENCES + 1] = {0, 7, 7, 18}, first_k[SEQUENCES + 1] = {0, 5, 20, 86};

/* Rows [from, from + rows) of a packed tensor, as entry 0 of one with a batch axis. */
static void copy_rows(const tensor *packed, int from, tensor *to) {
  const bool numbers = packed->t.ndim == 2;
  const int64_t heads = to->shape[1], rows = to->shape[2], width = to->t.ndim == 4 ? to->shape[3] : 1;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < rows; i++)
      for (int64_t d = 0; d < width; d++)
        tensor_set(
            to, (h * rows + i) * width + d,
            tensor_get(packed, numbers ? h * packed->shape[1] + from + i : ((from + i) * heads + h) * width + d));
}

static void same_rows(const char *what, const tensor *packed, int from, const tensor *one) {
  tensor rows;
  make(&rows, F64, one->t.ndim, one->shape[0], one->shape[1], one->shape[2], one->t.ndim == 4 ? one->shape[3] : 0, 0);
  copy_rows(packed, from, &rows);
  double *want = malloc((size_t)tensor_count(&rows) * sizeof *want);
  for (int64_t i = 0; i < tensor_count(&rows); i++) want[i] = tensor_get(one, i);
  assert_close(what, &rows, want, 0);
  free(want);
  tensor_free(&rows);
}

/* One sequence's tensors, of all. */
static void take_sequence(const tensors *all, int s, tensors *one) {
  const int q_len = first_q[s + 1] - first_q[s], kv_len = first_k[s + 1] - first_k[s];
  tensors_new(one, false, q_len, kv_len);
  for (int i = 0; i < 2; i++) {
    copy_rows(&all->q[i], first_q[s], &one->q[i]);
    copy_rows(&all->k[i], first_k[s], &one->k[i]), copy_rows(&all->v[i], first_k[s], &one->v[i]);
    for (int64_t h = 0; h < H; h++)
      for (int64_t j = 0; j < kv_len; j++)
        tensor_set(&one->bias[i], h * kv_len + j, tensor_get(&all->bias[i], h * TOTAL_K + first_k[s] + j));
  }
  for (int j = 0; j < kv_len; j++) tensor_set(&one->ids, j, tensor_get(&all->ids, first_k[s] + j));
}

/* All sequences' tensors, and their batch on a CPU engine. */
typedef struct packed {
  luattn_engine *engine;
  luattn_batch *batch;
  luattn_spec *spec;
  tensors all;
  tensor cu[2];
} packed;

static void packed_open(packed *p) {
  luattn_error err;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  p->spec = load_text(source);
  OK(luattn_engine_open(&options, &p->engine, &err));
  tensors_new(&p->all, true, TOTAL_Q, TOTAL_K);
  for (int i = 0; i < 2; i++) {
    make(&p->cu[i], I32, 1, SEQUENCES + 1, 0, 0, 0, 0);
    for (int j = 0; j <= SEQUENCES; j++) tensor_set(&p->cu[i], j, (i == 0 ? first_q : first_k)[j]);
  }
  const luattn_batch_options of = {.struct_size = sizeof of,
                                   .cu_seqlens_q = &p->cu[0].t,
                                   .cu_seqlens_k = &p->cu[1].t,
                                   .max_seqlen_q = 11,
                                   .max_seqlen_k = 66};
  OK(luattn_batch_open(&of, &p->batch, &err));
  p->all.args.batch = p->batch;
}

static void packed_close(packed *p) {
  luattn_batch_close(p->batch);
  tensors_free(&p->all), tensor_free(&p->cu[0]), tensor_free(&p->cu[1]);
  luattn_engine_close(p->engine);
  luattn_spec_free(p->spec);
}

static void test_packed(void **state) {
  (void)state;
  luattn_error err;
  packed p;
  packed_open(&p);
  const tensors *all = &p.all;
  OK(luattn_forward_jvp(p.engine, p.spec, &all->args, NULL, &err));
  for (int s = 0; s < SEQUENCES; s++) {
    tensors one;
    if (first_q[s + 1] == first_q[s]) continue;
    take_sequence(all, s, &one);
    OK(luattn_cpu_forward_jvp(p.spec, &one.args, &err));
    same_rows("o", &all->o[0], first_q[s], &one.o[0]), same_rows("o's tangent", &all->o[1], first_q[s], &one.o[1]);
    same_rows("lse's tangent", &all->lse[1], first_q[s], &one.lse[1]);
    tensors_free(&one);
  }
  for (int i = first_q[SEQUENCES]; i < TOTAL_Q; i++) /* rows of no sequence */
    for (int h = 0; h < H; h++) {
      assert_true(tensor_get(&all->lse[1], h * TOTAL_Q + i) == 0);
      assert_true(tensor_get(&all->o[1], (i * H + h) * DV) == 0);
    }
  for (int64_t i = 0; i < tensor_count(&all->o[1]); i++) assert_true(isfinite(tensor_get(&all->o[1], i)));
  packed_close(&p);
}

/* dO and dlse with their tangents, and where tangents of gradients go. */
typedef struct gradients {
  tensor dout[2], dlse[2], dq, dk, dv, bias, cap;
  luattn_input bias_tangent;
} gradients;

static void gradients_new(gradients *g, tensors *of, bool is_packed, int q_len, int kv_len) {
  for (int i = 0; i < 2; i++) {
    const uint64_t seed = 50 + 10 * (uint64_t)i;
    if (is_packed) {
      make(&g->dout[i], F64, 3, q_len, H, DV, 0, seed), make(&g->dlse[i], F64, 2, H, q_len, 0, 0, seed + 1);
    } else {
      make(&g->dout[i], F64, 4, 1, H, q_len, DV, 0), make(&g->dlse[i], F64, 3, 1, H, q_len, 0, 0);
    }
  }
  if (is_packed) {
    make(&g->dq, F64, 3, q_len, H, D, 0, 0), make(&g->dk, F64, 3, kv_len, HKV, D, 0, 0);
    make(&g->dv, F64, 3, kv_len, HKV, DV, 0, 0);
  } else {
    make(&g->dq, F64, 4, 1, H, q_len, D, 0), make(&g->dk, F64, 4, 1, HKV, kv_len, D, 0);
    make(&g->dv, F64, 4, 1, HKV, kv_len, DV, 0);
  }
  make(&g->bias, F64, 2, H, kv_len, 0, 0, 0), make(&g->cap, F64, 1, 1, 0, 0, 0, 0);
  of->input_tangent.grad = &g->bias.t;
  of->args.dout = &g->dout[0].t, of->args.dlse = &g->dlse[0].t;
  luattn_tangents *t = &of->tangents;
  t->o = t->lse = NULL;
  t->dout = &g->dout[1].t, t->dlse = &g->dlse[1].t;
  t->dq = &g->dq.t, t->dk = &g->dk.t, t->dv = &g->dv.t, t->scalar_grads = &g->cap.t;
}

static void gradients_free(gradients *g) {
  for (int i = 0; i < 2; i++) tensor_free(&g->dout[i]), tensor_free(&g->dlse[i]);
  tensor_free(&g->dq), tensor_free(&g->dk), tensor_free(&g->dv), tensor_free(&g->bias), tensor_free(&g->cap);
}

/* Tangents of gradients: rows are those of each sequence alone, and of a scalar they add up. */
static void test_packed_backward(void **state) {
  (void)state;
  luattn_error err;
  packed p;
  gradients whole;
  double cap = 0;
  packed_open(&p);
  tensors *all = &p.all;
  gradients_new(&whole, all, true, TOTAL_Q, TOTAL_K);
  OK(luattn_backward_jvp(p.engine, p.spec, &all->args, NULL, &err));
  for (int s = 0; s < SEQUENCES; s++) {
    tensors one;
    gradients own;
    const int kv_len = first_k[s + 1] - first_k[s];
    if (first_q[s + 1] == first_q[s]) continue;
    take_sequence(all, s, &one);
    gradients_new(&own, &one, false, first_q[s + 1] - first_q[s], kv_len);
    for (int i = 0; i < 2; i++)
      copy_rows(&whole.dout[i], first_q[s], &own.dout[i]), copy_rows(&whole.dlse[i], first_q[s], &own.dlse[i]);
    OK(luattn_cpu_backward_jvp(p.spec, &one.args, &err));
    same_rows("dq", &whole.dq, first_q[s], &own.dq);
    same_rows("dk", &whole.dk, first_k[s], &own.dk), same_rows("dv", &whole.dv, first_k[s], &own.dv);
    for (int64_t h = 0; h < H; h++)
      for (int64_t j = 0; j < kv_len; j++)
        assert_true(tensor_get(&whole.bias, h * TOTAL_K + first_k[s] + j) == tensor_get(&own.bias, h * kv_len + j));
    cap += tensor_get(&own.cap, 0);
    gradients_free(&own), tensors_free(&one);
  }
  assert_close("the scalar's", &whole.cap, &cap, 1e-13);
  assert_true(cap != 0 && tensor_get(&whole.bias, 1) != 0);
  for (int i = 0; i < HKV * D; i++) { /* keys of the sequence without queries, and those of none */
    assert_true(tensor_get(&whole.dk, first_k[1] * HKV * D + i) == 0);
    assert_true(tensor_get(&whole.dk, first_k[SEQUENCES] * HKV * D + i) == 0);
  }
  gradients_free(&whole);
  packed_close(&p);
}

/* ---- an engine ---- */

static void test_engine(void **state) {
  (void)state;
  luattn_error err;
  luattn_engine *engine;
  luattn_spec *spec = load_text(source);
  tensors a, b;
  for (int relaxed = 0; relaxed < 2; relaxed++) {
    const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU, .cpu_relaxed = relaxed};
    OK(luattn_engine_open(&options, &engine, &err));
    tensors_new(&a, false, 9, 70), tensors_new(&b, false, 9, 70);
    OK(luattn_forward_jvp(engine, spec, &a.args, NULL, &err));
    OK(luattn_cpu_forward_jvp(spec, &b.args, &err));
    for (int i = 0; i < 2; i++)
      for (int64_t j = 0; j < tensor_count(&a.o[i]); j++) assert_true(tensor_get(&a.o[i], j) == tensor_get(&b.o[i], j));
    tensors_free(&a), tensors_free(&b);
    luattn_engine_close(engine);
  }
  luattn_spec_free(spec);
}

/* ---- what is refused ---- */

static void expect(luattn_status status, const luattn_error *err, const char *words) {
  assert_int_not_equal(status, LUATTN_OK);
  if (strstr(err->message, words) == NULL) fail_msg("'%s' has not '%s'", err->message, words);
}

static void test_refused(void **state) {
  (void)state;
  luattn_error err;
  luattn_engine *engine;
  luattn_spec *spec = load_text(source);
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  OK(luattn_engine_open(&options, &engine, &err));
  tensors c;
  tensor odd;
  make(&odd, F64, 4, 1, H, 8, D, 1);
  tensors_new(&c, false, 9, 70);
  const luattn_input integer = {"ids", &c.ids.t, NULL}, unknown = {"bios", &c.bias[1].t, NULL},
                     graded = {"bias", &c.bias[1].t, &c.bias[0].t}, twice[] = {c.input_tangent, c.input_tangent};
  const luattn_scalar odd_scalar = {"cup", 1}, infinite = {"cap", INFINITY};
#define REFUSED(change, words)                                                \
  do {                                                                        \
    luattn_args args = c.args;                                                \
    luattn_tangents t = c.tangents;                                           \
    args.tangents = &t;                                                       \
    change;                                                                   \
    expect(luattn_cpu_forward_jvp(spec, &args, &err), &err, words);           \
    expect(luattn_forward_jvp(engine, spec, &args, NULL, &err), &err, words); \
  } while (0)
  REFUSED(args.tangents = NULL, "tangents: is missing");
  REFUSED(t.struct_size = 4, "struct_size");
  REFUSED(t.q = &odd.t, "q: axis 2");
  REFUSED(t.inputs = &integer, "tangent of input 'ids': the input holds no real numbers");
  REFUSED(t.inputs = &unknown, "tangent of input 'bios': ");
  REFUSED(t.inputs = &graded, "tangent of input 'bias': has a grad");
  REFUSED((t.inputs = twice, t.num_inputs = 2), "tangent of input 'bias': was given twice");
  REFUSED(t.inputs = NULL, "inputs is NULL, but num_inputs is 1");
  REFUSED(t.num_inputs = 13, "num_inputs is 13, expected at most 12");
  REFUSED(t.scalars = &odd_scalar, "tangent of scalar 'cup'");
  REFUSED(t.scalars = &infinite, "tangent of scalar 'cap': is not finite");
  REFUSED(t.o = c.args.o, "is shared with");
  REFUSED(t.lse = c.args.lse, "is shared with");
  REFUSED(args.keys_modified = 1, "keys_modified: is 1, and tangents are not computed with it");
  REFUSED(args.large_scores = 1, "large_scores: is 1, and tangents");
  REFUSED(args.skip = LUATTN_SKIP_ALWAYS, "skip: is LUATTN_SKIP_ALWAYS, and tangents");
  REFUSED(args.decode = LUATTN_DECODE_ALWAYS, "decode: is LUATTN_DECODE_ALWAYS, and tangents");
  /* Nothing has been written. */
  for (int64_t i = 0; i < tensor_count(&c.o[1]); i++)
    assert_true(isnan(tensor_get(&c.o[0], i) + tensor_get(&c.o[1], i)));
  /* No other call takes tangents. */
  expect(luattn_cpu_forward(spec, &c.args, &err), &err, "tangents: is given, and this call computes none");
  expect(luattn_cpu_backward(spec, &c.args, &err), &err, "tangents: is given, and this call computes none");
  expect(luattn_forward(engine, spec, &c.args, NULL, &err), &err, "tangents: is given, and this call computes none");
  expect(luattn_backward(engine, spec, &c.args, NULL, &err), &err, "tangents: is given, and this call computes none");
  tensors_free(&c), tensor_free(&odd);
  luattn_spec_free(spec);
  luattn_engine_close(engine);
}

static void test_no_lse(void **state) {
  (void)state;
  luattn_error err;
  luattn_spec *sigmoid = load_text("return attention { online_func = sigmoid_attention }");
  call plain;
  call_new(&plain, sigmoid, (int[]){1, 2, 2, 5, 6, 4, 4}, DENSE, F64, F64);
  const luattn_tangents t = {.struct_size = sizeof t, .lse = &plain.dlse.t};
  plain.args.tangents = &t;
  plain.lse.t.shape = plain.lse.shape, plain.dlse.t.shape = plain.dlse.shape;
  expect(luattn_cpu_forward_jvp(sigmoid, &plain.args, &err), &err, "tangents.lse: online_func 'sigmoid_attention'");
  call_free(&plain);
  luattn_spec_free(sigmoid);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed), cmocka_unit_test(test_packed_backward),
                                     cmocka_unit_test(test_engine), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_no_lse)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
