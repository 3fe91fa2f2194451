/* hit_test.c: tests that a cached image is used without planning, lowering or emitting (the linker redirects
 * the library's calls here), and that its report is the one of its compilation. An image of another spec,
 * target or build is not used. */
#include <stdio.h>
#include <string.h>

#include "compiled.h"
#include "gen/emit/emit.h"
#include "gen/lower/lowered.h"
#include "gen/plan/plan.h"

static int planned, lowered_specs, printed;

#define COUNTED(count, type, name, parameters, arguments) \
  type __real_##name parameters;                          \
  type __wrap_##name parameters;                          \
  type __wrap_##name parameters {                         \
    count++;                                              \
    return __real_##name arguments;                       \
  }
COUNTED(planned, luattn_status, plan_choose,
        (arena * a, const struct luattn_spec *spec, const luattn_target *target, plan *out, luattn_error *err),
        (a, spec, target, out, err))
COUNTED(planned, bool, plan_alternative,
        (arena * a, const struct luattn_spec *spec, const luattn_target *target, bool softcap_poly, int rank,
         plan *out),
        (a, spec, target, softcap_poly, rank, out))
COUNTED(lowered_specs, luattn_status, lower_spec,
        (arena * a, const struct luattn_spec *spec, const mask_info *mask, const plan *p, lowered *out,
         luattn_error *err),
        (a, spec, mask, p, out, err))
COUNTED(printed, luattn_status, emit_spec, (const lowered *f, const char **text, luattn_error *err), (f, text, err))
COUNTED(printed, luattn_status, emit_config,
        (arena * a, const plan *p, const plan_rows *rows, const char **text, luattn_error *err),
        (a, p, rows, text, err))

static void same_report(const luattn_compile_report *a, const luattn_compile_report *b) {
  assert_string_equal(a->plan, b->plan);
  assert_memory_equal(&a->tiles, &b->tiles, sizeof a->tiles);
  assert_int_equal(a->every_length, b->every_length);
}

/* Compiles once and reads the image twice. */
static void hits(const luattn_spec *spec, const luattn_target *target) {
  luattn_compile_report first, again;
  planned = lowered_specs = printed = 0;
  luattn_image_free(compile(spec, target, &first));
  assert_int_equal(first.cache_hit, 0);
  assert_true(planned > 0 && lowered_specs > 0 && printed > 1);
  for (int i = 0; i < 2; i++) {
    planned = lowered_specs = printed = 0;
    luattn_image_free(compile(spec, target, &again));
    assert_int_equal(again.cache_hit, 1);
    if (planned + lowered_specs + printed != 0)
      fail_msg("a hit plans %d times, lowers %d and prints %d", planned, lowered_specs, printed);
    same_report(&first, &again);
  }
}

static void test_hits(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  const folder dir = folder_new();
  for (int pass = 0; pass < 2; pass++)
    for (int dtype = 0; dtype < 4; dtype++)
      for (int arch = 80; arch <= 90; arch += 10) {
        luattn_target t = target_new();
        t.pass = (luattn_pass)pass, t.dtype = (luattn_dtype)dtype, t.arch = arch, t.cache_dir = dir.path;
        hits(spec, &t);
      }
  folder_remove(&dir);
  luattn_spec_free(spec);
}

/* A hit reports ptxas's remarks and the change of tiles that the compilation recorded. */
static void test_hits_of_later_tiles(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  const folder dir = folder_new();
  luattn_target t = target_new();
  t.pass = LUATTN_FORWARD, t.dtype = LUATTN_BF16, t.arch = 90, t.cache_dir = dir.path;
  fake_mode("exhaust tile_m = 192;");
  hits(spec, &t);
  fake_mode("spill");
  t.arch = 80;
  hits(spec, &t);
  fake_mode(NULL);
  folder_remove(&dir);
  luattn_spec_free(spec);
}

