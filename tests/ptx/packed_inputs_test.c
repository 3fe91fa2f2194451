/* packed_inputs_test.c: inputs along the queries or keys of packed sequences, and input mods, forward and backward,
 * from luattn_forward and luattn_backward to the kernels, which the PTX machine executes, or on the CPU. The reference
 * is plain arithmetic in double precision here, for each sequence alone, with the score and its derivatives written
 * once more in C. Tests all sequences in one launch, and each in a separate launch with NaN in all that belongs to
 * others: rows of Q, K, V, O, dO, lse, dlse, of inputs, and columns of pairs behind a sequence's keys. What belongs to
 * others must not change, and in gradients of inputs is zero. Two cases have input mods: one by the element, one that
 * turns pairs of channels.
 *
 * All is done again with rows behind each sequence that are not used (seqused), and hold NaN.
 *
 * packed_inputs_test FAMILY DTYPE [CASE [SEQUENCE [D Dv [UNUSED]]]]: simt f32, sm80 f16, sm90 bf16, cpu f64, .. With
 * the number of a case, only that one; with that of a sequence, or -1 for all in one launch, only this
 * launch. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum {
  BATCH = 6,
  HEADS = 4,
  HEADS_KV = 2,
  MARGIN = 3,
  CPU = 3,
  MOST_K = 207
}; /* MOST_K: more than any sequence has keys */
static const int q_lens[BATCH] = {37, 0, 130, 1, 64, 5}, k_lens[BATCH] = {53, 9, 131, 200, 0, 77};

/* What a spec reads: `pair` of [heads, total_q, MOST_K], `row` of [1, total_q], `col` of [heads_kv, total_k], `id_q`,
 * `id_k`, `flag` of [total_q, MOST_K], `on` of [total_k], `blocks` of [batch, TABLE_ROWS, TABLE_COLUMNS]. */
enum { PAIR, ROW, COL, ID_Q, ID_K, FLAG, ON, TABLE, NUM_INPUTS, NUM_GRADS = ID_Q };
static const char *const input_name[] = {"pair", "row", "col", "id_q", "id_k", "flag", "on", "blocks"};
static const bool by_keys[] = {[COL] = true, [ID_K] = true, [FLAG] = false};
enum { TABLE_ROWS = 5, TABLE_COLUMNS = 4 };

