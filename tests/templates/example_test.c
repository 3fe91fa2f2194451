/* example_test.c: tests that the hand-written spec of templates/example, which serves editors and nvcc,
 * fulfils the contract of every kernel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/nvrtc/embedded.h"
#include "tests/support/drawn.h"

static char *read_file(arena *a, const char *name) {
  char *path = arena_printf(a, "%s/example/%s", TEMPLATES, name), *text = arena_new(a, 1 << 16);
  FILE *f = fopen(path, "rb");
  if (f == NULL) fail_msg("%s is missing", path);
  assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
  fclose(f);
  return text;
}

static const template_file *entry(const char *name) {
  for (int i = 0; i < luattn_embedded_template_count; i++)
    if (strcmp(luattn_embedded_templates[i].name, name) == 0) return &luattn_embedded_templates[i];
  return NULL;
}

/* An edit of the spec, which replaces `from` by `to`. */
typedef struct edit {
  const char *what, *from, *to;
} edit;

static const char *edited(arena *a, const char *text, const edit *e) {
  const char *at = e == NULL ? NULL : strstr(text, e->from);
  if (e == NULL) return text;
  if (at == NULL) fail_msg("'%s' is not in the example", e->from);
  return arena_printf(a, "%.*s%s%s", (int)(at - text), text, e->to, at + strlen(e->from));
}

/* Whether a header serves tangents alone. What fills padded rows asks tangent_params whether a call has any. */
static bool is_of_tangents(const char *name) {
  return strstr(name, "jvp") != NULL || strstr(name, "dual") != NULL || strstr(name, "contract/tangent") != NULL;
}

/* Compiles the spec with an edit, without headers of tangents where `plain` says so. Returns NULL, or the reason why
 * compilation fails. */
static const char *why_not_of(arena *a, nvrtc *lib, const char *name, const char *arch, const char *const *options,
                              int n, const edit *e, bool plain) {
  luattn_error err;
  template_file *headers = arena_array(a, (size_t)luattn_embedded_template_count + 2, sizeof *headers);
  int count = 0;
  for (int i = 0; i < luattn_embedded_template_count; i++)
    if (!plain || !is_of_tangents(luattn_embedded_templates[i].name)) headers[count++] = luattn_embedded_templates[i];
  headers[count++] = (template_file){"config.cuh", read_file(a, "config.cuh"), 0};
  headers[count++] = (template_file){"spec.cuh", edited(a, read_file(a, "spec.cuh"), e), 0};
  nvrtc_result r;
  if (nvrtc_compile(lib, a, name, entry(name)->data, headers, count, arch, (nvrtc_options){.list = options, .count = n},
                    0, &r, &err) != LUATTN_OK)
    return arena_printf(a, "%s", err.message);
  assert_true(r.cubin_size > 0);
  assert_null(r.remark);
  return NULL;
}

static const char *why_not(arena *a, nvrtc *lib, const char *name, const char *arch, const char *const *options, int n,
                           const edit *e) {
  return why_not_of(a, lib, name, arch, options, n, e, false);
}

/* Compiles with exactly the shared memory of the layout, computed by hand; one byte less must fail. */
static void compile(const char *name, const char *arch, const char *const *options, int n, int shared) {
  nvrtc_file file;
  nvrtc lib;
  luattn_error err;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK || nvrtc_open(&file, &lib, &err) != LUATTN_OK) skip();
  arena *a = arena_open(NULL);
  const char *all[16];
  memcpy(all, options, (size_t)n * sizeof *all);
  all[n] = arena_printf(a, "-DEXAMPLE_SHARED_BYTES=%d", shared);
  const char *why = why_not(a, &lib, name, arch, all, n + 1, NULL);
  if (why != NULL) fail_msg("%s", why);
  all[n] = arena_printf(a, "-DEXAMPLE_SHARED_BYTES=%d", shared - 1);
  why = why_not(a, &lib, name, arch, all, n + 1, NULL);
  if (why == NULL || strstr(why, "less shared memory than its layout takes") == NULL)
    fail_msg("%s, %d bytes: %s", name, shared - 1, why == NULL ? "compiles" : why);
  arena_close(a);
}

