/* sm90.c: wgmma and TMA, for f16 and bf16 on arch 90. Backward has tiles of 128 keys; d256.c has the other. */
#include <math.h>

#include "gen/family/parts.h"

/* Three consumers not at short lengths: a tile of 192 queries wastes more work on rows past the end and on masked-out
 * scores than a third consumer gains. */
static const tile_row forward[] = {{ANY | NOT_SHORT, 64, {192, 128, 512, 3, 0, 0}},
                                   {ANY | NOT_SHORT, 64, {192, 96, 512, 3, 0, 0}},
                                   {ANY, 64, {128, 128, 384, 3, 0, 0}},
                                   {ANY, 192, {128, 128, 384, 2, 0, 0}},
                                   {ANY, 192, {128, 112, 384, 2, 0, 0}},
                                   {ANY, 192, {128, 96, 384, 2, 0, 0}},
                                   {ANY, 256, {128, 96, 384, 2, 0, 0}},
                                   {ANY, 256, {128, 80, 384, 2, 0, 0}},
                                   {ANY, 256, {128, 64, 384, 2, 0, 0}},
                                   {ANY, 256, {128, 32, 384, 2, 0, 0}}};
/* With the soft cap's fast path, the kernel is bound by some eight instructions per score; a third consumer
 * adds issue slots for them. */
static const luattn_tiles for_softcap_poly = {192, 80, 512, 3, 0, 0};
/* Of a mask whose blocks have 64 keys, tiles of 128 keys would compute what lies beside a block. */
static const luattn_tiles for_narrow_blocks = {128, 64, 384, 4, 0, 0};
/* The last are d256's, whose scores have a warpgroup, and registers, of their own. */
static const tile_row backward[] = {
    {ANY, 64, {128, 128, 384, 2, 0, 0}}, {ANY, 128, {64, 128, 384, 2, 0, 0}}, {ANY, 256, {64, 64, 512, 2, 0, 0}}};

/* Over a grid forward has boxes of 128 queries. Of pairs by the counts of plan/boxes.c, over windows, blocks and causal
 * masks of these ranks, these three cost 1.05 of the best pair for each over two axes, and 1.11 over three (geometric
 * means): 256 x 256 with a window of 80 x 80, 1.00; 128 x 128 with 13 x 13, the third, and with 7 x 7, the second, 1.00;
 * of three axes 30 x 48 x 80 with 18 x 24 x 24, 1.00. For 13 x 13 the third is 1.06 times as fast as 8 x 16 by 4 x 28,
 * of which there are as many: bits of 28 places along the innermost axis take more instructions. */
static const box_extents pairs_of_two[] = {{{1, 1, 16, 8}, {1, 1, 16, 8}},
                                           {{1, 1, 8, 16}, {1, 1, 14, 8}},
                                           {{1, 1, 16, 8}, {1, 1, 28, 4}}},
                         pairs_of_three[] = {{{1, 2, 8, 8}, {1, 2, 8, 8}},
                                             {{1, 4, 8, 4}, {1, 4, 8, 4}},
                                             {{1, 8, 4, 4}, {1, 6, 4, 4}}},
                         pairs_of_four[] = {{{1, 2, 8, 8}, {1, 2, 8, 8}}, {{2, 4, 4, 4}, {2, 4, 4, 4}}};
#define BOX_PAIRS(rows) (*pairs = (rows), (int)(sizeof(rows) / sizeof(rows)[0]))
static int forward_pairs(const plan *p, const box_extents **pairs) {
  return p->axes == 2 ? BOX_PAIRS(pairs_of_two) : p->axes == 3 ? BOX_PAIRS(pairs_of_three) : BOX_PAIRS(pairs_of_four);
}

/* Backward has boxes of 64 queries by 128 keys, on lattices from 0 on. Of two axes a warp's 16 keys have rows of 8, as queries
 * have: more of its scores have the same displacement. Of three axes the first is the best one for 30 x 48 x
 * 80 with a window of 18 x 24 x 24, and the second for the same in strides of 16 x 8 x 8, whose blocks it leaves whole. */