#define DECLARE(what) "return attention { inputs = { " what " },\n  "
static const struct {
  const char *text;
  unsigned reads; /* bits of inputs */
  bool half;      /* `pair` has the type of q */
} cases[] = {
    {DECLARE("pair = { axes = {'h', 'q', 'kv'}, grad = true }, row = { axes = {'b', 'q'}, grad = true },\n"
             "col = { axes = {'hkv', 'kv'}, grad = true }") "score_mod = function(s, b, h, q, kv) return s + pair[{h, "
                                                            "q, kv}] + row[{b, q}] * col[{h // 2, kv}] end,\n"
                                                            "block_mask = causal_bottom_right() }",
     1 << PAIR | 1 << ROW | 1 << COL, false},
    {DECLARE("id_q = { axes = {'q'}, dtype = 'i32' }, id_k = { axes = {'kv'}, dtype = 'i32' }, row = { axes = {'b', "
             "'q'}, grad = true }") "score_mod = function(s, b, h, q, kv) return s * (1 + 0.5 * row[{b, q}]) end,\n"
                                    "block_mask = function(b, h, q, kv) return eq(id_q[q], id_k[kv]) end }",
     1 << ROW | 1 << ID_Q | 1 << ID_K, false},
    {DECLARE(
         "pair = { axes = {'h', 'q', 'kv'}, grad = true }, flag = { axes = {'q', 'kv'}, dtype = 'bool' }") "score_mod "
                                                                                                           "= "
                                                                                                           "function(s,"
                                                                                                           " b, h, q, "
                                                                                                           "kv) return "
                                                                                                           "5 * "
                                                                                                           "tanh((s + "
                                                                                                           "pair[{h, "
                                                                                                           "q, kv + "
                                                                                                           "3}]) / 5) "
                                                                                                           "end,\n"
                                                                                                           "block_mask "
                                                                                                           "= "
                                                                                                           "function(b,"
                                                                                                           " h, q, kv) "
                                                                                                           "return "
                                                                                                           "flag[{q, "
                                                                                                           "kv}] end }",
     1 << PAIR | 1 << FLAG, false},
    {DECLARE(
         "pair = { axes = {'h', 'q', 'kv'}, dtype = 'element', grad = true }") "score_mod = function(s, b, h, q, kv) "
                                                                               "return s + pair[{h, q, kv}] end }",
     1 << PAIR, true},
    {DECLARE(
         "col = { axes = {'hkv', 'kv'}, grad = true }, row = { axes = {'b', 'q'}, grad = true }") "score_mod = "
                                                                                                  "function(s, b, h, "
                                                                                                  "q, kv) return s + "
                                                                                                  "col[{h // 2, kv - "
                                                                                                  "1}] - row[{b, kv}] "
                                                                                                  "end }",
     1 << COL | 1 << ROW, false},
    {DECLARE(
         "col = { axes = {'hkv', 'kv'}, grad = true }, row = { axes = {'b', 'q'}, grad = true }") "query_mod = "
                                                                                                  "function(x, b, h, "
                                                                                                  "pos, d) return x * "
                                                                                                  "(1 + 0.5 * row[{b, "
                                                                                                  "pos}]) end,\n"
                                                                                                  "key_mod = "
                                                                                                  "function(x, b, h, "
                                                                                                  "pos, d) return x * "
                                                                                                  "(1 + 0.3 * col[{h, "
                                                                                                  "pos}]) end,\n"
                                                                                                  "value_mod = "
                                                                                                  "function(x, b, h, "
                                                                                                  "pos, d) return x + "
                                                                                                  "0.1 * x * x end,\n"
                                                                                                  "block_mask = "
                                                                                                  "causal_bottom_right("
                                                                                                  ") }",
     1 << COL | 1 << ROW, false},
    {DECLARE("row = { axes = {'b', 'q'}, grad = true }") "query_mod = function(x, b, h, pos, d)\n"
                                                         "  local t = row[{b, pos}] * (d // 2 + 1) * 0.1\n"
                                                         "  return x * cos(t) + where(eq(d % 2, 0), -1.0, 1.0) * x[d + "
                                                         "1 - d % 2 * 2] * sin(t) end,\n"
                                                         "key_mod = function(x, b, h, pos, d)\n"
                                                         "  local t = pos * (d // 2 + 1) * 0.001\n"
                                                         "  return x * cos(t) + where(eq(d % 2, 0), -1.0, 1.0) * x[d + "
                                                         "1 - d % 2 * 2] * sin(t) end,\n"
                                                         "block_mask = causal() }",
     1 << ROW, false},
    {DECLARE(
         "on = { axes = {'kv'}, dtype = 'bool' }, row = { axes = {'b', 'q'}, grad = true }") "score_mod = function(s, "
                                                                                             "b, h, q, kv) return s * "
                                                                                             "(1 + 0.5 * row[{b, q}]) "
                                                                                             "end,\n"
                                                                                             "block_mask = function(b, "
                                                                                             "h, q, kv) return on[kv] "
                                                                                             "end }",
     1 << ROW | 1 << ON, false},
    {DECLARE("blocks = { axes = {'b', 'rows', 'columns'}, dtype = 'bool' }") "block_mask = function(b, h, q, kv) "
                                                                             "return blocks[{b, q // 32, kv // 64}] "
                                                                             "and kv < kv_len - 6 end }",
     1 << TABLE, false},
};
enum {
  FLAGS = 2,
  BY_ELEMENT = 5,
  TURNED,
  PADDED,
  BY_TABLE,
  NUM_CASES = sizeof cases / sizeof *cases
}; /* some: FLAGS, PADDED and BY_TABLE
    * have masks that are evaluated */
static bool is_evaluated(int number) { return number == FLAGS || number >= PADDED; }
/* Even entries have whole cells of 64 queries. */
static bool in_table(int b, int row, int column) {
  return (b * 31 + (b % 2 == 0 ? row / 2 : row) * 7 + column * 13) % 5 < 2;
}
static bool is_on(int b, int kv) { return (kv / 48 + b) % 3 != 0; }

typedef struct mode {
  int dim, dim_v, only; /* only: -1: all sequences */
  int unused;           /* so many rows behind those of each sequence are not used: seqused */
} mode;

enum { Q, K, V, O, DOUT, DQ, DK, DV, NUM_TENSORS };
static const char *const names[] = {[O] = "o", [DQ] = "dq", [DK] = "dk", [DV] = "dv"};

typedef struct problem {
  int cu[2][BATCH + 1];
  array t[NUM_TENSORS], lse, dlse, cu_q, cu_k, used_q, used_k, in[NUM_INPUTS], grad[NUM_GRADS];
} problem;

static int clamped(int i, int size) { return i < 0 || size == 0 ? 0 : i < size ? i : size - 1; }
static bool of_keys(int tensor) { return tensor == K || tensor == V || tensor == DK || tensor == DV; }

