/* params.h: the one struct that host and device share. Plain C11 and CUDA C++.
 *
 * Every kernel of luattn takes one LuattnParams by value (`const __grid_constant__`). The runtime fills it
 * from the caller's tensors; the device reads it from the constant bank. A field is null or zero if the
 * kernel does not use it. Strides are in elements, never in bytes. "Real" is float, or double in f64 kernels.
 * Every image records LUATTN_PARAMS_VERSION: a runtime refuses an image that was built for another
 * layout. */
#ifndef LUATTN_PARAMS_H
#define LUATTN_PARAMS_H

#include "abi/grid_params.h"
#include "abi/host_device.h"

#define LUATTN_PARAMS_VERSION 12
#define LUATTN_MAX_INPUTS 12  /* extra inputs of one spec */
#define LUATTN_MAX_SCALARS 32 /* run-time scalars of one spec */
#define LUATTN_MAX_AXES 4     /* axes of one extra input */
#define LUATTN_MAX_SPLITS 64  /* blocks that share a kv tile of backward, or a tile of rows of a decode kernel */
#define LUATTN_SPLIT_KEYS \
  2048 /* keys of a block of a deterministic decode kernel, unless that is more than LUATTN_MAX_SPLITS blocks */
#define LUATTN_SPLIT_PLACES 32 /* entries from whose lengths blocks find their items: the lanes of a warp */
#define LUATTN_TABLE_SIZES 3   /* sizes of tiles that a tile table has: abi/workspace.h */
#define LUATTN_MAX_STATS 8     /* (1-D integer input, axis) pairs whose block minima and maxima a mask needs */

/* A tensor with a batch, a head and a sequence axis; the last axis, if there is one, is contiguous. */
typedef struct LuattnTensor {
  void *data;
  long long batch, head, seq; /* strides */
} LuattnTensor;

/* An extra input of a spec. Axis i has `size[i]` elements, `stride[i]` apart (0 for an axis that is broadcast).
 * `grad` is null, or a contiguous row-major array of Real with the same sizes (broadcast axes have size 1). */
typedef struct LuattnInput {
  const void *data;
  void *grad;
  long long stride[LUATTN_MAX_AXES];
  int size[LUATTN_MAX_AXES];
  unsigned long long *exact; /* deterministic backward: exact sums that become grad
                              * (ops/reproducible_sum.cuh), zeroed by the runtime; null if the order of the
                              * sums is fixed or does not matter (common/call/pairs.h) */
  long long count;           /* elements of grad */
} LuattnInput;

/* The order in which a forward kernel on the tensor cores takes q tiles: work/tile_scheduler.cuh,
 * runtime/call/order.h. */
typedef struct LuattnOrder {
  unsigned q_tiles, tiles;      /* q tiles of a head; of all heads of all batches */
  unsigned last;                /* the last group of heads, counted from 0 */
  LuattnDivisor group_tiles;    /* q_tiles of every group except the last */
  LuattnDivisor group_heads[2]; /* heads of a group, and of the last one, which may have fewer */
  LuattnDivisor heads, group;   /* divide by LuattnParams' fields of the same name */
} LuattnOrder;

/* The sizes of a call. */
typedef struct LuattnShape {
  int batch, heads, heads_kv, group; /* group = heads / heads_kv; q head h reads kv head h / group */
  int q_len, kv_len;
} LuattnShape;

/* Work distribution of the sm90 family's backward. */
typedef struct LuattnSchedule {
  int num_splits;      /* number of blocks that share the q tiles of a kv tile; above 1, dk and dv go to dk_acc,
                        * dv_acc */
  int batches_in_turn; /* deterministic: 1: a block processes its kv tile for all batches in sequence, so that
                        * contributions to one element of a gradient arrive in batch order (common/call/pairs.h) */
} LuattnSchedule;

/* The caller's tensors, and modified copies of some. */
typedef struct LuattnTensors {
  /* The tensors that the attention kernels read. With a query_mod, key_mod or value_mod these point at the
   * modified copies in the workspace, and src_* at the caller's tensors; without, src_* are the same as
   * these. */
  LuattnTensor q, k, v;
  LuattnTensor src_q, src_k, src_v;

  LuattnTensor o;   /* output of forward, input of backward */
  LuattnTensor lse; /* Real, [batch, heads, q_len]; null if there is none, or if it is not requested */
  void *saved;      /* Real [num_saved][batch][heads][q_len], contiguous: what forward keeps for backward beyond lse */

  LuattnTensor dout;
  LuattnTensor dlse;       /* Real, [batch, heads, q_len], or null */
  LuattnTensor dq, dk, dv; /* the caller's; null if not requested */
} LuattnTensors;

