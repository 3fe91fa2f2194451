/* nvrtc_test.c: tests finding, loading and calling NVRTC, parsing its log, and the embedded templates. Some
 * tests are skipped without NVRTC. */
#include <pthread.h>
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

#include "gen/nvrtc/embedded.h"
#include "gen/nvrtc/lost_sign.h"

static void test_log_of_two_entries(void **state) {
  (void)state;
  static const char log[] =
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'luattn_fwd' for 'sm_80'\n"
      "ptxas info    : Function properties for helper\n"
      "    8 bytes stack frame, 900 bytes spill stores, 900 bytes spill loads\n"
      "ptxas info    : Compiling entry function 'luattn_mod' for 'sm_80'\n"
      "ptxas info    : Function properties for luattn_mod\n"
      "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 1504 bytes cmem[0]\n"
      "ptxas warning : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register "
      "requirements.\n";
  nvrtc_result r;
  memset(&r, 0, sizeof r);
  nvrtc_read_log(log, &r);
  assert_int_equal(r.num_entries, 2);
  assert_string_equal(r.entry[0].name, "luattn_fwd");
  assert_int_equal(r.entry[0].spill_bytes, 0); /* does not include spills of called functions */
  assert_int_equal(r.called_spill_bytes, 900);
  assert_string_equal(r.entry[1].name, "luattn_mod");
  assert_int_equal(r.entry[1].registers, 255);
  assert_int_equal(r.entry[1].spill_bytes, 20);
  assert_int_equal(r.entry[1].stack_bytes, 16);
  assert_non_null(r.remark);
  assert_non_null(strstr(r.remark, "C7508"));
}

/* NVRTC 13 prefixes the lines with a name. */
static void test_log_with_prefixed_lines(void **state) {
  (void)state;
  static const char log[] =
      "ptxas info    : Compiling entry function 'luattn_fwd' for 'sm_90a'\n"
      "ptxas info    : Function properties for luattn_fwd\n"
      "ptxas         .     192 bytes stack frame, 328 bytes spill stores, 340 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 240 bytes cumulative stack size, 128 bytes smem\n"
      "ptxas info    : Compile time = 1369.716 ms\n"
      "ptxas info    : Function properties for _ZN4Spec14score_outlinedEff\n"
      "ptxas         .     48 bytes stack frame, 16 bytes spill stores, 40 bytes spill loads\n";
  nvrtc_result r;
  memset(&r, 0, sizeof r);
  nvrtc_read_log(log, &r);
  assert_int_equal(r.entry[0].spill_bytes, 340);
  assert_int_equal(r.entry[0].stack_bytes, 240); /* including called functions */
  assert_int_equal(r.called_spill_bytes, 40);
  assert_int_equal(r.entry[0].registers, 255);
}

static void test_missing_library_is_named(void **state) {
  (void)state;
  nvrtc_file file;
  luattn_error err;
  assert_int_equal(nvrtc_find("/nowhere/libnvrtc.so", &file, &err), LUATTN_COMPILE);
  assert_non_null(strstr(err.message, "'/nowhere/libnvrtc.so' (from the target)"));
  char *before = getenv("LUATTN_NVRTC") != NULL ? strdup(getenv("LUATTN_NVRTC")) : NULL;
  setenv("LUATTN_NVRTC", "/nowhere/else.so", 1);
  assert_int_equal(nvrtc_find(NULL, &file, &err), LUATTN_COMPILE);
  assert_non_null(strstr(err.message, "'/nowhere/else.so' (from LUATTN_NVRTC)"));
  if (before != NULL)
    setenv("LUATTN_NVRTC", before, 1);
  else
    unsetenv("LUATTN_NVRTC");
  free(before);
}

/* A file that is not a library has its own identity, and is refused when loaded. */
static void test_other_file_is_refused(void **state) {
  (void)state;
  char path[] = "/tmp/luattn_nvrtc_XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, "not a library", 13), 13);
  close(fd);
  nvrtc_file file;
  nvrtc lib;
  luattn_error err;
  assert_int_equal(nvrtc_find(path, &file, &err), LUATTN_OK);
  assert_non_null(strstr(file.identity, "file of 13 bytes"));
  assert_int_equal(nvrtc_open(&file, &lib, &err), LUATTN_COMPILE);
  assert_non_null(strstr(err.message, path));
  assert_non_null(strstr(err.message, "LUATTN_NVRTC"));
  unlink(path);
}