/* The sequence of a row of queries (side 0) or keys (1), or -1 if it is not of the call, or not used. */
static int sequence_of(const problem *p, int side, int row, int only) {
  for (int b = 0; b < BATCH; ++b)
    if (row >= p->cu[side][b] && row < p->cu[side][b] + (side ? k_lens : q_lens)[b] && (only < 0 || only == b))
      return b;
  return -1;
}

/* Random rows of the sequences of the call; other rows are NaN. */
static void draw_rows(const problem *p, array *a, int side, int only, bool rows_last) {
  const size_t total = (size_t)a->shape[rows_last ? 1 : 0], width = a->count / total;
  for (size_t i = 0; i < a->count; ++i) {
    const size_t row = rows_last ? i % total : i / width;
    put(a->k, a->host, i, sequence_of(p, side, (int)row, only) >= 0 ? drawn() : NAN);
  }
  send(a);
}

static void int_array(array *a, const int32_t *values, int count) {
  make(a, F32, 2, (int64_t[]){count, 1, 1});
  memcpy(a->host, values, (size_t)count * 4);
  send(a);
  a->t.ndim = 1, a->t.dtype = (DLDataType){kDLInt, 32, 1};
}

/* Pairs: NaN where they are of no query and key of one sequence of the call. */
static void draw_pairs(const problem *p, array *a, int only) {
  const int total = p->cu[0][BATCH];
  for (size_t i = 0; i < a->count; ++i) {
    const int kv = (int)(i % MOST_K), b = sequence_of(p, 0, (int)(i / MOST_K) % total, only);
    put(a->k, a->host, i, b >= 0 && kv < k_lens[b] ? drawn() : NAN);
  }
  send(a);
}

static void draw_inputs(problem *p, kind k, const mode *m, int number) {
  const int64_t total_q = p->cu[0][BATCH], total_k = p->cu[1][BATCH];
  make(&p->in[PAIR], cases[number].half ? k : F32, 3, (int64_t[]){HEADS, total_q, MOST_K});
  draw_pairs(p, &p->in[PAIR], m->only);
  make(&p->in[ROW], F32, 2, (int64_t[]){1, total_q, 1});
  make(&p->in[COL], F32, 2, (int64_t[]){HEADS_KV, total_k, 1});
  draw_rows(p, &p->in[ROW], 0, m->only, true);
  draw_rows(p, &p->in[COL], 1, m->only, true);
  int32_t ids[1024];
  for (int side = 0; side < 2; ++side) { /* documents, in order; of others' rows a value that is nowhere else */
    const int total = p->cu[side][BATCH];
    for (int i = 0; i < total; ++i) {
      const int b = sequence_of(p, side, i, m->only), len = b >= 0 ? (side ? k_lens : q_lens)[b] : 1;
      ids[i] = b < 0 ? 1 : (i - p->cu[side][b]) * 3 / len;
    }
    int_array(&p->in[side ? ID_K : ID_Q], ids, total);
  }
  const size_t flags = (size_t)total_q * MOST_K;
  make(&p->in[FLAG], F32, 2, (int64_t[]){total_q, MOST_K, 1});
  for (size_t i = 0; i < flags; ++i) ((unsigned char *)p->in[FLAG].host)[i] = i * 7 % 11 < 4 || i / MOST_K % 5 == 0;
  send(&p->in[FLAG]);
  make(&p->in[ON], F32, 2, (int64_t[]){total_k, 1, 1});
  for (int i = 0; i < total_k; ++i) {
    const int b = sequence_of(p, 1, i, m->only);
    ((unsigned char *)p->in[ON].host)[i] = b < 0 || is_on(b, i - p->cu[1][b]);
  }
  const int entries = m->only < 0 ? BATCH : 1;
  make(&p->in[TABLE], F32, 3, (int64_t[]){entries, TABLE_ROWS, TABLE_COLUMNS});
  for (int i = 0; i < entries * TABLE_ROWS * TABLE_COLUMNS; ++i)
    ((unsigned char *)p->in[TABLE].host)[i] = in_table((m->only < 0 ? 0 : m->only) + i / (TABLE_ROWS * TABLE_COLUMNS),
                                                       i / TABLE_COLUMNS % TABLE_ROWS, i % TABLE_COLUMNS);
  send(&p->in[ON]), send(&p->in[TABLE]);
  p->in[ON].t.ndim = 1;
  for (int i = FLAG; i <= TABLE; ++i) p->in[i].t.dtype = (DLDataType){kDLUInt, 8, 1};
  for (int i = 0; i < NUM_GRADS; ++i) {
    make(&p->grad[i], k == F64 ? F64 : F32, i == PAIR ? 3 : 2, p->in[i].shape);
    fill(&p->grad[i], NAN);
  }
}