static const box_extents backward_of_three[] = {{{1, 4, 4, 4}, {1, 2, 8, 8}}, {{1, 2, 4, 8}, {1, 2, 8, 8}}};
static const box_extents backward_of_two[] = {{{1, 1, 8, 8}, {1, 1, 16, 8}}};
/* Where gradients are summed by displacement, for which both have rows of 8. */
static const box_extents summed[] = {{{1, 2, 4, 8}, {1, 2, 8, 8}}},
                         summed_of_64[] = {{{1, 2, 8, 8}, {1, 2, 8, 8}}}; /* of four axes, for head dims up to 64 */
int sm90_backward_pairs(const plan *p, const box_extents **pairs) {
  const int dim = most_of(p->head_dim, p->head_dim_v);
  if (p->learns_displacements && dim <= 64 && p->axes == 4) return BOX_PAIRS(summed_of_64);
  if (p->learns_displacements && dim > 64 && dim <= 128 && p->axes > 2) return BOX_PAIRS(summed);
  if (dim <= 64) return 0;
  return p->axes == 2 ? BOX_PAIRS(backward_of_two) : p->axes == 3 ? BOX_PAIRS(backward_of_three) : 0;
}

/* Blocks of 8 keys by 8 queries are summed along their diagonals. */
static bool sums_displacements(const plan *p) {
  int q[LUATTN_MAX_AXES], kv[LUATTN_MAX_AXES];
  family_box(p, false, q), family_box(p, true, kv);
  return q[LUATTN_MAX_AXES - 1] % 8 == 0 && kv[LUATTN_MAX_AXES - 1] % 8 == 0;
}

static tile_table forward_tiles(const plan *p) {
  (void)p;
  return TILE_TABLE(forward);
}

tile_table sm90_backward_tiles(const plan *p) {
  (void)p;
  return TILE_TABLE(backward);
}

static int forward_preferred(const plan *p, luattn_tiles out[FAMILY_MAX_PREFERRED]) {
  const int dim = most_of(p->head_dim, p->head_dim_v);
  const box_extents *pairs;
  const int count = family_box_pairs(p, &pairs), first = p->boxes > 0 ? p->boxes - 1 : 0;
  int n = 0;
  if (count > 0 && first < count) {
    out[n++] = (luattn_tiles){128, family_box_rows(pairs[first].kv), 384, dim <= 64 ? 3 : 2, 0, 0};
    return n;
  }
  if (p->softcap_poly && dim > 64 && dim <= 128) out[n++] = for_softcap_poly;
  if (p->by_narrow_blocks && dim <= 128) out[n++] = for_narrow_blocks;
  return n;
}

/* A consumer warpgroup for each 64 rows (of q, or of k and v), plus one for the producer. */
static int forward_threads(const plan *p) { return 128 + 2 * p->tile_m; }
static int backward_threads(const plan *p) { return 128 + 2 * p->tile_n; }

/* Three consumers have 160 registers a thread. */
static bool is_narrow(const plan *p) { return p->head_dim <= 64 && p->head_dim_v <= 64; }

/* A consumer's 64 queries, and a warp's 16, are boxes themselves if extents are powers of two, but for the outermost one
 * that is no 1; bits of a thread's columns (templates/score/box_bits.cuh) take four keys along the innermost axis. */
