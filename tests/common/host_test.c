/* host_test.c: tests what a host scope sets and restores, conversion of real numbers to text, and the thread
 * on which a call runs if the caller's stack is short. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/call/choices.h"
#include "common/fail.h"
#include "common/host.h"
#include "common/real.h"
#include "tests/support/hosts.h"

static bool refuse_threads;
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *data);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *data);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *data) {
  return refuse_threads ? 11 : __real_pthread_create(thread, how, start, data);
}

typedef struct scope_record {
  host_view before, within, floats, after;
  double third[2]; /* computed in each kind of scope */
  double tiny[2];
  char text[64];
} scope_record;

static volatile double one = 1, three = 3, least = DBL_MIN, half = 0.5, zero = 0;

static void compute(double *third, double *tiny) {
  *third = one / three;
  *tiny = least * half;
  volatile double x = one / zero; /* an operation that would trap */
  (void)x;
}

static void enter_full(scope_record *r) {
  HOST_SCOPE;
  hosts_look(&r->within);
  compute(&r->third[0], &r->tiny[0]);
  snprintf(r->text, sizeof r->text, "%g %.3f", 1.25, 1.0 / 3);
}

static void enter_floats(scope_record *r) {
  HOST_FLOATS_SCOPE;
  hosts_look(&r->floats);
  compute(&r->third[1], &r->tiny[1]);
}

static void visit(void *data) {
  scope_record *r = data;
  feclearexcept(FE_ALL_EXCEPT);
  feraiseexcept(FE_UNDERFLOW); /* a flag of the host's own */
  hosts_look(&r->before);
  enter_full(r);
  enter_floats(r);
  hosts_look(&r->after);
}

static void test_scope(void **state) {
  (void)state;
  for (int host = 0; host < NUM_HOSTS; host++) {
    if (!hosts_exist((host_kind)host)) continue;
    scope_record r;
    memset(&r, 0, sizeof r);
    hosts_run((host_kind)host, visit, &r);
    assert_true(hosts_same(&r.before, &r.after));
    assert_int_equal(r.before.flags, FE_UNDERFLOW);
    assert_int_equal(r.within.rounding, FE_TONEAREST);
    assert_int_equal(r.within.traps, 0);
    assert_int_equal(r.within.flags, 0);
    assert_int_equal(r.within.point, '.');
    assert_string_equal(r.text, "1.25 0.333");
    for (int i = 0; i < 2; i++) {
      assert_true(r.third[i] == 0x1.5555555555555p-2);
      assert_true(r.tiny[i] == 0x1p-1023);
    }
  }
}

static void test_hosts_differ(void **state) { /* otherwise the test would show nothing */
  (void)state;
  scope_record r[2];
  for (int i = 0; i < 2; i++) hosts_run(i ? HOST_WORST : HOST_PLAIN, visit, &r[i]);
  assert_int_equal(r[1].before.rounding, FE_UPWARD);
  assert_int_not_equal(r[0].before.control, r[1].before.control);
  assert_true(hosts_exist(HOST_COMMA) == (r[1].before.point == ','));
}

typedef struct numbers {
  char text[7][REAL_SIZE], scale[128];
  double read[6];
  int rest[6];
  luattn_error err;
} numbers;

static const double values[] = {0.125, 100000, 1.0 / 3, 5e-324, -DBL_MAX, 0.1};
static const char *const texts[] = {"0.125", "1e5", "0.1 2", "2.5e-310", "1,5", "x"};

static void write_and_read(void *data) {
  numbers *n = data;
  for (int i = 0; i < 6; i++) real_write(values[i], 1, n->text[i]);
  real_write(100000, 15, n->text[6]);
  for (int i = 0; i < 6; i++) {
    char *end;
    n->read[i] = real_read(texts[i], &end);
    n->rest[i] = (int)strlen(end);
  }
  luattn_fail(&n->err, LUATTN_INVALID, "gain: is %g", 1.5);
  const luattn_args args = {.scale = DBL_MIN};
  assert_false(choices_ok(&args, true, false, n->scale, sizeof n->scale));
}