/* Workspace; abi/workspace.h computes the sizes. */
typedef struct LuattnScratch {
  void *bwd_rows; /* Real [num_bwd_rows][batch][heads][q_len], in the sm90 family q_len up to a multiple of 16; written
                    * by prepare, read by the main kernels */
  void *dq_acc;   /* Real [batch][heads][q_len][head_dim], or null. Zeroed by the runtime, in the sm90 family
                    * by prepare, unless the first contribution is stored instead of added (work/dq_order.cuh,
                    * sm90/bwd/dq_first_store.cuh). Where luattn_dkdv adds into it, a head has the layout, and
                    * in the sm90 family the row count, of sink/dq_acc.cuh */
  void *dk_acc;   /* Real [num_splits][batch][heads_kv][kv_len][head_dim], or null; in the sm90 family laid
                    * out as dq_acc */
  void *dv_acc;   /* Real [num_splits][batch][heads_kv][kv_len][head_dim_v], or null; same layout */
  unsigned *dq_order;     /* dQ order. In a deterministic backward that adds into dq_acc: the semaphores of
                    * work/dq_order.cuh, zeroed by the runtime, in the sm90 family by prepare. In the other
                    * backward kernels of the sm90 family: a work counter (sm90/bwd/bwd_pipeline.cuh) and,
                    * where the kernel adds into dq_acc, from LUATTN_DQ_ORDER_FIRST on a number for each q tile
                    * of a head (sm90/bwd/dq_first_store.cuh); set by prepare */
  unsigned *work_counter; /* work counter: the number of tiles drawn so far (work/tile_scheduler.cuh), 0 before and
                      * after a launch; or null */
  /* Tile skipping (around/before/tile_skipping.cuh), else null. For each LUATTN_NORM_ROWS positions: */
  float *norm_k;                /* [batch][heads_kv][ceil(kv_len / LUATTN_NORM_ROWS)]: an upper bound of |k| */
  float *norm_q, *least_lse;    /* [batch][heads][ceil(q_len / LUATTN_NORM_ROWS)], in backward: an upper bound of
                                 * |q|, and the least lse of rows that keep something */
  unsigned *tile_bitmap;        /* tile bitmap: [batch][heads][q tiles][kv tiles], in backward [kv tiles][q tiles], the
                                 * last axis rounded up to a multiple of 32; 1: the tile is computed */
  int *stats[LUATTN_MAX_STATS]; /* int [rows][blocks][2] = {min, max}; see contract/contract.cuh */
} LuattnScratch;

/* What the spec declares: extra inputs and scalars. */
typedef struct LuattnInputs {
  LuattnInput input[LUATTN_MAX_INPUTS];
  double scalar[LUATTN_MAX_SCALARS];
  void *scalar_grad;                /* Real [num_scalars], zeroed by the runtime, or null */
  unsigned long long *scalar_exact; /* as LuattnInput.exact */
  int num_scalars;
  unsigned alone; /* bit i, backward: at most one score adds to an element of input i's gradient
                   * (common/call/pairs.h), so it may be stored */
} LuattnInputs;

/* Makes the sizes of a call and its schedule private to the structs in templates/ that hand out work. Other
 * kernel code that names them does not compile. */
#ifdef __CUDACC__
#define ABI_FOR_WORK_ALONE                                           \
 private:                                                            \
  friend struct Site; /* ops/hook_types.cuh: what hooks see */       \
  template <class, class>                                            \
  friend struct DenseArrays;   /* work/dense_arrays.cuh */           \
  friend struct DenseSequence; /* work/sequence.cuh */               \
  friend struct GridSequence;  /* work/grid_sequence.cuh */          \
  friend struct PackedSequence;                                      \
  template <class>                                                   \
  friend struct PagedSequence;                                       \
  friend struct BlockSite; /* work/tile_scheduler.cuh */             \
  template <bool, bool, bool>                                        \
  friend struct TileScheduler;                                       \
  friend struct TileTable; /* work/tile_table.cuh */                 \
  friend struct SplitList; /* work/split_list.cuh */                 \
  template <class, bool>                                             \
  friend struct PackedTileScheduler; /* work/packed_scheduler.cuh */ \
  template <class, class, int>                                       \
  friend struct PackedKvTileScheduler;                               \
  friend struct KvBlock; /* work/dq_order.cuh */                     \
  friend struct QShare;  /* work/tile_walk.cuh */                    \
  template <class, class, int>                                       \
  friend struct KvTileScheduler; /* work/kv_tile_scheduler.cuh */