static void test_sm80(void **state) {
  (void)state;
  const char *const forward[] = {"-std=c++20", "-default-device"};
  const char *const backward[] = {"-std=c++20",           "-default-device",       "-DEXAMPLE_TILE_M=64",
                                  "-DEXAMPLE_TILE_N=128", "-DEXAMPLE_THREADS=256", "-DEXAMPLE_STAGES=1"};
  compile("entry/fwd_sm80.cu", "sm_80", forward, 2, 2 * 128 * (128 + 2 * 2 * 64));
  compile("entry/bwd_sm80.cu", "sm_80", backward, 6, 2 * 256 * (128 + 64) + 2 * 2 * 64 * 128 + 64 * 8);
}

static void test_sm90(void **state) {
  (void)state;
  const char *const forward[] = {"-std=c++20", "-default-device", "-DEXAMPLE_TILE_M=128", "-DEXAMPLE_TILE_N=128",
                                 "-DEXAMPLE_THREADS=384"};
  const char *const backward[] = {"-std=c++20",           "-default-device",       "-DEXAMPLE_TILE_M=64",
                                  "-DEXAMPLE_TILE_N=128", "-DEXAMPLE_THREADS=384", "-DEXAMPLE_DQ_FIRST_STORE=true"};
  const char *const wide[] = {"-std=c++20",
                              "-default-device",
                              "-DEXAMPLE_TILE_M=64",
                              "-DEXAMPLE_TILE_N=64",
                              "-DEXAMPLE_THREADS=512",
                              "-DEXAMPLE_HEAD_DIM=192",
                              "-DEXAMPLE_HEAD_DIM_V=128"};
  compile("entry/fwd_sm90.cu", "sm_90a", forward, 5, 2 * 128 * (128 + 2 * 2 * 128) + 512 + 2 * 128 * 128);
  for (int n = 5; n <= 6; n++)
    compile("entry/bwd_sm90.cu", "sm_90a", backward, n,
            2 * 256 * (128 + 2 * 64) + 8 * 16 * (16 + 2 * 128) + 2 * 64 * 8 + 3 * 2 * 64 * 128 + 512);
  compile("entry/bwd_d256.cu", "sm_90a", wide, 7,
          2 * 64 * 192 + 2 * 64 * 128 + 2 * 2 * 64 * (192 + 128) + 5 * 2 * 64 * 64 + 2 * 64 * 8 + 2 * 64 + 128);
}

static void test_simt(void **state) {
  (void)state;
  const char *const elems[] = {"-DEXAMPLE_ELEM=float", "-DEXAMPLE_ELEM=double"};
  for (int i = 0; i < 2; i++) {
    const char *const options[] = {"-std=c++20",          "-default-device",     elems[i],
                                   "-DEXAMPLE_TILE_M=32", "-DEXAMPLE_TILE_N=32", "-DEXAMPLE_THREADS=256"};
    const int size = i == 0 ? 4 : 8, slices = 2 * 144 * (32 + 32), weights = 32 * (32 * size + 16);
    compile("entry/fwd_simt.cu", "sm_80", options, 6, slices + weights);
    compile("entry/bwd_simt.cu", "sm_80", options, 6, slices + 2 * weights);
  }
}

/* Only work/ and around/ may use the sizes of a call. Other code that uses them does not compile
 * (abi/params.h). */
static void test_private_sizes(void **state) {
  (void)state;
  static const edit edits[] = {{"a length", "{Real(p.scale), ", "{Real(p.shape.q_len), "},
                               {"a schedule", "{Real(p.scale), ", "{Real(p.schedule.num_splits), "},
                               {"an order", "{Real(p.scale), ", "{Real(p.order.tiles), "}};
  nvrtc_file file;
  nvrtc lib;
  luattn_error err;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK || nvrtc_open(&file, &lib, &err) != LUATTN_OK) skip();
  const char *const options[] = {"-std=c++20", "-default-device", "-DEXAMPLE_SHARED_BYTES=98304", "-DLUATTN_PART=1"};
  arena *a = arena_open(NULL);
  for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
    if (!drawn("private sizes", (int)i, 2)) continue;
    const char *why = why_not(a, &lib, "entry/fwd_sm80.cu", "sm_80", options, 4, &edits[i]);
    if (why == NULL || strstr(why, "inaccessible") == NULL)
      fail_msg("%s: %s", edits[i].what, why == NULL ? "compiles" : why);
  }
  arena_close(a);
}