static arena *open_lib(nvrtc *lib) {
  nvrtc_file file;
  luattn_error err;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK || nvrtc_open(&file, lib, &err) != LUATTN_OK) {
    print_message("%s\n", err.message);
    skip();
  }
  return arena_open(NULL);
}

static const template_file header = {"twice.cuh", "static __device__ float twice(float x) { return x + x; }\n", 58};

static void test_compile(void **state) {
  (void)state;
  nvrtc lib;
  arena *a = open_lib(&lib);
  const char *source =
      "#include \"twice.cuh\"\n"
      "extern \"C\" __global__ void luattn_fwd(float *x) { x[threadIdx.x] = twice(x[threadIdx.x]); }\n";
  const char *options[] = {"-std=c++20", "--ptxas-options=-v"};
  nvrtc_result r;
  luattn_error err;
  assert_int_equal(nvrtc_supports(&lib, 80), 1);
  assert_int_equal(nvrtc_supports(&lib, 81), 0);
  assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", source, &header, 1, "sm_80",
                                 (nvrtc_options){.list = options, .count = 2}, 1, &r, &err),
                   LUATTN_OK);
  assert_true(r.cubin_size > 100);
  assert_memory_equal(r.cubin, "\177ELF", 4);
  assert_non_null(strstr(r.ptx, ".entry luattn_fwd"));
  assert_int_equal(r.num_entries, 1);
  assert_string_equal(r.entry[0].name, "luattn_fwd");
  assert_true(r.entry[0].registers > 0);
  assert_int_equal(r.entry[0].spill_bytes, 0);
  assert_null(r.remark);
  arena_close(a);
}

/* Checks the log of the installed NVRTC. Forty values that are live across a barrier do not fit 32
 * registers. */
static void test_spills_are_seen(void **state) {
  (void)state;
  nvrtc lib;
  arena *a = open_lib(&lib);
  const char *source =
      "extern \"C\" __global__ void __launch_bounds__(1024, 2) luattn_fwd(float *x) {\n"
      "  float v[40];\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 40; ++i) v[i] = x[i * 1024 + threadIdx.x];\n"
      "  __syncthreads();\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 40; ++i) x[(39 - i) * 1024 + threadIdx.x] = v[i] * v[(i + 7) % 40];\n"
      "}\n";
  const char *options[] = {"-std=c++20", "--ptxas-options=-v"};
  nvrtc_result r;
  luattn_error err;
  assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", source, NULL, 0, "sm_80",
                                 (nvrtc_options){.list = options, .count = 2}, 0, &r, &err),
                   LUATTN_OK);
  assert_true(r.entry[0].registers == 32);
  assert_true(r.entry[0].spill_bytes > 0);
  assert_true(r.entry[0].stack_bytes > 0);
  arena_close(a);
}

/* Options that NVRTC refuses, and options that NVVM, to which NVRTC passes them, refuses. */
static void test_refused_options(void **state) {
  (void)state;
  nvrtc lib;
  arena *a = open_lib(&lib);
  const char *source = "extern \"C\" __global__ void luattn_fwd(float *x) { x[threadIdx.x] = 1.f; }\n";
  const char *const refused[][3] = {{"-std=c++20", "-no-such-option", "-w"},
                                    {"-std=c++20", "-Xnvvm", "-no-such-option"}};
  for (int i = 0; i < 2; i++) {
    nvrtc_result r;
    luattn_error err;
    assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", source, NULL, 0, "sm_80",
                                   (nvrtc_options){.list = refused[i], .count = 3, .optional = 2}, 0, &r, &err),
                     LUATTN_OK);
    assert_true(r.cubin_size > 100);
    assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", source, NULL, 0, "sm_80",
                                   (nvrtc_options){.list = refused[i], .count = 3}, 0, &r, &err),
                     LUATTN_COMPILE);
    assert_non_null(strstr(err.message, "-no-such-option"));
    /* An error of the source is not a refused option. */
    assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", "\n__device__ int x = no_such_name;\n", NULL, 0, "sm_80",
                                   (nvrtc_options){.list = refused[i], .count = 3, .optional = 2}, 0, &r, &err),
                     LUATTN_COMPILE);
    assert_non_null(strstr(err.message, "no_such_name"));
  }
  arena_close(a);
}