#define ABI_FOR_ALL public:
#else
#define ABI_FOR_WORK_ALONE
#define ABI_FOR_ALL
#endif

/* The block grows only at its end: an image records how many of its bytes its kernels take, and a later
 * luattn passes that many. A new field goes into a new struct after the last one. Any other change takes a
 * new LUATTN_PARAMS_VERSION. */
typedef struct LuattnParams {
  ABI_FOR_WORK_ALONE
  LuattnShape shape;
  LuattnSchedule schedule;
  ABI_FOR_ALL
  double scale; /* scores are scale * dot(q, k); > 0 */
  ABI_FOR_WORK_ALONE
  LuattnOrder order; /* forward, except for the simt family */
  ABI_FOR_ALL
  LuattnTensors tensors;
  LuattnScratch scratch;
  LuattnInputs inputs;
} LuattnParams;

/* In TMA descriptors of packed rows the row axis ends at row 1 << LUATTN_WRAP_LOG2
 * (runtime/launch/tma_descriptors.c). */
#define LUATTN_WRAP_LOG2 30

/* Packed sequences: entries of the batch follow one another along the position axis of q, k, v and o, which have no
 * batch axis. Entry b has rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1. q_len and kv_len are the longest entries'. lse
 * is [heads][total_q], saved [num_saved][heads][total_q]. */
typedef struct LuattnPacked {
  const int *cu_seqlens_q, *cu_seqlens_k; /* [batch + 1], on the device */
  int total_q, total_k;
} LuattnPacked;

/* The offsets of a call whose tensors are a part of a whole: hooks see positions, heads and lengths of the
 * whole, q_offset + q_idx and so on, with q_len, kv_len and heads. Inputs are local: their axes b, h, hkv, q
 * and kv have the tensors' sizes.
 *
 * Of images that take chunks, an array has a side's chunks: the position in the whole of the first row of each, and the
 * number below how many rows they have, a multiple of the tile's; the last one may have fewer. */
typedef struct LuattnOffsets {
  const int *q_offsets, *kv_offsets; /* [batch] or [chunks], on the device; null: the numbers below */
  int q_offset, kv_offset;
  int q_len, kv_len;   /* of the whole; 0: offset + length */
  int most_q, most_kv; /* upper bounds of offset + length, to which values from the device are
                        * clamped */
  int head_offset, kv_head_offset, heads, heads_kv;
} LuattnOffsets;

/* Tile bits: a mask from data, evaluated for each cell of LUATTN_CELL x LUATTN_CELL scores
 * (around/before/tile_bits.cuh). A set is of one batch entry and head. A line of it has workspace_bit_words(cells)
 * pairs of words {kept, whole}: bit i of pair w is of cell 32 w + i of the line. Kept: some score of the cell is;
 * whole: all inside the lengths are. Both are 0 past the ends. */
typedef struct LuattnTileBits {
  unsigned *rows;        /* [sets][q cells], a line of kv cells each; null: ranges and minima classify tiles */
  unsigned *columns;     /* [sets][kv cells], a line of q cells each */
  unsigned batch, heads; /* sets: of so many batch entries, 1 or all, by so many heads, 1 or all */
} LuattnTileBits;

/* The order in which blocks take a head's tiles, the longest first by its tile bits (around/before/tile_order.cuh,
 * work/tile_order.cuh): q tiles in forward, kv tiles of luattn_dkdv in backward. A set is of one batch entry and head
 * (backward: kv head). */
typedef struct LuattnTileOrder {
  unsigned *tiles;       /* [sets][2][count]: the tile of each rank, then the rank of each tile; null: no order */
  unsigned count, first; /* tiles of a head; ranks that the tiles of all heads have before those of other ranks */
  unsigned batch, heads; /* sets: of so many batch entries, 1 or all, by so many heads, 1 or all */
  unsigned size; /* positions of a tile, except for the last one; 0: luattn_tile_order writes all orders of a batch
                    (workspace_order_words) from `tiles` on, and reads no other member */
  unsigned descending; /* tiles that are as long as one another: 1: the last first; 0: the first first */
} LuattnTileOrder;

