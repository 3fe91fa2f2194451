/* paged_test.c: forward over keys in pages, from luattn_forward to the kernels, which the PTX machine executes, or on
 * the CPU. The reference copies an entry's rows from their pages and calls the CPU path for dense tensors. Rows behind
 * an entry's last key, in its last page too, and pages that nobody uses are NaN; the table holds -1 and INT_MAX behind
 * an entry's last page. Entries differ in length; some have no keys. Pages have positions before heads or heads before
 * positions, q is dense or packed, and instead of pages there may be a cache of which entries use a part.
 *
 * paged_test FAMILY DTYPE [PAGE_SIZE [SPEC [MODE]]]: cpu f64, simt f32, sm80 f16, sm90 bf16, auto bf16, decode bf16, ..
 * MODE: bits of modes. Without them, every page size that the family reads, of every spec in one mode, and of the first
 * in all modes.
 */
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"

enum {
  BATCH = 6,
  HEADS = 4,
  HEADS_KV = 2,
  MOST_K = 207,
  SPARE = 3,
  Q_LEN = 37
}; /* MOST_K: more than any entry has keys */
static const int k_lens[BATCH] = {53, 0, 130, 200, 1, 77}, packed_lens[BATCH] = {37, 5, 0, 130, 1, 64};
enum { PACKED = 1, HEADS_FIRST = 2, CACHE = 4, SHIFTED = 8, MODES = 16 };
static const int32_t shifts_q[BATCH] = {11, 3, 0, 100, 7, 2}, shifts_k[BATCH] = {40, 0, 9, 5, 1, 0};

/* `pair` of [heads, q, MOST_K], `col` of [heads_kv, MOST_K], `flag` of [q, MOST_K], `id` of [batch, MOST_K]; axis q: as
 * q. */
enum { PAIR, COL, FLAG, ID, NUM_INPUTS };
static const char *const input_name[] = {"pair", "col", "flag", "id"};
#define DECLARE(what) "return attention { inputs = { " what " },\n  "
static const struct {
  const char *text;
  unsigned reads; /* bits of inputs */
  bool has_lse;
  int scale; /* of the tolerance */
} specs[] = {
    {"return attention { block_mask = causal_bottom_right() }", 0, true, 1},
    {"return attention { score_mod = softcap(20), block_mask = sliding_window(40, 10) }", 0, true, 1},
    {"return attention { score_mod = function(score, b, h, q, kv) return score + 0.05 * (h + 1) * (kv - kv_len) + 0.3 "
     "* b end }",
     0, true, 1},
    {DECLARE(
         "pair = { axes = {'h', 'q', 'kv'} }, col = { axes = {'hkv', 'kv'} }") "score_mod = function(s, b, h, q, kv) "
                                                                               "return s + pair[{h, q, kv + 3}] + "
                                                                               "col[{h // 2, kv}] end,\n"
                                                                               "block_mask = causal_bottom_right() }",
     1 << PAIR | 1 << COL, true, 1},
    {DECLARE("flag = { axes = {'q', 'kv'}, dtype = 'bool' }") "block_mask = function(b, h, q, kv) return flag[{q, kv}] "
                                                              "end }",
     1 << FLAG, true, 1},
    {DECLARE("id = { axes = {'b', 'kv'}, dtype = 'i32' }") "block_mask = function(b, h, q, kv) return id[{b, kv}] <= q "
                                                           "// 16 end }",
     1 << ID, true, 1},
    {"return attention { online_func = online_retention, block_mask = causal() }", 0, false, 64},
    {"return attention { online_func = sigmoid_attention }", 0, false, 64},
    {"return attention { query_mod = function(x, b, h, pos, d) return x * (1 + 0.001 * kv_len + 0.002 * pos) end,\n"
     "  block_mask = function(b, h, q, kv) return kv < kv_len - b end }",
     0, true, 4},
    {"return attention { key_mod = function(x, b, h, pos, d) return x * (1 + 0.01 * pos) end }", 0, true, 1}};
enum { PAIRS = 3, FLAGS = 4, RETENTION = 6, QUERY_MOD = 8, KEY_MOD = 9, NUM_SPECS };
_Static_assert(sizeof specs / sizeof *specs == NUM_SPECS, "all specs are numbered");

