/* block_table_test.c: lists of blocks written as a table: sparse and full ones, empty ones, with strides, with counts
 * and indices that are none; against lists that are read here. Then a mask that reads the table, with its bits in a
 * batch: cells of each block are as the lists say.
 *
 * block_table_test FAMILY DTYPE, or block_table_test cpu
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/arrays.h"

enum { BATCH = 2, HEADS = 3, ROWS = 5, COLUMNS = 7, MOST = 6, DIM = 16, BLOCK = 64 };

static int uniform(int count) { return (int)((drawn() + 1) / 2 * count); }

typedef struct lists {
  array count, index;
} lists;

static void draw_lists(lists *l) {
  make(&l->count, I32, 3, (int64_t[]){BATCH, HEADS, ROWS});
  make(&l->index, I32, 4, (int64_t[]){BATCH, HEADS, ROWS, MOST});
  for (size_t i = 0; i < l->count.count; ++i) put(I32, l->count.host, i, uniform(MOST + 3) - 1);    /* -1 to MOST + 1 */
  for (size_t i = 0; i < l->index.count; ++i) put(I32, l->index.host, i, uniform(COLUMNS + 2) - 1); /* -1 to COLUMNS */
  send(&l->count), send(&l->index);
}

static bool is_listed(const lists *l, int b, int h, int row, int column) {
  const size_t at = ((size_t)b * HEADS + (size_t)h) * ROWS + (size_t)row;
  const int count = (int)get(I32, l->count.host, at);
  for (int i = 0; i < count && i < MOST; ++i)
    if ((int)get(I32, l->index.host, at * MOST + (size_t)i) == column) return true;
  return false;
}

static int expected(const lists *partial, const lists *full, int b, int h, int row, int column) {
  return full != NULL && is_listed(full, b, h, row, column) ? 2
                                                            : partial != NULL && is_listed(partial, b, h, row, column);
}

static int compare(const array *table, const lists *partial, const lists *full) {
  int wrong = 0;
  for (int i = 0; i < BATCH * HEADS * ROWS * COLUMNS; ++i) {
    const int column = i % COLUMNS, row = i / COLUMNS % ROWS, h = i / COLUMNS / ROWS % HEADS,
              b = i / COLUMNS / ROWS / HEADS, got = ((const unsigned char *)table->host)[i],
              want = expected(partial, full, b, h, row, column);
    if (got != want && wrong++ == 0)
      fprintf(stderr, "FAILED: table[%d][%d][%d][%d] is %d, expected %d\n", b, h, row, column, got, want);
  }
  return wrong;
}

static void open_table(array *table) {
  make(table, I32, 1, (int64_t[]){(BATCH * HEADS * ROWS * COLUMNS + 3) / 4});
  memset(table->host, 0x55, table->count * 4);
  send(table);
  const int64_t shape[] = {BATCH, HEADS, ROWS, COLUMNS};
  memcpy(table->shape, shape, sizeof shape);
  table->t.ndim = 4, table->t.dtype = (DLDataType){kDLUInt, 8, 1};
}

static int fill_table(const luattn_kernel *kernel, array *table, lists *partial, lists *full) {
  const luattn_block_lists given = {.struct_size = sizeof given,
                                    .kv_num_blocks = partial != NULL ? &partial->count.t : NULL,
                                    .kv_indices = partial != NULL ? &partial->index.t : NULL,
                                    .full_kv_num_blocks = full != NULL ? &full->count.t : NULL,
                                    .full_kv_indices = full != NULL ? &full->index.t : NULL};
  need(luattn_block_table(kernel, &given, &table->t, NULL, &err) == LUATTN_OK, "table");
  if (driver != NULL) need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(table);
  return compare(table, partial, full);
}

static int refused(const luattn_kernel *kernel, const luattn_block_lists *given, const DLTensor *table,
                   const char *message) {
  if (luattn_block_table(kernel, given, table, NULL, &err) == LUATTN_INVALID && strstr(err.message, message) != NULL)
    return 0;
  fprintf(stderr, "FAILED: '%s', expected '%s'\n", err.message, message);
  return 1;
}

static int refuse(const luattn_kernel *kernel, const luattn_kernel *other, array *table, lists *l) {
  luattn_block_lists given = {.struct_size = sizeof given, .kv_num_blocks = &l->count.t};
  int wrong = refused(kernel, &given, &table->t, "kv_indices: is missing, and kv_num_blocks is given; a list has both");
  given.kv_indices = &l->index.t;
  DLTensor t = table->t;
  t.dtype.bits = 32;
  wrong += refused(kernel, &given, &t, "table: has dtype uint32, expected uint8");
  t = table->t, t.ndim = 3;
  wrong += refused(kernel, &given, &t, "table: has 3 axes, expected 4: [b, h, qblocks, kvblocks]");
  l->count.shape[2]--;
  wrong +=
      refused(kernel, &given, &table->t, "kv_num_blocks: has shape [2, 3, 4], expected [2, 3, 5] = [b, h, qblocks]");
  l->count.shape[2]++;
  given.full_kv_indices = &l->index.t;
  wrong += refused(kernel, &given, &table->t, "full_kv_num_blocks: is missing, and full_kv_indices is given");
  given.full_kv_indices = NULL;
  if (driver != NULL)
    wrong += refused(other, &given, &table->t, "luattn_block_table: its mask reads no table of bytes");
  return wrong;
}

