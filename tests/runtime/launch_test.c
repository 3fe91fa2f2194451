/* launch_test.c: tests what the driver receives: grids, parameters, workspace, order, zeroing. Also tests
 * many threads and host time. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/call/limits.h"
#include "runtime/device/driver.h"
#include "tests/runtime/launches.h"
#include "tests/support/fake_cuda.h"

static void assert_tensor(const LuattnTensor *t, const tensor *from) {
  assert_ptr_equal(t->data, from->t.data);
  assert_int_equal(t->batch, from->strides[0]);
  assert_int_equal(t->head, from->strides[1]);
  assert_int_equal(t->seq, from->strides[2]);
}

static void forward(void **state) {
  (void)state;
  problem p;
  int stream;
  problem_open(&p, LUATTN_FORWARD);
  launch(&p, &stream);
  assert_int_equal(fake_num_events(), 3);
  assert_launch(0, "luattn_stats", 3, BATCH, 1, 64, 0);         /* ceil(130 / 64) blocks */
  assert_launch(1, "luattn_mod", 33, HEADS, 3 * BATCH, 128, 0); /* ceil(130 / 4) positions */
  assert_launch(2, "luattn_fwd", 2, HEADS, BATCH, 256, 100000); /* ceil(100 / 64) */
  for (size_t i = 0; i < 3; ++i) {
    assert_ptr_equal(fake_get_event(i)->stream, &stream);
    assert_ptr_equal(fake_get_event(i)->context, fake_primary_context(0));
    assert_memory_equal(&fake_get_event(i)->params, &fake_get_event(0)->params, sizeof(LuattnParams));
  }
  const LuattnParams *a = &fake_get_event(2)->params;
  assert_int_equal(a->shape.batch, BATCH);
  assert_int_equal(a->shape.heads, HEADS);
  assert_int_equal(a->shape.heads_kv, HEADS_KV);
  assert_int_equal(a->shape.group, HEADS / HEADS_KV);
  assert_int_equal(a->shape.q_len, Q_LEN);
  assert_int_equal(a->shape.kv_len, KV_LEN);
  assert_true(a->scale == 1 / sqrt(HEAD_DIM));
  assert_tensor(&a->tensors.q, &p.q);
  assert_tensor(&a->tensors.src_q, &p.q);
  assert_tensor(&a->tensors.src_k, &p.k);
  assert_tensor(&a->tensors.v, &p.v);
  assert_tensor(&a->tensors.o, &p.o);
  assert_tensor(&a->tensors.lse, &p.lse);
  assert_ptr_equal(a->tensors.saved, p.saved.t.data);
  assert_null(a->tensors.dout.data);
  assert_null(a->tensors.dq.data);
  assert_null(a->inputs.scalar_grad);
  assert_null(a->inputs.input[0].grad);
  assert_true(a->inputs.scalar[0] == 30 && a->inputs.scalar[1] == 2); /* given; the spec's default */
  assert_ptr_equal(a->inputs.input[1].data, p.ids.t.data);
  assert_int_equal(a->inputs.input[1].size[0], BATCH);
  assert_int_equal(a->inputs.input[1].size[1], KV_LEN);
  assert_int_equal(a->inputs.input[1].stride[0], KV_LEN);
  assert_int_equal(a->inputs.input[1].stride[1], 1);
  problem_close(&p);
}

/* Kernels read an input without axes at index 0 of an axis of one element. */
static void number_input(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  p.info.input[2].num_axes = 0;
  p.flags.t.ndim = 0;
  p.flags.t.shape = NULL;
  launch(&p, NULL);
  const LuattnParams *a = &fake_get_event(fake_num_events() - 1)->params;
  assert_ptr_equal(a->inputs.input[2].data, p.flags.t.data);
  assert_int_equal(a->inputs.input[2].size[0], 1);
  assert_int_equal(a->inputs.input[2].stride[0], 0);
  problem_close(&p);
}

