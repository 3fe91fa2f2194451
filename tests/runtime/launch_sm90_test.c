/* launch_sm90_test.c: tests what the driver receives for kernels of the sm90 family: TMA descriptors,
 * counters, grids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "abi/workspace.h"
#include "tests/runtime/launches.h"
#include "tests/support/fake_cuda.h"

static void assert_map(const LuattnTensorMap *map, const void *data, const unsigned long long size[4],
                       const unsigned long long stride[3], unsigned rows) {
  fake_map m;
  memcpy(&m, map->bytes, sizeof m);
  assert_ptr_equal(m.data, data);
  assert_int_equal(m.type, 9); /* bfloat16 */
  assert_int_equal(m.box[0], 64);
  assert_int_equal(m.box[1], rows);
  for (int i = 0; i < 4; ++i) assert_int_equal(m.size[i], size[i]);
  for (int i = 0; i < 3; ++i) assert_int_equal(m.stride[i], stride[i]);
}

static luattn_kernel *load_sm90(problem *p) {
  p->info.family = LUATTN_SM90;
  p->info.draws_tiles = 1;
  return load(p);
}

/* Launches and returns the event of the last kernel. */
static const fake_event *launch_again(const luattn_kernel *kernel, const problem *p) {
  luattn_error err;
  fake_reset();
  if (luattn_launch(kernel, &p->args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return fake_get_event(fake_num_events() - 1);
}

/* The sm90 family has persistent blocks, and descriptors of q, k, v and o. With mods the descriptors point at
 * the modified copies. */
static void forward_sm90(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  luattn_kernel *kernel = load_sm90(&p);
  luattn_error err;
  if (luattn_launch(kernel, &p.args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
  const size_t last = fake_num_events() - 1;
  assert_launch(last, "luattn_fwd", 2 * HEADS * BATCH, 1, 1, 256, 100000); /* fewer tiles than multiprocessors */
  const LuattnParams *a = &fake_get_event(last)->params;
  const LuattnTensorMaps *maps = &fake_get_event(last)->maps;
  assert_map(&maps->q, p.q.t.data, (unsigned long long[]){HEAD_DIM, Q_LEN, HEADS, BATCH},
             (unsigned long long[]){2 * (unsigned long long)p.q.strides[2], 2 * (unsigned long long)p.q.strides[1],
                                    2 * (unsigned long long)p.q.strides[0]},
             64);
  assert_map(&maps->k, a->tensors.k.data, (unsigned long long[]){HEAD_DIM, KV_LEN, HEADS_KV, BATCH},
             (unsigned long long[]){2 * HEAD_DIM, 2 * HEAD_DIM * KV_LEN, 2 * HEAD_DIM * KV_LEN * HEADS_KV},
             p.info.entry[2].tile_n);
  assert_ptr_not_equal(a->tensors.k.data, p.k.t.data);
  assert_map(&maps->o, p.o.t.data, (unsigned long long[]){HEAD_DIM_V, Q_LEN, HEADS, BATCH},
             (unsigned long long[]){2 * HEAD_DIM_V, 2 * HEAD_DIM_V * Q_LEN, 2 * HEAD_DIM_V * Q_LEN * HEADS}, 16);
  p.args.workspace = (char *)p.args.workspace + 256; /* k' has another address */
  fake_fail("cuTensorMapReplaceAddress", 1, 700);
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_CUDA);
  assert_non_null(strstr(err.message, "cuTensorMapReplaceAddress: CUDA_ERROR_ILLEGAL_ADDRESS"));
  assert_non_null(strstr(err.message, "describing k"));
  luattn_kernel_unload(kernel);
  kernel = load_sm90(&p); /* has no descriptors yet */
  fake_fail("cuTensorMapEncodeTiled", 2, 1);
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "k: strides"));
  assert_non_null(strstr(err.message, "are not what TMA can take"));
  fake_fail("cuTensorMapEncodeTiled", 3, 1); /* q already has a descriptor */
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "o: strides"));
  luattn_kernel_unload(kernel);
  kernel = load_sm90(&p);
  fake_fail("cuTensorMapEncodeTiled", 1, 700);
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_CUDA);
  assert_non_null(strstr(err.message, "cuTensorMapEncodeTiled: CUDA_ERROR_ILLEGAL_ADDRESS"));
  luattn_kernel_unload(kernel);
  problem_resize(&p, 64, 128, 0); /* more tiles than multiprocessors, and no keys */
  launch(&p, NULL);
  assert_launch(fake_num_events() - 1, "luattn_fwd", 132, 1, 1, 256, 100000);
  problem_close(&p);
}