/* The tiles of packed sequences in the order in which blocks take them, the longest sequence first (luattn_tile_table
 * writes it, around/before/tile_table.cuh; work/tile_table.cuh reads it). A set has the tiles of queries or of keys of
 * one head, of one of the sizes of workspace_table_size. Its first element is a LuattnPackedHead. */
typedef struct LuattnPackedTile {
  unsigned entry, tile, count; /* the sequence, the tile's number in it, and the number of its tiles */
  unsigned unused;
} LuattnPackedTile;
typedef struct LuattnPackedHead {
  unsigned rows, columns, count; /* count: of all tiles */
  unsigned
      last; /* of a set of keys: the last tiles, of whole sequences, come for one kv head after another; if all these
             * sequences have `columns` tiles, in the order of `rows` sequences' first tiles, then their second ones,
             * .. (else rows is 1). Heads of the sequences before them come one after another. 0 in a set of queries */
} LuattnPackedHead;
typedef struct LuattnTileTable {
  LuattnPackedTile
      *sets[2][LUATTN_TABLE_SIZES]; /* null: luattn_tile_table leaves it out. Where forward has none for its tiles,
                                     * blocks are for all that sequences of the longest one's length would have */
  unsigned together;                /* query heads of forward whose tiles come together */
  unsigned at_end;                  /* LuattnPackedHead.last is at least so many, or all tiles */
} LuattnTileTable;

/* Packed sequences whose last rows are not used: how many are, of each sequence; null: all. */
typedef struct LuattnUsed {
  const int *seqused_q, *seqused_k; /* [batch], on the device */
} LuattnUsed;

/* Lists of blocks of keys, for each row of blocks, as FlexAttention's BlockMask has them: the blocks in part, then the
 * whole ones. luattn_block_table writes 1 and 2 there, and 0 elsewhere. Strides are of batch entries, heads, rows, and
 * numbers of a row. */
typedef struct LuattnBlockList {
  const int *count, *index; /* null: no such list */
  long long count_stride[3], index_stride[4];
  int most; /* indices of a row */
} LuattnBlockList;
typedef struct LuattnBlockTable {
  LuattnBlockList list[2];
  unsigned char *table; /* [batch][heads][rows][columns] */
  int heads, rows, columns;
} LuattnBlockTable;

/* What random numbers are drawn from (abi/philox.h). */
typedef struct LuattnRandom {
  const unsigned long long *seed_at,
      *offset_at; /* on the device; null: the numbers below. offset_at's is added to `offset` */
  unsigned long long seed, offset;
  int heads, first_head; /* query heads of the whole; the call's first one there */
} LuattnRandom;

/* Partial results of blocks that share the keys of a row, for luattn_merge (around/after/merge.cuh). Rows are those of
 * lse: [batch][heads][q_len], packed [heads][total_q]. The state has a plane more than the spec's: 1 where the split
 * keeps a score of the row, else 0; neither O nor the other numbers are read there. */
typedef struct LuattnSplits {
  void *o;     /* Real [count][rows][head_dim_v]: sums of P V, not scaled */
  void *state; /* Real [num_state + 1][count][rows] */
  int count;   /* of splits; 1: blocks store O themselves, and luattn_merge is not launched. With a list
                * (LuattnSplitList): of places, where `rows` are [heads_kv][its rows] */
  int unused;
} LuattnSplits;

/* Distances from a page, a head and a row to the next, along the last axis of LuattnPagedMaps' k_whole or v_whole. row
 * 0: there are none. */
typedef struct LuattnPageSteps {
  int page, head, row;
} LuattnPageSteps;

/* Keys in pages. k and v are [num_pages, heads_kv, page_size, head_dim], where LuattnTensor.batch is the stride of
 * pages. Position i of entry b is row i % page_size of page block_table[b * pages + i / page_size]; without a table, of
 * page b. kv_len is the longest entry's; an entry's own length is LuattnUsed.seqused_k[b]. Nothing reads the table past
 * an entry's last page. */
typedef struct LuattnPaging {
  const int *block_table; /* [batch][pages], on the device; or null */
  int pages;
  LuattnDivisor page_size;
  /* The sm90 family's boxes: each has box_rows rows of one page, and a page's first row lies page_rows_k (page_rows_v)
   * rows behind the one of the page before. */
  int box_rows, page_rows_k, page_rows_v;
  LuattnPageSteps steps_k, steps_v;
  int num_pages; /* of k and v: other numbers in block_table count as the last page; 0 (from an earlier luattn): nothing
                    is known */
} LuattnPaging;

