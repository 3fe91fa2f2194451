/* splits_test.c: tests how the runtime launches the splits of a decode kernel: as a cluster, which merges by
 * itself, or followed by luattn_merge, which is launched early; and where it knows neither. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/driver.h"
#include "tests/runtime/launches.h"
#include "tests/support/fake_cuda.h"

enum { ENTRIES = 2 };

/* `together`: luattn_merge's tile_n, 1 in images from before clusters. */
static void open_decode(problem *p, int kv_len, unsigned together) {
  problem_open(p, LUATTN_FORWARD);
  image_manifest *m = &p->info;
  m->decode = m->can_split = 1;
  m->num_state[0] = 2;
  m->has_key_mod = m->num_inputs = m->num_scalars = m->num_stats = m->num_saved = 0;
  m->params_bytes = sizeof(LuattnSplitsParams);
  m->entry[0] = (manifest_entry){"luattn_fwd", LUATTN_ROLE_FORWARD, 128, 100000, 16, 64, 0, 0};
  m->entry[1] = (manifest_entry){"luattn_merge", LUATTN_ROLE_MERGE, 32, 0, 1, together, 0, 0};
  m->num_entries = 2;
  p->args.num_inputs = p->args.num_scalars = 0;
  p->args.saved = NULL;
  problem_resize(p, ENTRIES, 1, kv_len);
}

static size_t workspace_of(const problem *p) {
  luattn_kernel *kernel = load(p);
  luattn_error err;
  size_t size;
  assert_int_equal(luattn_workspace_size(kernel, &p->args, &size, &err), LUATTN_OK);
  luattn_kernel_unload(kernel);
  return size;
}

/* Launches with so many splits (0: the launch's choice), and returns how many there are. `cluster`: whether
 * they must be one, which needs neither luattn_merge nor a workspace. */
static unsigned run(problem *p, int splits, bool cluster, bool early) {
  p->args.num_splits = splits;
  launch(p, NULL);
  const fake_event fwd = *fake_get_event(0);
  assert_string_equal(fwd.name, "luattn_fwd");
  assert_false(fwd.early);
  assert_int_equal(fwd.cluster, cluster ? fwd.grid[0] : 1);
  assert_true(fwd.grid[0] > 1);
  assert_int_equal(fake_num_events(), cluster ? 1 : 2);
  if (!cluster) {
    assert_launch(1, "luattn_merge", 1, HEADS, ENTRIES, 32, 0);
    assert_int_equal(fake_get_event(1)->cluster, 1);
    assert_int_equal(fake_get_event(1)->early, early);
  }
  const size_t part = (size_t)ENTRIES * HEADS * HEAD_DIM_V * sizeof(float), size = workspace_of(p);
  if (cluster)
    assert_int_equal(size, 0);
  else
    assert_true(size >= fwd.grid[0] * part);
  return fwd.grid[0];
}

static void short_ones_are_a_cluster(void **state) {
  (void)state;
  problem p;
  open_decode(&p, 1024, 8);
  assert_int_equal(run(&p, 0, true, false), 8);
  fake_clusters(4); /* a part of a GPU */
  assert_int_equal(run(&p, 0, true, false), 4);
  fake_clusters(1);
  (void)run(&p, 0, false, true);
  fake_clusters(8);
  problem_close(&p);
}

/* So long that multiprocessors without a block would cost more; and where an entry's bits must not depend on
 * the others. */
static void others_are_merged(void **state) {
  (void)state;
  problem p;
  open_decode(&p, 60000, 8);
  assert_true(run(&p, 0, false, true) > 8);
  problem_close(&p);
  open_decode(&p, 8192, 8);
  assert_int_equal(run(&p, 4, false, true), 4); /* of one's own */
  p.info.deterministic = 1;
  assert_int_equal(run(&p, 0, false, true), 4);
  problem_close(&p);
}

/* The merge of such an image does not wait by itself. */
static void images_from_before(void **state) {
  (void)state;
  problem p;
  open_decode(&p, 1024, 1);
  (void)run(&p, 0, false, false);
  problem_close(&p);
}

/* A libcuda before CUDA 11.8. */
static void without_attributes(void **state) {
  (void)state;
  problem p;
  open_decode(&p, 1024, 8);
  cu_result (*const launch_ex)(const cu_launch *, cu_function, void **, void **) = driver->launch_ex;
  cu_result (*const cluster_size)(int *, cu_function, const cu_launch *) = driver->cluster_size;
  driver->cluster_size = NULL;
  (void)run(&p, 0, false, true);
  driver->launch_ex = NULL;
  (void)run(&p, 0, false, false);
  driver->launch_ex = launch_ex, driver->cluster_size = cluster_size;
  problem_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(short_ones_are_a_cluster),
      cmocka_unit_test(others_are_merged),
      cmocka_unit_test(images_from_before),
      cmocka_unit_test(without_attributes),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
