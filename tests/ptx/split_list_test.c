/* split_list_test.c: decode kernels of entries that differ in length, whose blocks come from a list
 * (luattn_split_list), on the PTX machine. Entries of 0 to 2500 keys in pages or packed, with packed queries or not. O
 * and lse are compared with plain loops; without a list blocks find their places in the lengths; a deterministic
 * launch's list and a batch's give the same bits; the list must have each
 * split of each tile once, longer blocks first. A deterministic engine must give an entry the same bits among any
 * others. Then what luattn_batch_prepare_tiles refuses, lists of other calls, and of lengths that have changed.
 *
 * split_list_test DTYPE [few]: bf16, f16
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/params.h"
#include "tests/ptx/arrays.h"

enum { MOST = 33, ENTRIES = 12, HEADS = 8, HEADS_KV = 2, DIM = 64, PAGE = 16, QUERIES = 3, LONGEST = 9000 };
enum { PAGED, PAGED_PACKED, PACKED, MODES }; /* keys in pages; with packed queries, too; both packed */
static const char *const mode_name[] = {"pages", "pages and packed queries", "packed"};

typedef struct problem {
  int mode, batch, keys[MOST], queries[MOST], first_q[MOST + 1], first_k[MOST + 1], pages;
  array q, k, v, o, lse, cu_q, cu_k, used, table;
  luattn_batch *batch_of;
} problem;

static void ints(array *a, int64_t count, const int *from) {
  make(a, I32, 1, (int64_t[]){count});
  memcpy(a->host, from, (size_t)count * sizeof(int));
  send(a);
}

/* Keys of an entry lie from page first_k / PAGE on, in reverse order; packed, from row first_k on. */
static int k_row(const problem *x, int b, int i) {
  if (x->mode == PACKED) return x->first_k[b] + i;
  const int pages = (x->keys[b] + PAGE - 1) / PAGE;
  return x->first_k[b] + (pages - 1 - i / PAGE) * PAGE + i % PAGE;
}
static size_t at(int row, int heads, int h, int d) {
  return ((size_t)row * (size_t)heads + (size_t)h) * DIM + (size_t)d;
}

/* Values depend on `seed`, the entry's, alone. */
static void draw_rows(array *a, kind k, int first, int count, int heads, int seed) {
  for (int i = 0; i < count * heads * DIM; ++i)
    put(k, a->host, (size_t)(first * heads * DIM + i),
        sin(1.7 * i + 0.001 * i * (seed % 13) + seed) * (1 + i % 3) * 0.5);
}

static int64_t page_strides[] = {PAGE * HEADS_KV * DIM, DIM, HEADS_KV *DIM, 1},
               q_strides[] = {QUERIES * HEADS * DIM, DIM, HEADS *DIM, 1};

static void open_batch(problem *x) {
  luattn_batch_options options = {.struct_size = sizeof options, .max_seqlen_k = LONGEST, .max_seqlen_q = QUERIES};
  if (x->mode != PACKED)
    options.seqused_k = &x->used.t, options.block_table = &x->table.t;
  else
    options.cu_seqlens_k = &x->cu_k.t;
  if (x->mode != PAGED)
    options.cu_seqlens_q = &x->cu_q.t;
  else
    options.max_seqlen_q = 0;
  need(luattn_batch_open(&options, &x->batch_of, &err) == LUATTN_OK, "batch");
}

