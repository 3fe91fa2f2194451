/* pipeline_test.c: tests luattn_compile with NVRTC failures and plans that spill. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiled.h"
#include "gen/cache/cache.h"

static void expect_failure(const luattn_target *target, const char *mode, const char *message) {
  luattn_spec *spec = load(SPEC);
  luattn_image *image = NULL;
  luattn_error err;
  fake_mode(mode);
  const luattn_status status = luattn_compile(spec, target, &image, NULL, &err);
  fake_mode(NULL);
  assert_int_equal(status, LUATTN_COMPILE);
  assert_null(image);
  assert_string_equal(err.message, message);
  luattn_spec_free(spec);
}

static void test_nvrtc_fails(void **state) {
  (void)state;
  const luattn_target target = target_new();
  expect_failure(&target, "fail",
                 "nvrtc: entry/bwd_simt.cu for sm_80: NVRTC_ERROR_COMPILATION: spec.cuh(12): error: identifier "
                 "\"slopes\" is undefined");
  expect_failure(&target, "silent", "nvrtc: entry/bwd_simt.cu for sm_80: NVRTC_ERROR_COMPILATION: no log");
  expect_failure(&target, "refuse", "nvrtc: entry/bwd_simt.cu: NVRTC_ERROR_OUT_OF_MEMORY");
  expect_failure(&target, "empty", "nvrtc: cubin: NVRTC gave none; the architecture must be sm_XX");
  expect_failure(&target, "old",
                 "nvrtc: '" FAKE_NVRTC
                 "': is version 11.8, too old for C++20; use NVRTC 12 or newer (LUATTN_NVRTC names it)");
}

/* Mods of a cache's rows: what luattn_append cannot apply, and what attention over pages cannot. */
static void test_keys_modified(void **state) {
  (void)state;
  static const struct {
    const char *mod;
    int pages, keys_modified;
    const char *part; /* of the message; NULL: it is compiled */
  } cases[] = {
      {"key_mod = function(x, b, h, pos) return x * (1 + pos) + col[{h, pos}] end", 1, 1, NULL},
      {"key_mod = function(x, b, h, pos) return x * kv_len end", 0, 1, NULL},
      {"key_mod = function(x, b, h, pos) return x * (1 + pos) end", 1, 0,
       "target: pages: is 1, and keys has key_mod: kernels read keys in pages as they are; set keys_modified = 1"},
      {"value_mod = function(x, b, h, pos) return x * (1 + pos) end", 8, 0, "and keys has value_mod: "},
      {"key_mod = function(x, b, h, pos) return x * kv_len end", 1, 1,
       "key_mod: reads kv_len, and keys_modified is 1: luattn_append applies it to a new row"},
      {"key_mod = function(x, b, h, pos) return x * q_len end", 1, 1, "key_mod: reads q_len, "},
      {"value_mod = function(x, b, h, pos) return x * heads end", 1, 1, "value_mod: reads heads, "},
      {"key_mod = function(x, b, h, pos, d) return x * random(b, h, pos, d) end", 1, 1, "key_mod: reads random(), "},
      {"key_mod = function(x, b, h, pos) return x * row[pos] end", 1, 1,
       "key_mod: reads input 'row', whose axis 0 is q, and"},
      {"key_mod = function(x, b, h, pos) return x * head[h * (heads // heads_kv)] end", 1, 1, "key_mod: reads heads, "},
      {"value_mod = function(x, b, h, pos) return x * head[0] end", 1, 1,
       "value_mod: reads input 'head', whose axis 0 is h, and"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char source[512];
    luattn_image *image;
    luattn_error err;
    luattn_target target = target_new();
    target.pass = LUATTN_FORWARD, target.pages = cases[i].pages, target.keys_modified = cases[i].keys_modified;
    snprintf(source, sizeof source,
             "return attention { name = 'keys', inputs = { row = { axes = {'q'} }, head = { axes = {'h'} }, col = { "
             "axes = {'hkv', 'kv'} } }, %s }",
             cases[i].mod);
    luattn_spec *spec = load(source);
    const luattn_status status = luattn_compile(spec, &target, &image, NULL, &err);
    if (cases[i].part == NULL) {
      assert_int_equal(status, LUATTN_OK);
      luattn_image_free(image);
    } else {
      assert_int_equal(status, LUATTN_UNSUPPORTED);
      if (strstr(err.message, cases[i].part) == NULL) fail_msg("case %zu: %s", i, err.message);
    }
    target.keys_modified = 2;
    assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, "target: keys_modified: is 2, expected 0 or 1"));
    target.keys_modified = 1, target.pages = 0, target.pass = LUATTN_BACKWARD;
    assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_UNSUPPORTED);
    luattn_spec_free(spec);
  }
}