static luattn_status check_boxes(const plan *p, luattn_error *err) {
  static const char valid[] =
      "sm90 forward takes boxes of 128 queries with extents that are powers of two, as 16 x 8 or 2 x 8 x 8, by boxes "
      "of 16 "
      "to 256 keys, a multiple of 16, of which the innermost extent is a multiple of 4, as 16 x 8, 4 x 28 or 6 x 4 x 4";
  int q[LUATTN_MAX_AXES], kv[LUATTN_MAX_AXES], outermost = LUATTN_MAX_AXES - p->axes;
  family_box(p, false, q), family_box(p, true, kv);
  while (outermost < LUATTN_MAX_AXES - 1 && q[outermost] == 1) outermost++;
  for (int a = outermost; a < LUATTN_MAX_AXES; a++)
    if ((q[a] & (q[a] - 1)) != 0 && (a > outermost || p->query_tile_size != 0))
      return luattn_fail(err, LUATTN_INVALID, "target: query_tile_size: has an extent of %d: %s", q[a], valid);
  if (p->query_tile_size != 0 && p->tile_m != 128)
    return luattn_fail(err, LUATTN_INVALID, "target: query_tile_size: has %d queries: %s", p->tile_m, valid);
  if (kv[LUATTN_MAX_AXES - 1] % 4 != 0)
    return luattn_fail(err, LUATTN_INVALID, "target: key_tile_size: has the innermost extent %d: %s",
                       kv[LUATTN_MAX_AXES - 1], valid);
  if (p->key_tile_size != 0 && (p->tile_n < 16 || p->tile_n % 16 != 0 || p->tile_n > 256))
    return luattn_fail(err, LUATTN_INVALID, "target: key_tile_size: has %d keys: %s", p->tile_n, valid);
  return LUATTN_OK;
}

static luattn_status check_forward(const plan *p, luattn_error *err) {
  if (p->axes > 0) TRY(check_boxes(p, err));
  if (p->tile_m != 128 && !(p->tile_m == 192 && is_narrow(p)))
    return family_refuse(p, false, "sm90 forward takes 128, or 192 for head dims up to 64", err);
  if (p->tile_n < 16 || p->tile_n % 16 != 0 || p->tile_n > 256)
    return family_refuse(p, true, "sm90 forward takes multiples of 16 up to 256", err);
  return LUATTN_OK;
}

static luattn_status check_backward(const plan *p, luattn_error *err) {
  if (p->tile_m != 64 && !(p->tile_m == 128 && is_narrow(p)))
    return family_refuse(p, false, "sm90 backward takes 64, or 128 for head dims up to 64", err);
  if (p->tile_n != 128) return family_refuse(p, true, "sm90 backward takes 128, or 64 where tile_m is 64", err);
  return LUATTN_OK;
}

bool sm90_suits(const plan *p) {
  return p->stages >= 2 && p->stages <= 4 && (p->pass == LUATTN_FORWARD || p->tile_m <= 128);
}

/* 64 rows a warpgroup: scores, P, O, and 32 more. */
static bool fits_registers(const plan *p) {
  const int dim_v = (p->head_dim_v + 15) / 16 * 16, registers = p->tile_m > 128 ? 160 : 240;
  return p->tile_n / 2 + p->tile_n / 4 + dim_v / 2 + 32 <= registers;
}

static int forward_bytes(LayoutSizes s) { return fwd_sm90_layout(s).bytes; }
static int backward_bytes(LayoutSizes s) { return bwd_sm90_layout(s).bytes; }

/* Fragments of 16 rows, shared by four threads. A warp loads the columns' numbers; a mask's are not counted. The first
 * kv tile has a copy of its own. */
static plan_copies forward_copies(const plan *p) {
  const int row = 2, element = row * 2 * p->tile_n / 4;
  return (plan_copies){.row = row, .col = (p->tile_n + 31) / 32, .element = element, .col_apart = element / row};
}

/* Transposed: two kv rows, shared by four threads. */
plan_copies sm90_backward_copies(const plan *p) { return (plan_copies){.row = 1, .col = 2, .element = p->tile_m / 2}; }

unsigned sm90_width_bit(int columns) { return 1u << ((columns + 15) / 16 - 1); }
unsigned sm90_score_widths(const plan *p) { return sm90_width_bit(p->tile_n); }
unsigned sm90_o_widths(const plan *p) { return sm90_width_bit(p->head_dim_v); }

/* Widths of scores, of dk and dv, and of a consumer's share of dq. */
static unsigned backward_widths(const plan *p) {
  const int boxes = (p->head_dim + 63) / 64;
  return sm90_width_bit(p->tile_m) | sm90_width_bit(p->head_dim) | sm90_width_bit(p->head_dim_v) |
         sm90_width_bit(boxes * (p->tile_m == 128 ? 64 : 32));
}

