/* tma_descriptors_test.c: tests the descriptor cache with many threads, and with more tensors than the cache
 * holds. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/launch/tma_descriptors.h"
#include "tests/support/fake_cuda.h"

enum { THREADS = 4, ROUNDS = 20000, DIM = 64, TILE_N = 128, FITTING = 54, TOO_MANY = 2000 };

static luattn_driver *driver;
static cu_context context;
static const image_manifest info = {
    .spec_name = "demo",
    .family = LUATTN_SM90,
    .dtype = LUATTN_F16,
    .head_dim = DIM,
    .head_dim_v = DIM,
    .num_entries = 1,
    .entry = {{.role = LUATTN_ROLE_FORWARD, .tile_m = 128, .tile_n = TILE_N}},
};

/* Returns problem `i`. All problems differ, including in fields that share a word of the key. */
static LuattnParams problem_number(int i) {
  LuattnParams p = {.shape.batch = 2 + i % 3,
                    .shape.heads = 4,
                    .shape.heads_kv = 2,
                    .shape.group = 2,
                    .shape.q_len = 100 + i % 7,
                    .shape.kv_len = 200 + i};
  LuattnTensor *const tensor[] = {&p.tensors.q, &p.tensors.k, &p.tensors.v, &p.tensors.o};
  for (int t = 0; t < 4; ++t) {
    tensor[t]->data = (void *)(uintptr_t)(0x10000 + 16 * (4 * i + t));
    tensor[t]->seq = DIM + 8 * (i % 5);
    tensor[t]->head = tensor[t]->seq * 1024;
    tensor[t]->batch = tensor[t]->head * 8;
  }
  return p;
}

static int is_map_of(const LuattnTensorMap *map, const LuattnTensor *t, int batch, int heads, int len, unsigned rows) {
  fake_map m;
  memcpy(&m, map->bytes, sizeof m);
  return m.data == t->data && m.type == 6 && m.box[1] == rows && m.size[0] == DIM && m.size[1] == (unsigned)len &&
         m.size[2] == (unsigned)heads && m.size[3] == (unsigned)batch &&
         m.stride[0] == 2 * (unsigned long long)t->seq && m.stride[1] == 2 * (unsigned long long)t->head &&
         m.stride[2] == 2 * (unsigned long long)t->batch;
}

static int maps_are_right(descriptor_cache *memory, const LuattnParams *p) {
  const args_call c = {.info = &info};
  LuattnTensorMaps maps;
  LuattnCallParams all = {.dense = *p};
  return descriptors_fill(driver, memory, &c, &all, NULL, &maps) == LUATTN_OK &&
         is_map_of(&maps.q, &p->tensors.q, p->shape.batch, p->shape.heads, p->shape.q_len, 64) &&
         is_map_of(&maps.k, &p->tensors.k, p->shape.batch, p->shape.heads_kv, p->shape.kv_len, TILE_N) &&
         is_map_of(&maps.v, &p->tensors.v, p->shape.batch, p->shape.heads_kv, p->shape.kv_len, TILE_N) &&
         is_map_of(&maps.o, &p->tensors.o, p->shape.batch, p->shape.heads, p->shape.q_len, 16);
}

static int is_right(descriptor_cache *memory, int number) {
  const LuattnParams p = problem_number(number);
  return maps_are_right(memory, &p);
}

typedef struct worker {
  descriptor_cache *memory;
  unsigned seed;
  int problems, wrong;
} worker;

static void *work(void *arg) {
  worker *w = arg;
  unsigned x = w->seed;
  fake_push_context(context);
  for (int i = 0; i < ROUNDS; ++i) {
    x = x * 1664525u + 1013904223u;
    w->wrong += !is_right(w->memory, (int)(x >> 8) % w->problems);
  }
  (void)fake_pop_context();
  return NULL;
}

static void run(descriptor_cache *memory, int problems) {
  worker workers[THREADS];
  pthread_t thread[THREADS];
  fake_reset();
  for (int i = 0; i < THREADS; ++i) {
    workers[i] = (worker){memory, (unsigned)i + 1, problems, 0};
    assert_int_equal(pthread_create(&thread[i], NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i) {
    pthread_join(thread[i], NULL);
    assert_int_equal(workers[i].wrong, 0);
  }
}

static void many_threads(void **state) {
  (void)state;
  descriptor_cache *memory = calloc(1, sizeof *memory);
  assert_non_null(memory);
  run(memory, TOO_MANY);
  assert_in_range(fake_num_descriptors(), TOO_MANY, 4 * THREADS * ROUNDS); /* k and v share a descriptor */
  run(memory, FITTING);
  const size_t first = fake_num_descriptors();
  run(memory, FITTING); /* a set of tensors that fits stays cached */
  assert_true(first < 3 * THREADS * ROUNDS / 100);
  assert_true(fake_num_descriptors() < 3 * THREADS * ROUNDS / 100);
  free(memory);
}

/* Any change of a tensor encodes another descriptor, except a change of address. */
static void every_field_counts(void **state) {
  (void)state;
  descriptor_cache *memory = calloc(1, sizeof *memory);
  assert_non_null(memory);
  fake_push_context(context);
  const LuattnParams first = problem_number(0);
  assert_true(maps_are_right(memory, &first));
  for (int field = 0; field < 8; ++field) {
    LuattnParams p = first;
    if (field == 0) p.tensors.q.data = (char *)p.tensors.q.data + 16;
    if (field == 1) p.tensors.q.seq += 8;
    if (field == 2) p.tensors.q.head += 8;
    if (field == 3) p.tensors.q.batch += 8;
    if (field == 4) p.shape.q_len += 1;
    if (field == 5) p.shape.heads += 2;
    if (field == 6) p.shape.batch += 1;
    if (field == 7) p.tensors.k.data = p.tensors.v.data;
    fake_reset();
    for (int repeat = 0; repeat < 2; ++repeat) assert_true(maps_are_right(memory, &p));
    const int made[] = {0, 1, 1, 1, 2, 2, 3, 0}; /* k and v share one */
    assert_int_equal(fake_num_descriptors(), made[field]);
  }
  LuattnParams p = first; /* k equals q except for the rows of its boxes */
  p.tensors.k = p.tensors.v = p.tensors.q;
  p.shape.heads_kv = p.shape.heads;
  p.shape.kv_len = p.shape.q_len;
  fake_reset();
  assert_true(maps_are_right(memory, &p));
  assert_int_equal(fake_num_descriptors(), 1);
  (void)fake_pop_context();
  free(memory);
}

/* Tensors alternate, like those of a network's layers. */
static void in_turn(void **state) {
  (void)state;
  descriptor_cache *memory = calloc(1, sizeof *memory);
  assert_non_null(memory);
  fake_push_context(context);
  for (int round = 0; round < 8; ++round) {
    fake_reset();
    for (int i = 0; i < FITTING; ++i) assert_true(is_right(memory, i));
    if (round == 0) assert_int_equal(fake_num_descriptors(), 3 * FITTING);
  }
  assert_int_equal(fake_num_descriptors(), 0);
  (void)fake_pop_context();
  free(memory);
}

static int open_all(void **state) {
  (void)state;
  if (luattn_driver_open(&driver, NULL) != LUATTN_OK) return -1;
  return driver_context(driver, 0, &context, NULL) == LUATTN_OK ? 0 : -1;
}

static int close_all(void **state) {
  (void)state;
  luattn_driver_close(driver);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(many_threads), cmocka_unit_test(every_field_counts),
                                     cmocka_unit_test(in_turn)};
  return cmocka_run_group_tests(tests, open_all, close_all);
}
