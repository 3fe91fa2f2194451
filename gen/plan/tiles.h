/* tiles.h: a plan, and the arithmetic of its tiles, which the kernel headers repeat. A plan is data: what is
 * lowered and printed depends on it only. */
#ifndef LUATTN_GEN_TILES_H
#define LUATTN_GEN_TILES_H

#include "abi/kernel_facts.h"
#include "abi/manifest.h"
#include "gen/analysis/analysis.h"

typedef struct plan_entry {
  const char *name; /* "luattn_fwd" */
  luattn_role role;
  int threads, shared_bytes, tile_m, tile_n;
} plan_entry;

typedef struct plan {
  /* What the target asks for, by the names that it has there, with defaults filled in. 0 where it does not change the kernel. */
#define TARGET_FACT(name, type, range, expected, key) OF_KEY(key, type name;)
#include "abi/kernel_facts.def"
  luattn_family family;
  int arch;
  char arch_suffix; /* 'a' or 0 */
  int tile_m, tile_n, stages, threads;
  int sm80_warps_n, sm80_chunk_m; /* backward of the sm80 family */
  bool accumulates_dq, fast_math, deterministic;
  bool small_pages; /* the family is sm80 because pages may have any size */
  bool merges; /* parts of a row are computed apart, and merged: spec.cuh has struct Merge */
  int keep; /* dropout: traced_online.keep */
  bool draws; /* spec_draws */
  bool dq_first_store; /* the first kv tile of a q tile stores dq_acc */
  bool rounds; /* deterministic, and the spec has gradients of inputs or scalars that are wanted */
  const char *template_file; /* entry file among the templates: "entry/fwd_simt.cu" */
  int num_entries;
  plan_entry entry[MANIFEST_MAX_ENTRIES]; /* in launch order */
  const char *why;                        /* one fact a line */

  bool forced;       /* the target named a tile, or all of `tiles` */
  bool picked;       /* the target named all of `tiles` */
  bool by_cells, by_query_blocks, by_narrow_blocks; /* as luattn_spec, if kernels may read tile bits */
  bool softcap_poly; /* planned for the soft cap's polynomial fast path (gen/lower/softcap_poly.c) */
  bool no_bias_rows; /* no bias rows are staged ahead of scores (gen/lower/early_terms.c) */
  bool may_fall_back; /* another family's tiles may be tried after this family's */
  bool fallback;     /* the family is not the one that the target and the head dims ask for */
  int rank;          /* 0: the first choice; larger: tried when registers do not suffice */
  int shared_limit;  /* most bytes of a block */
} plan;

luattn_tiles plan_tiles(const plan *p);
bool plan_same_tiles(const luattn_tiles *a, const luattn_tiles *b);

/* What a lowered spec keeps in shared memory: bytes of struct Row (0: empty) and of struct BwdRow, elements
 * of Acc, stats. */
typedef struct plan_rows {
  int row_bytes, bwd_row_bytes, num_acc, num_stats;
  int bias_row_bytes; /* element size of the staged bias row; 0: none */
  int col_bytes;      /* of struct Col, if scores read nothing else from memory and it is a multiple of 4;
                       * else 0 */
  const mask_info *mask;           /* NULL: all tiles are computed */
  const mask_evaluated *evaluated; /* the mask is evaluated for cells; or NULL */
  int evaluated_cost; /* instructions of an evaluation, roughly */
  bool skips;         /* tiles in which P vanishes */
  bool sums_distances;    /* a parameter gradient is computed from sums of dS by distance (SUM_DISTANCE) */
  bool has_distance_term; /* kept in shared memory in the simt family (simt/tile_products.cuh,
                           * DistanceTable) */
} plan_rows;

/* How many inlined copies of a hook the code has. The main kernel has one for each score, row or column that
 * it unrolls over; the other kernels have one for each element of q, k or v that a thread accesses at once.
 * Code that is compiled with and without a mask counts once. */
typedef struct plan_copies {
  int element, row, col, mod;
  int col_apart; /* of col where scores read numbers of keys that are not staged: sm90 forward; else as col */
} plan_copies;
/* Whether kernels may read tile bits: those are of tensors that are the whole. Decode has too few queries to pay for them. */
bool tiles_may_have_bits(const plan *p);
/* Whether the tiles of a walk, and of its other side where the mask differs there, are made of whole cells or lie inside
 * of one, and likewise for the blocks on which masks are constant, powers of two as a rule: else a tile is computed for a
 * part of a block. */
bool tiles_suit_cells(const plan *p);
plan_copies tiles_copies(const plan *p);

int tiles_shared_bytes(const plan *p, luattn_role role, const plan_rows *rows);
/* Whether bias rows fit next to these tiles of the sm90 forward (templates/sm90/fwd/bias_staging.cuh). */
bool tiles_have_bias_rows(const plan *p, const plan_rows *rows);
/* Whether columns do. */
bool tiles_have_columns(const plan *p, const plan_rows *rows);
int tiles_least_shared_of(const plan *p, const plan_rows *rows); /* the least shared memory of all kernels of
                                                                  * the pass */
/* The padded widths of the sm90 family's products, as bits; of O. */
unsigned tiles_product_widths(const plan *p);
unsigned tiles_o_widths(const plan *p);
int tiles_least_shared(const plan *p); /* of the largest kernel, for a spec that keeps as much as softmax */
int tiles_shared_limit(int arch);      /* 0: unknown architecture */
bool tiles_wide(const plan *p);        /* the sm90 family's backward for head dims above 128 */
bool tiles_d256(const plan *p);        /* its kernel of four warpgroups, with tiles of 64 x 64: for these, and below for hooks that need
                                        * more registers than the other leaves */
int tiles_walk_columns(const plan *p); /* kv positions of a tile of the main kernel's walk; queries: tile_m */
int tiles_sm90_threads(const plan *p); /* of p's tiles */
luattn_status tiles_check(const plan *p, luattn_error *err); /* whether the family can run these tiles at
                                                              * all */

/* Whether luattn_prepare computes block minima and maxima, so that there is no luattn_stats. read_before: a
 * kernel before it reads them. */
bool tiles_prepares_stats(const plan *p, bool read_before);

#endif