static void draw_problem(problem *p, kind k, const mode *m, int number) {
  const kind real = k == F64 ? F64 : F32;
  memset(p, 0, sizeof *p);
  for (int b = 0; b < BATCH; ++b) {
    p->cu[0][b + 1] = p->cu[0][b] + q_lens[b] + m->unused;
    p->cu[1][b + 1] = p->cu[1][b] + k_lens[b] + m->unused;
  }
  for (int i = 0; i < NUM_TENSORS; ++i) {
    const int width = i == Q || i == K || i == DQ || i == DK ? m->dim : m->dim_v;
    make(&p->t[i], k, 3, (int64_t[]){p->cu[of_keys(i)][BATCH] + MARGIN, of_keys(i) ? HEADS_KV : HEADS, width});
    if (i == O || i >= DQ)
      fill(&p->t[i], 1.5);
    else
      draw_rows(p, &p->t[i], of_keys(i), m->only, false);
    p->t[i].shape[0] -= MARGIN;
  }
  make(&p->lse, real, 2, (int64_t[]){HEADS, p->cu[0][BATCH], 1});
  make(&p->dlse, real, 2, p->lse.shape);
  fill(&p->lse, NAN);
  draw_rows(p, &p->dlse, 0, m->only, true);
  const int first = m->only < 0 ? 0 : m->only, count = m->only < 0 ? BATCH + 1 : 2;
  int_array(&p->cu_q, p->cu[0] + first, count);
  int_array(&p->cu_k, p->cu[1] + first, count);
  int_array(&p->used_q, q_lens + first, count - 1);
  int_array(&p->used_k, k_lens + first, count - 1);
  draw_inputs(p, k, m, number);
}

