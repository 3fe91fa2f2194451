/* cpu_packed_test.c: packed sequences on a CPU engine: each equals a separate dense call, and errors name
 * what is wrong with the offsets. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/api/setup.h"

enum { HEADS = 4, HEADS_KV = 2, DIM = 16, DIM_V = 8, SEQUENCES = 4, TOTAL_Q = 93, TOTAL_K = 150 };

/* Sequences: short, empty, longer than a tile, and with more keys than queries. */
static const int32_t q_offsets[SEQUENCES + 1] = {0, 5, 5, 75, TOTAL_Q},
                                           k_offsets[SEQUENCES + 1] = {0, 5, 9, 79, TOTAL_K};

#define SPEC(mask, score)                                                                   \
  "return attention { name = 'packed', online_func = online_retention,\n"                   \
  "  inputs = { slopes = { axes = {'b', 'h'} }, ids = { axes = {'b'}, dtype = 'i32' } },\n" \
  "  score_mod = function(score, b, h, q_idx, kv_idx) return " score                        \
  " + slopes[{b, h}] end,\n"                                                                \
  "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + kv_len - q_len + " mask " end }"

typedef struct packed {
  luattn_spec *spec;
  float q[TOTAL_Q][HEADS][DIM], k[TOTAL_K][HEADS_KV][DIM], v[TOTAL_K][HEADS_KV][DIM_V], o[TOTAL_Q][HEADS][DIM_V];
  float lse[HEADS][TOTAL_Q], saved[4][HEADS][TOTAL_Q], slopes[SEQUENCES][HEADS];
  int32_t ids[SEQUENCES], cu_q[SEQUENCES + 1], cu_k[SEQUENCES + 1];
  int64_t shape[12][4];
  DLTensor t[12];
  luattn_input inputs[2];
  luattn_batch_options options;
  luattn_batch *batch;
  int32_t shifts[SEQUENCES], half_shifts[SEQUENCES]; /* offsets of queries and keys */
  luattn_args args;
} packed;

static DLTensor *tensor(packed *p, int i, void *data, bool integers, int ndim, const int64_t shape[4]) {
  memcpy(p->shape[i], shape, sizeof p->shape[i]);
  p->t[i] = (DLTensor){.data = data,
                       .device = {kDLCPU, 0},
                       .ndim = ndim,
                       .dtype = {integers ? kDLInt : kDLFloat, 32, 1},
                       .shape = p->shape[i]};
  return &p->t[i];
}

static void fill(float *x, size_t bytes, unsigned state) {
  for (size_t i = 0; i < bytes / sizeof *x; i++) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
  }
}

static void open_batch(packed *p) {
  luattn_error err;
  luattn_batch_close(p->batch);
  api_ok(luattn_batch_open(&p->options, &p->batch, &err), &err);
  p->args.batch = p->batch;
}

static packed *open_packed(const char *source) {
  packed *p = calloc(1, sizeof *p);
  luattn_error err;
  luattn_spec_info info;
  assert_non_null(p);
  api_ok(luattn_spec_load_text("packed.lua", source, strlen(source), NULL, &p->spec, &err), &err);
  luattn_spec_get_info(p->spec, &info);
  assert_true(info.num_saved > 0 && info.num_saved <= 4);
  fill(&p->q[0][0][0], sizeof p->q, 1), fill(&p->k[0][0][0], sizeof p->k, 2), fill(&p->v[0][0][0], sizeof p->v, 3);
  memset(p->o, 0xff, sizeof p->o), memset(p->lse, 0xff, sizeof p->lse), memset(p->saved, 0xff, sizeof p->saved);
  memcpy(p->cu_q, q_offsets, sizeof p->cu_q), memcpy(p->cu_k, k_offsets, sizeof p->cu_k);
  for (int b = 0; b < SEQUENCES; b++) {
    p->ids[b] = b;
    for (int h = 0; h < HEADS; h++) p->slopes[b][h] = 0.25f * (float)b;
  }
  p->inputs[0] = (luattn_input){"slopes", tensor(p, 0, p->slopes, false, 2, (int64_t[4]){SEQUENCES, HEADS}), NULL};
  p->inputs[1] = (luattn_input){"ids", tensor(p, 1, p->ids, true, 1, (int64_t[4]){SEQUENCES}), NULL};
  p->args =
      (luattn_args){.struct_size = sizeof p->args,
                    .q = tensor(p, 2, p->q, false, 3, (int64_t[4]){TOTAL_Q, HEADS, DIM}),
                    .k = tensor(p, 3, p->k, false, 3, (int64_t[4]){TOTAL_K, HEADS_KV, DIM}),
                    .v = tensor(p, 4, p->v, false, 3, (int64_t[4]){TOTAL_K, HEADS_KV, DIM_V}),
                    .o = tensor(p, 5, p->o, false, 3, (int64_t[4]){TOTAL_Q, HEADS, DIM_V}),
                    .saved = tensor(p, 6, p->saved, false, 3, (int64_t[4]){(int64_t)info.num_saved, HEADS, TOTAL_Q}),
                    .inputs = p->inputs,
                    .num_inputs = 2};
  p->options = (luattn_batch_options){.struct_size = sizeof p->options,
                                      .cu_seqlens_q = tensor(p, 7, p->cu_q, true, 1, (int64_t[4]){SEQUENCES + 1}),
                                      .cu_seqlens_k = tensor(p, 8, p->cu_k, true, 1, (int64_t[4]){SEQUENCES + 1})};
  open_batch(p);
  if (info.has_lse) p->args.lse = tensor(p, 9, p->lse, false, 2, (int64_t[4]){HEADS, TOTAL_Q});
  return p;
}

