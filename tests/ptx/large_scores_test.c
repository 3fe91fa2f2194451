/* large_scores_test.c: luattn_target.large_scores, from luattn_forward and luattn_backward to the kernels, which the
 * PTX machine executes, or on the CPU. Rows of equal scores up to 1e9, made by score_mod or by long queries and
 * keys, rows in which one or two keys dominate, rows without keys, and ordinary rows, against a softmax in
 * double precision. Without large_scores the gradients of the large ones must be wrong: the check would see it.
 * Besides random specs, whose scores have random magnitudes and are exact in float32.
 *
 * large_scores_test FAMILY DTYPE [CASE]: simt f32, simt f64, sm80 f16, sm90 bf16, .., cpu f64
 * large_scores_test FAMILY DTYPE random COUNT [SEED]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { HEADS = 2, Q_LEN = 66, KV_LEN = 140, DIM = 64, FIRST_EMPTY = 63, FEW = 64 };

typedef enum data { ORDINARY, NO_KEYS, SIGNS, EQUAL_KEYS, LONG_EQUAL, LONG_ONE, LONG_TWO } data;

/* Scores are scale * q.k + bias + slope * (kv - q), and keys are all 0 (NO_KEYS), -1, 0 and 1 as
 * queries are (SIGNS), one of random numbers, or long; sink: a logit without a value, -INFINITY: none. Rows from
 * FIRST_EMPTY on keep no key, and others `keys` of them, if `keys` is not 0. */
typedef struct case_row {
  const char *name, *text;
  data of;
  double scale, bias, sink;
  int keys;
  bool deterministic, offsets, wrong_without;
  double slope;
  bool causal;
} case_row;

#define MASK "block_mask = function(b, h, q, kv) return q < 63 and kv < 64 end"
#define OWN                                                                                                   \
  "online_func = { name = 'own', online_rowscales = { top = -1e37, sum = 0 }, final_rowscales = { 'lse' },\n" \
  "  online_fwd = function(s, r) local top = max(r.top, reduce_max(s)); local p = exp(s - top)\n"             \
  "    local o = exp(r.top - top); return p, { top = top, sum = r.sum * o + reduce_sum(p) }, o end,\n"        \
  "  online_fwd_epilogue = function(o, r) return o / r.sum, { lse = r.top + log(r.sum) } end }"