static void drop_problem(problem *p) {
  for (int i = 0; i < NUM_TENSORS; ++i) drop(&p->t[i]);
  for (int i = 0; i < NUM_INPUTS; ++i) drop(&p->in[i]);
  for (int i = 0; i < NUM_GRADS; ++i) drop(&p->grad[i]);
  array *all[] = {&p->lse, &p->dlse, &p->cu_q, &p->cu_k, &p->used_q, &p->used_k};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

/* ---- the reference: one sequence ---- */

/* Where a score reads an input, and its derivative by what is read. */
typedef struct read {
  size_t at; /* in the whole input */
  double by;
} read;
typedef struct score {
  double value, by_dot;
  read of[NUM_GRADS];
  bool kept;
} score;

static double input(const problem *p, int i, size_t at) { return get(p->in[i].k, p->in[i].host, at); }
static int id(const problem *p, int i, int at) { return ((const int32_t *)p->in[i].host)[at]; }

static score score_of(const problem *p, int number, int b, int h, int q, int kv, double dot) {
  const int q0 = p->cu[0][b], k0 = p->cu[1][b], total_q = p->cu[0][BATCH], total_k = p->cu[1][BATCH];
  const size_t line = (size_t)(h * total_q + q0 + q) * MOST_K;
  score s = {.value = dot, .by_dot = 1, .kept = true};
  for (int i = 0; i < NUM_GRADS; ++i) s.of[i].at = SIZE_MAX;
  if (number == 0) {
    s.of[PAIR] = (read){line + (size_t)kv, 1};
    s.of[ROW].at = (size_t)(q0 + q), s.of[COL].at = (size_t)(h / 2 * total_k + k0 + kv);
    s.of[ROW].by = input(p, COL, s.of[COL].at), s.of[COL].by = input(p, ROW, s.of[ROW].at);
    s.value += input(p, PAIR, s.of[PAIR].at) + s.of[ROW].by * s.of[COL].by;
    s.kept = kv <= q + k_lens[b] - q_lens[b];
  } else if (number == BY_ELEMENT || number == TURNED) {
    s.kept = kv <= (number == TURNED ? q : q + k_lens[b] - q_lens[b]);
  } else if (number == BY_TABLE) {
    s.kept = in_table(b, q / 32, kv / 64) && kv < k_lens[b] - 6;
  } else if (number == 1 || number == PADDED) {
    s.of[ROW] = (read){(size_t)(q0 + q), 0.5 * dot};
    s.by_dot = 1 + 0.5 * input(p, ROW, s.of[ROW].at);
    s.value = dot * s.by_dot;
    s.kept = number == PADDED ? is_on(b, kv) : id(p, ID_Q, q0 + q) == id(p, ID_K, k0 + kv);
  } else if (number == 2) {
    s.of[PAIR].at = line + (size_t)clamped(kv + 3, k_lens[b]);
    const double t = tanh((dot + input(p, PAIR, s.of[PAIR].at)) / 5);
    s.value = 5 * t, s.by_dot = s.of[PAIR].by = 1 - t * t;
    s.kept = ((const unsigned char *)p->in[FLAG].host)[(size_t)(q0 + q) * MOST_K + (size_t)kv] != 0;
  } else if (number == 3) {
    s.of[PAIR] = (read){line + (size_t)kv, 1};
    s.value += input(p, PAIR, s.of[PAIR].at);
  } else {
    s.of[COL] = (read){(size_t)(h / 2 * total_k + k0 + clamped(kv - 1, k_lens[b])), 1};
    s.of[ROW] = (read){(size_t)(q0 + clamped(kv, q_lens[b])), -1};
    s.value += input(p, COL, s.of[COL].at) - input(p, ROW, s.of[ROW].at);
  }
  return s;
}

typedef struct wanted {
  double *t[NUM_TENSORS], *lse, *grad[NUM_GRADS]; /* at Q, K, V and DOUT: what attention reads, behind the mods */
  double
      *squares[NUM_GRADS]; /* of gradients through mods: the sum of the squares of what is added up, which may cancel */
} wanted;

static double element(const problem *p, int i, int row, int head, int d) {
  const array *a = &p->t[i];
  return get(a->k, a->host, (size_t)((row * a->shape[1] + head) * a->shape[2] + d));
}
static double *place(const problem *p, const wanted *w, int i, int row, int head) {
  return w->t[i] + (row * p->t[i].shape[1] + head) * p->t[i].shape[2];
}

static double angle(const problem *p, int i, int row, int b, int d) {
  return i == Q ? input(p, ROW, (size_t)row) * (d / 2 + 1) * 0.1 : (row - p->cu[1][b]) * (d / 2 + 1) * 0.001;
}
static double sign(int d) { return d % 2 == 0 ? -1 : 1; }

static void add_by_mod(const wanted *w, int grad, size_t at, double term) {
  w->grad[grad][at] += term;
  w->squares[grad][at] += term * term;
}

/* Applies the mod of Q, K or V to a row, or takes its gradient `g` through it: to x in place, and to inputs. */
static void mod_row(const problem *p, const wanted *w, int number, int i, int row, int head, int b, double *g) {
  const int width = (int)p->t[i].shape[2], total_k = p->cu[1][BATCH];
  double *to = place(p, w, i, row, head), before[256];
  if (g != NULL) memcpy(before, g, (size_t)width * sizeof *g);
  for (int d = 0; d < width; ++d) {
    const double x = element(p, i, row, head, d);
    double y = x, dy = 1, by_input = 0;
    size_t at = 0;
    if (number == BY_ELEMENT && i == Q)
      at = (size_t)row, dy = 1 + 0.5 * input(p, ROW, at), y = x * dy, by_input = 0.5 * x;
    if (number == BY_ELEMENT && i == K)
      at = (size_t)(head * total_k + row), dy = 1 + 0.3 * input(p, COL, at), y = x * dy, by_input = 0.3 * x;
    if (number == BY_ELEMENT && i == V) y = x + 0.1 * x * x, dy = 1 + 0.2 * x;
    if (number == TURNED && i != V) {
      const double t = angle(p, i, row, b, d), other = element(p, i, row, head, d ^ 1);
      y = x * cos(t) + sign(d) * other * sin(t);
      at = (size_t)row, by_input = (sign(d) * other * cos(t) - x * sin(t)) * (d / 2 + 1) * 0.1;
      if (g != NULL) {
        g[d] = before[d] * cos(t) + before[d ^ 1] * sign(d ^ 1) * sin(t);
        if (i == Q) add_by_mod(w, ROW, at, before[d] * by_input);
      }
    } else if (g != NULL) {
      g[d] = before[d] * dy;
      if (by_input != 0) add_by_mod(w, i == Q ? ROW : COL, at, before[d] * by_input);
    }
    if (g == NULL) to[d] = y;
  }
}

/* For all rows of Q, K and V of the call's sequences. */
static void mod_rows(const problem *p, const mode *m, int number, const wanted *w, bool backward) {
  for (int i = Q; i <= V; ++i)
    for (int row = 0; row < p->cu[of_keys(i)][BATCH]; ++row)
      for (int head = 0; head < p->t[i].shape[1]; ++head) {
        const int b = sequence_of(p, of_keys(i), row, m->only), to = i == Q ? DQ : i == K ? DK : DV;
        if (b >= 0) mod_row(p, w, number, i, row, head, b, backward ? place(p, w, to, row, head) : NULL);
      }
}

/* One query of one head: its output, and what it adds to gradients. */
static void reference_row(const problem *p, const wanted *w, const mode *m, int number, int b, int h, int q) {
  const int row = p->cu[0][b] + q, k0 = p->cu[1][b], g = h / (HEADS / HEADS_KV), n = k_lens[b];
  const double *x = place(p, w, Q, row, h);
  const double scale = 1 / sqrt(m->dim), dlse = get(p->dlse.k, p->dlse.host, (size_t)(h * p->cu[0][BATCH] + row));
  score *s = calloc((size_t)n + 1, sizeof *s);
  double *prob = calloc((size_t)n + 1, sizeof *prob), most = -INFINITY, sum = 0, delta = 0;
  for (int kv = 0; kv < n; ++kv) {
    double dot = 0;
    for (int d = 0; d < m->dim; ++d) dot += x[d] * place(p, w, K, k0 + kv, g)[d];
    s[kv] = score_of(p, number, b, h, q, kv, dot * scale);
    if (s[kv].kept) most = fmax(most, s[kv].value);
  }
  for (int kv = 0; kv < n; ++kv) sum += prob[kv] = s[kv].kept ? exp(s[kv].value - most) : 0;
  double *o = place(p, w, O, row, h);
  for (int d = 0; d < m->dim_v; ++d) o[d] = 0;
  w->lse[h * p->cu[0][BATCH] + row] = sum > 0 ? most + log(sum) : -INFINITY;
  for (int kv = 0; kv < n && sum > 0; ++kv) {
    prob[kv] /= sum;
    for (int d = 0; d < m->dim_v; ++d) o[d] += prob[kv] * place(p, w, V, k0 + kv, g)[d];
  }
  for (int d = 0; d < m->dim_v; ++d) delta += o[d] * element(p, DOUT, row, h, d);
  double *dq = place(p, w, DQ, row, h);
  for (int kv = 0; kv < n && sum > 0; ++kv) {
    double *dk = place(p, w, DK, k0 + kv, g), *dv = place(p, w, DV, k0 + kv, g), dp = 0;
    for (int d = 0; d < m->dim_v; ++d) {
      dp += element(p, DOUT, row, h, d) * place(p, w, V, k0 + kv, g)[d];
      dv[d] += prob[kv] * element(p, DOUT, row, h, d);
    }
    const double ds = prob[kv] * (dp - delta + dlse);
    for (int i = 0; i < NUM_GRADS; ++i)
      if (s[kv].of[i].at != SIZE_MAX && ds != 0) w->grad[i][s[kv].of[i].at] += ds * s[kv].of[i].by;
    for (int d = 0; d < m->dim; ++d) {
      dq[d] += scale * ds * s[kv].by_dot * place(p, w, K, k0 + kv, g)[d];
      dk[d] += scale * ds * s[kv].by_dot * x[d];
    }
  }
  free(s), free(prob);
}

static void reference(const problem *p, const mode *m, int number, wanted *w) {
  for (int i = 0; i < NUM_TENSORS; ++i) w->t[i] = calloc(p->t[i].count, sizeof(double));
  for (int i = 0; i < NUM_GRADS; ++i) {
    w->grad[i] = calloc(p->grad[i].count, sizeof(double));
    w->squares[i] = calloc(p->grad[i].count, sizeof(double));
  }
  w->lse = calloc(p->lse.count, sizeof(double));
  mod_rows(p, m, number, w, false);
  for (int b = m->only < 0 ? 0 : m->only; b < (m->only < 0 ? BATCH : m->only + 1); ++b)
    for (int h = 0; h < HEADS; ++h)
      for (int q = 0; q < q_lens[b]; ++q) reference_row(p, w, m, number, b, h, q);
  mod_rows(p, m, number, w, true);
}

static void close_wanted(wanted *w) {
  for (int i = 0; i < NUM_TENSORS; ++i) free(w->t[i]);
  for (int i = 0; i < NUM_GRADS; ++i) free(w->grad[i]), free(w->squares[i]);
  free(w->lse);
}

/* ---- comparison ---- */

static double allowed(kind k) { return k == F64 ? 1e-11 : k == F32 ? 3e-5 : 16 * kind_unit[k]; }

typedef struct difference {
  double most, of, foreign; /* foreign: 1 if something of others has changed */
} difference;

/* What a row that belongs to no sequence of the call has: `padding`, or in front of the first sequence and behind the
 * tensors what it had before. */
static double other_row(const problem *p, int keys, int row, int only, double padding, double before) {
  return row < p->cu[keys][only < 0 ? 0 : only] || row >= p->cu[keys][BATCH] ? before : padding;
}

/* `own`: whether a number belongs to the call; others must be `other`. */
static void compare_number(difference *d, double got, double want, bool own, double other) {
  if (!own) {
    if (got != other && !(isnan(got) && isnan(other))) d->foreign = 1;
    return;
  }
  if (got == want) return; /* also infinities */
  d->most = worse(d->most, fabs(got - want));
  d->of = fmax(d->of, fabs(want));
}

static bool verdict(const difference *d, const char *what, kind k, int number, const mode *m, const char *family) {
  if (d->most <= allowed(k) * (d->of + 1e-2) && d->foreign == 0) return true;
  fprintf(stderr, "FAILED: case %d %s %s D %d Dv %d only %d: %s off by %g of %g%s\n", number, family, kind_name[k],
          m->dim, m->dim_v, m->only, what, d->most, d->of,
          d->foreign != 0 ? ", and other rows are not what they should be" : "");
  return false;
}

static bool compare(const problem *p, const wanted *w, kind k, int number, const mode *m, const char *family) {
  bool ok = true;
  for (int i = O; i < NUM_TENSORS; ++i) {
    difference d = {0};
    const size_t width = (size_t)(p->t[i].shape[1] * p->t[i].shape[2]);
    if (i == DOUT) continue;
    for (size_t at = 0; at < p->t[i].count; ++at)
      compare_number(&d, get(p->t[i].k, p->t[i].host, at), w->t[i][at],
                     sequence_of(p, of_keys(i), (int)(at / width), m->only) >= 0,
                     other_row(p, of_keys(i), (int)(at / width), m->only, 0, 1.5));
    ok &= verdict(&d, names[i], k, number, m, family);
  }
  difference lse = {0};
  for (size_t at = 0; at < p->lse.count; ++at)
    compare_number(&lse, get(p->lse.k, p->lse.host, at), w->lse[at],
                   sequence_of(p, 0, (int)at % p->cu[0][BATCH], m->only) >= 0,
                   other_row(p, 0, (int)at % p->cu[0][BATCH], m->only, -INFINITY, NAN));
  ok &= verdict(&lse, "lse", k, number, m, family);
  for (int i = 0; i < NUM_GRADS; ++i) {
    difference d = {0};
    if ((cases[number].reads >> i & 1) == 0) continue;
    for (size_t at = 0; at < p->grad[i].count; ++at) {
      const int row = i == PAIR ? (int)(at / MOST_K) % p->cu[0][BATCH] : (int)at % p->cu[by_keys[i]][BATCH],
                b = sequence_of(p, by_keys[i], row, m->only);
      const bool own = b >= 0 && (i != PAIR || (int)(at % MOST_K) < k_lens[b]);
      compare_number(&d, get(p->grad[i].k, p->grad[i].host, at), w->grad[i][at], own, 0);
      /* Each term is rounded by itself, so the sum is off by a unit times the root of their squares, however small it
       * is. */
      if (own) d.of = fmax(d.of, sqrt(w->squares[i][at]));
    }
    ok &= verdict(&d, input_name[i], k, number, m, family);
  }
  return ok;
}

/* ---- a call ---- */

static void launch(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, luattn_args *args) {
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(engine, spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(engine, spec, args, NULL, &err) == LUATTN_OK,
       pass == LUATTN_FORWARD ? "forward" : "backward");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
}

/* Has kernels evaluate the mask, for which they need memory. */
static void evaluate_mask(luattn_engine *engine, const luattn_spec *spec, luattn_args *args) {
  size_t without, with;
  args->skip = LUATTN_SKIP_NEVER;
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, args, &without, &err) == LUATTN_OK, "workspace");
  args->skip = LUATTN_SKIP_ALWAYS;
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, args, &with, &err) == LUATTN_OK, "workspace");
  if (args->q->shape[0] > 0 && args->k->shape[0] > 0) need(with > without, "bits of an evaluated mask");
}

