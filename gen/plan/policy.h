/* policy.h: every threshold of the generator that was measured, with its reason; bench/journal/ has the
 * measurements. Those of one family alone, and the limits that follow from a kernel's arithmetic (shared memory, shapes
 * of products), are in gen/family/. */
#ifndef LUATTN_GEN_POLICY_H
#define LUATTN_GEN_POLICY_H

#include "gen/plan/tiles.h"

enum {
  /* A slot of a row or a column is a register in every thread: fewer instructions than this are cheaper to
   * repeat. */
  POLICY_SLOT_COST = 3,
  /* The most numbers of a head that are kept in registers, or spilled around all loops. With more, what an input
   * holds is read where it is used: otherwise sm80's forward with 97 of them takes 14 times as long as
   * `causal` to compile, and now 3. */
  POLICY_HEAD_SLOTS_MAX = 64,
  /* The most inlined hook code of an image, in instructions of one copy of each loop: NVRTC takes 0.2 ms for
   * each of the sm80 forward, about a second in all. */
  POLICY_INLINED_MAX = 6000,
  /* A call with its saved and moved registers costs about half of this many instructions: shorter hooks are
   * not worth a call. */
  POLICY_OUTLINED_MIN = 32,
  /* Above this a call costs nothing in comparison, and interleaved inlined copies would need more registers
   * than there are. */
  POLICY_OUTLINED_ALWAYS = 400,
  /* A call's parameter occupies a register of every thread until the call: a number of a row or a column that
   * takes fewer instructions is recomputed in the callee. */
  POLICY_HANDED_ON_MIN = 32,
  /* A term of fewer instructions per element than this is not worth a table by distance. A memory read counts
   * as this many. */
  POLICY_LONG_TERM = 16,
  /* Of a table by displacement over a grid, the most words: 16 KB for each stage. */
  POLICY_MOST_DISPLACEMENTS = 4160,
  /* Where only keep reads Row: filling Row with more instructions than this is too expensive compared with a
   * loop over a masked tile's columns. */
  POLICY_SHORT_ROW = 48,
  /* A loop over a tile's scores has 0.7 to 0.9 of the speed at 13 instructions of keep (H200, dilated
   * window), and is faster at 14 (block diffusion). */
  POLICY_CHEAP_KEEP = 13,
  /* If dS is summed per element, the most operations of a gradient's factor that are repeated for each
   * element. */
  POLICY_FEW_OPERATIONS = 4,
  /* The most choices of tiles that are compiled for a spec, if one of them is usable; and one more of another
   * family. */
  POLICY_COMPILES_MAX = 2,
  /* What tiles that surely spill are taken to spill, in bytes. */
  POLICY_SURE_SPILLS = 1 << 12,
  /* Additional spilled bytes that bias rows in registers may cause. */
  POLICY_BIAS_ROWS_SPILL = 200,
  /* Functions with at least this many instructions are called by hooks that have many of them: sines, powers,
   * divisions in f32. NVRTC takes three times as long for 64 inlined sines in a hook as for a kernel without, 16
   * times for 200, and next to no time for calls of one. Calls are slower, but such hooks are long anyway. */
  POLICY_LONG_OP = 12,
  POLICY_CALLED_OPS_MIN = 3500,
  POLICY_CALL_COST = 7, /* NVRTC's work for such a call */
  /* NVRTC's work for an integer of 64 bits, in times of that for one of 32 bits; for a quotient or remainder of two. */
  POLICY_WIDE_INTEGER = 2,
  POLICY_WIDE_QUOTIENT = 10,
  /* The most operations of a score with bounds for tile skipping: at 600, NVRTC takes a hundred times as long
   * as for a kernel without. */
  POLICY_SKIP_BOUNDS_MAX = 48,
  /* The most operations that an initializer may reach: NVRTC's front end takes a second for tens of millions, in all
   * initializers together. At 20000 a chain of 675 remainders took it two seconds, of three in all; at 200 a tenth of
   * one. */
  POLICY_INITIALIZER_MAX = 200,
  /* Rows of the table from which tuning steps; later rows exist because they need few registers. */
  POLICY_TUNED_ROWS = 3,
};

/* Returns choice `rank` of tiles for p's family, pass, type and head dims, the best first, without checking
 * shared memory. false: there are fewer choices. */
bool policy_tiles(const plan *p, int rank, luattn_tiles *out);
/* Whether short lengths with a mask have choices of their own. */
bool policy_knows_short(const plan *p);
bool policy_knows_many_rows(const plan *p);
/* Whether tuning should compile the plan: not if it cannot fit in registers; ptxas decides in the end. */
bool policy_fits_registers(const plan *p);

