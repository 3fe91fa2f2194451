/* page_table_test.c: luattn_page_table against tables that are filled here entry by entry: entries without pages, one
 * page, as many as the table has room for; strided lists; lists that begin behind 0; pages of 1 to 256 rows; on a
 * device, lists that break the rules, whose entries are cut. Then what is refused. Arrays are as long as they say, so
 * the PTX machine sees a read behind them.
 *
 * page_table_test cuda|cpu
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/pages.h"
#include "tests/ptx/arrays.h"

enum { MOST_BATCH = 40 };

static luattn_engine *engine;
static int failures;

static int uniform(int count) { return (int)((drawn() + 1) / 2 * count); }

static void ints(array *a, int count) { make(a, I32, 1, (int64_t[]){count}); }
static int *host_of(const array *a) { return a->host; }

/* A problem: counts of pages, which are listed from `first` on, with `behind` numbers after them. */
typedef struct problem {
  int batch, columns, page_size, total, strides;
  array indptr, indices, last, table, used;
  DLTensor strided[3];
  int64_t step[3];
} problem;

static void open_problem(problem *p, int batch, int columns, int page_size, int first, int behind, int stride) {
  int counts[MOST_BATCH], n = first;
  *p = (problem){.batch = batch, .columns = columns, .page_size = page_size, .strides = stride};
  for (int b = 0; b < batch; b++) {
    counts[b] = b % 4 == 1 ? 0 : b % 4 == 2 ? columns : uniform(columns + 1);
    n += counts[b];
  }
  p->total = n + behind;
  ints(&p->indptr, batch * stride + 1), ints(&p->indices, p->total > 0 ? (p->total - 1) * stride + 1 : 0);
  ints(&p->last, batch > 0 ? (batch - 1) * stride + 1 : 0), ints(&p->used, batch);
  make(&p->table, I32, 2, (int64_t[]){batch, columns});
  for (size_t i = 0; i < p->indptr.count; i++) host_of(&p->indptr)[i] = -77;
  for (size_t i = 0; i < p->indices.count; i++) host_of(&p->indices)[i] = -77;
  for (size_t i = 0; i < p->last.count; i++) host_of(&p->last)[i] = -77;
  host_of(&p->indptr)[0] = first;
  for (int b = 0; b < batch; b++) {
    host_of(&p->indptr)[(b + 1) * stride] = host_of(&p->indptr)[b * stride] + counts[b];
    host_of(&p->last)[b * stride] =
        counts[b] == 0 ? -5 : 1 + uniform(page_size); /* what is there without pages is not read */
  }
  for (int i = 0; i < p->total; i++) host_of(&p->indices)[i * stride] = uniform(1000000);
  for (size_t i = 0; i < p->table.count; i++) host_of(&p->table)[i] = 0x5555;
  for (int b = 0; b < batch; b++) host_of(&p->used)[b] = 0x5555;
  send(&p->indptr), send(&p->indices), send(&p->last), send(&p->table), send(&p->used);
}

static void close_problem(problem *p) {
  drop(&p->indptr), drop(&p->indices), drop(&p->last), drop(&p->table), drop(&p->used);
}

static luattn_page_lists lists_of(problem *p) {
  const array *all[] = {&p->indptr, &p->indices, &p->last};
  static int64_t shape[3][1];
  const int64_t count[] = {p->batch + 1, p->total, p->batch};
  for (int i = 0; i < 3; i++) {
    p->strided[i] = all[i]->t, p->step[i] = p->strides, shape[i][0] = count[i];
    p->strided[i].shape = shape[i], p->strided[i].strides = &p->step[i];
  }
  return (luattn_page_lists){sizeof(luattn_page_lists), &p->strided[0], &p->strided[1], &p->strided[2], p->page_size};
}

static void run(problem *p) {
  const luattn_page_lists lists = lists_of(p);
  need(luattn_page_table(engine, &lists, &p->table.t, &p->used.t, NULL, &err) == LUATTN_OK, "luattn_page_table");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&p->table), fetch(&p->used);
}

static void expect(const char *what, int b, int i, int got, int want) {
  if (got == want) return;
  failures++;
  fprintf(stderr, "FAILED: %s of entry %d, %d: is %d, expected %d\n", what, b, i, got, want);
}

static void check(problem *p) {
  const int *indptr = host_of(&p->indptr), *indices = host_of(&p->indices);
  run(p);
  for (int b = 0; b < p->batch; b++) {
    const int first = indptr[b * p->strides], count = indptr[(b + 1) * p->strides] - first;
    int rows = 0;
    for (int i = 0; i < p->columns; i++) {
      expect("page", b, i, host_of(&p->table)[b * p->columns + i], i < count ? indices[(first + i) * p->strides] : -1);
      if (i < count) rows += i + 1 < count ? p->page_size : host_of(&p->last)[b * p->strides];
    }
    expect("length", b, 0, host_of(&p->used)[b], rows);
  }
}

static void check_all(void) {
  static const struct {
    int batch, columns, page_size, first, behind, stride;
  } of[] = {{1, 1, 16, 0, 0, 1},  {5, 3, 1, 0, 0, 1},  {MOST_BATCH, 7, 16, 0, 0, 1}, {9, 300, 3, 0, 0, 1},
            {8, 5, 256, 4, 9, 1}, {6, 5, 64, 2, 0, 3}, {3, 0, 16, 0, 0, 1},          {0, 4, 16, 0, 0, 1}};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    problem p;
    open_problem(&p, of[i].batch, of[i].columns, of[i].page_size, of[i].first, of[i].behind, of[i].stride);
    check(&p);
    close_problem(&p);
  }
}