static bool check(luattn_engine *engine, const luattn_spec *spec, int number, kind k, const mode *m,
                  const char *family) {
  problem p;
  wanted w;
  luattn_batch *batch;
  luattn_input inputs[NUM_INPUTS];
  size_t count = 0;
  draw_problem(&p, k, m, number);
  for (int i = 0; i < NUM_INPUTS; ++i)
    if ((cases[number].reads >> i & 1) != 0)
      inputs[count++] =
          (luattn_input){.name = input_name[i], .tensor = &p.in[i].t, .grad = i < NUM_GRADS ? &p.grad[i].t : NULL};
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .cu_seqlens_q = &p.cu_q.t,
                                        .cu_seqlens_k = &p.cu_k.t,
                                        .max_seqlen_q = 130 + m->unused,
                                        .max_seqlen_k = 200 + m->unused,
                                        .seqused_q = m->unused > 0 ? &p.used_q.t : NULL,
                                        .seqused_k = m->unused > 0 ? &p.used_k.t : NULL};
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  luattn_args args = {.struct_size = sizeof args,
                      .q = &p.t[Q].t,
                      .k = &p.t[K].t,
                      .v = &p.t[V].t,
                      .o = &p.t[O].t,
                      .dout = &p.t[DOUT].t,
                      .dq = &p.t[DQ].t,
                      .dk = &p.t[DK].t,
                      .dv = &p.t[DV].t,
                      .lse = &p.lse.t,
                      .dlse = &p.dlse.t,
                      .inputs = inputs,
                      .num_inputs = count,
                      .batch = batch};
  if (is_evaluated(number) && driver != NULL) evaluate_mask(engine, spec, &args);
  launch(engine, spec, LUATTN_FORWARD, &args);
  launch(engine, spec, LUATTN_BACKWARD, &args);
  fetch(&p.t[O]), fetch(&p.lse);
  for (int i = DQ; i <= DV; ++i) fetch(&p.t[i]);
  for (int i = 0; i < NUM_GRADS; ++i) fetch(&p.grad[i]);
  reference(&p, m, number, &w);
  const bool ok = compare(&p, &w, k, number, m, family);
  close_wanted(&w);
  luattn_batch_close(batch);
  drop_problem(&p);
  return ok;
}