typedef struct problem {
  int dim, dim_v, page_size, mode, pages, num_pages, total_q, cu[BATCH + 1];
  array q, k, v, o, lse, cu_q, used, table, shift_q, shift_k, in[NUM_INPUTS];
} problem;

static int q_len_of(const problem *p, int b) { return p->mode & PACKED ? packed_lens[b] : Q_LEN; }

static void int_array(array *a, int ndim, const int64_t *shape) {
  make(a, I32, ndim, shape);
  a->t.ndim = ndim;
}

/* The number of an entry's i-th page: pages are spread over the cache. */
static int page_of(const problem *p, int b, int i) {
  int n = i;
  if (p->mode & CACHE) return b;
  for (int j = 0; j < b; ++j) n += (k_lens[j] + p->page_size - 1) / p->page_size;
  return p->num_pages - 1 - n;
}

/* The element of k or v at an entry's position. */
static size_t element(const problem *p, const array *a, int b, int h, int i, int d) {
  const size_t width = (size_t)a->shape[3], size = (size_t)p->page_size, page = (size_t)page_of(p, b, i / p->page_size),
               row = (size_t)(i % p->page_size), head = (size_t)h;
  const size_t at =
      p->mode & HEADS_FIRST ? (page * HEADS_KV + head) * size + row : (page * size + row) * HEADS_KV + head;
  return at * width + (size_t)d;
}

static int64_t strides[2][4];
static void draw_pages(const problem *p, array *a, kind k, int width, int64_t stride[4]) {
  const int64_t size = p->page_size;
  make(a, k, 4, (int64_t[]){p->num_pages, HEADS_KV, size, width});
  for (size_t i = 0; i < a->count; ++i) put(k, a->host, i, NAN);
  for (int b = 0; b < BATCH; ++b)
    for (int h = 0; h < HEADS_KV; ++h)
      for (int i = 0; i < k_lens[b]; ++i)
        for (int d = 0; d < width; ++d) put(k, a->host, element(p, a, b, h, i, d), drawn());
  send(a);
  const bool heads_first = (p->mode & HEADS_FIRST) != 0;
  stride[0] = HEADS_KV * size * width, stride[3] = 1;
  stride[1] = heads_first ? size * width : width, stride[2] = heads_first ? width : HEADS_KV * width;
  a->t.strides = stride;
}

static void draw_table(problem *p) {
  int_array(&p->table, 2, (int64_t[]){BATCH, p->pages});
  int32_t *to = p->table.host;
  for (int b = 0; b < BATCH; ++b)
    for (int i = 0; i < p->pages; ++i)
      to[b * p->pages + i] = i * p->page_size < k_lens[b] ? page_of(p, b, i) : i % 2 == 0 ? -1 : INT_MAX;
  send(&p->table);
  int_array(&p->used, 1, (int64_t[]){BATCH, 1});
  memcpy(p->used.host, k_lens, sizeof k_lens);
  int_array(&p->cu_q, 1, (int64_t[]){BATCH + 1, 1});
  memcpy(p->cu_q.host, p->cu, sizeof p->cu);
  int_array(&p->shift_q, 1, (int64_t[]){BATCH, 1}), int_array(&p->shift_k, 1, (int64_t[]){BATCH, 1});
  memcpy(p->shift_q.host, shifts_q, sizeof shifts_q), memcpy(p->shift_k.host, shifts_k, sizeof shifts_k);
  send(&p->used), send(&p->cu_q), send(&p->shift_q), send(&p->shift_k);
}

static void draw_inputs(problem *p) {
  const int64_t rows = p->mode & PACKED ? p->total_q : Q_LEN;
  make(&p->in[PAIR], F32, 3, (int64_t[]){HEADS, rows, MOST_K});
  make(&p->in[COL], F32, 2, (int64_t[]){HEADS_KV, MOST_K});
  make(&p->in[FLAG], F32, 2, (int64_t[]){rows, MOST_K});
  int_array(&p->in[ID], 2, (int64_t[]){BATCH, MOST_K});
  for (int i = PAIR; i <= COL; ++i)
    for (size_t j = 0; j < p->in[i].count; ++j) put(F32, p->in[i].host, j, drawn());
  for (size_t i = 0; i < p->in[FLAG].count; ++i)
    ((unsigned char *)p->in[FLAG].host)[i] = i * 7 % 11 < 4 || i / MOST_K % 5 == 0;
  for (int i = 0; i < BATCH * MOST_K; ++i) ((int32_t *)p->in[ID].host)[i] = i % MOST_K / 24 % 5;
  p->in[FLAG].t.dtype = (DLDataType){kDLUInt, 8, 1};
  for (int i = 0; i < NUM_INPUTS; ++i) send(&p->in[i]);
}

