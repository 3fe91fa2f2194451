/* plan_test.c: tests families, tiles, and errors for impossible targets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gen/plan/check_target.h"
#include "gen/plan/plan.h"
#include "gen/spec.h"
#include "luattn/compiler.h"

static luattn_spec *spec;
static const plan_rows softmax_rows = {.bwd_row_bytes = 8};
static const int archs[] = {80, 86, 87, 89, 90, 100, 103, 120};

static int open_spec(void **state) {
  (void)state;
  luattn_error err;
  static const char source[] = "return attention { name = 'a', block_mask = function(b, h, q, kv) return kv <= q end }";
  return luattn_spec_load_text("a.lua", source, sizeof source - 1, NULL, &spec, &err) == LUATTN_OK ? 0 : -1;
}

static int close_spec(void **state) {
  (void)state;
  luattn_spec_free(spec);
  return 0;
}

static luattn_target target_of(luattn_pass pass, luattn_dtype dtype, int dim, int dim_v, int arch) {
  return (luattn_target){.struct_size = sizeof(luattn_target),
                         .pass = pass,
                         .dtype = dtype,
                         .head_dim = dim,
                         .head_dim_v = dim_v,
                         .arch = arch,
                         .cache_dir = ""};
}

/* Every entry of every table is valid for its family and fits; at least one entry exists for each target. */
static void test_every_plan_fits(void **state) {
  (void)state;
  static const int dims[] = {1, 8, 40, 64, 72, 96, 128, 136, 192, 256};
  for (size_t a = 0; a < sizeof archs / sizeof archs[0]; a++)
    for (int pass = 0; pass < 2; pass++)
      for (int dtype = 0; dtype < 4; dtype++)
        for (size_t d = 0; d < 10; d++)
          for (size_t dv = 0; dv < 10; dv++) {
            luattn_target t = target_of((luattn_pass)pass, (luattn_dtype)dtype, dims[d], dims[dv], archs[a]);
            const bool half = dtype == LUATTN_BF16 || dtype == LUATTN_F16;
            if (half && (dims[d] % 8 != 0 || dims[dv] % 8 != 0)) continue;
            arena *mem = arena_open(NULL);
            luattn_error err;
            plan p;
            const char *line;
            if (plan_choose(mem, spec, &t, &p, &err) != LUATTN_OK) fail_msg("%s", err.message);
            const bool hopper = archs[a] == 90;
            assert_int_equal(p.family->id, !half ? LUATTN_SIMT : hopper ? LUATTN_SM90 : LUATTN_SM80);
            assert_int_equal(strstr(p.why, "fallback") != NULL, half && archs[a] >= 90 && !hopper);
            int rank = 0;
            do {
              if (tiles_check(&p, &err) != LUATTN_OK) fail_msg("rank %d: %s", rank, err.message);
              if (plan_entries(mem, &p, spec, &softmax_rows, &line, &err) != LUATTN_OK)
                fail_msg("rank %d: %s", rank, err.message);
              assert_true(p.num_entries > 0);
            } while (plan_alternative(mem, spec, &t, false, ++rank, &p));
            arena_close(mem);
          }
}

static void refused(const luattn_target *t, luattn_status status, const char *part) {
  arena *a = arena_open(NULL);
  plan p;
  luattn_error err;
  assert_int_equal(plan_choose(a, spec, t, &p, &err), status);
  if (strstr(err.message, part) == NULL) fail_msg("'%s' is not in: %s", part, err.message);
  arena_close(a);
}

static void test_impossible_targets(void **state) {
  (void)state;
  luattn_target t = target_of(LUATTN_FORWARD, LUATTN_BF16, 100, 64, 80);
  refused(&t, LUATTN_UNSUPPORTED, "head_dim: is 100");
  t = target_of(LUATTN_FORWARD, LUATTN_F16, 64, 100, 80);
  refused(&t, LUATTN_UNSUPPORTED, "head_dim_v: is 100");
  t = target_of(LUATTN_FORWARD, LUATTN_F32, 257, 0, 80);
  refused(&t, LUATTN_INVALID, "head_dim: is 257");
  t = target_of(LUATTN_FORWARD, LUATTN_F32, 64, 0, 75);
  refused(&t, LUATTN_UNSUPPORTED, "sm_75");
  t = target_of(LUATTN_FORWARD, LUATTN_F32, 64, 0, 90);
  t.family = 1 + LUATTN_SM90;
  refused(&t, LUATTN_UNSUPPORTED, "sm90");
  t.family = 1 + LUATTN_SM80;
  refused(&t, LUATTN_UNSUPPORTED, "sm80 does not run f32");
  t = target_of(LUATTN_BACKWARD, LUATTN_BF16, 64, 192, 100);
  t.family = 1 + LUATTN_SM90;
  refused(&t, LUATTN_UNSUPPORTED, "sm90 has kernels for arch 90, not 100");
}

