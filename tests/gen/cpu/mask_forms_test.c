/* mask_forms_test.c: forms of masks at typical, random and adversarial data. Tiles and scores as luattn_mask_survey
 * counts them, against every score, by a C version of each mask; and the table of docs/what_is_skipped.md, against the
 * counts.
 *
 * mask_forms_test DOC [long]: with `long` the table's second pair of columns, of 16384 positions.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cpu_call.h"

/* ---- forms ---- */

typedef struct place {
  int q, kv, n;
  const int *x, *y; /* the inputs */
} place;

enum { N = -1, BLOCKS_OF_128 = -128, BLOCKS_OF_64 = -64, BLOCKS_OF_16 = -16 };

typedef struct form {
  const char *name; /* the first column */
  const char *mask; /* of q, kv: what the second column shows */
  bool (*keeps)(const place *p);
  const char *x, *y; /* axes of the inputs, or NULL */
  int shape[2][3];   /* of each; 0: none; N, or a number of blocks of so many positions */
  bool is_bool[2];
  void (*fill)(int n, int *x, int *y); /* typical data */
} form;

static bool causal_window(const place *p) { return p->kv <= p->q && p->q - p->kv < 512; }
static bool dilated(const place *p) { return causal_window(p) && (p->q - p->kv) % 4 == 0; }
static bool grid(const place *p) { return abs(p->q / 64 - p->kv / 64) <= 3 && abs(p->q % 64 - p->kv % 64) <= 3; }
static bool document(const place *p) { return p->kv <= p->q && p->x[p->q] == p->x[p->kv]; }
static bool document_window(const place *p) { return causal_window(p) && document(p); }
static bool later(const place *p) { return p->x[p->kv] <= p->x[p->q]; }
static bool interval(const place *p) { return p->x[p->q] <= p->kv && p->kv < p->y[p->q]; }
static bool lengths(const place *p) { return p->kv < p->x[0] && p->q < p->x[0]; }
static int counted(const place *p, int i) {
  int count = 0;
  for (int d = 0; d < 8; ++d) count += i >= p->x[d];
  return count;
}
static bool jagged(const place *p) { return p->kv <= p->q && counted(p, p->q) == counted(p, p->kv); }
static bool padding(const place *p) { return p->kv <= p->q && p->x[p->q] && p->x[p->kv]; }
static bool table_128(const place *p) { return p->x[p->q / 128 * ((p->n + 127) / 128) + p->kv / 128]; }
static bool table_64(const place *p) { return p->kv <= p->q && p->x[p->q / 64 * ((p->n + 63) / 64) + p->kv / 64]; }
static bool every_score(const place *p) { return p->x[(size_t)p->q * (size_t)p->n + (size_t)p->kv]; }
static bool chosen(const place *p) {
  bool some = p->kv / 64 == p->q / 64;
  for (int i = 0; i < 4; ++i) some |= p->x[p->q / 64 * 4 + i] == p->kv / 64;
  return p->kv <= p->q && some;
}
static bool one_chosen(const place *p) { return p->x[p->q] == p->kv / 64; }
static bool bigbird(const place *p) {
  const int i = p->q / 64, j = p->kv / 64, last = (p->n + 63) / 64 - 1;
  bool some = abs(i - j) <= 1 || i < 1 || j < 1 || i >= last || j >= last;
  for (int r = 0; r < 3; ++r) some |= p->x[i * 3 + r] == j;
  return some;
}
static bool adjacent(const place *p) { return p->x[p->y[p->q] * 32 + p->y[p->kv]]; }
static bool gathered(const place *p) { return p->q >= p->x[p->kv / 16 * 2] && p->q < p->x[p->kv / 16 * 2 + 1]; }
static bool tree(const place *p) {
  return p->kv < p->n / 2 || (p->q / 16 == p->kv / 16 && (p->x[p->q] >> p->kv % 16 & 1) != 0);
}
static bool groups(const place *p) { return causal_window(p) || (p->x[p->q] >= 0 && p->x[p->q] == p->x[p->kv]); }
static bool packed_windows(const place *p) {
  return p->x[p->q] == p->x[p->kv] && abs(p->q - p->y[p->x[p->q]] - (p->kv - p->y[p->x[p->kv]])) < 100;
}
static bool position_windows(const place *p) { return document(p) && p->x[p->n + p->q] - p->x[p->n + p->kv] < 100; }
static bool first_tokens(const place *p) { return document(p) && p->kv - p->y[p->kv] < 5; }
static bool global_tokens(const place *p) { return p->x[p->q] || p->x[p->kv] || abs(p->q - p->kv) < 100; }
static bool not_dropped(const place *p) { return p->kv <= p->q && !(p->x[p->q] != p->x[p->kv] || p->y[p->kv]); }
static bool common_bits(const place *p) { return (p->x[p->q] & p->x[p->kv]) != 0; }

