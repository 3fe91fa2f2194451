/* tiles.h: the arithmetic of a plan's tiles, as its family has it. */
#ifndef LUATTN_GEN_TILES_H
#define LUATTN_GEN_TILES_H

#include "gen/family/family.h"

/* The box of a tile's queries or keys (family_box). Unused axes come first. */
void tiles_box(const plan *p, bool keys, int box[LUATTN_MAX_AXES]);

/* Whether kernels have a table of terms by displacement over a grid (templates/score/displacement_terms.cuh), and it fits
 * next to these tiles. */
bool tiles_have_displacements(const plan *p);

/* The same of sums of dS by displacement (templates/grads/displacement_sums.cuh). */
bool tiles_sum_displacements(const plan *p);

/* Whether boxes of keys begin anywhere (templates/ops/free_boxes.cuh). */
bool tiles_free_boxes(const plan *p);
/* Whether boxes take places of a grid by a step; along the axis, by one that TMA does not take, which has to bring them. */
bool tiles_step(const plan *p);
bool tiles_is_far(const plan *p, int axis);
bool tiles_step_far(const plan *p);    /* along any axis */
bool tiles_have_phases(const plan *p); /* whether boxes of queries begin before the first place, along any axis */
bool tiles_copies_o(const plan *p);    /* so that TMA stores o to a copy, where extents ask for one */

luattn_tiles plan_tiles(const plan *p);
bool plan_same_tiles(const luattn_tiles *a, const luattn_tiles *b);

/* Whether kernels may read tile bits: those are of tensors that are the whole. Decode has too few queries to pay for
 * them. */
bool tiles_may_have_bits(const plan *p);
/* Whether the tiles of a walk, and of its other side where the mask differs there, are made of whole cells or lie
 * inside of one, and likewise for the blocks on which masks are constant, powers of two as a rule: else a tile is
 * computed for a part of a block. */
bool tiles_suit_cells(const plan *p);
bool tiles_suit_chunks(const plan *p); /* whether each lies in one chunk, if there are any */
plan_copies tiles_copies(const plan *p);

int tiles_shared_bytes(const plan *p, const plan_rows *rows); /* of a main kernel */
/* Whether columns fit next to these tiles of the sm90 forward (templates/sm90/fwd/bias_staging.cuh). */
bool tiles_have_columns(const plan *p, const plan_rows *rows);
int tiles_least_shared(const plan *p); /* of the largest kernel, for a spec that keeps as much as softmax */
int tiles_shared_limit(int arch);      /* 0: unknown architecture */
int tiles_walk_columns(const plan *p); /* kv positions of a tile of the main kernel's walk; queries: tile_m */
luattn_status tiles_check(const plan *p, luattn_error *err); /* whether the family can run these tiles at
                                                              * all */

/* Whether luattn_prepare computes block minima and maxima, so that there is no luattn_stats. read_before: a
 * kernel before it reads them. */
bool tiles_prepares_stats(const plan *p, bool read_before);

#endif