/* An optimizer ignores the name of an unknown pass, except for a line in the log. */
static void test_names_of_passes_are_known(void **state) {
  (void)state;
  nvrtc lib;
  arena *a = open_lib(&lib);
  const char *source = "extern \"C\" __global__ void luattn_fwd(float *x) { x[threadIdx.x] = 1.f; }\n";
  static const char *const names[] = {"-full-inst-combine=0", "-disable-InstructionCombiningPass", "-disable-LICMPass",
                                      "-disable-NoSuchPass"};
  if (lib.major < 13) {
    arena_close(a);
    skip();
  }
  for (int i = 0; i < 4; i++) {
    const char *const options[] = {"-Xnvvm", "-Xopt", "-Xnvvm", names[i]};
    nvrtc_result r;
    luattn_error err;
    assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", source, NULL, 0, "sm_90a",
                                   (nvrtc_options){.list = options, .count = 4}, 0, &r, &err),
                     LUATTN_OK);
    const bool known = strstr(r.log, "Unknown command line argument") == NULL;
    if (known != (i < 3)) fail_msg("%s: %s", names[i], r.log);
  }
  arena_close(a);
}

enum { COMPILATIONS = 8 };
typedef struct job {
  const nvrtc *lib;
  bool leaves_out;
  arena *a;
  nvrtc_result r;
  luattn_status status;
} job;

static void *compile_loop(void *data) {
  job *c = data;
  static const char source[] =
      "extern \"C\" __global__ void luattn_fwd(int *x, int n) {\n"
      "  for (int i = int(threadIdx.x) % 32; i < n; i += 32) x[i / 4 * 4 + i % 4] = (x[i] * 6 + n % 8) / 2;\n"
      "}\n";
  static const char *const options[] = {
      "-std=c++20", "-Xnvvm", "-Xopt",  "-Xnvvm",           "-disable-InstructionCombiningPass",
      "-Xnvvm",     "-Xopt",  "-Xnvvm", "-disable-LICMPass"};
  const nvrtc_options told = {.list = options, .count = c->leaves_out ? 9 : 1, .optional = c->leaves_out ? 8 : 0};
  luattn_error err;
  c->status = nvrtc_compile(c->lib, c->a, "fwd.cu", source, NULL, 0, "sm_80", told, 0, &c->r, &err);
  return NULL;
}

static bool same_code(const job *a, const job *b) {
  return a->r.cubin_size == b->r.cubin_size && memcmp(a->r.cubin, b->r.cubin, a->r.cubin_size) == 0;
}

/* Passes that one compilation disables stay enabled in earlier, later and concurrent compilations. Compares
 * the code of a loop on which LICM makes a difference. */
static void test_passes_are_left_out_of_one_compilation(void **state) {
  (void)state;
  nvrtc lib;
  arena_close(open_lib(&lib));
  job c[COMPILATIONS];
  pthread_t thread[COMPILATIONS];
  bool started[COMPILATIONS] = {false};
  if (lib.major < 13) skip();
  for (int i = 0; i < COMPILATIONS; i++) {
    c[i] = (job){.lib = &lib, .leaves_out = i % 2 == 1, .a = arena_open(NULL)};
    if (i < COMPILATIONS / 2)
      compile_loop(&c[i]);
    else
      started[i] = pthread_create(&thread[i], NULL, compile_loop, &c[i]) == 0;
  }
  for (int i = COMPILATIONS / 2; i < COMPILATIONS; i++)
    if (started[i]) pthread_join(thread[i], NULL);
  for (int i = 0; i < COMPILATIONS; i++) {
    assert_true(i < COMPILATIONS / 2 || started[i]);
    assert_int_equal(c[i].status, LUATTN_OK);
    assert_true(same_code(&c[i], &c[i % 2]));
  }
  assert_false(same_code(&c[0], &c[1])); /* the option has an effect */
  for (int i = 0; i < COMPILATIONS; i++) arena_close(c[i].a);
}