static void draw_problem(problem *x, int mode, kind k, int batch, const int *keys, const int *seeds) {
  *x = (problem){.mode = mode, .batch = batch};
  for (int b = 0; b < batch; ++b) {
    x->keys[b] = keys[b], x->queries[b] = mode == PAGED ? QUERIES : seeds[b] % (QUERIES + 1);
    x->first_q[b + 1] = x->first_q[b] + x->queries[b];
    x->first_k[b + 1] = x->first_k[b] + (mode == PACKED ? keys[b] : (keys[b] + PAGE - 1) / PAGE * PAGE);
    if ((keys[b] + PAGE - 1) / PAGE > x->pages) x->pages = (keys[b] + PAGE - 1) / PAGE;
  }
  const int rows = x->first_q[batch], all = x->first_k[batch] + (mode == PACKED ? 0 : PAGE);
  make(&x->q, k, 3, (int64_t[]){rows, HEADS, DIM}), make(&x->o, k, 3, (int64_t[]){rows, HEADS, DIM});
  make(&x->k, k, 3, (int64_t[]){all, HEADS_KV, DIM}), make(&x->v, k, 3, (int64_t[]){all, HEADS_KV, DIM});
  make(&x->lse, F32, 2, (int64_t[]){HEADS, rows});
  fill(&x->k, NAN), fill(&x->v, NAN), fill(&x->o, NAN), fill(&x->lse, NAN);
  fetch(&x->k), fetch(&x->v);
  for (int b = 0; b < batch; ++b) {
    draw_rows(&x->q, k, x->first_q[b], x->queries[b], HEADS, seeds[b]);
    const int page = mode == PACKED ? keys[b] : PAGE;
    for (int i = 0; i < keys[b]; i += page) {
      const int count = keys[b] - i < page ? keys[b] - i : page;
      draw_rows(&x->k, k, k_row(x, b, i), count, HEADS_KV, seeds[b] + i / PAGE),
          draw_rows(&x->v, k, k_row(x, b, i), count, HEADS_KV, seeds[b] + 7 * i / PAGE);
    }
  }
  send(&x->q), send(&x->k), send(&x->v);
  ints(&x->cu_q, batch + 1, x->first_q), ints(&x->cu_k, batch + 1, x->first_k), ints(&x->used, batch, x->keys);
  make(&x->table, I32, 2, (int64_t[]){batch, x->pages + 1});
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i <= x->pages; ++i)
      ((int *)x->table.host)[b * (x->pages + 1) + i] = i * PAGE < keys[b] ? k_row(x, b, i * PAGE) / PAGE : -1;
  send(&x->table);
  if (mode == PAGED) {
    array *const of_q[] = {&x->q, &x->o};
    for (int i = 0; i < 2; ++i) {
      memcpy(of_q[i]->shape, (int64_t[]){batch, HEADS, QUERIES, DIM}, sizeof of_q[i]->shape);
      of_q[i]->t.ndim = 4, of_q[i]->t.strides = q_strides;
    }
    memcpy(x->lse.shape, (int64_t[]){batch, HEADS, QUERIES}, 3 * sizeof(int64_t));
    x->lse.t.ndim = 3;
  }
  array *const of_k[] = {&x->k, &x->v};
  for (int i = 0; i < 2 && mode != PACKED; ++i) {
    memcpy(of_k[i]->shape, (int64_t[]){all / PAGE, HEADS_KV, PAGE, DIM}, sizeof of_k[i]->shape);
    of_k[i]->t.ndim = 4, of_k[i]->t.strides = page_strides;
  }
  open_batch(x);
}
static void drop_problem(problem *x) {
  array *all[] = {&x->q, &x->k, &x->v, &x->o, &x->lse, &x->cu_q, &x->cu_k, &x->used, &x->table};
  luattn_batch_close(x->batch_of);
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

static luattn_args args_of(const problem *x) {
  return (luattn_args){.struct_size = sizeof(luattn_args),
                       .q = &x->q.t,
                       .k = &x->k.t,
                       .v = &x->v.t,
                       .o = &x->o.t,
                       .lse = &x->lse.t,
                       .batch = x->batch_of,
                       .decode = LUATTN_DECODE_ALWAYS};
}

/* Returns the bytes of the workspace. */
static size_t run(luattn_engine *engine, luattn_spec *spec, problem *x) {
  luattn_args args = args_of(x);
  array workspace;
  size_t size;
  fill(&x->o, NAN), fill(&x->lse, NAN);
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  fill(&workspace, NAN);
  args.workspace = workspace.device, args.workspace_size = size;
  need(luattn_forward(engine, spec, &args, NULL, &err) == LUATTN_OK, "forward");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace);
  fetch(&x->o), fetch(&x->lse);
  return size;
}

