/* tile_bits_test.c: the bits that luattn_tile_bits writes for masks from data, against the mask itself, evaluated here
 * for every score: a cell is kept where some score of it is, and whole where all are; in rows and in columns of cells,
 * each of which is written once for all batch entries and heads that share it. Data of several kinds: nothing, all,
 * few, most, one number unlike all others. In a workspace the bits follow all that a launch without them needs, and an
 * order of tiles follows them. Or they are in a batch, which forward made and both passes use; results are the same.
 *
 * tile_bits_test FAMILY DTYPE [MASK]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"

enum { BATCH = 2, HEADS = 2, DIM = 8, CELL = 64, PATTERNS = 6 };

/* ---- masks ---- */

typedef struct place {
  int b, h, q, kv, q_len, kv_len;
} place;
typedef struct numbers {
  const int *x; /* [shape] */
  int64_t shape[4];
} numbers;

static int at(const numbers *n, int i, int j, int k, int l) {
  const int64_t index[4] = {i, j, k, l};
  int64_t to = 0;
  for (int d = 0; d < 4; ++d) to = to * n->shape[d] + (index[d] < n->shape[d] ? index[d] : n->shape[d] - 1);
  return n->x[to];
}

static bool table(const numbers *n, place p) { return p.kv <= p.q && at(n, p.b, p.h, p.q / 128, p.kv / 64); }
static bool small_table(const numbers *n, place p) { return at(n, p.q / 32, p.kv / 16, 0, 0); }
static bool chosen(const numbers *n, place p) {
  bool picked = p.kv / 32 == p.q / 32;
  for (int i = 0; i < 3; ++i) picked |= at(n, p.h, p.q, i, 0) == p.kv / 32;
  return p.kv <= p.q && picked;
}
static bool padding(const numbers *n, place p) {
  return p.kv <= p.q && at(n, p.b, p.kv, 0, 0) && at(n, p.b, p.q, 0, 0);
}
static bool elements(const numbers *n, place p) { return at(n, p.q, p.kv, 0, 0); }
static bool causal_elements(const numbers *n, place p) { return p.kv <= p.q && elements(n, p); }
static bool groups(const numbers *n, place p) {
  const int of_q = at(n, p.b, p.q, 0, 0), of_kv = at(n, p.b, p.kv, 0, 0);
  return (p.kv <= p.q && p.q - p.kv < 24) || (of_q >= 0 && of_q == of_kv);
}
static bool intervals(const numbers *n, place p) {
  return p.q >= at(n, p.kv / 9, 0, 0, 0) && p.q < at(n, p.kv / 9, 1, 0, 0);
}
static bool scattered(const numbers *n, place p) { return at(n, p.q * 7 % 16, p.kv * 5 % 16, 0, 0); }
static bool either(const numbers *n, place p) { return p.kv <= p.q || at(n, p.q / 64, p.kv / 64, 0, 0); }
static bool of_keys(const numbers *n, place p) { return abs(p.q - p.kv) < 100 && at(n, p.h, p.kv / 64, 0, 0); }
static bool ancestors(const numbers *n, place p) {
  const int node = p.kv - p.q_len / 2;
  return node < 0 || (node < 31 && at(n, p.b, p.q, 0, 0) >> node & 1) || node == p.q;
}
static bool tree(const numbers *n, place p) {
  const int prefix = p.kv_len / 2;
  return p.kv < prefix || at(n, p.q, p.kv - prefix, 0, 0);
}
static bool bigbird(const numbers *n, place p) {
  const int i = p.q / 8, j = p.kv / 8;
  return abs(i - j) <= 1 || i < 1 || j < 1 || at(n, p.h, i, 0, 0) == j || at(n, p.h, i, 1, 0) == j;
}
static bool global_tokens(const numbers *n, place p) {
  return at(n, p.b, p.q, 0, 0) || at(n, p.b, p.kv, 0, 0) || abs(p.q - p.kv) < 9;
}
static bool not_dropped(const numbers *n, place p) {
  return p.kv <= p.q && !(at(n, p.b, p.q, 0, 0) || at(n, p.b, p.kv, 0, 0));
}
static bool one_chosen(const numbers *n, place p) { return at(n, p.h, p.q, 0, 0) == p.kv / 64; }
static bool windows(const numbers *n, place p) {
  return at(n, 0, p.q, 0, 0) == at(n, 0, p.kv, 0, 0) && abs(at(n, 1, p.q, 0, 0) - at(n, 1, p.kv, 0, 0)) < 9;
}

