/* family.h: a plan, and what its kernel family knows. Each family is a file of this folder, the rows of a table: what
 * it can run, its tiles and their arithmetic, which the kernel headers repeat, its thresholds, and the facts that
 * lowering, printing and the manifest ask for. Nobody else compares families: a new one is a file here, a row in
 * families.def, and a folder of templates/.
 *
 * luattn_family, which callers, images and packs have, knows three. More are kernels of one of those for few
 * queries (decode), for weights, for tangents (jvp), and for large head dims in backward (d256). */
#ifndef LUATTN_GEN_FAMILY_H
#define LUATTN_GEN_FAMILY_H

#include "abi/kernel_facts.h"
#include "abi/manifest.h"
#include "abi/shared_memory.h"
#include "gen/analysis/masks/mask.h"

typedef struct plan_entry {
  const char *name; /* "luattn_fwd" */
  luattn_role role;
  int threads, shared_bytes, tile_m, tile_n;
} plan_entry;

/* A plan is data: what is lowered and printed depends on it only. */
typedef struct plan {
  /* What the target asks for, by the names that it has there, with defaults filled in. 0 where it does not change the
   * kernel. */
#define TARGET_FACT(name, type, range, expected, key) OF_PLAN(key, type name;)
#include "abi/kernel_facts.def"
  const struct family *family;
  int arch;
  char arch_suffix; /* 'a' or 0 */
  int tile_m, tile_n, stages, threads;
  int sm80_warps_n, sm80_chunk_m; /* backward of the sm80 family */
  bool deterministic;
  bool merges;          /* spec.cuh has struct Merge */
  bool small_pages;     /* the family is sm80 because pages may have any size */
  int keep;             /* dropout: traced_online.keep */
  bool draws;           /* spec_draws */
  unsigned tangents_of; /* beside tangents: bits of q, k and v that have some behind their mods */
  unsigned mod_values; /* beside tangents, backward: of those whose gradients luattn_finish needs with their tangents */
  bool has_mods;       /* of q, k or v */
  bool has_parameters; /* gradients of inputs or scalars are wanted */
  int axes;            /* of the spec's grid; 0: positions lie along a line */
  int step[LUATTN_MAX_AXES]; /* of boxes along its axes: luattn_spec.step, 1 where there is none */
  bool dq_first_store;       /* the first kv tile of a q tile stores dq_acc */
  bool rounds;               /* deterministic, and the spec has gradients of inputs or scalars that are wanted */
  int num_entries;
  plan_entry entry[MANIFEST_MAX_ENTRIES]; /* in launch order */
  const char *why;                        /* one fact a line */

  bool forced;                                      /* the target named a tile, or all of `tiles` */
  bool picked;                                      /* the target named all of `tiles` */
  bool by_cells, by_query_blocks, by_narrow_blocks; /* as luattn_spec, if kernels may read tile bits */
  bool learns_displacements;                        /* as luattn_spec, of a backward that wants it */
  bool by_block_bounds;                             /* as luattn_spec */
  int phase[LUATTN_MAX_AXES];                       /* places before the first one at which boxes of queries begin */
  bool softcap_poly;  /* planned for the soft cap's polynomial fast path (gen/lower/softcap_poly.c) */
  bool no_bias_rows;  /* no bias rows are staged ahead of scores (gen/lower/early_terms.c) */
  bool may_fall_back; /* another family's tiles may be tried after this family's */
  bool fallback;      /* the family is not the one that the target and the head dims ask for */
  int rank;           /* 0: the first choice; larger: tried when registers do not suffice */
  int shared_limit;   /* most bytes of a block */
} plan;

/* What a lowered spec keeps in shared memory: bytes of struct Row (0: empty) and of struct BwdRow, elements
 * of Acc, stats. */
typedef struct plan_rows {
  int row_bytes, bwd_row_bytes, num_acc, num_stats;
  int bias_row_bytes;              /* element size of the staged bias row; 0: none */
  int col_bytes;                   /* of struct Col, if scores read nothing else from memory and it is a multiple of 4;
                                    * else 0 */
  const mask_info *mask;           /* NULL: all tiles are computed */
  const mask_evaluated *evaluated; /* the mask is evaluated for cells; or NULL */
  int evaluated_cost;              /* instructions of an evaluation, roughly */
  bool skips;                      /* tiles in which P vanishes */
  bool sums_distances;             /* a parameter gradient is computed from sums of dS by distance (SUM_DISTANCE) */
  bool has_distance_term;          /* kept in shared memory in the simt family (simt/tile_products.cuh,
                                    * DistanceTable) */
  bool has_displacement_term;      /* over a grid, in the sm90 family (templates/score/displacement_terms.cuh) */
} plan_rows;

