/* concurrent_test.c: tests luattn_compile and the disk cache with many processes and threads, and a full disk. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiled.h"

static void test_report(void **state) {
  (void)state;
  folder dir = folder_new();
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  luattn_compile_report cold, warm;
  target.cache_dir = dir.path;
  luattn_image *first = compile(spec, &target, &cold), *second = compile(spec, &target, &warm);
  assert_true(!cold.cache_hit && warm.cache_hit && same_image(first, second));
  assert_true(cold.trace_ms > 0 && cold.plan_ms > 0 && cold.nvrtc_ms > 0 && warm.nvrtc_ms == 0);
  assert_string_equal(cold.plan, warm.plan);
  luattn_image_free(first), luattn_image_free(second);
  luattn_spec_free(spec);
  folder_remove(&dir);
}

/* Forks children before any compilation, and starts them at the same time. */
static void test_processes(void **state) {
  (void)state;
  enum { PROCESSES = 8, ROUNDS = 5 };
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  luattn_image *want = compile(spec, &target, NULL);
  for (int round = 0; round < ROUNDS; round++) {
    folder dir = folder_new();
    pid_t child[PROCESSES];
    int gate[2];
    target.cache_dir = dir.path;
    assert_int_equal(pipe(gate), 0);
    for (int i = 0; i < PROCESSES; i++) {
      child[i] = fork();
      assert_true(child[i] >= 0);
      if (child[i] != 0) continue;
      char byte;
      luattn_image *image = NULL;
      close(gate[1]);
      if (read(gate[0], &byte, 1) != 0) _exit(2); /* returns when the parent closes its end */
      const bool ok = luattn_compile(spec, &target, &image, NULL, NULL) == LUATTN_OK && same_image(image, want);
      _exit(ok ? 0 : 1);
    }
    close(gate[0]), close(gate[1]);
    for (int i = 0; i < PROCESSES; i++) {
      int status = -1;
      assert_int_equal(waitpid(child[i], &status, 0), child[i]);
      assert_int_equal(status, 0);
    }
    luattn_compile_report report;
    luattn_image *image = compile(spec, &target, &report);
    assert_true(report.cache_hit && same_image(image, want));
    assert_int_equal(folder_count(&dir, "*"), 1); /* a single entry, no partial files */
    luattn_image_free(image);
    folder_remove(&dir);
  }
  luattn_image_free(want);
  luattn_spec_free(spec);
}

/* No file may grow beyond 100 bytes. Compiling works, reports that the image was not stored, and leaves no
 * files. */
static void test_full_disk(void **state) {
  (void)state;
  folder dir = folder_new();
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  luattn_image *want = compile(spec, &target, NULL);
  target.cache_dir = dir.path;
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    const struct rlimit limit = {100, 100};
    luattn_compile_report report;
    luattn_image *image = NULL;
    signal(SIGXFSZ, SIG_IGN); /* a full disk sends no signal: write just fails */
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    if (luattn_compile(spec, &target, &image, &report, NULL) != LUATTN_OK || !same_image(image, want)) _exit(3);
    if (strstr(report.plan, "cannot write it: File too large; the kernel works but is not kept") == NULL) _exit(4);
    fake_mode("fail"); /* the refused source does not fit either */
    luattn_error err;
    target.head_dim = 32;
    if (luattn_compile(spec, &target, &image, NULL, &err) != LUATTN_COMPILE) _exit(5);
    _exit(strstr(err.message, "the generated source is in") == NULL ? 0 : 6);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(folder_count(&dir, "*.lai") + folder_count(&dir, ".tmp-*"), 0);
  luattn_image_free(want);
  luattn_spec_free(spec);
  folder_remove(&dir);
}

/* ---- threads ---- */

typedef struct job {
  const luattn_spec *spec;
  luattn_target target;
  luattn_status status;
  luattn_image *image;
  char *text;
} job;

static void *run_job(void *data) {
  job *j = data;
  j->status = luattn_compile(j->spec, &j->target, &j->image, NULL, NULL);
  if (j->status == LUATTN_OK) j->status = luattn_emit(j->spec, &j->target, "spec", &j->text, NULL);
  return NULL;
}

/* Compiles one spec for eight targets at once into one cache. Each image is as if compiled alone. */
static void test_threads(void **state) {
  (void)state;
  enum { THREADS = 8 };
  static const luattn_dtype dtypes[] = {LUATTN_F64, LUATTN_F32, LUATTN_BF16, LUATTN_F16};
  static const int archs[] = {80, 90, 100, 120};
  folder dir = folder_new();
  luattn_spec *spec = load(SPEC);
  job jobs[THREADS];
  luattn_image *alone[THREADS];
  pthread_t thread[THREADS];
  for (int i = 0; i < THREADS; i++) {
    memset(&jobs[i], 0, sizeof jobs[i]);
    jobs[i].spec = spec;
    jobs[i].target = target_new();
    jobs[i].target.pass = i % 2 ? LUATTN_FORWARD : LUATTN_BACKWARD;
    jobs[i].target.dtype = dtypes[i / 2], jobs[i].target.arch = archs[i % 4];
    alone[i] = compile(spec, &jobs[i].target, NULL);
    jobs[i].target.cache_dir = dir.path;
  }
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, run_job, &jobs[i]), 0);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(jobs[i].status, LUATTN_OK);
    assert_true(same_image(jobs[i].image, alone[i]));
    for (int j = 0; j < i; j++) assert_false(same_image(alone[i], alone[j]));
    assert_non_null(strstr(jobs[i].text, "struct"));
  }
  assert_int_equal(folder_count(&dir, "*"), THREADS);
  for (int i = 0; i < THREADS; i++) {
    luattn_text_free(jobs[i].text);
    luattn_image_free(jobs[i].image), luattn_image_free(alone[i]);
  }
  luattn_spec_free(spec);
  folder_remove(&dir);
}

/* usage: compile_concurrent_test [PATTERN]: those whose names match */
int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_report),
      cmocka_unit_test(test_processes),
      cmocka_unit_test(test_full_disk),
      cmocka_unit_test(test_threads),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