static bool lists(const numbers *n, place p) {
  const int x = (at(n, p.h, p.q / 64, p.kv / 128, 0) + 3) % 3;
  return x == 2 || (x == 1 && p.kv <= p.q);
}

/* Of positions alone: x is not read. */
static bool hash(const numbers *n, place p) {
  (void)n;
  return p.q / 64 == p.kv / 64 || (p.q / 64 * 37 + p.kv / 64 * 101 + p.h * 7) % 13 == 0;
}
static bool wrapped_hash(const numbers *n, place p) {
  (void)n;
  return p.kv <= p.q && ((uint32_t)(p.q / 64) * 2654435761u ^ (uint32_t)(p.kv / 64) * 2246822519u) >> 28 < 1;
}

typedef struct mask_row {
  const char *name, *axes, *dtype, *mask; /* of b, h, q, kv, and input x */
  bool (*keeps)(const numbers *n, place p);
  int shape[4]; /* 0: none; below 0: B, H, LEN: of the longer length, or that divided by -shape / 8 blocks, rounded up
                 */
  bool by_batch, by_head;
} mask_row;
enum {
  B = -1,
  H = -2,
  LEN = -8,
  BLOCKS_OF_8 = -64,
  BLOCKS_OF_9 = -72,
  BLOCKS_OF_16 = -128,
  BLOCKS_OF_32 = -256,
  BLOCKS_OF_64 = -512,
  BLOCKS_OF_128 = -1024
};