static void count(void *of_int) { ++*(int *)of_int; }

/* The end of the front end is always reported, even on errors, and even if NVRTC has no progress callback. */
static void test_watcher(void **state) {
  (void)state;
  nvrtc lib;
  arena *a = open_lib(&lib);
  nvrtc_result r;
  luattn_error err;
  int calls = 0;
  nvrtc_watcher watcher = {count, &calls};
  const nvrtc_options told = {.watcher = &watcher};
  const char *source = "extern \"C\" __global__ void luattn_fwd(float *x) { x[threadIdx.x] = 1.f; }\n";
  assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", source, NULL, 0, "sm_80", told, 0, &r, &err), LUATTN_OK);
  assert_true(calls > 0);
  calls = 0;
  lib.fn.set_flow_callback = NULL; /* as in versions before 12.8 */
  assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", source, NULL, 0, "sm_80", told, 0, &r, &err), LUATTN_OK);
  assert_int_equal(calls, 1);
  arena_close(a);
}

static void test_first_error_is_in_the_message(void **state) {
  (void)state;
  nvrtc lib;
  arena *a = open_lib(&lib);
  nvrtc_result r;
  luattn_error err;
  assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", "\n__device__ int x = no_such_name;\n", NULL, 0, "sm_80",
                                 (nvrtc_options){0}, 0, &r, &err),
                   LUATTN_COMPILE);
  assert_non_null(strstr(err.message, "fwd.cu for sm_80"));
  assert_non_null(strstr(err.message, "fwd.cu(2)"));
  assert_non_null(strstr(err.message, "no_such_name"));
  arena_close(a);
}

/* ---- what ptxas makes wrong code of ---- */

static const char *lost_sign_of(arena *a, const char *body) {
  luattn_error err;
  const char *entry;
  char *ptx = arena_printf(
      a,
      ".visible .func  (.param .b32 r) helper(\n\t.param .b32 x\n)\n{\n\t.reg .b32 \t%%r<2>;\n}\n"
      ".visible .entry luattn_fwd(\n\t.param .u64 x\n)\n{\n\t.reg .pred \t%%p<9>;\n\t.reg .b32 \t%%r<12>;\n%s\n}\n",
      body);
  assert_int_equal(ptx_find_lost_sign(a, ptx, &entry, &err), LUATTN_OK);
  return entry;
}

static void test_lost_signs_are_found(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  static const char *const lost[] = {
      "\tneg.s32 \t%r1, %r9;\n\tmax.s32 \t%r2, %r3, %r1;\n\tmax.s32 \t%r4, %r2, %r5;",
      "\tneg.s32 \t%r1, %r9;\n\tmin.s32 \t%r2, %r1, %r3;\n\t@!%p1 min.s32 \t%r4, %r5, %r2;",
      "\tneg.s32 \t%r1, %r9;\n\tmov.u32 \t%r6, %r1;\n\tmax.s32 \t%r2, %r6, 17;\n\tmov.b32 \t%r7, %r2;\n\tmax.s32 "
      "\t%r4, 5, %r7;",
      "$L_1:\n\tmax.s32 \t%r4, %r2, %r5;\n\tmax.s32 \t%r2, %r3, %r1;\n\tneg.s32 \t%r1, %r9;\n\t@%p1 bra \t$L_1;"};
  static const char *const kept[] = {
      "\tneg.s32 \t%r1, %r9;\n\tmax.s32 \t%r2, %r3, %r1;\n\tmin.s32 \t%r4, %r2, %r5;", /* no one instruction */
      "\tneg.s32 \t%r1, %r9;\n\tmax.s32 \t%r2, %r3, %r4;\n\tmax.s32 \t%r5, %r2, %r1;", /* ptxas subtracts first */
      "\tneg.s32 \t%r1, %r9;\n\tmax.u32 \t%r2, %r3, %r1;\n\tmax.u32 \t%r4, %r2, %r5;",
      "\tnot.b32 \t%r1, %r9;\n\tmax.s32 \t%r2, %r3, %r1;\n\tmax.s32 \t%r4, %r2, %r5;",
      "\tneg.s32 \t%r1, %r9;\n\tmax.s32 \t%r2, %r2, %r1;"};
  for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) assert_string_equal(lost_sign_of(a, lost[i]), "luattn_fwd");
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) assert_null(lost_sign_of(a, kept[i]));
  arena_close(a);
}