/* A source that NVRTC refused is kept for inspection, and removed with the cache. A later compilation that
 * works is not affected. */
static void test_refused_source_is_kept(void **state) {
  (void)state;
  folder dir = folder_new();
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  luattn_image *image = NULL;
  luattn_error err;
  char line[256] = "", path[256] = "";
  size_t removed;
  target.cache_dir = dir.path;
  fake_mode("fail");
  assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_COMPILE);
  fake_mode(NULL);
  const char *at = strstr(err.message, "; the generated source is in ");
  assert_non_null(at);
  assert_int_equal(sscanf(at, "; the generated source is in %255s", path), 1);
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  assert_non_null(fgets(line, sizeof line, f));
  fclose(f);
  assert_non_null(strstr(line, "identifier \"slopes\" is undefined"));
  assert_int_equal(folder_count(&dir, "*"), 1);
  luattn_image_free(compile(spec, &target, NULL));
  assert_int_equal(folder_count(&dir, "*"), 2);
  assert_int_equal(cache_clear(dir.path, &removed, NULL), LUATTN_OK);
  assert_int_equal(folder_count(&dir, "*"), 0);
  luattn_spec_free(spec);
  folder_remove(&dir);
}

/* If a plan spills, others are tried. If all spill, the plan with the least spilling is kept and reports it.
 * Forced tiles stay. */
static void test_spills(void **state) {
  (void)state;
  folder dir = folder_new();
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  luattn_compile_report report;
  target.pass = LUATTN_FORWARD;
  fake_mode("spill");
  luattn_image *image = compile(spec, &target, &report);
  assert_non_null(strstr(report.plan, "luattn_fwd spills 904 bytes: the other tiles that were tried do no better"));
  const manifest_entry *entry = image_get_manifest(image)->entry;
  while (strcmp(entry->name, "luattn_fwd") != 0) entry++;
  assert_int_equal(entry->registers, 255);
  assert_int_equal(entry->local_bytes, 904);
  target.tile_m = (int)entry->tile_m, target.tile_n = (int)entry->tile_n;
  luattn_image_free(image);
  luattn_image_free(compile(spec, &target, &report));
  assert_non_null(strstr(report.plan, "luattn_fwd spills 904 bytes: the tiles were asked for"));
  target.cache_dir = dir.path;
  luattn_image_free(compile(spec, &target, &report));
  luattn_image_free(compile(spec, &target, &report));
  assert_true(report.cache_hit);
  assert_non_null(strstr(report.plan, "luattn_fwd spills 904 bytes: the tiles were asked for")); /* forced tiles stay */
  folder_remove(&dir);
  fake_mode(NULL);
  luattn_spec_free(spec);
}

/* Counts how often the main kernel is compiled, with NVRTC in this mode. */
static long compilations_of(const char *source, const luattn_target *target, const char *mode) {
  folder dir = folder_new();
  char path[128];
  luattn_spec *spec = load(source);
  snprintf(path, sizeof path, "%s/log", dir.path);
  assert_int_equal(setenv("LUATTN_FAKE_NVRTC_LOG", path, 1), 0);
  fake_mode(mode);
  luattn_image_free(compile(spec, target, NULL));
  fake_mode(NULL);
  assert_int_equal(unsetenv("LUATTN_FAKE_NVRTC_LOG"), 0);
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  assert_int_equal(fseek(f, 0, SEEK_END), 0);
  const long count = ftell(f);
  fclose(f);
  folder_remove(&dir);
  luattn_spec_free(spec);
  return count;
}