static void draw_problem(problem *p, kind k, int dim, int dim_v, int page_size, int mode) {
  *p = (problem){.dim = dim, .dim_v = dim_v, .page_size = mode & CACHE ? MOST_K : page_size, .mode = mode};
  p->pages = (k_lens[3] + p->page_size - 1) / p->page_size + 2;
  for (int b = 0; b < BATCH; ++b) {
    p->num_pages += (k_lens[b] + p->page_size - 1) / p->page_size;
    p->cu[b + 1] = p->cu[b] + packed_lens[b];
  }
  p->num_pages = mode & CACHE ? BATCH : p->num_pages + SPARE;
  p->total_q = p->cu[BATCH];
  const bool packed = (mode & PACKED) != 0;
  const int64_t rows = packed ? p->total_q : Q_LEN;
  const int64_t q[] = {BATCH, HEADS, rows, dim}, o[] = {BATCH, HEADS, rows, dim_v}, packed_q[] = {rows, HEADS, dim},
                packed_o[] = {rows, HEADS, dim_v}, lse[] = {BATCH, HEADS, rows}, packed_lse[] = {HEADS, rows};
  make(&p->q, k, packed ? 3 : 4, packed ? packed_q : q), make(&p->o, k, packed ? 3 : 4, packed ? packed_o : o);
  make(&p->lse, k == F64 ? F64 : F32, packed ? 2 : 3, packed ? packed_lse : lse);
  for (size_t i = 0; i < p->q.count; ++i) put(k, p->q.host, i, drawn());
  send(&p->q);
  fill(&p->o, NAN), fill(&p->lse, NAN);
  draw_pages(p, &p->k, k, dim, strides[0]), draw_pages(p, &p->v, k, dim_v, strides[1]);
  draw_table(p);
  draw_inputs(p);
}
static void drop_problem(problem *p) {
  array *all[] = {&p->q, &p->k, &p->v, &p->o, &p->lse, &p->cu_q, &p->used, &p->table, &p->shift_q, &p->shift_k};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
  for (int i = 0; i < NUM_INPUTS; ++i) drop(&p->in[i]);
}

/* ---- a single entry, on the CPU in double precision ---- */

static size_t q_element(const problem *p, const array *a, int b, int h, int i, int d) {
  const size_t width = (size_t)a->shape[a->t.ndim - 1], head = (size_t)h;
  if (p->mode & PACKED) return ((size_t)(p->cu[b] + i) * HEADS + head) * width + (size_t)d;
  return (((size_t)b * HEADS + head) * Q_LEN + (size_t)i) * width + (size_t)d;
}

/* Entry b of a tensor of b + 1 entries, whose others are zero, so that hooks see b. */
static double *copy_rows(const problem *p, const array *a, bool of_keys, int b, int heads, int len, int width) {
  double *x = calloc((size_t)((b + 1) * heads * len * width) + 1, sizeof *x),
         *to = x + (size_t)b * (size_t)(heads * len * width);
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < len; ++i)
      for (int d = 0; d < width; ++d)
        *to++ = get(a->k, a->host, of_keys ? element(p, a, b, h, i, d) : q_element(p, a, b, h, i, d));
  return x;
}

static DLTensor cpu_tensor(void *data, int ndim, int64_t *shape) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 64, 1}, .shape = shape};
}

typedef struct view {
  DLTensor t;
  int64_t shape[3], stride[3];
} view;