static void close_packed(packed *p) {
  luattn_spec_free(p->spec);
  luattn_batch_close(p->batch);
  free(p);
}

static luattn_engine *engine_on_cpu(int relaxed) {
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU, .cpu_relaxed = relaxed};
  return api_engine(&options);
}

/* Computes one sequence in a separate dense call, in which b is 0. */
static void compare_sequence(packed *p, int b) {
  enum { MOST = 128 };
  static float o[HEADS][MOST][DIM_V], saved[4][HEADS][MOST];
  const int q = q_offsets[b], k = k_offsets[b], q_len = q_offsets[b + 1] - q, kv_len = k_offsets[b + 1] - k;
  int64_t q_shape[] = {1, HEADS, q_len, DIM}, k_shape[] = {1, HEADS_KV, kv_len, DIM},
          v_shape[] = {1, HEADS_KV, kv_len, DIM_V}, o_shape[] = {1, HEADS, q_len, DIM_V},
          s_shape[] = {p->shape[6][0], 1, HEADS, q_len}, one[] = {1, HEADS};
  int64_t q_strides[] = {0, DIM, HEADS * DIM, 1}, k_strides[] = {0, DIM, HEADS_KV * DIM, 1},
          v_strides[] = {0, DIM_V, HEADS_KV * DIM_V, 1}, o_strides[] = {0, MOST * DIM_V, DIM_V, 1},
          s_strides[] = {HEADS * MOST, 0, MOST, 1};
  const DLDataType f32 = {kDLFloat, 32, 1};
  DLTensor tq = {p->q[q], {kDLCPU, 0}, 4, f32, q_shape, q_strides, 0},
           tk = {p->k[k], {kDLCPU, 0}, 4, f32, k_shape, k_strides, 0},
           tv = {p->v[k], {kDLCPU, 0}, 4, f32, v_shape, v_strides, 0},
           to = {o, {kDLCPU, 0}, 4, f32, o_shape, o_strides, 0},
           ts = {saved, {kDLCPU, 0}, 4, f32, s_shape, s_strides, 0}, slopes = p->t[0], ids = p->t[1];
  slopes.data = p->slopes[b], slopes.shape = one;
  ids.data = &p->ids[b], ids.shape = one;
  const luattn_input inputs[] = {{"slopes", &slopes, NULL}, {"ids", &ids, NULL}};
  const luattn_batch_options whole = {
      .struct_size = sizeof whole, .q_offset = p->shifts[b], .kv_offset = p->shifts[b] / 2};
  luattn_error err;
  luattn_batch *batch;
  api_ok(luattn_batch_open(&whole, &batch, &err), &err);
  const luattn_args args = {.struct_size = sizeof args,
                            .batch = batch,
                            .q = &tq,
                            .k = &tk,
                            .v = &tv,
                            .o = &to,
                            .saved = &ts,
                            .inputs = inputs,
                            .num_inputs = 2};
  api_ok(luattn_cpu_forward(p->spec, &args, &err), &err);
  luattn_batch_close(batch);
  for (int i = 0; i < q_len; i++)
    for (int h = 0; h < HEADS; h++) {
      assert_memory_equal(p->o[q + i][h], o[h][i], sizeof o[h][i]);
      for (int n = 0; n < p->shape[6][0]; n++)
        assert_memory_equal(&(&p->saved[0][0][0])[(n * HEADS + h) * TOTAL_Q + q + i], &saved[n][h][i], sizeof(float));
    }
}