/* LUATTN_MIN_MAX_APART leaves nothing of which ptxas loses the sign. */
static void test_integers_are_compared_apart(void **state) {
  (void)state;
  nvrtc lib;
  arena *a = open_lib(&lib);
  const char *source =
      "#include \"arch/types.cuh\"\n"
      "extern \"C\" __global__ void luattn_fwd(int *x) {\n"
      "  const int i = threadIdx.x;\n"
      "  x[i] = max_of(max_of(x[i + 99], -x[i + 199]), x[i + 299]);\n"
      "}\n";
  const char *options[] = {"-std=c++20", "-default-device", "-DLUATTN_MIN_MAX_APART"};
  for (int count = 2; count <= 3; count++) {
    const template_file *files;
    int num_files;
    nvrtc_result r;
    luattn_error err;
    assert_int_equal(templates_get(a, &files, &num_files, &err), LUATTN_OK);
    assert_int_equal(nvrtc_compile(&lib, a, "fwd.cu", source, files, num_files, "sm_90a",
                                   (nvrtc_options){.list = options, .count = count}, 0, &r, &err),
                     LUATTN_OK);
    if (count == 2)
      assert_string_equal(r.lost_sign, "luattn_fwd");
    else
      assert_null(r.lost_sign);
  }
  arena_close(a);
}

static void test_embedded_templates_are_the_files(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  const template_file *embedded, *read;
  int count, read_count;
  luattn_error err;
  unsetenv("LUATTN_TEMPLATE_DIR");
  assert_int_equal(templates_get(a, &embedded, &count, &err), LUATTN_OK);
  setenv("LUATTN_TEMPLATE_DIR", TEMPLATES, 1);
  assert_int_equal(templates_get(a, &read, &read_count, &err), LUATTN_OK);
  assert_int_equal(count, read_count);
  for (int i = 0; i < count; i++) {
    assert_string_equal(embedded[i].name, read[i].name);
    assert_int_equal(embedded[i].size, read[i].size);
    assert_memory_equal(embedded[i].data, read[i].data, read[i].size);
    assert_int_equal(embedded[i].data[embedded[i].size], 0);
  }
  setenv("LUATTN_TEMPLATE_DIR", "/nowhere", 1);
  assert_int_equal(templates_get(a, &read, &read_count, &err), LUATTN_IO);
  assert_non_null(strstr(err.message, "'/nowhere/"));
  unsetenv("LUATTN_TEMPLATE_DIR");
  arena_close(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_log_of_two_entries),
      cmocka_unit_test(test_log_with_prefixed_lines),
      cmocka_unit_test(test_missing_library_is_named),
      cmocka_unit_test(test_other_file_is_refused),
      cmocka_unit_test(test_compile),
      cmocka_unit_test(test_spills_are_seen),
      cmocka_unit_test(test_refused_options),
      cmocka_unit_test(test_names_of_passes_are_known),
      cmocka_unit_test(test_passes_are_left_out_of_one_compilation),
      cmocka_unit_test(test_watcher),
      cmocka_unit_test(test_first_error_is_in_the_message),
      cmocka_unit_test(test_lost_signs_are_found),
      cmocka_unit_test(test_integers_are_compared_apart),
      cmocka_unit_test(test_embedded_templates_are_the_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
