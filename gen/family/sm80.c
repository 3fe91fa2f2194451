/* sm80.c: mma.sync with f32 accumulation, for f16 and bf16 on every arch. */
#include <math.h>

#include "gen/family/parts.h"

static const tile_row forward[] = {{ANY, 64, {128, 64, 128, 2, 0, 0}},     {SMALL, 96, {128, 64, 128, 1, 0, 0}},
                                   {MIDDLE, 96, {128, 64, 128, 2, 0, 0}},  {SMALL, 128, {128, 32, 128, 1, 0, 0}},
                                   {MIDDLE, 128, {128, 64, 128, 1, 0, 0}}, {LARGE, 128, {128, 64, 128, 2, 0, 0}},
                                   {MIDDLE, 192, {64, 64, 128, 1, 0, 0}},  {MIDDLE, 256, {128, 64, 256, 1, 0, 0}},
                                   {LARGE, 256, {128, 64, 256, 2, 0, 0}},  {ANY, 256, {64, 64, 128, 1, 0, 0}},
                                   {ANY, 256, {64, 32, 128, 1, 0, 0}},     {ANY, 256, {64, 16, 128, 1, 0, 0}}};
static const tile_row backward[] = {{SMALL | LARGE, 64, {128, 128, 128, 1, 4, 32}},
                                    {MIDDLE, 64, {64, 128, 128, 1, 4, 32}},
                                    {ANY, 64, {64, 128, 128, 1, 4, 16}},
                                    {ANY, 64, {64, 128, 256, 1, 4, 32}},
                                    {SMALL, 128, {32, 128, 256, 1, 4, 16}},
                                    {MIDDLE, 128, {64, 128, 256, 1, 4, 32}},
                                    {LARGE, 128, {64, 128, 256, 2, 4, 32}},
                                    {MIDDLE | LARGE, 128, {32, 128, 256, 1, 4, 16}},
                                    {ANY, 128, {64, 64, 256, 1, 4, 32}},
                                    {MIDDLE, 256, {64, 64, 256, 1, 4, 32}},
                                    {LARGE, 256, {64, 64, 256, 2, 4, 32}},
                                    {ANY, 256, {32, 32, 128, 1, 2, 16}},
                                    {ANY, 256, {32, 64, 256, 1, 4, 16}}};

static tile_table tiles(const plan *p) {
  return p->pass == LUATTN_FORWARD ? TILE_TABLE(forward) : TILE_TABLE(backward);
}

static int box_pairs(const plan *p, const box_extents **pairs) { return sm80_box_pairs(p, tiles(p), pairs); }

static luattn_status check_forward(const plan *p, luattn_error *err) {
  const int warps = p->threads / 32;
  if (p->tile_m != 16 * warps && p->tile_m != 32 * warps)
    return family_refuse(p, false, "sm80 forward takes 64, 128 or 256: 16 or 32 rows for each of 4 or 8 warps", err);
  if (p->tile_n < 16 || p->tile_n % 16 != 0) return family_refuse(p, true, "sm80 forward takes multiples of 16", err);
  return LUATTN_OK;
}

static luattn_status check_backward(const plan *p, luattn_error *err) {
  const int warps_c = p->threads / 32 / p->sm80_warps_n, frags = p->tile_n / (16 * p->sm80_warps_n);
  if (p->tile_m < 16 || p->tile_m % (p->sm80_chunk_m * warps_c) != 0)
    return family_refuse(p, false, "sm80 backward takes 32, 64 or 128, as the tables of sm80/bwd_sm80.cuh have them",
                         err);
  if (frags < 1 || frags > 2 || frags * 16 * p->sm80_warps_n != p->tile_n)
    return family_refuse(p, true, "sm80 backward takes 32, 64, 128 or 256", err);
  return LUATTN_OK;
}

static bool suits_forward(const plan *p) {
  return (p->threads == 128 || p->threads == 256) && p->stages >= 1 && p->stages <= 2;
}

static bool suits_backward(const plan *p) {
  return suits_forward(p) && p->tile_m <= 128 && p->sm80_chunk_m >= 16 && p->sm80_chunk_m <= 32 &&
         p->threads / 32 % p->sm80_warps_n == 0;
}