static const mask_row masks[] = {
    {"table",
     "'b', 'h', 'i', 'j'",
     "bool",
     "kv <= q and x[{b, h, q // 128, kv // 64}]",
     table,
     {B, H, BLOCKS_OF_128, BLOCKS_OF_64},
     true,
     true},
    {"small_table",
     "'i', 'j'",
     "bool",
     "x[{q // 32, kv // 16}]",
     small_table,
     {BLOCKS_OF_32, BLOCKS_OF_16},
     false,
     false},
    {"chosen",
     "'h', 'n', 'top'",
     "i32",
     "kv <= q and (eq(kv // 32, q // 32) or eq(x[{h, q, 0}], kv // 32) or eq(x[{h, q, 1}], kv // 32) or eq(x[{h, q, "
     "2}], kv // "
     "32))",
     chosen,
     {H, LEN, 3},
     false,
     true},
    {"padding", "'b', 'n'", "bool", "kv <= q and x[{b, kv}] and x[{b, q}]", padding, {B, LEN}, true, false},
    {"elements", "'n', 'm'", "bool", "x[{q, kv}]", elements, {LEN, LEN}, false, false},
    {"causal_elements", "'n', 'm'", "bool", "kv <= q and x[{q, kv}]", causal_elements, {LEN, LEN}, false, false},
    {"groups",
     "'b', 'n'",
     "i32",
     "(kv <= q and q - kv < 24) or (x[{b, q}] >= 0 and eq(x[{b, q}], x[{b, kv}]))",
     groups,
     {B, LEN},
     true,
     false},
    {"intervals",
     "'n', 'two'",
     "i32",
     "q >= x[{kv // 9, 0}] and q < x[{kv // 9, 1}]",
     intervals,
     {BLOCKS_OF_9, 2},
     false,
     false},
    {"scattered", "'n', 'm'", "bool", "x[{q * 7 % 16, kv * 5 % 16}]", scattered, {16, 16}, false, false},
    {"either",
     "'n', 'm'",
     "bool",
     "kv <= q or x[{q // 64, kv // 64}]",
     either,
     {BLOCKS_OF_64, BLOCKS_OF_64},
     false,
     false},
    {"ancestors",
     "'b', 'n'",
     "i32",
     "kv < q_len // 2 or (kv < q_len // 2 + 31 and ne(x[{b, q}] >> (kv - q_len // 2) & 1, 0)) or eq(kv - q_len // 2, "
     "q)",
     ancestors,
     {B, LEN},
     true,
     false},
    {"tree",
     "'n', 'm'",
     "bool",
     "kv < kv_len // 2 or x[{q, max(kv - kv_len // 2, 0)}]",
     tree,
     {LEN, LEN},
     false,
     false},
    {"bigbird",
     "'h', 'i', 'two'",
     "i32",
     "abs(q // 8 - kv // 8) <= 1 or q // 8 < 1 or kv // 8 < 1 or eq(x[{h, q // 8, 0}], kv // 8) or eq(x[{h, q // 8, "
     "1}], kv // 8)",
     bigbird,
     {H, BLOCKS_OF_8, 2},
     false,
     true},
    {"global_tokens",
     "'b', 'n'",
     "bool",
     "x[{b, q}] or x[{b, kv}] or abs(q - kv) < 9",
     global_tokens,
     {B, LEN},
     true,
     false},
    {"not_dropped",
     "'b', 'n'",
     "bool",
     "kv <= q and not (x[{b, q}] or x[{b, kv}])",
     not_dropped,
     {B, LEN},
     true,
     false},
    {"one_chosen", "'h', 'n'", "i32", "eq(x[{h, q}], kv // 64)", one_chosen, {H, LEN}, false, true},
    {"windows",
     "'two', 'n'",
     "i32",
     "eq(x[{0, q}], x[{0, kv}]) and abs(x[{1, q}] - x[{1, kv}]) < 9",
     windows,
     {2, LEN},
     false,
     false},
    {"of_keys", "'h', 'm'", "bool", "abs(q - kv) < 100 and x[{h, kv // 64}]", of_keys, {H, BLOCKS_OF_64}, false, true},
    {"lists",
     "'h', 'n', 'm'",
     "i32",
     "eq(x[{h, q // 64, kv // 128}] % 3, 2) or (eq(x[{h, q // 64, kv // 128}] % 3, 1) and kv <= q)",
     lists,
     {H, BLOCKS_OF_64, BLOCKS_OF_128},
     false,
     true},
    {"hash",
     "'n'",
     "i32",
     "eq(q // 64, kv // 64) or eq((q // 64 * 37 + kv // 64 * 101 + h * 7) % 13, 0)",
     hash,
     {4},
     false,
     true},
    {"wrapped_hash",
     "'n'",
     "i32",
     "kv <= q and ((q // 64 * 2654435761 ~ kv // 64 * 2246822519) & 0xFFFFFFFF) >> 28 < 1",
     wrapped_hash,
     {4},
     false,
     false},
};
enum { NUM_MASKS = sizeof masks / sizeof *masks };

/* ---- data ---- */

static int uniform(int count) { return (int)((drawn() + 1) / 2 * count); }

static int number_of(const mask_row *m, int pattern, int64_t i, int64_t count, int64_t odd, int len) {
  const bool is_int = strcmp(m->dtype, "i32") == 0;
  switch (pattern) {
    case 0:
      return is_int ? -1 : 0;
    case 1:
      return 1;
    case 2:
      return is_int ? uniform(len + 1) - 1 : uniform(8) == 0;
    case 3:
      return is_int ? (int)(i * 9 / count) - 1 : uniform(32) != 0;
    case 4:
      return i == odd ? 1 : is_int ? -1 : 0;
    default:
      return i == odd ? 0 : 1;
  }
}

