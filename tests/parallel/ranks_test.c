/* ranks_test.c: luattn_parallel_forward and luattn_parallel_backward of several ranks, which are threads, beside one call on
 * the CPU, in float64; and what they refuse. */
#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/merge.h"
#include "luattn/parallel.h"
#include "tests/support/worse.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, DIM = 8, ROWS = 128, MOST_RANKS = 5, MOST_CHUNKS = 10, MOST_MOVES = 4096 };

/* ---- a transport of threads ---- */

typedef struct move {
  int peer;
  char *data;
  size_t bytes;
} move;
typedef struct host {
  pthread_barrier_t all;
  int ranks;
  move sent[MOST_RANKS][MOST_MOVES], received[MOST_RANKS][MOST_MOVES];
  int num_sent[MOST_RANKS], num_received[MOST_RANKS];
  double *summed[MOST_RANKS];
} host;
typedef struct host_rank {
  host *of;
  int rank;
} host_rank;

static luattn_status host_send(void *self, int to, const void *data, size_t bytes, void *stream, luattn_error *err) {
  host_rank *r = self;
  (void)stream, (void)err;
  r->of->sent[r->rank][r->of->num_sent[r->rank]++] = (move){to, (char *)(uintptr_t)data, bytes};
  return LUATTN_OK;
}
static luattn_status host_receive(void *self, int from, void *data, size_t bytes, void *stream, luattn_error *err) {
  host_rank *r = self;
  (void)stream, (void)err;
  r->of->received[r->rank][r->of->num_received[r->rank]++] = (move){from, data, bytes};
  return LUATTN_OK;
}
static luattn_status host_finish(void *self, void *stream, luattn_error *err) {
  host_rank *r = self;
  host *of = r->of;
  int next[MOST_RANKS] = {0};
  luattn_status status = LUATTN_OK;
  (void)stream;
  pthread_barrier_wait(&of->all);
  for (int i = 0; i < of->num_received[r->rank]; ++i) {
    const move *to = &of->received[r->rank][i];
    int *n = &next[to->peer];
    while (*n < of->num_sent[to->peer] && of->sent[to->peer][*n].peer != r->rank) ++*n;
    const move *from = &of->sent[to->peer][*n];
    if (*n == of->num_sent[to->peer] || from->bytes != to->bytes) {
      snprintf(err->message, sizeof err->message, "host: rank %d sent other bytes", to->peer);
      status = LUATTN_INVALID;
      break;
    }
    memcpy(to->data, from->data, to->bytes);
    ++*n;
  }
  pthread_barrier_wait(&of->all);
  of->num_sent[r->rank] = of->num_received[r->rank] = 0;
  pthread_barrier_wait(&of->all);
  return status;
}
static luattn_status host_add(void *self, void *to, const void *from, size_t count, luattn_dtype type, void *stream,
                              luattn_error *err) {
  (void)self, (void)stream, (void)err;
  assert_int_equal(type, LUATTN_F64);
  for (size_t i = 0; i < count; ++i) ((double *)to)[i] += ((const double *)from)[i];
  return LUATTN_OK;
}
static luattn_status host_sum(void *self, void *data, size_t count, luattn_dtype type, void *stream,
                              luattn_error *err) {
  host_rank *r = self;
  double sum[64] = {0};
  (void)stream, (void)err;
  assert_true(type == LUATTN_F64 && count <= 64);
  r->of->summed[r->rank] = data;
  pthread_barrier_wait(&r->of->all);
  for (int i = 0; i < r->of->ranks; ++i)
    for (size_t j = 0; j < count; ++j) sum[j] += r->of->summed[i][j];
  pthread_barrier_wait(&r->of->all);
  memcpy(data, sum, count * sizeof *sum);
  return LUATTN_OK;
}
static luattn_transport transport_of(host_rank *r) {
  return (luattn_transport){.struct_size = sizeof(luattn_transport),
                            .self = r,
                            .rank = r->rank,
                            .ranks = r->of->ranks,
                            .send = host_send,
                            .receive = host_receive,
                            .finish = host_finish,
                            .add = host_add,
                            .sum = host_sum};
}

/* ---- problems ---- */