/* k has a mod: its contiguous copy is in the workspace, and src_k is the caller's tensor. */
static void forward_workspace(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  luattn_kernel *kernel = load(&p);
  luattn_error err;
  size_t size = 0;
  const size_t copy = (size_t)BATCH * HEADS_KV * KV_LEN * HEAD_DIM * 2, stats = 256 * ((BATCH * 3 * 2 * 4 + 255) / 256);
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &size, &err), LUATTN_OK);
  assert_int_equal(size, (copy + 255) / 256 * 256 + stats);
  p.args.workspace_size = size;
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_OK);
  const LuattnParams *a = &fake_get_event(0)->params;
  assert_ptr_equal(a->tensors.k.data, (char *)p.args.workspace + stats);
  assert_int_equal(a->tensors.k.seq, HEAD_DIM);
  assert_int_equal(a->tensors.k.head, HEAD_DIM * KV_LEN);
  assert_int_equal(a->tensors.k.batch, HEAD_DIM * KV_LEN * HEADS_KV);
  assert_ptr_equal(a->scratch.stats[0], p.args.workspace);
  assert_null(a->scratch.stats[1]);
  assert_null(a->scratch.bwd_rows);
  assert_null(a->scratch.dq_acc);
  p.args.workspace_size = size - 1;
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_INVALID);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

static void size_query_needs_shapes_alone(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  luattn_kernel *kernel = load(&p);
  luattn_error err;
  size_t want = 0, size = 0;
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &want, &err), LUATTN_OK);
  p.q.t.data = p.k.t.data = p.ids.t.data = NULL;
  p.v.t.device.device_type = kDLCPU;
  p.args.o = p.args.dout = p.args.dq = p.args.lse = NULL;
  p.args.workspace = NULL;
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &size, &err), LUATTN_OK);
  assert_int_equal(size, want);
  p.q.shape[2] = p.ids.shape[1] = 0;
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &size, &err), LUATTN_INVALID);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

static void backward(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.args.scale = 0.25;
  launch(&p, NULL);
  const size_t dq_bytes = (size_t)BATCH * HEADS * Q_LEN * HEAD_DIM * 4;
  assert_int_equal(fake_num_events(), 8);
  const LuattnParams *a = &fake_get_event(3)->params;
  assert_fill(0, a->scratch.dq_acc, dq_bytes);
  assert_fill(1, p.slopes_grad.t.data, HEADS * 4);
  assert_fill(2, p.scalar_grads.t.data, 2 * 4);
  assert_launch(3, "luattn_stats", 3, BATCH, 1, 64, 0);
  assert_launch(4, "luattn_mod", 33, HEADS, 3 * BATCH, 128, 0);
  assert_launch(5, "luattn_prepare", 4, HEADS, BATCH, 128, 0);      /* ceil(100 / 32) */
  assert_launch(6, "luattn_dkdv", 3, HEADS_KV, BATCH, 256, 200000); /* ceil(130 / 48) */
  assert_launch(7, "luattn_finish", 17, HEADS, 3 * BATCH, 128, 0);  /* ceil(130 / 8) */
  assert_true(a->scale == 0.25);
  assert_tensor(&a->tensors.dout, &p.dout);
  assert_tensor(&a->tensors.dlse, &p.dlse);
  assert_tensor(&a->tensors.lse, &p.lse);
  assert_tensor(&a->tensors.dq, &p.dq);
  assert_tensor(&a->tensors.dk, &p.dk);
  assert_tensor(&a->tensors.dv, &p.dv);
  assert_ptr_equal(a->inputs.input[0].grad, p.slopes_grad.t.data);
  assert_null(a->inputs.input[3].grad);
  assert_ptr_equal(a->inputs.scalar_grad, p.scalar_grads.t.data);
  /* Stats, k', three numbers per row, dq_acc, dk_acc (k has a mod); no dv_acc. */
  const struct {
    const void *ptr;
    size_t bytes;
  } part[] = {{a->scratch.stats[0], (size_t)BATCH * 3 * 2 * 4},
              {a->tensors.k.data, (size_t)BATCH * HEADS_KV * KV_LEN * HEAD_DIM * 2},
              {a->scratch.bwd_rows, (size_t)3 * BATCH * HEADS * Q_LEN * 4},
              {a->scratch.dq_acc, dq_bytes},
              {a->scratch.dk_acc, (size_t)BATCH * HEADS_KV * KV_LEN * HEAD_DIM * 4}};
  const char *next = p.args.workspace;
  for (size_t i = 0; i < sizeof part / sizeof *part; ++i) {
    assert_ptr_equal(part[i].ptr, next);
    next += (part[i].bytes + 255) / 256 * 256;
  }
  assert_null(a->scratch.dv_acc);
  problem_close(&p);
}

/* Semaphores for each warp's part of each q tile, and exact sums, are zeroed together with dq_acc, or
 * separately. A further kernel rounds the exact sums. */