/* The bits of a mask that reads the table, {kept, whole} of a cell. */
static int compare_bits(const luattn_kernel *kernel, luattn_args *args, const lists *partial, const lists *full) {
  const luattn_batch_options options = {.struct_size = sizeof options};
  luattn_batch *batch;
  size_t size;
  array memory;
  int wrong = 0;
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  need(luattn_batch_mask_size(kernel, args, &size, &err) == LUATTN_OK && size > 0, "size of bits");
  make(&memory, I32, 1, (int64_t[]){(int64_t)(size / 4)});
  send(&memory);
  need(luattn_batch_prepare_mask(batch, kernel, args, memory.device, size, NULL, &err) == LUATTN_OK, "bits");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  fetch(&memory);
  for (int i = 0; i < BATCH * HEADS * ROWS * COLUMNS; ++i) {
    const int column = i % COLUMNS, line = i / COLUMNS, row = line % ROWS,
              value = expected(partial, full, line / ROWS / HEADS, line / ROWS % HEADS, row, column);
    const uint32_t *pair = (const uint32_t *)memory.host + 2 * line;
    const unsigned got = (pair[0] >> column & 1) | (pair[1] >> column & 1) << 1, want = value == 2                   ? 3
                                                                                        : value == 0 || column > row ? 0
                                                                                        : column < row               ? 3
                                                                                                       : 1;
    if (got != want && wrong++ == 0)
      fprintf(stderr, "FAILED: cell %d of line %d is %u, expected %u\n", column, line, got, want);
  }
  luattn_batch_close(batch);
  drop(&memory);
  return wrong;
}

static const char spec_text[] =
    "return attention { inputs = { blocks = { axes = {'b', 'h', 'i', 'j'}, dtype = 'u8' } }, mask_mod = function(b, h, "
    "q, kv)\n"
    "  local t = blocks[{b, h, q // 64, kv // 64}]\n"
    "  return eq(t, 2) or (eq(t, 1) and kv <= q) end }";

static luattn_spec *load(const char *text) {
  luattn_spec *spec;
  need(luattn_spec_load_text("blocks", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  return spec;
}

int main(int argc, char **argv) {
  static const char *const families[] = {"simt", "sm80", "sm90"};
  int family = 0, k = 0, wrong = 0;
  const bool on_cpu = argc > 1 && strcmp(argv[1], "cpu") == 0;
  if (!on_cpu) {
    if (argc < 3) return 2;
    while (family < 3 && strcmp(argv[1], families[family]) != 0) ++family;
    while (k < 4 && strcmp(argv[2], kind_name[k]) != 0) ++k;
    if (family == 3 || k == 4) return 2;
  }
  luattn_engine *engine;
  const luattn_engine_options options = {
      .struct_size = sizeof options, .device = on_cpu ? LUATTN_CPU : 0, .family = on_cpu ? 0 : 1 + family};
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  luattn_spec *spec = load(spec_text),
              *causal = load("return attention { mask_mod = function(b, h, q, kv) return kv <= q end }");
  array q, key, table;
  make(&q, (kind)k, 4, (int64_t[]){BATCH, HEADS, ROWS * BLOCK, DIM});
  make(&key, (kind)k, 4, (int64_t[]){BATCH, HEADS, COLUMNS * BLOCK, DIM});
  fill(&q, 0), fill(&key, 0);
  open_table(&table);
  const luattn_input input = {.name = "blocks", .tensor = &table.t};
  luattn_args args =
                  {.struct_size = sizeof args, .q = &q.t, .k = &key.t, .v = &key.t, .inputs = &input, .num_inputs = 1},
              plain = args;
  plain.num_inputs = 0;
  const luattn_kernel *kernel, *other;
  need(luattn_engine_kernel(engine, spec, LUATTN_FORWARD, &args, &kernel, &err) == LUATTN_OK, "kernel");
  need(luattn_engine_kernel(engine, causal, LUATTN_FORWARD, &plain, &other, &err) == LUATTN_OK, "kernel");
  lists partial, full;
  draw_lists(&partial), draw_lists(&full);
  wrong += fill_table(kernel, &table, NULL, NULL);
  wrong += fill_table(kernel, &table, &partial, NULL);
  wrong += fill_table(kernel, &table, NULL, &full);
  wrong += fill_table(kernel, &table, &partial, &full);
  wrong += refuse(kernel, other, &table, &partial);
  if (driver != NULL) wrong += compare_bits(kernel, &args, &partial, &full);
  array *all[] = {&q, &key, &table, &partial.count, &partial.index, &full.count, &full.index};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
  luattn_engine_close(engine);
  luattn_spec_free(spec), luattn_spec_free(causal);
  return wrong != 0;
}
