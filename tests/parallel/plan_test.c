/* plan_test.c: partitions of masks as models have them, the model of their time beside one written out, and what is
 * refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "luattn/parallel.h"
#include "parallel/stage_model.h"

enum { TILE = LUATTN_PARALLEL_TILE };

/* ---- masks by intervals of keys: of a block of 128 queries those from *lo on, below *hi ---- */

typedef void interval_mask(int q, int len, int *lo, int *hi);
static int greater(int a, int b) { return a > b ? a : b; }
static int less(int a, int b) { return a < b ? a : b; }
static void causal(int q, int len, int *lo, int *hi) { (void)len, *lo = 0, *hi = q + TILE; }
static void all(int q, int len, int *lo, int *hi) { (void)q, *lo = 0, *hi = len; }
static void window(int q, int len, int *lo, int *hi) { (void)len, *lo = greater(q - 4096, 0), *hi = q + TILE; }
static void prefix(int q, int len, int *lo, int *hi) { *lo = 0, *hi = greater(q + TILE, len / 4); }
static void video(int q, int len, int *lo, int *hi) {
  *lo = greater(q / 8192 - 5, 0) * 8192, *hi = less(((q + TILE - 1) / 8192 + 1) * 8192, len);
}
/* Documents of lengths that double up to an eighth of the sequence. */
static void documents(int q, int len, int *lo, int *hi) {
  int first = 0, size = 256;
  while (first + size <= q) first += size, size = size * 2 <= len / 8 ? size * 2 : 256;
  *lo = first, *hi = q + TILE;
}

static float *counts_of(interval_mask *mask, int len, int chunk_rows) {
  const int n = len / chunk_rows;
  float *tiles = calloc((size_t)n * (size_t)n, sizeof *tiles);
  for (int q = 0; q < len; q += TILE) {
    int lo, hi;
    mask(q, len, &lo, &hi);
    for (int kv = lo / TILE * TILE; kv < hi; kv += TILE)
      ++tiles[(size_t)(q / chunk_rows) * (size_t)n + (size_t)(kv / chunk_rows)];
  }
  return tiles;
}

static luattn_parallel_problem problem_of(const luattn_parallel_layers *layers, int ranks, int chunks, int chunk_rows) {
  return (luattn_parallel_problem){.struct_size = sizeof(luattn_parallel_problem),
                                   .ranks = ranks,
                                   .chunks = chunks,
                                   .chunk_rows = chunk_rows,
                                   .num_layers = 1,
                                   .layers = layers,
                                   .heads = 32,
                                   .heads_kv = 8,
                                   .head_dim = 128,
                                   .head_dim_v = 128,
                                   .elem_bytes = 2};
}

