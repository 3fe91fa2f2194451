#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/fake_cuda.h"
#include "tests/support/problem.h"

static char *libcuda; /* path of the fake, from CTest */

static luattn_driver *open_driver(void) {
  luattn_driver *driver = NULL;
  luattn_error err;
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return driver;
}

static int everything_given_back(void **state) {
  (void)state;
  const fake_live_counts live = fake_live();
  fake_reset();
  setenv("LUATTN_LIBCUDA", libcuda, 1);
  unsetenv("LUATTN_FAKE_FAIL");
  unsetenv("LUATTN_FAKE_ARCH");
  unsetenv("LUATTN_FAKE_NO_DEVICE");
  return live.contexts + live.modules + live.allocations + live.events;
}

static void assert_open_fails(const char *message) {
  luattn_driver *driver = NULL;
  luattn_error err;
  assert_int_equal(luattn_driver_open(&driver, &err), LUATTN_CUDA);
  if (strstr(err.message, message) == NULL) fail_msg("'%s' lacks '%s'", err.message, message);
  assert_null(driver);
}

static void missing_library(void **state) {
  (void)state;
  setenv("LUATTN_LIBCUDA", "/nowhere/libcuda.so", 1);
  assert_open_fails("cannot load libcuda, tried '/nowhere/libcuda.so' (LUATTN_LIBCUDA)");
  assert_open_fails("--device cpu");
}

static void not_libcuda(void **state) {
  (void)state;
  setenv("LUATTN_LIBCUDA", "libm.so.6", 1);
  assert_open_fails("libm.so.6: has no cuGetErrorName; it is too old or not libcuda");
}

static void no_device(void **state) {
  (void)state;
  setenv("LUATTN_FAKE_FAIL", "cuInit:1:100", 1);
  assert_open_fails("cuInit: CUDA_ERROR_NO_DEVICE (100): no usable device");
  fake_reset();
  unsetenv("LUATTN_FAKE_FAIL");
  setenv("LUATTN_FAKE_NO_DEVICE", "1", 1);
  assert_open_fails("there is no CUDA device");
}

static void opening_may_fail_anywhere(void **state) {
  (void)state;
  const char *const calls[] = {"cuDriverGetVersion", "cuDeviceGetCount"};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
    fake_fail(calls[i], 1, 999);
    assert_open_fails("unknown error (999)");
  }
}

static void device_facts(void **state) {
  (void)state;
  setenv("LUATTN_FAKE_ARCH", "86", 1);
  luattn_driver *driver = open_driver();
  luattn_error err;
  int count = 0;
  assert_int_equal(luattn_device_count(driver, &count, &err), LUATTN_OK);
  assert_int_equal(count, FAKE_DEVICES);
  luattn_device_info info;
  assert_int_equal(luattn_device_get_info(driver, 1, &info, &err), LUATTN_OK);
  assert_string_equal(info.name, "Fake 1");
  assert_int_equal(info.arch, 86);
  assert_int_equal(info.multiprocessors, 132);
  assert_int_equal(info.shared_bytes_per_block, FAKE_SHARED_BYTES);
  assert_int_equal(info.memory, (size_t)2 << 30);
  assert_int_equal(luattn_device_get_info(driver, 2, &info, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "device 2: there is no such device; this machine has 2, numbered from 0");
  assert_int_equal(luattn_device_get_info(driver, -1, &info, NULL), LUATTN_INVALID);
  const char *const calls[] = {"cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetName", "cuDeviceTotalMem_v2"};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
    fake_fail(calls[i], 1, 1);
    assert_int_equal(luattn_device_get_info(driver, 0, &info, &err), LUATTN_CUDA);
    assert_non_null(strstr(err.message, "CUDA_ERROR_INVALID_VALUE (1)"));
  }
  luattn_driver_close(driver);
}