static long compilations(const luattn_target *target, const char *mode) { return compilations_of(SPEC, target, mode); }

/* For any number of tiles in the table, at most two are compiled, and one more where another family is next, and no
 * plan that would spill as much as the first. More are compiled only if none gives code. */
static void test_two_compilations(void **state) {
  (void)state;
  luattn_target target = target_new();
  target.dtype = LUATTN_F16, target.head_dim = 64;
  assert_int_equal(compilations(&target, NULL), 1);
  assert_int_equal(compilations(&target, "spill 400 400 x"), 2);
  assert_int_equal(compilations(&target, "spill 400 0 int sm80_chunk_m = 32"), 2);
  assert_int_equal(compilations(&target, "exhaust int tile_m = 64"), 3);
  assert_int_equal(compilations(&target, "exhaust int threads = 128"), 2);
  target.arch = 90, target.head_dim = 128;
  assert_int_equal(compilations(&target, "spill 1900 1900 x"), 3);
  assert_int_equal(compilations(&target, "spill 5900 5900 x"), 2); /* which 64 x 64 would not mend */
}

/* A spec whose score adds `count` products of a sine of the query's position and a cosine of the key's: a
 * number of a row and one of a column each, all of which a call takes. */
static void waves(char *source, size_t size, int count) {
  size_t n = (size_t)snprintf(source, size, "return attention { score_mod = function(s, b, h, q, kv)\n");
  for (int i = 0; i < count && n < size; i++)
    n += (size_t)snprintf(source + n, size - n, "  s = s + 0.1 * sin(q * %d.25) * cos(kv * %d.5)\n", i, i);
  assert_true(n < size);
  snprintf(source + n, size - n, "  return s end }");
}

/* Tiles that surely spill are passed over without a compilation, and the next that differ are compiled once;
 * tiles that were asked for are compiled. What the call of a hook takes counts. */
static void test_sure_spills(void **state) {
  (void)state;
  static char source[1 << 15];
  luattn_target target = target_new();
  luattn_error err;
  luattn_image *image;
  int m, n;
  target.dtype = LUATTN_F16, target.head_dim = 64, target.pass = LUATTN_FORWARD;
  for (int count = 8; count <= 256; count *= 2) {
    waves(source, sizeof source, count);
    luattn_spec *spec = load(source);
    if (count == 256) {
      assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_UNSUPPORTED);
      assert_non_null(strstr(err.message, ": forward: to compile the spec is estimated at "));
    } else {
      assert_int_equal(luattn_plan_tiles(spec, &target, &m, &n, &err), LUATTN_OK);
      assert_int_equal(m, count < 64 ? 128 : 64);
      assert_int_equal(n, 64);
    }
    luattn_spec_free(spec);
  }
  waves(source, sizeof source, 64);
  assert_int_equal(compilations_of(source, &target, NULL), 1);
  assert_int_equal(compilations_of(source, &target, "spill 2000 400 x"), 1);
  target.tile_m = 128, target.tile_n = 64;
  assert_int_equal(compilations_of(source, &target, "spill 2000 400 x"), 1);
  luattn_spec *spec = load(source);
  assert_int_equal(luattn_plan_tiles(spec, &target, &m, &n, &err), LUATTN_OK);
  assert_int_equal(m, 128);
  luattn_spec_free(spec);
}

/* A compilation that would take NVRTC too long is refused before NVRTC starts. The error names the most
 * expensive line. An environment variable lifts the limit. */
