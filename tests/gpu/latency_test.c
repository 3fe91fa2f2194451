/* latency_test.c: measures the host time of a launch, and of a warm start from a spec file to a loaded
 * kernel.
 *
 * Launches are measured with the same tensors each time, with a few alternating sets, and with tensors that
 * no launch has used before; the kernel caches the TMA descriptors of the first two kinds. Most of the time
 * is the driver's. A second round times cuLaunchKernelEx separately; the rest is luattn's. Cores of a virtual
 * machine differ by a third, depending on other users, so launches are measured on several cores, and the
 * limits are for the median core.
 *
 * usage: gpu_latency SPEC. Limits (medians): 5 us per launch, at most 1 us of it luattn's; 5 ms per warm
 * start. Exit: 0, 1, or 77 without a GPU. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "cli/cli.h"
#include "runtime/device/driver.h"

enum { LAUNCHES = 2000, STARTS = 21, CORES = 8, HEADS = 2, Q_LEN = 128, DIM = 64 };
enum {
  TENSOR_BYTES = 2 * HEADS * Q_LEN * DIM,
  BYTES = 1 << 20
}; /* size of one tensor, and of the memory for each of the four */

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare_double(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, compare_double);
  return x[n / 2];
}

static int verdict(const char *what, double value, double worst, double limit, const char *unit) {
  printf("  %-28s median %5.2f %s (slowest core %5.2f), limit %g %s: %s\n", what, value, unit, worst, limit, unit,
         value <= limit ? "ok" : "FAILED");
  return value > limit;
}

/* Spec file -> trace -> plan -> source -> key -> cache -> driver. The first one fills the cache. */
static luattn_status warm_starts(const char *path, luattn_driver *driver, int arch, double *ms, luattn_error *err) {
  for (int i = -1; i < STARTS; i++) {
    const luattn_target target = {.struct_size = sizeof target, .dtype = LUATTN_BF16, .head_dim = DIM, .arch = arch};
    luattn_spec *spec;
    luattn_image *image;
    luattn_kernel *kernel;
    const double start = now_us();
    TRY(luattn_spec_load(path, NULL, &spec, err));
    TRY(luattn_compile(spec, &target, &image, NULL, err));
    TRY(luattn_kernel_load(driver, 0, image, &kernel, err));
    if (i >= 0) ms[i] = (now_us() - start) / 1e3;
    luattn_kernel_unload(kernel);
    luattn_image_free(image);
    luattn_spec_free(spec);
  }
  return LUATTN_OK;
}

/* cuLaunchKernelEx, and the duration of its last call. */
static cu_result (*driver_launch)(const cu_launch *, cu_function, void **, void **);
static double driver_us;
static cu_result timed_launch(const cu_launch *how, cu_function f, void **params, void **extra) {
  const double start = now_us();
  const cu_result result = driver_launch(how, f, params, extra);
  driver_us = now_us() - start;
  return result;
}

/* Sets of tensors: set i starts step * i bytes into each tensor's memory. */
typedef struct series {
  const char *name;
  int sets;
  size_t step;
} series;

static const series all_series[] = {
    {"launch, the same tensors", 1, 0},
    {"launch, 8 sets in turn", 8, (BYTES - TENSOR_BYTES) / 8},
    {"launch, never seen before", LAUNCHES, 16},
};

/* Launches in bursts that fit the driver's queue, so that the host never waits for the device. us: median
 * time of a launch. own_us: the same without the driver's part, if `timed_launch` replaces its function. */
static luattn_status launches(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, const series *s,
                              DLTensor tensor[4], double *us, double *own_us, luattn_error *err) {
  double all[LAUNCHES], own[LAUNCHES];
  for (int i = 0; i < LAUNCHES; i++) {
    if (i % 100 == 0) TRY(luattn_synchronize(luattn_engine_driver(engine), 0, NULL, err));
    for (int t = 0; t < 4; t++) tensor[t].byte_offset = s->step * (size_t)(i % s->sets);
    const double start = now_us();
    TRY(luattn_forward(engine, spec, args, NULL, err));
    all[i] = now_us() - start;
    own[i] = all[i] - driver_us;
  }
  *us = median(all, LAUNCHES);
  *own_us = median(own, LAUNCHES);
  return luattn_synchronize(luattn_engine_driver(engine), 0, NULL, err);
}