/* ---- plain loops: query i sees the keys up to i + kv_len - q_len ---- */

static double plain_row(const problem *x, int b, int h, int i, double o[DIM]) {
  const int end = i + x->keys[b] - x->queries[b] + 1, h_kv = h / (HEADS / HEADS_KV);
  double total = 0;
  for (int d = 0; d < DIM; ++d) o[d] = 0;
  for (int j = 0; j < end; ++j) {
    double s = 0;
    for (int d = 0; d < DIM; ++d)
      s += get(x->q.k, x->q.host, at(x->first_q[b] + i, HEADS, h, d)) *
           get(x->k.k, x->k.host, at(k_row(x, b, j), HEADS_KV, h_kv, d));
    const double p = exp(s / sqrt(DIM));
    total += p;
    for (int d = 0; d < DIM; ++d) o[d] += p * get(x->v.k, x->v.host, at(k_row(x, b, j), HEADS_KV, h_kv, d));
  }
  for (int d = 0; d < DIM && total > 0; ++d) o[d] /= total;
  return log(total);
}

static int check_rows(problem *x, const char *what) {
  int wrong = 0;
  for (int b = 0; b < x->batch; ++b)
    for (int i = 0; i < x->queries[b]; ++i)
      for (int h = 0; h < HEADS; ++h) {
        double o[DIM];
        const double lse = plain_row(x, b, h, i, o),
                     got_lse = get(F32, x->lse.host,
                                   x->mode == PAGED ? ((size_t)b * HEADS + (size_t)h) * QUERIES + (size_t)i
                                                    : (size_t)(h * x->first_q[x->batch] + x->first_q[b] + i));
        bool ok = got_lse == lse || fabs(got_lse - lse) <= 4e-5;
        for (int d = 0; d < DIM; ++d)
          ok = ok && fabs(get(x->o.k, x->o.host, at(x->first_q[b] + i, HEADS, h, d)) - o[d]) <= 8 * kind_unit[x->o.k];
        if (!ok && wrong++ == 0)
          fprintf(stderr, "FAILED: %s, %s: entry %d, query %d, head %d: lse is %g, expected %g\n", mode_name[x->mode],
                  what, b, i, h, got_lse, lse);
      }
  return wrong > 0;
}

/* ---- the list ---- */

enum { MOST_PARTS = 1 << 12 };

static int check_list(const problem *x, const array *memory, int tile_m, int chunk) {
  const LuattnSplitItem *items = memory->host;
  const int count = (int)items[0].entry, group = HEADS / HEADS_KV;
  int wrong = 0, tiles = 0, splits = 0, longest = 1 << 30, seen[MOST][4] = {{0}};
  static unsigned char taken[MOST_PARTS]; /* places of partial results */
  memset(taken, 0, sizeof taken);
  for (int b = 0; b < x->batch; ++b) tiles += (x->queries[b] * group + tile_m - 1) / tile_m;
  for (int i = 1; i <= count; ++i) {
    const LuattnSplitItem *t = &items[i];
    const int all = (int)(t->split >> 16), split = (int)(t->split & 0xffff), keys = (x->keys[t->entry] + all - 1) / all;
    if (t->entry >= (unsigned)x->batch || (int)t->tile * tile_m >= x->queries[t->entry] * group || t->tile > 3)
      return fprintf(stderr, "FAILED: item %d\n", i), 1;
    wrong += split != seen[t->entry][t->tile]++ || all < 1 || split >= all;
    wrong += keys > longest + longest / 8 + 64; /* levels are a 64th of a chunk */
    if (chunk > 0) wrong += all != (x->keys[t->entry] <= chunk ? 1 : (x->keys[t->entry] + chunk - 1) / chunk);
    if (keys < longest) longest = keys;
    tiles -= split == all - 1;
    splits += all > 1;
    for (int at = (int)t->first; all > 1 && split == 0 && at < (int)t->first + all; ++at)
      wrong += at >= MOST_PARTS || taken[at]++ > 0;
  }
  if (is_small_device() && splits == 0) fprintf(stderr, "FAILED: nothing is split\n"), ++wrong;
  if (wrong > 0 || tiles != 0)
    fprintf(stderr, "FAILED: the list of %d items: %d wrong, %d tiles missing\n", count, wrong, tiles);
  return wrong > 0 || tiles != 0;
}

