/* cold_test.c: measures the time from a spec file to a kernel that is ready to launch, with nothing compiled
 * before, in a process that already uses the device. A program's user waits that long after writing a spec.
 * Neither luattn's cache nor the driver's, in which NVRTC keeps compiled code, is used. The time includes
 * loading NVRTC.
 *
 * usage: gpu_cold SPEC HEAD_DIM LIMIT_MS [backward]. Prints one line. Exit: 0 up to the limit, 1 above, or 77
 * without a GPU. The goal is 500 ms forward; processors differ by a factor of two, so the caller sets the
 * limit. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

typedef struct cold_start {
  luattn_compile_report report;
  double compile_ms, load_ms;
} cold_start;

static luattn_status measure(luattn_driver *driver, luattn_target *target, const char *path, cold_start *out,
                             luattn_error *err) {
  luattn_device_info info;
  luattn_spec *spec;
  luattn_image *image;
  luattn_kernel *kernel;
  void *memory;
  TRY(luattn_device_get_info(driver, 0, &info, err));
  TRY(luattn_device_alloc(driver, 0, 1 << 20, &memory, err)); /* creates the device's context */
  target->arch = info.arch;
  const double start = now_ms();
  TRY(luattn_spec_load(path, NULL, &spec, err));
  TRY(luattn_compile(spec, target, &image, &out->report, err));
  const double compiled = now_ms();
  TRY(luattn_kernel_load(driver, 0, image, &kernel, err));
  out->compile_ms = compiled - start, out->load_ms = now_ms() - compiled;
  luattn_kernel_unload(kernel);
  luattn_image_free(image);
  luattn_spec_free(spec);
  return luattn_device_free(driver, 0, memory, err);
}

int main(int argc, char **argv) {
  luattn_driver *driver;
  luattn_error err;
  cold_start cold;
  if (argc < 4 || argc > 5 || (argc == 5 && strcmp(argv[4], "backward") != 0)) return 2;
  luattn_target target = {.struct_size = sizeof target, .dtype = LUATTN_BF16, .cache_dir = ""};
  target.head_dim = atoi(argv[2]);
  target.pass = argc == 5 ? LUATTN_BACKWARD : LUATTN_FORWARD;
  const double limit = atof(argv[3]);
  setenv("CUDA_CACHE_DISABLE", "1", 1);
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  const luattn_status status = measure(driver, &target, argv[1], &cold, &err);
  luattn_driver_close(driver);
  if (status != LUATTN_OK) {
    printf("%s\n", err.message);
    return 1;
  }
  const double ms = cold.compile_ms + cold.load_ms;
  printf("%s head_dim %d: %.0f ms (trace and plan %.1f, NVRTC %.0f, load %.1f), limit %g ms: %s\n", argv[1],
         target.head_dim, ms, cold.report.trace_ms + cold.report.plan_ms, cold.report.nvrtc_ms, cold.load_ms, limit,
         ms <= limit ? "ok" : "FAILED");
  return ms > limit;
}
