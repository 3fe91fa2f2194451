/* shared_memory.h: lays out the dynamic shared memory of the attention kernels, for the plan and for the
 * kernels. The same text is C11 and CUDA C++20: the plan chooses tiles by these sizes, and a kernel takes its
 * offsets from them.
 *
 * Sizes are in bytes, unless they count rows, channels or boxes. The sm90 family's tiles are rows of boxes of
 * 64 channels, 128 bytes a row (templates/arch/wgmma.cuh); the sm80 family pads channels to 16. Elements have
 * 2 bytes in both.
 */
#ifndef LUATTN_ABI_SHARED_MEMORY_H
#define LUATTN_ABI_SHARED_MEMORY_H

#include "abi/host_device.h"

#define LUATTN_SM90_SHARED_BYTES 232448 /* the maximum for a block on sm_90 */

/* The parameters of all layouts. A layout reads only the members that its kernel needs; the others are 0. */
typedef struct LayoutSizes {
  int head_dim, head_dim_v, tile_m, tile_n, threads, stages;
  int elem;           /* simt: bytes of an element, 4 or 8 */
  int row, bwd_row;   /* backward on the tensor cores: bytes kept per query: struct Row (0 where nothing reads
                       * it), and BwdRow */
  int bias_elem, col; /* sm90 forward: bytes of a bias row's element, and of struct Col, where they are staged
                       * along the keys (templates/sm90/fwd/bias_staging.cuh); 0: not staged */
  int displacements; /* sm90 and forward of sm80 over a grid, if scores have a term by displacement: numbers of a table, of a pair of boxes in
                       * forward, of a warp's in backward; else 0 (templates/score/displacement_terms.cuh) */
  int displacement_sums; /* sm90 backward over a grid: likewise, of a warp's sums of dS, with hands_sums
                          * (templates/grads/displacement_sums.cuh) */
  int row_axes;          /* sm80 and sm90 forward over a grid: axes along which rows' ranges are kept; 0: none */
  int warps_n;           /* sm80 backward: warps along the keys */
  int has_terms;         /* simt: scores have a distance_term */
  int hands_sums;        /* sm90 backward: consumer warps hand distance sums to a writer warp
                       * (templates/sm90/bwd/distance_grad_writer.cuh) */
  int axes;              /* sm80 and sm90 backward: of the grid whose places kept by keys lie there; 0: along a line
                       * (templates/score/kept_box_queries.cuh) */
  int in_order;          /* sm90 backward above head dim 128: blocks add to dq_acc in a fixed order */
  int chunk;             /* sm80 backward with tangents: rows that a block streams at a time */
  int tangents;          /* forward with tangents on the tensor cores: of q, k and v, as bits 0, 1 and 2 */
} LayoutSizes;

ABI_FN int layout_ceil(int a, int b) { return (a + b - 1) / b; }
ABI_FN int layout_round(int a, int b) { return layout_ceil(a, b) * b; }
ABI_FN int layout_max(int a, int b) { return a > b ? a : b; }

/* simt, both passes: two slices of operands, one tile of P in forward and two in backward, distance terms. */
typedef struct SimtLayout {
  int slice;        /* tile_m + tile_n rows of 128 bytes, padded by 16 */
  int weight_pitch; /* bytes of a row of P */
  int weight;       /* bytes of a tile of P */
  int terms;
} SimtLayout;

ABI_FN SimtLayout simt_layout(LayoutSizes s) {
  SimtLayout l = {0};
  l.slice = 144 * (s.tile_m + s.tile_n);
  l.weight_pitch = s.elem * s.tile_n + 16;
  l.weight = s.tile_m * l.weight_pitch;
  l.terms = s.has_terms ? s.elem * (s.tile_m + s.tile_n) : 0;
  return l;
}
ABI_FN int simt_bytes(LayoutSizes s, int weights) {
  const SimtLayout l = simt_layout(s);
  return 2 * l.slice + weights * l.weight + l.terms;
}