static void test_budget(void **state) {
  (void)state;
  static const char source[] =
      "return attention { score_mod = function(s, b, h, q, kv)\n"
      "  s = s * 1.5\n"
      "  for i = 1, 1900 do s = sin(s * 1.25) end\n"
      "  return s end }";
  luattn_spec *spec = load(source);
  luattn_target target = target_new();
  luattn_image *image = NULL;
  luattn_error err;
  fake_mode("fail");
  for (int dtype = LUATTN_F64; dtype <= LUATTN_F16; dtype++) {
    target.dtype = (luattn_dtype)dtype, target.head_dim = 64;
    assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_UNSUPPORTED);
    assert_non_null(strstr(err.message, ":3: backward: to compile the spec is estimated at "));
    assert_non_null(strstr(err.message, " times what `causal` takes, more than 8, and "));
    assert_non_null(strstr(err.message, "set LUATTN_COMPILE_LIMIT"));
  }
  fake_mode(NULL);
  assert_int_equal(setenv("LUATTN_COMPILE_LIMIT", "0", 1), 0);
  luattn_image_free(compile(spec, &target, NULL));
  assert_int_equal(setenv("LUATTN_COMPILE_LIMIT", "0.5", 1), 0);
  luattn_spec *small = load(SPEC);
  assert_int_equal(luattn_compile(small, &target, &image, NULL, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "more than 0.5"));
  assert_int_equal(setenv("LUATTN_COMPILE_LIMIT", "8 times", 1), 0);
  assert_int_equal(luattn_compile(small, &target, &image, NULL, &err), LUATTN_INVALID);
  assert_string_equal(err.message,
                      "LUATTN_COMPILE_LIMIT: '8 times' is not a limit; give times of what `causal` takes "
                      "to compile, as 8, or 0 for none");
  assert_int_equal(unsetenv("LUATTN_COMPILE_LIMIT"), 0);
  luattn_image_free(compile(small, &target, NULL));
  luattn_spec_free(small);
  luattn_spec_free(spec);
}

/* Numbers of a head that a call hands on count with the square of those beyond the registers: twice as many of
 * them, or constants in their place, are the difference between 4 and 20 times `causal`. */
static void test_head_arguments(void **state) {
  (void)state;
  static const char form[] =
      "return attention { scalars = { a = 0.9 }, score_mod = function(s)\n"
      "  for i = 1, %d do s = s - 0.1 * floor(s * (%s * (0.3 + i / 1000))) end\n"
      "  return s end }";
  static const struct {
    luattn_dtype dtype;
    int count;
    const char *factor;
    bool fits;
  } cases[] = {{LUATTN_F16, 128, "a", true}, {LUATTN_F16, 256, "a", false}, {LUATTN_F16, 256, "1.5", true},
               {LUATTN_F32, 192, "a", true}, {LUATTN_F32, 288, "a", false}, {LUATTN_F32, 288, "1.5", true}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char source[512];
    luattn_target target = target_new();
    luattn_image *image = NULL;
    luattn_error err;
    snprintf(source, sizeof source, form, cases[i].count, cases[i].factor);
    luattn_spec *spec = load(source);
    target.dtype = cases[i].dtype, target.head_dim = 64, target.pass = LUATTN_FORWARD;
    const luattn_status status = luattn_compile(spec, &target, &image, NULL, &err);
    assert_int_equal(status, cases[i].fits ? LUATTN_OK : LUATTN_UNSUPPORTED);
    if (!cases[i].fits) assert_non_null(strstr(err.message, ":2: forward: to compile the spec is estimated at "));
    luattn_image_free(image);
    luattn_spec_free(spec);
  }
}

/* Shapes of specs whose cost grows faster than their code, each at a size that takes less than 8 times as long as
 * `causal` to compile, and at one that takes more than 10: what a called function reads, bits of 64-bit integers in a
 * mask, remainders of them. */