static LuattnOrder order_of(problem *p, uint32_t family, bool has_mask) {
  p->info.family = family;
  p->info.draws_tiles = family == LUATTN_SM90;
  p->info.has_mask = has_mask;
  launch(p, NULL);
  return fake_get_event(fake_num_events() - 1)->params.order;
}

/* 10 kv heads with 4 query heads each form groups of 4 (sm80), of 1 (sm90) and of 5 (sm90 with a mask). */
static void forward_order(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  problem_resize(&p, 5, 51 * 64, KV_LEN);
  const LuattnOrder grid = order_of(&p, LUATTN_SM80, false); /* 2040 tiles */
  assert_int_equal(grid.q_tiles, 51);
  assert_int_equal(grid.tiles, 51 * HEADS * 5);
  assert_int_equal(grid.group_heads[0].d, 16); /* 3 groups of 10 kv heads: 4, 4, and */
  assert_int_equal(grid.group_heads[1].d, 8);
  assert_int_equal(grid.last, 2);
  assert_int_equal(grid.group_tiles.d, 16 * 51);
  assert_int_equal(grid.heads.d, HEADS);
  assert_int_equal(grid.group.d, HEADS / HEADS_KV);
  const LuattnOrder plain = order_of(&p, LUATTN_SM90, false), masked = order_of(&p, LUATTN_SM90, true);
  assert_int_equal(plain.group_heads[0].d, 4); /* one kv head per group */
  assert_int_equal(plain.last, 9);
  assert_int_equal(masked.group_heads[0].d, 20); /* 4 kv heads have 640 tiles; 10 / 4 groups: 2 of 5 */
  assert_int_equal(masked.group_heads[1].d, 20);
  assert_int_equal(masked.last, 1);
  assert_int_equal(order_of(&p, LUATTN_SIMT, true).tiles, 0);
  problem_close(&p);
}

static void *workspace_number(const problem *p, int i) {
  return p->memory + PROBLEM_MEMORY / 2 + 256 * i; /* workspaces overlap, but no kernel runs */
}

static bool are_apart(const unsigned *a, const unsigned *b) {
  return (const char *)a - (const char *)b >= 32 || (const char *)b - (const char *)a >= 32;
}

/* Nothing is zeroed at a launch: each workspace has its own counter in the kernel's memory, which was zeroed
 * when the kernel was loaded. */
static void counters(void **state) {
  (void)state;
  enum { OWN = 256 };
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  const int before = fake_live().allocations;
  luattn_kernel *kernel = load_sm90(&p), *other = load(&p);
  assert_int_equal(fake_live().allocations, before + 4); /* including the zeros for empty inputs */
  p.args.workspace_size = (size_t)1 << 20;
  unsigned *counter[OWN];
  for (int i = 0; i < OWN; ++i) {
    p.args.workspace = workspace_number(&p, i);
    counter[i] = launch_again(kernel, &p)->params.scratch.work_counter;
    assert_int_equal(fake_num_events(), 3); /* kernels only, no fills */
    assert_int_equal(*counter[i], 0);
    for (int j = 0; j < i; ++j) assert_true(are_apart(counter[i], counter[j]));
  }
  for (int i = OWN - 1; i >= 0; i -= 51) {
    p.args.workspace = workspace_number(&p, i);
    assert_ptr_equal(launch_again(kernel, &p)->params.scratch.work_counter, counter[i]);
    assert_ptr_not_equal(launch_again(other, &p)->params.scratch.work_counter, counter[i]);
    assert_int_equal(fake_num_events(), 3);
  }
  luattn_kernel_unload(kernel);
  luattn_kernel_unload(other);
  assert_int_equal(fake_live().allocations, before);
  problem_close(&p);
}