/* sm80 forward: Q, the stages of K, the stages of V, each with its tangent behind it if that is given; over a grid the
 * ranges of rows (templates/score/kept_keys.cuh), and the stages of terms by displacement. */
typedef struct FwdSm80Layout {
  int q, k, v;    /* bytes of a tile, with its tangent */
  int row_ranges; /* of 16 rows */
  int terms;      /* of a table */
  int at_row_ranges, at_terms;
  int bytes;
} FwdSm80Layout;

ABI_FN FwdSm80Layout fwd_sm80_layout(LayoutSizes s) {
  const int dim = layout_round(s.head_dim, 16), dim_v = layout_round(s.head_dim_v, 16);
  FwdSm80Layout l = {0};
  l.q = 2 * s.tile_m * dim * (1 + (s.tangents & 1));
  l.k = 2 * s.tile_n * dim * (1 + (s.tangents >> 1 & 1));
  l.v = 2 * s.tile_n * dim_v * (1 + (s.tangents >> 2 & 1));
  l.row_ranges = 16 * 4 * s.row_axes;
  l.at_row_ranges = l.q + s.stages * (l.k + l.v);
  l.at_terms = l.at_row_ranges + s.tile_m / 16 * l.row_ranges;
  l.terms = 4 * s.displacements;
  l.bytes = l.at_terms + s.stages * l.terms;
  return l;
}

/* Decode: warps have tiles of keys of their own, or with 64 rows two warps the same, for 32 rows each. */
ABI_FN int decode_row_groups(int tile_m) { return tile_m > 32 ? 2 : 1; }

/* Forward with tangents of sm80: channels of V that a block takes at once, as many of its accumulators as registers hold. */
ABI_FN int jvp_value_dim(int head_dim_v) { return head_dim_v <= 128 ? head_dim_v : head_dim_v / 2; }

/* Decode: Q; for each such warp or two a ring of stages, each a tile of K and one of V. After the loop the rings'
 * memory has the warps' sums, rows of f32 padded by 32 bytes to avoid bank conflicts, and their states: up to 8 numbers
 * and whether a score was kept. Behind all, what the block computes, of a list. */
#define LUATTN_DECODE_STATES 9
#define LUATTN_DECODE_BLOCK 32
typedef struct DecodeLayout {
  int k, v;                   /* bytes of a warp's tile */
  int out_pitch, state_pitch; /* floats of a row */
  int at_ring, at_out, at_state, at_block;
  int bytes;
} DecodeLayout;

ABI_FN DecodeLayout decode_layout(LayoutSizes s) {
  const int dim = layout_round(s.head_dim, 16), dim_v = layout_round(s.head_dim_v, 16),
            warps = s.threads / 32 / decode_row_groups(s.tile_m);
  DecodeLayout l = {0};
  l.k = 2 * s.tile_n / warps * dim;
  l.v = 2 * s.tile_n / warps * dim_v;
  l.out_pitch = dim_v + 8;
  l.state_pitch = LUATTN_DECODE_STATES;
  l.at_ring = 2 * s.tile_m * dim;
  l.at_out = l.at_ring;
  l.at_state = l.at_out + 4 * warps * s.tile_m * l.out_pitch;
  l.at_block = layout_round(
      layout_max(l.at_ring + s.stages * warps * (l.k + l.v), l.at_state + 4 * warps * s.tile_m * l.state_pitch), 16);
  l.bytes = l.at_block + LUATTN_DECODE_BLOCK;
  return l;
}

/* sm80 backward: K and V; the stages of Q, dO and dS; P, where warps share its rows; the stages of row
 * numbers; over a grid the places that keys keep (templates/score/kept_box_queries.cuh). */
typedef struct BwdSm80Layout {
  int q, dout, p;                                         /* bytes of a tile */
  int bwd_row, row;                                       /* bytes for the rows of a q tile */
  int at_v, at_q, at_do, at_ds, at_p, at_bwd_row, at_row; /* K is at 0 */
  int at_places;
  int bytes;
} BwdSm80Layout;