static uint64_t state;
static int below(int count) { return (int)(uniform(&state) * count); }

static void fill_documents(int n, int *x, int *y) {
  for (int i = 0, end = 0, doc = -1, start = 0; i < n; ++i) {
    if (i == end) start = i, end += 200 + below(1000), ++doc;
    x[i] = doc;
    if (y != NULL) y[i] = start;
  }
}
static void fill_offsets(int n, int *x, int *y) {
  fill_documents(n, x, NULL);
  for (int i = 0; i < n; ++i)
    if (i == 0 || x[i] != x[i - 1]) y[x[i]] = i;
}
static void fill_positions(int n, int *x, int *y) {
  int *start = malloc((size_t)n * sizeof *start);
  (void)y;
  fill_documents(n, x, start);
  for (int i = 0; i < n; ++i) x[n + i] = i - start[i];
  free(start);
}
static void fill_dropped(int n, int *x, int *y) {
  fill_documents(n, x, NULL);
  for (int i = 0; i < n; ++i) y[i] = i / 256 % 4 == 1;
}
static void fill_times(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < n; ++i) x[i] = i / 7;
}
static void fill_intervals(int n, int *x, int *y) {
  for (int i = 0; i < n; ++i) x[i] = i / 300 * 250, y[i] = x[i] + 400;
}
static void fill_length(int n, int *x, int *y) { (void)y, x[0] = n / 3; }
static void fill_ends(int n, int *x, int *y) {
  (void)y;
  for (int d = 0; d < 8; ++d) x[d] = (int)((int64_t)n * (d * 3 + 2) / 23);
}
static void fill_padding(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < n; ++i) x[i] = i >= n / 5 && i < n - n / 4;
}
static void fill_table(int n, int size, int share, int *x) {
  const int blocks = (n + size - 1) / size;
  for (int i = 0; i < blocks * blocks; ++i) x[i] = i % (blocks + 1) == 0 || below(100) < share;
}
static void fill_table_128(int n, int *x, int *y) { (void)y, fill_table(n, 128, 13, x); }
static void fill_table_64(int n, int *x, int *y) { (void)y, fill_table(n, 64, 13, x); }
static void fill_scores(int n, int *x, int *y) {
  (void)y;
  for (int q = 0; q < n; ++q)
    for (int kv = 0; kv < n; ++kv)
      x[(size_t)q * (size_t)n + (size_t)kv] = abs(q * 3 % n - kv) < 70 && (q ^ kv) % 5 != 0;
}
static void fill_chosen(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < (n + 63) / 64 * 4; ++i) x[i] = below(i / 4 + 1);
}
static void fill_one_chosen(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < n; ++i) x[i] = i % 256 == 0 ? below((n + 63) / 64) : i % 2 == 0 ? x[i / 256 * 256] : i / 64;
}
static void fill_bigbird(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < (n + 63) / 64 * 3; ++i) x[i] = below((n + 63) / 64);
}
static void fill_adjacency(int n, int *x, int *y) {
  for (int i = 0; i < 32 * 32; ++i) x[i] = i % 33 == 0 || below(10) == 0;
  for (int i = 0; i < n; ++i) y[i] = (int)((int64_t)i * 32 / n);
}
static void fill_gathered(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < (n + 15) / 16; ++i) x[2 * i] = i * 31 % (n / 16 + 1) * 16, x[2 * i + 1] = x[2 * i] + 100;
}
static void fill_tree(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < n; ++i) x[i] = i % 16 == 0 ? 1 : x[i / 16 * 16 + below(i % 16)] | 1 << i % 16;
}
static void fill_groups(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < n; ++i) x[i] = i % 1000 < 256 ? i / 1000 : -1;
}
static void fill_global(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < n; ++i) x[i] = i < 4 || i == n / 2;
}
static void fill_bits(int n, int *x, int *y) {
  (void)y;
  for (int i = 0; i < n; ++i) x[i] = 1 << i / 512 % 31 | 1 << i / 512 * i % 3 * 9;
}