static void test_real(void **state) {
  (void)state;
  static const char *const want[] = {"0.125", "1e+05", "0.3333333333333333", "5e-324", "-1.7976931348623157e+308",
                                     "0.1",   "100000"};
  static const double read[] = {0.125, 1e5, 0.1, 2.5e-310, 1, 0};
  static const int rest[] = {0, 0, 2, 0, 2, 1};
  for (int host = 0; host < NUM_HOSTS; host++) {
    if (!hosts_exist((host_kind)host)) continue;
    numbers n;
    hosts_run((host_kind)host, write_and_read, &n);
    for (int i = 0; i < 7; i++) assert_string_equal(n.text[i], want[i]);
    for (int i = 0; i < 6; i++) {
      assert_true(n.read[i] == read[i]);
      assert_int_equal(n.rest[i], rest[i]);
    }
    assert_string_equal(n.err.message, "gain: is 1.5");
    assert_string_equal(n.scale,
                        "scale: is 2.22507e-308, expected 1.17549e-38 to 1.70141e+38, which float32 can "
                        "hold, or 0 for head_dim^-1/2");
  }
}

/* ---- host_run ---- */

typedef struct trip {
  pthread_t caller, callee;
  size_t left;
  bool takes_signals;
  host_view within;
  luattn_status status;
  luattn_error err;
} trip;

static luattn_status arrive(void *data, luattn_error *err) {
  trip *t = data;
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, NULL, &blocked);
  t->callee = pthread_self();
  t->left = host_stack_left();
  t->takes_signals = !sigismember(&blocked, SIGUSR1);
  hosts_look(&t->within);
  return luattn_fail(err, LUATTN_IO, "as it was");
}

static void travel(void *data) {
  trip *t = data;
  t->caller = pthread_self();
  t->status = host_run(arrive, t, &t->err);
}

static trip travel_in(host_kind host) {
  trip t;
  memset(&t, 0, sizeof t);
  hosts_run(host, travel, &t);
  assert_int_equal(t.status, LUATTN_IO);
  assert_string_equal(t.err.message, "as it was");
  assert_int_equal(t.within.rounding, FE_TONEAREST);
  assert_int_equal(t.within.traps, 0);
  assert_int_equal(t.within.point, '.');
  assert_true(t.left >= HOST_STACK_LEAST);
  return t;
}

static void test_in_place(void **state) {
  (void)state;
  trip t = travel_in(HOST_PLAIN);
  assert_true(pthread_equal(t.caller, t.callee));
  assert_true(t.takes_signals);
  travel(&t); /* in the main thread */
  assert_true(pthread_equal(t.callee, pthread_self()));
}

static void test_short_stack(void **state) {
  (void)state;
  const trip t = travel_in(HOST_SMALL);
  assert_false(pthread_equal(t.caller, t.callee));
  assert_false(t.takes_signals);
  travel_in(HOST_WORST);
}

static void travel_without_threads(void *data) {
  refuse_threads = true;
  travel(data);
  refuse_threads = false;
}

static void test_no_thread(void **state) {
  (void)state;
  trip t;
  memset(&t, 0, sizeof t);
  hosts_run(HOST_SMALL, travel_without_threads, &t);
  assert_int_equal(t.status, LUATTN_NO_MEMORY);
  assert_string_equal(t.err.message,
                      "threads: one with a stack of 8 MiB cannot be started (error 11); call luattn in "
                      "a thread that has 4 MiB of stack left");
  travel_in(HOST_PLAIN);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_scope),    cmocka_unit_test(test_hosts_differ), cmocka_unit_test(test_real),
      cmocka_unit_test(test_in_place), cmocka_unit_test(test_short_stack),  cmocka_unit_test(test_no_thread),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (failed == 0 && !hosts_exist(HOST_COMMA)) {
    fprintf(stderr, "skipped: there is no locale 'comma' in LOCPATH, as this machine has no localedef\n");
    return 77;
  }
  return failed;
}
