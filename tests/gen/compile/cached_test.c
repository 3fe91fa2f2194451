/* cached_test.c: tests the pipeline with a cache: cold, warm, damaged, without NVRTC, with a template that
 * does not compile, and with kernels that ptxas refused before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "abi/image.h"
#include "gen/nvrtc/embedded.h"
#include "luattn/compiler.h"

typedef struct fixture {
  char dir[64];
  luattn_spec *spec;
  luattn_target target;
} fixture;

static const char source[] =
    "return attention { name = 'small', scalars = { cap = 30 },\n"
    "  score_mod = function(s, b, h, q, kv) return cap * tanh(s / cap) end,\n"
    "  block_mask = function(b, h, q, kv) return kv <= q end }\n";

static int open_fixture(void **state) {
  fixture *f = calloc(1, sizeof *f);
  luattn_error err;
  if (f == NULL) return -1;
  strcpy(f->dir, "/tmp/luattn_compile_XXXXXX");
  if (mkdtemp(f->dir) == NULL) return -1;
  if (luattn_spec_load_text("small.lua", source, sizeof source - 1, NULL, &f->spec, &err) != LUATTN_OK) return -1;
  f->target = (luattn_target){
      .struct_size = sizeof f->target, .dtype = LUATTN_F32, .head_dim = 32, .arch = 80, .cache_dir = f->dir};
  *state = f;
  return 0;
}

static int close_fixture(void **state) {
  fixture *f = *state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", f->dir);
  luattn_spec_free(f->spec);
  const int status = system(command);
  free(f);
  return status;
}

static bool no_nvrtc(void) {
  nvrtc_file file;
  return nvrtc_find(NULL, &file, NULL) != LUATTN_OK;
}

static luattn_image *compile(const fixture *f, luattn_compile_report *report) {
  luattn_image *image = NULL;
  luattn_error err;
  if (luattn_compile(f->spec, &f->target, &image, report, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return image;
}

static void assert_same(const luattn_image *a, const luattn_image *b) {
  size_t n, m;
  const void *x = luattn_image_bytes(a, &n), *y = luattn_image_bytes(b, &m);
  assert_int_equal(n, m);
  assert_memory_equal(x, y, n);
}

static void test_cold_then_warm(void **state) {
  fixture *f = *state;
  luattn_compile_report cold, warm;
  if (no_nvrtc()) skip();
  luattn_image *a = compile(f, &cold), *b = compile(f, &warm);
  assert_false(cold.cache_hit);
  assert_true(warm.cache_hit);
  assert_true(cold.nvrtc_ms > 0 && warm.nvrtc_ms == 0);
  assert_string_equal(cold.plan, warm.plan);
  assert_same(a, b);
  const image_manifest *info = image_get_manifest(a);
  assert_string_equal(info->spec_name, "small");
  assert_int_equal(info->num_entries, 1);
  assert_string_equal(info->entry[0].name, "luattn_fwd");
  assert_true(info->entry[0].registers > 0);
  assert_int_equal(info->num_scalars, 1);
  assert_true(info->scalar[0].value == 30);
  print_message("cold %.0f ms; warm: plan and source %.2f ms, cache %.2f ms\n", cold.nvrtc_ms, warm.plan_ms,
                warm.cache_ms);

  /* The default of a scalar is not in the CUDA text, but it is in the image, so another default gives another
   * image. */
  luattn_spec *other, *mine = f->spec;
  luattn_error err;
  char text[sizeof source];
  memcpy(text, source, sizeof source);
  memcpy(strstr(text, "30"), "31", 2);
  assert_int_equal(luattn_spec_load_text("small.lua", text, sizeof text - 1, NULL, &other, &err), LUATTN_OK);
  f->spec = other;
  luattn_image *c = compile(f, &warm);
  assert_false(warm.cache_hit);
  assert_true(image_get_manifest(c)->scalar[0].value == 31);
  f->spec = mine;
  luattn_spec_free(other);
  luattn_image_free(a);
  luattn_image_free(b);
  luattn_image_free(c);
}

/* Each member of the target changes the key. */
static void test_targets_are_told_apart(void **state) {
  fixture *f = *state;
  luattn_compile_report r;
  if (no_nvrtc()) skip();
  luattn_image_free(compile(f, &r));
  const luattn_target before = f->target;
  f->target.arch = 86;
  luattn_image_free(compile(f, &r));
  assert_false(r.cache_hit);
  f->target = before;
  f->target.tile_m = f->target.tile_n = 64; /* the plan's own tiles, but forced, so that no smaller ones are tried */
  luattn_image_free(compile(f, &r));
  assert_false(r.cache_hit);
  assert_non_null(strstr(r.plan, "asked for"));
  f->target = before;
  f->target.cache_dir = "";
  luattn_image_free(compile(f, &r));
  assert_false(r.cache_hit);
}