static void each_as_a_call_of_its_own(void **state) {
  (void)state;
  luattn_engine *engine = engine_on_cpu(0);
  luattn_error err;
  for (int threads = 0; threads < 3; threads++) {
    packed *p = open_packed(SPEC("ids[b]", "score"));
    size_t size = 1;
    p->args.num_threads = threads;
    api_ok(luattn_engine_workspace_size(engine, p->spec, LUATTN_FORWARD, &p->args, &size, &err), &err);
    assert_int_equal(size, 0);
    api_ok(luattn_forward(engine, p->spec, &p->args, NULL, &err), &err);
    for (int b = 0; b < SEQUENCES; b++) compare_sequence(p, b);
    api_ok(luattn_engine_forget(engine, p->spec, &err), &err);
    close_packed(p);
  }
  luattn_engine_close(engine);
}

/* With offsets, each sequence is a part of a separate larger sequence. */
static void offsets_of_each(void **state) {
  (void)state;
  luattn_engine *engine = engine_on_cpu(0);
  luattn_error err;
  packed *p = open_packed(SPEC("ids[b]", "score + 0.01 * (q_idx - kv_idx)"));
  for (int b = 0; b < SEQUENCES; b++) p->shifts[b] = 6 * b + 2, p->half_shifts[b] = p->shifts[b] / 2;
  p->options.q_offsets = tensor(p, 10, p->shifts, true, 1, (int64_t[4]){SEQUENCES});
  p->options.kv_offsets = tensor(p, 11, p->half_shifts, true, 1, (int64_t[4]){SEQUENCES});
  open_batch(p);
  api_ok(luattn_forward(engine, p->spec, &p->args, NULL, &err), &err);
  for (int b = 0; b < SEQUENCES; b++) compare_sequence(p, b);
  luattn_engine_close(engine);
  close_packed(p);
}

/* b is the index of the sequence in scores, in the mask, and in tile classification. */
static void b_is_its_number(void **state) {
  (void)state;
  luattn_engine *engine = engine_on_cpu(0);
  luattn_error err;
  packed *by_number = open_packed(SPEC("b", "score + 0.25 * b")),
         *by_input = open_packed(SPEC("ids[b]", "score + 0.25 * ids[b]"));
  api_ok(luattn_forward(engine, by_number->spec, &by_number->args, NULL, &err), &err);
  api_ok(luattn_forward(engine, by_input->spec, &by_input->args, NULL, &err), &err);
  assert_memory_equal(by_number->o, by_input->o, sizeof by_number->o);
  packed *by_none = open_packed(SPEC("0", "score"));
  api_ok(luattn_forward(engine, by_none->spec, &by_none->args, NULL, &err), &err);
  assert_memory_not_equal(by_number->o, by_none->o, sizeof by_number->o);
  luattn_engine_close(engine);
  close_packed(by_number), close_packed(by_input), close_packed(by_none);
}

static void has_an_lse(void **state) {
  (void)state;
  static const char softmax[] =
      "return attention { name = 'lse', inputs = { slopes = { axes = {'b', 'h'} }, ids = { axes = {'b'}, "
      "dtype = 'i32' } },\n"
      "  score_mod = function(score, b, h, q_idx, kv_idx) return score + slopes[{b, h}] + ids[b] end }";
  luattn_engine *engine = engine_on_cpu(0);
  luattn_error err;
  packed *p = open_packed(SPEC("0", "score"));
  luattn_spec_free(p->spec);
  api_ok(luattn_spec_load_text("lse.lua", softmax, sizeof softmax - 1, NULL, &p->spec, &err), &err);
  p->args.saved = NULL;
  p->args.lse = tensor(p, 9, p->lse, false, 2, (int64_t[4]){HEADS, TOTAL_Q});
  memset(p->q, 0, sizeof p->q); /* all scores are slopes + b, so lse is slopes + b + log(kv_len) */
  api_ok(luattn_forward(engine, p->spec, &p->args, NULL, &err), &err);
  for (int b = 0; b < SEQUENCES; b++)
    for (int q = q_offsets[b]; q < q_offsets[b + 1]; q++)
      for (int h = 0; h < HEADS; h++) {
        const double want = 1.25 * b + log((double)(k_offsets[b + 1] - k_offsets[b]));
        const double got = (double)p->lse[h][q];
        if (got - want > 1e-5 || want - got > 1e-5) fail_msg("lse[%d][%d] = %g, expected %g", h, q, got, want);
      }
  luattn_engine_close(engine);
  close_packed(p);
}