static int refused(luattn_status status, const char *part) {
  if (status == LUATTN_INVALID && strstr(err.message, part) != NULL) return 0;
  fprintf(stderr, "FAILED: expected '%s', got %d '%s'\n", part, (int)status, err.message);
  return 1;
}

static int prepare(luattn_engine *engine, luattn_spec *spec, problem *x, array *list) {
  const luattn_args args = args_of(x);
  const luattn_kernel *kernel;
  size_t size;
  int failed = 0;
  need(luattn_engine_kernel(engine, spec, LUATTN_FORWARD, &args, &kernel, &err) == LUATTN_OK, "kernel");
  need(luattn_batch_tiles_size(kernel, &args, &size, &err) == LUATTN_OK && size > 0, "size of the list");
  make(list, I32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  failed += refused(luattn_batch_prepare_tiles(x->batch_of, kernel, &args, list->device, size - 8, NULL, &err),
                    "luattn_batch_tiles_size gives the size");
  failed += refused(luattn_batch_prepare_tiles(x->batch_of, kernel, &args, NULL, size, NULL, &err), "bytes at NULL");
  failed += refused(luattn_batch_prepare_tiles(x->batch_of, kernel, &args, (char *)list->device + 16, size, NULL, &err),
                    "256 bytes; align it");
  need(luattn_batch_prepare_tiles(x->batch_of, kernel, &args, list->device, size, NULL, &err) == LUATTN_OK,
       "making the list");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(list);
  return failed;
}

static const int keys_of[ENTRIES] = {2500, 3, 0, 64, 17, 1100, 250, 0, 90, 33, 1, 129},
                 seeds_of[ENTRIES] = {3, 2, 5, 1, 4, 7, 11, 10, 14, 3, 5, 6};

/* Whether blocks find their places: a workspace for as many splits of each entry has another size. */
static bool is_in_place(luattn_engine *engine, luattn_spec *spec, const problem *x, size_t own) {
  luattn_args args = args_of(x);
  bool other = true;
  for (args.num_splits = 1; args.num_splits <= LUATTN_MAX_SPLITS; ++args.num_splits) {
    size_t size;
    need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
    other = other && size != own;
  }
  return other;
}

/* A launch without a list, whose blocks find their places, or with its own (a deterministic kernel's), and with a
 * batch's. */
static int check_mode(luattn_engine *engine, luattn_spec *spec, kind k, int mode, bool deterministic) {
  problem x;
  array list;
  draw_problem(&x, mode, k, ENTRIES, keys_of, seeds_of);
  const size_t own = run(engine, spec, &x), bytes = x.o.count * 2;
  int failed = check_rows(&x, "no list of the batch");
  if (!deterministic && mode != PACKED && is_small_device() && !is_in_place(engine, spec, &x, own))
    fprintf(stderr, "FAILED: %s: as many splits for each entry\n", mode_name[mode]), ++failed;
  void *before = memcpy(malloc(bytes), x.o.host, bytes);
  failed += prepare(engine, spec, &x, &list) + check_list(&x, &list, 16, deterministic ? LUATTN_SPLIT_KEYS : 0);
  const size_t with = run(engine, spec, &x);
  failed += check_rows(&x, "a list of the batch");
  if (deterministic && memcmp(before, x.o.host, bytes) != 0)
    fprintf(stderr, "FAILED: %s: other bits with the batch's list\n", mode_name[mode]), ++failed;
  if (deterministic && with >= own)
    fprintf(stderr, "FAILED: %s: a workspace of %zu bytes with the batch's list, %zu without\n", mode_name[mode], with,
            own),
        ++failed;
  free(before);
  drop(&list);
  drop_problem(&x);
  return failed;
}

/* Lanes look at an entry each, of up to LUATTN_SPLIT_PLACES: that many, whose last one is long, and one more. */
static int check_many(luattn_engine *engine, luattn_spec *spec, kind k, int mode) {
  int failed = 0;
  for (int more = 0; more < 2; ++more) {
    problem x;
    int keys[MOST], seeds[MOST];
    for (int b = 0; b < MOST; ++b) keys[b] = b == LUATTN_SPLIT_PLACES - 1 ? 900 : b * 7 % 40, seeds[b] = b;
    draw_problem(&x, mode, k, LUATTN_SPLIT_PLACES + more, keys, seeds);
    const size_t own = run(engine, spec, &x);
    failed += check_rows(&x, "many entries");
    if (is_small_device() && is_in_place(engine, spec, &x, own) == (more > 0))
      fprintf(stderr, "FAILED: %s: %d entries\n", mode_name[mode], x.batch), ++failed;
    drop_problem(&x);
  }
  return failed;
}

/* A call with other queries than the list was made for; and LUATTN_CHECK=1, when lengths have changed. */
static int check_stale(luattn_engine *engine, luattn_spec *spec, kind k, int mode) {
  problem x;
  array list, workspace;
  size_t size;
  draw_problem(&x, mode, k, ENTRIES, keys_of, seeds_of);
  int failed = prepare(engine, spec, &x, &list);
  luattn_args args = args_of(&x);
  if (mode == PAGED) {
    x.q.shape[2] = x.o.shape[2] = x.lse.shape[2] = QUERIES - 1;
    failed += refused(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err),
                      "the most queries of an entry were 3, here 2");
    x.q.shape[2] = x.o.shape[2] = x.lse.shape[2] = QUERIES;
  }
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  args.workspace = workspace.device, args.workspace_size = size;
  setenv("LUATTN_CHECK", "1", 1);
  need(luattn_forward(engine, spec, &args, NULL, &err) == LUATTN_OK, "a list of these lengths");
  int *const changed = mode == PAGED ? (int *)x.used.host : (int *)x.cu_q.host + 1;
  changed[0] -= mode == PAGED ? 2499 : 3;
  if (mode != PAGED) changed[1] -= 2; /* 0, 3, 3 and 1 queries, where there were 3, 2, 1 and 1: still at most QUERIES */
  send(mode == PAGED ? &x.used : &x.cu_q);
  /* Of shorter keys, the splits are as good as before, but for a deterministic kernel. */
  const luattn_status status = luattn_forward(engine, spec, &args, NULL, &err);
  if (mode == PAGED)
    need(status == LUATTN_OK, "other lengths of keys");
  else
    failed += refused(status, "they have changed, call luattn_batch_prepare_tiles again");
  unsetenv("LUATTN_CHECK");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&workspace), drop(&list);
  drop_problem(&x);
  return failed;
}

