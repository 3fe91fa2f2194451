/* linear_problem.c: see linear_problem.h. */
#include "tests/ptx/linear_problem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/ptx/hand_kernels.h"

enum { PAD = 8 };

/* ---- numbers ---- */

static float of_f16(uint16_t x) {
  const int exponent = x >> 10 & 31, fraction = x & 1023;
  const double size = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                      : exponent == 0 ? ldexp(fraction, -24)
                                      : ldexp(1024 + fraction, exponent - 25);
  return (float)(x >> 15 ? -size : size);
}
static uint16_t to_f16(float x) {
  const double size = fabs((double)x);
  if (isnan(x)) return 0x7fff;
  const unsigned sign = signbit(x) ? 0x8000u : 0;
  if (size < ldexp(1, -14)) return (uint16_t)(sign | (unsigned)lrint(ldexp(size, 24)));
  int e;
  const double f = frexp(size, &e);
  return (uint16_t)(sign + (unsigned)((e + 14) << 10) + (unsigned)(lrint(ldexp(f, 11)) - 1024));
}
static double uniform(void) { return (rand() + 0.5) / ((double)RAND_MAX + 1); }
static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static float gate(gates kind) {
  switch (kind) {
    case NONE:
      return 0;
    case WEAK:
      return (float)(log(sigmoid(normal())) / 16);
    case PRODUCTION:
      return (float)(-5 * sigmoid(normal()));
    case STRONG:
      return -20;
    case MIXED:
      return rand() % 2 ? -20.f : 0.f;
    case EVEN:
      return -0.2f;
    case GONE:
      return rand() % 4 == 0 ? -INFINITY : rand() % 4 == 0 ? -2000.f : (float)-uniform();
    default:
      return rand() % 50 == 0 ? -60.f : 0.f;
  }
}

/* ---- a call ---- */

bool linear_is_bf16(const call *c) { return strcmp(c->kernel.elem, "bf16_t") == 0; }
float linear_read_half(const call *c, uint16_t x) { return linear_is_bf16(c) ? hand_of_bf16(x) : of_f16(x); }
int linear_row_size(const call *c, int heads, int dim) { return heads * dim + (c->wide_rows ? PAD : 0); }
bool linear_word(const char *what, const char *name) { return strcmp(what, name) == 0; }
bool linear_is_erasing(const call *c) { return linear_word(c->kernel.update, "DeltaRule"); }
/* Decays of a token and head. */
int linear_gate_width(const call *c) { return linear_word(c->kernel.decay, "ChannelDecay") ? c->kernel.k_dim : 1; }
static float state_number(const call *c, float x) {
  return c->state_type == LUATTN_STATE_F32    ? x
         : c->state_type == LUATTN_STATE_BF16 ? hand_of_bf16(hand_to_bf16(x))
                                              : of_f16(to_f16(x));
}
int linear_pool_row(const call *c, int entry) { return c->pool[0] == 0 ? entry : c->pool[entry] - 1; }
bool linear_left_alone(const call *c, int entry) { return c->pool[0] != 0 && c->pool[entry] < 0; }

static uint16_t *random_rows(const problem *x, int heads, int dim, double size) {
  const int width = linear_row_size(x->c, heads, dim);
  uint16_t *all = malloc((size_t)x->rows * (size_t)width * 2);
  memset(all, 0xff, (size_t)x->rows * (size_t)width * 2);
  for (int e = 0; e < x->c->entries; e++)
    for (int t = x->cu[e]; t < x->cu[e + 1]; t++)
      for (int i = 0; i < heads * dim; i++) {
        const float one = (float)(normal() * size);
        all[(size_t)t * (size_t)width + (size_t)i] = x->c->poisoned[e]      ? 0xffff
                                                     : linear_is_bf16(x->c) ? hand_to_bf16(one)
                                                                            : to_f16(one);
      }
  return all;
}
static float *random_numbers(const problem *x, double least, double most) {
  const size_t count = (size_t)x->rows * (size_t)x->c->heads_v;
  float *all = malloc(count * sizeof *all);
  for (size_t i = 0; i < count; i++) all[i] = (float)(least + (most - least) * uniform());
  return all;
}

