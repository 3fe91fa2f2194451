/* compile_time_test.c: tests that compile time grows with the size of a hook, not with hook x scores, by a
 * bound on CPU time; and that boxes of a grid take little more than tiles of a line, and tangents twice a forward at most.
 *
 * The bound is five times the slowest case's time on one server core. Inlined, each case took more than 40 s
 * in bf16 forward. Of half of the hooks a tree draws one of four kernels. Exits with 77 (skipped) without NVRTC. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gen/nvrtc/nvrtc.h"
#include "luattn/compiler.h"
#include "tests/support/drawn.h"

enum { BOUND_S = 12 };
static const char causal[] = "return attention { block_mask = causal() }";

static const char *const hooks[] = {
    "for i = 1, 64 do x = tanh(x * w + 0.1 * i) end",
    "for i = 1, 12 do x = x + sin(x * w * i) end",
    "for i = 1, 32 do x = erf(x * w + 0.1 * i) end",
    "for i = 1, 16 do x = pow(abs(x) + 0.5, w + 0.1 * i) end",
    "for i = 1, 32 do x = x - 0.1 * floor(x * w * i) end", /* every step reads the previous one twice */
    "for i = 1, 64 do x = sin(x * w * i) end"};
static const struct {
  luattn_dtype dtype;
  int arch;
  const char *name;
} targets[] = {{LUATTN_BF16, 90, "bf16 sm_90"}, {LUATTN_F32, 80, "f32 sm_80"}};
#define COUNT(x) ((int)(sizeof(x) / sizeof((x)[0])))

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static luattn_status compile_in(const char *source, const luattn_target *t, double *seconds, luattn_error *err) {
  luattn_spec *spec = NULL;
  luattn_image *image = NULL;
  luattn_compile_report r;
  const double start = cpu_seconds();
  luattn_status status = luattn_spec_load_text("timed.lua", source, strlen(source), NULL, &spec, err);
  if (status == LUATTN_OK) status = luattn_compile(spec, t, &image, &r, err);
  *seconds = cpu_seconds() - start;
  luattn_image_free(image);
  luattn_spec_free(spec);
  return status;
}

/* Returns 0 if the compilation is within the bound. */
static int compile(const char *hook, int target, luattn_pass pass) {
  char source[512];
  luattn_error err;
  double seconds;
  const luattn_target t = {.struct_size = sizeof t,
                           .pass = pass,
                           .dtype = targets[target].dtype,
                           .head_dim = 64,
                           .arch = targets[target].arch,
                           .cache_dir = ""};
  snprintf(source, sizeof source,
           "return attention { name = 'large', scalars = { w = 0.3 }, block_mask = causal(),\n"
           "  inputs = { bias = { axes = {'h'}, grad = true } },\n"
           "  score_mod = function(x, b, h, q, kv) %s return x + bias[h] end }",
           hook);
  const luattn_status status = compile_in(source, &t, &seconds, &err);
  const int failed = status != LUATTN_OK || seconds > BOUND_S;
  printf("%s %s %s: %.2f s: %s\n", failed ? "FAILED" : "ok", targets[target].name,
         pass == LUATTN_FORWARD ? "forward" : "backward", seconds, status != LUATTN_OK ? err.message : hook);
  return failed;
}

/* Whether a kernel compiles in `bound` times the time of `causal` at most, by the least of two runs of each. */
static int compile_beside(const char *name, const char *source, uint64_t tangents, double bound) {
  double least[2] = {1e9, 1e9};
  luattn_error err;
  for (int i = 0; i < 4; i++) {
    const luattn_target t = {.struct_size = sizeof t,
                             .dtype = LUATTN_BF16,
                             .head_dim = 128,
                             .arch = 90,
                             .cache_dir = "",
                             .tangents = i % 2 ? tangents : 0};
    double seconds;
    if (compile_in(i % 2 ? source : causal, &t, &seconds, &err) != LUATTN_OK)
      return printf("FAILED %s: %s\n", name, err.message), 1;
    if (seconds < least[i % 2]) least[i % 2] = seconds;
  }
  const int failed = least[1] > bound * least[0];
  printf("%s %s: %.2f s, causal %.2f s\n", failed ? "FAILED" : "ok", name, least[1], least[0]);
  return failed;
}

int main(void) {
  nvrtc_file file;
  luattn_error err;
  int failed = 0;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK) return printf("skipped: %s\n", err.message), 77;
  for (int i = 0; i < COUNT(hooks); i++)
    for (int j = 0; j < COUNT(targets); j++)
      for (int pass = 0; pass < 2; pass++)
        if (drawn(hooks[i], 2 * j + pass, 8))
          failed += compile(hooks[i], j, pass == 0 ? LUATTN_FORWARD : LUATTN_BACKWARD);
  /* A window over a grid takes 1.25 to 1.35; where NVRTC ran twice for it, it was 3. */
  failed += compile_beside(
      "a grid", "return attention { grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {80, 80} } }", 0, 1.7);
  failed += compile_beside("tangents", causal, LUATTN_TANGENT_Q | LUATTN_TANGENT_K | LUATTN_TANGENT_V, 2);
  return failed > 0;
}
