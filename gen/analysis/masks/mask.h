/* mask.h: where the mask of a spec is empty or full, prepared for tile skipping: ranges in closed form, block statistics,
 * classes by intervals. */
#ifndef LUATTN_GEN_MASK_H
#define LUATTN_GEN_MASK_H

#include "gen/ir/interval.h"
#include "gen/spec.h"

/* A mask prepared for code generation. Ranges are in closed form: the kept kv of rows [q0, q1] lie
 * in [kv_lo, kv_hi), expressions of the interval's ends that hold for every tile. */
#define VAR_Q0 0 /* indices of VAR_TILE in range expressions: the tile's inclusive bounds */
#define VAR_Q1 1
#define VAR_KV0 2
#define VAR_KV1 3
#define MASK_AXIS_ENDS 4 /* of axis a of a grid: from MASK_AXIS_ENDS * a on */
/* An input of 32-bit integers that the mask reads at exactly q_idx or kv_idx along its last axis; its other
 * axes are constant per head. */
typedef struct mask_stat {
  int input, axis;
  bool along_q;
  bool is_set; /* which numbers a block has, by their remainders by 64, a bit each, in place of minima and maxima: of
                * numbers that are compared for equality, as documents are, which need not lie together */
} mask_stat;
/* Masks with at least this period are treated as grids: kernels build one range of bits per grid row instead
 * of testing each remainder. Must match short_period in templates/score/mask_intervals.cuh. */
#define MASK_GRID 16
/* Mask intervals (mask_intervals.c): the kv that a row keeps, or the q that a column keeps. Kept positions
 * lie in [lo[0], hi[0]) or, with two intervals, in [lo[1], hi[1]); IR_NONE: no bound. If period > 0, only
 * those whose remainder modulo the period lies in [rest_lo, rest_hi), which may reach outside [0, period).
 * INT expressions of the variables that tile ranges use, and of VAR_TILE[VAR_Q0] = q of a row or
 * VAR_TILE[VAR_KV0] = kv of a column. apart: valid only in tiles that mask_info.rest keeps entirely. */
typedef struct mask_intervals {
  int count; /* number of intervals; 0: unknown */
  bool apart;
  int period;
  ir_ref lo[2], hi[2], rest_lo, rest_hi;
} mask_intervals;

/* A mask from data, or of arithmetic that has no bounds (evaluated.c): where ranges and block minima do not decide the
 * classes of tiles, a kernel evaluates the mask for each cell of MASK_CELL x MASK_CELL scores
 * (templates/around/before/tile_bits.cuh). */
#define MASK_CELL 64
typedef struct mask_evaluated {
  bool is;
  bool by_batch, by_head; /* it differs between batch entries, between heads */
  int rows, columns; /* its part that reads data (mask_info.rest, or all of keep) is constant on aligned blocks of so
                      * many queries by so many keys: powers of two up to MASK_CELL */
  bool by_query;     /* that part differs between queries */
  ir_ref why; /* the load that ranges and minima do not decide; IR_NONE: arithmetic on positions, as a hash of them */
  uint32_t inputs, scalars; /* which it reads, a bit each */
  bool reads_heads;         /* the numbers of heads */
  bool has_reals;           /* it computes with real numbers, for which float64 kernels have another precision */
  ir_ref cell; /* keep, whose parts with loads that are constant on cells are of VAR_TILE, the cell's first position:
                * its bounds over a cell may decide that. IR_NONE: there are no such parts, or no others */
  bool has_narrow_blocks; /* its part that reads data is constant on blocks of MASK_CELL keys, and no more */
} mask_evaluated;