static bool hash(const place *p) { return p->q / 64 == p->kv / 64 || (p->q / 64 * 37 + p->kv / 64 * 101) % 13 == 0; }

static const form forms[] = {
    {"causal window", "kv <= q and q - kv < 512", causal_window, NULL, NULL, {{0}}, {false}, NULL},
    {"dilated window", "kv <= q and q - kv < 512 and eq((q - kv) % 4, 0)", dilated, NULL, NULL, {{0}}, {false}, NULL},
    {"neighbourhood in a grid",
     "abs(q // 64 - kv // 64) <= 3 and abs(q % 64 - kv % 64) <= 3",
     grid,
     NULL,
     NULL,
     {{0}},
     {false},
     NULL},
    {"a hash of block numbers",
     "eq(q // 64, kv // 64) or eq((q // 64 * 37 + kv // 64 * 101) % 13, 0)",
     hash,
     NULL,
     NULL,
     {{0}},
     {false},
     NULL},
    {"lengths of batch entries", "kv < last[b] and q < last[b]", lengths, "'b'", NULL, {{1}}, {false}, fill_length},
    {"jagged, by counting offsets", "kv <= q and eq(doc(q), doc(kv))", jagged, "8", NULL, {{8}}, {false}, fill_ends},
    {"documents", "kv <= q and eq(doc[q], doc[kv])", document, "'n'", NULL, {{N}}, {false}, fill_documents},
    {"documents in a window",
     "kv <= q and q - kv < 512 and eq(doc[q], doc[kv])",
     document_window,
     "'n'",
     NULL,
     {{N}},
     {false},
     fill_documents},
    {"times", "time[kv] <= time[q]", later, "'n'", NULL, {{N}}, {false}, fill_times},
    {"an interval for each query",
     "lo[q] <= kv and kv < hi[q]",
     interval,
     "'n'",
     "'n'",
     {{N}, {N}},
     {false},
     fill_intervals},
    {"padding", "kv <= q and keep[q] and keep[kv]", padding, "'n'", NULL, {{N}}, {true}, fill_padding},
    {"table of blocks of 128",
     "on[{q // 128, kv // 128}]",
     table_128,
     "'i', 'j'",
     NULL,
     {{BLOCKS_OF_128, BLOCKS_OF_128}},
     {true},
     fill_table_128},
    {"table of blocks of 64, causal",
     "kv <= q and on[{q // 64, kv // 64}]",
     table_64,
     "'i', 'j'",
     NULL,
     {{BLOCKS_OF_64, BLOCKS_OF_64}},
     {true},
     fill_table_64},
    {"a bool for each score", "keep[{q, kv}]", every_score, "'i', 'j'", NULL, {{N, N}}, {true}, fill_scores},
    {"lists of chosen blocks",
     "kv <= q and (eq(kv // 64, q // 64) or eq(chosen[{q // 64, 0}], kv // 64) or ..)",
     chosen,
     "'i', 4",
     NULL,
     {{BLOCKS_OF_64, 4}},
     {false},
     fill_chosen},
    {"a chosen block for each query",
     "eq(chosen[q], kv // 64)",
     one_chosen,
     "'n'",
     NULL,
     {{N}},
     {false},
     fill_one_chosen},
    {"BigBird",
     "abs(i - j) <= 1 or i < 1 or j < 1 or .. or eq(random[{i, 0}], j) or ..",
     bigbird,
     "'i', 3",
     NULL,
     {{BLOCKS_OF_64, 3}},
     {false},
     fill_bigbird},
    {"adjacency of cells",
     "adjacent[{cell[q], cell[kv]}]",
     adjacent,
     "32, 'm'",
     "'n'",
     {{32, 32}, {N}},
     {true, false},
     fill_adjacency},
    {"intervals by gather",
     "q >= span[{kv // 16, 0}] and q < span[{kv // 16, 1}]",
     gathered,
     "'i', 2",
     NULL,
     {{BLOCKS_OF_16, 2}},
     {false},
     fill_gathered},
    {"trees of drafts behind a prefix",
     "kv < kv_len // 2 or (eq(q // 16, kv // 16) and ne(ancestors[q] >> kv % 16 & 1, 0))",
     tree,
     "'n'",
     NULL,
     {{N}},
     {false},
     fill_tree},
    {"groups of images, -1 is text",
     "(kv <= q and q - kv < 512) or (group[q] >= 0 and eq(group[q], group[kv]))",
     groups,
     "'n'",
     NULL,
     {{N}},
     {false},
     fill_groups},
    {"windows in documents, by offsets",
     "eq(doc[q], doc[kv]) and abs((q - offsets[doc[q]]) - (kv - offsets[doc[kv]])) < 100",
     packed_windows,
     "'n'",
     "'m'",
     {{N}, {N}},
     {false},
     fill_offsets},
    {"windows in documents, by positions",
     "kv <= q and eq(x[{0, q}], x[{0, kv}]) and x[{1, q}] - x[{1, kv}] < 100",
     position_windows,
     "2, 'n'",
     NULL,
     {{2, N}},
     {false},
     fill_positions},
    {"first tokens of documents",
     "kv <= q and eq(doc[q], doc[kv]) and kv - start[kv] < 5",
     first_tokens,
     "'n'",
     "'n'",
     {{N}, {N}},
     {false},
     fill_documents},
    {"or: global tokens",
     "global[q] or global[kv] or abs(q - kv) < 100",
     global_tokens,
     "'n'",
     NULL,
     {{N}},
     {true},
     fill_global},
    {"not: dropped keys",
     "kv <= q and not (ne(doc[q], doc[kv]) or dropped[kv])",
     not_dropped,
     "'n'",
     "'n'",
     {{N}, {N}},
     {false, true},
     fill_dropped},
    {"common bits", "ne(sets[q] & sets[kv], 0)", common_bits, "'n'", NULL, {{N}}, {false}, fill_bits},
};
enum { NUM_FORMS = sizeof forms / sizeof *forms };

