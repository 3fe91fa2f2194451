/* tuned_test.c: tests tuning candidates, and that tuning records are used only for the target that was
 * measured. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiled.h"
#include "gen/plan/plan.h"

static luattn_spec *spec;
static folder dir;

static int open_all(void **state) {
  (void)state;
  spec = load(SPEC);
  dir = folder_new();
  return 0;
}

static int close_all(void **state) {
  (void)state;
  luattn_spec_free(spec);
  folder_remove(&dir);
  return 0;
}

/* Returns a target for a bf16 forward pass on sm_90, with a device and long lengths. */
static luattn_target target_here(void) {
  luattn_target t = target_new();
  t.pass = LUATTN_FORWARD;
  t.dtype = LUATTN_BF16;
  t.arch = 90;
  t.cache_dir = dir.path;
  t.device = "Fake 0";
  return t;
}

static int list(const luattn_target *t, luattn_tiles out[PLAN_MAX_CANDIDATES]) {
  luattn_error err;
  int count = 0;
  if (luattn_plan_candidates(spec, t, out, PLAN_MAX_CANDIDATES, &count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return count;
}

static luattn_compile_report report_of(const luattn_spec *s, const luattn_target *t) {
  luattn_compile_report report;
  luattn_image_free(compile(s, t, &report));
  return report;
}

static void store(const luattn_target *t, const luattn_tiles *tiles, char path[512]) {
  luattn_target with = *t;
  luattn_error err;
  with.tiles = tiles;
  if (luattn_tuned_store(spec, &with, 1.25, path, 512, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

static bool is_tuned(const luattn_compile_report *r) { return strstr(r->plan, "\ntuned: 1.25 times") != NULL; }

/* ---- candidates ---- */

/* Each candidate compiles, fits, and is listed once; the plan's own choice is among them. */
static void test_candidates(void **state) {
  (void)state;
  static const int archs[] = {80, 86, 90, 100, 120},
                   dims[][2] = {{64, 64}, {128, 128}, {256, 256}, {192, 128}, {8, 64}};
  for (int a = 0; a < 5; a++)
    for (int d = 0; d < 5; d++)
      for (int pass = 0; pass < 2; pass++)
        for (int dtype = 0; dtype < 4; dtype++) {
          luattn_target t = target_here();
          t.arch = archs[a], t.head_dim = dims[d][0], t.head_dim_v = dims[d][1];
          t.pass = (luattn_pass)pass, t.dtype = (luattn_dtype)dtype, t.device = NULL, t.cache_dir = "";
          luattn_tiles tiles[PLAN_MAX_CANDIDATES];
          const int count = list(&t, tiles);
          const luattn_compile_report own = report_of(spec, &t);
          bool has_own = false;
          assert_in_range(count, 1, PLAN_MAX_CANDIDATES);
          for (int i = 0; i < count; i++) {
            arena *mem = arena_open(NULL);
            luattn_error err;
            plan p;
            for (int j = 0; j < i; j++) assert_false(plan_same_tiles(&tiles[i], &tiles[j]));
            t.tiles = &tiles[i];
            if (plan_choose(mem, spec, &t, &p, &err) != LUATTN_OK) fail_msg("%s", err.message);
            if (tiles_check(&p, &err) != LUATTN_OK) fail_msg("%s", err.message);
            assert_true(tiles_least_shared(&p) <= p.shared_limit);
            const luattn_tiles planned = plan_tiles(&p);
            assert_true(plan_same_tiles(&planned, &tiles[i]));
            has_own |= plan_same_tiles(&own.tiles, &tiles[i]);
            arena_close(mem);
          }
          assert_true(has_own);
        }
}

/* Stages and threads are part of the source, and so of the key. */
static void test_candidates_have_their_own_keys(void **state) {
  (void)state;
  luattn_target t = target_here();
  luattn_tiles tiles[PLAN_MAX_CANDIDATES];
  uint64_t key[PLAN_MAX_CANDIDATES];
  const int count = list(&t, tiles);
  for (int i = 0; i < count; i++) {
    t.tiles = &tiles[i];
    luattn_image *image = compile(spec, &t, NULL);
    key[i] = image_get_manifest(image)->source_hash[0];
    luattn_image_free(image);
    for (int j = 0; j < i; j++) assert_true(key[i] != key[j]);
  }
}

static void refused(const luattn_target *t, luattn_status status, const char *message) {
  luattn_image *image = NULL;
  luattn_error err;
  assert_int_equal(luattn_compile(spec, t, &image, NULL, &err), status);
  assert_string_equal(err.message, message);
}

static void test_refusals(void **state) {
  (void)state;
  luattn_target t = target_here();
  const luattn_tiles odd = {128, 200, 384, 2, 0, 0}, good = {128, 128, 384, 2, 0, 0};
  t.tiles = &odd;
  luattn_tiles all[PLAN_MAX_CANDIDATES];
  char message[256];
  snprintf(message, sizeof message,
           "target: tiles: 128 x 200, 384 threads, 2 stages (0, 0) is not one of the %d of "
           "luattn_plan_candidates; "
           "take one of those, or give tile_m and tile_n",
           list(&t, all));
  refused(&t, LUATTN_INVALID, message);
  t.tiles = &good;
  t.tile_m = 128;
  refused(&t, LUATTN_INVALID, "target: tile_m, tile_n: are 128 and 0 beside tiles, which say the same; leave them 0");
  t.tile_m = 0;
  fake_mode("spill");
  refused(&t, LUATTN_UNSUPPORTED,
          "plan: tiles: 128 x 128, 384 threads, 2 stages: spill 904 bytes of registers, more than 64; pick other "
          "tiles");
  static const char serialised[] =
      "plan: tiles: 128 x 128, 384 threads, 2 stages: ptxas says: ptxas info    : (C7510) Potential "
      "Performance "
      "Loss: wgmma.mma_async instructions are serialized due to a reason in function 'luattn_fwd'; pick "
      "other "
      "tiles";
  fake_mode("serialise");
  refused(&t, LUATTN_UNSUPPORTED, serialised);
  fake_mode("exhaust stages = 2;"); /* compiling fails */
  refused(&t, LUATTN_UNSUPPORTED, serialised);
  assert_int_equal(folder_count(&dir, "*.lai"), 0); /* a refused compilation is not stored */
  fake_mode(NULL);
  t.lengths = (luattn_lengths)2;
  refused(&t, LUATTN_INVALID, "target: lengths: 2 is neither LUATTN_LONG nor LUATTN_SHORT");
  t.lengths = LUATTN_LONG, t.deterministic = 2;
  refused(&t, LUATTN_INVALID, "target: deterministic: is 2, expected 0 or 1");
}

/* Backward images of other families are compiled by NVRTC's own threads, which drop ptxas's remarks. */
static void test_remarks_of_backward(void **state) {
  (void)state;
  luattn_target t = target_here();
  luattn_tiles tiles[PLAN_MAX_CANDIDATES];
  luattn_image *image = NULL;
  luattn_error err;
  t.pass = LUATTN_BACKWARD;
  assert_true(list(&t, tiles) > 0);
  t.tiles = &tiles[0];
  fake_mode("serialise");
  assert_int_equal(luattn_compile(spec, &t, &image, NULL, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "ptxas says: ptxas info    : (C7510)"));
  fake_mode(NULL);
}

/* ---- the plan by lengths ---- */

static void test_lengths(void **state) {
  (void)state;
  luattn_target t = target_here();
  t.device = NULL;
  luattn_compile_report r = report_of(spec, &t);
  assert_int_equal(r.tiles.tile_m, 192);
  assert_false(r.every_length);
  t.lengths = LUATTN_SHORT;
  r = report_of(spec, &t);
  assert_int_equal(r.tiles.tile_m, 128);
  assert_false(r.every_length);
  assert_non_null(strstr(r.plan, "a mask and short lengths"));
  t.head_dim = 128;
  assert_true(report_of(spec, &t).every_length);
  luattn_spec *full = load("return attention { name = 'full' }");
  t.head_dim = 64;
  r = report_of(full, &t);
  assert_int_equal(r.tiles.tile_m, 192);
  assert_true(r.every_length);
  luattn_spec_free(full);
}

/* ---- records ---- */

static void test_used_where_it_was_measured(void **state) {
  (void)state;
  luattn_target t = target_here();
  t.head_dim = 128;
  const luattn_tiles other = {128, 112, 384, 2, 0, 0};
  char path[512], want[700];
  luattn_compile_report r = report_of(spec, &t);
  assert_int_equal(r.tiles.tile_n, 128);
  assert_true(r.every_length && !is_tuned(&r));
  luattn_target picked = t;
  picked.tiles = &other;
  report_of(spec, &picked); /* compiled for the measurement */
  store(&t, &other, path);
  r = report_of(spec, &t);
  assert_true(r.cache_hit); /* not compiled again */
  assert_true(plan_same_tiles(&r.tiles, &other));
  assert_false(r.every_length);
  snprintf(want, sizeof want, "\ntuned: 1.25 times as fast as 128 x 128, 2 stages, at long lengths on Fake 0: %s\n",
           path);
  assert_non_null(strstr(r.plan, want));
  assert_non_null(strstr(r.plan, "tiles 128 x 112, 384 threads, 2 stages: picked from the candidates\n"));
  char *text = NULL;
  assert_int_equal(luattn_emit(spec, &t, "plan", &text, NULL), LUATTN_OK);
  assert_non_null(strstr(text, want));
  luattn_text_free(text);
  int tile_m = 0, tile_n = 0;
  assert_int_equal(luattn_plan_tiles(spec, &t, &tile_m, &tile_n, NULL), LUATTN_OK);
  assert_int_equal(tile_n, 112);

  luattn_target elsewhere[9];
  for (int i = 0; i < 9; i++) elsewhere[i] = t;
  elsewhere[0].device = "Fake 1";
  elsewhere[1].device = NULL;
  elsewhere[2].lengths = LUATTN_SHORT;
  elsewhere[3].pass = LUATTN_BACKWARD;
  elsewhere[4].dtype = LUATTN_F16;
  elsewhere[5].head_dim_v = 64;
  elsewhere[6].family = 1 + LUATTN_SM80;
  elsewhere[7].tile_m = 128, elsewhere[7].tile_n = 128;
  elsewhere[8].cache_dir = "";
  for (int i = 0; i < 9; i++) {
    r = report_of(spec, &elsewhere[i]);
    if (is_tuned(&r)) fail_msg("target %d has it too", i);
    assert_null(strstr(r.plan, "tuned:"));
  }
  luattn_spec *twin = load("return attention { name = 'pipeline' }");
  r = report_of(twin, &t);
  assert_false(is_tuned(&r));
  luattn_spec_free(twin);

  store(&elsewhere[2], &other, path); /* now both classes of lengths have the same record */
  r = report_of(spec, &t);
  assert_true(is_tuned(&r) && r.every_length);
  store(&t, NULL, path); /* removes the record */
  r = report_of(spec, &t);
  assert_true(!is_tuned(&r) && !r.every_length);
  store(&t, NULL, path); /* removing a missing record is no error */
}

/* Requested gradients are part of the key if the spec has them. */
static void test_wants(void **state) {
  (void)state;
  luattn_spec *causal = load("return attention { block_mask = function(b, h, q, kv) return kv <= q end }");
  const luattn_tiles other = {64, 128, 384, 2, 0, 0};
  luattn_error err;
  luattn_target t = target_here();
  t.pass = LUATTN_BACKWARD;
  t.tiles = &other;
  assert_int_equal(luattn_tuned_store(causal, &t, 1.25, NULL, 0, &err), LUATTN_OK);
  assert_int_equal(luattn_tuned_store(spec, &t, 1.25, NULL, 0, &err), LUATTN_OK);
  t.tiles = NULL;
  t.wants = LUATTN_WANT_DQ | LUATTN_WANT_DK | LUATTN_WANT_DV;
  luattn_compile_report r = report_of(causal, &t);
  assert_true(is_tuned(&r));
  r = report_of(spec, &t);
  assert_false(is_tuned(&r));
  luattn_spec_free(causal);
}

static void not_used(const luattn_target *t, const char *path, const char *why) {
  char want[700];
  const luattn_compile_report r = report_of(spec, t);
  snprintf(want, sizeof want, "\ntuned: not used, run luattn tune again: %s %s\n", path, why);
  assert_false(is_tuned(&r));
  if (strstr(r.plan, want) == NULL) fail_msg("'%s' is not in '%s'", want, r.plan);
}

static void test_stale(void **state) {
  (void)state;
  static const char why[] = "was made with another luattn, NVRTC or set of templates";
  luattn_target t = target_here();
  const luattn_tiles other = {128, 96, 384, 2, 0, 0};
  char path[512], command[700];
  store(&t, &other, path);
  t.nvrtc = OTHER_NVRTC;
  not_used(&t, path, why);
  t.nvrtc = FAKE_NVRTC;
  folder copy = folder_new();
  snprintf(command, sizeof command, "cp -r " TEMPLATES "/. '%s' && echo >> '%s/sm90/pipeline.cuh'", copy.path,
           copy.path);
  assert_int_equal(system(command), 0);
  assert_int_equal(setenv("LUATTN_TEMPLATE_DIR", copy.path, 1), 0);
  not_used(&t, path, why);
  unsetenv("LUATTN_TEMPLATE_DIR");
  folder_remove(&copy);
  assert_int_equal(setenv("LUATTN_LINEINFO", "1", 1), 0); /* profiling uses the tuned kernels */
  const luattn_compile_report r = report_of(spec, &t);
  assert_true(is_tuned(&r));
  unsetenv("LUATTN_LINEINFO");
}

static size_t read_file(const char *path, char *text, size_t size) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  const size_t n = fread(text, 1, size, f);
  fclose(f);
  return n;
}

static void write_file(const char *path, const char *text, size_t size) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, size, f), size);
  assert_int_equal(fclose(f), 0);
}

static void test_damaged(void **state) {
  (void)state;
  luattn_target t = target_here();
  const luattn_tiles other = {128, 96, 384, 2, 0, 0};
  char path[512], text[2048], aside[600];
  store(&t, &other, path);
  const size_t size = read_file(path, text, sizeof text);
  assert_in_range(size, 100, 1000);
  for (size_t i = 0; i < size; i++) {
    text[i] ^= 1;
    write_file(path, text, size);
    not_used(&t, path, "is damaged");
    text[i] ^= 1;
  }
  for (size_t n = 0; n < size; n += 7) {
    write_file(path, text, n);
    not_used(&t, path, "is damaged");
  }
  memset(text + size, 'x', 1000); /* longer than any record */
  write_file(path, text, size + 1000);
  not_used(&t, path, "is damaged");
  write_file(path, text, size);
  luattn_compile_report r = report_of(spec, &t);
  assert_true(is_tuned(&r));
  luattn_target short_ones = t;
  short_ones.lengths = LUATTN_SHORT;
  store(&short_ones, &other, aside);
  write_file(aside, text, size); /* a valid record, but for long lengths */
  not_used(&short_ones, aside, "is damaged");
  snprintf(aside, sizeof aside, "%s/aside", dir.path);
  assert_int_equal(rename(path, aside), 0);
  r = report_of(spec, &t);
  assert_null(strstr(r.plan, "tuned:"));
}

static void test_what_cannot_be_stored(void **state) {
  (void)state;
  luattn_target t = target_here();
  const luattn_tiles good = {128, 96, 384, 2, 0, 0}, odd = {1, 2, 3, 4, 5, 6};
  luattn_error err;
  t.tiles = &odd;
  assert_int_equal(luattn_tuned_store(spec, &t, 2, NULL, 0, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "is not one of the"));
  t.tiles = &good;
  t.device = NULL;
  assert_int_equal(luattn_tuned_store(spec, &t, 2, NULL, 0, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "tuned: device: is NULL; give the luattn_device_info.name that was measured");
  t.device = "Fake 0";
  const double no_gain[] = {0, -1, (double)NAN, (double)INFINITY};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(luattn_tuned_store(spec, &t, no_gain[i], NULL, 0, &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, "tuned: gain: is "));
  }
  luattn_tiles list[1];
  int count = 7;
  assert_int_equal(luattn_plan_candidates(spec, &t, list, -2, &count, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "candidates: most: is -2, expected the length of `out`");
  assert_int_equal(count, 7);
  t.cache_dir = "";
  assert_int_equal(luattn_tuned_store(spec, &t, 2, NULL, 0, &err), LUATTN_INVALID);
  assert_string_equal(err.message,
                      "tuned: there is no cache on disk to remember tiles beside, as its directory is empty; name "
                      "one with cache_dir or LUATTN_CACHE_DIR");
  char path[512] = "as before";
  t.cache_dir = "/dev/null/cache";
  assert_int_equal(luattn_tuned_store(spec, &t, 2, path, sizeof path, &err), LUATTN_IO);
  assert_string_equal(path, "as before");
  assert_non_null(strstr(err.message, "cannot create its directory: Not a directory; check its owner"));
  assert_int_equal(folder_count(&dir, "*.tuned"), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)
  const struct CMUnitTest tests[] = {TEST(test_candidates), TEST(test_candidates_have_their_own_keys),
                                     TEST(test_refusals),   TEST(test_remarks_of_backward),
                                     TEST(test_lengths),    TEST(test_used_where_it_was_measured),
                                     TEST(test_wants),      TEST(test_stale),
                                     TEST(test_damaged),    TEST(test_what_cannot_be_stored)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