/* The blocks of a decode kernel whose entries differ in length (luattn_split_list writes them,
 * around/before/split_list.cuh; work/split_list.cuh reads them): the longest first, each with an equal part of what the
 * rows of a tile may keep of their entry. */
typedef struct LuattnSplitItem {
  unsigned entry, tile; /* of rows: query * group + head of the group */
  unsigned split;       /* its number in the tile, and from bit 16 on how many the tile has */
  unsigned first; /* the place of the tile's first split among partial results; of a tile that has one block, unused */
} LuattnSplitItem;
typedef struct LuattnTileSplits {
  unsigned first, count; /* as in the tile's items; 0 and 0: the entry has no such tile */
} LuattnTileSplits;
typedef struct LuattnSplitList {
  LuattnSplitItem *items; /* [1 + most_items]; the first one's `entry` is the number of those behind it. null: there is
                           * no list, and each tile has LuattnSplits.count blocks unless in_place */
  LuattnTileSplits *of_tile; /* [batch][tiles] */
  unsigned most_items,
      most_parts; /* most_parts: blocks of a head that share tiles with others; with a list, LuattnSplits.count */
  int tile_m, tiles, rows; /* rows of a tile; tiles of an entry; rows of a tile in partial results, at most tile_m */
  int heads_kv;
  int chunk; /* keys of a block, whatever other entries have; 0: chosen from all lengths */
  /* What luattn_split_list weighs up, in keys of a head that memory delivers meanwhile: `resident` blocks run at once
   * on so many multiprocessors, a round of them has to start and end, and a part has to be written and read. */
  float resident, multiprocessors, start, part;
  int in_place; /* with items null: blocks find their items from the lengths of so many entries
                 * (work/split_places.cuh), and the first of a tile writes of_tile; 0: they do not */
} LuattnSplitList;

/* New rows of a cache's keys (0) and values (1), for luattn_append: row i of entry b becomes its position seqused_k[b]
 * + i. */
typedef struct LuattnAppend {
  LuattnTensor to[2];   /* as LuattnTensors.k and v in pages */
  LuattnTensor from[2]; /* [batch, heads_kv, rows, ..]; packed [total rows, heads_kv, ..], as cu_seqlens says */
  LuattnPaging paging;
  const int *seqused_k;         /* [batch]: rows that entries have before */
  const int *cu_seqlens;        /* [batch + 1], or null */
  LuattnDivisor heads_kv, rows; /* rows: of an entry, if they are not packed */
  int batch, total;             /* total: rows of all entries */
  LuattnDivisor groups; /* of heads_kv, of as many heads as a thread has: for around/cache/append_modified.cuh */
} LuattnAppend;

/* The weights of V, for luattn_weights: Real [batch][heads][rows][columns], those of the longest entry. */
typedef struct LuattnWeights {
  LuattnTensor to;
  int rows, columns;
} LuattnWeights;

/* The tangents of a call (gen/analysis/specs/spec_tangents.h): of what the image says, and in forward of its results; data
 * is null where there is none. Tensors as in LuattnTensors; of inputs, sizes are those of the inputs themselves. Backward
 * writes tangents where its gradients would be. */
typedef struct LuattnInputTangent {
  const void *data;
  int stride[LUATTN_MAX_AXES];
} LuattnInputTangent;
typedef struct LuattnTangents {
  LuattnTensor q, k, v;
  LuattnTensor o, lse; /* in backward those of dout and dlse, which it reads */
  LuattnInputTangent input[LUATTN_MAX_INPUTS];
  double scalar[LUATTN_MAX_SCALARS];
  LuattnTensor of_o,
      of_lse; /* backward: those of O and lse, which are then given as backward's own are; null: it computes
                              * the rows anew */
} LuattnTangents;

/* Beside tangents, where q, k and v have mods: LuattnTangents has what luattn_mod makes of these, the tangents behind the
 * mods. */
typedef struct LuattnTangentMods {
  LuattnTensor src_q, src_k, src_v; /* the caller's tangents */
  void *dq_acc, *dk_acc, *dv_acc; /* backward: as LuattnScratch's, of gradients where those are of their tangents; null:
                                     * luattn_finish needs none */
} LuattnTangentMods;

/* Beside tangents over a grid: strides along axes, as LuattnGrid has them, of tensors of LuattnTangents and, src_q .. , of
 * LuattnTangentMods. */
typedef struct LuattnTangentSteps {
  LuattnGridSteps q, k, v, o, of_o, src_q, src_k, src_v;
} LuattnTangentSteps;