enum { Q, K, V, DOUT, O, DQ, DK, DV, TENSORS };
typedef struct problem {
  const luattn_spec *spec;
  luattn_engine *engine;
  host of;
  int chunks;
  const int *rank_of;
  unsigned char needs[MOST_CHUNKS * MOST_CHUNKS];
  bool by_row; /* tensors lie as [batch, rows, heads, dim] */
  luattn_schedule schedule;
  luattn_spec *parts; /* of a spec whose rows merge by their state */
  bool fails;         /* backward of rank 1, once keys have travelled */
  double *whole[TENSORS], lse[BATCH * HEADS * MOST_CHUNKS * ROWS], slope[HEADS], dslope[2 * HEADS], dcap;
} problem;

static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = 5, .offset = 3};

static int heads_of(int which) { return which == K || which == V || which == DK || which == DV ? HEADS_KV : HEADS; }

static DLTensor tensor_of(int which, double *data, int rows, bool by_row, int64_t shape[4], int64_t stride[4]) {
  const int64_t heads = heads_of(which), of[4] = {BATCH, heads, rows, DIM},
                by_head[4] = {heads * rows * DIM, rows * DIM, DIM, 1},
                row[4] = {rows * heads * DIM, DIM, heads * DIM, 1};
  memcpy(shape, of, sizeof of), memcpy(stride, by_row ? row : by_head, sizeof of);
  return (DLTensor){
      .data = data, .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 64, 1}, .shape = shape, .strides = stride};
}

static size_t place(int which, int rows, bool by_row, int b, int h, int row, int d) {
  const size_t heads = (size_t)heads_of(which), at = (size_t)b * heads * (size_t)rows;
  const size_t within = by_row ? (size_t)row * heads + (size_t)h : (size_t)h * (size_t)rows + (size_t)row;
  return (at + within) * DIM + (size_t)d;
}

/* The arguments of a call over `rows` rows; lse is [batch, heads, rows]. */
typedef struct call {
  DLTensor t[TENSORS], lse, slope, dslope[2], dscalars;
  int64_t shape[TENSORS][4], stride[TENSORS][4], lse_shape[3], heads, one;
  luattn_input input[2];
  luattn_args args;
} call;

static void fill_call(call *c, double *const data[TENSORS], double *lse, double *slope, double *dslope, double *dcap,
                      int rows, bool by_row) {
  for (int i = 0; i < TENSORS; ++i) c->t[i] = tensor_of(i, data[i], rows, by_row, c->shape[i], c->stride[i]);
  const DLTensor line = {.device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 64, 1}};
  c->lse_shape[0] = BATCH, c->lse_shape[1] = HEADS, c->lse_shape[2] = rows, c->heads = HEADS, c->one = 1;
  c->lse = line, c->lse.ndim = 3, c->lse.data = lse, c->lse.shape = c->lse_shape;
  c->slope = line, c->slope.data = slope, c->slope.shape = &c->heads;
  for (int i = 0; i < 2; ++i) c->dslope[i] = c->slope, c->dslope[i].data = dslope + i * HEADS;
  c->dscalars = line, c->dscalars.data = dcap, c->dscalars.shape = &c->one;
  c->input[0] = (luattn_input){.name = "slope", .tensor = &c->slope, .grad = &c->dslope[0]};
  c->input[1] = (luattn_input){.name = "sink", .tensor = &c->slope, .grad = &c->dslope[1]};
  c->args = (luattn_args){.struct_size = sizeof(luattn_args),
                          .q = &c->t[Q],
                          .k = &c->t[K],
                          .v = &c->t[V],
                          .o = &c->t[O],
                          .lse = &c->lse,
                          .dout = &c->t[DOUT],
                          .dq = &c->t[DQ],
                          .dk = &c->t[DK],
                          .dv = &c->t[DV],
                          .scalar_grads = &c->dscalars,
                          .inputs = c->input,
                          .num_inputs = 2,
                          .num_threads = 1,
                          .random = &numbers};
}