static void test_without_nvrtc(void **state) {
  fixture *f = *state;
  luattn_image *image = NULL;
  luattn_error err;
  f->target.nvrtc = "/nowhere/libnvrtc.so";
  assert_int_equal(luattn_compile(f->spec, &f->target, &image, NULL, &err), LUATTN_COMPILE);
  assert_non_null(strstr(err.message, "/nowhere/libnvrtc.so"));
  assert_null(image);
}

/* A template folder with a broken file: the error names it, and the generated source is kept. */
static void test_broken_template(void **state) {
  fixture *f = *state;
  char path[1024];
  luattn_image *image = NULL;
  luattn_error err;
  if (no_nvrtc()) skip();
  for (int i = 0; i < luattn_embedded_template_count; i++) {
    const template_file *t = &luattn_embedded_templates[i];
    snprintf(path, sizeof path, "mkdir -p '%s/%s' && rmdir '%s/%s'", f->dir, t->name, f->dir, t->name);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/%s", f->dir, t->name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fwrite(t->data, 1, t->size, out);
    if (strcmp(t->name, "score/online_rows.cuh") == 0) fputs("\nthis is no C++;\n", out);
    fclose(out);
  }
  setenv("LUATTN_TEMPLATE_DIR", f->dir, 1);
  const luattn_status status = luattn_compile(f->spec, &f->target, &image, NULL, &err);
  unsetenv("LUATTN_TEMPLATE_DIR");
  assert_int_equal(status, LUATTN_COMPILE);
  assert_non_null(strstr(err.message, "score/online_rows.cuh("));
  const char *kept = strstr(err.message, "the generated source is in ");
  assert_non_null(kept);
  FILE *in = fopen(kept + strlen("the generated source is in "), "rb");
  assert_non_null(in);
  fclose(in);
}

/* Row sums in the sm90 backward. ptxas once serialised products next to them, and the fallback to the sm80
 * kernel cost more than the sums. */
static void test_sums_of_rows_have_hoppers_kernel(void **state) {
  fixture *f = *state;
  luattn_spec *mine = f->spec;
  luattn_error err;
  if (no_nvrtc()) skip();
  assert_int_equal(luattn_spec_load(SPECS "/bias_of_query.lua", NULL, &f->spec, &err), LUATTN_OK);
  f->target = (luattn_target){
      .struct_size = sizeof f->target, .pass = LUATTN_BACKWARD, .dtype = LUATTN_BF16, .arch = 90, .cache_dir = ""};
  for (f->target.head_dim = 64; f->target.head_dim <= 128; f->target.head_dim += 64) {
    luattn_compile_report r;
    luattn_image_free(compile(f, &r));
    if (strstr(r.plan, "family sm90") == NULL) fail_msg("D %d: %s", f->target.head_dim, r.plan);
  }
  luattn_spec_free(f->spec);
  f->spec = mine;
}

static void test_struct_size(void **state) {
  fixture *f = *state;
  luattn_image *image = NULL;
  luattn_error err;
  struct {
    luattn_target known;
    unsigned char later[24];
  } longer = {.known = f->target, .later = {[9] = 1}};
  longer.known.struct_size = sizeof longer;
  assert_int_equal(luattn_compile(f->spec, &longer.known, &image, NULL, &err), LUATTN_INVALID);
  char want[80];
  snprintf(want, sizeof want, "struct_size is %zu, and byte %zu is set", sizeof longer, sizeof longer.known + 9);
  assert_non_null(strstr(err.message, want));
  f->target.struct_size = offsetof(luattn_target, cache_dir) + 5; /* ends within a pointer */
  assert_int_equal(luattn_compile(f->spec, &f->target, &image, NULL, &err), LUATTN_INVALID);
  f->target.struct_size = sizeof f->target;
  char *text = NULL;
  assert_int_equal(luattn_emit_source(f->spec, &f->target, NULL, &text, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "luattn_emit_source: image: is NULL; give one");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_cold_then_warm, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(test_targets_are_told_apart, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(test_without_nvrtc, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(test_broken_template, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(test_sums_of_rows_have_hoppers_kernel, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(test_struct_size, open_fixture, close_fixture),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