/* On a device nothing is read outside the lists, and entries are cut: too many pages, pages behind the end, counts
 * below 0, lengths that a page does not have. */
static void check_cut(void) {
  static const int indptr[] = {0, 5, 7, 6, 9, -3, 2, 2147483647}, last[] = {2, 99, 4, 4, 4, 4, 4};
  static const int used[] = {12, 8, 0, 8, 0, 0, 12}; /* pages of 4, three columns, eight indices */
  problem p;
  open_problem(&p, 7, 3, 4, 0, 0, 1);
  drop(&p.indptr), drop(&p.last), drop(&p.indices);
  ints(&p.indptr, 8), ints(&p.last, 7), ints(&p.indices, 8);
  memcpy(p.indptr.host, indptr, sizeof indptr), memcpy(p.last.host, last, sizeof last);
  for (int i = 0; i < 8; i++) host_of(&p.indices)[i] = 100 + i;
  p.total = 8;
  send(&p.indptr), send(&p.last), send(&p.indices);
  run(&p);
  for (int b = 0; b < 7; b++) {
    expect("cut length", b, 0, host_of(&p.used)[b], used[b]);
    for (int i = 0; i < 3; i++)
      expect("cut page", b, i, host_of(&p.table)[b * 3 + i], i < used[b] / 4 ? 100 + indptr[b] + i : -1);
  }
  close_problem(&p);
}

static void refused(const luattn_page_lists *lists, const DLTensor *table, const DLTensor *used, const char *message) {
  static const char place[] = "luattn_page_table: ";
  const luattn_status status = luattn_page_table(engine, lists, table, used, NULL, &err);
  if (status == LUATTN_INVALID && strncmp(err.message, place, sizeof place - 1) == 0 &&
      strstr(err.message, message) != NULL)
    return;
  failures++;
  fprintf(stderr, "FAILED: status %d, '%s', expected '%s'\n", (int)status, err.message, message);
}

static void refuse_shapes(void) {
  problem p;
  open_problem(&p, 4, 3, 16, 0, 0, 1);
  const luattn_page_lists right = lists_of(&p);
  luattn_page_lists l = right;
  l.kv_indptr = NULL;
  refused(&l, &p.table.t, &p.used.t, "kv_indptr: is missing");
  l = right, l.kv_last_page_len = NULL;
  refused(&l, &p.table.t, &p.used.t, "kv_last_page_len: is missing");
  l = right, l.page_size = 0;
  refused(&l, &p.table.t, &p.used.t, "page_size: is 0, expected 1 to 2147483647: the rows of a page of k and v");
  l.page_size = 2000000000;
  refused(&l, &p.table.t, &p.used.t,
          "block_table: has 3 pages of 2000000000 rows for an entry, which are more than 2^31 rows");
  l = right, l.kv_last_page_len = right.kv_indptr;
  refused(&l, &p.table.t, &p.used.t, "kv_last_page_len: has shape [5], expected [4] = [batch]");
  refused(&right, &p.used.t, &p.used.t, "block_table: has 1 axes, expected 2: [batch, max_pages]");
  refused(&right, &p.table.t, right.kv_indptr, "seqused_k: has shape [5], expected [4] = [batch]");
  DLTensor floats = *right.kv_indices;
  floats.dtype = (DLDataType){kDLInt, 64, 1};
  l = right, l.kv_indices = &floats;
  refused(&l, &p.table.t, &p.used.t, "kv_indices: has dtype int64, expected int32");
  close_problem(&p);
}

/* On the CPU, and on a device with LUATTN_CHECK=1. */
static void refuse_values(void) {
  problem p;
  open_problem(&p, 4, 3, 16, 0, 0, 1); /* entry 2 has three pages */
  const luattn_page_lists l = lists_of(&p);
  int *const indptr = host_of(&p.indptr), *const last = host_of(&p.last), *const indices = host_of(&p.indices),
             kept = last[2], end = indptr[4];
  last[2] = 17, send(&p.last);
  refused(&l, &p.table.t, &p.used.t, "kv_last_page_len: is 17 for entry 2, expected 1 to 16, the page_size");
  last[2] = kept, indices[indptr[2]] = -1, send(&p.last), send(&p.indices);
  refused(&l, &p.table.t, &p.used.t, "which is no page's number");
  indices[indptr[2]] = 0, indptr[4] = end + 1, send(&p.indices), send(&p.indptr);
  refused(&l, &p.table.t, &p.used.t, "at 4, and kv_indices has");
  indptr[4] = -1, send(&p.indptr);
  refused(&l, &p.table.t, &p.used.t, "it begins at 0 or more and never decreases");
  indptr[4] = end, send(&p.indptr);
  const int64_t shape[] = {4, 2};
  DLTensor narrow = p.table.t;
  narrow.shape = (int64_t *)(uintptr_t)shape;
  refused(&l, &narrow, &p.used.t, " has 3 pages; give it as many");
  close_problem(&p);
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: page_table_test cuda|cpu\n"), 2;
  const bool on_cpu = strcmp(argv[1], "cpu") == 0;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = on_cpu ? LUATTN_CPU : 0};
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  check_all();
  refuse_shapes();
  if (!on_cpu) check_cut();
  if (!on_cpu) setenv("LUATTN_CHECK", "1", 1); /* read when it is first asked for */
  refuse_values();
  luattn_engine_close(engine);
  printf("page tables: %d failures\n", failures);
  return failures > 0;
}