/* Tuned tiles are part of the key, and the tuning record has their notes. */
static void test_hits_of_tuned_tiles(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  const folder dir = folder_new();
  luattn_tiles list[PLAN_MAX_CANDIDATES];
  luattn_compile_report own, tuned;
  luattn_error err;
  int count;
  luattn_target t = target_new(), measured;
  t.pass = LUATTN_FORWARD, t.dtype = LUATTN_BF16, t.arch = 90, t.cache_dir = dir.path, t.device = "Fake 0";
  luattn_image_free(compile(spec, &t, &own));
  assert_int_equal(luattn_plan_candidates(spec, &t, list, PLAN_MAX_CANDIDATES, &count, &err), LUATTN_OK);
  measured = t, measured.tiles = &list[count - 1];
  assert_false(plan_same_tiles(measured.tiles, &own.tiles));
  assert_int_equal(luattn_tuned_store(spec, &measured, 1.25, NULL, 0, &err), LUATTN_OK);
  hits(spec, &t);
  luattn_image_free(compile(spec, &t, &tuned));
  assert_memory_equal(&tuned.tiles, measured.tiles, sizeof tuned.tiles);
  char line[96];
  snprintf(line, sizeof line,
           "tuned: 1.25 times as fast as %d x %d, %d stages, at long lengths on Fake 0: ", own.tiles.tile_m,
           own.tiles.tile_n, own.tiles.stages);
  assert_non_null(strstr(tuned.plan, line));
  t.device = NULL; /* the image with the plan's own tiles is still in the cache */
  luattn_image_free(compile(spec, &t, &tuned));
  assert_int_equal(tuned.cache_hit, 1);
  same_report(&own, &tuned);
  folder_remove(&dir);
  luattn_spec_free(spec);
}

/* Lengths with the same tiles share an image; others do not. */
static void test_lengths(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  for (int dim = 64; dim <= 128; dim += 64) {
    const folder dir = folder_new();
    luattn_target t = target_new();
    luattn_compile_report report;
    t.pass = LUATTN_FORWARD, t.dtype = LUATTN_BF16, t.arch = 90, t.head_dim = t.head_dim_v = dim,
    t.cache_dir = dir.path;
    luattn_image_free(compile(spec, &t, &report));
    const int every_length = report.every_length;
    t.lengths = LUATTN_SHORT;
    luattn_image_free(compile(spec, &t, &report));
    assert_int_equal(every_length, dim == 128);
    assert_int_equal(report.cache_hit, every_length);
    assert_int_equal(report.every_length, every_length);
    folder_remove(&dir);
  }
  luattn_spec_free(spec);
}

/* A spec in another folder hits the same entry; messages name the current file. */
static void test_said_of_this_run(void **state) {
  (void)state;
  char source[2048];
  FILE *f = fopen(EXAMPLES "/../tests/specs/forward_only/gate_of_sum.lua", "rb");
  assert_non_null(f);
  const size_t size = fread(source, 1, sizeof source, f);
  assert_true(size > 0 && size < sizeof source);
  fclose(f);
  const folder dir = folder_new();
  luattn_target t = target_new();
  luattn_compile_report report;
  luattn_error err;
  luattn_spec *spec;
  luattn_image *image;
  t.pass = LUATTN_FORWARD, t.cache_dir = dir.path;
  for (int i = 0; i < 2; i++) {
    const char *path = i == 0 ? "here/softpick.lua" : "there/softpick.lua";
    if (luattn_spec_load_text(path, source, size, NULL, &spec, &err) != LUATTN_OK) fail_msg("%s", err.message);
    luattn_spec_info info;
    luattn_spec_get_info(spec, &info);
    assert_int_equal(info.has_backward, 0);
    if (luattn_compile(spec, &t, &image, &report, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_int_equal(report.cache_hit, i);
    assert_non_null(strstr(report.plan, "no backward: "));
    assert_non_null(strstr(report.plan, path));
    luattn_image_free(image);
    luattn_spec_free(spec);
  }
  folder_remove(&dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_hits), cmocka_unit_test(test_hits_of_later_tiles),
                                     cmocka_unit_test(test_hits_of_tuned_tiles), cmocka_unit_test(test_lengths),
                                     cmocka_unit_test(test_said_of_this_run)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
