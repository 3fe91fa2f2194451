/* bounds_test.c: arrays on the device that hold anything: offsets that fall, begin below 0 or end far behind the
 * tensors, used lengths and numbers of pages out of range. Results are not defined then, but kernels stay inside of
 * memory, which the PTX machine watches, and LUATTN_CHECK=1 names what is wrong. Forward and backward of packed
 * sequences, also with a table of tiles of other lengths; forward over pages, queries packed or not; new rows; offsets
 * of parts. And a cache of one row an entry, whose keys have no stride; and rows without any sequence.
 *
 * bounds_test FAMILY DTYPE: simt f32, sm80 f16, sm90 bf16, decode bf16, ..
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"

enum {
  BATCH = 3,
  HEADS = 4,
  HEADS_KV = 2,
  DIM = 64,
  TOTAL = 130,
  LONGEST = 70,
  PAGES = 5,
  PAGE_SIZE = 16,
  MAX_PAGES = 5,
  Q_LEN = 2
};
static const int32_t good_cu[BATCH + 1] = {0, 60, 61, 128}, good_used[BATCH] = {60, 0, 50},
                                     good_table[BATCH * MAX_PAGES] = {4, 3, 2, 1, 0};
static const int32_t bad_cu[][BATCH + 1] = {{0, 1000, -5, 50},    {-7, INT_MAX, 3, TOTAL},
                                            {100, 20, TOTAL, 0},  {INT_MIN, 0, TOTAL, INT_MAX},
                                            {0, TOTAL, 0, TOTAL}, {60, 60, 60, 1 << 30}};
static const int32_t bad_used[][BATCH] = {{-1, INT_MAX, INT_MIN}, {1 << 30, 71, 5}};
static const int32_t bad_pages[] = {-1, PAGES, INT_MAX, INT_MIN, 1 << 20, 2};

static luattn_engine *engine;
static bool decode;

static void int_array(array *a, int ndim, const int64_t *shape, const int32_t *values) {
  make(a, I32, ndim, shape);
  a->t.ndim = ndim;
  memcpy(a->host, values, a->count * sizeof *values);
  send(a);
}
static void set(array *a, const int32_t *values) {
  memcpy(a->host, values, a->count * sizeof *values);
  send(a);
}
static void tensor(array *a, kind k, int ndim, const int64_t *shape) {
  make(a, k, ndim, shape);
  for (size_t i = 0; i < a->count; ++i) put(k, a->host, i, drawn());
  send(a);
}

/* With LUATTN_CHECK=1 a message says `wrong`; without, the call runs. */
static void call(luattn_pass pass, const luattn_spec *spec, luattn_args *args, const char *wrong) {
  size_t size;
  array workspace;
  need(luattn_engine_workspace_size(engine, spec, pass, args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 1)});
  args->workspace = size > 0 ? workspace.device : NULL, args->workspace_size = size;
  for (int check = 1; check >= 0; --check) {
    if (check) setenv("LUATTN_CHECK", "1", 1);
    const luattn_status status =
        (pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(engine, spec, args, NULL, &err);
    unsetenv("LUATTN_CHECK");
    if (check && (status != LUATTN_INVALID || strstr(err.message, wrong) == NULL))
      fprintf(stderr, "FAILED: LUATTN_CHECK: '%s' lacks '%s'\n", err.message, wrong), exit(1);
    if (check) continue;
    need(status == LUATTN_OK, "launch");
    need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  }
  drop(&workspace);
}

/* ---- packed sequences ---- */

enum { Q, K, V, O, DOUT, DQ, DK, DV, TENSORS };

/* A table of the tiles that sane lengths have, for kernels that take one. */
static void prepare_table(const luattn_spec *spec, luattn_pass pass, luattn_args *args, luattn_batch *batch,
                          array *memory) {
  const luattn_kernel *kernel;
  size_t size;
  need(luattn_engine_kernel(engine, spec, pass, args, &kernel, &err) == LUATTN_OK, "kernel");
  need(luattn_batch_tiles_size(kernel, args, &size, &err) == LUATTN_OK, "size of a table");
  make(memory, F32, 1, (int64_t[]){(int64_t)(size / 4 + 1)});
  need(luattn_batch_prepare_tiles(batch, kernel, args, memory->device, size, NULL, &err) == LUATTN_OK, "table");
}

