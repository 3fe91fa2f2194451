/* work_counters_test.c: many threads ask for work counters, for more workspaces than there are counters. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/device/work_counters.h"

enum { THREADS = 4, WORKSPACES = 2000, TRIALS = 40 };

typedef struct worker {
  counter_table *table;
  pthread_barrier_t *start;
  int first, step; /* the order of the worker's requests */
  unsigned *found[WORKSPACES];
} worker;

static const void *workspace_number(int i) { return (void *)(0x7f0000000000 + (uintptr_t)i * 4096); }

static void *work(void *arg) {
  worker *w = arg;
  pthread_barrier_wait(w->start);
  for (int i = 0; i < WORKSPACES; ++i) {
    const int n = (w->first + i * w->step) % WORKSPACES;
    w->found[n] = counter_of_workspace(w->table, workspace_number(n));
  }
  return NULL;
}

static void check_found(const worker w[THREADS], uintptr_t counters) {
  unsigned char used[COUNTER_WORKSPACES] = {0};
  int own = 0;
  for (int i = 0; i < WORKSPACES; ++i) {
    for (int t = 1; t < THREADS; ++t) assert_ptr_equal(w[t].found[i], w[0].found[i]);
    if (w[0].found[i] == NULL) continue;
    const uintptr_t offset = (uintptr_t)w[0].found[i] - counters;
    assert_int_equal(offset % COUNTER_STRIDE, 0);
    assert_true(offset < COUNTER_WORKSPACES * COUNTER_STRIDE);
    assert_int_equal(used[offset / COUNTER_STRIDE]++, 0);
    ++own;
  }
  assert_in_range(own, COUNTER_WORKSPACES * 9 / 10, COUNTER_WORKSPACES); /* a search ends before it has visited all */
}

static void many_threads(void **state) {
  (void)state;
  static const int steps[THREADS] = {1, 7, 1999, 143}; /* coprime to the number of workspaces */
  for (int trial = 0; trial < TRIALS; ++trial) {
    counter_table *table = calloc(1, sizeof *table);
    pthread_barrier_t start;
    worker w[THREADS];
    pthread_t thread[THREADS];
    assert_non_null(table);
    table->counters = 0x1000;
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
    for (int t = 0; t < THREADS; ++t) {
      w[t] = (worker){.table = table, .start = &start, .first = trial % WORKSPACES, .step = steps[t]};
      assert_int_equal(pthread_create(&thread[t], NULL, work, &w[t]), 0);
    }
    for (int t = 0; t < THREADS; ++t) pthread_join(thread[t], NULL);
    check_found(w, 0x1000);
    pthread_barrier_destroy(&start);
    free(table);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(many_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