static void backward_deterministic(void **state) {
  (void)state;
  for (int family = LUATTN_SM80; family <= LUATTN_SM90; ++family) {
    problem p;
    problem_open(&p, LUATTN_BACKWARD);
    p.info.family = (uint32_t)family;
    p.info.deterministic = 1;
    p.info.entry[5] = (manifest_entry){.name = "luattn_round", .role = LUATTN_ROLE_ROUND, .threads = 128, .tile_m = 24};
    p.info.num_entries = 6;
    launch(&p, NULL);
    const LuattnParams *a = &fake_get_event(8)->params;
    const size_t rows = family == LUATTN_SM90 ? 112 : 100, parts = family == LUATTN_SM90 ? 1 : 8;
    const size_t sizes[] = {BATCH * HEADS * rows * HEAD_DIM * 4,              /* dq_acc */
                            4 * (32 + (size_t)BATCH * HEADS * 2 * parts),     /* 100 rows are 2 tiles of 64 */
                            80 * HEADS, 80 * (size_t)5 * 16, 80 * (size_t)2}; /* slopes, table, scalars */
    const void *parts_at[] = {a->scratch.dq_acc, a->scratch.dq_order, a->inputs.input[0].exact,
                              a->inputs.input[3].exact, a->inputs.scalar_exact};
    size_t used = 0;
    for (size_t i = 0; i < 5; ++i) {
      assert_ptr_equal(parts_at[i], (const char *)a->scratch.dq_acc + used);
      used += (sizes[i] + 255) / 256 * 256;
    }
    /* Kernels of the sm90 family zero dq_acc and the semaphores. */
    const size_t prepared = family == LUATTN_SM90 ? sizes[0] + (sizes[1] + 255) / 256 * 256 : 0;
    assert_int_equal(sizes[0] % 256, 0);
    assert_fill(0, (const char *)a->scratch.dq_acc + prepared, used - prepared);
    assert_null(a->inputs.input[1].exact);
    assert_int_equal(a->inputs.input[0].count, HEADS);
    assert_int_equal(a->inputs.input[3].count, 5 * 16);
    assert_int_equal(a->inputs.num_scalars, 2);
    assert_launch(8, "luattn_round", 4, 5, 1, 128, 0); /* ceil(5 * 16 / 24); four inputs and the scalars */
    problem_close(&p);
  }
}

