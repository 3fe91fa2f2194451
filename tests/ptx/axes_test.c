/* axes_test.c: runs the kernels of the sm90 family over positions with two axes on the PTX machine. tests/ptx/axes/spec.cuh
 * has the Sequence, its walks and its boxes, and a mask of keys near a query on both axes; templates/ are as they are.
 * Extents are no multiples of boxes, those of queries and keys differ, and some queries, and a whole tile of them, keep
 * nothing. Results are compared with sums in double over the rounded inputs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "abi/params.h"
#include "abi/workspace.h"
#include "tests/ptx/hand_kernels.h"

enum { BATCH = 2, HEADS = 2, HEADS_KV = 1, D = 64, SHARED = 227 << 10, BLOCKS = 4 };
enum { SHIFT = 150 }; /* of backward's scores: tests/ptx/axes/spec.cuh */
enum { Q_Y = 21, Q_X = 19, K_Y = 9, K_X = 21, QUERIES = Q_Y * Q_X, KEYS = K_Y * K_X };

/* ---- kernels ---- */

/* One set of kernels: an entry of templates/, and options beside those of all. */
typedef struct variant {
  const char *entry;
  int tile_m, tile_n, keys, threads; /* keys: of a tile of the walk over queries */
  const char *options[3];
} variant;

static void *module_of(const variant *v, int reach_y, int reach_x) {
  hand_source s;
  hand_open_source(&s, v->entry);
  char *line = hand_read(&s, TEMPLATES "/example/spec.cuh"), *name = strstr(line, "struct Spec :");
  assert_non_null(name);
  line = arena_printf(s.a, "%.*sstruct LineSpec :%s", (int)(name - line), line, name + strlen("struct Spec :"));
  hand_add_header(&s, "config.cuh", hand_read(&s, TEMPLATES "/example/config.cuh"));
  hand_add_header(&s, "line_spec.cuh", line);
  hand_add_header(&s, "spec.cuh", hand_read(&s, AXES "/spec.cuh"));
  hand_add_option(&s, "-DLUATTN_NO_STATS"), hand_add_option(&s, "-DLUATTN_NO_MODS");
  hand_define(&s, "EXAMPLE_HEAD_DIM", D), hand_define(&s, "EXAMPLE_TILE_M", v->tile_m);
  hand_define(&s, "EXAMPLE_TILE_N", v->tile_n), hand_define(&s, "EXAMPLE_THREADS", v->threads);
  hand_define(&s, "KEYS", v->keys), hand_define(&s, "SHIFT", SHIFT);
  hand_define(&s, "Q_Y", Q_Y), hand_define(&s, "Q_X", Q_X), hand_define(&s, "K_Y", K_Y), hand_define(&s, "K_X", K_X);
  hand_define(&s, "REACH_Y", reach_y), hand_define(&s, "REACH_X", reach_x);
  for (int i = 0; i < 3 && v->options[i] != NULL; i++) hand_add_option(&s, v->options[i]);
  return hand_load(&s);
}

/* ---- tensors: [batch][heads][y][x][D] ---- */

typedef struct side {
  int heads, y, x;
} side;
static const side of_q = {HEADS, Q_Y, Q_X}, of_k = {HEADS_KV, K_Y, K_X};
static size_t numbers(side s) { return (size_t)BATCH * (size_t)s.heads * (size_t)(s.y * s.x) * D; }
static size_t row_of(side s, int b, int h, int at) {
  return ((size_t)(b * s.heads + h) * (size_t)(s.y * s.x) + (size_t)at) * D;
}

static uint16_t *random_tensor(side s) {
  uint16_t *x = malloc(numbers(s) * 2);
  for (size_t i = 0; i < numbers(s); i++) x[i] = hand_to_bf16((float)rand() / (float)RAND_MAX * 2 - 1);
  return x;
}
static LuattnTensor tensor(side s, void *data) {
  return (LuattnTensor){data, (long long)s.heads * s.y * s.x * D, (long long)s.y * s.x * D, D};
}
/* Boxes of `rows` positions, of which the grid's boxes have `across` beside each other. */
static LuattnTensorMap map_of(side s, void *data, int rows, int across) {
  const unsigned long long x = (unsigned long long)s.x, y = (unsigned long long)s.y,
                           heads = (unsigned long long)s.heads, row = D * 2;
  return hand_encode(&(hand_map){.data = data,
                                 .axes = 5,
                                 .size = {D, x, y, heads, BATCH},
                                 .stride = {row, x * row, x * y * row, x * y * heads * row},
                                 .box = {64, (unsigned)across, (unsigned)(rows / across), 1, 1}},
                     true);
}
static int across(int tile) { return tile == 64 ? 8 : 16; }
static int slots(side s, int tile) {
  const int x = across(tile), y = tile / x;
  return (s.x + x - 1) / x * ((s.y + y - 1) / y) * tile;
}