/* What row passes have left for luattn_prepare (gen/spec.h, derived_pass). */
#define LUATTN_MAX_PASSES 2
typedef struct LuattnRowPasses {
  LuattnTensor o[LUATTN_MAX_PASSES]; /* of the shape of o: what dO is multiplied by, for a delta of each */
  const void *sums;                  /* Real [sums][batch][heads][q_len], contiguous, as saved */
} LuattnRowPasses;

/* Boxes over a grid of places that TMA does not step between (grid_step_is_far) along an axis of a descriptor: there it has
 * the places of one group (templates/ops/grid_places.cuh), and the groups are among the units. The groups of an
 * axis are of one length, so where an extent is no multiple of the step, LuattnTensors has copies with zeros up to the next
 * one, of q and k and v and, in backward, dout; forward copies its o back. */
typedef struct LuattnFarPlaces {
  int of[4][LUATTN_GRID_AXES]; /* of q, k, v, and o or dout: units from a place to the next one; 0 along other axes */
  LuattnTensor given;          /* the caller's o or dout, where LuattnTensors has a copy of it */
  LuattnGridSteps given_steps;
} LuattnFarPlaces;

/* The parameters of kernels of packed sequences, with offsets, with masks from data, with tables of packed tiles, of
 * those that draw, of those for decoding, of those that read pages, of luattn_weights, of those for decoding entries of
 * different lengths, of luattn_prepare after row passes, of those over a grid, and of those whose boxes have far places,
 * which take all. Dense kernels take only the part before
 * `packed`. */
#ifdef __cplusplus
struct LuattnPackedParams : LuattnParams {
  ABI_FOR_WORK_ALONE
  LuattnPacked packed;
};
struct LuattnOffsetParams : LuattnPackedParams {
  LuattnOffsets offsets;
};
struct LuattnTileBitsParams : LuattnOffsetParams {
  LuattnTileBits bits;
  LuattnTileOrder tile_order;
};
struct LuattnPackedTileParams : LuattnTileBitsParams {
  ABI_FOR_WORK_ALONE
  LuattnTileTable table;
  LuattnUsed used;
};
struct LuattnRandomParams : LuattnPackedTileParams {
  LuattnRandom random;
};
struct LuattnSplitsParams : LuattnRandomParams {
  LuattnSplits splits;
};
struct LuattnPagedParams : LuattnSplitsParams {
  ABI_FOR_WORK_ALONE
  LuattnPaging paging;
};
struct LuattnWeightParams : LuattnPagedParams {
  ABI_FOR_ALL
  LuattnWeights weights;
};
struct LuattnSplitListParams : LuattnWeightParams {
  ABI_FOR_WORK_ALONE
  LuattnSplitList list;
};
struct LuattnRowPassParams : LuattnSplitListParams {
  ABI_FOR_ALL
  LuattnRowPasses passes;
};
struct LuattnGridParams : LuattnRowPassParams {
  ABI_FOR_ALL
  LuattnGrid grid;
};
struct LuattnFarParams : LuattnGridParams {
  ABI_FOR_ALL
  LuattnFarPlaces far;
};
/* Over a grid, with tangents. */
struct LuattnGridTangentParams : LuattnGridParams {
  ABI_FOR_ALL
  LuattnTangents tangents;
  LuattnTangentMods tangent_mods;
  LuattnTangentSteps tangent_steps;
};
/* With tangents, which come with none of what comes after random numbers. */
struct LuattnTangentParams : LuattnRandomParams {
  ABI_FOR_ALL
  LuattnTangents tangents;
};
struct LuattnTangentModParams : LuattnTangentParams {
  LuattnTangentMods tangent_mods;
};
/* Of luattn_append, where it applies mods: what hooks read, which is of the keys' lengths and inputs alone. */
struct LuattnAppendParams : LuattnPagedParams {
  LuattnAppend append;
};
#endif

/* The same as the host fills it: one block of named members, of which a kernel takes the beginning, through the last
 * member of its struct. Assertions at the end of this file compare the two. */
