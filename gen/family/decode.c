/* decode.c: few queries; query heads of a kv head are rows of one tile, and warps and blocks share the keys. Of
 * sm80. */
#include "gen/family/parts.h"

/* Two blocks on a multiprocessor where both fit, with 16 KB of a warp's keys and more under way. Short: up to 16 rows
 * of a kv head. Of 32 rows, tiles of 32 make 1.17 and 1.4 of the bytes a second (H200, 32 and 4 entries); of 36 and 64,
 * tiles of 64 1.5 to 1.8 of those of 32, but of 20 and 32 rows 0.89 to 0.98. */
static const tile_row forward[] = {{LARGE | NOT_SHORT, 64, {32, 128, 128, 3, 0, 0}},
                                   {LARGE | NOT_SHORT | MANY_ROWS, 128, {64, 64, 128, 3, 0, 0}},
                                   {LARGE | NOT_SHORT, 128, {32, 64, 128, 3, 0, 0}},
                                   {LARGE, 64, {16, 128, 128, 3, 0, 0}},
                                   {MIDDLE, 64, {16, 128, 128, 2, 0, 0}},
                                   {SMALL, 64, {16, 128, 128, 2, 0, 0}},
                                   {LARGE, 128, {16, 64, 128, 3, 0, 0}},
                                   {MIDDLE, 128, {16, 64, 128, 2, 0, 0}},
                                   {SMALL, 128, {16, 64, 128, 2, 0, 0}},
                                   {LARGE, 256, {16, 64, 128, 3, 0, 0}},
                                   {MIDDLE, 256, {16, 64, 128, 2, 0, 0}},
                                   {ANY, 256, {16, 32, 64, 2, 0, 0}}};

static tile_table tiles(const plan *p) {
  (void)p;
  return TILE_TABLE(forward);
}

/* Warps by keys of a warp's tile by stages. */
static int candidates(luattn_tiles out[PLAN_MAX_CANDIDATES]) {
  int n = 0;
  for (int tile_m = 16; tile_m <= 32; tile_m *= 2)
    for (int warps = 2; warps <= 8; warps *= 2)
      for (int keys = 16; keys <= 64; keys *= 2)
        for (int stages = 2; stages <= 4; stages++)
          out[n++] = (luattn_tiles){tile_m, warps * keys, 32 * warps, stages, 0, 0};
  for (int keys = 16; keys <= 32; keys *= 2) /* 64 rows: of four warps, two share keys */
    for (int stages = 3; stages <= 6; stages++) out[n++] = (luattn_tiles){64, 2 * keys, 128, stages, 0, 0};
  return n;
}

static luattn_status check(const plan *p, luattn_error *err) {
  if (p->tile_m != 16 && p->tile_m != 32 && p->tile_m != 64)
    return family_refuse(p, false, "decode takes 16, 32 or 64", err);
  if (p->tile_m == 64 && (p->threads < 64 || p->tile_n % (p->threads / 4) != 0))
    return family_refuse(p, true, "decode takes multiples of 16 for two warps each where tile_m is 64", err);
  if (p->tile_n < 16 || (p->tile_m < 64 && p->tile_n % (p->threads / 2) != 0))
    return family_refuse(p, true, "decode takes multiples of 16 for each warp, 64 for four", err);
  if (p->tile_m == 64 && (p->head_dim <= 16 || p->head_dim_v <= 16) && p->tile_n % (p->threads / 2) != 0)
    return family_refuse(
        p, true, "decode takes multiples of 32 for two warps each where tile_m is 64 and a head dim at most 16", err);
  return LUATTN_OK;
}

static bool suits(const plan *p) { return p->stages >= 2 && p->stages <= 8 && p->threads >= 32 && p->threads <= 256; }

static bool fits_registers(const plan *p) {
  const int groups = decode_row_groups(p->tile_m), dim_v = (p->head_dim_v + 15) / 16 * 16;
  return p->tile_m / groups * (p->tile_n / (p->threads / 32 / groups) + dim_v) / 32 <= 176;
}

static int shared_bytes(LayoutSizes s) { return decode_layout(s).bytes; }

/* A warp has all rows, or half of 64, and columns of its own or with the other half's warp. */
static plan_copies copies(const plan *p) {
  const int groups = decode_row_groups(p->tile_m), row = p->tile_m / groups / 8,
            col = p->tile_n / (p->threads / 32 / groups) / 4;
  return (plan_copies){.row = row, .col = col, .element = row * col};
}

static bool is_for(const luattn_target *t) { return t->decode != 0; }

/* But for an online function whose parts cannot be merged, which gen/lower refuses. */
static luattn_status check_target(const luattn_target *t, luattn_error *err) {
  if (t->decode == 0) return LUATTN_OK;
  if (t->pass != LUATTN_FORWARD)
    return luattn_fail(err, LUATTN_INVALID,
                       "target: decode: is %d for a %s kernel, and is of forward alone; leave it 0", t->decode,
                       kernel_pass_name(t->pass));
  if ((1u << t->dtype & FAMILY_HALVES) == 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: decode: is %d for %s, and the decode kernel runs f16 and bf16; leave it 0", t->decode,
                       kernel_dtype_name(t->dtype));
  if (t->family != 0 && t->family != 1 + (int)family_decode.id)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: decode: is %d for the family %s, and the decode kernel is of sm80; leave family 0",
                       t->decode, kernel_family_name((uint32_t)t->family - 1));
  if (t->offsets == LUATTN_OFFSET_CHUNKS)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: decode: is %d, and offsets are chunks, which the decode kernel does not take yet; leave it 0",
        t->decode);
  return LUATTN_OK;
}

const struct family family_decode = {.id = LUATTN_SM80,
                                     .says = "mma.sync with f32 accumulation, head dims that are multiples of 8",
                                     .before =
                                         "decode: query heads of a kv head are rows of one tile, and warps and blocks "
                                         "share the keys (luattn_args.num_splits); "
                                         "luattn_merge merges what blocks leave\n",
                                     .dtypes = FAMILY_HALVES,
                                     .is_for = is_for,
                                     .check_target = check_target,
                                     .page_multiple = 1,
                                     .fast_math = true,
                                     .merges = true,
                                     .groups_masks = true,
                                     .kernel = {[LUATTN_FORWARD] = {.file = "entry/fwd_decode.cu",
                                                                    .entry = "luattn_fwd",
                                                                    .tiles = tiles,
                                                                    .candidates = candidates,
                                                                    .check = check,
                                                                    .suits = suits,
                                                                    .fits_registers = fits_registers,
                                                                    .shared_bytes = shared_bytes,
                                                                    .copies = copies,
                                                                    .measured = &sm80_forward_measured,
                                                                    .splits = true}}};