/* A mask along an axis of a grid. The ends of a box along it are VAR_TILE[MASK_AXIS_ENDS * a + VAR_Q0] and so on. */
typedef struct mask_axis {
  ir_ref kv_lo, kv_hi, q_lo, q_hi; /* as those of mask_info, of what the mask is where other axes may have any places */
  mask_intervals rows, columns;    /* exact, if the mask is a product of axes; count 0: unknown */
  int step; /* its dilation: a query keeps keys alone whose distance is a multiple of it, so boxes take every step-th
             * place. Of such places the ranges and intervals above are. 1: none */
  bool asks_step; /* it has a dilation by what is no constant, of which boxes know nothing */
} mask_axis;
#define MASK_STEP_MAX 32767 /* an axis has no more places */

typedef struct mask_info {
  ir_ref keep; /* simplified predicate; IR_NONE: no mask */
  /* INT, of VAR_B, VAR_H, lengths, scalars, loads at those, and VAR_TILE; IR_NONE: no bound. They may lie
   * outside the lengths. kv_lo, kv_hi read VAR_TILE[VAR_Q0 / VAR_Q1]; q_lo, q_hi read VAR_TILE[VAR_KV0 /
   * VAR_KV1]. */
  ir_ref kv_lo, kv_hi, q_lo, q_hi;
  mask_intervals rows, columns;
  ir_ref rest, bounds; /* the conjuncts of keep that rows.apart leaves out, and the others; IR_NONE: not
                        * split */
  mask_evaluated evaluated;
  int num_stats;
  mask_stat stat[8];
  int num_axes; /* of a grid of several axes, which has what follows, and of all above `keep` alone; else 0 */
  mask_axis axis[LUATTN_MAX_AXES];
  bool is_product;  /* a conjunction of masks along one axis each */
  ir_ref within;    /* keep without what steps say, which kernels ask of boxes that have them; IR_NONE: nothing */
  int64_t max_len;  /* see luattn_kernel_description.max_len */
  ir_ref too_large; /* if max_len is below 1: the node whose value exceeds 32 bits, */
  double largest;   /* and the largest value */
  const char *how;  /* for `luattn emit --stage mask`: describes the result */
} mask_info;

/* The number of the stat that is like this one; -1: there is none. */
int mask_find_stat(const mask_info *m, mask_stat like);
mask_intervals mask_rows_of(ir *g, ir_ref keep, ir_ref *bounds, ir_ref *rest);
mask_intervals mask_columns_of(ir *g, ir_ref keep, ir_ref rest);
/* Fills m->evaluated, from keep, rest and the stats. false: out of memory. */
bool mask_find_evaluated(arena *a, const traced_spec *t, mask_info *m);
/* Whether ranges and bounds leave many empty tiles of a mask that is constant on aligned blocks of rows x columns
 * (mask_trial.c). false: out of memory. */
bool mask_trial(arena *a, const traced_spec *t, const mask_info *m, int rows, int columns, bool *wasteful);
/* Whether the mask reads an input of bytes with four axes, as a table of blocks may be (luattn_block_table). */
bool mask_reads_table(const traced_spec *t, const mask_evaluated *e);
/* Fills num_axes, axis, is_product and within, from keep. false: out of memory. grid_mask.c */
bool mask_find_axes(arena *a, const traced_spec *t, mask_info *m);
/* Whether boxes step along an axis. */
bool mask_steps(const mask_info *m);
luattn_status mask_analyse(arena *a, const traced_spec *t, mask_info *out, luattn_error *err);

/* The same predicate, simplified by its own conditions (assume.c). */
ir_ref mask_assume(ir *g, ir_ref keep);
/* Simplifies r given that `keep` holds: abs(x) of an integer is x or -x where a comparison of `keep` implies
 * the sign. */
ir_ref mask_implied(ir *g, ir_ref keep, ir_ref r);

/* Class of one tile on the CPU (0 empty, 1 partial, 2 full), bounds inclusive and inside the lengths. `load`
 * bounds the inputs that the mask reads. scratch: ir_count entries. */
int mask_tile_class(const ir *g, const mask_info *m, const ir_bounds_env *env, ir_bounds *scratch);

#endif
