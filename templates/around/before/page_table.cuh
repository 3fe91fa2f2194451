// around/before/page_table.cuh: luattn_page_table: writes the page table and the lengths of entries whose pages are
// listed one entry after another (LuattnPageLists). runtime/parts/page_table.c does the same on the host.
//
// Grid (batch * columns / page_table_threads): a thread writes one number of the table, and an entry's first thread its
// length.
#pragma once
#include "abi/page_params.h"
#include "arch/divisor.cuh"
#include "arch/types.cuh"

static constexpr int page_table_threads = 256;

LUATTN_FN void page_table(const LuattnPageLists &p) {
  const u32 index = blockIdx.x * page_table_threads + threadIdx.x;
  if (index >= u32(p.batch) * p.columns.d) return;
  const u32 entry = quotient(index, p.columns);
  const int column = int(index - entry * p.columns.d);
  const int first = p.indptr[entry * p.indptr_stride], end = p.indptr[(entry + 1) * p.indptr_stride];
  // Pages that the entry says it has, of those that exist, and of those that the table has room for.
  const int stated = first >= 0 && end > first ? end - first : 0, there = stated > 0 ? min_of(end, p.total) - first : 0,
            pages = max_of(min_of(there, p.pages), 0);
  if (column < p.pages)
    p.table[i64(entry) * p.pages + column] = column < pages ? p.indices[(i64(first) + column) * p.indices_stride] : -1;
  if (column != 0) return;
  const int last = pages < stated ? p.page_size : max_of(min_of(p.last_len[entry * p.last_len_stride], p.page_size), 0);
  p.used[entry] = pages > 0 ? (pages - 1) * p.page_size + last : 0;
}