static luattn_parallel_plan *plan_of(const luattn_parallel_problem *p) {
  luattn_parallel_plan *plan;
  luattn_error err;
  if (luattn_parallel_plan_new(p, &plan, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return plan;
}

static const luattn_parallel_candidate *candidate_of(const luattn_parallel_plan *plan, luattn_partition partition) {
  const luattn_parallel_candidate *found = NULL;
  for (int i = 0; i < plan->num_candidates; i++)
    if (plan->candidates[i].partition == partition &&
        (found == NULL || plan->candidates[i].imbalance < found->imbalance))
      found = &plan->candidates[i];
  return found;
}

/* ---- partitions ---- */

static void check_shares(const luattn_parallel_plan *plan) {
  int count[LUATTN_PARALLEL_MAX_RANKS] = {0};
  for (int c = 0; c < plan->chunks; c++) {
    assert_in_range(plan->rank_of[c], 0, plan->ranks - 1);
    count[plan->rank_of[c]]++;
  }
  for (int r = 0; r < plan->ranks; r++) assert_int_equal(count[r], plan->chunks / plan->ranks);
}

static void test_masks_are_balanced(void **unused) {
  (void)unused;
  interval_mask *const masks[] = {causal, all, window, prefix, video, documents};
  for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
    for (int ranks = 2; ranks <= 8; ranks++) {
      const int chunk_rows = 256, chunks = 128 * ranks;
      float *tiles = counts_of(masks[m], chunks * chunk_rows, chunk_rows);
      const luattn_parallel_layers layer = {tiles, 1};
      const luattn_parallel_problem p = problem_of(&layer, ranks, chunks, chunk_rows);
      luattn_parallel_plan *plan = plan_of(&p);
      check_shares(plan);
      const luattn_parallel_candidate *by_counts = candidate_of(plan, LUATTN_PARTITION_BY_COUNTS);
      if (by_counts->imbalance > 1.01)
        fail_msg("mask %zu on %d ranks: %.4f of the mean", m, ranks, by_counts->imbalance);
      for (int i = 0; i < plan->num_candidates; i++) {
        const luattn_parallel_candidate *c = &plan->candidates[i];
        const luattn_parallel_candidate *best = &plan->candidates[plan->chosen];
        const bool simple = c->partition < LUATTN_PARTITION_BY_COUNTS,
                   taken_simple = best->partition < LUATTN_PARTITION_BY_COUNTS;
        assert_true(c->seconds >= (taken_simple && !simple ? 0.99 : 1) * best->seconds);
        assert_true(taken_simple || !simple || best->seconds < 0.99 * c->seconds);
        assert_true(c->imbalance >= 1 - 1e-9 && c->forward <= 1 && c->backward <= 1);
      }
      luattn_parallel_plan_free(plan);
      free(tiles);
    }
}

/* Documents in the first half alone, of one rank: only counts share them out. */
static void test_skewed_documents(void **unused) {
  (void)unused;
  float *tiles = counts_of(documents, 131072, 512);
  const luattn_parallel_layers layer = {tiles, 1};
  const luattn_parallel_problem p = problem_of(&layer, 8, 256, 512);
  luattn_parallel_plan *plan = plan_of(&p);
  assert_true(candidate_of(plan, LUATTN_PARTITION_ZIGZAG)->imbalance > 1.05);
  assert_true(candidate_of(plan, LUATTN_PARTITION_BY_COUNTS)->imbalance < 1.01);
  luattn_parallel_plan_free(plan);
  free(tiles);
}

static double least_seconds(const luattn_parallel_plan *plan, luattn_partition partition) {
  double least = INFINITY;
  for (int i = 0; i < plan->num_candidates; i++)
    if (plan->candidates[i].partition == partition) least = fmin(least, plan->candidates[i].seconds);
  return least;
}

/* Swaps of contiguous parts end evenly enough to be faster than these parts, and no slower than chunks by counts. */
static void test_swaps(void **unused) {
  (void)unused;
  float *tiles = counts_of(prefix, 131072, 4096);
  const luattn_parallel_layers layer = {tiles, 1};
  const luattn_parallel_problem p = problem_of(&layer, 4, 32, 4096);
  luattn_parallel_plan *plan = plan_of(&p);
  check_shares(plan);
  const double by_time = least_seconds(plan, LUATTN_PARTITION_BY_TIME);
  assert_true(by_time < least_seconds(plan, LUATTN_PARTITION_CONTIGUOUS));
  assert_true(by_time <= least_seconds(plan, LUATTN_PARTITION_BY_COUNTS));
  luattn_parallel_plan_free(plan);
  free(tiles);
}

/* Two kinds of layers have one partition, balanced by the sum of their work. */
static void test_layers(void **unused) {
  (void)unused;
  float *full = counts_of(causal, 65536, 512), *local = counts_of(window, 65536, 512);
  const luattn_parallel_layers layers[] = {{full, 1}, {local, 5}};
  luattn_parallel_problem p = problem_of(layers, 4, 128, 512);
  p.num_layers = 2;
  luattn_parallel_plan *both = plan_of(&p), *again = plan_of(&p);
  check_shares(both);
  assert_int_equal(both->chunk_rows, again->chunk_rows);
  assert_memory_equal(both->rank_of, again->rank_of, (size_t)both->chunks * sizeof *both->rank_of);
  double load[4] = {0}, most = 0, sum = 0;
  const int times = both->chunk_rows / 512;
  for (int i = 0; i < 128; i++)
    for (int j = 0; j < 128; j++)
      load[both->rank_of[i / times]] += (double)full[i * 128 + j] + 5 * (double)local[i * 128 + j];
  for (int r = 0; r < 4; r++) sum += load[r], most = fmax(most, load[r]);
  assert_true(fabs(most * 4 / sum - both->candidates[both->chosen].imbalance) < 1e-9);
  luattn_parallel_plan_free(both);
  luattn_parallel_plan_free(again);
  free(full);
  free(local);
}

static void test_one_rank(void **unused) {
  (void)unused;
  float *tiles = counts_of(causal, 1024, 128);
  const luattn_parallel_layers layer = {tiles, 1};
  const luattn_parallel_problem p = problem_of(&layer, 1, 8, 128);
  luattn_parallel_plan *plan = plan_of(&p);
  const luattn_parallel_candidate *c = &plan->candidates[plan->chosen];
  assert_true(c->forward == 1 && c->backward == 1 && c->received == 0 && c->imbalance == 1);
  luattn_parallel_plan_free(plan);
  free(tiles);
}

/* Heads over two ranks of a node, or over all: two exchanges of a pass, which nothing hides. */
static void test_levels(void **unused) {
  (void)unused;
  float *tiles = counts_of(all, 65536, 512);
  const luattn_parallel_layers layer = {tiles, 1};
  luattn_parallel_problem p = problem_of(&layer, 4, 128, 512);
  p.rates.exchange = 1e-9, p.rates.stage = p.rates.launch = 1e-12;
  luattn_parallel_plan *plan = plan_of(&p);
  assert_int_equal(plan->num_levels, 2);
  const luattn_parallel_levels *two = &plan->levels[0], *four = &plan->levels[1];
  assert_true(two->across == 2 && four->across == 4);
  const double bytes = 65536 / 4 * (p.heads + p.heads_kv) * 256.0 * 2 * 3 / 4;
  const double alone = 512.0 * 512 * 2 * 256 * 128 * 128 * p.heads / 750e12;
  assert_true(fabs(four->exchanged - bytes) < 1 && fabs(two->exchanged - bytes * 2 / 3) < 1);
  assert_true(fabs(four->forward - alone / 4 / (alone / 4 + bytes / 380e9)) < 1e-6);
  assert_true(two->forward <= 1 && two->forward > 0.5 && two->backward <= 1 && two->backward > two->forward);
  luattn_parallel_plan_free(plan);
  p.heads_kv = 2; /* which four ranks do not divide */
  plan = plan_of(&p);
  assert_int_equal(plan->num_levels, 1);
  luattn_parallel_plan_free(plan);
  free(tiles);
}

/* ---- the model ---- */

static const luattn_parallel_rates rates = {
    .forward = 1e15, .backward = 5e14, .peer = 1e11, .network = 1e10, .memory = 1e12, .stage = 1e-5, .node = 2};

/* Three ranks in nodes of two, one chunk each: all numbers are written out. */
static void test_stages(void **unused) {
  (void)unused;
  const double tiles[9] = {4, 2, 1, 0, 4, 3, 5, 0, 4};
  const int rank_of[3] = {0, 1, 2}, rows = 1024;
  luattn_parallel_problem p = problem_of(NULL, 3, 3, rows);
  p.heads = 4, p.heads_kv = 2, p.head_dim = 64, p.head_dim_v = 32, p.schedule = LUATTN_SCHEDULE_STAGES;
  stage_prediction got;
  assert_true(stage_predict(&p, &rates, &(chunk_counts){3, tiles}, rows, rank_of, &got));
  const double square = 128.0 * 128.0, tile = 2 * 96 * square * 4 / 1e15,
               tile_b = (6 * 64 + 4 * 32) * square * 4 / 5e14;
  const double keys = rows * 2 * 96.0 * 2, gradients = rows * 2 * 96.0 * 4,
               merge = 3 * rows * 4 * 32.0 * 4 / 1e12;                   /* o in float32 */
  const double rounding = rows * (4 * 64.0 + 2 * 96.0) * (4 + 2) / 1e12; /* dq, dk and dv, from float32 */
  const double peer = keys / 1e11, across = fmax(peer, keys / 1e10 / 2);
  double t = 1e-5 + 4 * tile; /* rank 0: of rank 1 in its node, then of rank 2 */
  t = fmax(t, peer) + 1e-5 + 2 * tile + merge;
  t = fmax(t, peer + across) + 1e-5 + 1 * tile + merge;
  double third = 1e-5 + 4 * tile; /* rank 2, alone in its node, needs rank 0's keys */
  third = fmax(third, across) + 1e-5 + 5 * tile + merge;
  assert_true(fabs(got.seconds[0] - fmax(t, third)) <= 1e-12);
  /* Own keys come last. Tiles of parts take longer, and dq of parts is added up. */
  const double part_b = 1.04 * tile_b, merge_b = 3 * rows * 4 * 64.0 * 4 / 1e12;
  double back = peer + 1e-5 + 2 * part_b + merge_b, sent = back + gradients / 1e11;
  back = fmax(back, peer + across) + 1e-5 + 1 * part_b + merge_b;
  sent = fmax(sent, back) + gradients / 1e11 + gradients / 1e10 / 2;
  back = fmax(back + 1e-5 + 4 * part_b, sent);
  double back_third = across + 1e-5 + 5 * part_b + merge_b,
         sent_third = back_third + gradients / 1e11 + gradients / 1e10 / 2;
  back_third = fmax(back_third + 1e-5 + 4 * part_b, sent_third);
  assert_true(fabs(got.seconds[1] - fmax(back, back_third) - rounding) <= 1e-12);
  assert_true(got.most_tiles == 9 && got.received == 2 * keys && got.in_flight == 2 * keys);
  assert_true(fabs(got.alone[0] - (23 * tile + 1e-5)) <= 1e-12 && !got.gathered[0] && !got.gathered[1]);
  p.schedule = LUATTN_SCHEDULE_GATHERED; /* rank 2 is the slowest: its hull has the chunk between, too */
  assert_true(stage_predict(&p, &rates, &(chunk_counts){3, tiles}, rows, rank_of, &got));
  assert_true(fabs(got.seconds[0] - fmax(peer + across + 7 * tile, across + 9 * tile) - 1e-5) <= 1e-12);
  assert_true(got.gathered[0] && got.gathered[1] && got.in_flight == 3 * keys);
}

/* No launch hides a copy: all times add up. */
static void test_serial(void **unused) {
  (void)unused;
  const double tiles[4] = {4, 0, 3, 4};
  const int rank_of[2] = {0, 1}, rows = 1024;
  luattn_parallel_problem p = problem_of(NULL, 2, 2, rows);
  p.schedule = LUATTN_SCHEDULE_STAGES;
  luattn_parallel_rates serial = rates;
  serial.copies[0] = serial.copies[1] = LUATTN_COPIES_SERIAL, serial.exchange = 1e-3;
  stage_prediction got;
  assert_true(stage_predict(&p, &serial, &(chunk_counts){2, tiles}, rows, rank_of, &got));
  const double dims = p.head_dim + p.head_dim_v, keys = rows * p.heads_kv * dims * 2;
  const double tile_b = (6.0 * p.head_dim + 4.0 * p.head_dim_v) * 128 * 128 * p.heads / 5e14;
  const double rounding = rows * (p.heads * p.head_dim + p.heads_kv * dims) * (4 + 2) / 1e12;
  const double merge_b = 3.0 * rows * p.heads * p.head_dim * 4 / 1e12;
  assert_true(fabs(got.seconds[1] -
                   (2e-5 + 7 * 1.04 * tile_b + merge_b + 2e-3 + keys / 1e11 + 2 * keys / 1e11 + rounding)) <= 1e-12);
}

/* Gathered, of contiguous parts: rank 1 needs a chunk of rank 0 for its first queries alone. Copies run beside launches of
 * the other ones, which come first in forward and last in backward; or all keys of several ranks travel in one exchange,
 * which nothing hides. */
static void test_gathered(void **unused) {
  (void)unused;
  const double tiles[16] = {1, 0, 0, 0, 1, 1, 0, 0, 0, 2, 3, 0, 0, 0, 0, 9};
  const int rank_of[4] = {0, 0, 1, 1}, rows = 1024;
  luattn_parallel_problem p = problem_of(NULL, 2, 4, rows);
  p.schedule = LUATTN_SCHEDULE_GATHERED;
  luattn_parallel_rates beside = rates;
  beside.exchange = 2e-5;
  stage_prediction got;
  assert_true(stage_predict(&p, &beside, &(chunk_counts){4, tiles}, rows, rank_of, &got));
  const double dims = p.head_dim + p.head_dim_v, square = 128.0 * 128.0 * p.heads, keys = rows * p.heads_kv * dims * 2;
  const double tile = 2 * dims * square / 1e15, tile_b = (6.0 * p.head_dim + 4.0 * p.head_dim_v) * square / 5e14;
  const double rounding = 2 * rows * (p.heads * p.head_dim + p.heads_kv * dims) * (4 + 2) / 1e12;
  const double come = 2e-5 + keys / 1e11, others = 1e-5 + 5 * tile_b, own = 1e-5 + 9 * tile_b;
  assert_true(fabs(got.seconds[0] - (fmax(1e-5 + 9 * tile, come) + 1e-5 + 5 * tile)) <= 1e-12);
  assert_true(fabs(got.seconds[1] - (come + others + fmax(own, 2e-5 + 2 * keys / 1e11) + rounding)) <= 1e-12);
  assert_true(got.in_flight == 2 * keys);
  beside.copies[0] = beside.copies[1] = LUATTN_COPIES_SERIAL;
  assert_true(stage_predict(&p, &beside, &(chunk_counts){4, tiles}, rows, rank_of, &got));
  assert_true(fabs(got.seconds[0] - (come + 1e-5 + 14 * tile)) <= 1e-12);
  assert_true(got.in_flight == 3 * keys);
  const double of_all[9] = {1, 0, 0, 0, 1, 0, 1, 1, 1};
  const int apart[3] = {0, 1, 2};
  p.ranks = 3, beside.node = 4;
  assert_true(stage_predict(&p, &beside, &(chunk_counts){3, of_all}, rows, apart, &got));
  assert_true(fabs(got.seconds[0] - (2e-5 + 2 * keys / 1e11 + 1e-5 + 3 * tile)) <= 1e-12);
}

/* Where the caller leaves it, a pass has the faster way of both: copies beside launches, unless these are more, as where
 * rows are cut for them. */
static void test_either(void **unused) {
  (void)unused;
  const double tiles[16] = {1, 0, 0, 0, 1, 1, 0, 0, 0, 2, 3, 0, 0, 0, 0, 9};
  const int rank_of[4] = {0, 0, 1, 1}, rows = 1024;
  luattn_parallel_problem p = problem_of(NULL, 2, 4, rows);
  luattn_parallel_rates x = rates;
  double seconds[2][2]; /* by copies, pass */
  stage_prediction got;
  for (int stage = 0; stage < 2; ++stage) {
    x.stage = stage ? 1e-3 : 1e-6;
    for (int copies = 0; copies < 2; ++copies) {
      x.copies[0] = x.copies[1] = copies;
      assert_true(stage_predict(&p, &x, &(chunk_counts){4, tiles}, rows, rank_of, &got));
      assert_true(got.overlapped[0] == (copies == LUATTN_COPIES_OVERLAPPED) && got.overlapped[1] == got.overlapped[0]);
      seconds[copies][0] = got.seconds[0], seconds[copies][1] = got.seconds[1];
    }
    x.copies[0] = x.copies[1] = LUATTN_COPIES_EITHER;
    assert_true(stage_predict(&p, &x, &(chunk_counts){4, tiles}, rows, rank_of, &got));
    for (int pass = 0; pass < 2; ++pass) {
      assert_true(got.seconds[pass] == fmin(seconds[0][pass], seconds[1][pass]));
      assert_true(got.overlapped[pass] == (seconds[0][pass] < seconds[1][pass]) &&
                  got.overlapped[pass] == (stage == 0));
    }
    x.copies[0] = LUATTN_COPIES_SERIAL, x.copies[1] = LUATTN_COPIES_OVERLAPPED;
    assert_true(stage_predict(&p, &x, &(chunk_counts){4, tiles}, rows, rank_of, &got));
    assert_true(got.seconds[0] == seconds[1][0] && got.seconds[1] == seconds[0][1] && !got.overlapped[0] &&
                got.overlapped[1]);
  }
}

/* Ranks whose queries lie in two runs, and keys in ranges: each pair of them is a launch. */
static void test_launches(void **unused) {
  (void)unused;
  const double tiles[16] = {1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1};
  const int zigzag[4] = {0, 1, 1, 0}, rows = 1024;
  luattn_parallel_problem p = problem_of(NULL, 2, 4, rows);
  p.schedule = LUATTN_SCHEDULE_STAGES;
  luattn_parallel_rates free_of_charge = {
      .forward = 1e30, .backward = 1e30, .peer = 1e30, .network = 1e30, .memory = 1e30, .stage = 1, .node = 8};
  stage_prediction got;
  assert_true(stage_predict(&p, &free_of_charge, &(chunk_counts){4, tiles}, rows, zigzag, &got));
  assert_true(fabs(got.seconds[0] - 4) < 1e-6); /* rank 0: 0 by 0; 3 by 0, by 3, and by 1 to 2 */
  p.schedule = LUATTN_SCHEDULE_AUTO;
  assert_true(stage_predict(&p, &free_of_charge, &(chunk_counts){4, tiles}, rows, zigzag, &got));
  assert_true(fabs(got.seconds[0] - 2) < 1e-6 && got.gathered[0]);
}

/* Of rows that one rank has, only those at its edge need keys of another: a launch of their own, and the only merge. */
static void test_edges(void **unused) {
  (void)unused;
  const double tiles[16] = {1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1};
  const int contiguous[4] = {0, 0, 1, 1}, rows = 1024;
  luattn_parallel_problem p = problem_of(NULL, 2, 4, rows);
  p.schedule = LUATTN_SCHEDULE_STAGES;
  luattn_parallel_rates of_launches = {
      .forward = 1e30, .backward = 1e30, .peer = 1e30, .network = 1e30, .memory = 1e30, .stage = 1, .node = 8};
  stage_prediction got;
  assert_true(stage_predict(&p, &of_launches, &(chunk_counts){4, tiles}, rows, contiguous, &got));
  assert_true(fabs(got.seconds[0] - 3) < 1e-6); /* rank 1: 2 by 2, 3 by 2 and 3, and 2 by 1 */
  of_launches.stage = 1e-30, of_launches.memory = 1;
  assert_true(stage_predict(&p, &of_launches, &(chunk_counts){4, tiles}, rows, contiguous, &got));
  assert_true(fabs(got.seconds[0] / (3.0 * rows * p.heads * p.head_dim_v * 4) - 1) < 1e-6);
}

/* ---- what is refused ---- */

static void refuse(luattn_parallel_problem p, const char *message) {
  luattn_parallel_plan *plan = (luattn_parallel_plan *)&p;
  luattn_error err;
  assert_int_equal(luattn_parallel_plan_new(&p, &plan, &err), LUATTN_INVALID);
  assert_null(plan);
  if (strstr(err.message, message) == NULL) fail_msg("'%s' lacks '%s'", err.message, message);
}

static void test_refusals(void **unused) {
  (void)unused;
  float tiles[16] = {1}, bad[16] = {1, -2};
  const luattn_parallel_layers layer = {tiles, 1}, none = {NULL, 1}, weightless = {tiles, 0}, negative = {bad, 1};
  const luattn_parallel_problem p = problem_of(&layer, 2, 4, 128);
  luattn_parallel_problem x = p;
  luattn_parallel_plan_free(plan_of(&p));
  x.ranks = 0, refuse(x, "ranks: is 0, expected 1 to 1024"), x = p;
  x.ranks = 3,
  refuse(x, "chunks: is 4, expected a multiple of ranks, which is 3; pad the sequence to a multiple of 384 rows"),
  x = p;
  x.chunk_rows = 200, refuse(x, "chunk_rows: is 200, expected a multiple of 128"), x = p;
  x.heads_kv = 33, refuse(x, "heads_kv: is 33, expected 1 to 32"), x = p;
  x.layers = &none, refuse(x, "layers[0].tiles: is NULL"), x = p;
  x.layers = &weightless, refuse(x, "layers[0].weight: is 0"), x = p;
  x.layers = &negative, refuse(x, "layers[0].tiles: is -2 for chunks 0 and 1"), x = p;
  x.rates.peer = -1, refuse(x, "rates.peer: is -1"), x = p;
  x.rates.launch = -1, refuse(x, "rates.launch: is -1"), x = p;
  x.rates.exchange = -1, refuse(x, "rates.exchange: is -1"), x = p;
  x.rates.copies[1] = 3, refuse(x, "rates.copies[1]: is 3"), x = p;
  x.rates.node = -1, refuse(x, "rates.node: is -1"), x = p;
  x.schedule = 3, refuse(x, "schedule: is 3, expected 0 to 2"), x = p;
  x.struct_size = 8, refuse(x, "struct_size");
  assert_string_equal(luattn_partition_name(LUATTN_PARTITION_BY_COUNTS), "by counts");
  assert_string_equal(luattn_partition_name(LUATTN_PARTITION_BY_TIME), "by time");
  assert_string_equal(luattn_partition_name((luattn_partition)7), "?");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_masks_are_balanced),
                                     cmocka_unit_test(test_skewed_documents),
                                     cmocka_unit_test(test_swaps),
                                     cmocka_unit_test(test_layers),
                                     cmocka_unit_test(test_one_rank),
                                     cmocka_unit_test(test_levels),
                                     cmocka_unit_test(test_stages),
                                     cmocka_unit_test(test_serial),
                                     cmocka_unit_test(test_gathered),
                                     cmocka_unit_test(test_either),
                                     cmocka_unit_test(test_launches),
                                     cmocka_unit_test(test_edges),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
