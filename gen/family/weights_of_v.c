/* weights_of_v.c: writes the weights of V in place of O, for tests and pictures; of simt, and for all types. */
#include <stdio.h>

#include "gen/family/parts.h"

/* Few registers, so that any hooks fit. */
static const tile_row forward[] = {{ANY, 256, {32, 32, 128, 2, 0, 0}}, {ANY, 256, {16, 32, 128, 2, 0, 0}}};

static tile_table tiles(const plan *p) {
  (void)p;
  return TILE_TABLE(forward);
}

static bool is_for(const luattn_target *t) { return t->weights != 0; }

static luattn_status check_target(const luattn_target *t, luattn_error *err) {
  char pass[32];
  snprintf(pass, sizeof pass, "a %s pass", kernel_pass_name(t->pass));
  const char *beside = t->pass != LUATTN_FORWARD ? pass
                       : t->decode != 0          ? "decode"
                       : t->large_scores != 0    ? "large_scores"
                       : t->out_f32 != 0         ? "out_f32"
                                                 : NULL;
  if (t->weights == 0) return LUATTN_OK;
  if (beside != NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "target: weights: is 1 beside %s, and is a kernel of its own; leave one of both 0", beside);
  if (t->pages != 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: weights: is 1 for keys in pages, of which there are no weights; copy them to k of "
                       "equal lengths, or to "
                       "packed sequences");
  if (t->offsets == LUATTN_OFFSET_CHUNKS)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "target: weights: is 1, and offsets are chunks, which its kernel does not take yet; ask the CPU, or "
        "for each range of positions");
  if (t->family > 1 + (int)family_weights.id)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "target: weights: is 1 for the family %s, and the kernel is of simt; leave family 0",
                       kernel_family_name((uint32_t)t->family - 1));
  return LUATTN_OK;
}

const struct family family_weights = {
    .id = LUATTN_SIMT,
    .says = "multiply-adds in f32 or f64",
    .before = "weights: luattn_weights writes those of V instead of O, for tests and pictures\n",
    .dtypes = FAMILY_HALVES | FAMILY_REALS,
    .is_for = is_for,
    .check_target = check_target,
    .page_multiple = 1,
    .grid_dtypes = FAMILY_HALVES | FAMILY_REALS,
    .writes_weights = true,
    .kernel = {
        [LUATTN_FORWARD] = {.file = "entry/weights.cu", .entry = "luattn_weights", .tiles = tiles, SIMT_FORWARD}}};
