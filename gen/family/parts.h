/* parts.h: what families have in common, and what decode takes from sm80, weights from simt, and d256 from sm90. */
#ifndef LUATTN_GEN_FAMILY_PARTS_H
#define LUATTN_GEN_FAMILY_PARTS_H

#include "common/fail.h"
#include "gen/family/family.h"

static inline int most_of(int a, int b) { return a > b ? a : b; }

/* Refuses a tile's queries or keys, or the box that the target asks for in their place. */
luattn_status family_refuse(const plan *p, bool keys, const char *rule, luattn_error *err);
/* Refuses what kernels with tangents of the family `name` lack: grids, and head dims above `most`; 0, NULL: it has all. */
luattn_status family_can_run_tangents(const plan *p, int most, const char *name, luattn_error *err);
/* Bytes of the sums of parameter gradients of a block: one number per warp. */
int family_sum_bytes(const plan *p, const plan_rows *rows);
/* Numbers of a head that a forward kernel's call hands on are live in all of its loops. Those that registers do
 * not hold beside the accumulators lie in memory, in the caller and as parameters of the called function, and
 * ptxas takes a time that grows with their square: chains x - 0.1 * floor(x * (a * c)) of 139, 203, 267 and 331
 * such numbers take 4.6, 7.7, 12 and 19 times what `causal` takes in sm80's first tiles, 2.4, 5.1, 9.1 and 18 in
 * simt's. Returns what those beyond `held` add. */
#define HEAD_ARGUMENTS_TWICE 0.25e-3
double family_head_arguments(const compile_work *w, int held, double twice);

/* Passes of NVVM's optimizer that are disabled for a kernel (policy.h): combining instructions, repeated combining, and
 * hoisting loop invariants. */
extern const char combine_less_often[], combine_nothing[], hoist_nothing[];
/* T5's forward is 5 % slower without what these head dims need. */
static inline bool is_of_large_dims(const plan *p) { return p->head_dim > 192 && p->head_dim_v > 192; }

extern const family_thresholds simt_forward_measured, simt_backward_measured, sm80_forward_measured,
    sm80_backward_measured;
/* The pairs of boxes of the tiles that come first of a table. sm80_boxes.c */
int sm80_box_pairs(const plan *p, tile_table tiles, const box_extents **pairs);
luattn_status simt_check(const plan *p, luattn_error *err);
bool simt_suits(const plan *p);
plan_copies simt_copies(const plan *p);
int simt_forward_bytes(LayoutSizes s);
/* What its forward kernels share, whatever they write. */
#define SIMT_FORWARD                                                                                   \
  .check = simt_check, .suits = simt_suits, .shared_bytes = simt_forward_bytes, .copies = simt_copies, \
  .measured = &simt_forward_measured, .has_distance_terms = true

/* Of sm90's kernels, d256 too. */
/* The most sums that a gradient adds to for each score, because the backward has registers for no more at head dim
 * 128; below, dK and dV leave it some. */
enum { SM90_SUMS = 12 };
#define SM90_FORWARD_WEIGHTS                                                                              \
  {.of = {0.09, 0.2, 0.13, 0.15, 0, 0, 0, 0, 9, 60, 0, 0.1},                                              \
   .square = {[WORK_INLINED] = 0.026, [WORK_FETCHED] = 0.2, [WORK_CALLED] = 0.006, [WORK_CALLS] = 0.003}, \
   .reads = 0.18,                                                                                         \
   .positions = 1.05,                                                                                     \
   .beside = 5,                                                                                           \
   .evaluated = 0.3}
#define SM90_BACKWARD_WEIGHTS                                   \
  {.of = {0.11, 0.2, 0.2, 0.55, 1.5, 0.6, 1, 8, 6, 62, 0, 0.5}, \
   .square = {[WORK_INLINED] = 0.0045,                          \
              [WORK_FETCHED] = 0.2,                             \
              [WORK_CALLED] = 0.02,                             \
              [WORK_CALLS] = 0.025,                             \
              [WORK_SLOTS] = 20,                                \
              [WORK_ONCE] = 0.35},                              \
   .reads = 0.1,                                                \
   .positions = 0.4,                                            \
   .beside = 5,                                                 \
   .evaluated = 0.3}
double sm90_backward_beside_calls(const plan *p, const compile_work *w);
tile_table sm90_backward_tiles(const plan *p);
int sm90_backward_pairs(const plan *p, const box_extents **pairs);
bool sm90_suits(const plan *p);
int sm90_static_bytes(const plan *p, const plan_rows *rows);
luattn_status sm90_can_run(const plan *p, luattn_error *err);
/* Whether d256 has the kernel of p's head dims and tiles. */
bool sm90_is_d256(const plan *p);
plan_copies sm90_backward_copies(const plan *p);
unsigned sm90_width_bit(int columns);
unsigned sm90_score_widths(const plan *p);
unsigned sm90_o_widths(const plan *p);
/* Whether a gradient adds to more sums for each score than the kernel certainly has registers for. */
bool sm90_sums_exceed(const plan *p, const compile_work *w, int sums);

/* What all kernels of arch 90 share. */
#define SM90_FACTS                                                                                                \
  .id = LUATTN_SM90, .says = "wgmma with f32 accumulation and TMA, head dims that are multiples of 8",            \
  .dtypes = FAMILY_HALVES, .grid_dtypes = FAMILY_HALVES, .arch = 90, .can_run = sm90_can_run, .page_multiple = 8, \
  .fast_math = true, .lists_tiles = true, .skips_tiles = true, .stages_bias_rows = true, .tests_buckets = true,   \
  .fills_slots_apart = true, .groups_masks = true, .sums_elements = true, .sums_diagonals_at_128 = true,          \
  .calls_sums = true

#endif