static void packed(const luattn_spec *spec, kind k, bool backward, bool prepared) {
  array t[TENSORS], lse, cu, used, table;
  const kind real = k == F64 ? F64 : F32;
  for (int i = 0; i < TENSORS; ++i)
    tensor(&t[i], k, 3, (int64_t[]){TOTAL, i == K || i == V || i == DK || i == DV ? HEADS_KV : HEADS, DIM});
  tensor(&lse, real, 2, (int64_t[]){HEADS, TOTAL});
  int_array(&cu, 1, (int64_t[]){BATCH + 1, 1}, good_cu), int_array(&used, 1, (int64_t[]){BATCH, 1}, good_used);
  for (int with_used = 0; with_used < 2; ++with_used) {
    const luattn_batch_options options = {.struct_size = sizeof options,
                                          .cu_seqlens_q = &cu.t,
                                          .cu_seqlens_k = &cu.t,
                                          .seqused_q = with_used ? &used.t : NULL,
                                          .seqused_k = with_used ? &used.t : NULL,
                                          .max_seqlen_q = LONGEST,
                                          .max_seqlen_k = LONGEST};
    luattn_batch *batch;
    need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
    luattn_args args = {.struct_size = sizeof args,
                        .q = &t[Q].t,
                        .k = &t[K].t,
                        .v = &t[V].t,
                        .o = &t[O].t,
                        .lse = &lse.t,
                        .dout = &t[DOUT].t,
                        .dq = &t[DQ].t,
                        .dk = &t[DK].t,
                        .dv = &t[DV].t,
                        .batch = batch,
                        .decode = decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER};
    const luattn_pass pass = backward ? LUATTN_BACKWARD : LUATTN_FORWARD;
    set(&cu, good_cu), set(&used, good_used);
    if (prepared) prepare_table(spec, pass, &args, batch, &table);
    for (size_t i = 0; i < sizeof bad_cu / sizeof *bad_cu && !with_used; ++i)
      set(&cu, bad_cu[i]), call(pass, spec, &args, "cu_seqlens_q: ");
    for (size_t i = 0; i < sizeof bad_used / sizeof *bad_used && with_used; ++i)
      set(&used, bad_used[i]), call(pass, spec, &args, "seqused_q: is ");
    luattn_batch_close(batch);
    if (prepared) drop(&table);
  }
  for (int i = 0; i < TENSORS; ++i) drop(&t[i]);
  drop(&lse), drop(&cu), drop(&used);
}

/* ---- pages, and new rows ---- */

static void new_rows(const luattn_kernel *kernel, const array *k, const array *v, kind type, const luattn_batch *batch,
                     bool is_packed, const char *wrong) {
  array rows[2];
  for (int i = 0; i < 2; ++i) {
    if (is_packed)
      tensor(&rows[i], type, 3, (int64_t[]){TOTAL, HEADS_KV, DIM});
    else
      tensor(&rows[i], type, 4, (int64_t[]){BATCH, HEADS_KV, Q_LEN, DIM});
  }
  const luattn_append_args args = {
      .struct_size = sizeof args, .k = &k->t, .v = &v->t, .new_k = &rows[0].t, .new_v = &rows[1].t, .batch = batch};
  setenv("LUATTN_CHECK", "1", 1);
  const luattn_status checked = luattn_append(kernel, &args, NULL, &err);
  unsetenv("LUATTN_CHECK");
  if (checked != LUATTN_INVALID || strstr(err.message, wrong) == NULL)
    fprintf(stderr, "FAILED: LUATTN_CHECK: '%s' lacks '%s'\n", err.message, wrong), exit(1);
  need(luattn_append(kernel, &args, NULL, &err) == LUATTN_OK, "append");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&rows[0]), drop(&rows[1]);
}