/* How many inlined copies of a hook the code has. The main kernel has one for each score, row or column that
 * it unrolls over; the other kernels have one for each element of q, k or v that a thread accesses at once.
 * Code that is compiled with and without a mask counts once. */
typedef struct plan_copies {
  int element, row, col, mod;
  int col_apart; /* of col where scores read numbers of keys that are not staged: sm90 forward; else as col */
} plan_copies;

/* A row of a table of tiles, for head dims up to max_dim and shared memory of these classes: the first choice first,
 * then those that need fewer registers. */
enum {
  SMALL = 1,
  MIDDLE = 2,
  LARGE = 4,
  ANY = 7,       /* 99, 163, 227 KB */
  NOT_SHORT = 8, /* not for short lengths with a mask, nor few rows of decode */
  MANY_ROWS = 16 /* of luattn_target.many_rows alone */
};
typedef struct tile_row {
  int classes, max_dim;
  luattn_tiles choice;
} tile_row;
typedef struct tile_table {
  const tile_row *row;
  int count;
} tile_table;
#define TILE_TABLE(rows) ((tile_table){rows, (int)(sizeof rows / sizeof rows[0])})
enum { PLAN_MAX_CANDIDATES = 64, FAMILY_MAX_PREFERRED = 2 };

/* Code that a spec adds to a kernel without hooks. */
typedef enum work_kind {
  WORK_INLINED, /* hooks, times their copies */
  WORK_FETCHED, /* inlined sines of keys in producers of the sm90 forward */
  WORK_CALLED,  /* hooks out of line */
  WORK_CALLS,   /* arguments of calls, times the calls' copies */
  WORK_SUMMED,  /* gradients that are added to sums in registers */
  WORK_ADDED,   /* gradients that are added to memory */
  WORK_SUMS,    /* gradients made from sums of dS */
  WORK_FLUSHED, /* sums of a block, which it adds to memory at its end */
  WORK_BOUNDS,  /* operations that are bounded over tiles */
  WORK_BITS,    /* bit operations among them, of numbers that may need 64 bits */
  WORK_SLOTS,   /* numbers of rows and columns that a thread holds */
  WORK_ONCE,    /* code with one copy: numbers of a head, prepare, ranges */
  WORK_KINDS
} work_kind;
typedef struct compile_work {
  double of[WORK_KINDS]; /* instructions, roughly */
  int head_arguments;    /* numbers of a head that one call hands on: the most of all called hooks */
  double reads;      /* the square of what a called function reads from inputs, in hundreds, of all of them together */
  double positions;  /* numbers of a row and of a column that have slots and are not handed on, beside calls */
  double beside;     /* slots that inlined code fills, times arguments of calls, in thousands of both */
  bool is_evaluated; /* the mask is evaluated for cells, by a kernel of its own */
  uint32_t line;     /* the line of the spec that adds most; 0: none */
  double share;      /* that line's share of the work */
} compile_work;
/* What 1000 instructions of a kind add to the time to compile `causal` (policy.c), and the square of that number. of:
 * inlined, fetched, called, calls, summed, added, sums, flushed, bounds, bits, slots, once. */
typedef struct compile_weights {
  double of[WORK_KINDS];
  double square[WORK_KINDS]; /* slots: of kernels without calls */
  double reads;     /* of the square of what a called function reads: 8 heads' biases in a layer of 48 are 440 numbers,
                     * which take sm80's forward 9.6 times as long as `causal`, and those of 24 a third of that */
  double positions; /* of the square of the numbers of a row and a column, in hundreds, beside calls: 60, 90 and 121 of
                     * each take sm80's forward 6, 11 and 18 times as long */
  double beside;    /* of slots that inlined code fills, beside calls */
  double evaluated; /* the kernel that evaluates a mask for cells */
} compile_weights;

/* What of a spec takes a thread's registers. */
typedef struct crowding {
  bool calls, mask_by_zero, has_pairs;
} crowding;

/* Thresholds that were measured; policy.h says what each decides, and the families why. NULL: none. */
typedef struct family_thresholds {
  compile_weights compile;
  double (*beside_calls)(const plan *p, const compile_work *w); /* what calls hand on, in the estimate; NULL: nothing */
  bool (*is_crowded)(const plan *p, const plan_rows *rows, const crowding *by);
  int (*spills_accepted)(const plan *p, const plan_rows *rows, int next_to_hooks); /* NULL: 64 beside hooks */
  int (*tiles_skipped)(const plan *p, int spills);
  bool (*surely_spills)(const plan *p, const compile_work *w);
  bool (*lacks_registers)(const plan *p, const compile_work *w);
  int (*left_out_passes)(const plan *p, bool is_grid, const char **out);
  int bias_rows_spill; /* staged bias rows that spill more bytes are given up; 0: never */
} family_thresholds;