/* Chunks of a whole: which kernels take them, and which the plan takes in place of others. */
static void test_chunks(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  plan p;
  luattn_target t = target_of(LUATTN_FORWARD, LUATTN_BF16, 64, 0, 90);
  t.offsets = LUATTN_OFFSET_CHUNKS;
  assert_int_equal(plan_choose(a, spec, &t, &p, NULL), LUATTN_OK);
  assert_true(p.family->id == LUATTN_SM90 && 128 % p.tile_m == 0 && 128 % p.tile_n == 0); /* not 192 rows */
  t.tile_m = 192, t.tile_n = 128;
  refused(&t, LUATTN_INVALID, "tile_m, tile_n: are 192 and 128, and chunks have multiples of 128 rows");
  t.tile_m = t.tile_n = 0, t.decode = 1;
  refused(&t, LUATTN_UNSUPPORTED, "target: decode: is 1, and offsets are chunks");
  t.decode = 0, t.weights = 1;
  refused(&t, LUATTN_UNSUPPORTED, "target: weights: is 1, and offsets are chunks");
  t = target_of(LUATTN_BACKWARD, LUATTN_BF16, 256, 0, 90);
  t.offsets = LUATTN_OFFSET_CHUNKS;
  assert_int_equal(plan_choose(a, spec, &t, &p, NULL), LUATTN_OK);
  assert_int_equal(p.family->id, LUATTN_SM80);
  t.family = 1 + LUATTN_SM90;
  refused(&t, LUATTN_UNSUPPORTED, "backward kernels of the sm90 family take none at these head dims yet");
  arena_close(a);
}