static bool fits_registers(const plan *p) {
  return p->tile_m / (p->threads / 32) * (p->tile_n + (p->head_dim_v + 15) / 16 * 16) / 32 <= 208;
}

static int forward_bytes(LayoutSizes s) { return fwd_sm80_layout(s).bytes; }
static int backward_bytes(LayoutSizes s) { return bwd_sm80_layout(s).bytes; }

/* And the tile that a block took from the scheduler. */
static int static_bytes(const plan *p, const plan_rows *rows) {
  return family_sum_bytes(p, rows) + (p->deterministic ? 16 : 0);
}

static plan_copies forward_copies(const plan *p) {
  const int row = 2 * p->tile_m / (p->threads / 32) / 16, col = p->tile_n / 4;
  return (plan_copies){.row = row, .col = col, .element = row * col};
}

/* A chunk of columns at a time, for fragments of 16 kv rows. */
static plan_copies backward_copies(const plan *p) {
  const int col = 2 * p->tile_n / (16 * p->sm80_warps_n);
  return (plan_copies){.row = 1, .col = col, .element = col * p->sm80_chunk_m / 4};
}

/* ---- thresholds ---- */

/* Weight of the arguments of calls beyond 4000 in forward, where they are numbers of rows and columns: these are
 * stored and loaded for each call, and NVVM's value numbering compares each load of a block with the stores before
 * it. */
static const double handed_on = 0.75;
/* Forward holds 96 numbers of a head. Backward's accumulators leave fewer registers: a chain of multiply-adds with 82
 * such numbers takes 23 times what `causal` takes. Where lanes share sums they are not counted. */
static const int held_forward = 96, held_backward = 24;
static const double head_arguments_twice_backward = 0.6e-3;
/* Weight, for each sum of a block, of called code beyond 6000 in backward: 700 logarithms with 16 learned numbers
 * between them take ptxas more than 16 times what `causal` takes, with none a quarter of that. */
static const double summed_in_calls = 0.03;

static double forward_beside_calls(const plan *p, const compile_work *w) {
  (void)p;
  const double calls = w->of[WORK_SLOTS] > 300 ? handed_on * fmax(w->of[WORK_CALLS] / 1000 - 4, 0) : 0;
  return calls + family_head_arguments(w, held_forward, HEAD_ARGUMENTS_TWICE);
}

static double backward_beside_calls(const plan *p, const compile_work *w) {
  const double sums = p->fallback ? 0 : summed_in_calls * w->of[WORK_FLUSHED] * fmax(w->of[WORK_CALLED] / 1000 - 6, 0);
  return sums + family_head_arguments(w, held_backward, head_arguments_twice_backward);
}

/* The tables' first tiles with calls in which a thread hands on more numbers of rows and columns than it has registers.
 * Compiling them takes three times as long as the tiles that follow. Of 640 cells, the 13 beyond these numbers spilled
 * 8900 to 42500 bytes in their first tiles, and less in those that followed; none that fit came near both. */
static bool surely_spills(const plan *p, const compile_work *w) {
  return p->rank == 0 && w->of[WORK_CALLS] > 4500 && w->of[WORK_SLOTS] > 300;
}

/* Up to 204 bytes, then 60 at most with one stage, with one exception. */
static int forward_tiles_skipped(const plan *p, int spills) {
  (void)p;
  return spills > 300;
}

/* Up to D 64 up to 324 bytes, then 28 at most with chunks of 16, and 388 to 952 none in 64 x 64. */
static int backward_tiles_skipped(const plan *p, int spills) {
  const bool narrow = p->head_dim <= 64 && p->head_dim_v <= 64;
  return narrow && p->rank == 0 ? (spills > 350 ? 3 : 0) : spills > 200;
}

static int forward_left_out(const plan *p, bool is_grid, const char **out) {
  (void)p;
  out[0] = is_grid ? combine_less_often : combine_nothing;
  return 1;
}

static int backward_left_out(const plan *p, bool is_grid, const char **out) {
  (void)p, (void)is_grid;
  out[0] = combine_nothing, out[1] = hoist_nothing;
  return 2;
}

/* Inlined code has a larger weight than in sm90, whose own kernels take twice as long. A block's sum is a register in
 * all of a kernel's loops and an atomic at its end. */
