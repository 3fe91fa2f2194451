/* append_test.c: luattn_append through key_mod and value_mod and as it is, and attention over such a cache with
 * keys_modified, which the PTX machine executes, or on the CPU. Rows are appended twice, as a prompt and new tokens
 * are. What the cache then holds is compared with mods written in C, in double precision; O with attention over the raw
 * rows side by side, without keys_modified, on the CPU. Other elements of the cache stay NaN. The second part is
 * appended by luattn_append or, in half of the modes, by the forward that reads it. An input that no mod reads is
 * missing where rows are appended, or has no place for them. More heads of keys than a thread has, and no multiple of
 * them.
 *
 * append_test FAMILY DTYPE [PAGE_SIZE [SPEC [MODE]]]: cpu f64, simt f32, sm80 f16, sm90 bf16, decode bf16, .. MODE:
 * bits of modes. Without them, pages of 1, 3, 16 and 64, each spec in one mode of each.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"

enum {
  BATCH = 4,
  HEADS = 10,
  HEADS_KV = 5,
  MOST = 75,
  LONGEST = 70,
  PROMPT = 21,
  NEW = 3,
  Q_LEN = 3,
  SHIFT = 7,
  POSITIONS = 128,
  PLACES = 130
};
enum { PACKED = 1, HEADS_FIRST = 2, CACHE = 4, SHIFTED = 8, MODES = 16 };
static const int packed_rows[2][BATCH] = {{21, 0, 66, 5}, {3, 4, 1, 0}};

enum { PLAIN, ROTARY, SCALED, MIXED, NUM_SPECS };
enum { COSINE, SINE, BY_POSITION, BY_BATCH, BY_KEY, NUM_INPUTS }; /* BY_KEY: no mod reads it */
static const char *const input_name[] = {"cosine", "sine", "scale", "shift", "bias"};
static const struct {
  const char *text;
  unsigned reads; /* bits of inputs */
} specs[NUM_SPECS] = {
    [PLAIN] = {"return attention { block_mask = causal_bottom_right() }", 0},
    [ROTARY] = {"return attention { inputs = { cosine = { axes = {'position', 'pair'} }, sine = { axes = {'position', "
                "'pair'} } },\n"
                "  query_mod = rotary('cosine', 'sine'), key_mod = rotary('cosine', 'sine'), block_mask = "
                "causal_bottom_right() }",
                1 << COSINE | 1 << SINE},
    [SCALED] =
        {"return attention { scalars = { rate = 0.25 },\n"
         "  inputs = { scale = { axes = {'hkv', 'kv'} }, shift = { axes = {'b'} }, bias = { axes = {'kv'}, dtype = "
         "'any' } },\n"
         "  key_mod = function(x, b, h, pos, d) return x * scale[{h, pos - 1}] + 0.125 * h + rate * (d % 2) end,\n"
         "  value_mod = function(x, b, h, pos, d) return x + 0.01 * pos + shift[b] end,\n"
         "  score_mod = function(s, b, h, q, kv) return s + 0.1 * scale[{h // 2, kv}] + bias[kv] end }",
         1 << BY_POSITION | 1 << BY_BATCH | 1 << BY_KEY},
    [MIXED] = {"return attention { value_mod = function(x, b, h, pos, d) return 0.5 * x + 0.5 * x[(d * 5 + 1) % "
               "head_dim] end }",
               0}};

typedef struct problem {
  int dim[2], page_size, mode, pages, num_pages, total_q, rows[2][BATCH], length[BATCH], cu_q[BATCH + 1];
  array q, o, lse, cache[2], raw[2], table, used[2], cu, cu_new, in[NUM_INPUTS]; /* raw: [BATCH, HEADS_KV, MOST, dim] */
  int64_t strides[2][4];
  kind k;
} problem;

static const char *family;
static int failed;
static void fail(const problem *p, int spec, const char *what, double off) {
  fprintf(stderr, "FAILED: %s %s pages of %d, spec %d, mode %d: %s (%g)\n", family, kind_name[p->k], p->page_size, spec,
          p->mode, what, off);
  failed = 1;
}

static void int_array(array *a, int ndim, const int64_t *shape) {
  make(a, I32, ndim, shape);
  a->t.ndim = ndim;
}

