/* jvp_sm80.c: forward, and backward, with tangents by mma.sync, for f16 and bf16 on every arch: forward of every
 * head dim, backward up to 128. */
#include "gen/family/parts.h"

/* 16 rows a warp: its two accumulators take 128 registers of a thread at head dim 128, S and its tangent as many as there are
 * keys in a tile. */
static const tile_row forward[] = {{ANY, 64, {128, 64, 256, 2, 0, 0}},     {SMALL, 128, {64, 32, 128, 2, 0, 0}},
                                   {MIDDLE, 128, {128, 48, 256, 2, 0, 0}}, {LARGE, 128, {128, 48, 256, 2, 0, 0}},
                                   {ANY, 128, {128, 32, 256, 2, 0, 0}},    {ANY, 128, {64, 32, 128, 2, 0, 0}},
                                   {ANY, 128, {64, 16, 128, 2, 0, 0}},     {LARGE, 256, {128, 32, 256, 2, 0, 0}},
                                   {ANY, 256, {64, 32, 128, 2, 0, 0}},     {ANY, 256, {64, 16, 128, 2, 0, 0}}};
/* 16 rows a warp, whose sums of tangents of dK and dV take 128 registers of a thread at head dim 128, and scores 64 with
 * 32 rows of the other side at a time. */
static const tile_row backward[] = {{ANY, 64, {128, 128, 256, 2, 8, 32}},     {SMALL, 128, {64, 64, 128, 2, 4, 16}},
                                    {MIDDLE, 128, {128, 128, 256, 2, 8, 16}}, {LARGE, 128, {128, 128, 256, 2, 8, 32}},
                                    {LARGE, 128, {128, 128, 256, 2, 8, 16}},  {ANY, 128, {64, 64, 128, 2, 4, 16}}};

static tile_table tiles(const plan *p) {
  return p->pass == LUATTN_FORWARD ? TILE_TABLE(forward) : TILE_TABLE(backward);
}

static bool is_for(const luattn_target *t) { return t->tangents != 0; }

static luattn_status can_run(const plan *p, luattn_error *err) {
  const bool forward_runs = p->head_dim_v <= 128 || p->head_dim_v % 16 == 0;
  if (p->pass == LUATTN_FORWARD && !forward_runs)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: head_dim_v: is %d, and sm80 has forward with tangents for multiples of 16 above 128; "
                       "simt has others, or leave family 0",
                       p->head_dim_v);
  return family_can_run_tangents(p, p->pass == LUATTN_FORWARD ? 0 : 128, "sm80", err);
}

static luattn_status check_forward(const plan *p, luattn_error *err) {
  if (p->tile_m != p->threads / 2)
    return family_refuse(p, false, "sm80 forward with tangents takes 64 or 128: 16 rows for each of 4 or 8 warps", err);
  if (p->tile_n < 16 || p->tile_n % 16 != 0 || p->tile_n > 128)
    return family_refuse(p, true, "sm80 forward with tangents takes multiples of 16 up to 128", err);
  return LUATTN_OK;
}

static bool suits_forward(const plan *p) { return (p->threads == 128 || p->threads == 256) && p->stages == 2; }

static bool fits_registers(const plan *p) { return p->tile_n + (jvp_value_dim(p->head_dim_v) + 15) / 16 * 16 <= 192; }

static luattn_status check_backward(const plan *p, luattn_error *err) {
  const int own = p->threads / 2; /* 16 for each warp */
  if (p->tile_m != own) return family_refuse(p, false, "sm80 backward with tangents takes 64 or 128", err);
  if (p->tile_n != own) return family_refuse(p, true, "sm80 backward with tangents takes as many as queries", err);
  return LUATTN_OK;
}

static bool suits_backward(const plan *p) {
  return suits_forward(p) && (p->sm80_chunk_m == 16 || p->sm80_chunk_m == 32);
}

static int forward_bytes(LayoutSizes s) {
  s.head_dim_v = jvp_value_dim(s.head_dim_v);
  return fwd_sm80_layout(s).bytes;
}
static int backward_bytes(LayoutSizes s) { return bwd_jvp_sm80_layout(s).bytes; }
static plan_copies forward_copies(const plan *p) {
  return (plan_copies){.row = 2, .col = p->tile_n / 4, .element = p->tile_n / 2};
}
static plan_copies backward_copies(const plan *p) {
  return (plan_copies){.row = 1, .col = p->sm80_chunk_m / 4, .element = p->sm80_chunk_m / 2};
}

const struct family family_jvp_sm80 = {.id = LUATTN_SM80,
                                       .says = "mma.sync with f32 accumulation, with tangents",
                                       .dtypes = FAMILY_HALVES,
                                       .grid_dtypes = FAMILY_HALVES,
                                       .is_for = is_for,
                                       .can_run = can_run,
                                       .page_multiple = 1,
                                       .fast_math = true,
                                       .takes_tangents = true,
                                       .kernel = {[LUATTN_FORWARD] = {.file = "entry/fwd_jvp_sm80.cu",
                                                                      .entry = "luattn_fwd_jvp",
                                                                      .tiles = tiles,
                                                                      .check = check_forward,
                                                                      .suits = suits_forward,
                                                                      .fits_registers = fits_registers,
                                                                      .shared_bytes = forward_bytes,
                                                                      .copies = forward_copies,
                                                                      .measured = &sm80_forward_measured,
                                                                      .steps_of_16 = true},
                                                  [LUATTN_BACKWARD] = {.file = "entry/bwd_jvp_sm80.cu",
                                                                       .tiles = tiles,
                                                                       .check = check_backward,
                                                                       .suits = suits_backward,
                                                                       .shared_bytes = backward_bytes,
                                                                       .static_bytes = family_sum_bytes,
                                                                       .copies = backward_copies,
                                                                       .measured = &sm80_backward_measured,
                                                                       .has_lane_sums = true}}};
