/* compile_all_test.c: compiles every example, architecture, pass and dtype with NVRTC, without a GPU. No
 * kernel that is launched may spill unless its plan says so.
 *
 *   compile_all EXAMPLES_DIR      a sample that covers every example x pass and every architecture x dtype x
 *                                 pass, of which a tree draws a sixth; LUATTN_COMPILE_ALL=1 compiles every
 *                                 combination
 *   compile_all DIR once [I/N]    every spec of the folder in half precision: backward for sm_90, forward
 *                                 for sm_90 or sm_80; one in N of these, from the I-th
 *
 * Exits with 77 (skipped) without NVRTC.
 */
#define _GNU_SOURCE /* memmem */
#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/image.h"
#include "gen/nvrtc/nvrtc.h"
#include "luattn/compiler.h"
#include "tests/support/any_types.h"
#include "tests/support/drawn.h"

enum { MAX_EXAMPLES = 128, MAX_JOBS = 8192, WORKERS = 2 };

static const int archs[] = {80, 86, 89, 90, 100, 120};
static const luattn_dtype dtypes[] = {LUATTN_BF16, LUATTN_F32, LUATTN_F16, LUATTN_F64};
static const char *const dtype_names[] = {"f64", "f32", "bf16", "f16"};
static const int dims[][2] = {{64, 64}, {128, 128}, {32, 32}, {192, 128}, {256, 256}, {72, 40}};
#define COUNT(x) ((int)(sizeof(x) / sizeof((x)[0])))

typedef struct job {
  int example, arch, dtype, pass, dim;
  unsigned wants; /* 0: all gradients */
} job;

typedef struct work {
  char path[MAX_EXAMPLES][512];
  int num_examples;
  job jobs[MAX_JOBS];
  int num_jobs, next, failed, spilled;
  pthread_mutex_t lock;
} work;

static void add_job(work *w, int example, int arch, int dtype, int pass, int dim) {
  if (w->num_jobs < MAX_JOBS)
    w->jobs[w->num_jobs++] =
        (job){example % w->num_examples, arch % COUNT(archs), dtype % COUNT(dtypes), pass, dim % COUNT(dims), 0};
}

/* Adds jobs with only some gradients, which omit parts of a kernel, in each family and for large head
 * dims. */
static void some_gradients(work *w) {
  static const unsigned wants[] = {LUATTN_WANT_DQ,
                                   LUATTN_WANT_DK,
                                   LUATTN_WANT_DV,
                                   LUATTN_WANT_DQ | LUATTN_WANT_DK,
                                   LUATTN_WANT_INPUTS | LUATTN_WANT_SCALARS,
                                   LUATTN_WANT_INPUTS | LUATTN_WANT_SCALARS | LUATTN_WANT_DV};
  enum { SM_80 = 0, SM_90 = 3, HALF = 0, F32 = 1, D128 = 1, WIDE = 3 };
  static const int kernels[][3] = {{SM_80, HALF, D128}, {SM_80, F32, D128}, {SM_90, HALF, D128}, {SM_90, HALF, WIDE}};
  for (int k = 0; k < COUNT(kernels); k++)
    for (int i = 0; i < COUNT(wants); i++) {
      add_job(w, w->num_jobs, kernels[k][0], kernels[k][1], 1, kernels[k][2]);
      w->jobs[w->num_jobs - 1].wants = wants[i];
    }
}

/* Adds the sample, with coprime strides, so that consecutive jobs differ in everything. */
static void sample(work *w) {
  for (int e = 0; e < w->num_examples; e++)
    for (int pass = 0; pass < 2; pass++) add_job(w, e, e + 3 * pass, e / 2 + pass, pass, e + 2 * pass);
  for (int a = 0; a < COUNT(archs); a++)
    for (int d = 0; d < COUNT(dtypes); d++)
      for (int pass = 0; pass < 2; pass++) add_job(w, 7 * w->num_jobs + 3, a, d, pass, a + d);
  some_gradients(w);
}

