/* workspace.h: counts what kernels keep in a launch's workspace: for the runtime, which lays it out (runtime/launch.c), for the
 * estimate of memory, and for the kernels. C11 and CUDA C++20, one text. abi/params.h says what each part is.
 */
#ifndef LUATTN_ABI_WORKSPACE_H
#define LUATTN_ABI_WORKSPACE_H

#include "abi/host_device.h"

/* Lengths that a launch accepts fit 32 bits, and kernels count in them; the host also reckons with others. */
#ifdef __cplusplus
typedef int workspace_count;
#else
typedef long long workspace_count;
#endif

/* Rows of a head in dq_acc, dk_acc, dv_acc and bwd_rows: the sm90 family has 16 at a time (templates/sink/dq_acc.cuh), and copies 16
 * bytes. */
ABI_FN workspace_count workspace_rows(int is_sm90, workspace_count len) { return is_sm90 ? (len + 15) / 16 * 16 : len; }

/* How many blocks have a kv tile of the main backward kernel together: in the sm90 family above head dim 128, whose blocks have 64
 * positions, two. */
ABI_FN int workspace_blocks_together(int is_sm90, int tile_n) { return is_sm90 && tile_n == 64 ? 2 : 1; }

/* LuattnScratch.turns: a counter, and from this number on those of q tiles. */
#define LUATTN_TURNS_FIRST 32
/* Numbers of a q tile: one, in the sm80 family for each warp's part of it, in the sm90 family for each block that has a kv tile
 * (templates/work/dq_order.cuh, templates/sm90/bwd/dq_first_store.cuh). */
ABI_FN int workspace_turns(int is_sm90, int threads, int tile_n) {
  return is_sm90 ? workspace_blocks_together(is_sm90, tile_n) : threads / 32;
}

/* LuattnScratch.visits: words of a bit for each of so many tiles. */
ABI_FN workspace_count workspace_words(workspace_count tiles) { return (tiles + 31) / 32; }

/* LuattnScratch.norm_k, norm_q and least_lse: a number for so many positions, and numbers for a length. */
#define LUATTN_NORM_ROWS 32
ABI_FN workspace_count workspace_norms(workspace_count len) { return (len + LUATTN_NORM_ROWS - 1) / LUATTN_NORM_ROWS; }

/* Limbs of 8 bytes, with so many bits of the sum each, of an exact sum (templates/ops/reproducible_sum.cuh): one for each place that
 * the first bit of a float or a double may have, and for its other bits. */
#define LUATTN_EXACT_BITS 28
ABI_FN int workspace_limbs(int real_size) {
  return ((real_size == 4 ? 254 + 24 : 2046 + 53) + LUATTN_EXACT_BITS - 1) / LUATTN_EXACT_BITS;
}

/* q_len and kv_len from which on it pays to look for tiles without weight. */
#define LUATTN_SKIP_FORWARD 3072
#define LUATTN_SKIP_BACKWARD 2048

#endif
