/* cpu_append_test.c: luattn_append on a CPU engine refuses numbers that lead out of its tensors, and memory that it
 * would read and write. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/api/setup.h"

enum { ENTRIES = 2, HEADS = 2, DIM = 4, PAGES = 4, PAGE_SIZE = 4, MAX_PAGES = 2, ROWS = 3 };

/* Tensors of f64, each in an allocation of its own, so that AddressSanitizer sees what lies behind. */
typedef struct append_call {
  luattn_spec *spec;
  luattn_engine *engine;
  DLTensor k, v, new_k, new_v, used, cu, table;
  void *of_new_v; /* its memory, wherever a test has it point */
  int64_t pages[4], rows[3], used_shape[1], cu_shape[1], table_shape[2];
  luattn_append_args args;
  bool has_table;
} append_call;

static void *take(DLTensor *t, int64_t *shape, int ndim, bool integers) {
  size_t bytes = integers ? 4 : 8;
  for (int i = 0; i < ndim; i++) bytes *= (size_t)shape[i];
  *t = (DLTensor){.data = calloc(1, bytes),
                  .device = {kDLCPU, 0},
                  .ndim = ndim,
                  .dtype = {integers ? kDLInt : kDLFloat, integers ? 32 : 64, 1},
                  .shape = shape};
  assert_non_null(t->data);
  return t->data;
}

static void open_append(append_call *c, const char *text, bool has_table) {
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  luattn_error err;
  *c = (append_call){.pages = {has_table ? PAGES : ENTRIES, HEADS, has_table ? PAGE_SIZE : PAGE_SIZE * MAX_PAGES, DIM},
                     .rows = {ROWS, HEADS, DIM},
                     .used_shape = {ENTRIES},
                     .cu_shape = {ENTRIES + 1},
                     .table_shape = {ENTRIES, MAX_PAGES},
                     .has_table = has_table};
  c->engine = api_engine(&options);
  api_ok(luattn_spec_load_text("a.lua", text, strlen(text), NULL, &c->spec, &err), &err);
  take(&c->k, c->pages, 4, false), take(&c->v, c->pages, 4, false);
  double *const new_rows[] = {take(&c->new_k, c->rows, 3, false), take(&c->new_v, c->rows, 3, false)};
  c->of_new_v = new_rows[1];
  for (int i = 0; i < ROWS * HEADS * DIM; i++) new_rows[0][i] = i + 1, new_rows[1][i] = -i - 1;
  memcpy(take(&c->used, c->used_shape, 1, true), ((int32_t[]){4, 2}), 8);
  memcpy(take(&c->cu, c->cu_shape, 1, true), ((int32_t[]){0, 2, ROWS}), 12);
  memcpy(take(&c->table, c->table_shape, 2, true), ((int32_t[]){0, 1, 2, 3}), 16);
}

static void close_append(append_call *c) {
  DLTensor *const all[] = {&c->k, &c->v, &c->new_k, &c->used, &c->cu, &c->table};
  luattn_engine_close(c->engine);
  luattn_spec_free(c->spec);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
  free(c->of_new_v);
}

/* Spoils the arguments once the batch is open, as a program may that keeps it. */
static luattn_status append(append_call *c, void (*spoil)(append_call *c), luattn_error *err) {
  const luattn_batch_options o = {.struct_size = sizeof o,
                                  .seqused_k = &c->used,
                                  .cu_seqlens_q = &c->cu,
                                  .block_table = c->has_table ? &c->table : NULL};
  const luattn_args args = {.struct_size = sizeof args, .q = &c->new_k, .k = &c->k, .v = &c->v};
  luattn_args with = args;
  luattn_batch *batch;
  const luattn_kernel *kernel;
  api_ok(luattn_batch_open(&o, &batch, err), err);
  with.batch = batch;
  api_ok(luattn_engine_kernel(c->engine, c->spec, LUATTN_FORWARD, &with, &kernel, err), err);
  c->args = (luattn_append_args){
      .struct_size = sizeof c->args, .k = &c->k, .v = &c->v, .new_k = &c->new_k, .new_v = &c->new_v, .batch = batch};
  if (spoil != NULL) spoil(c);
  const luattn_status status = luattn_append(kernel, &c->args, NULL, err);
  luattn_batch_close(batch);
  return status;
}

static int32_t *ints(DLTensor *t) { return t->data; }
static void cu_beyond(append_call *c) { ints(&c->cu)[2] = ROWS + 1; }
static void cu_far(append_call *c) { ints(&c->cu)[1] = 2000000000, ints(&c->cu)[2] = 2000000001; }
static void cu_begins(append_call *c) { ints(&c->cu)[0] = -1; }
static void cu_falls(append_call *c) { ints(&c->cu)[2] = 1; }
static void used_negative(append_call *c) { ints(&c->used)[1] = -1; }
static void used_full(append_call *c) { ints(&c->used)[0] = PAGE_SIZE * MAX_PAGES - 1; }
static void used_most(append_call *c) { ints(&c->used)[0] = INT32_MAX; }
static void page_none(append_call *c) { ints(&c->table)[1] = -1; }
static void page_beyond(append_call *c) { ints(&c->table)[2] = PAGES; }
static void one_cache(append_call *c) { c->args.v = &c->k; }
static void rows_in_cache(append_call *c) { c->new_v.data = (char *)c->v.data + 8; }
static int64_t no_strides[4];
static void no_pages(append_call *c) {
  c->k.strides = memcpy(no_strides, ((int64_t[]){0, PAGE_SIZE * DIM, DIM, 1}), sizeof no_strides);
}
static void no_heads(append_call *c) {
  c->v.strides = memcpy(no_strides, ((int64_t[]){HEADS * PAGE_SIZE * DIM, 0, DIM, 1}), sizeof no_strides);
}