ABI_FN BwdSm80Layout bwd_sm80_layout(LayoutSizes s) {
  const int dim = layout_round(s.head_dim, 16), dim_v = layout_round(s.head_dim_v, 16);
  const int shares_p = s.threads / 32 / s.warps_n > 1;
  BwdSm80Layout l = {0};
  l.q = 2 * s.tile_m * dim;
  l.dout = 2 * s.tile_m * dim_v;
  l.p = 2 * s.tile_m * s.tile_n;
  l.bwd_row = s.tile_m * s.bwd_row;
  l.row = s.tile_m * s.row;
  l.at_v = 2 * s.tile_n * dim;
  l.at_q = l.at_v + 2 * s.tile_n * dim_v;
  l.at_do = l.at_q + s.stages * l.q;
  l.at_ds = l.at_do + s.stages * l.dout;
  l.at_p = l.at_ds + s.stages * l.p;
  l.at_bwd_row = l.at_p + (shares_p ? l.p : 0);
  l.at_row = l.at_bwd_row + s.stages * l.bwd_row;
  l.at_places = layout_round(l.at_row + s.stages * l.row, 16);
  l.bytes = l.at_places + 4 * s.axes * s.tile_n;
  return l;
}

/* sm80 backward with tangents: the rows that a block owns, of both products, and two stages of those that it streams, each
 * with its tangent behind it; and of streamed queries their numbers. */
typedef struct BwdJvpSm80Layout {
  int x, u, y, v;   /* bytes of a tile of owned rows, of streamed ones */
  int bwd_row, row; /* bytes of the numbers of streamed rows */
  int at_x, at_u, at_y, at_v, at_bwd_row, at_row;
  int bytes;
} BwdJvpSm80Layout;

ABI_FN BwdJvpSm80Layout bwd_jvp_sm80_layout(LayoutSizes s) {
  const int dim = layout_round(s.head_dim, 16), dim_v = layout_round(s.head_dim_v, 16);
  BwdJvpSm80Layout l = {0};
  l.x = 2 * s.tile_m * dim, l.u = 2 * s.tile_m * dim_v;
  l.y = 2 * s.chunk * dim, l.v = 2 * s.chunk * dim_v;
  l.bwd_row = s.chunk * s.bwd_row, l.row = s.chunk * s.row;
  l.at_u = 2 * l.x;
  l.at_y = l.at_u + 2 * l.u;
  l.at_v = l.at_y + s.stages * 2 * l.y;
  l.at_bwd_row = l.at_v + s.stages * 2 * l.v;
  l.at_row = layout_round(l.at_bwd_row + s.stages * l.bwd_row, 16);
  l.bytes = layout_round(l.at_row + s.stages * l.row, 16);
  return l;
}

#define LUATTN_SM90_TERM_STAGES 2 /* sm90 forward: of terms by displacement */

/* sm90 forward: Q of each consumer (64 rows), the stages of K, the stages of V, staging of O, bias rows
 * and columns, or terms by displacement, and 512 bytes of barriers and tile messages. Bias rows, then columns are staged
 * only if all of them fit; Boxes of O use the remaining space. */
typedef struct FwdSm90Layout {
  int q, k, v;         /* bytes of a consumer's Q, of a stage of K, of V */
  int bias_rows, cols; /* bytes per consumer, per stage, if they are staged */
  int terms;           /* bytes of each of LUATTN_SM90_TERM_STAGES tables by displacement */
  int row_ranges;      /* bytes per warp, with its boxes of keys */
  int has_bias_rows, has_cols;
  int o_boxes; /* O boxes of a warp: 16 rows of 64 channels each */
  int without_o, bytes;
} FwdSm90Layout;