static void draw_numbers(const mask_row *m, int pattern, int len, numbers *n) {
  int64_t count = 1;
  for (int d = 0; d < 4; ++d) {
    const int s = m->shape[d];
    n->shape[d] = s == 0 ? 1 : s > 0 ? s : s == B ? BATCH : s == H ? HEADS : (len + -s / 8 - 1) / (-s / 8);
    count *= n->shape[d];
  }
  int *x = calloc((size_t)count, sizeof *x);
  const int64_t odd = uniform((int)count);
  for (int64_t i = 0; i < count; ++i) x[i] = number_of(m, pattern, i, count, odd, len);
  n->x = x;
}

/* Booleans lie in bytes. */
static void send_numbers(const mask_row *m, const numbers *n, array *a) {
  const bool is_int = strcmp(m->dtype, "i32") == 0;
  int64_t count = 1;
  int ndim = 0;
  while (ndim < 4 && m->shape[ndim] != 0) count *= n->shape[ndim++];
  make(a, I32, 1, (int64_t[]){is_int ? count : count / 4 + 1});
  for (int64_t i = 0; i < count; ++i) {
    if (is_int)
      put(I32, a->host, (size_t)i, n->x[i]);
    else
      ((unsigned char *)a->host)[i] = n->x[i] != 0;
  }
  send(a);
  if (!is_int) a->t.dtype = (DLDataType){kDLUInt, 8, 1};
  for (int d = 0; d < 4; ++d) a->shape[d] = n->shape[d];
  a->t.ndim = ndim;
}

/* ---- bits ---- */

typedef struct problem {
  luattn_engine *engine;
  const luattn_spec *spec;
  const mask_row *mask;
  numbers n;
  int pattern, q_len, kv_len;
} problem;

static int cells_of(int len) { return (len + CELL - 1) / CELL; }
static size_t bytes_of(int sets, int lines, int across) {
  return ((size_t)sets * (size_t)lines * (size_t)((across + 31) / 32) * 8 + 255) / 256 * 256;
}

/* Bytes of an order of tiles of 16 positions at least (tile_order_test.c). */
static size_t most_of_order(const problem *x) {
  const int len = x->q_len > x->kv_len ? x->q_len : x->kv_len;
  return (size_t)(len / 16 + 1) * 8 * BATCH * HEADS + 256;
}

/* {kept, whole} of a cell, by each score of it. */
static unsigned expected(const problem *x, int b, int h, int row, int column) {
  bool some = false, all = true;
  if (row >= cells_of(x->q_len) || column >= cells_of(x->kv_len)) return 0;
  for (int q = row * CELL; q < (row + 1) * CELL && q < x->q_len; ++q)
    for (int kv = column * CELL; kv < (column + 1) * CELL && kv < x->kv_len; ++kv) {
      const bool keep = x->mask->keeps(&x->n, (place){b, h, q, kv, x->q_len, x->kv_len});
      some |= keep;
      all &= keep;
    }
  return (unsigned)some | (unsigned)all << 1;
}

/* Lines of one orientation, with all bits of their words. */
static int compare(const problem *x, const uint32_t *bits, bool columns, const char *pass) {
  const int lines = cells_of(columns ? x->kv_len : x->q_len), across = cells_of(columns ? x->q_len : x->kv_len),
            words = (across + 31) / 32, batch = x->mask->by_batch ? BATCH : 1, heads = x->mask->by_head ? HEADS : 1;
  int wrong = 0;
  for (int set = 0; set < batch * heads; ++set)
    for (int line = 0; line < lines; ++line)
      for (int i = 0; i < words * 32; ++i) {
        const uint32_t *pair =
            bits + (((size_t)set * (size_t)lines + (size_t)line) * (size_t)words + (size_t)(i / 32)) * 2;
        const unsigned got = (pair[0] >> i % 32 & 1) | (pair[1] >> i % 32 & 1) << 1,
                       want = expected(x, set / heads, set % heads, columns ? i : line, columns ? line : i);
        if (got == want) continue;
        if (wrong++ == 0)
          fprintf(stderr, "FAILED: %s, data %d, %d x %d, %s: %s %d of set %d, cell %d: is %u, expected %u\n",
                  x->mask->name, x->pattern, x->q_len, x->kv_len, pass, columns ? "column" : "row", line, set, i, got,
                  want);
      }
  return wrong;
}