static void test_what_grows(void **state) {
  (void)state;
  static const char layer[] =
      "return attention { inputs = { t = { axes = {8, 'q', 'kv'} }, w = { axes = {%d, 8} } },\n score_mod = "
      "function(s, b, h, q, kv)\n"
      "  for j = 0, %d do local z = 0.0 for i = 0, 7 do z = z + w[{j, i}] * t[{i, q, kv}] end s = s + relu(z) end\n  "
      "return s end }";
  static const char bits[] =
      "return attention { inputs = { id = { axes = {%d, 'kv'}, dtype = 'i64' } },\n block_mask = function(b, h, q, kv) "
      "local n = 0\n"
      "  for i = 1, %d do n = n + where((id[{0, kv}] >> i) & 1 > 0, 1, 0) end\n  return n > q %% 7 end }";
  static const char remainders[] =
      "return attention { inputs = { id = { axes = {%d, 'q'}, dtype = 'i64' } },\n score_mod = function(s, b, h, q, "
      "kv) local n = id[{0, q}] - kv\n"
      "  for i = 1, %d do n = (n + i) %% 1021 end\n  return s + 0.001 * n end }";
  static const char distances[] =
      "return attention { inputs = { u = { axes = {'h', %d} } },\n score_mod = function(s, b, h, q, kv) local n = 0\n"
      "  for i = 0, %d do n = n + where(q - kv >= 3 * i, u[{h, i}], 0) end\n  return s + n end }";
  static const struct {
    const char *form;
    luattn_pass pass;
    int count;
    bool fits;
  } cases[] = {{layer, LUATTN_FORWARD, 16, true},       {layer, LUATTN_FORWARD, 96, false},
               {bits, LUATTN_BACKWARD, 8, true},        {bits, LUATTN_BACKWARD, 60, false},
               {remainders, LUATTN_BACKWARD, 40, true}, {remainders, LUATTN_BACKWARD, 250, false},
               {distances, LUATTN_BACKWARD, 32, true},  {distances, LUATTN_BACKWARD, 278, false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char source[1024];
    luattn_target target = target_new();
    luattn_image *image = NULL;
    luattn_error err;
    snprintf(source, sizeof source, cases[i].form, cases[i].count, cases[i].count - 1);
    luattn_spec *spec = load(source);
    target.dtype = LUATTN_F16, target.head_dim = 64, target.pass = cases[i].pass;
    const luattn_status status = luattn_compile(spec, &target, &image, NULL, &err);
    assert_int_equal(status, cases[i].fits ? LUATTN_OK : LUATTN_UNSUPPORTED);
    if (!cases[i].fits) assert_non_null(strstr(err.message, ": to compile the spec is estimated at "));
    luattn_image_free(image);
    luattn_spec_free(spec);
  }
}

/* Tiles that would take too long give way to smaller ones, which have fewer copies of a hook; the plan says so. */
static void test_smaller_tiles(void **state) {
  (void)state;
  luattn_spec *spec = load(
      "return attention { inputs = { t = { axes = {'q', 30} }, u = { axes = {'kv', 30} } },\n"
      "  score_mod = function(s, b, h, q, kv) for i = 0, 29 do s = s + t[{q, i}] * u[{kv, i}] end return s end }");
  luattn_target target = target_new();
  luattn_compile_report report;
  target.dtype = LUATTN_F16, target.head_dim = 64, target.pass = LUATTN_FORWARD;
  luattn_image_free(compile(spec, &target, &report));
  assert_true(report.tiles.tile_m < 128);
  assert_non_null(strstr(report.plan, "tiles before these are estimated at "));
  luattn_spec_free(spec);
}

/* If ptxas runs out of registers for a plan, others are tried; if it does for all, the error says so. */
static void test_exhausted(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  luattn_compile_report report;
  luattn_image *image = NULL;
  luattn_error err;
  target.pass = LUATTN_FORWARD, target.dtype = LUATTN_BF16, target.arch = 90;
  luattn_image_free(compile(spec, &target, &report));
  assert_int_equal(report.tiles.tile_m, 192);
  fake_mode("exhaust tile_m = 192;");
  image = compile(spec, &target, &report);
  assert_int_equal(report.tiles.tile_m, 128);
  assert_int_equal(image_get_manifest(image)->family, LUATTN_SM90);
  assert_non_null(strstr(report.plan, "a later choice: those before have too few registers"));
  luattn_image_free(image);
  fake_mode("exhaust stages = 3;"); /* all tiles of the first family for this head dim */
  luattn_image_free(compile(spec, &target, &report));
  assert_true(report.tiles.stages != 3);
  fake_mode("memory"); /* unrelated to registers */
  assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_COMPILE);
  assert_non_null(strstr(err.message, "NVRTC_ERROR_OUT_OF_MEMORY: ptxas info"));
  fake_mode("exhaust struct Config");
  target.family = 1 + LUATTN_SM90;
  assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "ptxas finds no registers for them, nor for others of the table: ptxas info"));
  assert_non_null(strstr(err.message, "write shorter hooks, or use f32"));
  target.tile_m = 128, target.tile_n = 96;
  assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "plan: tiles: 128 x 96, 384 threads"));
  assert_non_null(strstr(err.message, "pick other tiles, or use f32"));
  fake_mode(NULL);
  luattn_spec_free(spec);
}

