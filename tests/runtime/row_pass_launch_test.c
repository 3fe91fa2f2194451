/* row_pass_launch_test.c: launches a backward with two row passes: their order, the workspace that they share with it,
 * and that nothing starts where something is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/runtime/launches.h"
#include "tests/support/fake_cuda.h"

/* The sample's forward as a row pass, which reads one number of a row and saves `sums`. */
static luattn_image *pass_image(uint32_t sums, int64_t max_len) {
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  luattn_input_info *row = &p.info.input[p.info.num_inputs++];
  *row = (luattn_input_info){
      .dtype = LUATTN_INPUT_F32, .num_axes = 3, .axis = {LUATTN_AXIS_B, LUATTN_AXIS_H, LUATTN_AXIS_Q}};
  snprintf(row->name, sizeof row->name, "a row");
  p.info.has_lse = 0;
  p.info.num_saved = sums;
  p.info.max_len = max_len;
  luattn_image *image = problem_image(&p);
  problem_close(&p);
  return image;
}

/* The sample's backward, where the second pass takes rows of up to max_len. */
static luattn_kernel *load_backward(problem *p, int64_t max_len) {
  luattn_kernel *kernel;
  luattn_image *pass[] = {pass_image(1, 1 << 20), pass_image(0, max_len)}, *whole;
  luattn_error err;
  problem_open(p, LUATTN_BACKWARD);
  p->info.row_passes = 1;
  p->info.passes[0] = (manifest_row_passes){.count = 2, .num_sums = 1, .num_rows = {1, 1}, .row = {{-1}, {0}}};
  luattn_image *alone = problem_image(p);
  if (image_join(alone, (const luattn_image *[]){pass[0], pass[1]}, &whole, &err) != LUATTN_OK ||
      luattn_kernel_load(driver, 0, whole, &kernel, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  luattn_image_free(pass[0]), luattn_image_free(pass[1]);
  luattn_image_free(alone), luattn_image_free(whole);
  fake_reset();
  return kernel;
}

static void passes_come_first(void **state) {
  (void)state;
  static const char *const order[] = {"luattn_stats",   "luattn_mod",  "luattn_fwd",   "luattn_stats",
                                      "luattn_mod",     "luattn_fwd",  "luattn_stats", "luattn_mod",
                                      "luattn_prepare", "luattn_dkdv", "luattn_finish"};
  problem p;
  luattn_error err;
  size_t size, launches = 0;
  luattn_kernel *kernel = load_backward(&p, 1 << 20);
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &size, &err), LUATTN_OK);
  p.args.workspace_size = size;
  if (luattn_launch(kernel, &p.args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
  const char *const first = p.args.workspace, *const end = first + size;
  for (size_t i = 0; i < fake_num_events(); ++i) {
    const fake_event *e = fake_get_event(i);
    if (e->kind != FAKE_LAUNCH) continue;
    assert_true(launches < sizeof order / sizeof *order);
    assert_string_equal(e->name, order[launches++]);
    const char *o = e->params.tensors.o.data;
    if (strcmp(e->name, "luattn_fwd") == 0) assert_true(o >= first && o < end);
  }
  assert_int_equal(launches, sizeof order / sizeof *order);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

static void must_refuse(const luattn_kernel *kernel, const luattn_args *args, const char *message) {
  luattn_error err;
  fake_reset();
  assert_int_equal(luattn_launch(kernel, args, NULL, &err), LUATTN_INVALID);
  if (strstr(err.message, message) == NULL) fail_msg("'%s' lacks '%s'", err.message, message);
  assert_int_equal(fake_num_events(), 0);
}

static void the_whole_workspace_is_asked_for(void **state) {
  (void)state;
  problem p;
  luattn_error err;
  char message[100];
  size_t size;
  luattn_kernel *kernel = load_backward(&p, 1 << 20);
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &size, &err), LUATTN_OK);
  luattn_args args = p.args;
  args.workspace = NULL;
  snprintf(message, sizeof message, "backward of 'demo': workspace: is NULL, expected %zu bytes", size);
  must_refuse(kernel, &args, message);
  args = p.args, args.workspace = (char *)args.workspace + 8;
  must_refuse(kernel, &args, "is not a multiple of 256 bytes");
  const size_t less[] = {0, 1000, size - 1};
  for (int i = 0; i < 3; ++i) {
    args = p.args, args.workspace_size = less[i];
    snprintf(message, sizeof message, "backward of 'demo': workspace: has %zu bytes, expected %zu", less[i], size);
    must_refuse(kernel, &args, message);
  }
  args = p.args, args.workspace = (void *)(UINTPTR_MAX - 4095), args.workspace_size = size;
  must_refuse(kernel, &args, "reach beyond what can be addressed");
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

static void nothing_starts_before_all_is_checked(void **state) {
  (void)state;
  problem p;
  luattn_kernel *kernel = load_backward(&p, Q_LEN / 2);
  must_refuse(kernel, &p.args, "q: has length 100");
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(passes_come_first),
                                     cmocka_unit_test(the_whole_workspace_is_asked_for),
                                     cmocka_unit_test(nothing_starts_before_all_is_checked)};
  return cmocka_run_group_tests(tests, open_all, close_all);
}