static const unsigned *counter_on(const luattn_kernel *kernel, const problem *p, uintptr_t stream, size_t events) {
  luattn_error err;
  fake_reset();
  if (luattn_launch(kernel, &p->args, (void *)stream, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(fake_num_events(), events);
  return fake_get_event(events - 1)->params.scratch.work_counter;
}

/* More workspaces than a kernel has counters for: a launch then takes its stream's counter, and nothing is
 * zeroed either. A launch zeroes a counter in its workspace only if it is captured into a graph (which may
 * run concurrently with the stream), if it runs on the per-thread stream (whose handle identifies no stream),
 * or if there are too many streams. */
static void counters_of_streams(void **state) {
  (void)state;
  enum { WORKSPACES = 6000, LATE = WORKSPACES + 1, PER_THREAD = 2, FIRST = 0x1000, STREAMS = 2000 };
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  luattn_kernel *kernel = load_sm90(&p);
  p.args.workspace_size = (size_t)1 << 20;
  for (int i = 0; i < WORKSPACES; ++i) {
    p.args.workspace = workspace_number(&p, i);
    (void)counter_on(kernel, &p, 0, 3); /* kernels only, with any counter */
  }
  p.args.workspace = workspace_number(&p, LATE);
  const unsigned *a = counter_on(kernel, &p, FIRST, 3), *b = counter_on(kernel, &p, FIRST + 16, 3);
  assert_true(are_apart(a, b));
  assert_ptr_equal(counter_on(kernel, &p, FIRST, 3), a);
  p.args.workspace = workspace_number(&p, LATE + 1);
  assert_ptr_equal(counter_on(kernel, &p, FIRST, 3), a); /* launches on one stream do not overlap */
  for (int i = 0; i < 2; ++i) {
    const uintptr_t stream = i == 0 ? FIRST : PER_THREAD;
    if (i == 0) fake_capture((void *)stream);
    const unsigned *own = counter_on(kernel, &p, stream, 4);
    assert_fill(0, own, sizeof *own);
    assert_in_range((uintptr_t)own, (uintptr_t)p.args.workspace, (uintptr_t)p.args.workspace + p.args.workspace_size);
    fake_capture(NULL);
  }
  fake_reset();
  fake_fail("cuMemsetD32Async", 1, 1);
  luattn_error err;
  assert_int_equal(luattn_launch(kernel, &p.args, (void *)(uintptr_t)PER_THREAD, &err), LUATTN_CUDA);
  assert_non_null(strstr(err.message, "zeroing the work counter (4 bytes"));
  size_t zeroed = 0;
  for (uintptr_t i = 0; i < STREAMS; ++i) {
    fake_reset();
    assert_int_equal(luattn_launch(kernel, &p.args, (void *)(FIRST + 16 * i), &err), LUATTN_OK);
    zeroed += fake_num_events() - 3;
  }
  assert_in_range(zeroed, STREAMS - 256, STREAMS - 200);
  fake_fail("cuStreamIsCapturing", 1, 900);
  assert_int_equal(luattn_launch(kernel, &p.args, (void *)(uintptr_t)FIRST, &err), LUATTN_OK);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

/* A descriptor is encoded once for tensors of one shape (tma_descriptors_test.c covers other changes). */
static void descriptors_are_cached(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  luattn_kernel *kernel = load_sm90(&p);
  const LuattnTensorMaps first = launch_again(kernel, &p)->maps;
  assert_int_equal(fake_num_descriptors(), 4);
  assert_memory_equal(&launch_again(kernel, &p)->maps, &first, sizeof first);
  assert_int_equal(fake_num_descriptors(), 0);
  p.q.t.byte_offset = 16;
  LuattnTensorMaps moved = launch_again(kernel, &p)->maps;
  assert_int_equal(fake_num_descriptors(), 0);
  fake_map q;
  memcpy(&q, moved.q.bytes, sizeof q);
  assert_ptr_equal(q.data, (char *)p.q.t.data + 16);
  assert_memory_not_equal(&moved.q, &first.q, sizeof first.q);
  assert_memory_equal(&moved.k, &first.k, 3 * sizeof first.k);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

/* The sm90 family has descriptors of q and dout with boxes of tile_m rows, and of k and v with boxes of
 * tile_n rows. dq_acc has whole groups of 16 rows. The runtime zeroes neither dq_acc nor the counter. Blocks
 * are persistent. */
static void backward_sm90(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.family = LUATTN_SM90;
  launch(&p, NULL);
  const fake_event *e = fake_get_event(5);
  assert_launch(5, "luattn_dkdv", 3 * HEADS_KV * BATCH, 1, 1, 256, 200000);
  assert_int_equal((char *)e->params.scratch.dq_order - (char *)e->params.scratch.dq_acc,
                   (size_t)BATCH * HEADS * 112 * HEAD_DIM * 4); /* 100 rows */
  assert_map(&e->maps.q, p.q.t.data, (unsigned long long[]){HEAD_DIM, Q_LEN, HEADS, BATCH},
             (unsigned long long[]){2 * HEAD_DIM, 2 * HEAD_DIM * Q_LEN, 2 * HEAD_DIM * Q_LEN * HEADS}, 64);
  assert_map(&e->maps.v, p.v.t.data, (unsigned long long[]){HEAD_DIM_V, KV_LEN, HEADS_KV, BATCH},
             (unsigned long long[]){2 * HEAD_DIM_V, 2 * HEAD_DIM_V * KV_LEN, 2 * HEAD_DIM_V * KV_LEN * HEADS_KV}, 48);
  assert_map(&e->maps.dout, p.dout.t.data, (unsigned long long[]){HEAD_DIM_V, Q_LEN, HEADS, BATCH},
             (unsigned long long[]){2 * HEAD_DIM_V, 2 * HEAD_DIM_V * Q_LEN, 2 * HEAD_DIM_V * Q_LEN * HEADS}, 64);
  problem_resize(&p, BATCH, 0, KV_LEN);
  launch(&p, NULL);
  assert_launch(4, "luattn_prepare", 1, HEADS, BATCH, 128, 0); /* zeroes the counter */
  problem_resize(&p, BATCH, 640, KV_LEN);
  launch(&p, NULL);
  e = fake_get_event(5); /* a semaphore per q tile, after the counter */
  assert_true((char *)e->params.scratch.dk_acc - (char *)e->params.scratch.dq_order >=
              4 * (LUATTN_DQ_ORDER_FIRST + BATCH * HEADS * 640 / 64));
  problem_close(&p);
  luattn_error err;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.family = LUATTN_SM90;
  luattn_kernel *kernel = load(&p);
  fake_fail("cuTensorMapEncodeTiled", 4, 1);
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "dout: strides"));
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

/* The d256 backward kernel has tiles of 64 positions and complete clusters of two blocks. */
static void backward_sm90_in_clusters(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.family = LUATTN_SM90;
  for (uint32_t i = 0; i < p.info.num_entries; ++i)
    if (p.info.entry[i].role == LUATTN_ROLE_DKDV) p.info.entry[i].tile_n = 64;
  launch(&p, NULL);
  assert_launch(5, "luattn_dkdv", 4 * HEADS_KV * BATCH, 1, 1, 256, 200000); /* 130 positions are 3 tiles */
  assert_non_null(fake_get_event(5)->params.scratch.dq_order);
  problem_resize(&p, BATCH, Q_LEN, 64 * 200); /* more than 132 multiprocessors */
  launch(&p, NULL);
  assert_launch(5, "luattn_dkdv", 132, 1, 1, 256, 200000);
  problem_resize(&p, BATCH, 640, KV_LEN);
  launch(&p, NULL);
  const fake_event *e = fake_get_event(5); /* a semaphore per q tile and block of a cluster */
  assert_true((char *)e->params.scratch.dk_acc - (char *)e->params.scratch.dq_order >=
              4 * (LUATTN_DQ_ORDER_FIRST + BATCH * HEADS * 2 * 640 / 64));
  problem_close(&p);
}

static LuattnParams params_of_backward(problem *p, int asked) {
  p->args.num_splits = asked;
  launch(p, NULL);
  return fake_get_event(6)->params;
}

static size_t workspace_of(problem *p, int asked) {
  luattn_error err;
  size_t size;
  p->args.num_splits = asked;
  luattn_kernel *kernel = load(p);
  assert_int_equal(luattn_workspace_size(kernel, &p->args, &size, &err), LUATTN_OK);
  luattn_kernel_unload(kernel);
  return size;
}

/* Blocks share the queries of a kv tile: the grid covers all blocks, and the workspace has dk and dv of each,
 * in whole groups of 16 rows. luattn_finish runs even if dq is not requested. */
static void backward_sm90_splits(void **state) {
  (void)state;
  enum { KEYS = (KV_LEN + 15) / 16 * 16 };
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.family = LUATTN_SM90;
  p.info.can_split = 1;
  const char *const end[] = {(char *)p.args.workspace + workspace_of(&p, 1),
                             (char *)p.args.workspace + workspace_of(&p, 3)};
  const LuattnParams one = params_of_backward(&p, 1), three = params_of_backward(&p, 3);
  assert_int_equal(one.schedule.num_splits, 1);
  assert_null(one.scratch.dv_acc);
  assert_ptr_equal(end[0], (char *)one.scratch.dk_acc + BATCH * HEADS_KV * KEYS * HEAD_DIM * 4);
  assert_launch(5, "luattn_dkdv", 3 * HEADS_KV * BATCH * 3, 1, 1, 256, 200000);
  assert_int_equal(three.schedule.num_splits, 3);
  assert_ptr_equal(three.scratch.dv_acc, (char *)three.scratch.dk_acc + 3 * BATCH * HEADS_KV * KEYS * HEAD_DIM * 4);
  assert_ptr_equal(end[1], (char *)three.scratch.dv_acc + 3 * BATCH * HEADS_KV * KEYS * HEAD_DIM_V * 4);
  assert_launch(6, "luattn_finish", 17, HEADS, 3 * BATCH, 128, 0);
  p.info.has_key_mod = 0;
  params_of_backward(&p, 1);
  assert_launch(6, "luattn_finish", 13, HEADS, BATCH, 128, 0); /* for dq alone */
  params_of_backward(&p, 3);
  assert_launch(6, "luattn_finish", 17, HEADS, 3 * BATCH, 128, 0);
  p.info.wants &= ~(uint32_t)(LUATTN_WANT_DQ | LUATTN_WANT_DK);
  p.args.dq = p.args.dk = NULL;
  params_of_backward(&p, 1);
  assert_int_equal(fake_num_events(), 6); /* no dq_acc, and nothing to finish */
  params_of_backward(&p, 3);
  assert_int_equal(fake_num_events(), 7);
  assert_launch(6, "luattn_finish", 17, HEADS, 3 * BATCH, 128, 0);
  problem_close(&p);
}

/* Without num_splits the launch chooses: 12 kv tiles for 132 multiprocessors. */
static void backward_sm90_chooses_splits(void **state) {
  (void)state;
  static const struct {
    int batch, q_len;
    uint32_t has_mask;
    int splits;
  } cases[] = {{BATCH, 640, 0, 8}, {BATCH, 64, 0, 1}, {BATCH, 0, 0, 1}, {5, 640, 0, 4},
               {10, 1280, 0, 2},   {10, 1280, 1, 3},  {21, 640, 0, 1},  {22, 640, 1, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    problem p;
    problem_open(&p, LUATTN_BACKWARD);
    p.info.family = LUATTN_SM90;
    p.info.can_split = 1;
    p.info.has_mask = cases[i].has_mask;
    problem_resize(&p, cases[i].batch, cases[i].q_len, KV_LEN);
    luattn_kernel *kernel = load(&p);
    luattn_error err;
    size_t size[2];
    for (int n = 0; n < 2; ++n) {
      p.args.num_splits = n == 0 ? 0 : cases[i].splits;
      assert_int_equal(luattn_workspace_size(kernel, &p.args, &size[n], &err), LUATTN_OK);
    }
    assert_int_equal(size[0], size[1]);
    p.args.num_splits = cases[i].splits + 1;
    assert_int_equal(luattn_workspace_size(kernel, &p.args, &size[1], &err), LUATTN_OK);
    assert_true(size[0] < size[1]);
    luattn_kernel_unload(kernel);
    problem_close(&p);
  }
}

static void impossible_splits(void **state) {
  (void)state;
  static const struct {
    int pass, family, splits;
    const char *message;
  } cases[] = {{LUATTN_BACKWARD, LUATTN_SM90, -1, "num_splits: is -1, expected 1 to 64, or 0"},
               {LUATTN_BACKWARD, LUATTN_SM90, 65, "num_splits: is 65, expected 1 to 64, or 0"},
               {LUATTN_BACKWARD, LUATTN_SM80, 2, "num_splits: is 2, and this kernel has one block for a kv tile"},
               {LUATTN_FORWARD, LUATTN_SM90, 2, NULL}, /* for backward; one luattn_args serves both */
               {LUATTN_FORWARD, LUATTN_SM90, 65, NULL},
               {LUATTN_FORWARD, LUATTN_SM80, -1, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    problem p;
    problem_open(&p, (luattn_pass)cases[i].pass);
    p.info.family = (uint32_t)cases[i].family;
    p.info.can_split = cases[i].splits != 2;
    p.args.num_splits = cases[i].splits;
    luattn_kernel *kernel = load(&p);
    luattn_error err;
    const luattn_status status = luattn_launch(kernel, &p.args, NULL, &err);
    assert_int_equal(status, cases[i].message != NULL ? LUATTN_INVALID : LUATTN_OK);
    assert_non_null(strstr(err.message, cases[i].message != NULL ? cases[i].message : ""));
    luattn_kernel_unload(kernel);
    problem_close(&p);
  }
}

/* Persistent blocks leave multiprocessors to others. */
static void spared_multiprocessors(void **state) {
  (void)state;
  static const struct {
    luattn_pass pass;
    int spare;
    unsigned blocks;
    const char *message;
  } cases[] = {
      {LUATTN_FORWARD, 8, 124, NULL},
      {LUATTN_FORWARD, 131, 1, NULL},
      {LUATTN_BACKWARD, 15, 116, NULL},
      {LUATTN_FORWARD, 132, 0, "spare_multiprocessors: is 132, and device 0 has 132; leave this call at least one"},
      {LUATTN_BACKWARD, 500, 0, "spare_multiprocessors: is 500, and device 0 has 132"},
      {LUATTN_FORWARD, -1, 0, "spare_multiprocessors: is -1, expected 0 or more"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    problem p;
    problem_open(&p, cases[i].pass);
    p.info.family = LUATTN_SM90;
    for (uint32_t n = 0; n < p.info.num_entries; ++n)
      if (p.info.entry[n].role == LUATTN_ROLE_DKDV) p.info.entry[n].tile_n = 64; /* in pairs of blocks */
    if (cases[i].pass == LUATTN_FORWARD)
      problem_resize(&p, 64, 128, 0);
    else
      problem_resize(&p, BATCH, Q_LEN, 64 * 200); /* more tiles than multiprocessors */
    p.args.spare_multiprocessors = cases[i].spare;
    luattn_error err;
    const luattn_status status = try_launch(&p, &err);
    assert_int_equal(status, cases[i].message != NULL ? LUATTN_INVALID : LUATTN_OK);
    if (cases[i].message != NULL) assert_non_null(strstr(err.message, cases[i].message));
    bool found = false;
    for (size_t e = 0; e < fake_num_events() && cases[i].message == NULL; ++e) {
      const fake_event *one = fake_get_event(e);
      if (one->kind != FAKE_LAUNCH || (strcmp(one->name, "luattn_fwd") != 0 && strcmp(one->name, "luattn_dkdv") != 0))
        continue;
      assert_int_equal(one->grid[0], cases[i].blocks);
      found = true;
    }
    assert_int_equal(found, cases[i].message == NULL);
    problem_close(&p);
  }
}

/* Inserts luattn_norms and luattn_tile_bitmap before the main entry, which is the last but one of a backward. */
static void add_tile_bitmap(problem *p) {
  image_manifest *m = &p->info;
  const uint32_t at = m->num_entries - (m->pass == LUATTN_BACKWARD ? 2 : 1);
  memmove(&m->entry[at + 2], &m->entry[at], (m->num_entries - at) * sizeof *m->entry);
  m->entry[at] =
      (manifest_entry){.name = "luattn_norms", .role = LUATTN_ROLE_NORMS, .threads = 128, .tile_m = 128, .tile_n = 128};
  m->entry[at + 1] = (manifest_entry){
      .name = "luattn_tile_bitmap", .role = LUATTN_ROLE_TILE_BITMAP, .threads = 128, .tile_m = 64, .tile_n = 48};
  m->num_entries += 2;
}

/* Checks norms per 32 positions, bitmap words per 32 tiles, and grids. Neither kernel runs if nothing is
 * skipped. */
static void skips(luattn_pass pass) {
  enum { NORMS_Q = (Q_LEN + 31) / 32, NORMS_K = (KV_LEN + 31) / 32, BLOCKS = (KV_LEN + 127) / 128 };
  const bool forward = pass == LUATTN_FORWARD;
  problem p;
  problem_open(&p, pass);
  p.info.family = LUATTN_SM90;
  add_tile_bitmap(&p);
  p.args.skip = LUATTN_SKIP_ALWAYS;
  launch(&p, NULL);
  const size_t first = forward ? 2 : 3, count = fake_num_events();
  size_t at = 0;
  while (at < count && strcmp(fake_get_event(at)->name, "luattn_norms") != 0) at++;
  assert_true(at >= first && at + 2 < count);
  if (forward)
    assert_launch(at, "luattn_norms", BLOCKS, HEADS_KV, BATCH, 128, 0);
  else
    assert_launch(at, "luattn_norms", Q_LEN > KV_LEN ? (Q_LEN + 127) / 128 : BLOCKS, HEADS, 2 * BATCH, 128, 0);
  const int64_t q_tiles = (Q_LEN + 63) / 64, kv_tiles = forward ? (KV_LEN + 127) / 128 : (KV_LEN + 47) / 48;
  assert_launch(at + 1, "luattn_tile_bitmap", (unsigned)(forward ? q_tiles : (kv_tiles + 3) / 4), HEADS, BATCH, 128, 0);
  const LuattnParams *a = &fake_get_event(at + 2)->params;
  char *behind = (char *)a->scratch.norm_k + (BATCH * HEADS_KV * NORMS_K * 4 + 255) / 256 * 256;
  const size_t of_q = (BATCH * HEADS * NORMS_Q * 4 + 255) / 256 * 256;
  assert_ptr_equal(a->scratch.norm_q, forward ? NULL : behind);
  assert_ptr_equal(a->scratch.least_lse, forward ? NULL : behind + of_q);
  assert_ptr_equal(a->scratch.tile_bitmap, forward ? behind : behind + 2 * of_q);
  for (int skip = LUATTN_SKIP_AUTO; skip <= LUATTN_SKIP_NEVER; skip += LUATTN_SKIP_NEVER) {
    p.args.skip = skip; /* lengths are too short to skip by default */
    launch(&p, NULL);
    assert_int_equal(fake_num_events(), count - 2);
    assert_null(fake_get_event(at)->params.scratch.tile_bitmap);
  }
  problem_resize(&p, 1, forward ? LUATTN_SKIP_FORWARD : LUATTN_SKIP_BACKWARD, LUATTN_SKIP_FORWARD);
  p.args.skip = LUATTN_SKIP_AUTO;
  launch(&p, NULL);
  assert_int_equal(fake_num_events(), count);
  problem_close(&p);
}

static void forward_skips(void **state) {
  (void)state;
  skips(LUATTN_FORWARD);
}

static void backward_skips(void **state) {
  (void)state;
  skips(LUATTN_BACKWARD);
}

static void impossible_skips(void **state) {
  (void)state;
  static const struct {
    int skip;
    const char *message;
  } cases[] = {{-1, "skip: is -1, expected a luattn_skip, 0 to 2"},
               {3, "skip: is 3, expected a luattn_skip, 0 to 2"},
               {LUATTN_SKIP_ALWAYS, "skip: is LUATTN_SKIP_ALWAYS, and this kernel knows no tiles without weight"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    problem p;
    problem_open(&p, LUATTN_FORWARD);
    p.args.skip = cases[i].skip;
    luattn_kernel *kernel = load(&p);
    luattn_error err;
    assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, cases[i].message));
    luattn_kernel_unload(kernel);
    problem_close(&p);
  }
  problem p; /* backward may lack tile skipping; one luattn_args serves both passes */
  problem_open(&p, LUATTN_BACKWARD);
  p.args.skip = LUATTN_SKIP_ALWAYS;
  launch(&p, NULL);
  problem_close(&p);
}

/* The grid has two slices per batch entry. If the entries exceed its limit, every tile is computed. */
static void many_batches_skip_nothing(void **state) {
  (void)state;
  enum { MOST = 32767 };
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.family = LUATTN_SM90;
  p.info.has_key_mod = 0;
  add_tile_bitmap(&p);
  memmove(&p.info.entry[1], &p.info.entry[2], (--p.info.num_entries - 1) * sizeof *p.info.entry);
  luattn_kernel *kernel = load(&p);
  for (int i = 0; i < 2; ++i) {
    size_t size[2];
    luattn_error err;
    problem_resize(&p, MOST + i, 1, 1);
    for (int skip = 0; skip < 2; ++skip) {
      p.args.skip = skip == 0 ? LUATTN_SKIP_NEVER : LUATTN_SKIP_ALWAYS;
      if (luattn_workspace_size(kernel, &p.args, &size[skip], &err) != LUATTN_OK) fail_msg("%s", err.message);
    }
    assert_int_equal(size[1] > size[0], i == 0);
  }
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(forward_sm90),
      cmocka_unit_test(forward_order),
      cmocka_unit_test(counters),
      cmocka_unit_test(counters_of_streams),
      cmocka_unit_test(descriptors_are_cached),
      cmocka_unit_test(backward_sm90),
      cmocka_unit_test(backward_sm90_in_clusters),
      cmocka_unit_test(backward_sm90_splits),
      cmocka_unit_test(backward_sm90_chooses_splits),
      cmocka_unit_test(impossible_splits),
      cmocka_unit_test(spared_multiprocessors),
      cmocka_unit_test(forward_skips),
      cmocka_unit_test(backward_skips),
      cmocka_unit_test(impossible_skips),
      cmocka_unit_test(many_batches_skip_nothing),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
