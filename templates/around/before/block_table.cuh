// around/before/block_table.cuh: luattn_block_table: writes lists of blocks (LuattnBlockTable) as a table, which a mask
// reads.
//
// Grid (rows of blocks, heads, batch): a block has a row. Numbers that are no block of the row are left out.
#pragma once
#include "around/around.cuh"

static constexpr int block_table_threads = 128;

LUATTN_FN void list_blocks(const LuattnBlockList &list, unsigned char *row, int columns, unsigned char value) {
  if (list.count == nullptr) return;
  const i64 b = blockIdx.z, h = blockIdx.y, r = blockIdx.x;
  const int *count = list.count + b * list.count_stride[0] + h * list.count_stride[1] + r * list.count_stride[2],
            *index = list.index + b * list.index_stride[0] + h * list.index_stride[1] + r * list.index_stride[2];
  for (int i = int(threadIdx.x); i < min_of(*count, list.most); i += block_table_threads) {
    const int column = index[i * list.index_stride[3]];
    if (column >= 0 && column < columns) row[column] = value;
  }
}

LUATTN_FN void write_block_table(const LuattnBlockTable &p) {
  unsigned char *row = p.table + ((i64(blockIdx.z) * p.heads + blockIdx.y) * p.rows + blockIdx.x) * p.columns;
  for (int i = int(threadIdx.x); i < p.columns; i += block_table_threads) row[i] = 0;
  __syncthreads();
  list_blocks(p.list[0], row, p.columns, 1);
  __syncthreads();
  list_blocks(p.list[1], row, p.columns, 2);
}