static void first_offset(packed *p) { p->cu_q[0] = 1; }
static void falling(packed *p) { p->cu_k[2] = 4; }
static void last_offset(packed *p) { p->cu_k[SEQUENCES] = TOTAL_K + 1; }
static void too_long(packed *p) {
  p->options.max_seqlen_q = 70;
  open_batch(p);
  p->cu_q[3] = 76;
}
static void on_gpu(packed *p) {
  p->t[8].device = (DLDevice){kDLCUDA, 0};
  p->options.max_seqlen_k = 80;
  open_batch(p);
}
static void other_heads(packed *p) { p->shape[5][1] = 3; }

static void wrong_offsets(void **state) {
  (void)state;
  static const struct {
    void (*spoil)(packed *p);
    const char *words;
  } cases[] = {
      {first_offset, "cpu: cu_seqlens_q: begins with 1, expected 0"},
      {falling, "cpu: cu_seqlens_k: falls from 5 to 4 at sequence 1, expected values that never fall"},
      {last_offset,
       "cpu: cu_seqlens_k: ends with 151, and there are 150 rows; give the rows of all sequences, or offsets that end "
       "with them"},
      {too_long, "cpu: max_seqlen_q: is 70, and the longest sequence has 71 rows; give its length, or 0"},
      {on_gpu, "forward of 'packed': cu_seqlens_k: is on CUDA device 0, and the engine is on the CPU"},
      {other_heads, "forward of 'packed': o: has shape [93, 3, 8], expected [93, 4, 8] = [total_q, heads, head_dim_v]"},
  };
  luattn_engine *engine = engine_on_cpu(0);
  luattn_error err;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    packed *p = open_packed(SPEC("0", "score"));
    cases[i].spoil(p);
    const float before = p->o[0][0][0];
    api_refused(luattn_forward(engine, p->spec, &p->args, NULL, &err), LUATTN_INVALID, &err, cases[i].words);
    assert_memory_equal(&p->o[0][0][0], &before, sizeof before); /* nothing was written */
    api_ok(luattn_engine_forget(engine, p->spec, &err), &err);
    close_packed(p);
  }
  luattn_engine_close(engine);
}

/* Forward does not read what backward alone uses, so that it may be anything. */
static void forward_reads_no_gradients(void **state) {
  (void)state;
  enum { MOST_Q = 70, MOST_K = 71 };
  static float weights[SEQUENCES][HEADS][MOST_Q][MOST_K];
  luattn_engine *engine = engine_on_cpu(0);
  luattn_error err;
  packed *p = open_packed(SPEC("0", "score"));
  int64_t six[] = {1, 1, 1, 5, 1, 4}, shape[] = {SEQUENCES, HEADS, MOST_Q, MOST_K};
  const DLTensor deep = {.data = p->q, .device = {kDLCPU, 0}, .ndim = 6, .dtype = {kDLFloat, 32, 1}, .shape = six},
                 none = {.data = p->q, .device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLFloat, 32, 1}},
                 to = {.data = weights, .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 32, 1}, .shape = shape};
  for (int i = 0; i < 2; i++) {
    const DLTensor *bad = i == 0 ? &deep : &none;
    p->args.dout = p->args.dlse = p->args.dq = p->args.dk = p->args.dv = p->args.scalar_grads = bad;
    p->inputs[0].grad = bad;
    api_ok(luattn_forward(engine, p->spec, &p->args, NULL, &err), &err);
    for (int b = 0; b < SEQUENCES; b++) compare_sequence(p, b);
    luattn_args args = p->args; /* weights are neither o nor lse nor saved */
    args.o = args.lse = args.saved = bad;
    api_ok(luattn_weights(engine, p->spec, &args, &to, NULL, &err), &err);
  }
  luattn_engine_close(engine);
  close_packed(p);
}