/* An input, cut to the entry's positions. */
static const DLTensor *cut_input(const problem *p, int i, int b, int nq, int nk, view *out) {
  const int64_t rows = p->mode & PACKED ? p->total_q : Q_LEN, first = p->mode & PACKED ? p->cu[b] : 0;
  const view views[] = {[PAIR] = {.shape = {HEADS, nq, nk}, .stride = {rows * MOST_K, MOST_K, 1}},
                        [COL] = {.shape = {HEADS_KV, nk}, .stride = {MOST_K, 1}},
                        [FLAG] = {.shape = {nq, nk}, .stride = {MOST_K, 1}},
                        [ID] = {.shape = {b + 1, nk}, .stride = {MOST_K, 1}}};
  *out = views[i];
  out->t = p->in[i].t;
  out->t.device = (DLDevice){kDLCPU, 0};
  out->t.shape = out->shape, out->t.strides = out->stride;
  out->t.data = (char *)p->in[i].host + (i == PAIR ? first * MOST_K * 4 : i == FLAG ? first * MOST_K : 0);
  return &out->t;
}

/* The largest differences of O and lse. */
static void compare(const luattn_spec *spec, const problem *p, int number, int b, double *of_o, double *of_lse) {
  const int nq = q_len_of(p, b), nk = k_lens[b];
  int64_t qs[] = {b + 1, HEADS, nq, p->dim}, ks[] = {b + 1, HEADS_KV, nk, p->dim},
          vs[] = {b + 1, HEADS_KV, nk, p->dim_v}, os[] = {b + 1, HEADS, nq, p->dim_v}, ls[] = {b + 1, HEADS, nq},
          ss[] = {1, b + 1, HEADS, nq};
  double *q = copy_rows(p, &p->q, false, b, HEADS, nq, p->dim), *k = copy_rows(p, &p->k, true, b, HEADS_KV, nk, p->dim),
         *v = copy_rows(p, &p->v, true, b, HEADS_KV, nk, p->dim_v),
         *o = calloc((size_t)((b + 1) * HEADS * nq * p->dim_v) + 1, 8),
         *lse = calloc((size_t)((b + 1) * HEADS * nq) + 1, 8), *saved = calloc((size_t)((b + 1) * HEADS * nq) + 1, 8);
  const DLTensor tq = cpu_tensor(q, 4, qs), tk = cpu_tensor(k, 4, ks), tv = cpu_tensor(v, 4, vs),
                 to = cpu_tensor(o, 4, os), tl = cpu_tensor(lse, 3, ls), ts = cpu_tensor(saved, 4, ss);
  view views[NUM_INPUTS];
  luattn_input inputs[NUM_INPUTS];
  size_t num_inputs = 0;
  for (int i = 0; i < NUM_INPUTS; ++i)
    if (specs[number].reads >> i & 1)
      inputs[num_inputs++] = (luattn_input){input_name[i], cut_input(p, i, b, nq, nk, &views[i]), NULL};
  const bool shifted = (p->mode & SHIFTED) != 0;
  const luattn_batch_options options = {
      .struct_size = sizeof options, .q_offset = shifted ? shifts_q[b] : 0, .kv_offset = shifted ? shifts_k[b] : 0};
  luattn_batch *batch;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch of an entry");
  const luattn_args args = {.struct_size = sizeof args,
                            .q = &tq,
                            .k = &tk,
                            .v = &tv,
                            .o = &to,
                            .lse = specs[number].has_lse ? &tl : NULL,
                            .saved = number == RETENTION ? &ts : NULL,
                            .inputs = inputs,
                            .num_inputs = num_inputs,
                            .batch = batch};
  need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "dense");
  *of_o = *of_lse = 0;
  for (int h = 0; h < HEADS; ++h)
    for (int i = 0; i < nq; ++i) {
      const size_t row = ((size_t)b * HEADS + (size_t)h) * (size_t)nq + (size_t)i;
      for (int d = 0; d < p->dim_v; ++d) {
        const double want = o[row * (size_t)p->dim_v + (size_t)d],
                     got = get(p->o.k, p->o.host, q_element(p, &p->o, b, h, i, d));
        if (!(fabs(got - want) <= *of_o)) *of_o = fabs(got - want);
      }
      const size_t at = p->mode & PACKED ? (size_t)(h * p->total_q + p->cu[b] + i)
                                         : ((size_t)b * HEADS + (size_t)h) * Q_LEN + (size_t)i;
      const double want = lse[row], got = get(p->lse.k, p->lse.host, at);
      if (specs[number].has_lse && got != want && !(fabs(got - want) <= *of_lse)) *of_lse = fabs(got - want);
    }
  luattn_batch_close(batch);
  free(q), free(k), free(v), free(o), free(lse), free(saved);
}