static int page_of(const problem *p, int b, int i) {
  return p->mode & CACHE ? b : p->num_pages - 1 - (b * p->pages + i);
}

static size_t cache_at(const problem *p, int side, int b, int h, int i, int d) {
  const int64_t *s = p->strides[side];
  return (size_t)(page_of(p, b, i / p->page_size) * s[0] + h * s[1] + i % p->page_size * s[2]) + (size_t)d;
}
static size_t raw_at(const problem *p, int side, int b, int h, int i, int d) {
  return ((size_t)(b * HEADS_KV + h) * MOST + (size_t)i) * (size_t)p->dim[side] + (size_t)d;
}

static void draw(array *a) {
  for (size_t i = 0; i < a->count; ++i) put(a->k, a->host, i, drawn());
  send(a);
}

static void draw_caches(problem *p) {
  const int64_t size = p->page_size, n = p->num_pages;
  for (int side = 0; side < 2; ++side) {
    const int64_t dim = p->dim[side], heads_first[] = {HEADS_KV * size * dim, size * dim, dim, 1},
                  rows_first[] = {HEADS_KV * size * dim, dim, HEADS_KV * dim, 1};
    make(&p->cache[side], p->k, 4, (int64_t[]){n, HEADS_KV, size, dim});
    fill(&p->cache[side], NAN);
    memcpy(p->strides[side], p->mode & HEADS_FIRST ? heads_first : rows_first, sizeof heads_first);
    p->cache[side].t.strides = p->strides[side];
    make(&p->raw[side], p->k, 4, (int64_t[]){BATCH, HEADS_KV, MOST, dim});
    draw(&p->raw[side]);
  }
  int_array(&p->table, 2, (int64_t[]){BATCH, p->pages});
  for (int b = 0; b < BATCH; ++b)
    for (int i = 0; i < p->pages; ++i) ((int32_t *)p->table.host)[b * p->pages + i] = page_of(p, b, i);
  send(&p->table);
}

static void draw_inputs(problem *p) {
  make(&p->in[COSINE], F32, 2, (int64_t[]){POSITIONS, p->dim[0] / 2}),
      make(&p->in[SINE], F32, 2, (int64_t[]){POSITIONS, p->dim[0] / 2});
  make(&p->in[BY_POSITION], F32, 2, (int64_t[]){HEADS_KV, PLACES}), make(&p->in[BY_BATCH], F32, 1, (int64_t[]){BATCH});
  make(&p->in[BY_KEY], p->k, 1, (int64_t[]){LONGEST}); /* no place for new rows */
  for (int i = 0; i < NUM_INPUTS; ++i) draw(&p->in[i]);
  for (int i = 0; i < POSITIONS; ++i)
    for (int d = 0; d < p->dim[0] / 2; ++d) {
      const double angle = i * pow(100.0, -2.0 * d / p->dim[0]);
      put(F32, p->in[COSINE].host, (size_t)(i * p->dim[0] / 2 + d), cos(angle)),
          put(F32, p->in[SINE].host, (size_t)(i * p->dim[0] / 2 + d), sin(angle));
    }
  send(&p->in[COSINE]), send(&p->in[SINE]);
}

static int q_len_of(const problem *p, int b) { return p->mode & PACKED ? p->cu_q[b + 1] - p->cu_q[b] : Q_LEN; }

