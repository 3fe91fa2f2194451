/* workspace.h: sizes of a launch's workspace, for the runtime, whose parts take room in it (runtime/parts/), for the
 * memory estimate, and for the kernels. The same text is C11 and CUDA C++20. abi/params.h says what each part
 * is. */
#ifndef LUATTN_ABI_WORKSPACE_H
#define LUATTN_ABI_WORKSPACE_H

#include "abi/host_device.h"

/* Lengths that a launch accepts fit 32 bits, and kernels use 32-bit integers; the host's estimate also covers
 * longer ones. */
#ifdef __cplusplus
typedef int workspace_count;
#else
typedef long long workspace_count;
#endif

/* Rows of a head in dq_acc, dk_acc, dv_acc and bwd_rows: in groups, rounded up to 16 (templates/sink/dq_acc.cuh), and
 * copied 16 bytes at a time. */
ABI_FN workspace_count workspace_rows(int in_groups, workspace_count len) {
  return in_groups ? (len + 15) / 16 * 16 : len;
}

/* Packed sequences: the rows of a head in an accumulator whose rows lie in groups of up to 16
 * (templates/sink/dq_acc.cuh). Each entry begins at a multiple of 16: the first row of entry `entry`, whose first row
 * in tensors is `first`, and with the total of rows and the number of entries, the number of all rows. */
ABI_FN workspace_count workspace_packed_rows(workspace_count first, workspace_count entry) {
  return (first + 16 * entry) / 16 * 16;
}

/* The number of blocks for a kv tile of the main backward kernel: two where blocks of 64 positions work in pairs. */
ABI_FN int workspace_blocks_together(int in_pairs, int tile_n) { return in_pairs && tile_n == 64 ? 2 : 1; }

/* LuattnScratch.dq_order: the index of the first q tile's entry, which follows the work counter. */
#define LUATTN_DQ_ORDER_FIRST 32
/* Numbers of a q tile: one; in the sm80 family one for each warp's part of it; where blocks work in
 * pairs one for each block of the cluster (templates/work/dq_order.cuh, templates/sm90/bwd/dq_first_store.cuh). */
ABI_FN int workspace_dq_orders(int in_pairs, int threads, int tile_n) {
  return in_pairs ? workspace_blocks_together(in_pairs, tile_n) : threads / 32;
}

/* LuattnScratch.tile_bitmap: the number of 32-bit words of a tile bitmap, which has one bit per tile. */
ABI_FN workspace_count workspace_words(workspace_count tiles) { return (tiles + 31) / 32; }

/* Tile bits (LuattnTileBits): positions of a cell, and pairs of words of a line of so many cells. */
#define LUATTN_CELL 64
ABI_FN workspace_count workspace_cells(workspace_count len) { return (len + LUATTN_CELL - 1) / LUATTN_CELL; }
ABI_FN workspace_count workspace_bit_words(workspace_count cells) { return (cells + 31) / 32; }

/* The orders of tiles (LuattnTileOrder) that lie beside tile bits in a batch, for kernels of several tile sizes: those
 * of q tiles, of kv tiles upwards, and of kv tiles downwards, each for tiles of 64, 128 and 192 positions. */
#define LUATTN_ORDER_SIZES 3
#define LUATTN_ORDERS (3 * LUATTN_ORDER_SIZES)
ABI_FN int workspace_order_size(int order) { return (order % LUATTN_ORDER_SIZES + 1) * LUATTN_CELL; }
ABI_FN int workspace_order_of_kv(int order) { return order >= LUATTN_ORDER_SIZES; }
ABI_FN int workspace_order_descends(int order) { return order / LUATTN_ORDER_SIZES != 1; }
/* Tiles of a set, and 32-bit words of all orders before number `order`, which lie one after another. Sets are of heads
 * of q in orders of q tiles, and of heads of k in the others. */
ABI_FN workspace_count workspace_order_tiles(int order, workspace_count q_len, workspace_count kv_len) {
  return ((workspace_order_of_kv(order) ? kv_len : q_len) + workspace_order_size(order) - 1) /
         workspace_order_size(order);
}
ABI_FN workspace_count workspace_order_words(int order, workspace_count q_len, workspace_count kv_len,
                                             workspace_count q_sets, workspace_count kv_sets) {
  workspace_count words = 0;
  for (int i = 0; i < order; ++i)
    words += 2 * workspace_order_tiles(i, q_len, kv_len) * (workspace_order_of_kv(i) ? kv_sets : q_sets);
  return words;
}

/* LuattnTileTable: the sizes of tiles that it has sets for, the set of a size (-1: none), and the most tiles in a set
 * of a head whose `batch` sequences have `total` rows. */
ABI_FN int workspace_table_slot(int size) { return size == 64 ? 0 : size == 128 ? 1 : size == 192 ? 2 : -1; }
ABI_FN int workspace_table_size(int slot) { return 64 * (slot + 1); }
ABI_FN workspace_count workspace_table_tiles(workspace_count total, workspace_count batch, int size) {
  return (total + batch * (size - 1)) / size;
}

/* LuattnScratch.norm_k, norm_q and least_lse: positions per number, and numbers per length. */
#define LUATTN_NORM_ROWS 32
ABI_FN workspace_count workspace_norms(workspace_count len) { return (len + LUATTN_NORM_ROWS - 1) / LUATTN_NORM_ROWS; }

/* An exact sum (templates/ops/reproducible_sum.cuh) has limbs of 8 bytes, each holding this many bits of the
 * sum. Their number covers every exponent and mantissa bit of a float or a double. */
#define LUATTN_EXACT_BITS 28
ABI_FN int workspace_limbs(int real_size) {
  return ((real_size == 4 ? 254 + 24 : 2046 + 53) + LUATTN_EXACT_BITS - 1) / LUATTN_EXACT_BITS;
}

/* The least q_len and kv_len for which tile skipping pays. */
#define LUATTN_SKIP_FORWARD 3072
#define LUATTN_SKIP_BACKWARD 2048

#endif