/* ---- deterministic ---- */

static const int long_keys[] = {40, 4500, 2049, 0, 2048}, long_seeds[] = {1, 3, 2, 1, 7};

/* A deterministic engine takes the decode kernel by itself. */
static int check_choice(luattn_engine *engine, luattn_spec *spec, kind k) {
  problem x;
  const char *plan;
  draw_problem(&x, PAGED, k, 5, long_keys, long_seeds);
  luattn_args args = args_of(&x);
  args.decode = LUATTN_DECODE_AUTO;
  need(luattn_engine_plan(engine, spec, LUATTN_FORWARD, &args, &plan, &err) == LUATTN_OK, "plan");
  const bool ok = strstr(plan, "decode: ") != NULL &&
                  strstr(plan, "blocks of 2048 keys, or 64 blocks, by its own length alone") != NULL;
  if (!ok) fprintf(stderr, "FAILED: a deterministic engine's plan: %s\n", plan);
  drop_problem(&x);
  return !ok;
}

/* An entry's O. */
static void *entry_of(const problem *x, int b, size_t *bytes) {
  const size_t row = HEADS * DIM * 2;
  *bytes = (size_t)x->queries[b] * row;
  return memcpy(malloc(*bytes + 1), (const char *)x->o.host + (size_t)x->first_q[b] * row, *bytes);
}

