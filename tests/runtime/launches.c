#include "tests/runtime/launches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/fake_cuda.h"

luattn_driver *driver;

luattn_kernel *load(const problem *p) {
  luattn_image *image = problem_image(p);
  luattn_kernel *kernel = NULL;
  luattn_error err;
  if (luattn_kernel_load(driver, 0, image, &kernel, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_image_free(image);
  fake_reset();
  return kernel;
}

luattn_status try_launch(problem *p, luattn_error *err) {
  luattn_kernel *kernel = load(p);
  const luattn_status status = luattn_launch(kernel, &p->args, NULL, err);
  luattn_kernel_unload(kernel);
  return status;
}

void launch(problem *p, void *stream) {
  luattn_kernel *kernel = load(p);
  luattn_error err;
  if (luattn_launch(kernel, &p->args, stream, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_kernel_unload(kernel);
}

void assert_launch(size_t index, const char *name, unsigned x, unsigned y, unsigned z, unsigned threads,
                   unsigned shared) {
  const fake_event *e = fake_get_event(index);
  assert_int_equal(e->kind, FAKE_LAUNCH);
  assert_string_equal(e->name, name);
  const unsigned grid[] = {x, y, z};
  for (int i = 0; i < 3; ++i) assert_int_equal(e->grid[i], grid[i]);
  assert_int_equal(e->block[0], threads);
  assert_int_equal(e->block[1] * e->block[2], 1);
  assert_int_equal(e->shared_bytes, shared);
}

void assert_fill(size_t index, const void *ptr, size_t bytes) {
  const fake_event *e = fake_get_event(index);
  assert_int_equal(e->kind, FAKE_FILL);
  assert_ptr_equal(e->ptr, ptr);
  assert_int_equal(e->bytes, bytes);
  assert_int_equal(e->value, 0);
}

int open_all(void **state) {
  (void)state;
  return luattn_driver_open(&driver, NULL) == LUATTN_OK ? 0 : -1;
}

int close_all(void **state) {
  (void)state;
  luattn_driver_close(driver);
  const fake_live_counts live = fake_live();
  return live.contexts + live.modules + live.allocations;
}