ABI_FN FwdSm90Layout fwd_sm90_layout(LayoutSizes s) {
  const int groups = s.tile_m / 64, boxes = layout_ceil(s.head_dim, 64), boxes_v = layout_ceil(s.head_dim_v, 64);
  const int most = LUATTN_SM90_SHARED_BYTES, o_box = 64 * 128; /* an O box: of a consumer's four warps */
  FwdSm90Layout l = {0};
  l.q = boxes * 64 * 128;
  l.k = boxes * s.tile_n * 128;
  l.v = boxes_v * s.tile_n * 128;
  l.bias_rows = 64 * (s.tile_n * s.bias_elem + 16);
  l.cols = s.tile_n * s.col;
  l.without_o = groups * l.q + s.stages * (l.k + l.v) + 512;
  l.has_bias_rows = s.bias_elem > 0 && l.without_o + groups * l.bias_rows <= most;
  if (l.has_bias_rows) l.without_o += groups * l.bias_rows;
  l.has_cols = s.col > 0 && l.without_o + s.stages * l.cols <= most;
  if (l.has_cols) l.without_o += s.stages * l.cols;
  l.row_ranges = s.row_axes > 0 ? 16 * 4 * s.row_axes + 16 : 0;
  l.without_o += groups * 4 * l.row_ranges;
  l.terms = layout_round(4 * s.displacements, 16);
  l.without_o += LUATTN_SM90_TERM_STAGES * l.terms;
  const int room = l.without_o < most ? (most - l.without_o) / (groups * o_box) : 0;
  l.o_boxes = room < boxes_v ? room : boxes_v;
  l.bytes = l.without_o + l.o_boxes * groups * o_box;
  return l;
}

/* sm90 forward with tangents: Q of each consumer, the stages of K and of V, each with its tangent behind it if that is
 * given, and 512 bytes of barriers and tile messages. */
typedef struct FwdJvpSm90Layout {
  int q, k, v; /* bytes of a consumer's Q, of a stage of K, of V, without tangents */
  int bytes;
} FwdJvpSm90Layout;

ABI_FN FwdJvpSm90Layout fwd_jvp_sm90_layout(LayoutSizes s) {
  const int groups = s.tile_m / 64, boxes = layout_ceil(s.head_dim, 64), boxes_v = layout_ceil(s.head_dim_v, 64);
  FwdJvpSm90Layout l = {0};
  l.q = boxes * 64 * 128;
  l.k = boxes * s.tile_n * 128;
  l.v = boxes_v * s.tile_n * 128;
  l.bytes = groups * l.q * (1 + (s.tangents & 1)) + s.stages * l.k * (1 + (s.tangents >> 1 & 1)) +
            s.stages * l.v * (1 + (s.tangents >> 2 & 1)) + 512;
  return l;
}

/* sm90 backward up to head dim 128: K and V; the stages of Q and dO; dS stages; dQ staging of each consumer
 * warp, which also holds 16 rows of dK or dV; distance sums; terms by displacement; the stages of row numbers; places that keys
 * keep along axes of a grid; barriers and tile messages; 256 bytes of ones. */
typedef struct BwdSm90Layout {
  int k, v, q, dout, ds; /* bytes of a tile */
  int dq;                /* bytes of a consumer warp's dQ staging */
  int row_pitch;         /* bytes of its rows of dK or dV, padded by 16 to avoid bank conflicts along
                          * columns */
  int bwd_row, rows;     /* bytes for a q tile: of its BwdRows, and of everything kept per row */
  int barriers;          /* bytes, without the ones */
  int ds_slots;          /* one more than pipeline stages, if it fits: dQ of a tile is then computed one tile
                          * later; else two */
  int terms;             /* bytes of a consumer warp's terms by displacement */
  int at_v, at_q, at_do, at_ds, at_dq, at_sums, at_terms, at_rows, at_places, at_barriers; /* K is at 0 */
  int bytes;
} BwdSm90Layout;