/* The mask as Lua: names of the inputs are x and y there, and lists are written out. */
static const char *const written[] = {
    "kv < x[b] and q < x[b]",
    "kv <= q and eq(doc(q), doc(kv))",
    "kv <= q and eq(x[q], x[kv])",
    "kv <= q and q - kv < 512 and eq(x[q], x[kv])",
    "x[kv] <= x[q]",
    "x[q] <= kv and kv < y[q]",
    "kv <= q and x[q] and x[kv]",
    "x[{q // 128, kv // 128}]",
    "kv <= q and x[{q // 64, kv // 64}]",
    "x[{q, kv}]",
    "kv <= q and (eq(kv // 64, q // 64) or eq(x[{q // 64, 0}], kv // 64) or eq(x[{q // 64, 1}], kv // 64) or eq(x[{q "
    "// 64, 2}], kv "
    "// 64) or eq(x[{q // 64, 3}], kv // 64))",
    "eq(x[q], kv // 64)",
    "abs(q // 64 - kv // 64) <= 1 or q // 64 < 1 or kv // 64 < 1 or q // 64 >= (q_len + 63) // 64 - 1 or kv // 64 >= "
    "(kv_len + 63) // "
    "64 - 1 or eq(x[{q // 64, 0}], kv // 64) or eq(x[{q // 64, 1}], kv // 64) or eq(x[{q // 64, 2}], kv // 64)",
    "x[{y[q], y[kv]}]",
    "q >= x[{kv // 16, 0}] and q < x[{kv // 16, 1}]",
    "kv < kv_len // 2 or (eq(q // 16, kv // 16) and ne(x[q] >> kv % 16 & 1, 0))",
    "(kv <= q and q - kv < 512) or (x[q] >= 0 and eq(x[q], x[kv]))",
    "eq(x[q], x[kv]) and abs((q - y[x[q]]) - (kv - y[x[kv]])) < 100",
    "kv <= q and eq(x[{0, q}], x[{0, kv}]) and x[{1, q}] - x[{1, kv}] < 100",
    "kv <= q and eq(x[q], x[kv]) and kv - y[kv] < 5",
    "x[q] or x[kv] or abs(q - kv) < 100",
    "kv <= q and not (ne(x[q], x[kv]) or y[kv])",
    "ne(x[q] & x[kv], 0)"};
enum { FIRST_WRITTEN = 4 };

/* ---- calls ---- */

