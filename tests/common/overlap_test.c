/* overlap_test.c: compares common/call/overlap.c on small tensors with the bytes that the tensors touch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/call/overlap.h"

enum { BYTES = 6144, ROUNDS = 100000 };

static unsigned char memory[BYTES];

typedef struct layout {
  DLTensor t;
  int64_t shape[4], strides[4];
} layout;

static int below(int n) { return rand() % n; }

/* Draws a random tensor that starts in the middle of `memory`, so that negative strides stay inside. Some
 * tensors are dense, with axes in any order; others have arbitrary strides. */
static void draw(layout *l) {
  const int bits[] = {8, 16, 32, 64};
  const bool dense = below(2) == 0;
  l->t = (DLTensor){.ndim = below(5), .dtype = {kDLFloat, (uint8_t)bits[below(4)], 1}};
  int order[4] = {0, 1, 2, 3};
  for (int i = l->t.ndim - 1; i > 0; --i) {
    const int j = below(i + 1), swapped = order[i];
    order[i] = order[j], order[j] = swapped;
  }
  int64_t stride = 1;
  for (int i = 0; i < l->t.ndim; ++i) {
    const int a = order[i];
    l->shape[a] = 1 + below(4);
    l->strides[a] = dense ? stride : below(20) - 4;
    stride *= l->shape[a];
  }
  if (l->t.ndim > 0 && below(50) == 0) l->shape[below(l->t.ndim)] = 0;
  l->t.data = memory + BYTES / 2;
  l->t.byte_offset = (uint64_t)below(16) * 8;
  l->t.shape = l->shape;
  l->t.strides = l->strides;
}

/* Counts how often the tensor touches each byte. */
static void touch(const layout *l, unsigned char count[BYTES]) {
  int elements = 1;
  for (int i = 0; i < l->t.ndim; ++i) elements *= (int)l->shape[i];
  for (int e = 0; e < elements; ++e) {
    int64_t at = 0;
    for (int i = l->t.ndim - 1, rest = e; i >= 0; rest /= (int)l->shape[i--]) at += rest % l->shape[i] * l->strides[i];
    const unsigned size = l->t.dtype.bits / 8u;
    for (unsigned b = 0; b < size; ++b) ++count[BYTES / 2 + (int64_t)l->t.byte_offset + at * (int64_t)size + b];
  }
}

/* A tensor that is reported as nesting touches no byte twice. Every dense tensor nests. */
static void nesting(void **state) {
  (void)state;
  int nested = 0, shared = 0;
  for (int round = 0; round < ROUNDS; ++round) {
    layout l;
    unsigned char count[BYTES] = {0};
    draw(&l);
    touch(&l, count);
    bool shares = false;
    for (int i = 0; i < BYTES; ++i) shares |= count[i] > 1;
    const bool nests = overlap_nests(&l.t);
    if (nests && shares) fail_msg("round %d: elements share memory", round);
    nested += nests, shared += shares;
  }
  assert_in_range(nested, ROUNDS / 4, ROUNDS);
  assert_in_range(shared, ROUNDS / 10, ROUNDS);
}

/* Two tensors are reported to overlap if they do, whatever their strides are. */
static void meeting(void **state) {
  (void)state;
  int found = 0;
  for (int round = 0; round < ROUNDS; ++round) {
    layout q, o;
    unsigned char of_q[BYTES] = {0}, of_o[BYTES] = {0};
    draw(&q), draw(&o);
    touch(&q, of_q), touch(&o, of_o);
    int last = 0, first_o = BYTES;
    bool meet = false;
    for (int i = 0; i < BYTES; ++i) {
      meet |= of_q[i] > 0 && of_o[i] > 0;
      if (of_q[i] > 0) last = i;
      if (of_o[i] > 0 && first_o == BYTES) first_o = i;
    }
    luattn_args args = {.struct_size = sizeof args, .q = &q.t, .o = &o.t};
    overlap_pair pair;
    const bool says = overlap_find(&args, true, &pair);
    if (says && !meet) fail_msg("round %d: they do not meet", round);
    if (meet && !says) fail_msg("round %d: they meet", round);
    if (says) {
      assert_string_equal(pair.output, "o");
      assert_string_equal(pair.other, "q");
      assert_int_equal(pair.low[0], (uintptr_t)memory + (uintptr_t)first_o);
      assert_int_equal(pair.high[1], (uintptr_t)memory + (uintptr_t)last + 1);
    }
    assert_false(overlap_find(&args, false, &pair)); /* backward writes neither of the two */
    found += says;
  }
  assert_in_range(found, ROUNDS / 10, ROUNDS);
}

/* Tensors that a pass does not use may hold anything. */
static void unused(void **state) {
  (void)state;
  layout a;
  overlap_pair pair;
  do draw(&a);
  while (a.t.ndim == 0);
  for (int i = 0; i < a.t.ndim; ++i) a.shape[i] = 2;
  luattn_args args = {.struct_size = sizeof args, .q = &a.t, .dq = &a.t};
  assert_false(overlap_find(&args, true, &pair));
  assert_true(overlap_find(&args, false, &pair));
  DLTensor odd = a.t;
  args.dq = &odd;
  odd.data = NULL;
  assert_false(overlap_find(&args, false, &pair));
  odd = a.t, odd.ndim = OVERLAP_MOST_AXES + 1;
  assert_false(overlap_find(&args, false, &pair));
  odd = a.t, odd.shape = NULL;
  assert_false(overlap_find(&args, false, &pair));
}

int main(void) {
  srand(1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(nesting), cmocka_unit_test(meeting), cmocka_unit_test(unused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