/* One pass with the bits of the batch, without room for them in the workspace. */
static void launch_with(const problem *x, luattn_pass pass, luattn_args *args, const luattn_batch *batch,
                        size_t without) {
  size_t size;
  array workspace;
  args->batch = batch;
  need(luattn_engine_workspace_size(x->engine, x->spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  need(size >= without && size - without <= most_of_order(x),
       "a batch's bits need no workspace, but an order of tiles does");
  make(&workspace, I32, 1, (int64_t[]){(int64_t)(size / 4) + 1});
  send(&workspace);
  args->workspace = workspace.device, args->workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(x->engine, x->spec, args, NULL, &err) == LUATTN_OK,
       "launch");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
  args->batch = NULL;
}

static size_t size_of(const array *a) { return a->t.dtype.bits / 8u * a->count; }

/* Whether the bits of the batch give the same results. */
static int compare_results(const problem *x, luattn_pass pass, luattn_args *args, const luattn_batch *batch,
                           size_t without, array **out, int num_out) {
  void *first[3];
  int wrong = 0;
  for (int i = 0; i < num_out; ++i) {
    fetch(out[i]);
    first[i] = malloc(size_of(out[i]));
    memcpy(first[i], out[i]->host, size_of(out[i]));
    memset(out[i]->host, 0x11, size_of(out[i]));
    send(out[i]);
  }
  launch_with(x, pass, args, batch, without);
  for (int i = 0; i < num_out; ++i) {
    fetch(out[i]);
    if (memcmp(first[i], out[i]->host, size_of(out[i])) != 0 && ++wrong)
      fprintf(stderr, "FAILED: %s, data %d, %d x %d, %s: result %d differs with a batch\n", x->mask->name, x->pattern,
              x->q_len, x->kv_len, pass == LUATTN_FORWARD ? "forward" : "backward", i);
    free(first[i]);
  }
  return wrong;
}

static int launch(const problem *x, luattn_pass pass, luattn_args *args, const luattn_batch *batch, array **out,
                  int num_out) {
  const int sets = (x->mask->by_batch ? BATCH : 1) * (x->mask->by_head ? HEADS : 1), rows = cells_of(x->q_len),
            columns = cells_of(x->kv_len);
  const size_t of_rows = bytes_of(sets, rows, columns), of_columns = bytes_of(sets, columns, rows);
  const char *name = pass == LUATTN_FORWARD ? "forward" : "backward";
  size_t size, without;
  array workspace;
  need(luattn_engine_workspace_size(x->engine, x->spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  args->skip = LUATTN_SKIP_NEVER;
  need(luattn_engine_workspace_size(x->engine, x->spec, pass, args, &without, &err) == LUATTN_OK, "workspace");
  args->skip = LUATTN_SKIP_ALWAYS;
  need(size >= without + of_rows + of_columns && size - without - of_rows - of_columns <= most_of_order(x),
       "the workspace has room for the bits, and behind them for an order of tiles");
  make(&workspace, I32, 1, (int64_t[]){(int64_t)(size / 4)});
  memset(workspace.host, 0xff, size);
  send(&workspace);
  args->workspace = workspace.device, args->workspace_size = size;
  need((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(x->engine, x->spec, args, NULL, &err) == LUATTN_OK,
       name);
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&workspace);
  const char *rows_of_bits = (const char *)workspace.host + without;
  const int wrong = compare(x, (const uint32_t *)rows_of_bits, false, name) +
                    compare(x, (const uint32_t *)(rows_of_bits + of_rows), true, name);
  drop(&workspace);
  if (batch == NULL) return wrong;
  return wrong + compare_results(x, pass, args, batch, without, out, num_out);
}

/* Makes the bits of a batch, and checks them. */
static int prepare(const problem *x, luattn_args *args, luattn_batch *batch, array *memory) {
  const int sets = (x->mask->by_batch ? BATCH : 1) * (x->mask->by_head ? HEADS : 1), rows = cells_of(x->q_len),
            columns = cells_of(x->kv_len);
  const size_t of_rows = bytes_of(sets, rows, columns), of_columns = bytes_of(sets, columns, rows);
  const luattn_kernel *kernel;
  size_t size;
  need(luattn_engine_kernel(x->engine, x->spec, LUATTN_FORWARD, args, &kernel, &err) == LUATTN_OK, "kernel");
  need(luattn_batch_mask_size(kernel, args, &size, &err) == LUATTN_OK, "size of bits");
  need(size >= of_rows + of_columns, "bits are rows and columns");
  make(memory, I32, 1, (int64_t[]){(int64_t)(size / 4)});
  memset(memory->host, 0xff, size);
  send(memory);
  need(luattn_batch_prepare_mask(batch, kernel, args, memory->device, size, NULL, &err) == LUATTN_OK, "preparing bits");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(memory);
  return compare(x, memory->host, false, "batch") +
         compare(x, (const uint32_t *)((const char *)memory->host + of_rows), true, "batch");
}

/* both: also backward, and for some masks with a batch. */
static int check(problem *x, kind k, bool both) {
  array q, key, v, o, lse, data;
  make(&q, k, 4, (int64_t[]){BATCH, HEADS, x->q_len, DIM});
  make(&key, k, 4, (int64_t[]){BATCH, 1, x->kv_len, DIM});
  make(&v, k, 4, key.shape);
  make(&o, k, 4, q.shape);
  make(&lse, k == F64 ? F64 : F32, 3, (int64_t[]){BATCH, HEADS, x->q_len});
  array *all[] = {&q, &key, &v, &o, &lse};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) fill(all[i], 0.5);
  draw_numbers(x->mask, x->pattern, x->q_len > x->kv_len ? x->q_len : x->kv_len, &x->n);
  send_numbers(x->mask, &x->n, &data);
  const luattn_input given = {.name = "x", .tensor = &data.t};
  luattn_args args = {.struct_size = sizeof args,
                      .q = &q.t,
                      .k = &key.t,
                      .v = &v.t,
                      .o = &o.t,
                      .lse = &lse.t,
                      .inputs = &given,
                      .num_inputs = 1,
                      .skip = LUATTN_SKIP_ALWAYS};
  luattn_batch *batch = NULL;
  array bits;
  int wrong = 0;
  const bool shares = both && (x->mask - masks) % 4 == 0; /* some are enough */
  if (shares) {
    const luattn_batch_options options = {.struct_size = sizeof options};
    need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
    wrong += prepare(x, &args, batch, &bits);
  }
  wrong += launch(x, LUATTN_FORWARD, &args, batch, (array *[]){&o, &lse}, 2);
  if (both) {
    args.dout = &o.t, args.dq = &q.t, args.dk = &key.t, args.dv = &v.t;
    array dq, dk, dv;
    make(&dq, k, 4, q.shape), make(&dk, k, 4, key.shape), make(&dv, k, 4, key.shape);
    send(&dq), send(&dk), send(&dv);
    args.dq = &dq.t, args.dk = &dk.t, args.dv = &dv.t;
    wrong += launch(x, LUATTN_BACKWARD, &args, batch, (array *[]){&dq, &dk, &dv}, 3);
    drop(&dq), drop(&dk), drop(&dv);
  }
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
  if (shares) drop(&bits);
  luattn_batch_close(batch);
  drop(&data);
  free((void *)x->n.x);
  return wrong;
}

/* LUATTN_CHECK=1 finds that an input has changed. */
static int check_changes(problem *x, kind k) {
  array q, lse, data, bits;
  x->q_len = x->kv_len = 200;
  make(&q, k, 4, (int64_t[]){BATCH, HEADS, x->q_len, DIM});
  make(&lse, k == F64 ? F64 : F32, 3, q.shape);
  fill(&q, 0.5), fill(&lse, 0);
  draw_numbers(x->mask, 1, x->q_len, &x->n);
  send_numbers(x->mask, &x->n, &data);
  array o;
  make(&o, k, 4, q.shape), send(&o);
  const luattn_input given = {.name = "x", .tensor = &data.t};
  const luattn_batch_options options = {.struct_size = sizeof options};
  luattn_batch *batch;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  luattn_args args = {.struct_size = sizeof args,
                      .q = &q.t,
                      .k = &q.t,
                      .v = &q.t,
                      .o = &o.t,
                      .lse = &lse.t,
                      .inputs = &given,
                      .num_inputs = 1};
  int wrong = prepare(x, &args, batch, &bits);
  args.batch = batch;
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(x->engine, x->spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, I32, 1, (int64_t[]){(int64_t)(size / 4) + 1});
  send(&workspace);
  args.workspace = workspace.device, args.workspace_size = size;
  setenv("LUATTN_CHECK", "1", 1);
  need(luattn_forward(x->engine, x->spec, &args, NULL, &err) == LUATTN_OK, "bits are those of the mask");
  memset(data.host, 0, data.count * 4);
  send(&data);
  const char *expected =
      "batch: its tile bits are not those of the mask: queries from 0 and keys from 0 on, of batch entry 0 and head 0, "
      "and 27 more words of cells; an input has changed, call luattn_batch_prepare_mask again";
  if (luattn_forward(x->engine, x->spec, &args, NULL, &err) != LUATTN_INVALID ||
      strstr(err.message, expected) == NULL) {
    fprintf(stderr, "FAILED: LUATTN_CHECK says '%s', expected '%s'\n", err.message, expected);
    ++wrong;
  }
  unsetenv("LUATTN_CHECK");
  need(luattn_forward(x->engine, x->spec, &args, NULL, &err) == LUATTN_OK, "unchecked");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  luattn_batch_close(batch);
  array *all[] = {&q, &lse, &data, &bits, &o, &workspace};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
  free((void *)x->n.x);
  return wrong;
}

int main(int argc, char **argv) {
  static const int lengths[][2] = {{200, 270}, {64, 128}, {65, 2100}, {2100, 130}, {1, 1}, {270, 200}};
  static const char *const families[] = {"simt", "sm80", "sm90"};
  if (argc < 3) return 2;
  int family = 0, k = 0, wrong = 0;
  while (family < 3 && strcmp(argv[1], families[family]) != 0) ++family;
  while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (family == 3 || k == 4) return 2;
  const luattn_engine_options options = {.struct_size = sizeof options, .family = 1 + family};
  problem x = {.pattern = 0};
  need(luattn_engine_open(&options, &x.engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(x.engine);
  for (int i = 0; i < NUM_MASKS; ++i) {
    char text[1024];
    luattn_spec *spec;
    if (argc > 3 && strcmp(argv[3], masks[i].name) != 0) continue;
    snprintf(text, sizeof text,
             "return attention { inputs = { x = { axes = {%s}, dtype = '%s' } }, mask_mod = function(b, h, q, kv) "
             "return %s end }",
             masks[i].axes, masks[i].dtype, masks[i].mask);
    need(luattn_spec_load_text(masks[i].name, text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
    x.spec = spec, x.mask = &masks[i];
    for (x.pattern = 0; x.pattern < PATTERNS; ++x.pattern) {
      const int *len = lengths[(i + x.pattern) % (int)(sizeof lengths / sizeof *lengths)];
      x.q_len = len[0], x.kv_len = len[1];
      wrong += check(&x, (kind)k, x.pattern == 2);
      x.q_len = 320, x.kv_len = 192; /* lines of flags can be read by 16 */
      if (strstr(masks[i].name, "elements") != NULL && x.pattern % 4 == 0) wrong += check(&x, (kind)k, false);
    }
    if (i == 0) wrong += check_changes(&x, (kind)k);
    need(luattn_engine_forget(x.engine, spec, &err) == LUATTN_OK, "forget");
    luattn_spec_free(spec);
  }
  luattn_engine_close(x.engine);
  return wrong != 0;
}