/* A spec must declare its absent hooks, and define exactly the others. The first line of each kernel checks
 * this. */
static void test_contract(void **state) {
  (void)state;
#define SPEC(parts) "struct Spec : " parts " {};"
#define WHOLE SPEC("Mask, Score, Online, Grad, NoMods")
  static const edit edits[] = {
      {"no part for mods", WHOLE, SPEC("Mask, Score, Online, Grad")},
      {"no part for the mask", WHOLE, SPEC("Score, Online, Grad, NoMods")},
      {"no part for gradients", WHOLE, SPEC("Mask, Score, Online, NoMods")},
      {"forward without an online function", WHOLE, SPEC("Mask, Score, NoOnline, NoLse, NoSavedRows, Grad, NoMods")},
      {"an absence of a part is not said", "NoDistanceTerm, ", ""},
      {"a mask and none", WHOLE, SPEC("Mask, EveryKv, Score, Online, Grad, NoMods")},
      {"a hook is missing", "bool keep(", "bool keeps("},
      {"a constant that is not so", "row_intervals = 1", "row_intervals = 2"},
      {"a constant without its hook", "NoLazyRescaling, ", ""},
      {"a hook that is said to be absent", WHOLE,
       "struct Spec : Mask, Score, Online, Grad, NoMods {\n"
       "  LUATTN_FN Real key_mod(const LuattnParams &, const Site &, Real x, int, int) { return x; }\n};"},
  };
#undef WHOLE
#undef SPEC
  nvrtc_file file;
  nvrtc lib;
  luattn_error err;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK || nvrtc_open(&file, &lib, &err) != LUATTN_OK) skip();
  const char *const options[] = {"-std=c++20", "-default-device", "-DEXAMPLE_SHARED_BYTES=98304", "-DLUATTN_PART=1"};
  arena *a = arena_open(NULL);
  const char *why = why_not(a, &lib, "entry/fwd_sm80.cu", "sm_80", options, 4, NULL);
  if (why != NULL) fail_msg("%s", why);
  for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
    if (!drawn("contract", (int)i, 3)) continue;
    why = why_not(a, &lib, "entry/fwd_sm80.cu", "sm_80", options, 4, &edits[i]);
    if (why == NULL || strstr(why, "sm80/fwd_sm80.cuh(") == NULL || strstr(why, "static assertion failed") == NULL)
      fail_msg("%s: %s", edits[i].what, why == NULL ? "compiles" : why);
  }
  arena_close(a);
}

/* A kernel without tangents has none of their code: it compiles where that is missing. A kernel with tangents does not. */
static void test_apart_from_tangents(void **state) {
  (void)state;
  static const struct {
    const char *name, *arch, *threads;
  } kernels[] = {{"entry/fwd_sm80.cu", "sm_80", "256"},
                 {"entry/fwd_jvp_sm80.cu", "sm_80", "256"},
                 {"entry/bwd_sm80.cu", "sm_80", "256"},
                 {"entry/fwd_sm90.cu", "sm_90a", "384"},
                 {"entry/fwd_simt.cu", "sm_80", "256"}};
  nvrtc_file file;
  nvrtc lib;
  luattn_error err;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK || nvrtc_open(&file, &lib, &err) != LUATTN_OK) skip();
  arena *a = arena_open(NULL);
  for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
    if (!drawn("apart from tangents", (int)i, 5)) continue;
    const char *const options[] = {
        "-std=c++20",          "-default-device",     "-DEXAMPLE_SHARED_BYTES=232448",
        "-DEXAMPLE_TILE_M=64", "-DEXAMPLE_TILE_N=64", arena_printf(a, "-DEXAMPLE_THREADS=%s", kernels[i].threads)};
    const char *why = why_not_of(a, &lib, kernels[i].name, kernels[i].arch, options, 6, NULL, true);
    const bool is_apart = why == NULL || strstr(why, "cannot open source file") == NULL;
    if (is_apart == is_of_tangents(kernels[i].name))
      fail_msg("%s: %s", kernels[i].name, why == NULL ? "compiles" : why);
  }
  arena_close(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sm80),     cmocka_unit_test(test_sm90),
                                     cmocka_unit_test(test_simt),     cmocka_unit_test(test_private_sizes),
                                     cmocka_unit_test(test_contract), cmocka_unit_test(test_apart_from_tangents)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