/* %s: the online function, and another term of scores. */
static const char text[] =
    "return attention { name = 'ranks', online_func = %s, scalars = { cap = 8.0 },\n"
    "  inputs = { slope = { axes = {'h'}, dtype = 'f64', grad = true }, sink = { axes = {'h'}, dtype = 'f64', grad = "
    "true } },\n"
    "  score_mod = function(s, b, h, q, k)\n"
    "    return cap * tanh(s / cap) + 0.01 * slope[h] * (k - q) + 0.1 * b%s end,\n"
    "  block_mask = function(b, h, q, k) return k <= q and q - k < 300 end }";

typedef struct kind {
  const char *online, *term;
} kind;

static void open_problem(problem *p, kind of, int ranks, int chunks, const int *rank_of, bool by_row, bool needs) {
  luattn_error err;
  luattn_spec *spec;
  char made[1024];
  memset(p, 0, sizeof *p);
  p->of.ranks = ranks, p->chunks = chunks, p->rank_of = rank_of, p->by_row = by_row;
  assert_int_equal(pthread_barrier_init(&p->of.all, NULL, (unsigned)ranks), 0);
  snprintf(made, sizeof made, text, of.online, of.term);
  if (luattn_spec_load_text("ranks", made, strlen(made), NULL, &spec, &err) != LUATTN_OK) fail_msg("%s", err.message);
  p->spec = spec;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  if (luattn_engine_open(&options, &p->engine, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int i = 0; i < TENSORS; ++i) {
    const size_t count = (size_t)BATCH * (size_t)heads_of(i) * (size_t)chunks * ROWS * DIM;
    p->whole[i] = calloc(count, sizeof(double));
    for (size_t j = 0; j < count; ++j) p->whole[i][j] = sin((double)(j * 2654435761u % 100003u) + i);
  }
  for (int h = 0; h < HEADS; ++h) p->slope[h] = 0.3 * h - 0.5;
  for (int i = 0; i < chunks * chunks; ++i)
    p->needs[i] = !needs || (i % chunks <= i / chunks && (i / chunks - i % chunks - 1) * ROWS < 300);
  call whole;
  fill_call(&whole, p->whole, p->lse, p->slope, p->dslope, &p->dcap, chunks * ROWS, by_row);
  if (luattn_cpu_forward(spec, &whole.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  if (luattn_cpu_backward(spec, &whole.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

static void close_problem(problem *p) {
  for (int i = 0; i < TENSORS; ++i) free(p->whole[i]);
  luattn_engine_close(p->engine);
  luattn_spec_free(p->parts);
  luattn_spec_free((luattn_spec *)(uintptr_t)p->spec);
  pthread_barrier_destroy(&p->of.all);
}

/* ---- a rank ---- */

typedef struct worker {
  problem *p;
  int rank;
  double worst;
  bool has_nan, spoilt; /* dk and what is summed has NaN; dq has */
  luattn_error err;
  luattn_status status;
} worker;

/* Copies rows between the whole's tensor and the rank's; or finds how far they are apart. */
static double between(const problem *p, int which, int rank, double *own, bool fetch) {
  const int rows = p->chunks / p->of.ranks * ROWS;
  double worst = 0;
  for (int c = 0, n = 0; c < p->chunks; ++c) {
    if (p->rank_of[c] != rank) continue;
    for (int i = 0; i < BATCH * heads_of(which) * ROWS * DIM; ++i) {
      const int d = i % DIM, r = i / DIM % ROWS, h = i / DIM / ROWS % heads_of(which),
                b = i / DIM / ROWS / heads_of(which);
      double *x = &own[place(which, rows, p->by_row, b, h, n * ROWS + r, d)];
      const double y = p->whole[which][place(which, p->chunks * ROWS, p->by_row, b, h, c * ROWS + r, d)];
      if (fetch) *x = y;
      worst = worse(worst, fabs(*x - y));
    }
    ++n;
  }
  return worst;
}

static luattn_status run_pass(worker *w, luattn_pass pass, const luattn_args *args, const luattn_transport *transport) {
  const problem *p = w->p;
  luattn_parallel_call given = {.struct_size = sizeof given,
                                .chunks = p->chunks,
                                .chunk_rows = ROWS,
                                .rank_of = p->rank_of,
                                .needs = p->needs,
                                .transport = transport,
                                .schedule = p->schedule,
                                .parts = p->parts};
  size_t size;
  luattn_status status = luattn_parallel_workspace_size(p->engine, p->spec, pass, args, &given, &size, &w->err);
  if (status != LUATTN_OK) return status;
  given.workspace = aligned_alloc(256, (size + 255) / 256 * 256), given.workspace_size = size;
  memset(given.workspace, 0xff, size); /* NaN: rows that no chunk fills are not read */
  status = (pass == LUATTN_FORWARD ? luattn_parallel_forward : luattn_parallel_backward)(p->engine, p->spec, args,
                                                                                         &given, NULL, &w->err);
  free(given.workspace);
  return status;
}

static void *run_rank(void *user) {
  worker *w = user;
  problem *p = w->p;
  const int rows = p->chunks / p->of.ranks * ROWS;
  double *own[TENSORS], *lse = calloc((size_t)BATCH * HEADS * (size_t)rows, sizeof *lse), dslope[2 * HEADS], dcap;
  host_rank of = {&p->of, w->rank};
  const luattn_transport transport = transport_of(&of);
  call c;
  for (int i = 0; i < TENSORS; ++i) {
    own[i] = calloc((size_t)BATCH * (size_t)heads_of(i) * (size_t)rows * DIM, sizeof(double));
    if (i <= DOUT) between(p, i, w->rank, own[i], true);
  }
  fill_call(&c, own, lse, p->slope, dslope, &dcap, rows, p->by_row);
  if (w->rank % 2 == 1) { /* ranks may give inputs in different orders */
    const luattn_input first = c.input[0];
    c.input[0] = c.input[1], c.input[1] = first;
  }
  w->status = run_pass(w, LUATTN_FORWARD, &c.args, &transport);
  if (p->fails && w->rank == 1) c.t[DQ].data = NULL;
  if (w->status == LUATTN_OK) w->status = run_pass(w, LUATTN_BACKWARD, &c.args, &transport);
  for (int i = O; i < TENSORS; ++i) w->worst = worse(w->worst, between(p, i, w->rank, own[i], false));
  for (int i = 0; i < BATCH * HEADS * rows * DIM; ++i) w->spoilt |= isnan(own[DQ][i]);
  for (int i = 0; i < BATCH * HEADS_KV * rows * DIM; ++i) w->has_nan |= isnan(own[DK][i]);
  w->has_nan &= isnan(dcap) && isnan(dslope[0]) && isnan(dslope[HEADS]);
  for (int h = 0; h < 2 * HEADS; ++h) w->worst = worse(w->worst, fabs(dslope[h] - p->dslope[h]));
  w->worst = worse(w->worst, fabs(dcap - p->dcap));
  for (int i = 0; i < TENSORS; ++i) free(own[i]);
  free(lse);
  return NULL;
}

static void run_ranks(problem *p, worker w[MOST_RANKS]) {
  pthread_t thread[MOST_RANKS];
  for (int i = 0; i < p->of.ranks; ++i) {
    w[i] = (worker){.p = p, .rank = i};
    assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &w[i]), 0);
  }
  for (int i = 0; i < p->of.ranks; ++i) pthread_join(thread[i], NULL);
}

static void check_problem(problem *p) {
  worker w[MOST_RANKS];
  run_ranks(p, w);
  for (int i = 0; i < p->of.ranks; ++i) {
    if (w[i].status != LUATTN_OK) fail_msg("rank %d: %s", i, w[i].err.message);
    if (!(w[i].worst < 1e-12))
      fail_msg("%d ranks, rank %d, schedule %d: off by %g", p->of.ranks, i, p->schedule, w[i].worst);
  }
  close_problem(p);
  free(p);
}

static problem *new_problem(kind of, luattn_schedule schedule, int ranks, int chunks, const int *rank_of, bool by_row,
                            bool needs) {
  problem *p = malloc(sizeof *p);
  open_problem(p, of, ranks, chunks, rank_of, by_row, needs);
  p->schedule = schedule;
  return p;
}

static const int one[] = {0, 0}, two[] = {0, 1, 1, 0}, three[] = {2, 0, 1, 1, 2, 0}, five[] = {4, 0, 3, 1, 2},
                 apart_ranks[] = {0, 1};
static const kind by_lse = {"dropout(0.2)", " + sin(k) * sink[h]"},
                  by_state = {"dropout(0.2, attention_sink('sink'))", ""},
                  of_both = {"attention_sink('sink')", " + sin(k) * sink[h]"};

static void ranks_are_one(void **state) {
  (void)state;
  const luattn_schedule gathered = LUATTN_SCHEDULE_GATHERED;
  check_problem(new_problem(by_lse, gathered, 1, 2, one, false, true));
  check_problem(new_problem(by_lse, gathered, 2, 4, two, true, false));
  check_problem(new_problem(by_lse, LUATTN_SCHEDULE_AUTO, 3, 6, three, true, true)); /* gathered, without `copies` */
  check_problem(new_problem(by_lse, gathered, 5, 5, five, false, true)); /* some ranks need no other's keys */
  check_problem(new_problem(of_both, gathered, 2, 2, apart_ranks, false, true));
}

static void stages_are_one(void **state) {
  (void)state;
  const luattn_schedule stages = LUATTN_SCHEDULE_STAGES;
  check_problem(new_problem(by_lse, stages, 1, 2, one, false, true));
  check_problem(new_problem(by_lse, stages, 2, 4, two, true, false)); /* the last stage of five has two ranks' keys */
  check_problem(new_problem(by_lse, stages, 5, 5, five, false, true));
}

static problem *new_by_state(int ranks, int chunks, const int *rank_of, bool by_row) {
  problem *p = new_problem(by_state, LUATTN_SCHEDULE_STAGES, ranks, chunks, rank_of, by_row, !by_row);
  luattn_error err;
  if (luattn_spec_parts(p->spec, &p->parts, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return p;
}

static void stages_merge_by_state(void **state) {
  (void)state;
  check_problem(new_by_state(2, 4, two, true));
  check_problem(new_by_state(5, 5, five, false));
}

/* No rank waits, and none takes a gradient that lacks a part for a whole one. */
static void one_fails_late(void **state) {
  (void)state;
  for (luattn_schedule s = LUATTN_SCHEDULE_STAGES; s <= LUATTN_SCHEDULE_GATHERED; ++s) {
    problem *p = new_problem(by_lse, s, 2, 2, apart_ranks, false, false);
    worker w[MOST_RANKS];
    p->fails = true;
    run_ranks(p, w);
    assert_int_equal(w[1].status, LUATTN_INVALID);
    if (strstr(w[1].err.message, "dq") == NULL) fail_msg("'%s'", w[1].err.message);
    if (w[0].status != LUATTN_OK) fail_msg("rank 0: %s", w[0].err.message);
    assert_true(w[0].has_nan && !w[0].spoilt);
    close_problem(p);
    free(p);
  }
}

/* ---- refusals, of which no other rank hears ---- */

typedef void changed(call *, luattn_parallel_call *, luattn_transport *);
static void refused(problem *p, changed *change, luattn_status status, bool sizes, const char *message) {
  static double memory[TENSORS][BATCH * HEADS * 2 * ROWS * DIM], lse[BATCH * HEADS * 2 * ROWS], dslope[2 * HEADS], dcap;
  double *data[TENSORS];
  host_rank of = {&p->of, 0};
  luattn_transport transport = transport_of(&of);
  luattn_parallel_call given = {.struct_size = sizeof given,
                                .chunks = p->chunks,
                                .chunk_rows = ROWS,
                                .rank_of = p->rank_of,
                                .transport = &transport};
  luattn_error err = {0};
  call c;
  size_t size;
  for (int i = 0; i < TENSORS; ++i) data[i] = memory[i];
  fill_call(&c, data, lse, p->slope, dslope, &dcap, 2 * ROWS, false);
  change(&c, &given, &transport);
  if (sizes)
    assert_int_equal(luattn_parallel_workspace_size(p->engine, p->spec, LUATTN_FORWARD, &c.args, &given, &size, &err),
                     status);
  if (sizes && strstr(err.message, message) == NULL) fail_msg("'%s' lacks '%s'", err.message, message);
  assert_int_equal(luattn_parallel_forward(p->engine, p->spec, &c.args, &given, NULL, &err), status);
  if (strstr(err.message, message) == NULL) fail_msg("'%s' lacks '%s'", err.message, message);
}
static void refuses(problem *p, changed *change, luattn_status status, const char *message) {
  refused(p, change, status, true, message);
}
static void refuses_to_run(problem *p, changed *change, const char *message) {
  refused(p, change, LUATTN_INVALID, false, message);
}
static void no_function(call *c, luattn_parallel_call *g, luattn_transport *t) { (void)c, (void)g, t->add = NULL; }
static void no_rank(call *c, luattn_parallel_call *g, luattn_transport *t) { (void)c, (void)g, t->rank = 2; }
static void other_rows(call *c, luattn_parallel_call *g, luattn_transport *t) { (void)c, (void)t, g->chunk_rows = 100; }
static void odd_chunks(call *c, luattn_parallel_call *g, luattn_transport *t) { (void)c, (void)t, g->chunks = 3; }
static void unequal(call *c, luattn_parallel_call *g, luattn_transport *t) {
  static const int ranks[] = {0, 0, 0, 1};
  (void)c, (void)t, g->rank_of = ranks;
}
static void short_keys(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)g, (void)t, c->shape[K][2] = ROWS;
}
static void apart(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)g, (void)t, c->stride[K][2] = 2 * DIM, c->stride[K][1] = 3 * DIM;
}
static void no_keys(call *c, luattn_parallel_call *g, luattn_transport *t) { (void)g, (void)t, c->args.k = NULL; }
static void a_grid(call *c, luattn_parallel_call *g, luattn_transport *t) { (void)g, (void)t, c->t[Q].ndim = 5; }
static void other_type(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)g, (void)t, c->t[V].dtype.bits = 32;
}
static void part_of_bytes(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)g, (void)t;
  for (int i = Q; i <= V; ++i) c->t[i].dtype.bits = 4;
}
static void long_chunks(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)t, g->chunk_rows = 1 << 30;
  for (int i = Q; i <= V; ++i) c->shape[i][2] = (int64_t)2 << 30;
}
static void no_size(call *c, luattn_parallel_call *g, luattn_transport *t) { (void)c, (void)g, t->struct_size = 0; }
static void later_member(call *c, luattn_parallel_call *g, luattn_transport *t) {
  static struct {
    luattn_transport known;
    void *unknown;
  } later;
  (void)c, later.known = *t, later.known.struct_size = sizeof later, later.unknown = &later;
  g->transport = &later.known;
}
static void unaligned(call *c, luattn_parallel_call *g, luattn_transport *t) {
  static double memory[1];
  (void)c, (void)t, g->workspace = (char *)memory + 1, g->workspace_size = sizeof memory;
}
static void a_batch(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)g, (void)t, c->args.batch = (const luattn_batch *)c;
}