typedef struct problem {
  const form *f;
  luattn_spec *spec;
  luattn_args args;
  DLTensor q, input[2];
  int64_t shape[4], input_shape[2][4];
  luattn_input given[2];
  int *x[2];
  unsigned char *bytes[2];
  int64_t count[2];
  place at;
} problem;

static const char *axes_of(const form *f, int i) { return i == 0 ? f->x : f->y; }

static void add_input(char *out, size_t size, const form *f, int i) {
  const size_t used = strlen(out);
  if (axes_of(f, i) != NULL)
    snprintf(out + used, size - used, "%s = { axes = {%s}, dtype = '%s' }, ", i == 0 ? "x" : "y", axes_of(f, i),
             f->is_bool[i] ? "bool" : "i32");
}

static void open_form(const form *f, problem *p) {
  char out[2048] = "return attention { inputs = { ";
  static const char count[] =
      "local function doc(i) local n = 0 for d = 0, 7 do n = n + where(i >= x[d], 1, 0) end return n end";
  const int row = (int)(f - forms);
  *p = (problem){.f = f};
  add_input(out, sizeof out, f, 0);
  add_input(out, sizeof out, f, 1);
  const size_t used = strlen(out);
  snprintf(out + used, sizeof out - used, "}, mask_mod = function(b, h, q, kv) %s return %s end }",
           f->keeps == jagged ? count : "", row < FIRST_WRITTEN ? f->mask : written[row - FIRST_WRITTEN]);
  p->spec = load_text(out);
}

static int size_of(int shape, int n) { return shape >= 0 ? shape : (n + -shape - 1) / -shape; }

static void set_length(problem *p, int n) {
  const form *f = p->f;
  const int64_t shape[] = {1, 1, n, 8};
  memcpy(p->shape, shape, sizeof shape);
  p->q = (DLTensor){.device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 32, 1}, .shape = p->shape};
  p->args = (luattn_args){.struct_size = sizeof p->args, .q = &p->q, .k = &p->q, .inputs = p->given};
  for (int i = 0; i < 2 && axes_of(f, i) != NULL; ++i) {
    int ndim = 0;
    p->count[i] = 1;
    for (; ndim < 3 && f->shape[i][ndim] != 0; ++ndim)
      p->count[i] *= p->input_shape[i][ndim] = size_of(f->shape[i][ndim], n);
    p->x[i] = calloc((size_t)p->count[i], sizeof *p->x[i]);
    p->bytes[i] = calloc((size_t)p->count[i], 1);
    assert_non_null(p->x[i]);
    assert_non_null(p->bytes[i]);
    p->input[i] = (DLTensor){.data = f->is_bool[i] ? (void *)p->bytes[i] : (void *)p->x[i],
                             .device = {kDLCPU, 0},
                             .ndim = ndim,
                             .dtype = f->is_bool[i] ? BOOL : I32,
                             .shape = p->input_shape[i]};
    p->given[i] = (luattn_input){i == 0 ? "x" : "y", &p->input[i], NULL};
    p->args.num_inputs = (size_t)i + 1;
  }
  p->at = (place){.n = n, .x = p->x[0], .y = p->x[1]};
}

static void drop(problem *p) {
  for (int i = 0; i < 2; ++i) {
    free(p->x[i]), free(p->bytes[i]);
    p->x[i] = NULL, p->bytes[i] = NULL;
  }
}

/* Bools are bytes for the library. */
static void send(problem *p) {
  for (int i = 0; i < 2; ++i)
    for (int64_t j = 0; p->x[i] != NULL && j < p->count[i]; ++j) p->bytes[i][j] = p->x[i][j] != 0;
}

/* Typical; all of one number, of another; random; sorted; one unlike all others. Indices into other inputs stay
 * inside. */
enum { KINDS = 6 };
static void fill(problem *p, int kind) {
  const int n = p->at.n;
  state = (uint64_t)(kind + 1);
  if (p->f->fill == NULL) return;
  if (kind == 0) {
    p->f->fill(n, p->x[0], p->x[1]);
    send(p);
    return;
  }
  for (int i = 0; i < 2; ++i)
    for (int64_t j = 0; p->x[i] != NULL && j < p->count[i]; ++j) {
      const int most = p->f->is_bool[i] ? 2 : p->f->keeps == adjacent ? 32 : n;
      const bool may_be_negative = p->f->keeps != adjacent && p->f->keeps != packed_windows;
      int x = kind == 1   ? 0
              : kind == 2 ? 1
              : kind == 3 ? below(most)
              : kind == 4 ? (int)(j * most / p->count[i])
                          : j == p->count[i] / 3;
      if (may_be_negative && !p->f->is_bool[i]) x -= kind == 3 || kind == 4;
      p->x[i][j] = x;
    }
  send(p);
}

