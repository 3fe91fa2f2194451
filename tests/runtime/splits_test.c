/* splits_test.c: tests how the runtime launches a decode kernel whose blocks share the keys of a row: luattn_merge while
 * that still runs, and as many blocks as run at once where these take items until none is left; and images of before,
 * which do neither. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "luattn/batch.h"
#include "runtime/device/driver.h"
#include "tests/runtime/launches.h"
#include "tests/support/fake_cuda.h"

enum { ENTRIES = 8, MULTIPROCESSORS = 132, PLACES = LUATTN_SPLIT_PLACES };

/* A kernel of two blocks on a multiprocessor, and luattn_merge with this tile_n. */
static void make_decode(problem *p, uint32_t waits) {
  image_manifest *m = &p->info;
  m->decode = m->can_split = 1;
  m->num_state[0] = 2;
  m->has_key_mod = m->num_inputs = m->num_scalars = m->num_stats = m->num_saved = 0;
  m->params_bytes = LUATTN_PARAMS_THROUGH(list);
  m->entry[0] = (manifest_entry){"luattn_fwd", LUATTN_ROLE_FORWARD, 128, 100000, 16, 64, 0, 0};
  m->entry[1] = (manifest_entry){"luattn_merge", LUATTN_ROLE_MERGE, 32, 0, 1, waits, 0, 0};
  m->num_entries = 2;
  p->args.num_inputs = p->args.num_scalars = 0;
  p->args.saved = NULL;
}

static void check_merge(uint32_t waits, bool early) {
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  make_decode(&p, waits);
  problem_resize(&p, ENTRIES, 1, 4096);
  launch(&p, NULL);
  assert_int_equal(fake_num_events(), 2);
  assert_string_equal(fake_get_event(0)->name, "luattn_fwd");
  assert_false(fake_get_event(0)->early);
  assert_launch(1, "luattn_merge", 1, HEADS, ENTRIES, 32, 0);
  assert_int_equal(fake_get_event(1)->early, early);
  problem_close(&p);
}

static void merges_that_wait_are_launched_early(void **state) {
  (void)state;
  check_merge(2, true);
  check_merge(1, false);
}

/* libcuda before CUDA 12.3, which does not capture early launches, and before 11.8, which knows none. */
static void earlier_drivers(void **state) {
  (void)state;
  const int version = driver->version;
  cu_result (*const launch_ex)(const cu_launch *, cu_function, void **, void **) = driver->launch_ex;
  driver->version = 12020;
  check_merge(2, false);
  driver->version = version;
  driver->launch_ex = NULL;
  check_merge(2, false);
  driver->launch_ex = launch_ex;
}

/* The blocks of a call over pages so long that three rounds of blocks find their places; `takes`: luattn_split_list's
 * tile_m. */
static unsigned blocks_in_place(uint32_t takes) {
  enum { PAGES = 5, PAGE_SIZE = 16, COLUMNS = 20000 };
  problem p;
  tensor table = {0}, used = {0};
  luattn_batch *batch;
  luattn_error err;
  problem_open(&p, LUATTN_FORWARD);
  make_decode(&p, 2);
  p.info.paged = p.info.paged_layout[0] = 1;
  p.info.entry[2] = (manifest_entry){"luattn_split_list", LUATTN_ROLE_SPLIT_LIST, 256, 0, takes, PLACES, 0, 0};
  p.info.num_entries = 3;
  p.used = 0;
  tensor_set(&p, &p.q, kDLBfloat, 16, 4, ENTRIES, HEADS, 1, HEAD_DIM);
  tensor_set(&p, &p.k, kDLBfloat, 16, 4, PAGES, HEADS_KV, PAGE_SIZE, HEAD_DIM);
  tensor_set(&p, &p.v, kDLBfloat, 16, 4, PAGES, HEADS_KV, PAGE_SIZE, HEAD_DIM_V);
  tensor_set(&p, &p.o, kDLBfloat, 16, 4, ENTRIES, HEADS, 1, HEAD_DIM_V);
  tensor_set(&p, &p.lse, kDLFloat, 32, 3, ENTRIES, HEADS, 1, 1);
  tensor_set(&p, &table, kDLInt, 32, 2, ENTRIES, COLUMNS, 1, 1);
  tensor_set(&p, &used, kDLInt, 32, 1, ENTRIES, 1, 1, 1);
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .block_table = &table.t,
                                        .seqused_k = &used.t,
                                        .max_seqlen_k = COLUMNS * PAGE_SIZE};
  if (luattn_batch_open(&options, &batch, &err) != LUATTN_OK) fail_msg("%s", err.message);
  p.args.batch = batch;
  launch(&p, NULL);
  const fake_event *fwd = fake_get_event(0);
  assert_string_equal(fwd->name, "luattn_fwd");
  assert_int_equal(fwd->grid[1] * fwd->grid[2], 1);
  const unsigned blocks = fwd->grid[0];
  luattn_batch_close(batch);
  problem_close(&p);
  return blocks;
}

static void as_many_blocks_as_run_at_once(void **state) {
  (void)state;
  assert_int_equal(blocks_in_place(2), 2 * MULTIPROCESSORS);
  assert_true(blocks_in_place(1) > 2 * MULTIPROCESSORS); /* of before: a block for each item */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(merges_that_wait_are_launched_early),
      cmocka_unit_test(earlier_drivers),
      cmocka_unit_test(as_many_blocks_as_run_at_once),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
