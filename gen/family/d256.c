/* d256.c: sm90's backward for head dims above 128, of four warpgroups with tiles of 64 x 64: scores, dk and dv have
 * warpgroups of their own. Below those head dims it is for hooks that need more registers than the other kernel
 * leaves. */
#include "gen/family/parts.h"

static bool is_wide(const plan *p) { return most_of(p->head_dim, p->head_dim_v) > 128; }

static luattn_status check(const plan *p, luattn_error *err) {
  const bool wide = is_wide(p);
  if (p->tile_m != 64)
    return family_refuse(
        p, false, wide ? "sm90 backward takes 64 for head dims above 128" : "sm90 backward takes 64 where tile_n is 64",
        err);
  if (p->tile_n != 64)
    return family_refuse(p, true,
                         p->key_tile_size != 0 ? "sm90 backward takes boxes of 128 keys"
                                               : "sm90 backward takes 64 for head dims above 128",
                         err);
  return LUATTN_OK;
}

static int threads(const plan *p) {
  (void)p;
  return 512;
}

static int shared_bytes(LayoutSizes s) { return bwd_d256_layout(s).bytes; }

/* The tiles begin at the next multiple of 1024. */
static int static_bytes(const plan *p, const plan_rows *rows) {
  return (family_sum_bytes(p, rows) + 1023) / 1024 * 1024;
}

static unsigned product_widths(const plan *p) {
  (void)p;
  return sm90_width_bit(64);
}

/* The next tiles take 1.3 to 1.8 times as long, and with parameter gradients up to 80 times; the loading warps, which
 * have time, spill up to 200 of the bytes, and the one that sums dS up to 400. */
static int spills_accepted(const plan *p, const plan_rows *rows, int next_to_hooks) {
  (void)p, (void)rows;
  return 768 + next_to_hooks;
}

static int tiles_skipped(const plan *p, int spills) {
  (void)p;
  return (spills > 350) + (spills > 1000);
}

static bool lacks_registers(const plan *p, const compile_work *w) {
  return !is_wide(p) && sm90_sums_exceed(p, w, SM90_SUMS);
}

/* Bias rows are faster even where they spill 600 bytes. */
static const family_thresholds measured = {.compile = SM90_BACKWARD_WEIGHTS,
                                           .beside_calls = sm90_backward_beside_calls,
                                           .spills_accepted = spills_accepted,
                                           .tiles_skipped = tiles_skipped,
                                           .lacks_registers = lacks_registers};

const struct family family_d256 = {SM90_FACTS, .takes_tiles = sm90_is_d256,
                                   .kernel = {[LUATTN_BACKWARD] = {.file = "entry/bwd_d256.cu",
                                                                   .box_pairs = sm90_backward_pairs,
                                                                   .tiles = sm90_backward_tiles,
                                                                   .threads = threads,
                                                                   .check = check,
                                                                   .suits = sm90_suits,
                                                                   .shared_bytes = shared_bytes,
                                                                   .static_bytes = static_bytes,
                                                                   .copies = sm90_backward_copies,
                                                                   .product_widths = product_widths,
                                                                   .falls_back_to = &family_sm80,
                                                                   .measured = &measured,
                                                                   .accumulates_dq = true,
                                                                   .splits = true,
                                                                   .pairs_tiles = true,
                                                                   .prepares_stats = true,
                                                                   .reads_query_lists = true,
                                                                   .sums_in_small_warp = true}}};
