/* prefix_test.c: tests that kernels of an earlier luattn, which take only a prefix of the parameters, still
 * run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "abi/image.h"
#include "abi/params.h"
#include "luattn/runtime.h"

enum { LEN = 5, DIM = 64 };

/* A kernel that writes q_len, and the first word of its second parameter if any, to the start of o. */
static const char source[] =
    "// A kernel that takes the first bytes of LuattnParams.\n"
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry luattn_fwd(.param .align 8 .b8 p[%zu]%s)\n{\n"
    ".reg .b32 %%r<4>;\n.reg .b64 %%rd<2>;\n"
    "ld.param.u32 %%r0, [p+%zu];\nld.param.u64 %%rd0, [p+%zu];\nmov.u32 %%r1, 0;\n%s"
    "st.global.u32 [%%rd0], %%r0;\nst.global.u32 [%%rd0+4], %%r1;\nret;\n}\n";

static luattn_driver *driver;

/* Creates an image whose kernel takes `bytes` bytes of parameters. */
static luattn_image *make_image(size_t bytes, luattn_family family) {
  const bool maps = family == LUATTN_SM90;
  char text[1024];
  const int n = snprintf(text, sizeof text, source, bytes, maps ? ", .param .align 64 .b8 maps[512]" : "",
                         offsetof(LuattnParams, shape.q_len), offsetof(LuattnParams, tensors.o.data),
                         maps ? "ld.param.u32 %r1, [maps];\n" : "");
  image_manifest m = {
      .spec_name = "earlier",
      .pass = LUATTN_FORWARD,
      .family = family,
      .dtype = LUATTN_F16,
      .arch = 90,
      .head_dim = DIM,
      .head_dim_v = DIM,
      .is_ptx = 1,
      .max_len = 1024,
      .params_version = LUATTN_PARAMS_VERSION,
      .params_bytes = (uint32_t)bytes,
      .num_entries = 1,
      .entry = {{.name = "luattn_fwd", .role = LUATTN_ROLE_FORWARD, .threads = 32, .tile_m = 64, .tile_n = 64}}};
  luattn_image *image = NULL;
  luattn_error err;
  if (image_create(&m, NULL, text, (size_t)n + 1, &image, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return image;
}

static void runs(size_t bytes, luattn_family family) {
  const size_t size = LEN * DIM * 2;
  int64_t shape[] = {1, 1, LEN, DIM};
  DLTensor t[4];
  luattn_error err;
  for (int i = 0; i < 4; ++i) {
    t[i] = (DLTensor){.device = {kDLCUDA, 0}, .ndim = 4, .dtype = {kDLFloat, 16, 1}, .shape = shape};
    assert_int_equal(luattn_device_alloc(driver, 0, size, &t[i].data, &err), LUATTN_OK);
  }
  assert_int_equal(luattn_device_fill(driver, 0, t[3].data, 0, size, NULL, &err), LUATTN_OK);
  luattn_image *image = make_image(bytes, family);
  luattn_kernel *kernel;
  if (luattn_kernel_load(driver, 0, image, &kernel, &err) != LUATTN_OK) fail_msg("%s", err.message);
  const luattn_args args = {.struct_size = sizeof args, .q = &t[0], .k = &t[1], .v = &t[2], .o = &t[3]};
  if (luattn_launch(kernel, &args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
  uint32_t out[2];
  assert_int_equal(luattn_copy_to_host(driver, 0, out, t[3].data, sizeof out, &err), LUATTN_OK);
  assert_int_equal(out[0], LEN);
  if (family == LUATTN_SM90) assert_int_not_equal(out[1], 0); /* the first word of a descriptor */
  luattn_kernel_unload(kernel);
  luattn_image_free(image);
  for (int i = 0; i < 4; ++i) assert_int_equal(luattn_device_free(driver, 0, t[i].data, &err), LUATTN_OK);
}

static void prefixes(void **state) {
  (void)state;
  const size_t least = offsetof(LuattnParams, tensors.o) + sizeof(LuattnTensor), all = sizeof(LuattnParams);
  const size_t sizes[] = {least, least + 8, (least + all) / 16 * 8, all - 8, all};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    runs(sizes[i], LUATTN_SIMT);
    runs(sizes[i], LUATTN_SM90);
  }
}

static void more_is_refused(void **state) {
  (void)state;
  luattn_image *image = make_image(sizeof(LuattnCallParams) + 8, LUATTN_SIMT);
  luattn_kernel *kernel = NULL;
  luattn_error err;
  assert_int_equal(luattn_kernel_load(driver, 0, image, &kernel, &err), LUATTN_IMAGE);
  assert_null(kernel);
  assert_non_null(strstr(err.message, "'earlier' (forward, compute_90): reads "));
  luattn_image_free(image);
}

int main(void) {
  luattn_error err;
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(prefixes), cmocka_unit_test(more_is_refused)};
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  luattn_driver_close(driver);
  return failed;
}