static const case_row cases[] = {
    {"ordinary", "return attention { }", ORDINARY, 0, 0, -INFINITY, 0, false, false, false, 0, false},
    {"ordinary sink", "return attention { online_func = attention_sink(0.5), " MASK " }", ORDINARY, 0, 0, 0.5, FEW,
     false, false, false, 0, false},
    {"bias", "return attention { score_mod = function(s) return s + 1e9 end }", EQUAL_KEYS, 0, 1e9, -INFINITY, 0, false,
     false, true, 0, false},
    {"negative bias", "return attention { score_mod = function(s) return s - 1e9 end, " MASK " }", EQUAL_KEYS, 0, -1e9,
     -INFINITY, FEW, true, false, true, 0, false},
    {"scalar", "return attention { scalars = { c = 1e9 }, score_mod = function(s) return s + c end }", EQUAL_KEYS, 0,
     1e9, -INFINITY, 0, false, false, true, 0, false},
    {"long", "return attention { " MASK " }", LONG_EQUAL, 0.9, 0, -INFINITY, FEW, false, false, true, 0, false},
    {"one", "return attention { }", LONG_ONE, 0.09, 0, -INFINITY, 0, false, false, false, 0, false},
    {"two", "return attention { }", LONG_TWO, 0.09, 0, -INFINITY, 0, true, false, true, 0, false},
    {"one of all", "return attention { online_func = softmax_one }", LONG_TWO, 0.09, 0, 0, 0, false, false, true, 0,
     false},
    {"large sink",
     "return attention { inputs = { x = { axes = {'h'}, grad = true } }, online_func = attention_sink(\"x\"),\n"
     "  score_mod = function(s) return s + 1e9 end }",
     NO_KEYS, 0, 1e9, 1e9, 0, false, false, true, 0, false},
    {"own", "return attention { " OWN ", score_mod = function(s) return s + 1e9 end }", EQUAL_KEYS, 0, 1e9, -INFINITY,
     0, false, false, true, 0, false},
    {"distance", "return attention { score_mod = function(s, b, h, q, kv) return s + 4e8 - 512 * abs(q - kv) end }",
     EQUAL_KEYS, 0, 4e8, -INFINITY, 0, false, false, false, 0, false},
    {"offsets",
     "return attention { score_mod = function(s, b, h, q, kv) return s + 1e8 + 1e7 * (kv - kv) + 1024 * q end }",
     EQUAL_KEYS, 0, 1e8, -INFINITY, 0, false, true, true, 0, false},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

enum { Q, K, V, O, DOUT, DQ, DK, DV, NUM_TENSORS };
static const int64_t shapes[NUM_TENSORS][4] = {
    [Q] = {1, HEADS, Q_LEN, DIM}, [K] = {1, 1, KV_LEN, DIM},       [V] = {1, 1, KV_LEN, DIM},
    [O] = {1, HEADS, Q_LEN, DIM}, [DOUT] = {1, HEADS, Q_LEN, DIM}, [DQ] = {1, HEADS, Q_LEN, DIM},
    [DK] = {1, 1, KV_LEN, DIM},   [DV] = {1, 1, KV_LEN, DIM}};

typedef struct problem {
  array t[NUM_TENSORS], lse, dlse;
  double want_sink[HEADS], sink_size[HEADS], *want[NUM_TENSORS], *size[NUM_TENSORS],
      *want_lse; /* size: the sum of the sizes of what is added up */
} problem;

static double key_of(data of, int kv) {
  const bool top = kv == 77 || (of == LONG_TWO && kv == 20);
  return of == LONG_EQUAL || top ? 4096 : 1024;
}

static void draw(const case_row *c, problem *p, kind k) {
  memset(p->want_sink, 0, sizeof p->want_sink), memset(p->sink_size, 0, sizeof p->sink_size);
  for (int i = 0; i < NUM_TENSORS; ++i) {
    make(&p->t[i], k, 4, shapes[i]);
    p->want[i] = calloc(p->t[i].count, sizeof(double)), p->size[i] = calloc(p->t[i].count, sizeof(double));
    for (size_t j = 0; j < p->t[i].count; ++j) put(k, p->t[i].host, j, drawn());
  }
  make(&p->lse, k == F64 ? F64 : F32, 3, (int64_t[]){1, HEADS, Q_LEN});
  make(&p->dlse, p->lse.k, 3, p->lse.shape);
  for (size_t i = 0; i < p->dlse.count; ++i) put(p->dlse.k, p->dlse.host, i, drawn());
  p->want_lse = calloc(p->lse.count, sizeof(double));
  for (size_t j = 0; j < p->t[K].count && c->of != ORDINARY && c->of != SIGNS; ++j) {
    const double own = get(k, p->t[K].host, j % DIM); /* of the first key */
    put(k, p->t[K].host, j, c->of == NO_KEYS ? 0 : c->of == EQUAL_KEYS ? own : key_of(c->of, (int)(j / DIM)));
  }
  for (size_t j = 0; j < p->t[Q].count && c->of > EQUAL_KEYS; ++j) put(k, p->t[Q].host, j, 4096);
  for (int i = Q; i <= K && c->of == SIGNS; ++i)
    for (size_t j = 0; j < p->t[i].count; ++j) put(k, p->t[i].host, j, floor(1.5 + 1.5 * drawn()) - 1);
  for (int i = 0; i < NUM_TENSORS; ++i) send(&p->t[i]);
  send(&p->dlse);
}

static double at(const array *a, int head, int row, int d) {
  return get(a->k, a->host, ((size_t)head * (size_t)a->shape[2] + (size_t)row) * DIM + (size_t)d);
}

static double dot_of(const array *a, int head, int row, const array *b, int kv) {
  double sum = 0;
  for (int d = 0; d < DIM; ++d) sum += at(a, head, row, d) * at(b, 0, kv, d);
  return sum;
}

/* Bias of a score besides c->bias. */
static double position_bias(const case_row *c, int q, int kv) {
  if (strcmp(c->name, "distance") == 0) return -512.0 * abs(q - kv);
  return c->offsets ? 1024.0 * (q + 1000) : c->slope * (kv - q);
}

/* Adds one row of one head to the results. */
static void add_row(const case_row *c, problem *p, int h, int q) {
  const int keys = c->causal ? q + 1 : c->keys == 0 ? KV_LEN : q >= FIRST_EMPTY ? 0 : c->keys;
  const double scale = c->scale != 0 ? c->scale : 1 / sqrt(DIM);
  const size_t row = ((size_t)h * Q_LEN + (size_t)q), first = row * DIM;
  double s[KV_LEN], far[KV_LEN], top = c->sink, sum = 0, delta = 0, moved = 0;
  p->want_lse[row] = -INFINITY;
  if (keys == 0) return;
  for (int j = 0; j < keys; ++j) {
    s[j] = scale * dot_of(&p->t[Q], h, q, &p->t[K], j) + c->bias + position_bias(c, q, j);
    top = fmax(top, s[j]);
  }
  for (int j = 0; j < keys; ++j) sum += exp(s[j] - top);
  sum += exp(c->sink - top);
  p->want_lse[row] = top + log(sum);
  for (int j = 0; j < keys; ++j) {
    far[j] = c->of == SIGNS ? 1 + (top - s[j]) / 4 : 1; /* the exponent's own rounding */
    s[j] = exp(s[j] - top) / sum;
    const double dp = dot_of(&p->t[DOUT], h, q, &p->t[V], j);
    delta += s[j] * dp;
    for (int d = 0; d < DIM; ++d) {
      p->want[O][first + (size_t)d] += s[j] * at(&p->t[V], 0, j, d);
      p->size[O][first + (size_t)d] += far[j] * s[j] * fabs(at(&p->t[V], 0, j, d));
      p->want[DV][(size_t)j * DIM + (size_t)d] += s[j] * at(&p->t[DOUT], h, q, d);
      p->size[DV][(size_t)j * DIM + (size_t)d] += far[j] * s[j] * fabs(at(&p->t[DOUT], h, q, d));
    }
    for (int d = 0; d < DIM; ++d) moved += far[j] * s[j] * fabs(at(&p->t[V], 0, j, d) * at(&p->t[DOUT], h, q, d));
  }
  p->want_sink[h] += exp(c->sink - top) / sum * (get(p->dlse.k, p->dlse.host, row) - delta);
  const double sink_far = c->of == SIGNS && c->sink > -INFINITY ? 1 + (top - c->sink) / 4 : 1;
  p->sink_size[h] += sink_far * exp(c->sink - top) / sum * (moved + 1);
  for (int j = 0; j < keys; ++j) {
    const double dp = dot_of(&p->t[DOUT], h, q, &p->t[V], j),
                 ds = s[j] * (dp - delta + get(p->dlse.k, p->dlse.host, row));
    double own = 0;
    for (int d = 0; d < DIM; ++d) own += fabs(at(&p->t[V], 0, j, d) * at(&p->t[DOUT], h, q, d));
    const double size = far[j] * s[j] * (own + moved + 1);
    for (int d = 0; d < DIM; ++d) {
      p->want[DQ][first + (size_t)d] += scale * ds * at(&p->t[K], 0, j, d);
      p->size[DQ][first + (size_t)d] += scale * size * fabs(at(&p->t[K], 0, j, d));
      p->want[DK][(size_t)j * DIM + (size_t)d] += scale * ds * at(&p->t[Q], h, q, d);
      p->size[DK][(size_t)j * DIM + (size_t)d] += scale * size * fabs(at(&p->t[Q], h, q, d));
    }
  }
}

static void close_problem(problem *p) {
  for (int i = 0; i < NUM_TENSORS; ++i) drop(&p->t[i]), free(p->want[i]), free(p->size[i]);
  drop(&p->lse), drop(&p->dlse);
  free(p->want_lse);
}

static void launch(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, luattn_args *args) {
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(engine, spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(engine, spec, args, NULL, &err) == LUATTN_OK,
       pass == LUATTN_FORWARD ? "forward" : "backward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
}

/* The largest error, in units of what was added up: the error of P, as long as sums have none. */
static double error_of(const problem *p, int i) {
  double worst = 0;
  for (size_t j = 0; j < p->t[i].count; ++j) {
    const double off = fabs(get(p->t[i].k, p->t[i].host, j) - p->want[i][j]) / (p->size[i][j] + 1e-30);
    worst = worse(worst, off);
  }
  return worst;
}

/* The larger error of O and lse, or of gradients. */
static void run_case(luattn_engine *engine, const luattn_spec *spec, const case_row *c, problem *p, bool large,
                     double error[2]) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  array saved;
  const size_t num_saved = large ? info.num_saved_large_scores : info.num_saved;
  make(&saved, p->lse.k, 4, (int64_t[]){(int64_t)num_saved, 1, HEADS, Q_LEN});
  fill(&saved, NAN);
  array sink, grad;
  make(&sink, F32, 1, (int64_t[]){HEADS});
  make(&grad, p->lse.k, 1, (int64_t[]){HEADS});
  fill(&sink, c->sink), fill(&grad, NAN);
  const luattn_input input = {.name = "x", .tensor = &sink.t, .grad = &grad.t};
  luattn_batch *batch = NULL;
  const luattn_batch_options options = {.struct_size = sizeof options, .q_offset = 1000, .q_len = 2000};
  if (c->offsets) need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  DLTensor *t[NUM_TENSORS];
  for (int i = 0; i < NUM_TENSORS; ++i) t[i] = &p->t[i].t;
  for (int i = O; i < NUM_TENSORS; ++i)
    if (i != DOUT) fill(&p->t[i], NAN);
  fill(&p->lse, NAN);
  luattn_args args = {.struct_size = sizeof args,
                      .q = t[Q],
                      .k = t[K],
                      .v = t[V],
                      .o = t[O],
                      .lse = &p->lse.t,
                      .saved = num_saved > 0 ? &saved.t : NULL,
                      .dout = t[DOUT],
                      .dlse = &p->dlse.t,
                      .dq = t[DQ],
                      .dk = t[DK],
                      .dv = t[DV],
                      .inputs = &input,
                      .num_inputs = info.num_inputs,
                      .scale = c->scale,
                      .batch = batch,
                      .large_scores = large};
  launch(engine, spec, LUATTN_FORWARD, &args);
  launch(engine, spec, LUATTN_BACKWARD, &args);
  for (int i = O; i < NUM_TENSORS; ++i)
    if (i != DOUT) fetch(&p->t[i]);
  fetch(&p->lse);
  error[0] = error_of(p, O);
  for (size_t i = 0; i < p->lse.count; ++i) {
    const double got = get(p->lse.k, p->lse.host, i), off = fabs(got - p->want_lse[i]) / (1 + fabs(p->want_lse[i]));
    if (got != p->want_lse[i]) error[0] = worse(error[0], off);
  }
  error[1] = worse(worse(error_of(p, DQ), error_of(p, DK)), error_of(p, DV));
  fetch(&grad);
  for (int h = 0; h < HEADS && info.num_inputs > 0; ++h) {
    const double off = fabs(get(grad.k, grad.host, (size_t)h) - p->want_sink[h]) / (p->sink_size[h] + 1e-30);
    error[1] = worse(error[1], off);
  }
  luattn_batch_close(batch);
  drop(&sink), drop(&grad), drop(&saved);
}

static bool check(luattn_engine *engine, const case_row *c, kind k) {
  luattn_spec *spec;
  problem p;
  double with[2], without[2] = {0};
  need(luattn_spec_load_text(c->name, c->text, strlen(c->text), NULL, &spec, &err) == LUATTN_OK, "spec");
  draw(c, &p, k);
  for (int h = 0; h < HEADS; ++h)
    for (int q = 0; q < Q_LEN; ++q) add_row(c, &p, h, q);
  run_case(engine, spec, c, &p, true, with);
  if (c->wrong_without) run_case(engine, spec, c, &p, false, without);
  const double allowed = k == F64 ? 1e-12 : k == F32 ? 0x1p-20 : 4 * kind_unit[k];
  const bool right = with[0] <= allowed && with[1] <= allowed,
             seen = !c->wrong_without || k == F64 || !(without[1] <= 4 * allowed) || !(without[0] <= 4 * allowed);
  fprintf(right && seen ? stdout : stderr,
          "%s%s %s: with large_scores off by %.3g and %.3g, allowed %.3g; without by %.3g and %.3g\n",
          right && seen ? "" : "FAILED: ", c->name, kind_name[k], with[0], with[1], allowed, without[0], without[1]);
  close_problem(&p);
  need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
  luattn_spec_free(spec);
  return right && seen;
}

static int drawn_from(int first, int last) { return first + (int)((drawn() + 1) / 2 * (last - first + 1)); }

/* A spec whose scores are multiples of `unit`, and less than 2^24 of it. */
static case_row random_case(char *name, char *text, size_t size) {
  static const char *const masks[] = {"", ", " MASK, ", block_mask = causal()"};
  const int exponent = drawn_from(-9, 5), mask = drawn_from(0, 2), sink = drawn_from(0, 3);
  const double unit = ldexp(1, exponent), bias = unit * drawn_from(-(1 << 23), 1 << 23) * pow(2, -drawn_from(0, 23)),
               rounded = unit * rint(bias / unit);
  case_row c = {
      .name = name, .text = text, .of = SIGNS, .scale = unit, .bias = rounded, .sink = -INFINITY, .causal = mask == 2};
  c.keys = mask == 1 ? FEW : 0;
  c.slope = drawn_from(0, 1) * unit * drawn_from(-512, 512);
  c.deterministic = drawn_from(0, 1);
  char online[96] = "";
  if (sink == 1) c.sink = 0, snprintf(online, sizeof online, ", online_func = softmax_one");
  if (sink == 2) {
    c.sink = rounded + unit * drawn_from(-64, 64);
    snprintf(online, sizeof online,
             ", inputs = { x = { axes = {'h'}, grad = true } }, online_func = attention_sink('x')");
  }
  snprintf(name, 32, "random 2^%d", exponent);
  snprintf(
      text, size,
      "return attention { score_mod = function(s, b, h, q, kv) return s + (%.17g) * (kv - q) + (%.17g) end%s%s%s%s }",
      c.slope, rounded, masks[mask], online, sink == 3 ? ", " : "", sink == 3 ? OWN : "");
  return c;
}

/* Tells a failed case by its text. */
static int check_random(luattn_engine *const engine[2], kind k, int count, int seed) {
  int failed = 0;
  for (int i = 0; i < seed; ++i) (void)drawn();
  for (int i = 0; i < count; ++i) {
    char name[32], text[1024];
    const case_row c = random_case(name, text, sizeof text);
    driver = luattn_engine_driver(engine[c.deterministic]);
    if (check(engine[c.deterministic], &c, k)) continue;
    fprintf(stderr, "  scale %.17g: %s\n", c.scale, text);
    ++failed;
  }
  return failed;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"simt", "sm80", "sm90", "cpu"};
  enum { CPU = 3 };
  if (argc < 3) return 2;
  int family = 0, k = 0, failed = 0;
  while (family < 4 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 4 || k == 4) return 2;
  luattn_engine *engine[2];
  for (int i = 0; i < 2; ++i) {
    const luattn_engine_options options = {.struct_size = sizeof options,
                                           .device = family == CPU ? LUATTN_CPU : 0,
                                           .family = family == CPU ? 0 : 1 + family,
                                           .deterministic = i};
    need(luattn_engine_open(&options, &engine[i], &err) == LUATTN_OK, "engine");
  }
  const bool random = argc > 4 && strcmp(argv[3], "random") == 0;
  if (random) failed = check_random(engine, (kind)k, atoi(argv[4]), argc > 5 ? atoi(argv[5]) : 0);
  for (int i = 0; i < NUM_CASES && !random; ++i) {
    if (argc > 3 && strcmp(argv[3], cases[i].name) != 0) continue;
    driver = luattn_engine_driver(engine[cases[i].deterministic]);
    failed += !check(engine[cases[i].deterministic], &cases[i], (kind)k);
  }
  for (int i = 0; i < 2; ++i) luattn_engine_close(engine[i]);
  return failed != 0;
}