/* ---- thresholds ---- */

/* Bias rows that do not fit shared memory; up to head dim 64 three consumers with a called hook, which have registers
 * for 96 columns of scores, and with P masked by scores of 0, which do not replace their scores; and bias rows, whose
 * loaders need the registers of the third. */
static bool forward_is_crowded(const plan *p, const plan_rows *rows, const crowding *by) {
  const bool full = p->head_dim > 48 || p->head_dim_v > 48, reads_ahead = rows->bias_row_bytes > 0;
  if (reads_ahead && !fwd_sm90_layout(plan_sizes(p, rows)).has_bias_rows) return true;
  return p->tile_m == 192 && ((by->calls && p->tile_n == 128) || (full && by->mask_by_zero) || reads_ahead);
}

/* Gradients of pair biases; and bias rows, which take a register for each score. */
static bool backward_is_crowded(const plan *p, const plan_rows *rows, const crowding *by) {
  const bool full = p->head_dim > 48 || p->head_dim_v > 48;
  return p->tile_m == 128 && ((full && !by->calls && by->has_pairs) || rows->bias_row_bytes > 0);
}

/* Three consumers spill around each call: 144 bytes there cost two thirds of the speed. */
static int forward_spills_accepted(const plan *p, const plan_rows *rows, int next_to_hooks) {
  (void)rows;
  return 64 + (p->threads == 512 ? 0 : next_to_hooks);
}

/* The tiles after the first are slower by a third. Over a grid the loading warp spills 300 to 600 bytes beside the walk over
 * boxes, for which it has time. The loading warps spill up to 88 of the bytes, and for bias rows 112
 * more: with 390 in all such a kernel is 1.4 times as fast as the next. A mask from data spills in the producer, and
 * where tiles are kept in part; sm80 takes four times as long. */
static int backward_spills_accepted(const plan *p, const plan_rows *rows, int next_to_hooks) {
  const int loading = rows->bias_row_bytes > 0 ? 112 : 0, masking = rows->evaluated != NULL ? 128 : 0;
  return (p->axes > 0 ? 640 : 288) + loading + masking + next_to_hooks;
}

static int forward_tiles_skipped(const plan *p, int spills) {
  (void)p;
  return spills > 500;
}

/* 308 to 692 bytes, then none in sm80's first or second tiles, 2000 and more none in its third. Of six specs, 302, 846
 * and 3740 bytes at D 128 became 8, 116 and 496 with 64 x 64, and 10208 and 12288 stayed what they were: then sm80's
 * tiles are next, but for the first. */
static int backward_tiles_skipped(const plan *p, int spills) {
  const int own = p->tile_m == 128 ? 2 : 1; /* of the family's tiles that are left */
  if (spills > 5000) return own + 2;
  return own == 2 && spills > 350;
}

bool sm90_sums_exceed(const plan *p, const compile_work *w, int sums) {
  return w->of[WORK_SUMMED] > sums * plan_kernel(p)->copies(p).element;
}

/* With 16 sums for each score it spills 700 bytes, with 26 and more 4 to 20 KB. */
static bool lacks_registers(const plan *p, const compile_work *w) {
  const int free = (256 - p->head_dim - p->head_dim_v) / 2 - (p->tile_m - 64);
  return sm90_sums_exceed(p, w, SM90_SUMS + most_of(free, 0));
}

/* 36 sums beside a call of 6100 instructions took 8.7 times as long as `causal` and spilled 6 KB. */
static const double summed_in_calls = 0.012;
double sm90_backward_beside_calls(const plan *p, const compile_work *w) {
  (void)p;
  return summed_in_calls * fmax(w->of[WORK_FLUSHED] - SM90_SUMS, 0) * w->of[WORK_CALLED] / 1000;
}

static int forward_left_out(const plan *p, bool is_grid, const char **out) {
  const bool large = is_of_large_dims(p) && !is_grid;
  out[0] = large ? combine_nothing : combine_less_often, out[1] = hoist_nothing;
  return large ? 2 : 1;
}