/* Moves to the given one of the cores that this process may use. Returns false if there are fewer. */
static bool move_to(const cpu_set_t *cores, int core) {
  for (size_t i = 0; i < CPU_SETSIZE; i++) {
    if (!CPU_ISSET(i, cores) || core-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(i, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
  }
  return false;
}

static luattn_status on_cores(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                              DLTensor tensor[4], int *failed, luattn_error *err) {
  luattn_driver *driver = luattn_engine_driver(engine);
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return luattn_fail(err, LUATTN_IO, "no affinity");
  driver_launch = driver->launch_ex;
  for (size_t i = 0; i < sizeof all_series / sizeof *all_series; i++) {
    double us[CORES], own[CORES], ignored;
    int n = 0;
    for (; n < CORES && move_to(&cores, n); n++) {
      TRY(launches(engine, spec, args, &all_series[i], tensor, &us[n], &ignored, err));
      if (driver_launch != NULL) driver->launch_ex = timed_launch;
      TRY(launches(engine, spec, args, &all_series[i], tensor, &ignored, &own[n], err));
      driver->launch_ex = driver_launch;
    }
    if (n == 0) return luattn_fail(err, LUATTN_IO, "no core to run on");
    const double us_median = median(us, n), own_median = median(own, n); /* median also sorts */
    *failed += verdict(all_series[i].name, us_median, us[n - 1], 5, "us");
    if (driver_launch != NULL) *failed += verdict("  without the driver's call", own_median, own[n - 1], 1, "us");
  }
  return LUATTN_OK;
}

static luattn_status measure_launches(const char *path, luattn_engine *engine, int *failed, luattn_error *err) {
  luattn_driver *driver = luattn_engine_driver(engine);
  luattn_spec *spec;
  void *memory;
  TRY(luattn_spec_load(path, NULL, &spec, err));
  TRY(luattn_device_alloc(driver, 0, 4 * BYTES, &memory, err));
  TRY(luattn_device_fill(driver, 0, memory, 0, 4 * BYTES, NULL, err));
  int64_t shape[4] = {1, HEADS, Q_LEN, DIM};
  DLTensor t[4];
  for (int i = 0; i < 4; i++) {
    t[i] =
        (DLTensor){.data = (char *)memory + i * BYTES, .device = {kDLCUDA, 0}, .ndim = 4, .dtype = {kDLBfloat, 16, 1}};
    t[i].shape = shape;
  }
  luattn_args args = {.struct_size = sizeof args, .q = &t[0], .k = &t[1], .v = &t[2], .o = &t[3]};
  TRY(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &args.workspace_size, err));
  if (args.workspace_size > 0) TRY(luattn_device_alloc(driver, 0, args.workspace_size, &args.workspace, err));
  TRY(luattn_forward(engine, spec, &args, NULL, err));
  TRY(on_cores(engine, spec, &args, t, failed, err));
  TRY(luattn_device_free(driver, 0, args.workspace, err));
  return luattn_device_free(driver, 0, memory, err); /* the spec lives as long as the engine, until the process ends */
}

static luattn_status measure(const char *path, luattn_engine *engine, int *failed, luattn_error *err) {
  luattn_device_info info;
  double ms[STARTS];
  TRY(luattn_device_get_info(luattn_engine_driver(engine), 0, &info, err));
  TRY(warm_starts(path, luattn_engine_driver(engine), info.arch, ms, err));
  const double start_ms = median(ms, STARTS);
  *failed += verdict("warm start, spec to kernel", start_ms, start_ms, 5, "ms");
  return measure_launches(path, engine, failed, err);
}

int main(int argc, char **argv) {
  luattn_engine *engine;
  luattn_error err;
  int failed = 0;
  if (argc != 2) return 2;
  if (luattn_engine_open(NULL, &engine, &err) != LUATTN_OK) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  if (measure(argv[1], engine, &failed, &err) != LUATTN_OK) {
    printf("%s\n", err.message);
    failed = 1;
  }
  luattn_engine_close(engine);
  return failed != 0;
}