/* Whether LUATTN_CHECK finds numbers that are no pages, where they are needed, and accepts the others. */
static bool finds_bad_pages(luattn_engine *engine, luattn_spec *spec, problem *p, const luattn_args *args) {
  int32_t *const at = (int32_t *)p->table.host + 3 * p->pages + (k_lens[3] - 1) / p->page_size;
  const int32_t right = *at, wrong[] = {-1, p->num_pages};
  bool found = true;
  setenv("LUATTN_CHECK", "1", 1);
  for (int i = 0; i < 3; ++i) {
    *at = i < 2 ? wrong[i] : right;
    send(&p->table);
    const luattn_status status = luattn_forward(engine, spec, args, NULL, &err);
    found = found && (i == 2 ? status == LUATTN_OK
                             : status == LUATTN_INVALID && strstr(err.message, "batch: block_table: is ") != NULL);
    if (driver != NULL && i == 2) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  }
  unsetenv("LUATTN_CHECK");
  return found;
}

/* ---- new rows ---- */

enum { NEW_ROWS = 2 }; /* of each entry, where they are not packed */
static const int packed_rows[BATCH] = {3, 0, 2, 3, 1, 7};

typedef struct appended {
  int first[BATCH + 1], count[BATCH];
  int32_t before[BATCH];
  array used, cu, rows[2], cache[2];
} appended;

/* The caches are those of the problem; new rows of entry b are its last ones, or the first two of one that has
 * fewer. */
static void draw_rows(problem *p, appended *a) {
  const bool packed = (p->mode & PACKED) != 0;
  int32_t *table = p->table.host;
  for (int b = 0; b < BATCH; ++b) {
    a->count[b] = packed ? packed_rows[b] : NEW_ROWS;
    a->before[b] = k_lens[b] > a->count[b] ? k_lens[b] - a->count[b] : 0;
    a->first[b + 1] = a->first[b] + a->count[b];
  }
  for (int b = 0, spare = 0; b < BATCH; ++b) /* pages for entries that grow */
    for (int i = a->before[b]; i < a->before[b] + a->count[b]; ++i)
      if (i >= k_lens[b] && (i % p->page_size == 0 || i == a->before[b]))
        table[b * p->pages + i / p->page_size] = spare++;
  send(&p->table);
  int_array(&a->used, 1, (int64_t[]){BATCH, 1}), int_array(&a->cu, 1, (int64_t[]){BATCH + 1, 1});
  memcpy(a->used.host, a->before, sizeof a->before), memcpy(a->cu.host, a->first, sizeof a->first);
  send(&a->used), send(&a->cu);
  for (int side = 0; side < 2; ++side) {
    const array *of = side == 0 ? &p->k : &p->v;
    const int64_t width = of->shape[3];
    if (packed)
      make(&a->rows[side], of->k, 3, (int64_t[]){a->first[BATCH], HEADS_KV, width});
    else
      make(&a->rows[side], of->k, 4, (int64_t[]){BATCH, HEADS_KV, NEW_ROWS, width});
    for (size_t i = 0; i < a->rows[side].count; ++i) put(of->k, a->rows[side].host, i, drawn());
    send(&a->rows[side]);
    make(&a->cache[side], of->k, 4, of->shape);
    for (size_t i = 0; i < of->count; ++i) put(of->k, a->cache[side].host, i, get(of->k, of->host, i));
    send(&a->cache[side]);
    a->cache[side].t.strides = strides[side];
  }
}

/* Every element of the cache is the new row's that belongs there, or what it was. */
static bool rows_are_there(const problem *p, const appended *a, int side) {
  const array *of = side == 0 ? &p->k : &p->v, *got = &a->cache[side];
  array want = *of;
  const size_t width = (size_t)of->shape[3];
  want.host = calloc(of->count + 1, 8);
  for (size_t i = 0; i < of->count; ++i) put(of->k, want.host, i, get(of->k, of->host, i));
  for (int b = 0; b < BATCH; ++b)
    for (int i = 0; i < a->count[b]; ++i)
      for (int h = 0; h < HEADS_KV; ++h)
        for (size_t d = 0; d < width; ++d) {
          const int position = a->before[b] + i, size = p->page_size,
                    page = p->mode & CACHE ? b : ((const int32_t *)p->table.host)[b * p->pages + position / size];
          const int64_t *s = strides[side];
          const size_t to = (size_t)(page * s[0] + h * s[1] + position % size * s[2]) + d,
                       from = (p->mode & PACKED ? (size_t)(a->first[b] + i) * HEADS_KV + (size_t)h
                                                : ((size_t)b * HEADS_KV + (size_t)h) * NEW_ROWS + (size_t)i) *
                                  width +
                              d;
          put(of->k, want.host, to, get(of->k, a->rows[side].host, from));
        }
  bool same = true;
  for (size_t i = 0; i < of->count; ++i) {
    const double x = get(of->k, want.host, i), y = get(of->k, got->host, i);
    same = same && (x == y || (isnan(x) && isnan(y)));
  }
  free(want.host);
  return same;
}