/* Every spec takes packed sequences. */
static void test_packed_targets(void **state) {
  (void)state;
  static const char *const specs[] = {
      "return attention { name = 'a', query_mod = function(x, b, h, pos, d) return 2 * x end }",
      "return attention { name = 'a', key_mod = function(x, b, h, pos, d) return x[d + 1 - d % 2 * 2] end }",
      "return attention { name = 'a', value_mod = function(x, b, h, pos, d) return 2 * x end }",
      "return attention { name = 'a', inputs = { ids = { axes = {'b', 'q'}, dtype = 'i32' } },\n"
      "  score_mod = function(score, b, h, q, kv) return score + ids[{b, q}] end }",
      "return attention { name = 'a', inputs = { bias = { axes = {'kv'} } },\n"
      "  score_mod = function(score, b, h, q, kv) return score + bias[kv] end }",
      "return attention { name = 'a', inputs = { bias = { axes = {'b', 'h', 16, 'free'} } },\n"
      "  score_mod = function(score, b, h, q, kv) return score + bias[{b, h, 3, kv}] end }"};
  luattn_spec *const causal = spec;
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    luattn_error err;
    luattn_target t = target_of(LUATTN_FORWARD, LUATTN_BF16, 64, 0, 90);
    t.packed = 1;
    if (luattn_spec_load_text("a.lua", specs[i], strlen(specs[i]), NULL, &spec, &err) != LUATTN_OK)
      fail_msg("%s", err.message);
    arena *a = arena_open(NULL);
    plan p;
    if (plan_choose(a, spec, &t, &p, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_true(p.packed);
    t.packed = 0;
    assert_int_equal(plan_choose(a, spec, &t, &p, &err), LUATTN_OK);
    assert_false(p.packed);
    arena_close(a);
    luattn_spec_free(spec);
    spec = causal;
  }
  luattn_error err;
  plan p;
  arena *a = arena_open(NULL);
  luattn_target t = target_of(LUATTN_BACKWARD, LUATTN_BF16, 192, 128, 90);
  t.packed = 1;
  assert_int_equal(plan_choose(a, spec, &t, &p, &err), LUATTN_OK);
  assert_int_equal(p.family->id, LUATTN_SM90);
  assert_true(p.packed);
  arena_close(a);
  t.packed = 2;
  refused(&t, LUATTN_INVALID, "target: packed: is 2, expected 0 or 1");
  t.packed = -1;
  refused(&t, LUATTN_INVALID, "target: packed: is -1, expected 0 or 1");
  t.packed = 0, t.ptx = 5;
  refused(&t, LUATTN_INVALID, "target: ptx: is 5, expected 0 or 1");
  t.ptx = 0, t.one_code = -1;
  refused(&t, LUATTN_INVALID, "target: one_code: is -1, expected 0 or 1");
}

/* Each fact of the table has a range, and is named where it is outside; arch and input_types are checked by what there
 * is. */
static void test_ranges(void **state) {
  (void)state;
#define TARGET_FACT(name, type, range, expected, key)                    \
  do {                                                                   \
    luattn_target t = target_of(LUATTN_FORWARD, LUATTN_F32, 64, 0, 80);  \
    t.name = (type) - 1;                                                 \
    if (strcmp(#name, "arch") != 0 && strcmp(#name, "input_types") != 0) \
      refused(&t, LUATTN_INVALID, "target: " #name ": ");                \
  } while (0);
#include "abi/kernel_facts.def"
}

/* If the sm90 backward has too few registers for a hook, its kernel of four warpgroups comes next, and then sm80's
 * tiles, unless the caller requires sm90. */
static void test_backward_falls_back(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  plan p;
  luattn_target t = target_of(LUATTN_BACKWARD, LUATTN_BF16, 128, 0, 90);
  assert_true(plan_alternative(a, spec, &t, false, 0, &p));
  assert_int_equal(p.family->id, LUATTN_SM90);
  assert_string_equal(plan_kernel(&p)->file, "entry/bwd_sm90.cu");
  assert_true(plan_alternative(a, spec, &t, false, 1, &p));
  assert_int_equal(p.family->id, LUATTN_SM90);
  assert_int_equal(p.tile_n, 64);
  assert_string_equal(plan_kernel(&p)->file, "entry/bwd_d256.cu");
  assert_true(plan_alternative(a, spec, &t, false, 2, &p));
  assert_int_equal(p.family->id, LUATTN_SM80);
  assert_string_equal(plan_kernel(&p)->file, "entry/bwd_sm80.cu");
  assert_true(plan_kernel(&p)->accumulates_dq && p.family->fast_math);
  assert_non_null(strstr(p.why, "fallback: the sm90 family has too few registers"));
  t.family = 1 + LUATTN_SM90;
  assert_false(plan_alternative(a, spec, &t, false, 2, &p));
  t.family = 1 + LUATTN_SM80;
  assert_true(plan_alternative(a, spec, &t, false, 1, &p));
  assert_null(strstr(p.why, "fallback"));
  arena_close(a);
}

/* A deterministic backward uses the same family as a fast one, at all head dims. */
static void test_deterministic_families(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  plan p;
  luattn_error err;
  for (int dim = 64; dim <= 256; dim *= 2) {
    luattn_target t = target_of(LUATTN_BACKWARD, LUATTN_BF16, dim, dim == 128 ? 192 : 0, 90);
    t.deterministic = 1;
    assert_int_equal(plan_choose(a, spec, &t, &p, &err), LUATTN_OK);
    assert_int_equal(p.family->id, LUATTN_SM90);
    assert_true(p.deterministic);
    assert_non_null(strstr(p.why, "kv tiles in turn (deterministic)"));
    t.pass = LUATTN_FORWARD;
    assert_int_equal(plan_choose(a, spec, &t, &p, &err), LUATTN_OK);
    assert_false(p.deterministic);
  }
  arena_close(a);
}

/* The d256 backward works with any subset of gradients, also with those that need no exchange of dS in the
 * cluster. */
static void test_wide_backward_of_any_wants(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  plan p;
  luattn_error err;
  for (unsigned wants = 1; wants <= LUATTN_WANT_ALL; wants++) {
    luattn_target t = target_of(LUATTN_BACKWARD, LUATTN_BF16, 192, 128, 90);
    t.wants = wants;
    assert_int_equal(plan_choose(a, spec, &t, &p, &err), LUATTN_OK);
    assert_string_equal(plan_kernel(&p)->file, "entry/bwd_d256.cu");
    assert_null(strstr(p.why, "fallback"));
  }
  arena_close(a);
}

/* Above head dim 128, of q and k or of v, the sm90 family has the d256 backward kernel, which falls back
 * as well. */
static void test_wide_backward(void **state) {
  (void)state;
  static const int dims[][2] = {{256, 256}, {136, 8}, {128, 136}};
  arena *a = arena_open(NULL);
  plan p;
  for (int i = 0; i < 3; i++) {
    luattn_target t = target_of(LUATTN_BACKWARD, LUATTN_F16, dims[i][0], dims[i][1], 90);
    assert_true(plan_alternative(a, spec, &t, false, 0, &p));
    assert_string_equal(plan_kernel(&p)->file, "entry/bwd_d256.cu");
    assert_true(p.tile_m == 64 && p.tile_n == 64 && p.threads == 512 && plan_kernel(&p)->accumulates_dq);
    assert_true(plan_alternative(a, spec, &t, false, 1, &p));
    assert_string_equal(plan_kernel(&p)->file, "entry/bwd_sm80.cu");
    assert_non_null(strstr(p.why, "fallback: the sm90 family has too few registers"));
    t.pass = LUATTN_FORWARD;
    assert_true(plan_alternative(a, spec, &t, false, 0, &p));
    assert_string_equal(plan_kernel(&p)->file, "entry/fwd_sm90.cu");
  }
  arena_close(a);
}

/* The soft cap's fast path has a table entry of its own, which precedes the others, up to head dim 128 and
 * only in the sm90 forward. */
static void test_small_dots(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  plan p;
  luattn_target t = target_of(LUATTN_FORWARD, LUATTN_BF16, 128, 0, 90);
  assert_true(plan_alternative(a, spec, &t, true, 0, &p));
  assert_true(p.tile_m == 192 && p.tile_n == 80 && p.threads == 512);
  assert_non_null(strstr(p.why, "a soft cap"));
  assert_true(plan_alternative(a, spec, &t, true, 1, &p));
  assert_true(p.tile_m == 128 && p.tile_n == 128);
  static const struct {
    luattn_pass pass;
    int dim, arch;
  } others[] = {
      {LUATTN_FORWARD, 64, 90}, {LUATTN_FORWARD, 192, 90}, {LUATTN_FORWARD, 128, 80}, {LUATTN_BACKWARD, 128, 90}};
  for (int i = 0; i < 4; i++) {
    plan q;
    t = target_of(others[i].pass, LUATTN_BF16, others[i].dim, 0, others[i].arch);
    assert_true(plan_alternative(a, spec, &t, true, 0, &p) && plan_alternative(a, spec, &t, false, 0, &q));
    const luattn_tiles apart = plan_tiles(&p), table = plan_tiles(&q);
    assert_true(plan_same_tiles(&apart, &table));
  }
  arena_close(a);
}

/* Tiles of a mask that is evaluated for cells are made of whole cells; with blocks of 64 keys they have 64 keys. */
static void test_tiles_of_cells(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  luattn_spec of_cells = *spec;
  plan p;
  luattn_error err;
  static const struct {
    int dim;
    bool query_blocks, narrow;
    luattn_tiles want;
  } cases[] = {{64, true, false, {128, 128, 384, 3, 0, 0}},  {64, false, false, {192, 128, 512, 3, 0, 0}},
               {128, true, false, {128, 128, 384, 2, 0, 0}}, {192, true, false, {128, 64, 384, 2, 0, 0}},
               {256, true, false, {128, 64, 384, 2, 0, 0}},  {64, true, true, {128, 64, 384, 4, 0, 0}},
               {128, true, true, {128, 64, 384, 4, 0, 0}},   {256, true, true, {128, 64, 384, 2, 0, 0}}};
  of_cells.by_cells = true;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const luattn_target t = target_of(LUATTN_FORWARD, LUATTN_BF16, cases[i].dim, 0, 90);
    of_cells.by_query_blocks = cases[i].query_blocks, of_cells.by_narrow_blocks = cases[i].narrow;
    assert_int_equal(plan_choose(a, &of_cells, &t, &p, &err), LUATTN_OK);
    const luattn_tiles got = plan_tiles(&p);
    if (!plan_same_tiles(&got, &cases[i].want))
      fail_msg("D %d, case %zu: %d x %d, %d stages", cases[i].dim, i, got.tile_m, got.tile_n, got.stages);
    assert_non_null(strstr(p.why, "evaluated for cells"));
  }
  /* Others come after those, if none of those fits. */
  const luattn_target t = target_of(LUATTN_FORWARD, LUATTN_BF16, 256, 0, 90);
  of_cells.by_narrow_blocks = false;
  int rank = 0, last = 0;
  while (plan_alternative(a, &of_cells, &t, false, rank++, &p)) last = p.tile_n;
  assert_true(last == 80);
  arena_close(a);
}

static void test_forced_tiles(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  plan p;
  luattn_error err;
  luattn_target t = target_of(LUATTN_FORWARD, LUATTN_F32, 64, 0, 80);
  t.tile_m = 32;
  t.tile_n = 16;
  assert_int_equal(plan_choose(a, spec, &t, &p, &err), LUATTN_OK);
  assert_int_equal(p.tile_m, 32);
  assert_int_equal(p.tile_n, 16);
  assert_non_null(strstr(p.why, "asked for"));
  assert_false(plan_alternative(a, spec, &t, false, 1, &p));
  t.tile_m = 48;
  refused(&t, LUATTN_INVALID, "tile_m: 48");
  t.tile_m = 256;
  t.tile_n = 256;
  refused(&t, LUATTN_INVALID, "256 x 256");
  t = target_of(LUATTN_FORWARD, LUATTN_BF16, 128, 0, 86);
  t.tile_n = 24;
  refused(&t, LUATTN_INVALID, "tile_n: 24");
  t.tile_n = 512;
  refused(&t, LUATTN_INVALID, "101376");
  t.tile_n = -1;
  refused(&t, LUATTN_INVALID, "is -1");
  t = target_of(LUATTN_BACKWARD, LUATTN_BF16, 64, 0, 80);
  t.tile_m = 64;
  t.tile_n = 128;
  assert_int_equal(plan_choose(a, spec, &t, &p, &err), LUATTN_OK);
  t.tile_n = 48;
  refused(&t, LUATTN_INVALID, "tile_n: 48");
  t.arch = 90;
  refused(&t, LUATTN_INVALID, "sm90 backward takes 128");
  t.tile_m = 96;
  refused(&t, LUATTN_INVALID, "sm90 backward takes 64, or 128");
  t.head_dim_v = 192;
  refused(&t, LUATTN_INVALID, "tile_m: 96 is not possible: sm90 backward takes 64 for head dims above 128");
  t.tile_m = 64;
  refused(&t, LUATTN_INVALID, "tile_n: 48 is not possible: sm90 backward takes 64 for head dims above 128");
  arena_close(a);
}

/* Gradients that are not requested need no kernel. */
static void test_entries_follow_wants(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  plan p;
  const char *line;
  luattn_error err;
  luattn_target t = target_of(LUATTN_BACKWARD, LUATTN_F32, 64, 0, 80);
  const struct {
    unsigned wants;
    int entries;
  } cases[] = {
      {LUATTN_WANT_ALL, 3}, {LUATTN_WANT_DQ, 2}, {LUATTN_WANT_DK | LUATTN_WANT_DV, 2}, {LUATTN_WANT_INPUTS, 2}};
  for (int i = 0; i < 4; i++) {
    t.wants = cases[i].wants;
    assert_int_equal(plan_choose(a, spec, &t, &p, &err), LUATTN_OK);
    assert_int_equal(plan_entries(a, &p, spec, &softmax_rows, &line, &err), LUATTN_OK);
    assert_int_equal(p.num_entries, cases[i].entries);
  }
  const plan_rows with_stats = {.bwd_row_bytes = 8, .num_stats = 1};
  assert_int_equal(plan_entries(a, &p, spec, &with_stats, &line, &err), LUATTN_OK);
  assert_int_equal(p.entry[0].role, LUATTN_ROLE_STATS);
  arena_close(a);
}

/* Extents count for lengths and axes of inputs, and rows of the workspace are those of whole boxes. */
static void test_memory_of_grid(void) {
  static const char text[] =
      "return attention { grid = {\"y\", \"x\"}, inputs = { r = { axes = {\"h\", \"q.y\", \"kv.x\"} } },"
      " score_mod = function(s, b, h, q, k) return s + r[{h, q.y, k.x}] end }";
  luattn_spec *grid;
  luattn_error err;
  luattn_memory_estimate m;
  luattn_target t = target_of(LUATTN_BACKWARD, LUATTN_F32, 16, 0, 80);
  luattn_problem p = {.batch = 2, .heads = 4, .heads_kv = 2, .q_extent = {9, 10}, .kv_extent = {7, 11}};
  assert_int_equal(luattn_spec_load_text("g.lua", text, sizeof text - 1, NULL, &grid, &err), LUATTN_OK);
  assert_int_equal(luattn_estimate_memory(grid, &t, &p, &m, &err), LUATTN_OK);
  const size_t q = 2 * 4 * 90 * 16, k = 2 * 2 * 77 * 16, rows = 2 * 4 * 90, r = 4 * 9 * 11;
  assert_int_equal(m.input, 4 * (q + 2 * k + 2 * q + rows + r));
  assert_int_equal(m.output, 4 * (q + 2 * k));
  assert_int_equal(m.internal, 4 * 2 * (2 * 4 * 16 * 16)); /* two numbers a row, of 2 x 2 boxes of 8 x 8 */
  p.kv_extent[1] = 0;
  assert_int_equal(luattn_estimate_memory(grid, &t, &p, &m, &err), LUATTN_INVALID);
  assert_string_equal(err.message,
                      "problem: kv_extent[1]: is 0, must be 1 to 32767: the spec has a grid of 2 axes, whose extents "
                      "stand in the place of lengths");
  luattn_spec_free(grid);
}

static void test_memory_and_tiles(void **state) {
  (void)state;
  luattn_error err;
  luattn_target t = target_of(LUATTN_BACKWARD, LUATTN_BF16, 128, 0, 90);
  const luattn_problem problem = {.batch = 2, .heads = 8, .heads_kv = 2, .q_len = 1000, .kv_len = 3000};
  luattn_memory_estimate m;
  int tile_m = 0, tile_n = 0;
  assert_int_equal(luattn_plan_tiles(spec, &t, &tile_m, &tile_n, &err), LUATTN_OK);
  assert_true(tile_m > 0 && tile_n > 0);
  assert_int_equal(luattn_estimate_memory(spec, &t, &problem, &m, &err), LUATTN_OK);
  const size_t q = 2ul * 8 * 1000 * 128, k = 2ul * 2 * 3000 * 128, rows = 2ul * 8 * 1000;
  assert_int_equal(m.input, 2 * (q + 2 * k + 2 * q) + 4 * rows);
  assert_int_equal(m.output, 2 * (q + 2 * k));
  const size_t whole = 2ul * 8 * 1008; /* groups of 16 rows */
  /* Two numbers per row, dq in f32, a semaphore per q tile of 64, and 32 entries for the work counter. */
  assert_int_equal(m.internal, 4 * 2 * whole + 4 * 128 * whole + 4 * (32 + 2 * 8 * 16));
  assert_int_equal(m.total, m.input + m.output + m.internal);
  t.out_f32 = t.grad_f32 = 1; /* o, and what is written, in four bytes */
  assert_int_equal(luattn_estimate_memory(spec, &t, &problem, &m, &err), LUATTN_OK);
  assert_int_equal(m.input, 2 * (q + 2 * k + q) + 4 * q + 4 * rows);
  assert_int_equal(m.output, 4 * (q + 2 * k));
  t.out_f32 = t.grad_f32 = 0;
  const size_t internal = m.internal;
  t.deterministic = 1; /* without inputs, whose sums would need more */
  assert_int_equal(luattn_estimate_memory(spec, &t, &problem, &m, &err), LUATTN_OK);
  assert_int_equal(m.internal, internal);
  t.head_dim = 256; /* then two semaphores per q tile */
  assert_int_equal(luattn_estimate_memory(spec, &t, &problem, &m, &err), LUATTN_OK);
  assert_int_equal(m.internal, 4 * 2 * whole + 4 * 256 * whole + 4 * (32 + 2 * 8 * 16 * 2));
  t.head_dim = 128;
  const luattn_problem odd = {.batch = 1, .heads = 8, .heads_kv = 3, .q_len = 1, .kv_len = 1};
  assert_int_equal(luattn_estimate_memory(spec, &t, &odd, &m, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "heads_kv = 3"));
  test_memory_of_grid();
  luattn_problem huge = {.batch = 65536, .heads = INT32_MAX, .heads_kv = 1, .q_len = INT32_MAX, .kv_len = INT32_MAX};
  assert_int_equal(luattn_estimate_memory(spec, &t, &huge, &m, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "problem: batch: is 65536, must be at most 65535");
  huge.batch = 65535;
  assert_int_equal(luattn_estimate_memory(spec, &t, &huge, &m, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "more than a machine can address"));
}

/* Results in float32 are of half types, and gradients of backward. */
static void test_results_in_f32(void **state) {
  (void)state;
  static const struct {
    luattn_pass pass;
    luattn_dtype dtype;
    int out_f32, grad_f32, weights;
    const char *message; /* NULL: none */
  } cases[] = {
      {LUATTN_FORWARD, LUATTN_BF16, 1, 0, 0, NULL},
      {LUATTN_BACKWARD, LUATTN_F16, 1, 1, 0, NULL},
      {LUATTN_FORWARD, LUATTN_F32, 1, 0, 0,
       "target: out_f32: is 1 for dtype f32, and is of bf16 and f16: results of others have the type of q, k and v; "
       "leave it 0"},
      {LUATTN_BACKWARD, LUATTN_F64, 0, 1, 0,
       "target: grad_f32: is 1 for dtype f64, and is of bf16 and f16: results of others have the type of q, k and v; "
       "leave it 0"},
      {LUATTN_FORWARD, LUATTN_BF16, 0, 1, 0,
       "target: grad_f32: is 1 for a forward kernel, which writes no gradients; leave it 0"},
      {LUATTN_FORWARD, LUATTN_BF16, 2, 0, 0, "target: out_f32: is 2, expected 0 or 1"},
      {LUATTN_FORWARD, LUATTN_BF16, 1, 0, 1,
       "target: weights: is 1 beside out_f32, and is a kernel of its own; leave one of both 0"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    luattn_error err;
    luattn_target t = target_of(cases[i].pass, cases[i].dtype, 64, 64, 90);
    t.out_f32 = cases[i].out_f32, t.grad_f32 = cases[i].grad_f32, t.weights = cases[i].weights;
    assert_int_equal(target_check(&t, &err) == LUATTN_OK, cases[i].message == NULL);
    if (cases[i].message != NULL) assert_string_equal(err.message, cases[i].message);
  }
}

/* A row of KERNEL_FAMILY without one in families.def would be another family, silently. */
static void test_families_are_known(void **state) {
  (void)state;
  for (int id = 0; id < KERNEL_FAMILIES; id++) {
    const plan p = {.pass = LUATTN_FORWARD};
    luattn_target t = target_of(LUATTN_FORWARD, LUATTN_BF16, 64, 64, 90);
    t.family = 1 + id;
    const struct family *f = family_choose(&p, &t);
    if ((int)f->id != id)
      fail_msg("family %s of abi/kernel_facts.def has no row in gen/family/families.def: it would be %s",
               kernel_family_name((uint32_t)id), kernel_family_name(f->id));
    assert_int_equal(family_arch(t.family), f->arch);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_plan_fits),
      cmocka_unit_test(test_impossible_targets),
      cmocka_unit_test(test_small_dots),
      cmocka_unit_test(test_forced_tiles),
      cmocka_unit_test(test_entries_follow_wants),
      cmocka_unit_test(test_memory_and_tiles),
      cmocka_unit_test(test_results_in_f32),
      cmocka_unit_test(test_backward_falls_back),
      cmocka_unit_test(test_deterministic_families),
      cmocka_unit_test(test_wide_backward),
      cmocka_unit_test(test_wide_backward_of_any_wants),
      cmocka_unit_test(test_chunks),
      cmocka_unit_test(test_packed_targets),
      cmocka_unit_test(test_ranges),
      cmocka_unit_test(test_tiles_of_cells),
      cmocka_unit_test(test_families_are_known),
  };
  return cmocka_run_group_tests(tests, open_spec, close_spec);
}
