/* jvp_sm90.c: forward with tangents by wgmma and TMA, for f16 and bf16 on arch 90, head dims up to 128. */
#include "gen/family/parts.h"

/* A thread holds two accumulators, S and its tangent, and both once more as P: of 232 registers they leave 30 where this
 * many keys are in a tile. */
static const tile_row forward[] = {{ANY, 64, {128, 80, 384, 3, 0, 0}},  {ANY, 80, {128, 80, 384, 2, 0, 0}},
                                   {ANY, 96, {128, 64, 384, 2, 0, 0}},  {ANY, 128, {128, 48, 384, 3, 0, 0}},
                                   {ANY, 128, {128, 48, 384, 2, 0, 0}}, {ANY, 128, {128, 32, 384, 2, 0, 0}},
                                   {ANY, 128, {128, 16, 384, 2, 0, 0}}};

static tile_table tiles(const plan *p) {
  (void)p;
  return TILE_TABLE(forward);
}

/* Documents and the like keep runs of keys, most of whose lengths are multiples of 64: tiles of 80 would lie across their
 * ends. A key then takes 5 % more instructions. */
static int preferred(const plan *p, luattn_tiles out[FAMILY_MAX_PREFERRED]) {
  if (!p->by_block_bounds || most_of(p->head_dim, p->head_dim_v) > 80) return 0;
  out[0] = (luattn_tiles){128, 64, 384, p->head_dim <= 64 ? 3 : 2, 0, 0};
  return 1;
}

static bool is_for(const luattn_target *t) { return t->tangents != 0; }

static luattn_status can_run(const plan *p, luattn_error *err) { return family_can_run_tangents(p, 128, "sm90", err); }

static luattn_status check(const plan *p, luattn_error *err) {
  if (p->tile_m != 128) return family_refuse(p, false, "sm90 forward with tangents takes 128", err);
  if (p->tile_n < 16 || p->tile_n % 16 != 0 || p->tile_n > 128)
    return family_refuse(p, true, "sm90 forward with tangents takes multiples of 16 up to 128", err);
  return LUATTN_OK;
}

static int threads(const plan *p) { return 128 + 2 * p->tile_m; }
static int forward_bytes(LayoutSizes s) { return fwd_jvp_sm90_layout(s).bytes; }
static plan_copies copies(const plan *p) {
  return (plan_copies){.row = 2, .col = p->tile_n / 4, .element = p->tile_n / 2};
}

static int tiles_skipped(const plan *p, int spills) {
  (void)p, (void)spills;
  return 0;
}

/* ptxas spills what the loop over keys reads once a tile or not at all. Smaller tiles of keys spill less, and their products
 * read shared memory more often: 48 keys keep tensor cores 92 % busy, 32 keys 80 %. */
static int spills_accepted(const plan *p, const plan_rows *rows, int next_to_hooks) {
  (void)p, (void)rows;
  return 192 + next_to_hooks;
}

static int left_out(const plan *p, bool is_grid, const char **out) {
  (void)p, (void)is_grid;
  out[0] = combine_less_often;
  return 1;
}

static const family_thresholds measured = {.compile = SM90_FORWARD_WEIGHTS,
                                           .spills_accepted = spills_accepted,
                                           .tiles_skipped = tiles_skipped,
                                           .left_out_passes = left_out};

const struct family family_jvp_sm90 = {.id = LUATTN_SM90,
                                       .says = "wgmma with f32 accumulation and TMA, with tangents",
                                       .dtypes = FAMILY_HALVES,
                                       .grid_dtypes = FAMILY_HALVES,
                                       .arch = 90,
                                       .is_for = is_for,
                                       .can_run = can_run,
                                       .page_multiple = 8,
                                       .fast_math = true,
                                       .takes_tangents = true,
                                       .lists_tiles = true,
                                       .groups_masks = true,
                                       .kernel = {[LUATTN_FORWARD] = {.file = "entry/fwd_jvp_sm90.cu",
                                                                      .entry = "luattn_fwd_jvp",
                                                                      .tiles = tiles,
                                                                      .preferred = preferred,
                                                                      .threads = threads,
                                                                      .check = check,
                                                                      .suits = sm90_suits,
                                                                      .shared_bytes = forward_bytes,
                                                                      .copies = copies,
                                                                      .product_widths = sm90_score_widths,
                                                                      .o_widths = sm90_o_widths,
                                                                      .measured = &measured,
                                                                      .steps_of_16 = true,
                                                                      .rescales_lazily = true,
                                                                      .draws_tiles = true}}};