static void float64_doubles_the_sums(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.dtype = LUATTN_F64;
  p.info.family = LUATTN_SIMT;
  p.info.has_key_mod = 0;
  p.info.num_inputs = p.info.num_stats = 0;
  p.args.num_inputs = 0;
  tensor *all[] = {&p.q, &p.k, &p.v, &p.o, &p.dout, &p.dq, &p.dk, &p.dv, &p.lse, &p.dlse, &p.saved, &p.scalar_grads};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    const int64_t *n = all[i]->shape;
    tensor_set(&p, all[i], kDLFloat, 64, all[i]->t.ndim, n[0], n[1], n[2], n[3]);
  }
  luattn_kernel *kernel = load(&p);
  luattn_error err;
  size_t size = 0;
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &size, &err), LUATTN_OK);
  const size_t bwd_rows = (size_t)3 * BATCH * HEADS * Q_LEN * 8, dq = (size_t)BATCH * HEADS * Q_LEN * HEAD_DIM * 8;
  assert_int_equal(size, (bwd_rows + 255) / 256 * 256 + (dq + 255) / 256 * 256);
  if (luattn_launch(kernel, &p.args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(fake_get_event(0)->bytes, dq);
  assert_int_equal(fake_get_event(1)->bytes, 2 * 8);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

static void broadcasting(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  p.ids.shape[0] = 1;
  p.ids.t.byte_offset = 16;
  p.slopes.shape[0] = 1;
  p.slopes.strides[0] = 99;
  p.k.strides[1] = 0;
  launch(&p, NULL);
  assert_launch(0, "luattn_stats", 3, 1, 1, 64, 0);
  const LuattnParams *a = &fake_get_event(2)->params;
  assert_int_equal(a->inputs.input[0].stride[0], 0);
  assert_int_equal(a->inputs.input[0].size[0], 1);
  assert_int_equal(a->inputs.input[1].stride[0], 0);
  assert_ptr_equal(a->inputs.input[1].data, (char *)p.ids.t.data + 16);
  assert_int_equal(a->tensors.src_k.head, 0);
  problem_close(&p);
}

/* Without keys every row is empty. Both passes still run: forward writes O = 0, lse = -inf, backward
 * dq = 0. */
static void empty_problems(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  problem_resize(&p, BATCH, Q_LEN, 0);
  p.k.t.data = p.v.t.data = p.ids.t.data = NULL;
  launch(&p, NULL);
  assert_int_equal(fake_num_events(), 2); /* no luattn_stats, because the input is empty */
  assert_launch(0, "luattn_mod", 25, HEADS, 3 * BATCH, 128, 0);
  assert_launch(1, "luattn_fwd", 2, HEADS, BATCH, 256, 100000);
  const LuattnParams *a = &fake_get_event(1)->params;
  assert_int_equal(a->shape.kv_len, 0);
  assert_non_null(a->inputs.input[1].data); /* a row may gather from an input without elements */
  assert_int_equal(a->inputs.input[1].stride[0] | a->inputs.input[1].stride[1], 0);
  problem_resize(&p, BATCH, 0, KV_LEN);
  launch(&p, NULL);
  for (size_t i = 0; i < fake_num_events(); ++i) assert_string_not_equal(fake_get_event(i)->name, "luattn_fwd");
  problem_resize(&p, 0, Q_LEN, KV_LEN);
  launch(&p, NULL);
  assert_int_equal(fake_num_events(), 0);
  problem_close(&p);

  problem_open(&p, LUATTN_BACKWARD);
  problem_resize(&p, BATCH, Q_LEN, 0);
  launch(&p, NULL);
  assert_int_equal(fake_num_events(), 6);
  assert_launch(3, "luattn_mod", 25, HEADS, 3 * BATCH, 128, 0);
  assert_launch(4, "luattn_prepare", 4, HEADS, BATCH, 128, 0);
  assert_launch(5, "luattn_finish", 13, HEADS, 3 * BATCH, 128, 0);
  problem_resize(&p, BATCH, 0, KV_LEN); /* dk and dv must still become zero */
  launch(&p, NULL);
  assert_int_equal(fake_num_events(), 6);
  assert_fill(0, p.slopes_grad.t.data, HEADS * 4);
  assert_launch(4, "luattn_dkdv", 3, HEADS_KV, BATCH, 256, 200000);
  problem_close(&p);
}

static void no_workspace_needed(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  p.info.has_key_mod = 0;
  p.info.num_stats = 0;
  p.info.entry[0] = p.info.entry[2];
  p.info.num_entries = 1;
  p.args.workspace = NULL;
  p.args.workspace_size = 0;
  luattn_kernel *kernel = load(&p);
  luattn_error err;
  size_t size = 1;
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &size, &err), LUATTN_OK);
  assert_int_equal(size, 0);
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_OK);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

