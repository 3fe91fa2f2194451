/* specs_jvp_test.c: tangents of forward and of backward, by kernels, of whole files of specs, against the CPU path; prints
 * for each spec the largest error of each, relative to the largest number of the result.
 *
 * specs_jvp_test DTYPE ALONG SPEC.lua..   ALONG: all, or q, or others: inputs and scalars, of specs that have any */
#include <math.h>
#include <string.h>

#include "cli/check_jvp.h"

/* More than a tile of 32 rows and of 32 keys, neither a multiple of it; grids by their axes. */
static const char *const shapes[] = {"2,2,1,37,45,8,16", "2,2,1,37,45,8,16", "1,2,1,8x9,9x8,8,16",
                                     "1,2,1,4x5x7,4x6x7,8,16", "1,2,1,3x3x3x4,3x4x3x3,8,16"};

/* Specs of which random inputs of these shapes keep nothing, or that no shape makes other than that, and one whose backward
 * takes NVRTC too long. */
static const struct {
  const char *name, *shape, *refusal;
  bool is_constant;
} others[] = {{"mask_between_tiles.lua", "1,1,1,70,70,8,16", NULL, false},
              {"rising_pairs.lua", "1,1,1,265,270,8,16", NULL, false},
              {"learned_mlp.lua", NULL, "or set LUATTN_COMPILE_LIMIT", false},
              {"skipped_by_all.lua", "1,1,1,205,840,8,16", NULL, false},
              {"keeps_nothing.lua", NULL, NULL, true}};
enum { OTHERS = sizeof others / sizeof *others };

/* OTHERS: none. */
static int other_of(const char *path) {
  const char *slash = strrchr(path, '/');
  int i = 0;
  while (i < OTHERS && strcmp(others[i].name, slash != NULL ? slash + 1 : path) != 0) i++;
  return i;
}

static double worst(const check_report *r, bool backward) {
  double most = 0;
  for (int i = 0; i < r->count; i++) {
    const bool of_gradient =
        strstr(r->line[i].name, "tangent of d") != NULL || strstr(r->line[i].name, "scalar g") != NULL;
    if (of_gradient == backward && !(r->line[i].error <= most)) most = r->line[i].error;
  }
  return most;
}

/* The widest tolerance: that of roundings, which ill-conditioned hooks magnify. */
static double widest(const check_report *r) {
  double most = 0;
  for (int i = 0; i < r->count; i++) most = fmax(most, r->line[i].tolerance);
  return most;
}

/* Returns 0 if all results are within tolerance. */
static int check(cli_gpu *gpu, const char *dtype, unsigned along, const char *path) {
  luattn_spec *spec;
  luattn_error err;
  cli_problem p;
  check_report r;
  if (luattn_spec_load(path, NULL, &spec, &err) != LUATTN_OK) return printf("%s: FAILED: %s\n", path, err.message), 1;
  const int other = other_of(path);
  cli_options o = {.spec = path, .dtype = dtype, .seed = 1, .shape = shapes[luattn_spec_grid(spec, NULL)]};
  if (other < OTHERS && others[other].shape != NULL) o.shape = others[other].shape;
  luattn_status status = problem_read(spec, &o, true, &p, &err);
  const bool backward = status == LUATTN_OK && p.info.has_backward;
  if (status == LUATTN_OK) {
    status = check_jvp_kernels(gpu, &o, &p, along, &r, &err);
    problem_free(&p);
  }
  luattn_spec_free(spec);
  if (status != LUATTN_OK && along == CHECK_ALONG_OTHERS && strstr(err.message, "tangents: none is given") != NULL)
    return printf("%s: has none\n", path), 0;
  if (status != LUATTN_OK) {
    const char *refusal = other < OTHERS ? others[other].refusal : NULL;
    const bool ok = refusal != NULL && strstr(err.message, refusal) != NULL;
    printf("%s: %s: %s\n", path, ok ? "refused" : "FAILED", err.message);
    return !ok;
  }
  printf("%s: tangents of forward %.3g, of backward ", path, worst(&r, false));
  printf(backward ? "%.3g" : "none", worst(&r, true));
  printf(", allowed %.3g\n", widest(&r));
  const bool is_same = worst(&r, false) == 0 && !(other < OTHERS && others[other].is_constant);
  if (is_same) printf("FAILED: no number is rounded, so that all are 0: nothing is compared\n");
  if (r.failed > 0) check_print("FAILED", &r);
  fflush(stdout);
  return r.failed > 0 || is_same;
}

int main(int argc, char **argv) {
  cli_gpu *gpu;
  luattn_error err;
  const cli_options o = {.device = "cuda"};
  if (argc < 4) return 2;
  const unsigned along = argv[2][0] == 'a' ? CHECK_ALONG_ALL : argv[2][0] == 'q' ? CHECK_ALONG_Q : CHECK_ALONG_OTHERS;
  if (gpu_open(&o, &gpu, &err) != LUATTN_OK) return fprintf(stderr, "%s\n", err.message), 1;
  int failed = 0;
  for (int i = 3; i < argc; i++) failed += check(gpu, argv[1], along, argv[i]);
  gpu_close(gpu);
  printf("%d specs, %d failed\n", argc - 3, failed);
  return failed > 0;
}