static void other_schedule(call *c, luattn_parallel_call *g, luattn_transport *t) { (void)c, (void)t, g->schedule = 3; }
static void whole_scores(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)t, g->schedule = LUATTN_SCHEDULE_STAGES, c->args.large_scores = 1;
}
static void no_parts(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)c, (void)t, g->schedule = LUATTN_SCHEDULE_STAGES;
}
static luattn_spec *foreign_parts;
static void other_parts(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)c, (void)t, g->schedule = LUATTN_SCHEDULE_STAGES, g->parts = foreign_parts;
}
static void a_stream(call *c, luattn_parallel_call *g, luattn_transport *t) {
  (void)t, g->schedule = LUATTN_SCHEDULE_GATHERED, g->copies = c;
}

/* Of a parameter whose gradient has terms of scores and of rows. */
static void refuse_backward(void) {
  static double memory[TENSORS][BATCH * HEADS * 2 * ROWS * DIM], lse[BATCH * HEADS * 2 * ROWS], dslope[2 * HEADS], dcap;
  problem *p = new_problem(of_both, LUATTN_SCHEDULE_STAGES, 2, 4, two, false, false);
  double *data[TENSORS];
  host_rank of = {&p->of, 0};
  luattn_transport transport = transport_of(&of);
  const luattn_parallel_call given = {.struct_size = sizeof given,
                                      .chunks = 4,
                                      .chunk_rows = ROWS,
                                      .rank_of = two,
                                      .transport = &transport,
                                      .schedule = LUATTN_SCHEDULE_STAGES};
  luattn_error err;
  call c;
  for (int i = 0; i < TENSORS; ++i) data[i] = memory[i];
  fill_call(&c, data, lse, p->slope, dslope, &dcap, 2 * ROWS, false);
  assert_int_equal(luattn_parallel_backward(p->engine, p->spec, &c.args, &given, NULL, &err), LUATTN_UNSUPPORTED);
  if (strstr(err.message, "a gradient of its parameters has terms of scores and of rows") == NULL)
    fail_msg("'%s'", err.message);
  close_problem(p);
  free(p);
}

