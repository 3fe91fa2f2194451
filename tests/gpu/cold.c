/* cold.c: from a spec file to a kernel ready to launch, with nothing compiled before, in a process that has
 * the driver open: what a program waits for whose user has just written a spec. Neither luattn's cache nor
 * the driver's, in which NVRTC keeps what it has compiled, is looked into. NVRTC is loaded in that time too.
 *
 * usage: gpu_cold SPEC HEAD_DIM [backward]. Prints one line; exit: 0 up to 500 ms, 1, or 77 without a GPU. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

enum { LIMIT_MS = 500 };

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static luattn_status measure(luattn_driver *driver, luattn_target *target, const char *path, double *ms,
                             double *load_ms, luattn_compile_report *report, luattn_error *err) {
  luattn_device_info info;
  luattn_spec *spec;
  luattn_image *image;
  luattn_kernel *kernel;
  TRY(luattn_device_get_info(driver, 0, &info, err));
  target->arch = info.arch;
  const double start = now_ms();
  TRY(luattn_spec_load(path, NULL, &spec, err));
  TRY(luattn_compile(spec, target, &image, report, err));
  const double compiled = now_ms();
  TRY(luattn_kernel_load(driver, 0, image, &kernel, err));
  *ms = now_ms() - start;
  *load_ms = now_ms() - compiled;
  luattn_kernel_unload(kernel);
  luattn_image_free(image);
  luattn_spec_free(spec);
  return LUATTN_OK;
}

int main(int argc, char **argv) {
  luattn_driver *driver;
  luattn_error err;
  luattn_compile_report report;
  double ms, load_ms;
  if (argc < 3 || argc > 4 || (argc == 4 && strcmp(argv[3], "backward") != 0)) return 2;
  luattn_target target = {.struct_size = sizeof target, .dtype = LUATTN_BF16, .cache_dir = ""};
  target.head_dim = atoi(argv[2]);
  target.pass = argc == 4 ? LUATTN_BACKWARD : LUATTN_FORWARD;
  setenv("CUDA_CACHE_DISABLE", "1", 1);
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  const luattn_status status = measure(driver, &target, argv[1], &ms, &load_ms, &report, &err);
  if (status == LUATTN_OK)
    printf("%s head_dim %d: %.0f ms (compile %.0f, of which NVRTC %.0f; load %.1f), limit %d ms: %s\n",
           argv[1], target.head_dim, ms, ms - load_ms, report.nvrtc_ms, load_ms, LIMIT_MS,
           ms <= LIMIT_MS ? "ok" : "FAILED");
  else
    printf("%s\n", err.message);
  luattn_driver_close(driver);
  return status != LUATTN_OK || ms > LIMIT_MS;
}