#ifndef __CUDACC__
typedef struct LuattnGridTangents {
  LuattnTangents tangents;
  LuattnTangentMods mods;
  LuattnTangentSteps steps;
} LuattnGridTangents;
typedef struct LuattnCallParams {
  LuattnParams dense;
  LuattnPacked packed;
  LuattnOffsets offsets;
  LuattnTileBits bits;
  LuattnTileOrder tile_order;
  LuattnTileTable table;
  LuattnUsed used;
  LuattnRandom random;
  union {
    __extension__ struct {
      LuattnSplits splits;
      LuattnPaging paging;
      union {
        __extension__ struct {
          LuattnWeights weights;
          LuattnSplitList list;
          LuattnRowPasses passes;
          LuattnGrid grid;
          union {
            LuattnFarPlaces far;
            LuattnGridTangents grid_tangents; /* of kernels with tangents over a grid, which have no far places */
          };
        };
        LuattnAppend append; /* of luattn_append, which has none of these */
      };
    };
    __extension__ struct { /* of kernels with tangents, which have none of these either */
      LuattnTangents tangents;
      LuattnTangentMods tangent_mods;
    };
  };
} LuattnCallParams;

#define LUATTN_AT(member) __builtin_offsetof(LuattnCallParams, member)
/* The bytes of a kernel's parameters whose last member is this one. */
#define LUATTN_PARAMS_THROUGH(member) (LUATTN_AT(member) + sizeof(((LuattnCallParams *)0)->member))
#endif

/* A TMA descriptor, as cuTensorMapEncodeTiled writes it. Its axes are channel, position, head and batch. The
 * kernels of the sm90 family take their descriptors as second parameter. */
typedef struct LuattnTensorMap {
#ifdef __cplusplus
  alignas(64) unsigned char bytes[128];
#else
  _Alignas(64) unsigned char bytes[128];
#endif
} LuattnTensorMap;

typedef struct LuattnTensorMaps {
  /* Boxes of 64 channels, swizzled by 128 bytes, by tile_n positions (k, v), 64 (q of a forward kernel), 16 (its o) and
   * tile_m (q and dout of a backward kernel). */
  LuattnTensorMap q, k, v;
  union {
    LuattnTensorMap o, dout; /* o in forward, dout in backward */
  };
} LuattnTensorMaps;

/* Those of a forward kernel over keys in pages. `usual` has k and v as packed rows, for boxes that an entry's end may
 * cut. A box that it does not takes less time to issue from k_whole or v_whole, with the axes channel, row of a box,
 * and steps, which lead to each row of each page of each head. */
typedef struct LuattnPagedMaps {
  LuattnTensorMaps usual;
  LuattnTensorMap k_whole, v_whole;
} LuattnPagedMaps;

/* Those of a forward kernel with tangents, which stores its results from registers. A tensor without a tangent has no
 * descriptor of one. */
typedef struct LuattnTangentMaps {
  LuattnTensorMap q, k, v, q_tangent, k_tangent, v_tangent;
} LuattnTangentMaps;

/* An image records that it was built for LUATTN_PARAMS_VERSION; these assertions pin that layout, as far as
 * the host can. */
#ifndef __CUDACC__
ABI_ASSERT(LUATTN_AT(dense.shape) == 0 && LUATTN_AT(dense.schedule) == 24 && LUATTN_AT(dense.scale) == 32 &&
               LUATTN_AT(dense.order) == 40 && LUATTN_AT(dense.tensors) == 112 && LUATTN_AT(dense.scratch) == 536 &&
               LUATTN_AT(dense.inputs) == 680,
           "what lies before the end has another place: append instead, or take another LUATTN_PARAMS_VERSION");
ABI_ASSERT(LUATTN_AT(packed) == LUATTN_PARAMS_THROUGH(dense) && LUATTN_AT(offsets) == LUATTN_PARAMS_THROUGH(packed) &&
               LUATTN_AT(bits) == LUATTN_PARAMS_THROUGH(offsets) &&
               LUATTN_AT(tile_order) == LUATTN_PARAMS_THROUGH(bits) &&
               LUATTN_AT(table) == LUATTN_PARAMS_THROUGH(tile_order) &&
               LUATTN_AT(used) == LUATTN_PARAMS_THROUGH(table) && LUATTN_AT(random) == LUATTN_PARAMS_THROUGH(used) &&
               LUATTN_AT(splits) == LUATTN_PARAMS_THROUGH(random) &&
               LUATTN_AT(paging) == LUATTN_PARAMS_THROUGH(splits) &&
               LUATTN_AT(weights) == LUATTN_PARAMS_THROUGH(paging) &&
               LUATTN_AT(list) == LUATTN_PARAMS_THROUGH(weights) && LUATTN_AT(passes) == LUATTN_PARAMS_THROUGH(list) &&
               LUATTN_AT(grid) == LUATTN_PARAMS_THROUGH(passes) && LUATTN_AT(far) == LUATTN_PARAMS_THROUGH(grid) &&
               LUATTN_AT(append) == LUATTN_AT(weights) && LUATTN_AT(tangents) == LUATTN_AT(splits),
           "a part has padding of its own");
