/* policy.h: every threshold of the generator that was measured, with its reason; bench/journal/ has the
 * measurements. What follows from a kernel's arithmetic instead (shared memory, shapes of products) is in
 * tiles.c. */
#ifndef LUATTN_GEN_POLICY_H
#define LUATTN_GEN_POLICY_H

#include "gen/plan/tiles.h"

enum {
  /* A slot of a row or a column is a register in every thread: fewer instructions are cheaper to do again. */
  POLICY_SLOT_COST = 3,
  /* What an image may have of inlined hooks, in instructions of one copy of each loop: NVRTC takes 0.2 ms
   * for each of the sm80 forward, about a second in all. */
  POLICY_INLINED_MAX = 6000,
  /* A call, and what it saves and moves, take about half of so many instructions: fewer are not worth a
   * call. */
  POLICY_OUTLINED_MIN = 32,
  /* Next to so many a call is nothing, and copies of them, interleaved, would want more registers than
   * there are. */
  POLICY_OUTLINED_ALWAYS = 400,
  /* What is handed on to a call lies in a register of every thread until then: a number of a row or a
   * column that takes fewer instructions is computed again there. */
  POLICY_HANDED_ON_MIN = 32,
  /* Fewer instructions an element take no time that is worth a value for each distance. What reads memory
   * counts as these. */
  POLICY_LONG_TERM = 16,
  /* Where only keep reads Row: more instructions to fill it are not short next to a loop over a masked
   * tile's columns. */
  POLICY_SHORT_ROW = 48,
  /* A loop over a tile's scores takes 0.7 to 0.9 of the speed at 13 instructions of keep (H200, dilated
   * window), and is faster at 14 (block diffusion). */
  POLICY_CHEAP_KEEP = 13,
  /* Operations of a gradient's factor that may be done for each element whose dS is summed by itself. */
  POLICY_FEW_OPERATIONS = 4,
  /* Rows of the table that tuning steps away from: further down stands what needs few registers. */
  POLICY_TUNED_ROWS = 3,
};

/* Choice `rank` of tiles for p's family, pass, type and head dims, the best first; without regard to
 * shared memory. false: there are not so many. */
bool policy_tiles(const plan *p, int rank, luattn_tiles *out);
/* Whether short lengths with a mask have other choices than long ones. */
bool policy_knows_short(const plan *p);
/* Worth a compilation by tuning? What cannot be in registers is not; ptxas has the last word. */
bool policy_fits_registers(const plan *p);

/* Whether the first kv tile of a q tile stores dQ. Without a mask kv tiles of a head are at the same q
 * tiles together, and would wait for each other; with tiles of 128 queries a block is done with too few of
 * them before others come; and sums of gradients of inputs and scalars leave no registers for it. */
bool policy_dq_first_store(const plan *p, bool has_mask, bool has_parameters);

/* Whether a soft cap's polynomial pays: where the unit of exp2 binds, and not the products of large head
 * dims (scores.md). */
bool policy_softcap_poly(const plan *p);
/* Three consumers have the second row's factors ready before its turn, and two do not. */
bool policy_softcap_factors_early(const plan *p);
/* Intervals instead of keep in the columns of backward. A cheap predicate is faster than two intervals or
 * remainders, by a fiftieth to a twentieth (H200, Longformer, dilated window). */
bool policy_uses_column_intervals(const mask_intervals *columns, bool keep_is_cheap);
/* Whether kernels sum dS per element, too. In the simt and sm80 families grad adds what takes a
 * multiply-add and no memory, which costs less there (sm80: 0.95 to 0.99 of the speed by products). */
bool policy_sums_elements(const plan *p);
/* Per element even where dS could be summed by distance. Where a thread has 64 scores, ptxas spills 500
 * bytes for that, and none for sums along diagonals, which take twice the instructions. */
bool policy_sums_elements_of_distances(const plan *p);

/* Other tiles are better than these; it need not be found out by ptxas, each of whose answers takes as
 * long as a compilation. sm90 forward: bias rows that shared memory has no room for; up to head dim 64
 * three consumers next to a hook that is called, who have registers for 96 columns of scores, and next to
 * P masked by scores of 0, which do not take the places of their scores; and bias rows, whose loaders need
 * the registers of the third. sm90 backward: gradients of pairs; and bias rows, which take a register for
 * each score. */
bool policy_is_crowded(const plan *p, const plan_rows *rows, bool calls, bool mask_by_zero, bool has_pairs);

/* Spilled bytes that cost less than smaller tiles would: a few outside of the inner loops, 64. More of
 * them next to hooks that are called, whose time no tiles change: four bytes are a store and a load, so
 * that a quarter of the hooks' instructions in bytes is an eighth of their time at most; but more bytes
 * than a thread has registers are accumulators, spilled around each product. What follows the sm90
 * backward's first tiles is slower by a third, 288; what follows it above head dim 128 takes 1.3 to 1.8
 * times as long, and with gradients of parameters up to 80 times, 768: there the loading warps, which have
 * time, spill up to 200 of the bytes, and the one that sums dS up to 400. Below it they spill up to 88 for
 * bias rows, 112: with 390 in all such a kernel is 1.4 times as fast as what follows. Three consumers of
 * the sm90 forward spill around each call: 144 bytes there cost two thirds of the speed. */
int policy_spills_accepted(const plan *p, const plan_rows *rows, int outlined_work);
/* Bias rows that are read ahead make a sm90 backward kernel 1.05 to 1.5 times as fast up to 190 spilled
 * bytes of luattn_dkdv, and cost it 0.09 of its speed at 270 and 290: then it is better off without. Above
 * head dim 128 they gain at 600 as well. */
bool policy_bias_rows_crowd(const plan *p, const plan_rows *rows, int spill_bytes);

/* Options for NVVM's optimizer, of passes that a kernel does without; how many. */
enum { POLICY_MAX_LEFT_OUT = 2 };
int policy_left_out_passes(const plan *p, bool is_grid, const char *out[POLICY_MAX_LEFT_OUT]);

#endif