static void memory_and_copies(void **state) {
  (void)state;
  luattn_driver *driver = open_driver();
  luattn_error err;
  void *ptr = NULL, *empty = NULL;
  assert_int_equal(luattn_device_alloc(driver, 0, 1000, &ptr, &err), LUATTN_OK);
  assert_int_equal((uintptr_t)ptr % 256, 0);
  assert_int_equal(luattn_device_alloc(driver, 0, 0, &empty, &err), LUATTN_OK);
  unsigned char in[1000], out[1000] = {0};
  for (size_t i = 0; i < sizeof in; ++i) in[i] = (unsigned char)(i * 7);
  assert_int_equal(luattn_copy_to_device(driver, 0, ptr, in, sizeof in, &err), LUATTN_OK);
  assert_int_equal(luattn_device_fill(driver, 0, ptr, 0xab, 3, NULL, &err), LUATTN_OK);
  assert_int_equal(luattn_synchronize(driver, 0, NULL, &err), LUATTN_OK);
  assert_int_equal(luattn_copy_to_host(driver, 0, out, ptr, sizeof out, &err), LUATTN_OK);
  memset(in, 0xab, 3);
  assert_memory_equal(in, out, sizeof in);
  void *huge = (void *)1;
  assert_int_equal(luattn_device_alloc(driver, 1, (size_t)1 << 40, &huge, &err), LUATTN_NO_MEMORY);
  assert_string_equal(err.message,
                      "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): allocating 1099511627776 bytes on device 1");
  assert_ptr_equal(huge, (void *)1);
  assert_int_equal(luattn_device_free(driver, 0, ptr, &err), LUATTN_OK);
  assert_int_equal(luattn_device_free(driver, 0, empty, &err), LUATTN_OK);
  assert_int_equal(luattn_device_free(driver, 0, NULL, &err), LUATTN_OK);
  luattn_driver_close(driver);
}

static void memory_errors_name_the_call(void **state) {
  (void)state;
  luattn_driver *driver = open_driver();
  luattn_error err;
  char byte = 0;
  void *ptr = NULL;
  assert_int_equal(luattn_device_alloc(driver, 0, 16, &ptr, &err), LUATTN_OK);
  fake_fail("cuStreamSynchronize", 1, 700);
  assert_int_equal(luattn_synchronize(driver, 0, NULL, &err), LUATTN_CUDA);
  assert_string_equal(err.message, "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): waiting for device 0");
  fake_fail("cuMemcpyHtoD_v2", 1, 1);
  assert_int_equal(luattn_copy_to_device(driver, 0, ptr, &byte, 1, &err), LUATTN_CUDA);
  assert_non_null(strstr(err.message, "cuMemcpyHtoD: CUDA_ERROR_INVALID_VALUE (1): copying 1 bytes"));
  fake_fail("cuMemcpyDtoH_v2", 1, 1);
  assert_int_equal(luattn_copy_to_host(driver, 0, &byte, ptr, 1, &err), LUATTN_CUDA);
  fake_fail("cuMemsetD8Async", 1, 1);
  assert_int_equal(luattn_device_fill(driver, 0, ptr, 1, 1, NULL, &err), LUATTN_CUDA);
  fake_fail("cuMemFree_v2", 1, 1);
  assert_int_equal(luattn_device_free(driver, 0, ptr, &err), LUATTN_CUDA);
  fake_fail("cuDevicePrimaryCtxRetain", 1, 1);
  assert_int_equal(luattn_device_alloc(driver, 1, 16, &ptr, &err), LUATTN_CUDA);
  assert_non_null(strstr(err.message, "primary context of device 1"));
  fake_fail("cuCtxPushCurrent_v2", 1, 201);
  assert_int_equal(luattn_device_free(driver, 0, ptr, &err), LUATTN_CUDA);
  assert_null(fake_current_context());
  assert_int_equal(luattn_device_free(driver, 0, ptr, &err), LUATTN_OK);
  luattn_driver_close(driver);
}

static void timers(void **state) {
  (void)state;
  luattn_driver *driver = open_driver();
  luattn_error err;
  luattn_timer *timer = NULL;
  double ms = 0;
  assert_int_equal(luattn_timer_open(driver, 0, &timer, &err), LUATTN_OK);
  assert_int_equal(luattn_timer_read(timer, &ms, &err), LUATTN_CUDA); /* never started */
  assert_int_equal(luattn_timer_start(timer, NULL, &err), LUATTN_OK);
  assert_int_equal(luattn_timer_stop(timer, NULL, &err), LUATTN_OK);
  assert_int_equal(luattn_timer_read(timer, &ms, &err), LUATTN_OK);
  assert_true(ms == 1.5);
  luattn_timer_close(timer);
  luattn_timer_close(NULL);
  luattn_timer *none = NULL;
  for (int nth = 1; nth <= 2; ++nth) {
    fake_fail("cuEventCreate", nth, 1);
    assert_int_equal(luattn_timer_open(driver, 0, &none, &err), LUATTN_CUDA);
    assert_null(none);
  }
  luattn_driver_close(driver);
}