static void open_problem(problem *p, kind k, int dim, int dim_v, int page_size, int mode) {
  *p = (problem){.dim = {dim, dim_v}, .page_size = mode & CACHE ? MOST : page_size, .mode = mode, .k = k};
  const bool packed = (mode & PACKED) != 0;
  for (int b = 0; b < BATCH; ++b) {
    for (int i = 0; i < 2; ++i) p->rows[i][b] = packed ? packed_rows[i][b] : i == 0 ? PROMPT : NEW;
    p->length[b] = p->rows[0][b] + p->rows[1][b];
    p->cu_q[b + 1] = p->cu_q[b] + (b == 1 ? 4 : b);
  }
  p->total_q = p->cu_q[BATCH];
  p->pages = (MOST + p->page_size - 1) / p->page_size;
  p->num_pages = mode & CACHE ? BATCH : BATCH * p->pages;
  draw_caches(p);
  draw_inputs(p);
  const int64_t rows = packed ? p->total_q : Q_LEN;
  make(&p->q, k, packed ? 3 : 4, packed ? (int64_t[]){rows, HEADS, dim} : (int64_t[]){BATCH, HEADS, rows, dim});
  make(&p->o, k, packed ? 3 : 4, packed ? (int64_t[]){rows, HEADS, dim_v} : (int64_t[]){BATCH, HEADS, rows, dim_v});
  make(&p->lse, k == F64 ? F64 : F32, packed ? 2 : 3,
       packed ? (int64_t[]){HEADS, rows} : (int64_t[]){BATCH, HEADS, rows});
  draw(&p->q);
  fill(&p->o, NAN), fill(&p->lse, NAN);
  int_array(&p->used[0], 1, (int64_t[]){BATCH}), int_array(&p->used[1], 1, (int64_t[]){BATCH}),
      int_array(&p->cu, 1, (int64_t[]){BATCH + 1}), int_array(&p->cu_new, 1, (int64_t[]){BATCH + 1});
  memcpy(p->cu.host, p->cu_q, sizeof p->cu_q);
  send(&p->cu);
}

static void close_problem(problem *p) {
  array *all[] = {&p->q,      &p->o,     &p->lse,     &p->cache[0], &p->cache[1], &p->raw[0],
                  &p->raw[1], &p->table, &p->used[0], &p->used[1],  &p->cu,       &p->cu_new};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
  for (int i = 0; i < NUM_INPUTS; ++i) drop(&p->in[i]);
}

static luattn_batch *open_batch(const problem *p, const int32_t *lengths, const array *used, const array *cu) {
  luattn_batch_options options = {.struct_size = sizeof options, .seqused_k = &used->t, .max_seqlen_k = LONGEST};
  luattn_batch *batch;
  memcpy(used->host, lengths, BATCH * sizeof *lengths);
  send((array *)(uintptr_t)used);
  if ((p->mode & CACHE) == 0) options.block_table = &p->table.t;
  if (p->mode & PACKED) options.cu_seqlens_q = &cu->t, options.max_seqlen_q = 70;
  if (p->mode & SHIFTED) options.q_offset = options.kv_offset = SHIFT;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  return batch;
}

static size_t take_inputs(const problem *p, int spec, bool of_mods, luattn_input *inputs) {
  size_t n = 0;
  for (int i = 0; i < (of_mods ? BY_KEY : NUM_INPUTS); ++i)
    if (specs[spec].reads >> i & 1) inputs[n++] = (luattn_input){input_name[i], &p->in[i].t, NULL};
  return n;
}

static const luattn_scalar rate = {"rate", 0.375};

/* Part 0 or 1 of each entry's rows, and the arguments that append them. */
typedef struct new_rows {
  array rows[2];
  luattn_input inputs[NUM_INPUTS];
  luattn_append_args args;
} new_rows;

static void open_rows(problem *p, int spec, int part, new_rows *out) {
  const bool packed = (p->mode & PACKED) != 0;
  int32_t before[BATCH], *cu = p->cu_new.host;
  array *rows = out->rows;
  for (int b = 0; b < BATCH; ++b) before[b] = part == 0 ? 0 : p->rows[0][b], cu[b + 1] = cu[b] + p->rows[part][b];
  send(&p->cu_new);
  for (int side = 0; side < 2; ++side) {
    const int64_t dim = p->dim[side], n = packed ? cu[BATCH] + 2 : p->rows[part][0]; /* two rows that are of no entry */
    make(&rows[side], p->k, packed ? 3 : 4,
         packed ? (int64_t[]){n, HEADS_KV, dim} : (int64_t[]){BATCH, HEADS_KV, n, dim});
    for (size_t i = 0; i < rows[side].count; ++i) put(p->k, rows[side].host, i, NAN);
    for (int b = 0; b < BATCH; ++b)
      for (int h = 0; h < HEADS_KV; ++h)
        for (int i = 0; i < p->rows[part][b]; ++i)
          for (int d = 0; d < dim; ++d) {
            const size_t to =
                packed ? ((size_t)(cu[b] + i) * HEADS_KV + (size_t)h) * (size_t)dim + (size_t)d
                       : (((size_t)b * HEADS_KV + (size_t)h) * (size_t)n + (size_t)i) * (size_t)dim + (size_t)d;
            put(p->k, rows[side].host, to, get(p->k, p->raw[side].host, raw_at(p, side, b, h, before[b] + i, d)));
          }
    send(&rows[side]);
  }
  out->args = (luattn_append_args){.struct_size = sizeof out->args,
                                   .k = &p->cache[0].t,
                                   .v = &p->cache[1].t,
                                   .new_k = &rows[0].t,
                                   .new_v = &rows[1].t,
                                   .batch = open_batch(p, before, &p->used[0], &p->cu_new),
                                   .inputs = out->inputs,
                                   .num_inputs = take_inputs(p, spec, true, out->inputs),
                                   .scalars = &rate,
                                   .num_scalars = spec == SCALED};
}

