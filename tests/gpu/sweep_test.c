/* sweep_test.c: compares every example x dtype x shape on a GPU, forward and backward, with the CPU path in
 * double precision.
 *
 * usage: gpu_sweep --examples DIR [--shard I/N] [--only SUBSTRING] [--dtypes NAME,NAME..]
 *                  [--family sm80] [--deterministic] [--splits N] [--skip always] [--adjoint] [--verbose]
 *                  [--most-scores N]
 * --most-scores: leaves out larger shapes. For functions with jumps, across which rounding carries one score
 * in ten million. --adjoint: instead compares all gradients along a random direction with central differences
 * of plain Lua, for shapes that are small enough. Prints a line for each failing case, and `N passed, N
 * failed`. Exit: 0, 1, or 77 without a GPU or, with --splits or --skip, without one of the sm90 family. */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check.h"
#include "cli/gpu.h"

/* Odd, short, long, grouped, cross-length both ways (with empty rows for causal_bottom_right), D != Dv, large
 * D, no queries, no keys. The shape with one query and one key has many heads, because the tolerance is twice
 * the error of a plain result, and a single one may be exact. */
static const char *const shapes[] = {
    "2,2,2,64,64,64",      "32,4,2,1,1,64",      "1,3,1,7,130,40,24",     "2,4,2,129,65,72,16",   "1,2,2,257,127,128",
    "1,4,1,100,300,96,48", "1,2,1,300,100,8,64", "1,2,1,190,190,256",     "1,1,1,515,517,64",     "1,8,2,66,1023,16,32",
    "2,2,1,0,33,64",       "2,2,1,33,0,64",      "1,4,2,129,200,192,128", "2,2,2,70,150,136,200", "1,6,2,700,640,112",
};
#define ADJOINT_SCORES 150000 /* at most, unless --most-scores says otherwise */
static const char *const dtypes[] = {"f64", "f32", "bf16", "f16"};
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

typedef struct sweep {
  const char *examples, *only, *dtypes, *skip;
  long splits, most_scores;
  int shard, shards, passed, failed, refused, next;
  bool verbose, adjoint;
  int given;       /* specs with their own backward, which differences cannot check */
  cli_gpu *gpu[2]; /* one with tiles for short lengths, one for long ones */
  luattn_spec *spec[256];
  int num_specs;
} sweep;

static void report(sweep *s, const char *name, const check_report *r) {
  if (s->adjoint && r->stops_gradient) {
    s->given++;
    return;
  }
  if (r->failed > 0 || s->verbose) check_print(name, r);
  *(r->failed > 0 ? &s->failed : &s->passed) += 1;
}

/* Every third case requests only some gradients, so that kernels omit the others. */
static unsigned wants_of(const luattn_spec *spec, int number) {
  enum { PARAMETERS = LUATTN_WANT_INPUTS | LUATTN_WANT_SCALARS };
  static const unsigned some[] = {LUATTN_WANT_DQ, LUATTN_WANT_DK | LUATTN_WANT_DV, LUATTN_WANT_DK,
                                  PARAMETERS | LUATTN_WANT_DV, PARAMETERS};
  const unsigned wants = number % 3 == 2 ? some[number / 3 % COUNT(some)] : LUATTN_WANT_ALL;
  return (wants & luattn_spec_wants(spec)) != 0 ? wants : LUATTN_WANT_ALL;
}

static void run_case(sweep *s, const luattn_spec *spec, const char *path, const char *dtype, int number,
                     bool heads_last) {
  const char *shape = shapes[number];
  cli_gpu *gpu = s->gpu[number >= COUNT(shapes) / 2];
  const char *const slash = strrchr(path, '/'), *const name = slash != NULL ? slash + 1 : path;
  cli_options o = {.spec = path,
                   .dtype = dtype,
                   .shape = shape,
                   .layout = heads_last ? "bshd" : "bhsd",
                   .seed = 1 + s->next,
                   .splits = s->splits,
                   .skip = s->skip};
  char title[512];
  cli_problem p;
  check_report r = {0};
  luattn_error err;
  const unsigned wants = s->adjoint ? LUATTN_WANT_ALL : wants_of(spec, s->next);
  snprintf(title, sizeof title, "%.200s %s %s %s wants %u", name, dtype, shape, o.layout, wants);
  luattn_status status = problem_read(spec, &o, true, &p, &err);
  if (status == LUATTN_OK && (double)p.batch * p.heads * p.q_len * p.kv_len > (double)s->most_scores) {
    problem_free(&p);
    return;
  }
  if (status == LUATTN_OK) {
    status = s->adjoint ? check_kernels_adjoint(gpu, &o, &p, &r, &err) : check_kernels(gpu, &p, wants, &r, &err);
    problem_free(&p);
  }
  if (status == LUATTN_OK) {
    report(s, title, &r);
  } else if ((s->splits > 1 && strstr(err.message, ": num_splits: is ") != NULL) ||
             (s->skip != NULL && strstr(err.message, ": skip: is ") != NULL)) {
    s->refused++; /* not the sm90 family, which alone can; or scores do not decrease */
  } else {
    printf("%s\n  %s\n", title, err.message);
    s->failed++;
  }
  fflush(stdout);
}