/* Another library's context is current on this thread, and must stay current after every call. */
static void current_context_is_left_alone(void **state) {
  (void)state;
  luattn_driver *driver = open_driver();
  luattn_error err;
  int other;
  void *ptr = NULL;
  luattn_timer *timer = NULL;
  fake_push_context(&other);
  assert_int_equal(luattn_device_alloc(driver, 1, 16, &ptr, &err), LUATTN_OK);
  assert_ptr_equal(fake_current_context(), &other);
  assert_int_equal(luattn_device_fill(driver, 1, ptr, 0, 16, NULL, &err), LUATTN_OK);
  assert_ptr_equal(fake_get_event(0)->context, fake_primary_context(1));
  assert_int_equal(luattn_timer_open(driver, 1, &timer, &err), LUATTN_OK);
  assert_int_equal(luattn_timer_start(timer, NULL, &err), LUATTN_OK);
  luattn_timer_close(timer);
  assert_int_equal(luattn_synchronize(driver, 1, NULL, &err), LUATTN_OK);
  assert_int_equal(luattn_device_free(driver, 1, ptr, &err), LUATTN_OK);
  assert_int_equal(luattn_device_alloc(driver, 1, (size_t)1 << 40, &ptr, &err), LUATTN_NO_MEMORY);
  assert_ptr_equal(fake_pop_context(), &other);
  assert_null(fake_current_context());
  luattn_driver_close(driver);
}

static void describes(const luattn_kernel *kernel, const image_manifest *info) {
  luattn_kernel_description d = {.struct_size = sizeof d};
  luattn_error err;
  assert_int_equal(luattn_kernel_describe(kernel, &d, &err), LUATTN_OK);
  assert_string_equal(d.spec_name, info->spec_name);
  assert_int_equal(d.num_functions, info->num_entries);
  assert_string_equal(d.functions[info->num_entries - 1].name, info->entry[info->num_entries - 1].name);
  assert_string_equal(d.scalars[0].name, info->scalar[0].name);
  d.struct_size = 12;
  assert_int_equal(luattn_kernel_describe(kernel, &d, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "luattn_kernel_describe: luattn_kernel_description: struct_size is 12"));
}