/* Keys of length 1, as erasing needs them; or all of a head the same but for a little. */
static void use_unit_keys(problem *x) {
  const call *c = x->c;
  const int K = c->kernel.k_dim, width = linear_row_size(c, c->heads, K);
  for (int i = 0; i < x->cu[c->entries] * c->heads; i++) {
    uint16_t *row = x->k + (size_t)(i / c->heads) * (size_t)width + (size_t)(i % c->heads * K), *first = x->k;
    float unit[256];
    double size = 0;
    for (int d = 0; d < K; d++) {
      unit[d] = c->keys == ALIKE && i >= c->heads ? linear_read_half(c, first[d]) + 0.001f * (float)normal()
                                                  : linear_read_half(c, row[d]);
      size += (double)(unit[d] * unit[d]);
    }
    for (int d = 0; d < K && !isnan(size); d++) {
      const float x_d = unit[d] / (float)sqrt(size);
      row[d] = linear_is_bf16(c) ? hand_to_bf16(x_d) : to_f16(x_d);
    }
  }
}

static void take_turns(problem *x) {
  const call *c = x->c;
  const int K = c->kernel.k_dim, width = linear_row_size(c, c->heads, K);
  for (int i = 0; i < x->rows * c->heads_v * K; i++) {
    const int row = i / (c->heads_v * K), d = i % K;
    x->in[0][i] = d > 1 ? -1.f : row % 64 == 32 * d ? -30.f : 0.f;
  }
  for (int i = 0; i < x->cu[c->entries] * c->heads; i++) {
    uint16_t *row = x->k + (size_t)(i / c->heads) * (size_t)width + (size_t)(i % c->heads * K);
    const double turn = (32 - abs(i / c->heads % 64 - 32)) * 3.14159265358979 / 64;
    for (int d = 0; d < K; d++) {
      const float x_d = (float)(d == 0 ? cos(turn) : d == 1 ? -sin(turn) : 0);
      row[d] = linear_is_bf16(c) ? hand_to_bf16(x_d) : to_f16(x_d);
    }
  }
}