/* The least entries of a list of chosen blocks that kernels read as a list: shorter ones are numbers of a row. Forward
 * has a thread's rows in registers, and compares with no memory read; in backward a row of many numbers spills. */
int policy_least_list(const plan *p);

/* Whether the first kv tile of a q tile stores dQ instead of adding it. Without a mask the kv tiles of a head
 * reach the same q tiles at the same time, and would wait for each other; with tiles of 128 queries a block
 * has finished too few of them before others arrive; and parameter gradients leave no registers for it. */
bool policy_dq_first_store(const plan *p, bool has_mask, bool has_parameters);

/* Whether a soft cap's polynomial is faster: if the exp2 unit limits the kernel, not the products of large
 * head dims (scores.md). */
bool policy_softcap_poly(const plan *p);
/* Whether to compute the soft cap's factors early: with three consumers the second row's factors are ready in
 * time, with two they are not. */
bool policy_softcap_factors_early(const plan *p);
/* Whether backward uses mask intervals instead of keep along its columns. A cheap predicate is a fiftieth to
 * a twentieth faster than two intervals or remainders (H200, Longformer, dilated window). */
bool policy_uses_column_intervals(const mask_intervals *columns, bool keep_is_cheap);
/* Whether kernels sum dS per element, too. In the simt and sm80 families grad adds terms that take a
 * multiply-add and no memory, which costs less there (sm80: 0.95 to 0.99 of the speed with products). */
bool policy_sums_elements(const plan *p);
/* Whether kernels sum dS per element even if they could sum by distance. With 64 scores per thread, ptxas
 * spills 500 bytes for sums per element, and none for sums along diagonals, which take twice the
 * instructions. */
bool policy_sums_elements_of_distances(const plan *p);

/* Whether other tiles are known to be better than these, without the compilation that ptxas's answer would
 * take. */
bool policy_is_crowded(const plan *p, const plan_rows *rows, const crowding *by);

/* Returns the spilled bytes that cost less than smaller tiles would. In general 64: a few outside of the
 * inner loops. With called hooks more, since no tiles change their time: four bytes are a store and a load,
 * so a quarter of the hooks' instructions in bytes is at most an eighth of their time; but more bytes than a
 * thread has registers are accumulators, spilled around each product. */
int policy_spills_accepted(const plan *p, const plan_rows *rows, int outlined_work);
/* Whether a gradient adds to so many sums for each score that the family certainly lacks registers, so compiling it is
 * pointless. */
bool policy_lacks_registers(const plan *p, const compile_work *w);
/* Whether the tables' first tiles certainly spill, so that compiling them is pointless. */
bool policy_surely_spills(const plan *p, const compile_work *w);
/* Returns how many of the table's next choices would also spill too much, after one that spilled `spills`
 * bytes; they are not compiled. */
int policy_tiles_skipped(const plan *p, int spills);
/* Whether to give up staged bias rows, which spill so many bytes of a kernel. */
bool policy_bias_rows_crowd(const plan *p, const plan_rows *rows, int spill_bytes);

/* ---- the time to compile */

double policy_work_weight(const plan *p, work_kind kind); /* of an instruction, in units of the time for
                                                           * `causal` */
/* Estimates NVRTC's time, in units of the time for `causal` with the same target, head dims and pass. */
double policy_compile_estimate(const plan *p, const compile_work *w);
/* NVRTC's work for a mod that reads other channels, in times of that for one that does not. Rotary embedding with its
 * sine and cosine in the mods of q and k, where the angle of q is learned, takes 6.9 and 4.1 times as long as `causal`
 * in the forward of sm80 and sm90, 5.5 and 4.0 in the backward. */
#define POLICY_ROW_MOD_COPIES 1.5

/* A spec with a larger estimate is refused. The limit also bounds NVRTC's memory: some 100 MB for `causal`,
 * less than 1 GB at this limit. */
#define POLICY_COMPILE_LIMIT 8.0
/* How often the estimate counts of tiles that are taken because those before them are beyond the limit: it is fitted to
 * first choices, and 64 x 16 with 512 numbers of rows and columns took 12.5 times as long as `causal` of 3.8
 * estimated. */
#define POLICY_LATER_TILES 3.5

/* Options that disable passes of NVVM's optimizer for a kernel; returns how many. */
enum { POLICY_MAX_LEFT_OUT = 2 };
int policy_left_out_passes(const plan *p, bool is_grid, const char *out[POLICY_MAX_LEFT_OUT]);

#endif