static bool is_listed(const char *list, const char *name) {
  const size_t n = strlen(name);
  for (const char *at = list; at != NULL; at = strchr(at, ','), at += at != NULL)
    if (strncmp(at, name, n) == 0 && (at[n] == 0 || at[n] == ',')) return true;
  return list == NULL;
}

static void run_spec(sweep *s, const char *name) {
  char path[4096];
  luattn_spec *spec = NULL;
  luattn_error err;
  snprintf(path, sizeof path, "%s/%s", s->examples, name);
  for (int d = 0; d < COUNT(dtypes); d++) {
    for (int i = 0; i < COUNT(shapes); i++) {
      if (s->next++ % s->shards != s->shard || !is_listed(s->dtypes, dtypes[d])) continue;
      if (spec == NULL && luattn_spec_load(path, NULL, &spec, &err) != LUATTN_OK) {
        printf("%s\n  %s\n", name, err.message);
        s->failed++;
        return;
      }
      run_case(s, spec, path, dtypes[d], i, (i + d) % 2 != 0);
    }
  }
  if (spec != NULL) s->spec[s->num_specs++] = spec; /* engines keep the spec's kernels until closed */
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int run_all(sweep *s) {
  char *names[COUNT(s->spec)];
  int count = 0;
  DIR *dir = opendir(s->examples);
  if (dir == NULL) {
    fprintf(stderr, "gpu_sweep: --examples %s cannot be read\n", s->examples);
    return 1;
  }
  for (struct dirent *e; count < COUNT(names) && (e = readdir(dir)) != NULL;) {
    const size_t n = strlen(e->d_name);
    if (n < 5 || strcmp(e->d_name + n - 4, ".lua") != 0 || (s->only != NULL && strstr(e->d_name, s->only) == NULL))
      continue;
    names[count] = malloc(n + 1);
    if (names[count] != NULL) memcpy(names[count++], e->d_name, n + 1);
  }
  closedir(dir);
  qsort(names, (size_t)count, sizeof *names, compare_names);
  for (int i = 0; i < count; i++) {
    run_spec(s, names[i]);
    free(names[i]);
  }
  printf("%d passed, %d failed\n", s->passed, s->failed);
  if (s->given > 0) printf("%d cases of specs that give their gradients themselves were left out\n", s->given);
  if (s->refused > 0)
    printf("%d cases whose kernel has no splits, or skips nothing, were refused, as they have to be\n", s->refused);
  return s->failed > 0 || s->passed == 0;
}

int main(int argc, char **argv) {
  sweep s = {.examples = "examples", .shards = 1};
  cli_options options = {0};
  luattn_error err;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--verbose") == 0)
      s.verbose = true;
    else if (strcmp(argv[i], "--deterministic") == 0)
      options.deterministic = true;
    else if (strcmp(argv[i], "--adjoint") == 0)
      s.adjoint = true;
    else if (i + 1 < argc && strcmp(argv[i], "--examples") == 0)
      s.examples = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
      s.only = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--dtypes") == 0)
      s.dtypes = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--family") == 0)
      options.family = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--splits") == 0)
      s.splits = strtol(argv[++i], NULL, 10);
    else if (i + 1 < argc && strcmp(argv[i], "--most-scores") == 0)
      s.most_scores = strtol(argv[++i], NULL, 10);
    else if (i + 1 < argc && strcmp(argv[i], "--skip") == 0)
      s.skip = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--shard") == 0) {
      if (sscanf(argv[++i], "%d/%d", &s.shard, &s.shards) != 2 || s.shards < 1) return 2;
    } else
      return 2;
  }
  if (s.most_scores == 0) s.most_scores = s.adjoint ? ADJOINT_SCORES : LONG_MAX;
  options.no_tuned = true;
  for (int i = 0; i < 2; i++) {
    options.lengths = i == 0 ? "short" : "long";
    if (gpu_open(&options, &s.gpu[i], &err) == LUATTN_OK) continue;
    gpu_close(s.gpu[0]);
    printf("skipped: %s\n", err.message);
    return 77;
  }
  const bool can = (s.splits <= 1 && s.skip == NULL) || s.gpu[0]->info.arch == 90;
  if (!can) printf("skipped: --splits and --skip are for the sm90 family\n");
  const int code = can ? run_all(&s) : 77;
  for (int i = 0; i < 2; i++) gpu_close(s.gpu[i]);
  for (int i = 0; i < s.num_specs; i++) luattn_spec_free(s.spec[i]);
  return code;
}
