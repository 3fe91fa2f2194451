/* packed_maps_test.c: TMA descriptors of the tensors of packed sequences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/call/limits.h"
#include "runtime/launch/tma_descriptors.h"
#include "tests/runtime/packed_problem.h"
#include "tests/support/fake_cuda.h"

static fake_map map_of(const LuattnTensorMap *map) {
  fake_map m;
  memcpy(&m, map->bytes, sizeof m);
  return m;
}

static LuattnTensorMaps maps_of(packed_problem *c) {
  luattn_error err;
  const args_call call = {.info = &c->p.info, .args = &c->p.args, .multiprocessors = 132, .err = &err};
  LuattnCallParams all = packed_filled(c);
  static descriptor_cache memory;
  memset(&memory, 0, sizeof memory);
  LuattnTensorMaps maps;
  cu_context context;
  assert_int_equal(driver_context(driver, 0, &context, NULL), LUATTN_OK);
  fake_push_context(context);
  const luattn_status status = descriptors_fill(driver, &memory, &call, &all, NULL, &maps);
  (void)fake_pop_context();
  if (status != LUATTN_OK) fail_msg("%s", err.message);
  return maps;
}

/* The location of a box that begins at `position` of a sequence of `len` rows from row `first` on, by the
 * coordinates of PackedSequence (work/sequence.cuh). Addresses wrap around. */
static const char *box_at(const fake_map *m, int head, int first, int len, int position) {
  const unsigned long long wrap = 1ull << LUATTN_WRAP_LOG2, row = wrap - (unsigned)len + (unsigned)position,
                           end = (unsigned)(first + len);
  assert_true(row < m->size[1] && end < m->size[3] && wrap < m->size[4]);
  return (const char *)((uintptr_t)m->data + row * m->stride[0] + (unsigned)head * m->stride[1] + end * m->stride[2] +
                        wrap * m->stride[3]);
}

/* Every row of every sequence is where it should be, and the descriptor ends after the last of them. */
static void check_map(const fake_map *m, const tensor *t, int dim, int heads) {
  const int total = (int)t->shape[0];
  assert_int_equal(m->rank, 5);
  assert_int_equal(m->size[0], dim);
  assert_int_equal(m->size[2], heads);
  assert_int_equal(m->size[3], total + 1);
  assert_ptr_equal(m->data, t->t.data); /* not before the tensor: TMA would fault where nothing is mapped */
  for (int first = 0; first <= total; ++first)
    for (int len = 0; first + len <= total; ++len) {
      assert_int_equal((1ull << LUATTN_WRAP_LOG2) - (unsigned)len + (unsigned)len,
                       m->size[1]); /* the next box begins past the end */
      for (int position = 0; position < len; ++position) {
        const int head = (first + len) % heads;
        assert_ptr_equal(box_at(m, head, first, len, position),
                         (char *)t->t.data + 2 * ((first + position) * t->strides[0] + head * t->strides[1]));
      }
    }
}

static void descriptors(void **state) {
  (void)state;
  static const struct {
    int total_q, total_k, longest_q, longest_k;
  } shapes[] = {{37, 41, 20, 41}, {5, 9, 1, 2}, {1, 1, 1, 1}, {3, 1, 3, 9}, {2, 2, 1 << 20, 2}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
    for (int wide = 0; wide < 2; ++wide) {
      packed_problem c;
      packed_open(&c, LUATTN_SM90);
      packed_resize(&c, 1, shapes[i].total_q, shapes[i].total_k);
      c.batch.max_seqlen_q = shapes[i].longest_q;
      c.batch.max_seqlen_k = shapes[i].longest_k;
      tensor *const all[] = {&c.p.q, &c.p.k, &c.p.v, &c.p.o};
      if (wide)
        for (int t = 0; t < 4; ++t) all[t]->strides[0] = (HEADS + 2 * HEADS_KV) * HEAD_DIM;
      const LuattnTensorMaps maps = maps_of(&c);
      const LuattnTensorMap *const map[] = {&maps.q, &maps.k, &maps.v, &maps.o};
      for (int t = 0; t < 4; ++t) {
        const fake_map m = map_of(map[t]);
        check_map(&m, all[t], t < 2 ? HEAD_DIM : HEAD_DIM_V, t == 0 || t == 3 ? HEADS : HEADS_KV);
      }
      problem_close(&c.p);
    }
}

/* Tensors without rows get no descriptors. */
static void descriptors_of_nothing(void **state) {
  (void)state;
  static const LuattnTensorMap none;
  packed_problem c;
  packed_open(&c, LUATTN_SM90);
  packed_resize(&c, 3, 8, 0);
  c.batch.max_seqlen_q = 4;
  c.batch.max_seqlen_k = 4;
  const LuattnTensorMaps maps = maps_of(&c);
  assert_int_equal(map_of(&maps.q).size[3], 9);
  assert_memory_equal(&maps.k, &none, sizeof none);
  assert_memory_equal(&maps.v, &none, sizeof none);
  problem_close(&c.p);
}

BEND(k_backwards, (c->p.k.strides[0] = -HEADS_KV * HEAD_DIM, c->p.k.t.byte_offset = 2 * TOTAL_K * HEADS_KV * HEAD_DIM))
BEND(k_far_rows, c->p.k.strides[0] = (INT64_C(1) << 33) + 8)

static void descriptors_that_cannot_be(void **state) {
  (void)state;
  static const bad_case bad[] = {
      {k_backwards, "k: strides -128, 64 (position, head) in elements are not what TMA can take"},
      {k_far_rows,
       "k: strides 8589934600, 64 (position, head) in elements are not what TMA can take (0 to 2^33 and 2^39"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    packed_problem c;
    luattn_error err;
    packed_open(&c, LUATTN_SM90);
    bad[i].bend(&c);
    assert_int_equal(launch_packed(&c, &err), LUATTN_INVALID);
    if (strstr(err.message, bad[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, bad[i].message);
    c.p.info.family = LUATTN_SM80;
    if (launch_packed(&c, &err) != LUATTN_OK) fail_msg("%s", err.message);
    problem_close(&c.p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(descriptors),
      cmocka_unit_test(descriptors_of_nothing),
      cmocka_unit_test(descriptors_that_cannot_be),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