/* The extents of a pair of boxes over a grid, the innermost axis last; of unused axes, which come first, 1. */
typedef struct box_extents {
  int q[LUATTN_MAX_AXES], kv[LUATTN_MAX_AXES];
} box_extents;

/* A family's main kernel of a pass. */
typedef struct family_kernel {
  const char
      *file; /* entry file among the templates: "entry/fwd_simt.cu"; NULL: the family has no kernel of this pass */
  const char *entry; /* of a forward image: "luattn_fwd" */
  tile_table (*tiles)(const plan *p);
  int (*preferred)(const plan *p, luattn_tiles out[FAMILY_MAX_PREFERRED]); /* tiles before the table's, of some specs */
  int (*box_pairs)(const plan *p,
                   const box_extents **pairs);              /* over a grid, those that calls choose from, at most three;
                                                               * NULL: the boxes of tiles alone */
  int (*candidates)(luattn_tiles out[PLAN_MAX_CANDIDATES]); /* what tuning tries; NULL: steps from the table's best */
  int (*threads)(const plan *p);                            /* of these tiles; NULL: what the table says */
  luattn_status (*check)(const plan *p, luattn_error *err); /* whether it can run these tiles at all */
  bool (*suits)(const plan *p);                             /* what check leaves to the kernel's own assertions */
  bool (*fits_registers)(const plan *p); /* accumulators and operands of a thread; NULL: hooks decide */
  int (*shared_bytes)(LayoutSizes s);
  int (*static_bytes)(const plan *p, const plan_rows *rows); /* beside those: sums of gradients; NULL: none */
  plan_copies (*copies)(const plan *p);                      /* but for mod; col_apart 0: as col */
  unsigned (*product_widths)(const plan *p); /* the padded widths of products, as bits; NULL: all are defined */
  unsigned (*o_widths)(const plan *p);       /* of O */
  const struct family *falls_back_to;        /* for hooks that leave its products too few registers */
  const family_thresholds *measured;

  bool takes_chunks;              /* enters the chunk of each tile (LUATTN_OFFSET_CHUNKS) */
  bool sums_no_chunks;            /* but has no sums of gradients over tiles of several chunks */
  bool steps_of_16;               /* tuning steps columns by 16, and rows by 64 */
  bool accumulates_dq;            /* backward adds up dQ beside dK and dV; else it has a kernel of its own */
  bool free_boxes;                /* over a grid, boxes of keys begin where the range of a box of queries does */
  bool splits;                    /* a launch may split the work of a tile among blocks */
  bool draws_tiles;               /* blocks take tiles from a counter where tiles differ in work */
  bool pairs_tiles;               /* blocks share a kv tile in pairs */
  bool prepares_stats;            /* luattn_prepare computes block minima and maxima */
  bool stores_dq_first;           /* the first kv tile of a q tile can store dQ */
  bool stages_spill_alike;        /* as many prefetch addresses with one stage as with two */
  bool rescales_lazily;           /* O is rescaled only where the maximum has grown (gen/lower/probe.c) */
  bool shifts_rows;               /* row_shift.c */
  bool has_polynomials;           /* softcap_poly.c */
  bool fetches_columns;           /* producer warps, which have few registers, compute the hook col */
  bool has_distance_terms;        /* keeps terms by distance in a table; rows of a tile of decode have too many */
  bool has_displacement_terms;    /* over a grid: those of a pair of boxes, in a table */
  bool shares_multiprocessor;     /* with other blocks: a table must leave room for as many */
  bool keeps_displacements_twice; /* that table, for loads of pairs (TwiceInTable there) */
  bool (*sums_displacements)(
      const plan *p);      /* over a grid: dS, for gradients that depend on nothing else; NULL: never */
  bool has_lane_sums;      /* sums of gradients for which registers are too few are left to lanes */
  bool reads_query_lists;  /* a list of a query is read once for keys of one block */
  bool masks_without_row;  /* columns are queries, and a mask needs no Row */
  bool keeps_places;       /* backward over a grid: makes bits of what keys keep along each axis */
  bool regroups_all_masks; /* in tiles kept in part, flags and runs are read together whatever the mask */
  bool sums_in_small_warp; /* dS is summed in a warp with few registers */
} family_kernel;