problem linear_make_problem(const call *c) {
  problem x = {.c = c};
  srand(3);
  for (int e = 0; e < c->entries; e++) x.cu[e + 1] = x.cu[e] + c->tokens[e];
  x.rows = x.cu[c->entries] + (c->kernel.packed ? 70 : 0);
  const int k = c->kernel.k_dim, v = c->kernel.v_dim;
  x.q = random_rows(&x, c->heads, k, 1 / sqrt(k));
  x.k = random_rows(&x, c->heads, k, 1 / sqrt(k));
  x.v = random_rows(&x, c->heads_v, v, 1);
  x.dout = random_rows(&x, c->heads_v, v, 1);
  if (linear_is_erasing(c)) use_unit_keys(&x);
  for (int i = 1; i < 5; i++) x.in[i] = random_numbers(&x, 0.3, 1.2);
  for (int i = 0; c->most_write > 0 && i < x.rows * c->heads_v; i++) x.in[1][i] = (float)(c->most_write * uniform());
  const int decays = x.rows * c->heads_v * linear_gate_width(c);
  x.in[0] = malloc(sizeof(float) * (size_t)decays);
  for (int i = 0; i < decays; i++) x.in[0][i] = gate(c->gates);
  if (c->gates == TURNS) take_turns(&x);
  const size_t states = (size_t)POOL_ROWS * (size_t)(c->heads_v * k * v);
  x.pool = malloc(states * sizeof *x.pool);
  for (size_t i = 0; i < states; i++) x.pool[i] = state_number(c, (float)normal() / 8);
  return x;
}
void linear_free_problem(problem *x) {
  void *const all[] = {x->q, x->k, x->v, x->dout, x->in[0], x->in[1], x->in[2], x->in[3], x->in[4], x->pool};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* ---- by the recurrence ---- */

size_t linear_place(const problem *x, int entry, int hv, int dim, int i) {
  const call *c = x->c;
  return (size_t)(x->cu[entry] + i / dim) * (size_t)linear_row_size(c, c->heads_v, dim) + (size_t)(hv * dim + i % dim);
}
double linear_in_at(const problem *x, int i, int row, int hv) {
  const char *const of_head = i == 0 && linear_word(x->c->kernel.decay, "HeadDecay") ? "head" : i == 4 ? "head" : NULL;
  return x->in[i][of_head != NULL ? hv : row * x->c->heads_v + hv];
}
double *linear_dout_of(const problem *x, int entry, int hv) {
  const call *c = x->c;
  const int V = c->kernel.v_dim, size = c->tokens[entry] * V;
  double *dout = malloc(sizeof(double) * (size_t)(size + 1));
  for (int i = 0; i < size; i++) dout[i] = linear_read_half(c, x->dout[linear_place(x, entry, hv, V, i)]);
  return dout;
}
/* The rows of an entry and head, in room that the caller frees. */
linear_rows linear_rows_of(const problem *x, int entry, int hv) {
  const call *c = x->c;
  const linear_kernel *kernel = &c->kernel;
  const int n = c->tokens[entry], K = kernel->k_dim, V = kernel->v_dim, h = hv / (c->heads_v / c->heads);
  const bool adds = linear_word(kernel->mods, "Factors"), mods = adds || linear_word(kernel->mods, "RowFactors");
  const int width = linear_word(kernel->decay, "NoDecay") ? 0 : linear_gate_width(c);
  double *q = malloc(sizeof(double) * (size_t)(n * (4 * K + V) + K * V + 1)), *k = q + n * K, *r = k + n * K,
         *b = r + n * K, *g = b + n * V, *first = g + n * K;
  for (int t = 0; t < n; t++) {
    const int row = x->cu[entry] + t;
    const double write = linear_word(kernel->update, "PlainUpdate") ? 1 : linear_in_at(x, 1, row, hv);
    for (int d = 0; d < K; d++) {
      const size_t at = (size_t)row * (size_t)linear_row_size(c, c->heads, K) + (size_t)(h * K + d);
      q[t * K + d] = linear_read_half(c, x->q[at]) * (mods ? linear_in_at(x, 2, row, hv) : 1);
      k[t * K + d] = linear_read_half(c, x->k[at]) * (mods ? linear_in_at(x, 3, row, hv) : 1);
      r[t * K + d] = write * k[t * K + d];
    }
    for (int d = 0; d < V; d++) {
      const size_t at = (size_t)row * (size_t)linear_row_size(c, c->heads_v, V) + (size_t)(hv * V + d);
      b[t * V + d] = write * (linear_read_half(c, x->v[at]) + (adds ? 0.125 * ((t + d) % 3) : 0));
    }
    for (int d = 0; d < width; d++)
      g[t * width + d] =
          width > 1 ? (double)x->in[0][(row * c->heads_v + hv) * width + d] : linear_in_at(x, 0, row, hv);
  }
  const bool has_first = c->has_first && !linear_left_alone(c, entry); /* which has no row of the pool */
  if (has_first)
    for (int i = 0; i < K * V; i++)
      first[i] = (double)x->pool[(size_t)(linear_pool_row(c, entry) * c->heads_v + hv) * (size_t)(K * V) + (size_t)i];
  return (linear_rows){.tokens = n,
                       .k_dim = K,
                       .v_dim = V,
                       .g_width = width,
                       .scale = 0.5,
                       .q = q,
                       .k = k,
                       .r = linear_is_erasing(c) ? r : NULL,
                       .b = b,
                       .g = g,
                       .state = has_first ? first : NULL};
}

/* ---- by the kernel ---- */

/* The place of element (k, v) of a pool's row and head. */
size_t linear_state_at(const call *c, int row, int hv, int k, int v) {
  const int K = c->kernel.k_dim, V = c->kernel.v_dim;
  return (size_t)(row * c->heads_v + hv) * (size_t)(K * V) + (size_t)(c->k_first ? k * V + v : v * K + k);
}
static void *pool_on_device(const problem *x) {
  const call *c = x->c;
  const int K = c->kernel.k_dim, V = c->kernel.v_dim;
  const size_t count = (size_t)(POOL_ROWS * c->heads_v * K * V);
  char *bytes = malloc(count * 4);
  for (int i = 0; i < (int)count; i++) {
    const int v = i % V, k = i / V % K, hv = i / V / K % c->heads_v, row = i / V / K / c->heads_v;
    const size_t at = linear_state_at(c, row, hv, k, v);
    if (c->state_type == LUATTN_STATE_F32)
      memcpy(bytes + at * 4, &x->pool[i], 4);
    else
      ((uint16_t *)(void *)bytes)[at] =
          c->state_type == LUATTN_STATE_BF16 ? hand_to_bf16(x->pool[i]) : to_f16(x->pool[i]);
  }
  void *device = hand_device(count * (size_t)linear_state_bytes(c->state_type), bytes);
  free(bytes);
  return device;
}
/* Rows of a state are channels of the pass's value. */
static LuattnStates states_of(const call *c, linear_pass pass, void *data) {
  const long long K = c->kernel.k_dim, V = c->kernel.v_dim, of_v = c->k_first ? 1 : K, of_k = c->k_first ? V : 1;
  const bool turned = pass == LINEAR_GRAD_Q || pass == LINEAR_GRAD_K;
  return (LuattnStates){.data = data,
                        .row = c->heads_v * K * V,
                        .head = K * V,
                        .value = turned ? of_k : of_v,
                        .key = turned ? of_v : of_k,
                        .type = c->state_type};
}

sides linear_sides_of(const problem *x, linear_pass pass) {
  const call *c = x->c;
  const side q = {x->q, c->heads, c->kernel.k_dim}, k = {x->k, c->heads, c->kernel.k_dim},
             v = {x->v, c->heads_v, c->kernel.v_dim}, dout = {x->dout, c->heads_v, c->kernel.v_dim};
  switch (pass) {
    case LINEAR_FORWARD:
      return (sides){q, k, v};
    case LINEAR_GRAD_Q:
      return (sides){dout, v, k};
    case LINEAR_GRAD_K:
      return (sides){v, dout, q};
    case LINEAR_STATES:
      return (sides){q, k, v};
    case LINEAR_GRAD_STATES:
    case LINEAR_ROWS:
      return (sides){q, k, dout};
    default:
      return (sides){k, q, dout};
  }
}

LuattnTensor linear_tensor_of(const problem *x, side s) {
  const long long row = linear_row_size(x->c, s.heads, s.dim);
  return (LuattnTensor){hand_device((size_t)x->rows * (size_t)row * 2, s.rows), x->c->tokens[0] * row, s.dim, row};
}
LuattnTensorMap linear_map_of(const problem *x, const LuattnTensor *t, side s) {
  const call *c = x->c;
  const bool packed = c->kernel.packed;
  return linear_map(t, linear_is_bf16(c), packed, s.dim, packed ? x->cu[c->entries] : c->tokens[0], s.heads,
                    packed ? 1 : c->entries);
}
on_device linear_upload(const problem *x, linear_pass pass) {
  const call *c = x->c;
  const linear_kernel *k = &c->kernel;
  const int all = x->cu[c->entries], tokens = k->packed ? all : c->tokens[0];
  on_device d;
  memset(&d, 0, sizeof d);
  LuattnLinearParams *p = &d.p;
  p->entries = c->entries, p->tokens = tokens, p->heads = c->heads, p->heads_v = c->heads_v;
  p->group = c->heads_v / c->heads, p->scale = 0.5f;
  const sides of = linear_sides_of(x, pass);
  const side o = {NULL, c->heads_v, of.value.dim};
  p->q = linear_tensor_of(x, of.query), p->k = linear_tensor_of(x, of.key), p->v = linear_tensor_of(x, of.value),
  p->o = linear_tensor_of(x, o);
  d.maps = (LuattnTensorMaps){.q = linear_map_of(x, &p->q, of.query),
                              .k = linear_map_of(x, &p->k, of.key),
                              .v = linear_map_of(x, &p->v, of.value),
                              .o = linear_map_of(x, &p->o, o)};
  if (k->packed) p->cu_seqlens = hand_device(sizeof x->cu, x->cu);
  if (c->pool[0] != 0) {
    int rows[MOST_ENTRIES];
    for (int e = 0; e < MOST_ENTRIES; e++) rows[e] = linear_left_alone(c, e) ? -1 : linear_pool_row(c, e);
    p->state_rows = hand_device(sizeof rows, rows);
  }
  if (c->has_first) p->first = states_of(c, pass, pool_on_device(x));
  if (c->has_last && (pass == LINEAR_FORWARD || pass == LINEAR_GRAD_V || pass == LINEAR_GRAD_STATES))
    p->last = states_of(c, pass, c->in_place ? p->first.data : pool_on_device(x));
  for (int i = 0; i < 5; i++) {
    const long long width = i == 0 ? linear_gate_width(c) : 1, step = c->heads_v * width;
    p->inputs.input[i] = (LuattnInput){.data = hand_device((size_t)(x->rows * step) * 4, x->in[i]),
                                       .stride = {c->tokens[0] * step, width, step}};
  }
  p->segments.count = c->segments > 0 ? c->segments : 1;
  if (c->segments > 1) {
    const size_t slots = (size_t)(c->entries * c->heads_v * c->segments);
    p->segments.states = hand_device(slots * (size_t)(k->k_dim * k->v_dim) * 4, NULL);
    p->segments.maps = hand_device(slots * (size_t)(k->k_dim * k->k_dim) * 4, NULL);
    p->segments.decays = hand_device(slots * 4 * (size_t)linear_gate_width(c), NULL);
  }
  return d;
}
int linear_chunks_of(const problem *x) {
  const call *c = x->c;
  const int tokens = c->kernel.packed ? x->cu[c->entries] : c->tokens[0];
  return linear_chunk_slots(c->entries, tokens, c->kernel.packed) * c->heads_v;
}
bool linear_takes_inverses(const call *c) { return linear_is_erasing(c) && linear_gate_width(c) == 1; }
void *linear_room_of_inverses(const problem *x) {
  return hand_device((size_t)linear_chunks_of(x) * (LINEAR_BOX + sizeof(float)), NULL);
}
void linear_set_inverses(const problem *x, on_device *d, void *room) {
  d->p.inverses = room;
  d->p.chunk_decays = room == NULL ? NULL : (float *)(void *)((char *)room + (size_t)linear_chunks_of(x) * LINEAR_BOX);
}
/* What a chunk leaves, to the base of 2, or 1 where one of its updates may make a vector longer; NaN where rounding decides. */
static double left_of(const linear_rows *rows, int chunk) {
  const int begin = chunk * LUATTN_CHUNK, end = begin + LUATTN_CHUNK, K = rows->k_dim;
  double sum = 0;
  bool shrinks = true, is_near = false;
  for (int t = begin; t < end && t < rows->tokens; t++) {
    double erased = 0;
    for (int d = 0; d < K; d++) erased += rows->r[t * K + d] * rows->k[t * K + d];
    sum += fmax(rows->g[t], -128) * 1.4426950408889634;
    shrinks &= erased <= 2, is_near |= fabs(erased - 2) < 1e-3;
  }
  return is_near ? (double)NAN : shrinks ? sum : 1;
}
static void expect_left(const problem *x, const float *chunk_decays) {
  const call *c = x->c;
  const bool packed = c->kernel.packed;
  const size_t slots = (size_t)linear_chunks_of(x);
  float *left = malloc(slots * sizeof *left);
  hand_host(left, chunk_decays, slots * sizeof *left);
  for (int e = 0; e < c->entries; e++)
    for (int hv = 0; hv < c->heads_v && !c->poisoned[e] && !linear_left_alone(c, e); hv++) {
      const linear_rows rows = linear_rows_of(x, e, hv);
      const int first = linear_first_slot(e, x->cu[e], packed ? x->cu[c->entries] : c->tokens[0], packed);
      for (int i = 0; i * LUATTN_CHUNK < rows.tokens; i++) {
        const double got = (double)left[(first + i) * c->heads_v + hv], want = left_of(&rows, i);
        if (fabs(got - want) > 1e-5 * (1 + fabs(want)))
          fail_msg("chunk %d of entry %d leaves %g, not %g", i, e, got, want);
      }
      free((void *)rows.q);
    }
  free(left);
}
/* Beside T, what chunks leave is compared. */
void linear_make_inverses(const problem *x, void *module, on_device *d) {
  linear_launch(module, "luattn_linear_inverses", linear_chunks_of(x), LINEAR_INVERSE_THREADS,
                linear_inverses_bytes(x->c->kernel.k_dim), &d->p, &d->maps);
  if (!linear_word(x->c->kernel.decay, "NoDecay")) expect_left(x, d->p.chunk_decays);
}
void linear_take_back(on_device *d, const call *c) {
  LuattnLinearParams *p = &d->p;
  void *const all[] = {p->q.data,
                       p->k.data,
                       p->v.data,
                       p->o.data,
                       (void *)p->cu_seqlens,
                       (void *)p->state_rows,
                       p->first.data,
                       c->in_place ? NULL : p->last.data,
                       p->segments.states,
                       p->segments.maps,
                       p->segments.decays};
  hand_release_all(all, sizeof all / sizeof all[0]);
  for (int i = 0; i < 5; i++) hand_release((void *)p->inputs.input[i].data);
}

char *linear_take_pool(const on_device *d, const call *c) {
  if (d->p.last.data == NULL) return NULL;
  const size_t bytes =
      (size_t)(POOL_ROWS * c->heads_v * c->kernel.k_dim * c->kernel.v_dim) * (size_t)linear_state_bytes(c->state_type);
  char *pool = malloc(bytes);
  hand_host(pool, d->p.last.data, bytes);
  return pool;
}
uint16_t *linear_take_rows(const problem *x, const LuattnTensor *t, int dim) {
  const size_t bytes = (size_t)x->rows * (size_t)linear_row_size(x->c, x->c->heads_v, dim) * 2;
  uint16_t *rows = malloc(bytes);
  hand_host(rows, t->data, bytes);
  return rows;
}
int linear_blocks(const call *c, int dim, int block) { return c->entries * c->heads_v * ((dim + block - 1) / block); }
int linear_threads(const linear_kernel *k) { return 128 * (2 + k->v_block / 64); }

/* ---- comparisons ---- */

static double relative(error e) { return e.off == 0 ? 0 : sqrt(e.off / e.size); }
void linear_add_error(error *e, double got, double want) {
  e->off += isnan(got) ? (double)INFINITY : (got - want) * (got - want);
  e->size += want * want;
}
void linear_expect(const char *what, int entry, error e, double most) {
  if (getenv("LINEAR_TEST_PRINTS")) printf("%s of entry %d: %.2e\n", what, entry, relative(e));
  if (!(relative(e) <= most)) fail_msg("%s of entry %d is off by %g, more than %g", what, entry, relative(e), most);
}

double linear_got_state(const call *c, const char *bytes, size_t at) {
  float x;
  if (c->state_type == LUATTN_STATE_F32) return memcpy(&x, bytes + at * 4, 4), (double)x;
  const uint16_t half = ((const uint16_t *)(const void *)bytes)[at];
  return (double)(c->state_type == LUATTN_STATE_BF16 ? hand_of_bf16(half) : of_f16(half));
}
void linear_add_states(error *e, const problem *x, int entry, int hv, const char *pool, const double *want) {
  const call *c = x->c;
  const int V = c->kernel.v_dim;
  if (pool == NULL || linear_left_alone(c, entry)) return;
  for (int i = 0; i < c->kernel.k_dim * V; i++)
    linear_add_error(e, linear_got_state(c, pool, linear_state_at(c, linear_pool_row(c, entry), hv, i / V, i % V)),
                     want[i]);
}
void linear_expect_untouched(const char *what, const problem *x, int dim, const uint16_t *rows) {
  const call *c = x->c;
  const int width = linear_row_size(c, c->heads_v, dim), own = c->heads_v * dim;
  for (int i = 0; i < x->rows * width; i++)
    if (i / width >= x->cu[c->entries] || i % width >= own)
      if (rows[i] != 0xffff) fail_msg("element %d of row %d of %s was written", i % width, i / width, what);
}