/* Producers compute the sines of keys: 7000 instructions of sines take ten times as long as `causal`, 26000 a hundred
 * times. */
static const family_thresholds forward_measured = {.compile = SM90_FORWARD_WEIGHTS,
                                                   .is_crowded = forward_is_crowded,
                                                   .spills_accepted = forward_spills_accepted,
                                                   .tiles_skipped = forward_tiles_skipped,
                                                   .left_out_passes = forward_left_out};
/* Bias rows make a kernel 1.05 to 1.5 times as fast up to 190 spilled bytes of luattn_dkdv, and cost it 0.09 of its
 * speed at 270 and 290. */
static const family_thresholds backward_measured = {.compile = SM90_BACKWARD_WEIGHTS,
                                                    .beside_calls = sm90_backward_beside_calls,
                                                    .is_crowded = backward_is_crowded,
                                                    .spills_accepted = backward_spills_accepted,
                                                    .tiles_skipped = backward_tiles_skipped,
                                                    .lacks_registers = lacks_registers,
                                                    .bias_rows_spill = 240};

luattn_status sm90_can_run(const plan *p, luattn_error *err) {
  if (p->pages == 1)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: family: sm90 reads pages whose sizes are multiples of 8, and pages is 1, for any size; use sm80, "
        "or leave family 0");
  return LUATTN_OK;
}

bool sm90_is_d256(const plan *p) {
  return p->pass == LUATTN_BACKWARD && (most_of(p->head_dim, p->head_dim_v) > 128 || p->tile_n == 64);
}

static bool takes_tiles(const plan *p) { return !sm90_is_d256(p); }

const struct family family_sm90 = {SM90_FACTS, .takes_tiles = takes_tiles,
                                   .kernel = {[LUATTN_FORWARD] = {.file = "entry/fwd_sm90.cu",
                                                                  .entry = "luattn_fwd",
                                                                  .takes_chunks = true,
                                                                  .tiles = forward_tiles,
                                                                  .preferred = forward_preferred,
                                                                  .box_pairs = forward_pairs,
                                                                  .threads = forward_threads,
                                                                  .check = check_forward,
                                                                  .suits = sm90_suits,
                                                                  .fits_registers = fits_registers,
                                                                  .shared_bytes = forward_bytes,
                                                                  .copies = forward_copies,
                                                                  .product_widths = sm90_score_widths,
                                                                  .o_widths = sm90_o_widths,
                                                                  .measured = &forward_measured,
                                                                  .free_boxes = true,
                                                                  .steps_of_16 = true,
                                                                  .draws_tiles = true,
                                                                  .rescales_lazily = true,
                                                                  .shifts_rows = true,
                                                                  .has_polynomials = true,
                                                                  .fetches_columns = true,
                                                                  .has_distance_terms = true,
                                                                  .has_displacement_terms = true,
                                                                  .keeps_displacements_twice = true},
                                              [LUATTN_BACKWARD] = {.file = "entry/bwd_sm90.cu",
                                                                   .takes_chunks = true,
                                                                   .sums_no_chunks = true,
                                                                   .box_pairs = sm90_backward_pairs,
                                                                   .tiles = sm90_backward_tiles,
                                                                   .threads = backward_threads,
                                                                   .check = check_backward,
                                                                   .suits = sm90_suits,
                                                                   .shared_bytes = backward_bytes,
                                                                   .copies = sm90_backward_copies,
                                                                   .product_widths = backward_widths,
                                                                   .falls_back_to = &family_sm80,
                                                                   .measured = &backward_measured,
                                                                   .accumulates_dq = true,
                                                                   .splits = true,
                                                                   .prepares_stats = true,
                                                                   .stores_dq_first = true,
                                                                   .reads_query_lists = true,
                                                                   .masks_without_row = true,
                                                                   .keeps_places = true,
                                                                   .regroups_all_masks = true,
                                                                   .has_displacement_terms = true,
                                                                   .sums_displacements = sums_displacements}}};