/* For some specs later tiles are known to be better, and are chosen first. */
static void test_crowded(void **state) {
  (void)state;
  static const struct {
    const char *source;
    luattn_pass pass;
    int head_dim, tile_m, tile_n;
  } cases[] = {
      {"return attention { block_mask = causal(), online_func = online_retention }", LUATTN_FORWARD, 64, 128, 128},
      {"return attention { block_mask = causal(), online_func = online_retention }", LUATTN_FORWARD, 40, 192, 128},
      {"return attention { block_mask = causal() }", LUATTN_FORWARD, 64, 192, 128},
      {"return attention { score_mod = function(s, b, h, q, kv) for i = 1, 64 do s = tanh(s) end return s "
       "end }",
       LUATTN_FORWARD, 64, 192, 96},
      {"return attention { inputs = { x = { axes = {'h', 'q', 'kv'}, grad = true } }, "
       "score_mod = function(score, b, h, q, kv) return score + x[{h, q, kv}] end }",
       LUATTN_BACKWARD, 64, 64, 128},
      {"return attention { inputs = { x = { axes = {'h', 'q', 'kv'} } }, "
       "score_mod = function(score, b, h, q, kv) return score + x[{h, q, kv}] end }",
       LUATTN_BACKWARD, 64, 64, 128},
      {"return attention { inputs = { x = { axes = {'h', 'q', 'kv'} } }, " /* rows without a pitch */
       "score_mod = function(score, b, h, q, kv) return score + x[{h, q + 1, kv}] end }",
       LUATTN_BACKWARD, 64, 128, 128},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    luattn_spec *spec = load(cases[i].source);
    luattn_target target = target_new();
    luattn_compile_report report;
    target.pass = cases[i].pass, target.dtype = LUATTN_BF16, target.arch = 90;
    target.head_dim = cases[i].head_dim;
    luattn_image_free(compile(spec, &target, &report));
    if (report.tiles.tile_m != cases[i].tile_m || report.tiles.tile_n != cases[i].tile_n)
      fail_msg("case %zu: %d x %d", i, report.tiles.tile_m, report.tiles.tile_n);
    luattn_spec_free(spec);
  }
}