/* What is the same in all passes of a family. */
struct family {
  luattn_family id;                       /* as callers and images know it */
  const char *says;                       /* its products */
  const char *before;                     /* a line of the plan before all others; NULL: none */
  unsigned dtypes;                        /* bits 1 << luattn_dtype */
  unsigned grid_dtypes;                   /* the same over a grid of several axes; 0: it has no kernels over one */
  int arch;                               /* the one that it has kernels for; 0: all */
  bool (*is_for)(const luattn_target *t); /* of a call of this kind alone; NULL: of any other */
  luattn_status (*check_target)(const luattn_target *t, luattn_error *err); /* what such a call lacks; NULL: nothing */
  luattn_status (*can_run)(const plan *p, luattn_error *err);               /* besides types; NULL: all */
  bool (*takes_tiles)(
      const plan *p); /* whether it, of the families with its id, has the kernel of p's tiles; NULL: it has all */
  const char *(*note)(arena *a,
                      const plan *p); /* a line of why not a faster family, "" where there is none; NULL: never */
  family_kernel kernel[KERNEL_PASSES];

  int page_multiple; /* 8: pages of multiples of 8 rows are read by TMA, in boxes; 1: pages of any size, row by row */
  bool fast_math;
  bool merges;                /* parts of a row are computed apart, and merged. Its rows are query
                               * heads of a kv head, too few to pay for tile bits */
  bool writes_weights;        /* those of V in place of O */
  bool takes_tangents;        /* of calls with tangents, which no other family has */
  bool lists_tiles;           /* tiles of packed sequences come from a table */
  bool skips_tiles;           /* tiles in which P vanishes (tile_skipping.c) */
  bool stages_bias_rows;      /* ahead of scores (early_terms.c) */
  bool tests_buckets;         /* whether an index is the same for all distances of a tile (tile_bounds.c) */
  bool fills_slots_apart;     /* warps that released registers fill Row and Col */
  bool groups_masks;          /* reads flags and runs of an evaluated mask together */
  bool sums_elements;         /* dS is summed for each element too */
  bool sums_diagonals_at_128; /* and along diagonals rather than for each element in tiles of 128 rows */
  bool calls_sums;            /* exact sums of gradients are called, as registers are few */
};

#define FAMILY(name) extern const struct family family_##name;
#include "gen/family/families.def"
#undef FAMILY

enum { FAMILY_HALVES = 1 << LUATTN_BF16 | 1 << LUATTN_F16, FAMILY_REALS = 1 << LUATTN_F32 | 1 << LUATTN_F64 };

/* What layouts of shared memory (abi/shared_memory.h) read. */
LayoutSizes plan_sizes(const plan *p, const plan_rows *rows);

/* The box of a tile's queries or keys over a grid: what the target asks for, or that of p->boxes among the kernel's pairs, or
 * another one of these, if it has as many rows; else extents that are powers of two. tile_boxes.c */
void family_box(const plan *p, bool keys, int box[LUATTN_MAX_AXES]);
int family_box_rows(const int box[LUATTN_MAX_AXES]);
/* Of luattn_target.query_tile_size or key_tile_size. */
void family_unpack_box(uint64_t size, int box[LUATTN_MAX_AXES]);
int family_box_pairs(const plan *p, const box_extents **pairs); /* how many */
/* Words of a table by displacement: a number for each kv - q along all axes that its pair of boxes has, in forward of sm90 twice, or
 * in backward that those of 16 keys have, with a number more along the innermost axis (templates/score/displacement_terms.cuh). */
int family_displacements(const plan *p);
const char *family_box_text(arena *a, const plan *p, const int box[LUATTN_MAX_AXES]); /* "16 x 8"; "": out of memory */

/* Chooses the family for a call, of which p is the plan so far. t->family may be unable to run it. */
const struct family *family_choose(const plan *p, const luattn_target *t);
/* The one architecture that the family of this number, 1 + luattn_family, has kernels for; 0: all, or any family. */
int family_arch(int family);
luattn_status family_can_run(const struct family *f, const plan *p, luattn_error *err);
/* Says that the family's kernels take no chunks (LUATTN_OFFSET_CHUNKS), or not in this call. */
luattn_status family_refuse_chunks(const struct family *f, const plan *p, luattn_error *err);
/* Whether families can run the calls that a target asks for. */
luattn_status family_check_target(const luattn_target *t, luattn_error *err);

/* Whether the row covers the head dims and the shared memory of a plan. */
bool family_row_suits(const tile_row *row, const plan *p);

/* Gives p the family of its tiles. */
void family_settle(plan *p);

static inline const family_kernel *plan_kernel(const plan *p) { return &p->family->kernel[p->pass]; }

#endif