static bool appends(luattn_engine *engine, luattn_spec *spec, problem *p, const luattn_args *args,
                    luattn_batch_options options) {
  appended a = {.first = {0}};
  const luattn_kernel *kernel;
  luattn_batch *batch;
  draw_rows(p, &a);
  options.seqused_k = &a.used.t, options.q_offsets = options.kv_offsets = NULL;
  if (p->mode & PACKED) options.cu_seqlens_q = &a.cu.t;
  need(luattn_engine_kernel(engine, spec, LUATTN_FORWARD, args, &kernel, &err) == LUATTN_OK, "kernel");
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch of new rows");
  const luattn_append_args given = {.struct_size = sizeof given,
                                    .k = &a.cache[0].t,
                                    .v = &a.cache[1].t,
                                    .new_k = &a.rows[0].t,
                                    .new_v = &a.rows[1].t,
                                    .batch = batch};
  need(luattn_append(kernel, &given, NULL, &err) == LUATTN_OK, "append");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&a.cache[0]), fetch(&a.cache[1]);
  const bool ok = rows_are_there(p, &a, 0) && rows_are_there(p, &a, 1);
  luattn_batch_close(batch);
  drop(&a.used), drop(&a.cu);
  for (int side = 0; side < 2; ++side) drop(&a.rows[side]), drop(&a.cache[side]);
  return ok;
}

/* Compares O and lse of all entries with the CPU's. */
static bool entries_are_right(luattn_spec *spec, const problem *p, int number, kind k, const char *family, int mode) {
  bool ok = true;
  for (int b = 0; b < BATCH; ++b) {
    double of_o, of_lse;
    compare(spec, p, number, b, &of_o, &of_lse);
    const double tolerance = (k == F64 ? 1e-12 : k == F32 ? 2e-6 : 4 * kind_unit[k]) * specs[number].scale;
    /* Kernels round what query_mod gives to the type of q. */
    const double rounded = number == QUERY_MOD ? 16 * kind_unit[k] : 0, of_type = k == F64 ? 1e-12 : 2e-5;
    if (of_o <= tolerance && of_lse <= of_type * specs[number].scale + rounded) continue;
    fprintf(stderr,
            "FAILED: %s %s pages of %d, spec %d, mode %d, D %d Dv %d, entry %d (%d x %d): O %g (allowed %g), lse %g\n",
            family, kind_name[k], p->page_size, number, mode, p->dim, p->dim_v, b, q_len_of(p, b), k_lens[b], of_o,
            tolerance, of_lse);
    ok = false;
  }
  return ok;
}

