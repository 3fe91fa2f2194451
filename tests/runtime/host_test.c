/* host_test.c: tests that a launch passes the same data to the driver in every host, and leaves the host's
 * state unchanged. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/runtime/launches.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/hosts.h"

enum { DIM = 48 }; /* 1 / sqrt(48) is inexact, so rounding modes matter */

typedef struct call {
  luattn_kernel *kernel;
  problem *p;
  luattn_status status, refused;
  luattn_error err;
  size_t size;
  bool moved;
} call;

static void launch_within(void *data) {
  call *c = data;
  host_view before, after;
  hosts_look(&before);
  c->status = luattn_workspace_size(c->kernel, &c->p->args, &c->size, &c->err);
  if (c->status == LUATTN_OK) c->status = luattn_launch(c->kernel, &c->p->args, NULL, &c->err);
  hosts_look(&after);
  c->moved = !hosts_same(&before, &after);
  luattn_args wrong = c->p->args;
  wrong.scale = -1.5;
  c->refused = luattn_launch(c->kernel, &wrong, NULL, &c->err);
}

static void test_launch(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  p.info.head_dim = DIM;
  tensor_set(&p, &p.q, kDLBfloat, 16, 4, BATCH, HEADS, Q_LEN, DIM);
  tensor_set(&p, &p.k, kDLBfloat, 16, 4, BATCH, HEADS_KV, KV_LEN, DIM);
  luattn_kernel *kernel = load(&p);
  for (int host = 0; host < NUM_HOSTS; host++) {
    if (!hosts_exist((host_kind)host)) continue;
    call c = {.kernel = kernel, .p = &p};
    fake_reset();
    hosts_run((host_kind)host, launch_within, &c);
    if (c.status != LUATTN_OK) fail_msg("%s: %s", hosts_name((host_kind)host), c.err.message);
    if (c.moved) fail_msg("%s: is left changed", hosts_name((host_kind)host));
    assert_true(fake_get_event(fake_num_events() - 1)->params.scale == 1 / sqrt(DIM));
    assert_int_equal(c.refused, LUATTN_INVALID);
    assert_non_null(strstr(c.err.message, "scale: is -1.5, expected a positive number"));
  }
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_launch)};
  const int failed = cmocka_run_group_tests(tests, open_all, close_all);
  if (failed == 0 && !hosts_exist(HOST_COMMA)) {
    fprintf(stderr, "skipped: there is no locale 'comma' in LOCPATH, as this machine has no localedef\n");
    return 77;
  }
  return failed;
}
