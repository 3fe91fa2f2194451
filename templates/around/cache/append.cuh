// around/cache/append.cuh: luattn_append: copies new rows of keys and values to their places in a cache (LuattnAppend).
//
// Grid (pieces of k or v / append_threads, 2): a thread copies a piece of a row of k (blockIdx.y 0) or v, 16 bytes, or
// an element where tensors are not aligned, or rows no whole number of 16 bytes.
#pragma once
#include "arch/divisor.cuh"
#include "arch/tensor.cuh"

static constexpr int append_threads = 256;

// A row of an entry, of one head.
struct AppendRow {
  int entry, row, head;
};

// The last entry that begins at or before a packed row. Empty entries begin where the next one does.
LUATTN_FN int entry_of_row(const int *cu, int batch, int row) {
  int low = 0, high = batch;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

LUATTN_FN AppendRow append_row(const LuattnAppend &p, u32 number) {
  const u32 row = quotient(number, p.heads_kv), head = number - row * p.heads_kv.d;
  if (p.cu_seqlens != nullptr) {
    const int entry = entry_of_row(p.cu_seqlens, p.batch, int(row));
    return {entry, int(row) - p.cu_seqlens[entry], int(head)};
  }
  const u32 entry = quotient(row, p.rows);
  return {int(entry), int(row - entry * p.rows.d), int(head)};
}

// Where a row of an entry goes: its position there, and the page with its row. `exists`: there is such a row, and a
// place for it. Whatever the arrays hold, it lies in the cache.
struct AppendPlace {
  int entry, position, page, row;
  bool exists;

  __device__ __forceinline__ AppendPlace(const LuattnAppend &p, int entry, int at) : entry(entry), exists(false) {
    if (p.cu_seqlens != nullptr && (at < 0 || at >= p.cu_seqlens[entry + 1] - p.cu_seqlens[entry]))
      return;  // of no entry
    position = max_of(p.seqused_k[entry], 0) + at;
    const int n = int(quotient(u32(position), p.paging.page_size));
    if (position < 0 || n >= p.paging.pages) return;  // the cache has no room
    page = p.paging.block_table != nullptr ? p.paging.block_table[i64(entry) * p.paging.pages + n] : entry;
    row = position - n * int(p.paging.page_size.d);
    exists = u32(page) <= u32(p.paging.num_pages - 1);
  }
};

template <class Piece, int Width, class Elem>
LUATTN_FN void append_piece(const LuattnAppend &p, int which) {
  constexpr u32 each = sizeof(Piece) / sizeof(Elem), pieces = Width / each;
  const u32 index = blockIdx.x * append_threads + threadIdx.x, number = index / pieces,
            at = (index - number * pieces) * each;
  if (number >= u32(p.total) * p.heads_kv.d) return;
  const AppendRow row = append_row(p, number);
  const AppendPlace place(p, row.entry, row.row);
  if (!place.exists) return;
  const LuattnTensor &from = p.from[which], &to = p.to[which];
  // Packed rows follow one another, and have no batch axis.
  const int first = p.cu_seqlens != nullptr ? p.cu_seqlens[row.entry] : 0;
  const Elem *source =
      row_of<const Elem>(from, p.cu_seqlens != nullptr ? 0 : row.entry, row.head, first + row.row) + at;
  Elem *target = row_of<Elem>(to, place.page, row.head, place.row) + at;
  *reinterpret_cast<Piece *>(target) = *reinterpret_cast<const Piece *>(source);
}

template <int Width, class Elem>
LUATTN_FN void append_rows_of(const LuattnAppend &p, int which) {
  if constexpr (Width * sizeof(Elem) % 16 == 0)
    if (allows_16_bytes<Elem>(p.from[which]) && allows_16_bytes<Elem>(p.to[which]))
      return append_piece<uint4, Width, Elem>(p, which);
  append_piece<Elem, Width, Elem>(p, which);
}

template <class Config>
LUATTN_FN void append_rows(const LuattnAppend &p) {
  using Elem = typename Config::Elem;
  if (blockIdx.y == 0)
    append_rows_of<Config::head_dim, Elem>(p, 0);
  else
    append_rows_of<Config::head_dim_v, Elem>(p, 1);
}