static void loading_kernels(void **state) {
  (void)state;
  luattn_driver *driver = open_driver();
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  luattn_image *image = problem_image(&p);
  luattn_kernel *kernel = NULL;
  assert_int_equal(luattn_kernel_load(driver, 0, image, &kernel, &err), LUATTN_OK);
  describes(kernel, &p.info);
  luattn_kernel_unload(kernel);
  luattn_kernel_unload(NULL);
  const struct {
    const char *call;
    int nth;
    const char *message;
  } bad[] = {
      {"cuModuleLoadData", 1, "loading 'demo' (backward, sm_90); the driver supports CUDA 13.0"},
      {"cuModuleGetFunction", 2, "looking for luattn_mod in 'demo'"},
      {"cuFuncSetAttribute", 1, "giving luattn_dkdv of 'demo' (backward, sm_90) 200000 bytes"},
      {"cuCtxPushCurrent_v2", 1, "making the primary context current"},
      {"cuMemAlloc_v2", 1, "cuMemAlloc: CUDA_ERROR_INVALID_VALUE (1): allocating 8 bytes"},
      {"cuMemAlloc_v2", 2, "allocating 40960 bytes"},
      {"cuMemsetD8Async", 2, "cuMemsetD8Async: CUDA_ERROR_INVALID_VALUE (1): zeroing 40960 bytes"},
      {"cuStreamSynchronize", 2, "cuStreamSynchronize: CUDA_ERROR_INVALID_VALUE (1): waiting for 40960 bytes of zeros"},
  };
  luattn_image_free(image);
  p.info.family = LUATTN_SM90;
  p.info.draws_tiles = 1;
  image = problem_image(&p);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    kernel = NULL;
    fake_fail(bad[i].call, bad[i].nth, 1);
    assert_int_equal(luattn_kernel_load(driver, 0, image, &kernel, &err), LUATTN_CUDA);
    if (strstr(err.message, bad[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, bad[i].message);
    assert_null(kernel);
    assert_int_equal(fake_live().modules + fake_live().allocations, 0);
  }
  assert_int_equal(luattn_kernel_load(driver, 7, image, &kernel, &err), LUATTN_INVALID);
  luattn_image_free(image);
  problem_close(&p);
  luattn_driver_close(driver);
}

/* Loads the main kernel from the first code, and the others from the second. */
static void two_codes(void **state) {
  (void)state;
  luattn_driver *driver = open_driver();
  luattn_kernel *kernel = NULL;
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.second_code = 256;
  luattn_image *image = problem_image(&p);
  if (luattn_kernel_load(driver, 0, image, &kernel, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(fake_live().modules, 2);
  luattn_kernel_unload(kernel);
  assert_int_equal(fake_live().modules, 0);
  fake_fail("cuModuleLoadData", 2, 1);
  assert_int_equal(luattn_kernel_load(driver, 0, image, &kernel, &err), LUATTN_CUDA);
  assert_int_equal(fake_live().modules, 0);
  fake_reset();
  luattn_image_free(image);
  char code[512] = "FAKE luattn_dkdv luattn_finish"; /* luattn_finish must not be looked up here */
  strcpy(code + 256, "FAKE luattn_stats luattn_mod luattn_prepare");
  assert_int_equal(image_create(&p.info, NULL, code, sizeof code, &image, &err), LUATTN_OK);
  assert_int_equal(luattn_kernel_load(driver, 0, image, &kernel, &err), LUATTN_CUDA);
  assert_non_null(strstr(err.message, "looking for luattn_finish"));
  luattn_image_free(image);
  problem_close(&p);
  luattn_driver_close(driver);
}

static luattn_status load_for(const image_manifest *info, const char *arch, luattn_error *err) {
  setenv("LUATTN_FAKE_ARCH", arch, 1);
  luattn_driver *driver = open_driver();
  luattn_image *image;
  luattn_kernel *kernel = NULL;
  assert_int_equal(image_create(info, NULL, "FAKE", 5, &image, err), LUATTN_OK);
  const luattn_status status = luattn_kernel_load(driver, 0, image, &kernel, err);
  luattn_kernel_unload(kernel);
  luattn_image_free(image);
  luattn_driver_close(driver);
  return status;
}

static void architectures(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  p.info.num_entries = 1;
  memcpy(p.info.entry[0].name, "FAKE", 5);
  luattn_error err;
  p.info.arch = 80;
  assert_int_equal(load_for(&p.info, "80", &err), LUATTN_OK);
  assert_int_equal(load_for(&p.info, "86", &err), LUATTN_OK);
  assert_int_equal(load_for(&p.info, "90", &err), LUATTN_UNSUPPORTED);
  assert_string_equal(err.message,
                      "luattn_kernel_load: 'demo' (forward, sm_80): does not run on device 0, Fake 0 (sm_90); "
                      "compile it for arch 90");
  p.info.arch = 86;
  assert_int_equal(load_for(&p.info, "80", &err), LUATTN_UNSUPPORTED);
  p.info.arch = 90;
  memcpy(p.info.arch_suffix, "a", 2);
  assert_int_equal(load_for(&p.info, "90", &err), LUATTN_OK);
  p.info.arch = 100;
  assert_int_equal(load_for(&p.info, "103", &err), LUATTN_UNSUPPORTED);
  p.info.arch_suffix[0] = '\0';
  assert_int_equal(load_for(&p.info, "103", &err), LUATTN_OK);
  p.info.params_version = LUATTN_PARAMS_VERSION + 1;
  assert_int_equal(load_for(&p.info, "100", &err), LUATTN_IMAGE);
  char layout[64];
  snprintf(layout, sizeof layout, "parameter layout %d", LUATTN_PARAMS_VERSION + 1);
  assert_non_null(strstr(err.message, layout));
  p.info.params_version = LUATTN_PARAMS_VERSION;
  p.info.params_bytes = 8; /* kernels of an earlier version read a prefix */
  assert_int_equal(load_for(&p.info, "100", &err), LUATTN_OK);
  p.info.params_bytes = sizeof(LuattnCallParams) + 8;
  assert_int_equal(load_for(&p.info, "100", &err), LUATTN_IMAGE);
  snprintf(layout, sizeof layout, "reads %zu bytes of parameters, this luattn ", sizeof(LuattnCallParams) + 8);
  assert_non_null(strstr(err.message, layout));
  p.info.params_bytes = sizeof(LuattnParams);
  p.info.entry[0].shared_bytes = FAKE_SHARED_BYTES + 1;
  assert_int_equal(load_for(&p.info, "100", &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "FAKE needs 232449 bytes of shared memory, device 0, Fake 0, has 232448"));
  problem_close(&p);
}

int main(void) {
  const char *path = getenv("LUATTN_LIBCUDA");
  if (path == NULL) {
    fprintf(stderr, "driver_test: set LUATTN_LIBCUDA to the fake libcuda, as ctest does\n");
    return 1;
  }
  libcuda = strdup(path);
#define TEST(name) cmocka_unit_test_teardown(name, everything_given_back)
  const struct CMUnitTest tests[] = {
      TEST(missing_library),
      TEST(not_libcuda),
      TEST(no_device),
      TEST(opening_may_fail_anywhere),
      TEST(device_facts),
      TEST(memory_and_copies),
      TEST(memory_errors_name_the_call),
      TEST(timers),
      TEST(current_context_is_left_alone),
      TEST(loading_kernels),
      TEST(two_codes),
      TEST(architectures),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  free(libcuda);
  return failed;
}