/* ---- against every score ---- */

typedef struct brute {
  double kept, needed, cells_some, cells_all;
} brute;

static int class_of(problem *p, int q0, int q1, int kv0, int kv1, double *kept) {
  bool some = false, all = true;
  for (p->at.q = q0; p->at.q < q1; ++p->at.q)
    for (p->at.kv = kv0; p->at.kv < kv1; ++p->at.kv) {
      const bool keep = p->f->keeps(&p->at);
      some |= keep, all &= keep;
      if (kept != NULL) *kept += keep;
    }
  return !some ? 0 : all ? 2 : 1;
}

static int least(int x, int y) { return x < y ? x : y; }

static void refuse(const problem *p, int kind, const int tile[2], const char *what, double got, double want) {
  fail_msg("%s, data %d, %d positions, tiles of %dx%d: %s: %.0f, expected %.0f", p->f->name, kind, p->at.n, tile[0],
           tile[1], what, got, want);
}

/* The class of a tile by the cells of 64 x 64 that it touches. */
static int class_by_cells(problem *p, int q0, int q1, int kv0, int kv1) {
  const int n = p->at.n;
  bool some = false, all = true;
  for (int r = q0 / 64; r <= (q1 - 1) / 64; ++r)
    for (int c = kv0 / 64; c <= (kv1 - 1) / 64; ++c) {
      const int cell = class_of(p, r * 64, least(r * 64 + 64, n), c * 64, least(c * 64 + 64, n), NULL);
      some |= cell != 0, all &= cell == 2;
    }
  return !some ? 0 : all ? 2 : 1;
}