ABI_ASSERT(LUATTN_PARAMS_THROUGH(append) <= 4096 && LUATTN_AT(tangent_mods) == LUATTN_PARAMS_THROUGH(tangents) &&
               LUATTN_AT(grid_tangents) == LUATTN_AT(far) && LUATTN_PARAMS_THROUGH(grid_tangents) <= 4096 &&
               (LUATTN_PARAMS_THROUGH(tangent_mods) + 63) / 64 * 64 + sizeof(LuattnTangentMaps) <= 4096 &&
               (LUATTN_PARAMS_THROUGH(paging) + 63) / 64 * 64 + sizeof(LuattnPagedMaps) <= 4096 &&
               (LUATTN_PARAMS_THROUGH(far) + 63) / 64 * 64 + sizeof(LuattnTensorMaps) <=
                   4096, /* nor decode kernels nor luattn_prepare have TMA descriptors */
           "a driver before CUDA 12.1 gives a kernel 4096 bytes of parameters");
#endif
ABI_ASSERT(sizeof(LuattnShape) == 24 && sizeof(LuattnSchedule) == 8 && sizeof(LuattnOrder) == 72 &&
               sizeof(LuattnTensors) == 424 && sizeof(LuattnScratch) == 144 && sizeof(LuattnInputs) == 1240,
           "a struct that is there has another size: append another one instead");

/* The kernels' structs have no padding of their own (every kernel compiles this), and end where the host's block says
 * (as C++ on the host does, in tests). */
#ifdef __cplusplus
#ifdef __CUDACC__
#define LUATTN_ENDS(type, before, bytes, member) \
  ABI_ASSERT(sizeof(type) == sizeof(before) + (bytes), "a part has padding of its own")
#else
#define LUATTN_ENDS(type, before, bytes, member)                                                        \
  ABI_ASSERT(sizeof(type) == sizeof(before) + (bytes) && sizeof(type) == LUATTN_PARAMS_THROUGH(member), \
             "the kernels' struct has padding of its own, or the host's block another layout")
#endif
LUATTN_ENDS(LuattnPackedParams, LuattnParams, sizeof(LuattnPacked), packed);
LUATTN_ENDS(LuattnOffsetParams, LuattnPackedParams, sizeof(LuattnOffsets), offsets);
LUATTN_ENDS(LuattnTileBitsParams, LuattnOffsetParams, sizeof(LuattnTileBits) + sizeof(LuattnTileOrder), tile_order);
LUATTN_ENDS(LuattnPackedTileParams, LuattnTileBitsParams, sizeof(LuattnTileTable) + sizeof(LuattnUsed), used);
LUATTN_ENDS(LuattnRandomParams, LuattnPackedTileParams, sizeof(LuattnRandom), random);
LUATTN_ENDS(LuattnSplitsParams, LuattnRandomParams, sizeof(LuattnSplits), splits);
LUATTN_ENDS(LuattnPagedParams, LuattnSplitsParams, sizeof(LuattnPaging), paging);
LUATTN_ENDS(LuattnWeightParams, LuattnPagedParams, sizeof(LuattnWeights), weights);
LUATTN_ENDS(LuattnSplitListParams, LuattnWeightParams, sizeof(LuattnSplitList), list);
LUATTN_ENDS(LuattnRowPassParams, LuattnSplitListParams, sizeof(LuattnRowPasses), passes);
LUATTN_ENDS(LuattnGridParams, LuattnRowPassParams, sizeof(LuattnGrid), grid);
LUATTN_ENDS(LuattnFarParams, LuattnGridParams, sizeof(LuattnFarPlaces), far);
LUATTN_ENDS(LuattnTangentParams, LuattnRandomParams, sizeof(LuattnTangents), tangents);
LUATTN_ENDS(LuattnTangentModParams, LuattnTangentParams, sizeof(LuattnTangentMods), tangent_mods);
LUATTN_ENDS(LuattnGridTangentParams, LuattnGridParams,
            sizeof(LuattnTangents) + sizeof(LuattnTangentMods) + sizeof(LuattnTangentSteps), grid_tangents);
LUATTN_ENDS(LuattnAppendParams, LuattnPagedParams, sizeof(LuattnAppend), append);
#undef LUATTN_ENDS
#endif

#endif