/* ---- the problem, and its result in double ---- */

typedef struct problem {
  int reach_y, reach_x;
  uint16_t *q, *k, *v, *dout;
  float *lse;
  double *o, *o_size, *dq, *dq_size, *dk, *dk_size, *dv, *dv_size; /* sizes: sums of magnitudes */
} problem;

static bool keeps(const problem *x, int q, int kv) {
  return abs(q / Q_X - kv / K_X) <= x->reach_y && abs(q % Q_X - kv % K_X) <= x->reach_x;
}
static double dot(const uint16_t *a, const uint16_t *b) {
  double sum = 0;
  for (int d = 0; d < D; d++) sum += (double)hand_of_bf16(a[d]) * hand_of_bf16(b[d]);
  return sum;
}
static void add(double *to, double *size, const uint16_t *from, double factor, double size_factor) {
  for (int d = 0; d < D; d++)
    to[d] += factor * hand_of_bf16(from[d]), size[d] += size_factor * fabs(hand_of_bf16(from[d]));
}

static void compute_row(problem *x, int b, int h, int q) {
  const double scale = 0.125;
  const size_t at = row_of(of_q, b, h, q);
  double p[KEYS], dp[KEYS], most = -INFINITY, sum = 0, delta = 0, delta_size = 0;
  for (int kv = 0; kv < KEYS; kv++) {
    p[kv] = keeps(x, q, kv) ? scale * dot(x->q + at, x->k + row_of(of_k, b, 0, kv)) : -INFINITY;
    most = fmax(most, p[kv]);
  }
  if (most == -INFINITY) {
    x->lse[at / D] = -INFINITY;
    return;
  }
  for (int kv = 0; kv < KEYS; kv++) sum += p[kv] = exp(p[kv] - most);
  x->lse[at / D] = (float)(most + log(sum));
  for (int kv = 0; kv < KEYS; kv++) {
    p[kv] /= sum;
    dp[kv] = dot(x->dout + at, x->v + row_of(of_k, b, 0, kv));
    delta += p[kv] * dp[kv], delta_size += p[kv] * fabs(dp[kv]);
  }
  for (int kv = 0; kv < KEYS; kv++) {
    if (p[kv] == 0) continue;
    const size_t of_kv = row_of(of_k, b, 0, kv);
    const double ds = scale * p[kv] * (dp[kv] - delta), size = scale * p[kv] * (fabs(dp[kv]) + delta_size);
    add(x->o + at, x->o_size + at, x->v + of_kv, p[kv], p[kv]);
    add(x->dv + of_kv, x->dv_size + of_kv, x->dout + at, p[kv], p[kv]);
    add(x->dq + at, x->dq_size + at, x->k + of_kv, ds, size);
    add(x->dk + of_kv, x->dk_size + of_kv, x->q + at, ds, size);
  }
}
static problem make_problem(int reach_y, int reach_x) {
  problem x = {.reach_y = reach_y, .reach_x = reach_x};
  srand(8);
  x.q = random_tensor(of_q), x.k = random_tensor(of_k), x.v = random_tensor(of_k), x.dout = random_tensor(of_q);
  x.lse = malloc(numbers(of_q) / D * sizeof *x.lse);
  double **const of[] = {&x.o, &x.o_size, &x.dq, &x.dq_size, &x.dk, &x.dk_size, &x.dv, &x.dv_size};
  for (int i = 0; i < 8; i++) *of[i] = calloc(numbers(i < 4 ? of_q : of_k), sizeof(double));
  for (int b = 0; b < BATCH; b++)
    for (int h = 0; h < HEADS; h++)
      for (int q = 0; q < QUERIES; q++) compute_row(&x, b, h, q);
  return x;
}
static void free_problem(problem *x) {
  void *const all[] = {x->q,  x->k,       x->v,  x->dout,    x->lse, x->o,      x->o_size,
                       x->dq, x->dq_size, x->dk, x->dk_size, x->dv,  x->dv_size};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* Weights and dS are rounded to 8 bits before they are summed, and so is the result: each term is off by two halves of
 * 2^-8, and those of dS by as much again, as O, of which delta is the product, is rounded too. */
static void compare(const char *what, side s, const void *on_device, const double *want, const double *size) {
  uint16_t *got = malloc(numbers(s) * 2);
  hand_host(got, on_device, numbers(s) * 2);
  for (size_t i = 0; i < numbers(s); i++) {
    const double x = hand_of_bf16(got[i]), most = ldexp(size[i], -7) + 1e-6;
    if (!(fabs(x - want[i]) <= most))
      fail_msg("%s: row %zu, channel %zu is %g and not %g, by more than %g", what, i / D, i % D, x, want[i], most);
  }
  free(got);
}

/* ---- launches ---- */

static LuattnDivisor divisor(unsigned d) {
  unsigned shift = 0;
  while (1u << shift < d) shift++;
  return (LuattnDivisor){d, (unsigned)(((1ull << (31 + shift)) + d - 1) / d), shift};
}
static LuattnParams params_of(const problem *x, const variant *v) {
  LuattnParams p;
  memset(&p, 0, sizeof p);
  const unsigned all = BATCH * HEADS, q_tiles = (unsigned)(slots(of_q, v->tile_m) / v->tile_m);
  p.shape = (LuattnShape){BATCH, HEADS, HEADS_KV, HEADS / HEADS_KV, slots(of_q, v->tile_m), slots(of_k, v->keys)};
  p.schedule.num_splits = 1;
  p.scale = 0.125;
  p.order = (LuattnOrder){.q_tiles = q_tiles,
                          .tiles = q_tiles * all,
                          .group_tiles = divisor(q_tiles * all),
                          .group_heads = {divisor(all), divisor(all)},
                          .heads = divisor(HEADS),
                          .group = divisor(HEADS / HEADS_KV)};
  LuattnTensors *t = &p.tensors;
  t->q = t->src_q = tensor(of_q, hand_device(numbers(of_q) * 2, x->q));
  t->k = t->src_k = tensor(of_k, hand_device(numbers(of_k) * 2, x->k));
  t->v = t->src_v = tensor(of_k, hand_device(numbers(of_k) * 2, x->v));
  t->o = tensor(of_q, hand_device(numbers(of_q) * 2, NULL));
  t->lse = (LuattnTensor){hand_device(numbers(of_q) / D * 4, NULL), HEADS * QUERIES, QUERIES, 1};
  return p;
}
static void release_tensors(const LuattnParams *p) {
  const LuattnTensors *t = &p->tensors;
  void *const all[] = {t->q.data,
                       t->k.data,
                       t->v.data,
                       t->o.data,
                       t->lse.data,
                       t->dout.data,
                       t->dq.data,
                       t->dk.data,
                       t->dv.data,
                       p->scratch.bwd_rows,
                       p->scratch.dq_acc,
                       p->scratch.dq_order,
                       p->scratch.work_counter};
  hand_release_all(all, sizeof all / sizeof all[0]);
}

static void run_forward(int reach_y, int reach_x, const char *cheap, const char *intervals) {
  const variant v = {"entry/fwd_sm90.cu", 128, 128, 128, 384, {cheap, intervals}};
  problem x = make_problem(reach_y, reach_x);
  void *module = module_of(&v, reach_y, reach_x);
  LuattnParams p = params_of(&x, &v);
  const unsigned none = 0;
  p.scratch.work_counter = hand_device(sizeof none, &none);
  LuattnTensorMaps maps = {.q = map_of(of_q, p.tensors.q.data, 64, across(v.tile_m)),
                           .k = map_of(of_k, p.tensors.k.data, v.tile_n, across(v.tile_n)),
                           .v = map_of(of_k, p.tensors.v.data, v.tile_n, across(v.tile_n)),
                           .o = map_of(of_q, p.tensors.o.data, 16, across(v.tile_m))};
  hand_launch(module, "luattn_fwd", (const unsigned[]){BLOCKS, 1, 1}, v.threads, SHARED, &p, &maps);
  compare("o", of_q, p.tensors.o.data, x.o, x.o_size);
  float *lse = malloc(numbers(of_q) / D * sizeof *lse);
  hand_host(lse, p.tensors.lse.data, numbers(of_q) / D * sizeof *lse);
  for (size_t i = 0; i < numbers(of_q) / D; i++)
    if (lse[i] != x.lse[i] && !(fabsf(lse[i] - x.lse[i]) <= 1e-4f))
      fail_msg("lse %zu is %g and not %g", i, (double)lse[i], (double)x.lse[i]);
  free(lse);
  release_tensors(&p);
  hand_unload(module);
  free_problem(&x);
}

static void run_backward(const variant *v, int reach_y, int reach_x) {
  problem x = make_problem(reach_y, reach_x);
  void *module = module_of(v, reach_y, reach_x);
  LuattnParams p = params_of(&x, v);
  LuattnTensors *t = &p.tensors;
  uint16_t *o = malloc(numbers(of_q) * 2);
  for (size_t i = 0; i < numbers(of_q); i++) o[i] = hand_to_bf16((float)x.o[i]);
  hand_release(t->o.data), hand_release(t->lse.data);
  float *lse = malloc(numbers(of_q) / D * sizeof *lse);
  for (size_t i = 0; i < numbers(of_q) / D; i++) lse[i] = x.lse[i] + (float)SHIFT;
  t->o.data = hand_device(numbers(of_q) * 2, o), t->lse.data = hand_device(numbers(of_q) / D * 4, lse);
  free(o), free(lse);
  t->dout = tensor(of_q, hand_device(numbers(of_q) * 2, x.dout));
  t->dq = tensor(of_q, hand_device(numbers(of_q) * 2, NULL));
  t->dk = tensor(of_k, hand_device(numbers(of_k) * 2, NULL));
  t->dv = tensor(of_k, hand_device(numbers(of_k) * 2, NULL));
  const size_t rows = (size_t)(BATCH * HEADS) * (size_t)p.shape.q_len;
  p.scratch.bwd_rows = hand_device(rows * 2 * 4, NULL);
  p.scratch.dq_acc = hand_device(rows * D * 4, NULL);
  p.scratch.dq_order = hand_device((LUATTN_DQ_ORDER_FIRST + rows) * 4, NULL);
  const int of_k_rows = v->tile_n, q_x = across(v->tile_m), k_x = across(v->keys);
  LuattnTensorMaps maps = {.q = map_of(of_q, t->q.data, v->tile_m, q_x),
                           .k = map_of(of_k, t->k.data, of_k_rows, k_x),
                           .v = map_of(of_k, t->v.data, of_k_rows, k_x),
                           .dout = map_of(of_q, t->dout.data, v->tile_m, q_x)};
  const unsigned q_blocks = (unsigned)p.shape.q_len / 64, k_blocks = (unsigned)p.shape.kv_len / 64;
  hand_launch(module, "luattn_prepare", (const unsigned[]){q_blocks, HEADS, BATCH}, 128, 0, &p, NULL);
  hand_launch(module, "luattn_dkdv", (const unsigned[]){BLOCKS, 1, 1}, v->threads, SHARED, &p, &maps);
  const unsigned most_blocks = q_blocks > k_blocks ? q_blocks : k_blocks;
  hand_launch(module, "luattn_finish", (const unsigned[]){most_blocks, HEADS, 3 * BATCH}, 128, 0, &p, NULL);
  compare("dq", of_q, t->dq.data, x.dq, x.dq_size);
  compare("dk", of_k, t->dk.data, x.dk, x.dk_size);
  compare("dv", of_k, t->dv.data, x.dv, x.dv_size);
  release_tensors(&p);
  hand_unload(module);
  free_problem(&x);
}

/* ---- tests ---- */

static void test_forward(void **state) {
  (void)state;
  run_forward(3, 5, "-DCHEAP=true", "-DINTERVALS=0");
  run_forward(3, 5, "-DCHEAP=false", "-DINTERVALS=0");
  run_forward(3, 5, "-DCHEAP=false", "-DINTERVALS=1");
}
/* Tiles inside both grids are whole. */
static void test_forward_whole(void **state) {
  (void)state;
  run_forward(30, 30, "-DCHEAP=true", "-DINTERVALS=0");
}
static void test_backward(void **state) {
  (void)state;
  static const variant added = {"entry/bwd_sm90.cu", 64, 128, 128, 384, {"-DCHEAP=true", "-DINTERVALS=0"}},
                       stored = {"entry/bwd_sm90.cu",
                                 64,
                                 128,
                                 128,
                                 384,
                                 {"-DCHEAP=false", "-DINTERVALS=0", "-DEXAMPLE_DQ_FIRST_STORE=true"}},
                       in_order = {"entry/bwd_sm90.cu",
                                   128,
                                   128,
                                   128,
                                   384,
                                   {"-DCHEAP=true", "-DINTERVALS=1", "-DEXAMPLE_DETERMINISTIC=true"}};
  run_backward(&added, 3, 5);
  run_backward(&stored, 30, 30);
  run_backward(&in_order, 3, 5);
}
static void test_backward_of_pairs(void **state) {
  (void)state;
  static const variant pairs = {"entry/bwd_d256.cu", 64, 64, 128, 512, {"-DCHEAP=true", "-DINTERVALS=0"}};
  run_backward(&pairs, 3, 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward), cmocka_unit_test(test_forward_whole),
                                     cmocka_unit_test(test_backward), cmocka_unit_test(test_backward_of_pairs)};
  return cmocka_run_group_tests(tests, hand_open_driver, NULL);
}