static void check(problem *p, int kind, const int tile[2], luattn_skip skip) {
  static unsigned char classes[400 * 400];
  const int n = p->at.n, columns = (n + tile[1] - 1) / tile[1];
  luattn_mask_counts c = {.struct_size = sizeof c};
  luattn_error err;
  double kept = 0, needed = 0, full = 0, partial = 0;
  p->args.skip = skip;
  if (luattn_mask_survey(p->spec, NULL, &p->args, tile[0], tile[1], &c, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(luattn_mask_tiles(p->spec, &p->args, 0, 0, tile[0], tile[1], classes, &err), LUATTN_OK);
  assert_int_equal(c.means == LUATTN_MASK_CELLS, c.may_evaluate && skip != LUATTN_SKIP_NEVER);
  for (int q = 0; q < n; q += tile[0])
    for (int kv = 0; kv < n; kv += tile[1]) {
      const int q1 = least(q + tile[0], n), kv1 = least(kv + tile[1], n),
                got = classes[q / tile[0] * columns + kv / tile[1]];
      const int exact = class_of(p, q, q1, kv, kv1, &kept);
      needed += exact != 0, full += got == 2, partial += got == 1;
      bool right = got == exact || (got == 1 && c.means != LUATTN_MASK_CELLS);
      if (c.means == LUATTN_MASK_CELLS && got != exact) right = got == class_by_cells(p, q, q1, kv, kv1);
      if (!right) refuse(p, kind, tile, "class of a tile", got, exact);
    }
  if (c.full != full) refuse(p, kind, tile, "full", c.full, full);
  if (c.partial != partial) refuse(p, kind, tile, "partial", c.partial, partial);
  if (c.needed != needed) refuse(p, kind, tile, "needed", c.needed, needed);
  if (c.kept != kept) refuse(p, kind, tile, "kept", c.kept, kept);
  if (c.kept_error != 0 || c.needed_error != 0 || c.computed_error != 0)
    refuse(p, kind, tile, "error", c.kept_error, 0);
}

static void test_every_score(void **unused) {
  static const int tiles[][2] = {{64, 64}, {128, 64}, {128, 80}, {16, 48}};
  (void)unused;
  for (int i = 0; i < NUM_FORMS; ++i) {
    problem p;
    open_form(&forms[i], &p);
    for (int kind = 0; kind < KINDS; ++kind) {
      const int t = (i + kind) % 4;
      set_length(&p, kind % 2 == 0 ? 300 : 192);
      fill(&p, kind);
      check(&p, kind, tiles[t], LUATTN_SKIP_AUTO);
      check(&p, kind, tiles[t], LUATTN_SKIP_NEVER);
      drop(&p);
    }
    luattn_spec_free(p.spec);
  }
}

/* ---- the table ---- */

static const char *const means[] = {"none", "ranges", "minima", "cells"};
static const char *doc_path;
static bool is_long;

/* How many tiles more than needed. */
static void add_excess(char *out, size_t size, const luattn_mask_counts *c) {
  const size_t used = strlen(out);
  const double more = c->needed > 0 ? 100 * ((c->full + c->partial) / c->needed - 1) : 0;
  if (c->full + c->partial == c->needed)
    snprintf(out + used, size - used, " exact |");
  else
    snprintf(out + used, size - used, more < 10 ? " +%.1f %% |" : " +%.0f %% |", more);
}

static void measure(problem *p, int n, char *out, size_t size, luattn_mask_means *by) {
  luattn_mask_counts c = {.struct_size = sizeof c}, without = c;
  luattn_error err;
  set_length(p, n);
  fill(p, 0);
  if (luattn_mask_survey(p->spec, NULL, &p->args, 128, 128, &c, &err) != LUATTN_OK) fail_msg("%s", err.message);
  p->args.skip = LUATTN_SKIP_NEVER;
  assert_int_equal(luattn_mask_survey(p->spec, NULL, &p->args, 128, 128, &without, &err), LUATTN_OK);
  drop(p);
  *by = c.means;
  if (c.means != LUATTN_MASK_CELLS && c.full + c.partial > 1.02 * c.needed)
    fail_msg("%s: %.0f tiles are computed and %.0f needed; ranges and minima do not decide this mask", p->f->name,
             c.full + c.partial, c.needed);
  add_excess(out, size, &c);
  add_excess(out, size, &without);
}

/* The line of the table that starts like this; NULL: none. */
static const char *line_of(const char *doc, const char *name, char *line, size_t size) {
  char start[128];
  snprintf(start, sizeof start, "\n| %s |", name);
  const char *at = strstr(doc, start);
  if (at == NULL) return NULL;
  const size_t length = strcspn(at + 1, "\n");
  snprintf(line, size, "%.*s", (int)length, at + 1);
  return line;
}

static void test_table(void **unused) {
  (void)unused;
  static char doc[65536], line[1024], want[1024];
  FILE *f = fopen(doc_path, "r");
  assert_non_null(f);
  doc[fread(doc, 1, sizeof doc - 1, f)] = 0;
  fclose(f);
  int wrong = 0;
  for (int i = 0; i < NUM_FORMS; ++i) {
    problem p;
    luattn_mask_means by = LUATTN_MASK_NONE;
    char measured[256] = "";
    open_form(&forms[i], &p);
    if (is_long && p.f->shape[0][0] == N && p.f->shape[0][1] == N) /* a gigabyte */
      strcpy(measured, " - | - |");
    else
      measure(&p, is_long ? 16384 : 4096, measured, sizeof measured, &by);
    luattn_spec_free(p.spec);
    if (is_long)
      snprintf(want, sizeof want, "%s", measured + 1);
    else
      snprintf(want, sizeof want, "| %s | `%s` | %s |%s", forms[i].name, forms[i].mask, means[by], measured);
    const char *is = line_of(doc, forms[i].name, line, sizeof line);
    const size_t length = is != NULL ? strlen(is) : 0, size = strlen(want);
    const bool right = is != NULL && (is_long ? length >= size && strcmp(is + length - size, want) == 0
                                              : strncmp(is, want, size) == 0);
    if (!right && wrong++ >= 0) printf("%s: %s\n", forms[i].name, want);
  }
  if (wrong > 0) fail_msg("%s: %d rows are not as these say", doc_path, wrong);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  doc_path = argv[1], is_long = argc > 2 && strcmp(argv[2], "long") == 0;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_score), cmocka_unit_test(test_table)};
  const struct CMUnitTest table[] = {cmocka_unit_test(test_table)};
  return is_long ? cmocka_run_group_tests(table, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
