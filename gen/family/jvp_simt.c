/* jvp_simt.c: forward, and backward, with tangents, by multiply-adds in f32 or f64; of simt, and for all types. */
#include "gen/family/parts.h"

static const tile_row forward_f32[] = {{ANY, 256, {32, 32, 128, 2, 0, 0}}, {ANY, 256, {16, 32, 128, 2, 0, 0}}};
static const tile_row forward_f64[] = {
    {ANY, 128, {32, 32, 256, 2, 0, 0}}, {ANY, 256, {16, 32, 256, 2, 0, 0}}, {ANY, 256, {16, 16, 256, 2, 0, 0}}};
static const tile_row backward_f32[] = {
    {ANY, 128, {64, 64, 256, 2, 0, 0}}, {ANY, 256, {32, 32, 256, 2, 0, 0}}, {ANY, 256, {16, 16, 256, 2, 0, 0}}};
static const tile_row backward_f64[] = {{ANY, 128, {32, 32, 256, 2, 0, 0}}, {ANY, 256, {16, 16, 256, 2, 0, 0}}};

static tile_table tiles(const plan *p) {
  if (p->pass == LUATTN_BACKWARD) return p->dtype == LUATTN_F64 ? TILE_TABLE(backward_f64) : TILE_TABLE(backward_f32);
  return p->dtype == LUATTN_F64 ? TILE_TABLE(forward_f64) : TILE_TABLE(forward_f32);
}

static int forward_bytes(LayoutSizes s) { return simt_bytes(s, 2); }
static int backward_bytes(LayoutSizes s) { return simt_bytes(s, 4); }

static bool is_for(const luattn_target *t) { return t->tangents != 0; }

/* What no kernel with tangents is for, of any family. */
static luattn_status check_target(const luattn_target *t, luattn_error *err) {
  const char *beside = t->decode != 0          ? "decode"
                       : t->weights != 0       ? "weights"
                       : t->keys_modified != 0 ? "keys_modified"
                                               : NULL;
  if (t->tangents == 0) return LUATTN_OK;
  if (beside != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "target: tangents: are given beside %s, which has none; leave one of both 0", beside);
  if (t->pages != 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: tangents: are given for keys in pages, of which there are none; copy them to k of "
                       "equal lengths, or to packed sequences");
  if (t->large_scores != 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: tangents: are given beside large_scores, which kernels with tangents have not; leave "
                       "one of both 0, or compute tangents on the CPU");
  return LUATTN_OK;
}

static luattn_status can_run(const plan *p, luattn_error *err) { return family_can_run_tangents(p, 0, NULL, err); }

/* Why half types have no tensor cores here. */
static const char *note(arena *a, const plan *p) {
  const bool half = p->dtype == LUATTN_F16 || p->dtype == LUATTN_BF16;
  (void)a;
  return half && p->axes > 0 ? "tensor cores: sm90 and sm80 have no kernels with tangents over a grid yet\n" : "";
}

const struct family family_jvp_simt = {.id = LUATTN_SIMT,
                                       .says = "multiply-adds in f32 or f64, with tangents",
                                       .dtypes = FAMILY_HALVES | FAMILY_REALS,
                                       .grid_dtypes = FAMILY_HALVES | FAMILY_REALS,
                                       .is_for = is_for,
                                       .check_target = check_target,
                                       .can_run = can_run,
                                       .note = note,
                                       .page_multiple = 1,
                                       .takes_tangents = true,
                                       .kernel = {[LUATTN_FORWARD] = {.file = "entry/fwd_jvp_simt.cu",
                                                                      .entry = "luattn_fwd_jvp",
                                                                      .tiles = tiles,
                                                                      .check = simt_check,
                                                                      .suits = simt_suits,
                                                                      .shared_bytes = forward_bytes,
                                                                      .copies = simt_copies,
                                                                      .measured = &simt_forward_measured},
                                                  [LUATTN_BACKWARD] = {.file = "entry/bwd_jvp_simt.cu",
                                                                       .tiles = tiles,
                                                                       .check = simt_check,
                                                                       .suits = simt_suits,
                                                                       .shared_bytes = backward_bytes,
                                                                       .static_bytes = family_sum_bytes,
                                                                       .copies = simt_copies,
                                                                       .measured = &simt_backward_measured,
                                                                       .has_lane_sums = true}}};