static void workspace_cannot_wrap(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.max_len = INT32_MAX;
  p.info.num_inputs = p.info.num_stats = 0;
  p.args.num_inputs = 0;
  tensor *with_q[] = {&p.q}, *with_k[] = {&p.k, &p.v};
  with_q[0]->shape[0] = LUATTN_MAX_BATCH / 3, with_q[0]->shape[2] = INT32_MAX;
  with_q[0]->shape[1] = LUATTN_MAX_HEADS;
  for (int i = 0; i < 2; ++i) {
    with_k[i]->shape[0] = LUATTN_MAX_BATCH / 3, with_k[i]->shape[2] = INT32_MAX;
    with_k[i]->shape[1] = LUATTN_MAX_HEADS;
  }
  luattn_kernel *kernel = load(&p);
  luattn_error err;
  size_t size = 0;
  assert_int_equal(luattn_workspace_size(kernel, &p.args, &size, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "than a machine can address"));
  for (int i = 0; i < 2; ++i) with_k[i]->strides[0] = with_k[i]->strides[1] = 0;
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

static void driver_failures(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  luattn_kernel *kernel = load(&p);
  const struct {
    const char *call;
    int nth;
    size_t events;
    const char *message;
  } bad[] = {
      {"cuCtxPushCurrent_v2", 1, 0, "cuCtxPushCurrent: CUDA_ERROR_INVALID_VALUE (1)"},
      {"cuMemsetD32Async", 1, 0, "cuMemsetD32Async: CUDA_ERROR_INVALID_VALUE (1): zeroing dq_acc (409600 bytes"},
      {"cuMemsetD32Async", 2, 1, "zeroing slopes (32 bytes"},
      {"cuMemsetD32Async", 3, 2, "zeroing scalar_grads (8 bytes"},
      {"cuLaunchKernelEx", 4, 6,
       "cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE (1): luattn_dkdv of 'demo', grid 3 x 2 x 2, 256 "
       "threads, 200000 bytes of shared memory"},
  };
  int other;
  fake_push_context(&other);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    luattn_error err;
    fake_reset();
    fake_fail(bad[i].call, bad[i].nth, 1);
    assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_CUDA);
    if (strstr(err.message, bad[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, bad[i].message);
    assert_int_equal(fake_num_events(), bad[i].events);
    assert_ptr_equal(fake_current_context(), &other);
  }
  assert_ptr_equal(fake_pop_context(), &other);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

enum { THREADS = 8, ROUNDS = 500 };

typedef struct worker {
  const luattn_kernel *kernel;
  luattn_args args;
  int failed;
} worker;

static void *work(void *arg) {
  worker *w = arg;
  for (int i = 0; i < ROUNDS; ++i) {
    luattn_error err;
    size_t size;
    w->args.scale = 1 + i % 7;
    if (luattn_workspace_size(w->kernel, &w->args, &size, &err) != LUATTN_OK) ++w->failed;
    if (luattn_launch(w->kernel, &w->args, w, &err) != LUATTN_OK) ++w->failed;
    if (fake_current_context() != NULL) ++w->failed;
  }
  return NULL;
}

static void many_threads(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  luattn_kernel *kernel = load(&p);
  worker workers[THREADS];
  pthread_t thread[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    workers[i] = (worker){.kernel = kernel, .args = p.args};
    assert_int_equal(pthread_create(&thread[i], NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i) {
    pthread_join(thread[i], NULL);
    assert_int_equal(workers[i].failed, 0);
  }
  assert_int_equal(fake_num_events(), THREADS * ROUNDS * 3);
  /* The three kernels of a launch have the same parameters, regardless of other threads' launches. */
  for (size_t i = 0; i < 200; ++i) {
    const LuattnParams *a = &fake_get_event(i)->params;
    assert_int_equal(a->shape.q_len, Q_LEN);
    assert_in_range((int)a->scale, 1, 7);
  }
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

/* A libcuda before CUDA 11.8 lacks cuLaunchKernelEx. */
static void without_launch_ex(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  luattn_kernel *kernel = load(&p);
  luattn_error err;
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_OK);
  fake_event before = *fake_get_event(2), after;
  assert_string_equal(before.name, "luattn_fwd");
  fake_reset();
  cu_result (*const launch_ex)(const cu_launch *, cu_function, void **, void **) = driver->launch_ex;
  driver->launch_ex = NULL;
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_OK);
  after = *fake_get_event(2);
  assert_memory_equal(&before, &after, offsetof(fake_event, maps)); /* this family has no descriptors */
  assert_ptr_equal(before.stream, after.stream);
  fake_fail("cuLaunchKernel", 1, 1);
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_CUDA);
  assert_non_null(strstr(err.message, "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1): luattn_stats"));
  driver->launch_ex = launch_ex;
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

/* Measures the CPU time of a launch with all checks, without the driver's part. The limit is loose, because
 * machines may be busy. */
static void host_time(void **state) {
  (void)state;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  luattn_kernel *kernel = load(&p);
  enum { COUNT = 20000 };
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (int i = 0; i < COUNT; ++i) assert_int_equal(luattn_launch(kernel, &p.args, NULL, NULL), LUATTN_OK);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    const double us = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
    if (us / COUNT < best) best = us / COUNT;
  }
  print_message("host time of a launch (3 kernels, 4 inputs): %.3f us\n", best);
  assert_true(best < 20);
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(forward),
      cmocka_unit_test(number_input),
      cmocka_unit_test(forward_workspace),
      cmocka_unit_test(size_query_needs_shapes_alone),
      cmocka_unit_test(backward),
      cmocka_unit_test(backward_deterministic),
      cmocka_unit_test(float64_doubles_the_sums),
      cmocka_unit_test(broadcasting),
      cmocka_unit_test(empty_problems),
      cmocka_unit_test(no_workspace_needed),
      cmocka_unit_test(workspace_cannot_wrap),
      cmocka_unit_test(driver_failures),
      cmocka_unit_test(without_launch_ex),
      cmocka_unit_test(many_threads),
      cmocka_unit_test(host_time),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