static void once(work *w) {
  enum { SM_80 = 0, SM_90 = 3, BF16 = 0, F16 = 2 };
  for (int e = 0; e < w->num_examples; e++) {
    add_job(w, e, SM_90, e % 2 == 0 ? BF16 : F16, 1, e);
    add_job(w, e, e % 3 == 0 ? SM_80 : SM_90, e % 2 == 0 ? F16 : BF16, 0, e + 1);
  }
}

static void everything(work *w) {
  for (int e = 0; e < w->num_examples; e++)
    for (int a = 0; a < COUNT(archs); a++)
      for (int d = 0; d < COUNT(dtypes); d++)
        for (int pass = 0; pass < 2; pass++)
          for (int dim = 0; dim < 2; dim++)
            add_job(w, e, a, d, pass, dim == 0 ? d % 2 : 2 + (e + a) % (COUNT(dims) - 2));
  some_gradients(w);
}

/* Returns whether each kernel is only in the code from which the runtime loads that kernel. */
static bool placed(const luattn_image *image) {
  const image_manifest *info = image_get_manifest(image);
  size_t size;
  const char *code = luattn_image_cubin(image, &size);
  const size_t end = info->second_code > 0 ? info->second_code : size;
  for (unsigned i = 0; i < info->num_entries; i++) {
    char section[80];
    const int n = snprintf(section, sizeof section, ".text.%s", info->entry[i].name);
    const bool in_first = memmem(code, end, section, (size_t)n + 1) != NULL;
    const bool in_second = memmem(code + end, size - end, section, (size_t)n + 1) != NULL;
    const bool is_first = info->second_code == 0 || luattn_role_is_main(info->entry[i].role);
    if (in_first != is_first || in_second == is_first) return false;
  }
  return true;
}

static bool explained(const image_manifest *info, const char *plan) {
  for (unsigned i = 0; i < info->num_entries; i++) {
    char spills[96], stack[96];
    snprintf(spills, sizeof spills, "%s spills", info->entry[i].name);
    snprintf(stack, sizeof stack, "%s has", info->entry[i].name);
    if (info->entry[i].local_bytes > 0 && strstr(plan, spills) == NULL && strstr(plan, stack) == NULL) return false;
    if (info->entry[i].registers == 0) return false; /* the log was not parsed */
  }
  return true;
}

static void report(work *w, const job *j, const char *what, const char *text) {
  const char *name = strrchr(w->path[j->example], '/') + 1;
  pthread_mutex_lock(&w->lock);
  printf("%s: %s sm_%d %s %s wants %u D %d Dv %d: %s\n", what, name, archs[j->arch], dtype_names[dtypes[j->dtype]],
         j->pass == 0 ? "forward" : "backward", j->wants, dims[j->dim][0], dims[j->dim][1], text);
  fflush(stdout);
  pthread_mutex_unlock(&w->lock);
}

static bool run(work *w, const job *j) {
  luattn_error err;
  luattn_spec *spec = NULL;
  luattn_image *image = NULL;
  luattn_compile_report r;
  luattn_target t = {.struct_size = sizeof t,
                     .pass = j->pass == 0 ? LUATTN_FORWARD : LUATTN_BACKWARD,
                     .dtype = dtypes[j->dtype],
                     .head_dim = dims[j->dim][0],
                     .head_dim_v = dims[j->dim][1],
                     .arch = archs[j->arch],
                     .wants = j->wants,
                     .cache_dir = ""};
  bool ok = luattn_spec_load(w->path[j->example], NULL, &spec, &err) == LUATTN_OK;
  if (ok) t.input_types = any_types_f32(spec);
  ok = ok && luattn_compile(spec, &t, &image, &r, &err) == LUATTN_OK;
  if (!ok) {
    report(w, j, "FAILED", err.message);
  } else {
    const char *spills = strstr(r.plan, " spills ");
    if (spills != NULL) report(w, j, "spills, as the plan says", r.plan);
    ok = explained(image_get_manifest(image), r.plan);
    if (!ok) report(w, j, "FAILED: local memory that the plan does not explain", r.plan);
    const bool is_placed = placed(image);
    if (!is_placed) report(w, j, "FAILED: a kernel is not in its code, or in both", r.plan);
    ok = ok && is_placed;
    pthread_mutex_lock(&w->lock);
    w->spilled += spills != NULL;
    pthread_mutex_unlock(&w->lock);
  }
  luattn_image_free(image);
  luattn_spec_free(spec);
  return ok;
}

