/* block_table.c: luattn_block_table, which writes lists of blocks as the table that a mask reads. */
#include <inttypes.h>

#include "common/host.h"
#include "common/struct_size.h"
#include "luattn/batch.h"
#include "runtime/call/sizes.h"
#include "runtime/call/tensor_rule.h"
#include "runtime/device/launch_entry.h"

/* Takes the lists of one kind: both arrays or neither. */
static luattn_status take_list(const args_call *c, const char *const name[2], const DLTensor *count,
                               const DLTensor *index, const int64_t shape[4], LuattnBlockList *out) {
  long long stride[4];
  void *data;
  *out = (LuattnBlockList){.count = NULL};
  if (count == NULL && index == NULL) return LUATTN_OK;
  if (count == NULL || index == NULL)
    return args_fail(c, "%s: is missing, and %s is given; a list has both", name[count != NULL], name[count == NULL]);
  tensor_rule rule = {.name = name[0],
                      .axes = "b, h, qblocks",
                      .ndim = 3,
                      .shape = {shape[0], shape[1], shape[2]},
                      .dtype = {kDLInt, 32, 1}};
  TRY(args_tensor(c, &rule, count, stride, &data));
  out->count = data;
  for (int i = 0; i < 3; ++i) out->count_stride[i] = stride[i];
  if (index->ndim != 4 || index->shape == NULL || index->shape[3] < 0 || index->shape[3] > INT32_MAX)
    return args_fail(c, "%s: has %d axes, expected 4: [b, h, qblocks, most]", name[1], index->ndim);
  rule = (tensor_rule){.name = name[1],
                       .axes = "b, h, qblocks, most",
                       .ndim = 4,
                       .shape = {shape[0], shape[1], shape[2], index->shape[3]},
                       .dtype = {kDLInt, 32, 1}};
  TRY(args_tensor(c, &rule, index, stride, &data));
  out->index = data;
  for (int i = 0; i < 4; ++i) out->index_stride[i] = stride[i];
  out->most = (int)index->shape[3];
  if (out->most == 0) out->count = NULL; /* every list is empty, and has no memory */
  return LUATTN_OK;
}

static luattn_status take_table(const args_call *c, const DLTensor *table, LuattnBlockTable *out) {
  long long stride[4];
  void *data;
  if (table->ndim != 4 || table->shape == NULL)
    return args_fail(c, "table: has %d axes, expected 4: [b, h, qblocks, kvblocks]", table->ndim);
  tensor_rule rule = {.name = "table",
                      .axes = "b, h, qblocks, kvblocks",
                      .ndim = 4,
                      .dtype = {kDLUInt, 8, 1},
                      .is_output = true,
                      .is_contiguous = true};
  for (int i = 0; i < 4; ++i) {
    rule.shape[i] = table->shape[i];
    if (table->shape[i] < 0 || table->shape[i] > INT32_MAX)
      return args_fail(c, "table: axis %d has size %" PRId64 ", expected 0 to %d", i, table->shape[i], INT32_MAX);
  }
  TRY(args_tensor(c, &rule, table, stride, &data));
  out->table = data;
  out->heads = (int)table->shape[1];
  out->rows = (int)table->shape[2];
  out->columns = (int)table->shape[3];
  return LUATTN_OK;
}

/* As templates/around/before/block_table.cuh. */
static void list_on_host(const LuattnBlockTable *p, int kind, int64_t b, int64_t h, int64_t row, unsigned char *to) {
  const LuattnBlockList *l = &p->list[kind];
  if (l->count == NULL) return;
  const int *index = l->index + b * l->index_stride[0] + h * l->index_stride[1] + row * l->index_stride[2];
  const int count = l->count[b * l->count_stride[0] + h * l->count_stride[1] + row * l->count_stride[2]];
  for (int i = 0; i < count && i < l->most; ++i) {
    const int column = index[i * l->index_stride[3]];
    if (column >= 0 && column < p->columns) to[column] = (unsigned char)(1 + kind);
  }
}

static void write_on_host(const LuattnBlockTable *p, int64_t batch) {
  for (int64_t i = 0; i < batch * p->heads * p->rows; ++i) {
    unsigned char *to = p->table + i * p->columns;
    for (int64_t j = 0; j < p->columns; ++j) to[j] = 0;
    for (int kind = 0; kind < 2; ++kind)
      list_on_host(p, kind, i / p->rows / p->heads, i / p->rows % p->heads, i % p->rows, to);
  }
}

/* The device's context is current. */
static luattn_status make(const luattn_kernel *kernel, const args_call *c, LuattnBlockTable *p, int64_t batch,
                          cu_stream stream) {
  const manifest_entry *e = sizes_entry(&kernel->info, LUATTN_ROLE_BLOCK_TABLE);
  const int64_t size[] = {p->rows, p->heads, batch};
  const unsigned grid[] = {(unsigned)p->rows, (unsigned)p->heads, (unsigned)batch};
  if (e == NULL)
    return args_fail(
        c,
        "luattn_block_table: its mask reads no table of bytes along positions; take a kernel of a spec with an "
        "input of dtype u8 and four axes, which its mask indexes with q // n and kv // m");
  TRY(sizes_grid(c, e, size));
  return launch_entry(kernel, (uint32_t)(e - kernel->info.entry), p, NULL, grid, stream, c->err);
}

luattn_status luattn_block_table(const luattn_kernel *kernel, const luattn_block_lists *lists, const DLTensor *table,
                                 void *stream, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  static const struct_rule rule = STRUCT_RULE(luattn_block_lists, full_kv_num_blocks);
  static const char *const names[2][2] = {{"kv_num_blocks", "kv_indices"}, {"full_kv_num_blocks", "full_kv_indices"}};
  luattn_block_lists given;
  LuattnBlockTable p;
  fail_clear(err);
  NEED(kernel);
  NEED(lists);
  NEED(table);
  TRY(struct_take(&rule, "luattn_block_table", lists, &given, err));
  const args_call c = {.info = &kernel->info, .device = kernel->device, .err = err};
  TRY(take_table(&c, table, &p));
  TRY(take_list(&c, names[0], given.kv_num_blocks, given.kv_indices, table->shape, &p.list[0]));
  TRY(take_list(&c, names[1], given.full_kv_num_blocks, given.full_kv_indices, table->shape, &p.list[1]));
  if (p.table == NULL) return LUATTN_OK; /* it has no elements */
  if (kernel->cpu_run != NULL) {
    write_on_host(&p, table->shape[0]);
    return LUATTN_OK;
  }
  TRY(driver_push(kernel->driver, kernel->context, err));
  const luattn_status status = make(kernel, &c, &p, table->shape[0], stream);
  driver_pop(kernel->driver);
  return status;
}