/* ---- rows of no sequence ---- */

#define ROWS_SPEC                                                                                         \
  "return attention { name = 'rows', inputs = { bias = { axes = {'q'}, dtype = 'f64', grad = true } },\n" \
  "  score_mod = function(score, b, h, q_idx, kv_idx) return score * (1 + bias[q_idx]) end,\n"            \
  "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx end }"

enum { R_SEQUENCES = 3, R_TOTAL = 20, R_HEADS = 2, R_DIM = 4, R_ALL = R_TOTAL * R_HEADS * R_DIM };
typedef struct rows_call {
  double q[R_ALL], k[R_ALL], v[R_ALL], o[R_ALL], dout[R_ALL], dq[R_ALL], dk[R_ALL], dv[R_ALL], lse[R_HEADS * R_TOTAL],
      bias[R_TOTAL], dbias[R_TOTAL];
} rows_call;

/* Both passes, over `total` rows. */
static void run_rows(luattn_engine *engine, const luattn_spec *spec, rows_call *c, int64_t total, const int32_t *cu,
                     const int32_t *used) {
  int64_t shape[] = {total, R_HEADS, R_DIM}, lse_shape[] = {R_HEADS, total}, bias_shape[] = {total},
          cu_shape[] = {R_SEQUENCES + 1}, used_shape[] = {R_SEQUENCES}, lse_strides[] = {R_TOTAL, 1};
  const DLDataType f64 = {kDLFloat, 64, 1}, i32 = {kDLInt, 32, 1};
  const DLDevice cpu = {kDLCPU, 0};
  double *const data[] = {c->q, c->k, c->v, c->o, c->dout, c->dq, c->dk, c->dv};
  DLTensor t[8];
  for (int i = 0; i < 8; i++)
    t[i] = (DLTensor){.data = data[i], .device = cpu, .ndim = 3, .dtype = f64, .shape = shape};
  const DLTensor
      lse = {.data = c->lse, .device = cpu, .ndim = 2, .dtype = f64, .shape = lse_shape, .strides = lse_strides},
      bias = {.data = c->bias, .device = cpu, .ndim = 1, .dtype = f64, .shape = bias_shape},
      dbias = {.data = c->dbias, .device = cpu, .ndim = 1, .dtype = f64, .shape = bias_shape},
      offsets = {.data = (void *)(uintptr_t)cu, .device = cpu, .ndim = 1, .dtype = i32, .shape = cu_shape},
      lengths = {.data = (void *)(uintptr_t)used, .device = cpu, .ndim = 1, .dtype = i32, .shape = used_shape};
  const luattn_batch_options o = {.struct_size = sizeof o,
                                  .cu_seqlens_q = &offsets,
                                  .cu_seqlens_k = &offsets,
                                  .seqused_q = used != NULL ? &lengths : NULL,
                                  .seqused_k = used != NULL ? &lengths : NULL};
  const luattn_input in = {"bias", &bias, &dbias};
  luattn_batch *batch;
  luattn_error err;
  api_ok(luattn_batch_open(&o, &batch, &err), &err);
  luattn_args a = {.struct_size = sizeof a,
                   .q = &t[0],
                   .k = &t[1],
                   .v = &t[2],
                   .o = &t[3],
                   .lse = &lse,
                   .dout = &t[4],
                   .dq = &t[5],
                   .dk = &t[6],
                   .dv = &t[7],
                   .inputs = &in,
                   .num_inputs = 1,
                   .batch = batch};
  api_ok(luattn_forward(engine, spec, &a, NULL, &err), &err);
  api_ok(luattn_backward(engine, spec, &a, NULL, &err), &err);
  luattn_batch_close(batch);
}

static void draw_rows(rows_call *c) {
  double *const all = c->q;
  for (size_t i = 0; i < sizeof *c / sizeof *all; i++) all[i] = sin(0.37 * (double)i);
}

/* Rows behind the last sequence and behind the used rows get o 0, lse -inf and gradients 0, and what is there reaches
 * nothing. */