/* Every entry alone, or beside two others, has the bits that it has among all. */
static int check_invariance(luattn_engine *engine, luattn_spec *spec, kind k, int mode, bool expected) {
  enum { N = 5 };
  problem all;
  array list;
  int failed = 0, differ = 0;
  draw_problem(&all, mode, k, N, long_keys, long_seeds);
  failed += prepare(engine, spec, &all, &list) + check_list(&all, &list, 16, expected ? LUATTN_SPLIT_KEYS : 0);
  run(engine, spec, &all);
  drop(&list);
  failed += check_rows(&all, "long entries");
  for (int b = 0; b < N; ++b) {
    const int keys[] = {long_keys[b], 70, 2100}, seeds[] = {long_seeds[b], 2, 3};
    problem x;
    size_t bytes, same;
    draw_problem(&x, mode, k, b % 2 == 1 ? 1 : 3, keys, seeds);
    if (!expected) failed += prepare(engine, spec, &x, &list);
    run(engine, spec, &x);
    if (!expected) drop(&list);
    void *mine = entry_of(&x, 0, &bytes), *among = entry_of(&all, b, &same);
    differ += bytes != same || memcmp(mine, among, bytes) != 0;
    free(mine), free(among);
    drop_problem(&x);
  }
  drop_problem(&all);
  if (expected && differ > 0)
    fprintf(stderr, "FAILED: %s: %d entries have other bits among others\n", mode_name[mode], differ), ++failed;
  if (!expected && differ == 0 && is_small_device())
    fprintf(stderr, "FAILED: %s: entries have the same bits although they are cut otherwise\n", mode_name[mode]),
        ++failed;
  return failed;
}

int main(int argc, char **argv) {
  const kind k = argc > 1 && strcmp(argv[1], "f16") == 0 ? F16 : BF16;
  const char *text = "return attention { block_mask = causal_bottom_right() }";
  luattn_spec *spec;
  int failed = 0;
  need(luattn_spec_load_text("lists", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  for (int deterministic = 0; deterministic < 2; ++deterministic) {
    const luattn_engine_options options = {.struct_size = sizeof options, .deterministic = deterministic};
    luattn_engine *engine;
    need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
    driver = luattn_engine_driver(engine);
    for (int mode = 0; mode < MODES; ++mode)
      if (argc < 3 || (mode == PAGED_PACKED) == deterministic)
        failed += check_mode(engine, spec, k, mode, deterministic);
    for (int mode = 0; mode < 2 && !deterministic; ++mode) failed += check_stale(engine, spec, k, mode);
    if (deterministic)
      failed += check_choice(engine, spec, k);
    else
      failed += check_many(engine, spec, k, PAGED_PACKED);
    for (int mode = 0; mode < MODES; ++mode)
      if (deterministic ? mode == PACKED || argc < 3 : mode == PAGED && argc < 3)
        failed += check_invariance(engine, spec, k, mode, deterministic);
    luattn_engine_close(engine);
  }
  luattn_spec_free(spec);
  if (failed == 0) printf("split lists %s: right\n", kind_name[k]);
  return failed != 0;
}