const family_thresholds sm80_forward_measured = {
    .compile = {.of = {0.22, 0, 0.16, 0.25, 0, 0, 0, 0, 5, 120, 0, 0.05},
                .square = {[WORK_INLINED] = 0.024, [WORK_CALLED] = 0.02, [WORK_CALLS] = 0.011, [WORK_BOUNDS] = 2.7},
                .reads = 0.37,
                .positions = 2.4,
                .beside = 20,
                .evaluated = 0.45},
    .beside_calls = forward_beside_calls,
    .surely_spills = surely_spills,
    .tiles_skipped = forward_tiles_skipped,
    .left_out_passes = forward_left_out};
const family_thresholds sm80_backward_measured = {.compile = {.of = {0.25, 0, 0.3, 0.6, 1, 1, 0.5, 25, 5, 124, 0, 0.8},
                                                              .square = {[WORK_INLINED] = 0.006,
                                                                         [WORK_CALLED] = 0.03,
                                                                         [WORK_CALLS] = 0.028,
                                                                         [WORK_BOUNDS] = 2.7,
                                                                         [WORK_SLOTS] = 49,
                                                                         [WORK_ONCE] = 0.7},
                                                              .reads = 0.06,
                                                              .positions = 1.4,
                                                              .beside = 10,
                                                              .evaluated = 0.45},
                                                  .beside_calls = backward_beside_calls,
                                                  .surely_spills = surely_spills,
                                                  .tiles_skipped = backward_tiles_skipped,
                                                  .left_out_passes = backward_left_out};

static const char *note(arena *a, const plan *p) {
  if (p->offsets == LUATTN_OFFSET_CHUNKS && p->arch == 90 && p->pass == LUATTN_BACKWARD &&
      (p->has_parameters || p->head_dim > 128 || p->head_dim_v > 128))
    return "fallback: backward of the sm90 family takes chunks up to head dim 128, and without gradients of inputs and "
           "scalars\n";
  if (p->fallback) return "fallback: the sm90 family has too few registers or too little shared memory for this spec\n";
  if (p->small_pages)
    return "fallback: the sm90 family reads pages whose sizes are multiples of 8, and these may have any size\n";
  if (p->arch == 90) return "family: asked for by the caller; sm90 is faster on sm_90\n";
  if (p->arch < 90) return "";
  return arena_printf(a, "fallback: sm_%d could run faster kernels of its own; this version has none\n", p->arch);
}

const struct family family_sm80 = {.id = LUATTN_SM80,
                                   .says = "mma.sync with f32 accumulation, head dims that are multiples of 8",
                                   .dtypes = FAMILY_HALVES,
                                   .grid_dtypes = FAMILY_HALVES,
                                   .note = note,
                                   .page_multiple = 1,
                                   .fast_math = true,
                                   .groups_masks = true,
                                   .kernel = {[LUATTN_FORWARD] = {.file = "entry/fwd_sm80.cu",
                                                                  .entry = "luattn_fwd",
                                                                  .takes_chunks = true,
                                                                  .tiles = tiles,
                                                                  .box_pairs = box_pairs,
                                                                  .check = check_forward,
                                                                  .suits = suits_forward,
                                                                  .fits_registers = fits_registers,
                                                                  .shared_bytes = forward_bytes,
                                                                  .copies = forward_copies,
                                                                  .measured = &sm80_forward_measured,
                                                                  .free_boxes = true,
                                                                  .shares_multiprocessor = true,
                                                                  .has_displacement_terms = true,
                                                                  .steps_of_16 = true,
                                                                  .has_distance_terms = true},
                                              [LUATTN_BACKWARD] = {.file = "entry/bwd_sm80.cu",
                                                                   .takes_chunks = true,
                                                                   .tiles = tiles,
                                                                   .box_pairs = box_pairs,
                                                                   .check = check_backward,
                                                                   .suits = suits_backward,
                                                                   .shared_bytes = backward_bytes,
                                                                   .static_bytes = static_bytes,
                                                                   .copies = backward_copies,
                                                                   .measured = &sm80_backward_measured,
                                                                   .accumulates_dq = true,
                                                                   .stages_spill_alike = true,
                                                                   .keeps_places = true,
                                                                   .has_lane_sums = true}}};