static void rows_of_no_sequence(void **state) {
  (void)state;
  static const int32_t cu[] = {0, 4, 4, 13}, used[] = {3, 0, 7};
  luattn_engine *engine = engine_on_cpu(0);
  luattn_spec *spec;
  luattn_error err;
  static rows_call with, plain;
  api_ok(luattn_spec_load_text("rows.lua", ROWS_SPEC, strlen(ROWS_SPEC), NULL, &spec, &err), &err);
  for (int part = 0; part < 2; part++) {
    draw_rows(&with), draw_rows(&plain);
    double *const inputs[] = {with.q, with.k, with.v, with.dout, with.o, with.dq, with.dk, with.dv};
    bool none[R_TOTAL];
    for (int i = 0; i < R_TOTAL; i++) none[i] = i >= 13 || (part == 1 && (i == 3 || i >= 11));
    for (int i = 0; i < R_ALL; i++)
      for (int n = 0; n < 8; n++)
        if (none[i / (R_HEADS * R_DIM)]) inputs[n][i] = NAN;
    for (int i = 0; i < R_TOTAL; i++)
      if (none[i]) with.bias[i] = with.dbias[i] = with.lse[i] = with.lse[R_TOTAL + i] = NAN;
    run_rows(engine, spec, &with, R_TOTAL, cu, part ? used : NULL);
    run_rows(engine, spec, &plain, 13, cu, part ? used : NULL);
    double *const got[] = {with.o, with.dq, with.dk, with.dv}, *const want[] = {plain.o, plain.dq, plain.dk, plain.dv};
    for (int i = 0; i < R_ALL; i++)
      for (int n = 0; n < 4; n++) assert_true(none[i / (R_HEADS * R_DIM)] ? got[n][i] == 0 : got[n][i] == want[n][i]);
    for (int i = 0; i < R_TOTAL; i++) {
      for (int h = 0; h < R_HEADS; h++)
        assert_true(none[i] ? with.lse[h * R_TOTAL + i] == -INFINITY
                            : with.lse[h * R_TOTAL + i] == plain.lse[h * R_TOTAL + i]);
      assert_true(none[i] ? with.dbias[i] == 0 : with.dbias[i] == plain.dbias[i]);
    }
  }
  luattn_engine_close(engine);
  luattn_spec_free(spec);
}

/* Saved numbers of such rows are 0; there may be no rows of sequences at all. */
static void saved_numbers_of_no_sequence(void **state) {
  (void)state;
  luattn_engine *engine = engine_on_cpu(0);
  luattn_error err;
  packed *p = open_packed(SPEC("0", "score"));
  for (int some = 1; some >= 0; some--) {
    const int end = some ? TOTAL_Q - 3 : 0;
    for (int b = 0; b <= SEQUENCES; b++)
      p->cu_q[b] = p->cu_q[b] < end ? p->cu_q[b] : end, p->cu_k[b] = some ? p->cu_k[b] : 0;
    memset(p->o, 0xff, sizeof p->o), memset(p->saved, 0xff, sizeof p->saved);
    open_batch(p);
    api_ok(luattn_forward(engine, p->spec, &p->args, NULL, &err), &err);
    for (int i = end; i < TOTAL_Q; i++)
      for (int h = 0; h < HEADS; h++) {
        for (int d = 0; d < DIM_V; d++) assert_true(p->o[i][h][d] == 0);
        for (int n = 0; n < p->shape[6][0]; n++) assert_true((&p->saved[0][0][0])[(n * HEADS + h) * TOTAL_Q + i] == 0);
      }
  }
  luattn_engine_close(engine);
  close_packed(p);
}

static void what_has_none(void **state) {
  (void)state;
  luattn_engine *relaxed = engine_on_cpu(1);
  luattn_error err;
  packed *p = open_packed(SPEC("0", "score"));
  api_refused(luattn_forward(relaxed, p->spec, &p->args, NULL, &err), LUATTN_UNSUPPORTED, &err,
              "forward: batch: has cu_seqlens_q, and cpu_relaxed is set, which takes no packed sequences yet; "
              "leave it 0");
  luattn_engine_close(relaxed);
  close_packed(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_as_a_call_of_its_own),
                                     cmocka_unit_test(offsets_of_each),
                                     cmocka_unit_test(b_is_its_number),
                                     cmocka_unit_test(has_an_lse),
                                     cmocka_unit_test(wrong_offsets),
                                     cmocka_unit_test(forward_reads_no_gradients),
                                     cmocka_unit_test(rows_of_no_sequence),
                                     cmocka_unit_test(saved_numbers_of_no_sequence),
                                     cmocka_unit_test(what_has_none)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