static void close_rows(new_rows *r) {
  luattn_batch_close((luattn_batch *)(uintptr_t)r->args.batch);
  for (int side = 0; side < 2; ++side) drop(&r->rows[side]);
}

/* ---- what the cache should hold ---- */

static double input_at(const problem *p, int i, int row, int column) {
  return get(F32, p->in[i].host, (size_t)(row * (int)p->in[i].shape[1] + column));
}

/* An element after the spec's mod, and the sum of the magnitudes of what it adds up, of which a float is off by some
 * 2^-24. */
static double modified(const problem *p, int spec, int side, int b, int h, int i, int d, double *magnitude) {
  const int dim = p->dim[side], half = dim / 2, pos = i + (p->mode & SHIFTED ? SHIFT : 0);
  const void *raw = p->raw[side].host;
  const double x = get(p->k, raw, raw_at(p, side, b, h, i, d));
  *magnitude = 0;
  if (spec == ROTARY && side == 0) {
    const double y = get(p->k, raw, raw_at(p, side, b, h, i, (d + half) % dim)), c = input_at(p, COSINE, pos, d % half),
                 s = input_at(p, SINE, pos, d % half);
    *magnitude = fabs(x * c) + fabs(y * s);
    return d < half ? x * c - y * s : x * c + y * s;
  }
  if (spec == SCALED) {
    const double s = input_at(p, BY_POSITION, h, i > 0 ? i - 1 : 0), shift = get(F32, p->in[BY_BATCH].host, (size_t)b);
    const double add = side == 0 ? 0.125 * h + rate.value * (d % 2) : 0.01 * pos + shift, from = side == 0 ? x * s : x;
    *magnitude = fabs(from) + fabs(add) + fabs(shift);
    return from + add;
  }
  if (spec == MIXED && side == 1) {
    const double y = get(p->k, raw, raw_at(p, side, b, h, i, (d * 5 + 1) % dim));
    *magnitude = 0.5 * (fabs(x) + fabs(y));
    return 0.5 * x + 0.5 * y;
  }
  return x;
}

static void compare_cache(problem *p, int spec, int side) {
  array *got = &p->cache[side];
  const double unit = 2 * kind_unit[p->k], real = p->k == F64 ? 0x1p-53 : 0x1p-24;
  double off = 0;
  fetch(got);
  for (int b = 0; b < BATCH; ++b)
    for (int h = 0; h < HEADS_KV; ++h)
      for (int i = 0; i < p->length[b]; ++i)
        for (int d = 0; d < p->dim[side]; ++d) {
          double magnitude;
          const size_t at = cache_at(p, side, b, h, i, d);
          const double want = modified(p, spec, side, b, h, i, d, &magnitude), x = get(p->k, got->host, at),
                       allowed = magnitude == 0 ? 0
                                                : unit * fabs(want) + 4 * real * magnitude * (1 + unit) +
                                                      0x1p-25; /* halves may be subnormal */
          if (!(fabs(x - want) <= allowed)) off = fmax(off, isnan(x) ? INFINITY : fabs(x - want));
          put(p->k, got->host, at, NAN);
        }
  if (off > 0) fail(p, spec, side == 0 ? "a key of the cache differs" : "a value of the cache differs", off);
  bool others = false;
  for (size_t i = 0; i < got->count; ++i) others = others || !isnan(get(p->k, got->host, i));
  if (others) fail(p, spec, "an element of the cache was written that is no new row's", 0);
}