static void paged(const luattn_spec *spec, kind type, bool is_packed) {
  array q, o, k, v, cu, used, table;
  int32_t numbers[BATCH * MAX_PAGES];
  const int64_t dense[] = {BATCH, HEADS, Q_LEN, DIM}, rows[] = {TOTAL, HEADS, DIM},
                pages[] = {PAGES, HEADS_KV, PAGE_SIZE, DIM};
  tensor(&q, type, is_packed ? 3 : 4, is_packed ? rows : dense),
      tensor(&o, type, is_packed ? 3 : 4, is_packed ? rows : dense);
  tensor(&k, type, 4, pages), tensor(&v, type, 4, pages);
  int_array(&cu, 1, (int64_t[]){BATCH + 1, 1}, good_cu), int_array(&used, 1, (int64_t[]){BATCH, 1}, good_used);
  int_array(&table, 2, (int64_t[]){BATCH, MAX_PAGES}, good_table);
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .cu_seqlens_q = is_packed ? &cu.t : NULL,
                                        .max_seqlen_q = is_packed ? LONGEST : 0,
                                        .seqused_k = &used.t,
                                        .block_table = &table.t};
  luattn_batch *batch;
  const luattn_kernel *kernel;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  luattn_args args = {.struct_size = sizeof args,
                      .q = &q.t,
                      .k = &k.t,
                      .v = &v.t,
                      .o = &o.t,
                      .batch = batch,
                      .decode = decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER};
  need(luattn_engine_kernel(engine, spec, LUATTN_FORWARD, &args, &kernel, &err) == LUATTN_OK, "kernel");
  for (size_t i = 0; i < sizeof bad_pages / sizeof *bad_pages - 1; ++i) {
    for (int n = 0; n < BATCH * MAX_PAGES; ++n)
      numbers[n] = bad_pages[(i + (size_t)n) % (sizeof bad_pages / sizeof *bad_pages)];
    set(&table, numbers);
    call(LUATTN_FORWARD, spec, &args, "block_table: is ");
    set(&used, (int32_t[]){0, 3, 70});
    new_rows(kernel, &k, &v, type, batch, is_packed, "batch: ");
    set(&used, good_used);
  }
  set(&table, good_table);
  for (size_t i = 0; i < sizeof bad_used / sizeof *bad_used; ++i) {
    set(&used, bad_used[i]);
    call(LUATTN_FORWARD, spec, &args, "seqused_k: is ");
    new_rows(kernel, &k, &v, type, batch, is_packed, "seqused_k: is ");
  }
  set(&used, good_used);
  for (size_t i = 0; i < sizeof bad_cu / sizeof *bad_cu && is_packed; ++i) {
    set(&cu, bad_cu[i]);
    call(LUATTN_FORWARD, spec, &args, "cu_seqlens_q: ");
    new_rows(kernel, &k, &v, type, batch, is_packed, "batch: "); /* or too few places */
  }
  luattn_batch_close(batch);
  array *const all[] = {&q, &o, &k, &v, &cu, &used, &table};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