static bool check(luattn_engine *engine, luattn_spec *spec, int number, kind k, const char *family, int page_size,
                  int mode, int dim, int dim_v) {
  problem p;
  bool ok = true;
  draw_problem(&p, k, dim, dim_v, page_size, mode);
  luattn_batch_options options = {.struct_size = sizeof options, .seqused_k = &p.used.t, .max_seqlen_k = MOST_K};
  if ((mode & CACHE) == 0) options.block_table = &p.table.t;
  if (mode & PACKED) options.cu_seqlens_q = &p.cu_q.t, options.max_seqlen_q = 130;
  if (mode & SHIFTED) options.q_offsets = &p.shift_q.t, options.kv_offsets = &p.shift_k.t;
  luattn_batch *batch;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  luattn_input inputs[NUM_INPUTS];
  size_t num_inputs = 0, size;
  for (int i = 0; i < NUM_INPUTS; ++i)
    if (specs[number].reads >> i & 1) inputs[num_inputs++] = (luattn_input){input_name[i], &p.in[i].t, NULL};
  array saved, workspace;
  if (mode & PACKED)
    make(&saved, p.lse.k, 3, (int64_t[]){1, HEADS, p.total_q});
  else
    make(&saved, p.lse.k, 4, (int64_t[]){1, BATCH, HEADS, Q_LEN});
  send(&saved);
  luattn_args args = {.struct_size = sizeof args,
                      .q = &p.q.t,
                      .k = &p.k.t,
                      .v = &p.v.t,
                      .o = &p.o.t,
                      .lse = specs[number].has_lse ? &p.lse.t : NULL,
                      .saved = number == RETENTION ? &saved.t : NULL,
                      .inputs = inputs,
                      .num_inputs = num_inputs,
                      .batch = batch,
                      .decode = strcmp(family, "decode") == 0 ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER,
                      .skip = number == FLAGS && (mode & SHIFTED) == 0 && strcmp(family, "decode") != 0
                                  ? LUATTN_SKIP_ALWAYS
                                  : LUATTN_SKIP_AUTO};
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 2, (int64_t[]){(int64_t)(size / 4 + 64), 1});
  args.workspace = size > 0 ? workspace.device : NULL, args.workspace_size = size;
  need(luattn_forward(engine, spec, &args, NULL, &err) == LUATTN_OK, "forward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&p.o), fetch(&p.lse);
  ok &= entries_are_right(spec, &p, number, k, family, mode);
  if (number == 0 && (mode & CACHE) == 0 && !finds_bad_pages(engine, spec, &p, &args)) {
    fprintf(stderr, "FAILED: %s pages of %d: a number that is no page was accepted, or: %s\n", family, p.page_size,
            err.message);
    ok = false;
  }
  if (number == 0 && !appends(engine, spec, &p, &args, options)) {
    fprintf(stderr, "FAILED: %s %s pages of %d, mode %d: luattn_append wrote other rows\n", family, kind_name[k],
            p.page_size, mode);
    ok = false;
  }
  drop(&saved), drop(&workspace);
  luattn_batch_close(batch);
  drop_problem(&p);
  return ok;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"auto", "simt", "sm80", "sm90", "cpu", "decode"};
  static const int sizes[] = {1, 3, 16, 64, 256};
  if (argc < 3) return 2;
  int family = 0, k = 0, failed = 0;
  while (family < 6 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 6 || k == 4) return 2;
  const bool on_cpu = family == 4;
  const luattn_engine_options options = {
      .struct_size = sizeof options, .family = family < 4 ? family : 0, .device = on_cpu ? LUATTN_CPU : 0};
  luattn_engine *engine;
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  luattn_spec *spec[NUM_SPECS];
  for (int i = 0; i < NUM_SPECS; ++i)
    need(luattn_spec_load_text("paged", specs[i].text, strlen(specs[i].text), NULL, &spec[i], &err) == LUATTN_OK,
         "spec");
  const int only_size = argc > 3 ? atoi(argv[3]) : 0, only_spec = argc > 4 ? atoi(argv[4]) : -1,
            only_mode = argc > 5 ? atoi(argv[5]) : -1;
  for (int i = 0; i < NUM_SPECS; ++i)
    for (int s = 0; s < (only_size > 0 ? 1 : 5); ++s)
      for (int mode = 0; mode < MODES; ++mode) {
        const int size = only_size > 0 ? only_size : sizes[s];
        if ((i == KEY_MOD && !on_cpu) || (family == 3 && size % 8 != 0 && (mode & CACHE) == 0)) continue;
        if (only_spec >= 0 && i != only_spec) continue;
        const bool in_turn = (i == 0 && s == 2) || mode == (i + 5 * s) % MODES;
        if (only_mode >= 0 ? mode != only_mode : !in_turn) continue;
        const int wide = (i + s) % 3 == 0,
                  allowed = i == PAIRS ? mode & ~SHIFTED : mode; /* kv + 3 may lie outside of a part */
        failed += !check(engine, spec[i], i, (kind)k, argv[1], size, allowed, wide ? 128 : 64, wide ? 72 : 64);
      }
  for (int i = 0; i < NUM_SPECS; ++i) luattn_spec_free(spec[i]);
  luattn_engine_close(engine);
  return failed != 0;
}
