/* simt.c: multiply-adds in the storage type, for f32 and f64. */
#include "gen/family/parts.h"

static const tile_row forward_f32[] = {{ANY, 256, {64, 64, 256, 2, 0, 0}},
                                       {ANY, 256, {64, 32, 256, 2, 0, 0}},
                                       {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                       {ANY, 256, {16, 32, 256, 2, 0, 0}}};
static const tile_row backward_f32[] = {{ANY, 128, {64, 64, 128, 2, 0, 0}},
                                        {ANY, 256, {64, 64, 256, 2, 0, 0}},
                                        {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                        {ANY, 256, {16, 16, 256, 2, 0, 0}}};
static const tile_row all_f64[] = {{ANY, 128, {32, 32, 128, 2, 0, 0}},
                                   {ANY, 256, {32, 32, 256, 2, 0, 0}},
                                   {ANY, 256, {32, 16, 256, 2, 0, 0}},
                                   {ANY, 256, {16, 16, 256, 2, 0, 0}}};

static tile_table tiles(const plan *p) {
  if (p->dtype == LUATTN_F64) return TILE_TABLE(all_f64);
  return p->pass == LUATTN_FORWARD ? TILE_TABLE(forward_f32) : TILE_TABLE(backward_f32);
}

static bool is_possible(int x) { return x >= 16 && x <= 256 && (x & (x - 1)) == 0; }

luattn_status simt_check(const plan *p, luattn_error *err) {
  const char *rule = "the simt family takes powers of two from 16 to 256";
  if (!is_possible(p->tile_m)) return family_refuse(p, false, rule, err);
  if (!is_possible(p->tile_n)) return family_refuse(p, true, rule, err);
  return LUATTN_OK;
}

bool simt_suits(const plan *p) {
  return (p->threads == 128 || p->threads == 256) && p->stages == 2 && p->threads / 16 <= p->tile_m &&
         p->threads / 16 <= p->tile_n;
}

/* Backward does not unroll its loop over rows. */
plan_copies simt_copies(const plan *p) {
  const int col = most_of(p->tile_n / 16, 1),
            row = p->pass == LUATTN_BACKWARD ? 1 : most_of(p->tile_m * 16 / p->threads, 1);
  return (plan_copies){.row = row, .col = col, .element = row * col};
}

int simt_forward_bytes(LayoutSizes s) { return simt_bytes(s, 1); }
static int backward_bytes(LayoutSizes s) { return simt_bytes(s, 2); }

static int tiles_skipped(const plan *p, int spills) {
  (void)p;
  return spills > 200;
}

static double forward_beside_calls(const plan *p, const compile_work *w) {
  (void)p;
  return family_head_arguments(w, 192, HEAD_ARGUMENTS_TWICE);
}

static int forward_left_out(const plan *p, bool is_grid, const char **out) {
  int n = 0;
  out[n++] = combine_less_often;
  if (is_of_large_dims(p) && !is_grid) out[n++] = hoist_nothing;
  return n;
}

/* Of half types other families have faster kernels over a grid, too. */
static const char *note(arena *a, const plan *p) {
  (void)a;
  if (p->axes == 0 || p->keep == SPEC_KEEP_ALL) return "";
  return "grid: this family draws for each score alone\n";
}

static int backward_left_out(const plan *p, bool is_grid, const char **out) {
  (void)p, (void)is_grid;
  out[0] = combine_less_often, out[1] = hoist_nothing;
  return 2;
}

/* Inlined code has a larger weight than in sm90. Backward has two kernels with calls; its weight of arguments covers
 * numbers of a head. */
const family_thresholds simt_forward_measured = {
    .compile = {.of = {0.32, 0, 0.17, 1.1, 0, 0, 0, 0, 10, 100, 0, 0.05},
                .square = {[WORK_INLINED] = 0.044, [WORK_CALLED] = 0.02, [WORK_SLOTS] = 50},
                .reads = 1.1,
                .positions = 0.6,
                .beside = 10,
                .evaluated = 0.4},
    .beside_calls = forward_beside_calls,
    .tiles_skipped = tiles_skipped,
    .left_out_passes = forward_left_out};
const family_thresholds simt_backward_measured = {
    .compile = {.of = {0.33, 0, 0.3, 5, 0.8, 1.4, 0.5, 28, 8, 100, 0, 0.2},
                .square = {[WORK_INLINED] = 0.02, [WORK_CALLED] = 0.012, [WORK_SLOTS] = 30, [WORK_ONCE] = 2},
                .reads = 0.13,
                .positions = 0.5,
                .beside = 10,
                .evaluated = 0.4},
    .tiles_skipped = tiles_skipped,
    .left_out_passes = backward_left_out};

const struct family family_simt = {.id = LUATTN_SIMT,
                                   .says = "multiply-adds in the storage type, any head dims",
                                   .dtypes = FAMILY_REALS,
                                   .page_multiple = 1,
                                   .grid_dtypes = FAMILY_HALVES | FAMILY_REALS,
                                   .note = note,
                                   .kernel = {[LUATTN_FORWARD] = {.file = "entry/fwd_simt.cu",
                                                                  .entry = "luattn_fwd",
                                                                  .tiles = tiles,
                                                                  .takes_chunks = true,
                                                                  SIMT_FORWARD},
                                              [LUATTN_BACKWARD] = {.file = "entry/bwd_simt.cu",
                                                                   .tiles = tiles,
                                                                   .check = simt_check,
                                                                   .suits = simt_suits,
                                                                   .shared_bytes = backward_bytes,
                                                                   .static_bytes = family_sum_bytes,
                                                                   .copies = simt_copies,
                                                                   .measured = &simt_backward_measured,
                                                                   .takes_chunks = true,
                                                                   .has_lane_sums = true}}};