/* Offsets of parts decide where inputs are read and where their gradients go. */
static void offsets(kind k) {
  static const char text[] =
      "return attention { inputs = { x = { axes = {'h', 'q'}, grad = true }, y = { axes = {'kv'}, grad = true } },\n"
      "  score_mod = function(s, b, h, q, kv) return s + x[{h, q}] * y[kv] end, block_mask = causal() }";
  static const int32_t bad[][BATCH] = {{INT_MIN, INT_MAX, -1}, {1 << 30, 7, -1000}};
  luattn_spec *spec;
  array t[TENSORS], lse, x, y, dx, dy, q_offsets, kv_offsets, workspace;
  need(luattn_spec_load_text("offsets", text, sizeof text - 1, NULL, &spec, &err) == LUATTN_OK, "spec");
  for (int i = 0; i < TENSORS; ++i)
    tensor(&t[i], k, 4, (int64_t[]){BATCH, i == K || i == V || i == DK || i == DV ? HEADS_KV : HEADS, LONGEST, DIM});
  tensor(&lse, k == F64 ? F64 : F32, 3, (int64_t[]){BATCH, HEADS, LONGEST});
  array *const of_x[] = {&x, &dx}, *const of_y[] = {&y, &dy};
  for (int i = 0; i < 2; ++i)
    tensor(of_x[i], F32, 2, (int64_t[]){HEADS, LONGEST}), tensor(of_y[i], F32, 1, (int64_t[]){LONGEST, 1});
  const luattn_input inputs[] = {{"x", &x.t, &dx.t}, {"y", &y.t, &dy.t}};
  for (int i = 0; i < 2; ++i) {
    int_array(&q_offsets, 1, (int64_t[]){BATCH, 1}, bad[i]),
        int_array(&kv_offsets, 1, (int64_t[]){BATCH, 1}, bad[1 - i]);
    const luattn_batch_options options = {.struct_size = sizeof options,
                                          .q_offsets = &q_offsets.t,
                                          .kv_offsets = &kv_offsets.t,
                                          .q_len = 200,
                                          .kv_len = 300};
    luattn_batch *batch;
    need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
    luattn_args args = {.struct_size = sizeof args,
                        .q = &t[Q].t,
                        .k = &t[K].t,
                        .v = &t[V].t,
                        .o = &t[O].t,
                        .lse = &lse.t,
                        .dout = &t[DOUT].t,
                        .dq = &t[DQ].t,
                        .dk = &t[DK].t,
                        .dv = &t[DV].t,
                        .batch = batch,
                        .inputs = inputs,
                        .num_inputs = 2,
                        .decode = decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER};
    for (int pass = 0; pass < (decode ? 1 : 2); ++pass) {
      size_t size;
      need(luattn_engine_workspace_size(engine, spec, (luattn_pass)pass, &args, &size, &err) == LUATTN_OK, "workspace");
      make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 1)});
      args.workspace = size > 0 ? workspace.device : NULL, args.workspace_size = size;
      need((pass == 0 ? luattn_forward : luattn_backward)(engine, spec, &args, NULL, &err) == LUATTN_OK,
           "launch with offsets");
      need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
      drop(&workspace);
    }
    luattn_batch_close(batch);
    drop(&q_offsets), drop(&kv_offsets);
  }
  for (int i = 0; i < TENSORS; ++i) drop(&t[i]);
  array *const all[] = {&lse, &x, &y, &dx, &dy};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
  need(luattn_engine_forget(engine, spec, &err) == LUATTN_OK, "forget");
  luattn_spec_free(spec);
}

/* A query sees one key, or none: o is the row of V, or 0. */
static void one_row(const luattn_spec *spec, kind k) {
  array q, key, v, o, used;
  tensor(&q, k, 4, (int64_t[]){BATCH, HEADS, 1, DIM}), tensor(&o, k, 4, (int64_t[]){BATCH, HEADS, 1, DIM});
  tensor(&key, k, 4, (int64_t[]){BATCH, HEADS_KV, 1, DIM}), tensor(&v, k, 4, (int64_t[]){BATCH, HEADS_KV, 1, DIM});
  int_array(&used, 1, (int64_t[]){BATCH, 1}, (int32_t[]){1, 0, 1});
  const luattn_batch_options options = {.struct_size = sizeof options, .seqused_k = &used.t};
  luattn_batch *batch;
  size_t size;
  array workspace;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  luattn_args args = {.struct_size = sizeof args,
                      .q = &q.t,
                      .k = &key.t,
                      .v = &v.t,
                      .o = &o.t,
                      .batch = batch,
                      .decode = decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER};
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &size, &err) == LUATTN_OK, "workspace");
  make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 1)});
  args.workspace = size > 0 ? workspace.device : NULL, args.workspace_size = size;
  need(luattn_forward(engine, spec, &args, NULL, &err) == LUATTN_OK, "forward over one row");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&o);
  for (size_t i = 0; i < o.count; ++i) {
    const size_t b = i / (HEADS * DIM), h = i / DIM % HEADS / (HEADS / HEADS_KV);
    const double want = b == 1 ? 0 : get(k, v.host, (b * HEADS_KV + h) * DIM + i % DIM);
    if (get(k, o.host, i) != want)
      fprintf(stderr, "FAILED: one row: o[%zu] is %g, expected %g\n", i, get(k, o.host, i), want), exit(1);
  }
  luattn_batch_close(batch);
  array *const all[] = {&q, &o, &key, &v, &used, &workspace};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