/* ---- attention ---- */

/* Entry b's O over the raw rows, on the CPU; keys_modified 1: over what they should have become. */
static void reference(const problem *p, const luattn_spec *spec, int number, int b, double *o, double *lse) {
  const int nq = q_len_of(p, b), nk = p->length[b];
  int64_t qs[] = {b + 1, HEADS, nq, p->dim[0]},
          ks[2][4] = {{b + 1, HEADS_KV, nk, p->dim[0]}, {b + 1, HEADS_KV, nk, p->dim[1]}},
          os[] = {b + 1, HEADS, nq, p->dim[1]}, ls[] = {b + 1, HEADS, nq}, in_shape[] = {HEADS_KV, nk},
          in_stride[] = {PLACES, 1}, b_shape[] = {b + 1};
  double *q = calloc((size_t)((b + 1) * HEADS * nq * p->dim[0]) + 1, 8), *kv[2];
  for (int h = 0; h < HEADS; ++h)
    for (int i = 0; i < nq; ++i)
      for (int d = 0; d < p->dim[0]; ++d)
        q[(((size_t)b * HEADS + (size_t)h) * (size_t)nq + (size_t)i) * (size_t)p->dim[0] + (size_t)d] = get(
            p->k, p->q.host,
            p->mode & PACKED ? (((size_t)(p->cu_q[b] + i)) * HEADS + (size_t)h) * (size_t)p->dim[0] + (size_t)d
                             : (((size_t)b * HEADS + (size_t)h) * Q_LEN + (size_t)i) * (size_t)p->dim[0] + (size_t)d);
  DLTensor t[6];
  for (int side = 0; side < 2; ++side) {
    kv[side] = calloc((size_t)((b + 1) * HEADS_KV * nk * p->dim[side]) + 1, 8);
    for (int h = 0; h < HEADS_KV; ++h)
      for (int i = 0; i < nk; ++i)
        for (int d = 0; d < p->dim[side]; ++d)
          kv[side][(((size_t)b * HEADS_KV + (size_t)h) * (size_t)nk + (size_t)i) * (size_t)p->dim[side] + (size_t)d] =
              get(p->k, p->raw[side].host, raw_at(p, side, b, h, i, d));
  }
  void *data[] = {q, kv[0], kv[1], o, lse};
  int64_t *shape[] = {qs, ks[0], ks[1], os, ls};
  for (int i = 0; i < 5; ++i)
    t[i] = (DLTensor){
        .data = data[i], .device = {kDLCPU, 0}, .ndim = i == 4 ? 3 : 4, .dtype = {kDLFloat, 64, 1}, .shape = shape[i]};
  DLTensor cut[NUM_INPUTS];
  luattn_input inputs[NUM_INPUTS];
  size_t n = take_inputs(p, number, false, inputs);
  for (size_t i = 0; i < n; ++i) {
    int which = 0;
    while (strcmp(inputs[i].name, input_name[which]) != 0) ++which;
    cut[i] = p->in[which].t;
    cut[i].data = p->in[which].host, cut[i].device = (DLDevice){kDLCPU, 0};
    if (which == BY_POSITION) cut[i].shape = in_shape, cut[i].strides = in_stride;
    if (which == BY_BATCH) cut[i].shape = b_shape;
    if (which == BY_KEY) cut[i].shape = &in_shape[1];
    inputs[i].tensor = &cut[i];
  }
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .q_offset = p->mode & SHIFTED ? SHIFT : 0,
                                        .kv_offset = p->mode & SHIFTED ? SHIFT : 0};
  luattn_batch *batch;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch of an entry");
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &t[0],
                            .k = &t[1],
                            .v = &t[2],
                            .o = &t[3],
                            .lse = &t[4],
                            .inputs = inputs,
                            .num_inputs = n,
                            .scalars = &rate,
                            .num_scalars = number == SCALED,
                            .batch = batch};
  need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "reference");
  luattn_batch_close(batch);
  free(q), free(kv[0]), free(kv[1]);
}