ABI_FN BwdSm90Layout bwd_sm90_layout(LayoutSizes s) {
  const int boxes = layout_ceil(s.head_dim, 64), boxes_v = layout_ceil(s.head_dim_v, 64), warps = s.tile_n / 16;
  const int sums = s.displacement_sums > 0 ? 4 * warps * s.displacement_sums
                   : s.hands_sums          ? 4 * (warps * (s.tile_m + 32) + s.tile_m + s.tile_n)
                                           : 0;
  const int places = s.axes * s.tile_n * 4;
  BwdSm90Layout l = {0};
  l.k = boxes * s.tile_n * 128;
  l.v = boxes_v * s.tile_n * 128;
  l.q = boxes * s.tile_m * 128;
  l.dout = boxes_v * s.tile_m * 128;
  l.ds = s.tile_m * s.tile_n * 2;
  l.row_pitch = 16 + 128 * layout_max(boxes, boxes_v);
  l.bwd_row = s.tile_m * s.bwd_row;
  l.rows = l.bwd_row + s.tile_m * s.row;
  l.barriers = s.stages == 2 ? 256 : 384;
  l.dq = layout_max(s.tile_m * boxes * 64 * 4 / warps, 16 * l.row_pitch);
  l.terms = 4 * s.displacements;
  const int others =
      l.k + l.v + s.stages * (l.q + l.dout + l.rows) + warps * (l.dq + l.terms) + sums + 15 + places + l.barriers + 256;
  l.ds_slots = others + (s.stages + 1) * l.ds <= LUATTN_SM90_SHARED_BYTES ? s.stages + 1 : 2;
  l.at_v = l.k;
  l.at_q = l.at_v + l.v;
  l.at_do = l.at_q + s.stages * l.q;
  l.at_ds = l.at_do + s.stages * l.dout;
  l.at_dq = l.at_ds + l.ds_slots * l.ds;
  l.at_sums = l.at_dq + warps * l.dq;
  l.at_terms = l.at_sums + sums;
  l.at_rows = l.at_terms + warps * l.terms;
  l.at_places = layout_round(l.at_rows + s.stages * l.rows, 16);
  l.at_barriers = l.at_places + places;
  l.bytes = l.at_barriers + l.barriers + 256;
  return l;
}

/* sm90 backward above head dim 128, one block of a cluster of two: its K, and the channels of the peer's K
 * for which it computes dQ; the stages of Q and dO; P, two dS stages and two of the peer's; the stages of row
 * numbers; barriers and tile messages. */
typedef struct BwdD256Layout {
  int k, v;                                                                  /* bytes of a tile of K, Q; of V, dO */
  int bwd_row, rows;                                                         /* as above */
  int at_peer_k, at_q, at_do, at_p, at_ds, at_peer_ds, at_rows, at_barriers; /* K is at 0 */
  int bytes;
} BwdD256Layout;

ABI_FN BwdD256Layout bwd_d256_layout(LayoutSizes s) {
  const int boxes = layout_ceil(s.head_dim, 64), boxes_v = layout_ceil(s.head_dim_v, 64), box = 64 * 128;
  BwdD256Layout l = {0};
  l.k = boxes * box;
  l.v = boxes_v * box;
  l.bwd_row = s.tile_m * s.bwd_row;
  l.rows = l.bwd_row + s.tile_m * s.row;
  l.at_peer_k = l.k;
  l.at_q = l.at_peer_k + layout_ceil(boxes, 2) * box;
  l.at_do = l.at_q + s.stages * l.k;
  l.at_p = l.at_do + s.stages * l.v;
  l.at_ds = l.at_p + box;
  l.at_peer_ds = l.at_ds + 2 * box;
  l.at_rows = l.at_peer_ds + 2 * box;
  l.at_barriers = layout_round(l.at_rows + s.stages * l.rows, 16);
  l.bytes = l.at_barriers + layout_round(s.stages * 64 + (s.in_order ? 216 : 128), 128);
  return l;
}

#endif