/* An image has the main kernel and the other kernels, if any, in two codes, or for tools in one. */
static void test_parts(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC), *full = load("return attention { name = 'full' }");
  luattn_target target = target_new();
  for (int i = 0; i < 12; i++) {
    const int ptx = i % 2, one_code = i / 2 % 2, backward = i / 4 == 2;
    const luattn_spec *s = i / 4 == 1 ? full : spec;
    target.ptx = ptx, target.one_code = one_code, target.pass = backward ? LUATTN_BACKWARD : LUATTN_FORWARD;
    luattn_image *image = compile(s, &target, NULL);
    const image_manifest *info = image_get_manifest(image);
    size_t size, others = 0;
    const char *code = luattn_image_cubin(image, &size);
    for (uint32_t j = 0; j < info->num_entries; j++) others += !luattn_role_is_main(info->entry[j].role);
    assert_int_equal(info->second_code != 0, others > 0 && !one_code);
    if (backward) assert_true(others > 0);
    if (s == full) assert_int_equal(others, 0);
    if (info->second_code > 0) {
      assert_true(info->second_code < size);
      assert_memory_equal(code + info->second_code, ptx ? "// fake ptx" : "fake cubin", 10);
      if (!ptx) assert_memory_not_equal(code, code + info->second_code, 64); /* compiled with other options */
    }
    luattn_image_free(image);
  }
  luattn_spec_free(full);
  luattn_spec_free(spec);
}

/* The others start after the main kernel's front end, or at once if NVRTC does not report its progress. */
static void test_order_of_parts(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  fake_mode("in turn");
  for (int i = 0; i < 20; i++) luattn_image_free(compile(spec, &target, NULL));
  fake_mode(NULL);
  target.nvrtc = OTHER_NVRTC;
  luattn_image *image = compile(spec, &target, NULL);
  assert_true(image_get_manifest(image)->second_code > 0);
  luattn_image_free(image);
  luattn_spec_free(spec);
}

/* An error in the second program is reported like an error in the only program. */
static void test_second_part(void **state) {
  (void)state;
  static const struct {
    const char *mode, *says;
    luattn_status status;
  } cases[] = {
      {"others fail", "identifier \"slopes\" is undefined", LUATTN_COMPILE},
      {"others silent", "NVRTC_ERROR_COMPILATION", LUATTN_COMPILE},
      {"others memory", "NVRTC_ERROR_OUT_OF_MEMORY", LUATTN_COMPILE},
      {"others exhaust struct Config", "a reason in function 'luattn_prepare'", LUATTN_UNSUPPORTED},
  };
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  luattn_compile_report report;
  luattn_image *image;
  luattn_error err;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fake_mode(cases[i].mode);
    assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), cases[i].status);
    if (strstr(err.message, cases[i].says) == NULL) fail_msg("%s: %s", cases[i].mode, err.message);
    assert_int_equal(luattn_compile(spec, &target, &image, NULL, NULL), cases[i].status);
  }
  fake_mode("others spill");
  image = compile(spec, &target, &report);
  assert_non_null(strstr(report.plan, "luattn_prepare spills 904 bytes"));
  const manifest_entry *entry = image_get_manifest(image)->entry;
  while (strcmp(entry->name, "luattn_prepare") != 0) entry++;
  assert_int_equal(entry->registers, 255);
  assert_int_equal(entry->local_bytes, 904);
  luattn_image_free(image);
  fake_mode("others serialise");
  luattn_image_free(compile(spec, &target, &report));
  assert_non_null(strstr(report.plan, "serialized due to a reason in function 'luattn_prepare'"));
  fake_mode(NULL);
  luattn_spec_free(spec);
}

/* usage: compile_pipeline_test [PATTERN]: those whose names match */
int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nvrtc_fails),
      cmocka_unit_test(test_keys_modified),
      cmocka_unit_test(test_refused_source_is_kept),
      cmocka_unit_test(test_spills),
      cmocka_unit_test(test_two_compilations),
      cmocka_unit_test(test_sure_spills),
      cmocka_unit_test(test_budget),
      cmocka_unit_test(test_what_grows),
      cmocka_unit_test(test_smaller_tiles),
      cmocka_unit_test(test_head_arguments),
      cmocka_unit_test(test_exhausted),
      cmocka_unit_test(test_crowded),
      cmocka_unit_test(test_parts),
      cmocka_unit_test(test_order_of_parts),
      cmocka_unit_test(test_second_part),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