/* The largest difference of O from that over raw rows. */
static double compare_o(const problem *p, const luattn_spec *spec, int number) {
  double off = 0;
  for (int b = 0; b < BATCH; ++b) {
    const int nq = q_len_of(p, b), dim = p->dim[1];
    double *o = calloc((size_t)((b + 1) * HEADS * nq * dim) + 1, 8),
           *lse = calloc((size_t)((b + 1) * HEADS * nq) + 1, 8);
    reference(p, spec, number, b, o, lse);
    for (int h = 0; h < HEADS; ++h)
      for (int i = 0; i < nq; ++i)
        for (int d = 0; d < dim; ++d) {
          const double want = o[(((size_t)b * HEADS + (size_t)h) * (size_t)nq + (size_t)i) * (size_t)dim + (size_t)d],
                       got = get(p->k, p->o.host,
                                 p->mode & PACKED
                                     ? ((size_t)(p->cu_q[b] + i) * HEADS + (size_t)h) * (size_t)dim + (size_t)d
                                     : (((size_t)b * HEADS + (size_t)h) * Q_LEN + (size_t)i) * (size_t)dim + (size_t)d);
          if (!(fabs(got - want) <= off)) off = isnan(got) ? INFINITY : fabs(got - want);
        }
    free(o), free(lse);
  }
  return off;
}

/* A kernel over raw keys is off by up to 4 of kind_unit, half an ulp of 0.5. Here q', k' and v' up to 1.5 have been
 * rounded as well: products of q' and k' have independent errors of up to 2 each, which move a score by 0.4 in the mean
 * and 1.6 at four times that, and with it O; those of v' move O by 1.5 at most. */
static double tolerance(kind k) { return k == F64 ? 1e-12 : k == F32 ? 2e-6 : 7 * kind_unit[k]; }

static void attend(problem *p, luattn_engine *engine, const luattn_spec *spec, int number, luattn_args *args) {
  array workspace;
  size_t size;
  const int32_t lengths[] = {p->length[0], p->length[1], p->length[2], p->length[3]};
  luattn_batch *batch = open_batch(p, lengths, &p->used[1], &p->cu);
  args->batch = batch;
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 2, (int64_t[]){(int64_t)(size / 4 + 64), 1});
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need(luattn_forward(engine, spec, args, NULL, &err) == LUATTN_OK, "forward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&p->o);
  const double off = compare_o(p, spec, number);
  if (args->keys_modified && !(off <= tolerance(p->k))) fail(p, number, "O differs from attention over raw rows", off);
  /* Without keys_modified, which only the CPU takes here, mods come twice. */
  if (!args->keys_modified && off <= tolerance(BF16)) fail(p, number, "mods that come twice change nothing", off);
  luattn_batch_close(batch);
  drop(&workspace);
}

static void refuses(problem *p, luattn_engine *engine, const luattn_spec *spec, const luattn_kernel *kernel,
                    const luattn_args *args) {
  luattn_args other = *args;
  const int32_t lengths[] = {p->length[0], p->length[1], p->length[2], p->length[3]};
  luattn_batch *batch = open_batch(p, lengths, &p->used[1], &p->cu);
  other.batch = batch;
  other.keys_modified = 0;
  if (luattn_launch(kernel, &other, NULL, &err) != LUATTN_INVALID ||
      strstr(err.message, "keys_modified: is 0, and the kernel is compiled for 1") == NULL)
    fail(p, 0, err.message, 0);
  if (driver != NULL && (luattn_forward(engine, spec, &other, NULL, &err) != LUATTN_UNSUPPORTED ||
                         strstr(err.message, "set keys_modified = 1") == NULL))
    fail(p, 0, err.message, 0);
  other.keys_modified = 2;
  if (luattn_forward(engine, spec, &other, NULL, &err) == LUATTN_OK ||
      strstr(err.message, "keys_modified: is 2, expected 0 or 1") == NULL)
    fail(p, 0, err.message, 0);
  other.keys_modified = 1, other.batch = NULL;
  if (luattn_backward(engine, spec, &other, NULL, &err) == LUATTN_OK ||
      strstr(err.message, "keys_modified: is 1, and there is no backward") == NULL)
    fail(p, 0, err.message, 0);
  luattn_batch_close(batch);
}