static void *worker(void *user) {
  work *w = user;
  for (;;) {
    pthread_mutex_lock(&w->lock);
    const int i = w->next++;
    pthread_mutex_unlock(&w->lock);
    if (i >= w->num_jobs) return NULL;
    const bool ok = run(w, &w->jobs[i]);
    pthread_mutex_lock(&w->lock);
    w->failed += !ok;
    pthread_mutex_unlock(&w->lock);
  }
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

static void find_examples(work *w, const char *dir) {
  DIR *d = opendir(dir);
  if (d == NULL) return;
  for (const struct dirent *e = readdir(d); e != NULL && w->num_examples < MAX_EXAMPLES; e = readdir(d)) {
    const size_t n = strlen(e->d_name);
    if (n < 5 || strcmp(e->d_name + n - 4, ".lua") != 0) continue;
    const int size = snprintf(w->path[w->num_examples], sizeof w->path[0], "%s/%s", dir, e->d_name);
    w->num_examples += size > 0 && (size_t)size < sizeof w->path[0];
  }
  closedir(d);
  qsort(w->path, (size_t)w->num_examples, sizeof w->path[0], by_name);
}

/* Keeps the part that the tree draws. */
static void take_drawn(work *w) {
  int kept = 0;
  for (int i = 0; i < w->num_jobs; i++)
    if (drawn("compile_all", i, 12)) w->jobs[kept++] = w->jobs[i];
  w->num_jobs = kept;
}

/* Keeps one job in `parts`, from number `part`. */
static void take_part(work *w, int part, int parts) {
  int kept = 0;
  for (int i = part; i < w->num_jobs; i += parts) w->jobs[kept++] = w->jobs[i];
  w->num_jobs = kept;
}

int main(int argc, char **argv) {
  static work w = {.lock = PTHREAD_MUTEX_INITIALIZER};
  nvrtc_file file;
  luattn_error err;
  const bool is_once = argc > 2 && argc < 5 && strcmp(argv[2], "once") == 0;
  int part = 0, parts = 1;
  const bool is_part = argc != 4 || (sscanf(argv[3], "%d/%d", &part, &parts) == 2 && part >= 0 && part < parts);
  if ((argc != 2 && !is_once) || !is_part) return fprintf(stderr, "usage: compile_all DIR [once [I/N]]\n"), 2;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK) return printf("skipped: %s\n", err.message), 77;
  find_examples(&w, argv[1]);
  if (w.num_examples == 0) return fprintf(stderr, "no examples in %s\n", argv[1]), 1;
  const char *all = getenv("LUATTN_COMPILE_ALL");
  if (is_once)
    once(&w);
  else if (all != NULL && strcmp(all, "1") == 0)
    everything(&w);
  else
    sample(&w), take_drawn(&w);
  take_part(&w, part, parts);
  pthread_t threads[WORKERS];
  int started = 0;
  while (started < WORKERS && pthread_create(&threads[started], NULL, worker, &w) == 0) started++;
  if (started == 0) worker(&w);
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
  printf("%d kernels of %d examples compiled, %d failed, %d spill as their plans say\n", w.num_jobs, w.num_examples,
         w.failed, w.spilled);
  return w.failed == 0 ? 0 : 1;
}