static void what_stages_refuse(void **state) {
  (void)state;
  luattn_error err;
  problem *p = new_problem(by_lse, LUATTN_SCHEDULE_STAGES, 2, 4, two, false, false),
          *other = new_by_state(2, 4, two, false);
  foreign_parts = other->parts;
  refuses(p, other_schedule, LUATTN_INVALID, "schedule: is 3, expected a luattn_schedule, 0 to 2");
  refuses(p, whole_scores, LUATTN_UNSUPPORTED,
          "of 'ranks' large_scores saves numbers of whole rows; give LUATTN_SCHEDULE_");
  refuses(p, other_parts, LUATTN_INVALID, "parts: is made of another spec than 'ranks'");
  refuses(other, no_parts, LUATTN_UNSUPPORTED, "of 'ranks' parts of its rows do not merge by lse: give `parts`");
  refuse_backward();
  refuses_to_run(p, a_stream, "copies: is not NULL, and the CPU has no streams");
  assert_int_equal(luattn_engine_forget(other->engine, other->parts, &err), LUATTN_OK);
  close_problem(p), close_problem(other);
  free(p), free(other);
}

static void what_is_refused(void **state) {
  (void)state;
  static const int ranks[] = {0, 1, 1, 0};
  problem *p = malloc(sizeof *p);
  open_problem(p, by_lse, 2, 4, ranks, false, false);
  refuses(p, no_function, LUATTN_INVALID, "transport: is missing, or lacks a function; give all five");
  refuses(p, no_rank, LUATTN_INVALID, "transport: rank is 2 of 2");
  refuses(p, other_rows, LUATTN_INVALID, "chunks: are 4 of 100 rows on 2 ranks, expected a multiple of the ranks");
  refuses(p, odd_chunks, LUATTN_INVALID, "chunks: are 3 of 128 rows on 2 ranks");
  refuses(p, unequal, LUATTN_INVALID, "rank_of: rank 0 has 3 chunks, and each of 2 ranks has 2");
  refuses(p, short_keys, LUATTN_INVALID, "k: has 128 rows, expected the 256 of the rank's chunks");
  refuses(p, no_keys, LUATTN_INVALID, "k: is NULL; give the rank's rows");
  refuses(p, a_grid, LUATTN_INVALID, "q: has 5 axes, expected 4: [batch, heads, rows, dim]");
  refuses(p, other_type, LUATTN_INVALID, "v: has dtype float32, expected q's, float64; convert it");
  refuses(p, part_of_bytes, LUATTN_INVALID, "q: has dtype float4, expected whole bytes; convert it");
  refuses(p, long_chunks, LUATTN_INVALID, "chunks: are 4 of 1073741824 rows, more than the 2147483647 of any sequence");
  refuses(p, no_size, LUATTN_INVALID, "luattn_parallel: luattn_transport: struct_size is 0, expected");
  refuses(p, later_member, LUATTN_INVALID, "luattn_transport: struct_size is");
  refuses(p, apart, LUATTN_INVALID, "k: has strides 4096, 24, 16, 1; expected rows of a head side by side");
  refuses(p, a_batch, LUATTN_UNSUPPORTED, "batch: is given; packed sequences, pages and offsets have no ranks yet");
  refuses_to_run(p, unaligned, "luattn_parallel: workspace: address");
  close_problem(p);
  free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_are_one),         cmocka_unit_test(stages_are_one),
                                     cmocka_unit_test(stages_merge_by_state), cmocka_unit_test(one_fails_late),
                                     cmocka_unit_test(what_is_refused),       cmocka_unit_test(what_stages_refuse)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