static void check(luattn_engine *engine, const luattn_spec *spec, int number, kind k, int page_size, int mode, int dim,
                  int dim_v) {
  problem p;
  open_problem(&p, k, dim, dim_v, page_size, mode);
  luattn_input inputs[NUM_INPUTS];
  luattn_args args = {.struct_size = sizeof args,
                      .q = &p.q.t,
                      .k = &p.cache[0].t,
                      .v = &p.cache[1].t,
                      .o = &p.o.t,
                      .lse = &p.lse.t,
                      .inputs = inputs,
                      .num_inputs = take_inputs(&p, number, true, inputs),
                      .scalars = &rate,
                      .num_scalars = number == SCALED,
                      .keys_modified = 1,
                      .decode = strcmp(family, "decode") == 0 ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER};
  const int32_t lengths[] = {p.length[0], p.length[1], p.length[2], p.length[3]};
  luattn_batch *batch = open_batch(&p, lengths, &p.used[1], &p.cu);
  const luattn_kernel *kernel;
  args.batch = batch;
  need(luattn_engine_kernel(engine, spec, LUATTN_FORWARD, &args, &kernel, &err) == LUATTN_OK, "kernel");
  luattn_batch_close(batch);
  args.num_inputs = take_inputs(&p, number, false, inputs);
  const bool at_once = (mode & HEADS_FIRST) != 0;
  for (int part = 0; part < 2; ++part) {
    new_rows rows;
    open_rows(&p, number, part, &rows);
    if (part == 1 && at_once) {
      rows.args.k = rows.args.v = NULL, rows.args.inputs = NULL, rows.args.num_inputs = 0, rows.args.scalars = NULL,
      rows.args.num_scalars = 0;
      args.append = &rows.args;
      attend(&p, engine, spec, number, &args);
      args.append = NULL;
    } else {
      need(luattn_append(kernel, &rows.args, NULL, &err) == LUATTN_OK, "append");
      if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
      if (part == 1) attend(&p, engine, spec, number, &args);
    }
    close_rows(&rows);
  }
  if (number == ROTARY) refuses(&p, engine, spec, kernel, &args);
  if (number != PLAIN && driver == NULL) {
    args.keys_modified = 0;
    attend(&p, engine, spec, number, &args);
  }
  for (int side = 0; side < 2; ++side) compare_cache(&p, number, side);
  close_problem(&p);
}

int main(int argc, char **argv) {
  static const char *const families[] = {"auto", "simt", "sm80", "sm90", "cpu", "decode"};
  static const int sizes[] = {1, 3, 16, 64};
  if (argc < 3) return 2;
  int of_family = 0, k = 0;
  while (of_family < 6 && strcmp(argv[1], families[of_family]) != 0) ++of_family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (of_family == 6 || k == 4) return 2;
  family = argv[1];
  const luattn_engine_options options = {.struct_size = sizeof options,
                                         .family = of_family < 4 ? of_family : 0,
                                         .device = of_family == 4 ? LUATTN_CPU : 0};
  luattn_engine *engine;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  const int only_size = argc > 3 ? atoi(argv[3]) : 0, only_spec = argc > 4 ? atoi(argv[4]) : -1,
            only_mode = argc > 5 ? atoi(argv[5]) : -1;
  luattn_spec *spec[NUM_SPECS];
  for (int i = 0; i < NUM_SPECS; ++i) {
    need(luattn_spec_load_text("append", specs[i].text, strlen(specs[i].text), NULL, &spec[i], &err) == LUATTN_OK,
         "spec");
    for (int s = 0; s < (only_size > 0 ? 1 : 4); ++s)
      for (int mode = 0; mode < MODES; ++mode) {
        const int size = only_size > 0 ? only_size : sizes[s], wide = (i + s) % 3 == 0;
        if (of_family == 3 && size % 8 != 0 && (mode & CACHE) == 0) continue;
        if (only_spec >= 0 && i != only_spec) continue;
        if (only_mode >= 0 ? mode != only_mode : mode != (7 * i + 5 * s) % MODES) continue;
        const int allowed = i == SCALED ? mode & ~SHIFTED : mode; /* pos - 1 may lie outside of a part */
        check(engine, spec[i], i, (kind)k, size, allowed, wide ? 128 : 64, wide ? 72 : 64);
      }
  }
  for (int i = 0; i < NUM_SPECS; ++i) luattn_spec_free(spec[i]);
  luattn_engine_close(engine);
  return failed;
}