/* Case i: half of the cases, and all with other head dims, by a deterministic backward. */
static int check_case(luattn_engine *const engine[2], const luattn_spec *spec, int i, kind k, const char *family,
                      bool is_cpu) {
  int failed = 0;
  mode m = {64, 64, -1, 5};
  failed += !check(engine[i % 2], spec, i, k, &m, family);
  m.unused = 0;
  for (m.only = -1; m.only < (is_cpu ? 0 : BATCH); ++m.only) /* the CPU has all rows in some sequence */
    failed += !check(engine[i % 2], spec, i, k, &m, family);
  if (is_cpu) return failed;
  m = (mode){128, 72, -1, 0};
  failed += !check(engine[1 - i % 2], spec, i, k, &m, family);
  m = (mode){136, 192, 0, 0};
  for (m.only = -1; m.only < 3 && k != F64; m.only += 3) failed += !check(engine[i % 2], spec, i, k, &m, family);
  return failed;
}

static luattn_spec *load(int number, kind k) {
  char text[1024];
  luattn_spec *spec;
  const char *word = strstr(cases[number].text, "element");
  if (word == NULL)
    snprintf(text, sizeof text, "%s", cases[number].text);
  else
    snprintf(text, sizeof text, "%.*s%s%s", (int)(word - cases[number].text), cases[number].text, kind_name[k],
             word + strlen("element"));
  need(luattn_spec_load_text("packed_inputs", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  return spec;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"simt", "sm80", "sm90", "cpu"};
  if (argc < 3) return 2;
  int family = 0, k = 0, failed = 0;
  while (family < 4 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 4 || k == 4) return 2;
  luattn_engine *engine[2]; /* the second is deterministic */
  for (int i = 0; i < 2; ++i) {
    const luattn_engine_options options = {.struct_size = sizeof options,
                                           .device = family == CPU ? LUATTN_CPU : 0,
                                           .family = family == CPU ? 0 : 1 + family,
                                           .deterministic = i};
    need(luattn_engine_open(&options, &engine[i], &err) == LUATTN_OK, "engine");
  }
  driver = luattn_engine_driver(engine[0]);
  const int first = argc > 3 ? atoi(argv[3]) : 0, last = argc > 3 ? first : NUM_CASES - 1;
  luattn_spec *spec[NUM_CASES] = {NULL}; /* an engine knows specs by their addresses */
  for (int i = first; i <= last && last < NUM_CASES; ++i) {
    spec[i] = load(i, (kind)k);
    const mode m = {argc > 6 ? atoi(argv[5]) : 64, argc > 6 ? atoi(argv[6]) : 64, argc > 4 ? atoi(argv[4]) : -1,
                    argc > 7 ? atoi(argv[7]) : 0};
    if (argc > 4)
      failed += !check(engine[i % 2], spec[i], i, (kind)k, &m, argv[1]);
    else
      failed += check_case(engine, spec[i], i, (kind)k, argv[1], family == CPU);
  }
  for (int i = 0; i < 2; ++i) luattn_engine_close(engine[i]);
  for (int i = 0; i < NUM_CASES; ++i) luattn_spec_free(spec[i]);
  return failed != 0;
}