static void refuses(void **state) {
  (void)state;
  static const char *const specs[] = {
      "return attention {}",
      "return attention { key_mod = function(x, b, h, pos, d) return 2 * x end }"}; /* the CPU path writes rows */
  static const struct {
    void (*spoil)(append_call *c);
    const char *message;
  } cases[] = {
      {cu_beyond,
       "luattn_append: batch: cu_seqlens_q: ends sequence 1 at 4, and new_k has 3 rows; give the rows of all "
       "sequences"},
      {cu_far, "luattn_append: batch: cu_seqlens_q: ends sequence 0 at 2000000000, and new_k has 3 rows"},
      {cu_begins, "luattn_append: batch: cu_seqlens_q: begins with -1, expected 0"},
      {cu_falls, "luattn_append: batch: cu_seqlens_q: falls from 2 to 1 at sequence 1"},
      {used_negative, "luattn_append: batch: seqused_k: is -1 for entry 1"},
      {used_full,
       "luattn_append: batch: seqused_k: is 7 for entry 0, and with 2 rows more the cache's 8 do not suffice"},
      {used_most,
       "luattn_append: batch: seqused_k: is 2147483647 for entry 0, and with 2 rows more the cache's 8 do not suffice"},
      {page_none,
       "luattn_append: batch: block_table: is -1 for entry 0, page 1, which its rows need; k and v have 4 pages"},
      {page_beyond, "luattn_append: batch: block_table: is 4 for entry 1, page 0, which its rows need"},
      {one_cache, "luattn_append: v: its memory, 0x"},
      {rows_in_cache, "is shared with new_v, 0x"},
      {no_pages, "k: axis 0 has stride 0 over 4 elements"},
      {no_heads, "v: axis 1 has stride 0 over 2 elements"},
  };
  for (size_t s = 0; s < 2; s++)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      append_call c;
      luattn_error err;
      open_append(&c, specs[s], true);
      api_refused(append(&c, cases[i].spoil, &err), LUATTN_INVALID, &err, cases[i].message);
      for (int j = 0; j < PAGES * HEADS * PAGE_SIZE * DIM; j++)
        assert_true(((double *)c.k.data)[j] == 0); /* nothing is written */
      close_append(&c);
    }
}

/* Numbers that no new row needs may be anything, as those behind an entry's last page. */
static void entry_without_rows(append_call *c) {
  ints(&c->used)[1] = 1000000, ints(&c->cu)[1] = ints(&c->cu)[2] = ROWS, ints(&c->used)[0] = 5;
  ints(&c->table)[0] = -1, ints(&c->table)[2] = ints(&c->table)[3] = INT32_MAX;
}
static void reads_what_rows_need(void **state) {
  (void)state;
  append_call c;
  luattn_error err;
  open_append(&c, "return attention {}", true);
  api_ok(append(&c, entry_without_rows, &err), &err);
  const double *k = c.k.data, *rows = c.new_k.data;
  for (int i = 0; i < ROWS; i++) /* positions 5, 6 and 7: page 1, rows 1 to 3 */
    for (int h = 0; h < HEADS; h++)
      assert_memory_equal(&k[((1 * HEADS + h) * PAGE_SIZE + 1 + i) * DIM], &rows[(i * HEADS + h) * DIM],
                          DIM * sizeof *k);
  close_append(&c);
  open_append(&c, "return attention {}", false);
  api_refused(append(&c, cu_beyond, &err), LUATTN_INVALID, &err, "ends sequence 1 at 4, and new_k has 3 rows");
  close_append(&c);
}

/* Rows of new_k behind the last sequence belong to none. */
static void cu_short(append_call *c) { ints(&c->cu)[2] = 2; }
static void rows_of_no_entry(void **state) {
  (void)state;
  append_call c;
  luattn_error err;
  open_append(&c, "return attention {}", true);
  api_ok(append(&c, cu_short, &err), &err);
  const double *k = c.k.data;
  for (int i = 0; i < HEADS * PAGE_SIZE * DIM; i++)
    assert_true(k[2 * HEADS * PAGE_SIZE * DIM + i] == 0); /* entry 1's page */
  close_append(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(refuses), cmocka_unit_test(reads_what_rows_need),
                                     cmocka_unit_test(rows_of_no_entry)};
  return cmocka_run_group_tests_name("cpu_append", tests, NULL, NULL);
}
