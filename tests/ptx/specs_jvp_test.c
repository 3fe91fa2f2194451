/* specs_jvp_test.c: tangents of forward and of backward, by kernels, of whole files of specs, against the CPU path; prints
 * for each spec the largest error of each, relative to the largest number of the result, and absolute where that is below
 * 1. In f64 a tolerance above 1e-6 fails, as it would hide what is wrong.
 *
 * specs_jvp_test DTYPE ALONG SPEC.lua..   ALONG: all, or q, or others: inputs and scalars, of specs that have any */
#include <math.h>
#include <string.h>

#include "cli/check_jvp.h"

/* More than a tile of 32 rows and of 32 keys, neither a multiple of it; grids by their axes. */
static const char *const shapes[] = {"2,2,1,37,45,8,16", "2,2,1,37,45,8,16", "1,2,1,8x9,9x8,8,16",
                                     "1,2,1,4x5x7,4x6x7,8,16", "1,2,1,3x3x3x4,3x4x3x3,8,16"};

/* Specs of which random inputs of these shapes keep nothing, or that no shape makes other than that, one whose weights are
 * constant, so that gradients have no tangents along q, k and v, one whose backward takes NVRTC too long, and one whose hooks lose most digits of a scalar's gradient, so that its tolerance is wide. */
typedef struct exception {
  const char *name, *shape, *refusal;
  bool is_constant, is_wide;
} exception;

static const exception exceptions[] = {{.name = "mask_between_tiles.lua", .shape = "1,1,1,70,70,8,16"},
                                       {.name = "rising_pairs.lua", .shape = "1,1,1,265,270,8,16"},
                                       {.name = "learned_mlp.lua", .refusal = "or set LUATTN_COMPILE_LIMIT"},
                                       {.name = "skipped_by_all.lua", .shape = "1,1,1,205,840,8,16"},
                                       {.name = "keeps_nothing.lua", .is_constant = true},
                                       {.name = "score_constant.lua", .is_constant = true},
                                       {.name = "merged_constants.lua", .is_wide = true}};

static exception exception_of(const char *path) {
  const char *slash = strrchr(path, '/');
  for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; i++)
    if (strcmp(exceptions[i].name, slash != NULL ? slash + 1 : path) == 0) return exceptions[i];
  return (exception){0};
}

static double worst(const check_report *r, bool backward) {
  double most = 0;
  for (int i = 0; i < r->count; i++) {
    const bool of_gradient =
        strstr(r->line[i].name, "tangent of d") != NULL || strstr(r->line[i].name, "scalar g") != NULL;
    if (of_gradient == backward) most = check_worse(most, r->line[i].error);
  }
  return most;
}

/* The widest tolerance: that of roundings, which ill-conditioned hooks magnify. */
static double widest(const check_report *r) {
  double most = 0;
  for (int i = 0; i < r->count; i++) most = fmax(most, r->line[i].tolerance);
  return most;
}

/* Whether the comparison could not fail; prints why. */
static bool proves_nothing(const check_report *r, const char *dtype, bool backward, const exception *e) {
  const bool is_same = worst(r, false) == 0 || (backward && worst(r, true) == 0);
  const bool is_wide = strcmp(dtype, "f64") == 0 && widest(r) > 1e-6;
  if (is_same && !e->is_constant)
    printf("FAILED: no number of a pass is rounded, so that all are 0: nothing is compared\n");
  if (is_wide && !e->is_wide) printf("FAILED: a tolerance above 1e-6 hides what is wrong\n");
  return (is_same && !e->is_constant) || (is_wide && !e->is_wide);
}

/* Returns 0 if all results are within tolerance. */
static int check(cli_gpu *gpu, const char *dtype, unsigned along, const char *path) {
  luattn_spec *spec;
  luattn_error err;
  cli_problem p;
  check_report r;
  if (luattn_spec_load(path, NULL, &spec, &err) != LUATTN_OK) return printf("%s: FAILED: %s\n", path, err.message), 1;
  const exception e = exception_of(path);
  cli_options o = {.spec = path, .dtype = dtype, .seed = 1, .shape = shapes[luattn_spec_grid(spec, NULL)]};
  if (e.shape != NULL) o.shape = e.shape;
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
    const bool ok = e.refusal != NULL && strstr(err.message, e.refusal) != NULL;
    printf("%s: %s: %s\n", path, ok ? "refused" : "FAILED", err.message);
    return !ok;
  }
  printf("%s: tangents of forward %.3g, of backward ", path, worst(&r, false));
  printf(backward ? "%.3g" : "none", worst(&r, true));
  printf(", allowed %.3g\n", widest(&r));
  const bool is_void = proves_nothing(&r, dtype, backward, &e);
  if (r.failed > 0) check_print("FAILED", &r);
  fflush(stdout);
  return r.failed > 0 || is_void;
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