/* Rows, and no sequence that has any, or none at all: offsets from host memory, so that launches know. */
static void nothing(const luattn_spec *spec, kind k, int sequences) {
  enum { ROWS = 5 };
  array t[TENSORS], lse, copies, workspace;
  int32_t zeros[BATCH + 1] = {0};
  int64_t ends = sequences + 1;
  const DLTensor cu = {.data = zeros, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &ends};
  const luattn_batch_options options = {.struct_size = sizeof options, .cu_seqlens_q = &cu, .cu_seqlens_k = &cu};
  luattn_batch *batch;
  size_t size;
  for (int i = 0; i < TENSORS; ++i) {
    make(&t[i], k, 3, (int64_t[]){ROWS, i == K || i == V || i == DK || i == DV ? HEADS_KV : HEADS, DIM});
    fill(&t[i], NAN);
  }
  make(&lse, k == F64 ? F64 : F32, 2, (int64_t[]){HEADS, ROWS});
  fill(&lse, NAN);
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  need(luattn_batch_size(batch, &size, &err) == LUATTN_OK, "size of a batch");
  make(&copies, F32, 1, (int64_t[]){(int64_t)(size / 4 + 1)});
  need(luattn_batch_prepare(batch, driver, 0, copies.device, size, NULL, &err) == LUATTN_OK, "prepare");
  luattn_args args = {.struct_size = sizeof args,
                      .q = &t[Q].t,
                      .k = &t[K].t,
                      .v = &t[V].t,
                      .o = &t[O].t,
                      .lse = &lse.t,
                      .dout = &t[DOUT].t,
                      .dq = &t[DQ].t,
                      .dk = &t[DK].t,
                      .dv = &t[DV].t,
                      .batch = batch,
                      .decode = decode ? LUATTN_DECODE_ALWAYS : LUATTN_DECODE_NEVER};
  for (int pass = 0; pass < (decode ? 1 : 2); ++pass) {
    need(luattn_engine_workspace_size(engine, spec, (luattn_pass)pass, &args, &size, &err) == LUATTN_OK, "workspace");
    make(&workspace, F32, 1, (int64_t[]){(int64_t)(size / 4 + 1)});
    args.workspace = size > 0 ? workspace.device : NULL, args.workspace_size = size;
    need((pass == 0 ? luattn_forward : luattn_backward)(engine, spec, &args, NULL, &err) == LUATTN_OK,
         "launch without rows");
    need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
    for (int i = pass == 0 ? O : DQ; i <= (pass == 0 ? O : DV); ++i) {
      fetch(&t[i]);
      for (size_t at = 0; at < t[i].count; ++at)
        if (get(k, t[i].host, at) != 0)
          fprintf(stderr, "FAILED: %d sequences without rows: tensor %d is not 0\n", sequences, i), exit(1);
    }
    drop(&workspace);
  }
  fetch(&lse);
  for (size_t at = 0; at < lse.count; ++at)
    if (get(lse.k, lse.host, at) != -INFINITY)
      fprintf(stderr, "FAILED: %d sequences without rows: lse is not -inf\n", sequences), exit(1);
  luattn_batch_close(batch);
  for (int i = 0; i < TENSORS; ++i) drop(&t[i]);
  drop(&lse), drop(&copies);
}

int main(int argc, char **argv) {
  static const char *const families[] = {"auto", "simt", "sm80", "sm90"};
  static const char text[] = "return attention { block_mask = causal() }";
  luattn_engine_options options = {.struct_size = sizeof options};
  luattn_spec *spec;
  kind k = F64;
  if (argc != 3) return fprintf(stderr, "usage: bounds_test FAMILY DTYPE\n"), 2;
  decode = strcmp(argv[1], "decode") == 0;
  for (int i = 0; i < 4; ++i)
    if (strcmp(argv[1], families[i]) == 0) options.family = i;
  options.deterministic = decode; /* its launches then make lists of blocks of the lengths that they find */
  while (strcmp(argv[2], kind_name[k]) != 0) ++k;
  if (luattn_engine_open(&options, &engine, &err) != LUATTN_OK)
    return fprintf(stderr, "skipped: %s\n", err.message), 77;
  driver = luattn_engine_driver(engine);
  need(luattn_spec_load_text("bounds", text, sizeof text - 1, NULL, &spec, &err) == LUATTN_OK, "spec");
  one_row(spec, k);
  offsets(k);
  nothing(spec, k, 0);
  nothing(spec, k, 2);
  paged(spec, k, false);
  paged(spec, k, true);
  for (int prepared = 0; prepared < 2; ++prepared) {
    packed(spec, k, false, prepared);
    if (!decode) packed(spec, k, true, prepared);
  }
  luattn_engine_close(engine);
  luattn_spec_free(spec);
  puts("ok");
  return 0;
}
