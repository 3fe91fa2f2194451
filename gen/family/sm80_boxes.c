/* sm80_boxes.c: over a grid, the pairs of boxes that calls of the sm80 family choose from, of the tiles that it takes first. */
#include "gen/family/parts.h"

enum { PAIRS = 3 };

/* The pairs of tiles of so many queries and keys. `count` 0: of none, the plan's own boxes. */
typedef struct pair_row {
  int tile_m, tile_n, axes, count;
  box_extents pair[PAIRS];
} pair_row;

/* Of all pairs of these sizes by the counts of plan/boxes.c those that are best for windows of 80 x 80 over 256 x 256, for
 * those of 7 x 7 to 13 x 13 over 128 x 128, and for lines (of three axes: 18 x 24 x 24 over 30 x 48 x 80, causal along the
 * first axis, small windows). The first one costs 1.00 to 1.11 of the best pair for each of five windows over two axes. */
static const pair_row forward[] = {
    {128, 64, 2, 3, {{{1, 1, 8, 16}, {1, 1, 8, 8}}, {{1, 1, 16, 8}, {1, 1, 16, 4}}, {{1, 1, 2, 64}, {1, 1, 2, 32}}}},
    {128, 32, 2, 3, {{{1, 1, 8, 16}, {1, 1, 4, 8}}, {{1, 1, 16, 8}, {1, 1, 8, 4}}, {{1, 1, 2, 64}, {1, 1, 2, 16}}}},
    {64, 64, 2, 2, {{{1, 1, 8, 8}, {1, 1, 8, 8}}, {{1, 1, 4, 16}, {1, 1, 16, 4}}}},
    {128, 64, 3, 3, {{{1, 2, 8, 8}, {1, 2, 4, 8}}, {{1, 2, 8, 8}, {1, 8, 2, 4}}, {{1, 4, 8, 4}, {1, 4, 4, 4}}}},
    {128, 32, 3, 3, {{{1, 2, 8, 8}, {1, 2, 4, 4}}, {{1, 2, 8, 8}, {1, 8, 1, 4}}, {{1, 4, 8, 4}, {1, 4, 2, 4}}}},
    {64, 64, 3, 2, {{{1, 2, 8, 4}, {1, 2, 8, 4}}, {{1, 2, 8, 4}, {1, 8, 2, 4}}}}};
static const pair_row backward[] = {
    {64, 128, 2, 2, {{{1, 1, 8, 8}, {1, 1, 8, 16}}, {{1, 1, 2, 32}, {1, 1, 2, 64}}}},
    {128, 128, 2, 3, {{{1, 1, 8, 16}, {1, 1, 16, 8}}, {{1, 1, 16, 8}, {1, 1, 16, 8}}, {{1, 1, 2, 64}, {1, 1, 2, 64}}}},
    {32, 128, 2, 2, {{{1, 1, 4, 8}, {1, 1, 8, 16}}, {{1, 1, 2, 16}, {1, 1, 2, 64}}}},
    {64, 64, 2, 2, {{{1, 1, 8, 8}, {1, 1, 8, 8}}, {{1, 1, 8, 8}, {1, 1, 4, 16}}}},
    {64, 128, 3, 3, {{{1, 2, 8, 4}, {1, 4, 4, 8}}, {{1, 1, 8, 8}, {1, 2, 8, 8}}, {{1, 4, 4, 4}, {1, 2, 8, 8}}}},
    {128, 128, 3, 2, {{{1, 4, 8, 4}, {1, 4, 4, 8}}, {{1, 2, 8, 8}, {1, 2, 8, 8}}}},
    {32, 128, 3, 2, {{{1, 2, 4, 4}, {1, 4, 8, 4}}, {{1, 1, 8, 4}, {1, 2, 8, 8}}}},
    {64, 64, 3, 2, {{{1, 2, 8, 4}, {1, 2, 4, 8}}, {{1, 4, 4, 4}, {1, 4, 4, 4}}}}};

/* As plans do, which take a row of the table with two numbers for each query of backward. */
static bool comes_first(const tile_row *row, const plan *p) {
  const plan_rows least = {.bwd_row_bytes = 8};
  plan of = *p;
  of.tile_m = row->choice.tile_m, of.tile_n = row->choice.tile_n, of.threads = row->choice.threads;
  of.stages = row->choice.stages, of.sm80_warps_n = row->choice.warps_n;
  return family_row_suits(row, p) && plan_kernel(p)->shared_bytes(plan_sizes(&of, &least)) <= p->shared_limit;
}

int sm80_box_pairs(const plan *p, tile_table tiles, const box_extents **pairs) {
  const bool is_forward = p->pass == LUATTN_FORWARD;
  const pair_row *rows = is_forward ? forward : backward;
  const size_t count = is_forward ? sizeof forward / sizeof *forward : sizeof backward / sizeof *backward;
  int first = 0;
  while (first < tiles.count && !comes_first(&tiles.row[first], p)) first++;
  for (size_t i = 0; i < count && first < tiles.count; i++) {
    const luattn_tiles *of = &tiles.row[first].choice;
    if (rows[i].tile_m != of->tile_m || rows[i].tile_n != of->tile_n || rows[i].axes != p->axes) continue;
    *pairs = rows[i].pair;
    return rows[i].count;
  }
  return 0;
}
