/* launch_pairs_test.c: gradients of inputs to which each score adds one element (common/call/pairs.h): which
 * elements get one term, which gradients need no exact sums, and what the driver receives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/call/pairs.h"
#include "tests/runtime/launches.h"
#include "tests/support/fake_cuda.h"

enum { B = LUATTN_INDEX_B, H = LUATTN_INDEX_H, Q = LUATTN_INDEX_Q, KV = LUATTN_INDEX_KV };

/* Inputs need no exact sums if at most two scores add to an element and no index is clamped. Also tests which
 * have a single addition per element. */
static void sums_in_any_order(void **state) {
  (void)state;
  const struct {
    uint32_t num_axes, index[4];
    double axis[4], batch, heads;
    bool holds, alone;
  } cases[] = {
      {3, {H, Q, KV}, {8, 100, 200}, 1, 8, true, true},
      {3, {H, Q, KV}, {8, 100, 200}, 2, 8, true, false},
      {3, {H, Q, KV}, {8, 100, 200}, 3, 8, false, false},
      {4, {B, H, Q, KV}, {3, 8, 100, 200}, 3, 8, true, true},
      {4, {B, H, Q, KV}, {1, 8, 100, 200}, 3, 8, false, false}, /* shared by all batch entries */
      {2, {Q, KV}, {100, 200}, 1, 1, true, true},
      {2, {Q, KV}, {100, 200}, 1, 2, true, false},
      {2, {Q, KV}, {100, 200}, 2, 2, false, false},
      {2, {H, KV}, {8, 200}, 1, 8, false, false},
      {3, {H, Q, KV}, {8, 99, 200}, 1, 8, false, false},
      {3, {H, Q, KV}, {8, 100, 199}, 1, 8, false, false},
      {3, {H, Q, KV}, {7, 100, 200}, 1, 8, false, false},
      {3, {H, Q, KV}, {9, 101, 201}, 1, 8, true, true},
      {4, {Q, LUATTN_INDEX_OTHER, KV, H}, {100, 3, 200, 8}, 1, 8, true, true},
      {0, {0}, {0}, 1, 1, false, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    luattn_input_info in = {.num_axes = cases[i].num_axes, .grad = 1};
    pairs_sizes s = {
        .batch = cases[i].batch, .heads = cases[i].heads, .heads_kv = cases[i].heads, .q_len = 100, .kv_len = 200};
    for (uint32_t a = 0; a < in.num_axes; ++a) in.pairs |= cases[i].index[a] << 4 * a;
    memcpy(s.axis, cases[i].axis, sizeof s.axis);
    if (pairs_in_any_order(&in, &s) != cases[i].holds) fail_msg("case %zu", i);
    if (pairs_alone(&in, &s) != cases[i].alone) fail_msg("case %zu: alone", i);
  }
}

/* Gradients without exact sums take no workspace. */
static void backward_deterministic_in_any_order(void **state) {
  (void)state;
  for (int q_len = 5; q_len <= 6; ++q_len) { /* the table has as many heads, x 5 x 16 */
    problem p;
    problem_open(&p, LUATTN_BACKWARD);
    p.info.deterministic = 1;
    p.info.family = LUATTN_SM80;
    p.info.input[3].pairs = H | Q << 4 | KV << 8;
    p.info.input[3].num_axes = 3;
    p.info.input[3].axis[0] = p.info.input[3].axis[1] = p.info.input[3].axis[2] = LUATTN_AXIS_FREE;
    p.info.entry[5] = (manifest_entry){.name = "luattn_round", .role = LUATTN_ROLE_ROUND, .threads = 128, .tile_m = 24};
    p.info.num_entries = 6;
    problem_resize(&p, BATCH, q_len, 16);
    tensor_set(&p, &p.table, kDLFloat, 16, 3, HEADS, 5, 16, 1);
    launch(&p, NULL);
    const LuattnParams *params = &fake_get_event(8)->params;
    assert_non_null(params->inputs.input[0].exact);
    if (q_len == 5)
      assert_null(params->inputs.input[3].exact);
    else
      assert_non_null(params->inputs.input[3].exact);
    problem_close(&p);
  }
}

/* If at most one score adds to each element of a gradient, the kernel may store it: a parameter of the launch
 * says so. */
static void backward_alone(void **state) {
  (void)state;
  for (int batch = 1; batch <= 2; ++batch)
    for (int q_len = 5; q_len <= 6; ++q_len) {
      problem p;
      problem_open(&p, LUATTN_BACKWARD);
      p.info.input[3].pairs = H | Q << 4 | KV << 8;
      p.info.input[3].num_axes = 3;
      p.info.input[3].axis[0] = p.info.input[3].axis[1] = p.info.input[3].axis[2] = LUATTN_AXIS_FREE;
      problem_resize(&p, batch, q_len, 16);
      tensor_set(&p, &p.table, kDLFloat, 16, 3, HEADS, 5, 16, 1);
      launch(&p, NULL);
      assert_int_equal(fake_get_event(3)->params.inputs.alone, batch == 1 && q_len == 5 ? 1 << 3 : 0);
      problem_close(&p);
    }
}

/* Otherwise blocks of the sm90 family keep a fixed order, if all terms of an element come from one kv head,
 * blocks do not share kv tiles, and the blocks are enough. */
static void backward_deterministic_batches_in_turn(void **state) {
  (void)state;
  const struct {
    uint32_t pairs, family;
    int kv_len, splits;
    bool in_turn;
  } cases[] = {
      {H | Q << 4 | KV << 8, LUATTN_SM90, 1000, 0, true},
      {H | Q << 4 | KV << 8, LUATTN_SM90, 1000, 2, false},
      {H | Q << 4 | KV << 8, LUATTN_SM90, 384, 0,
       false}, /* 8 kv tiles of 2 kv heads are too few for 132 multiprocessors */
      {H | Q << 4 | KV << 8, LUATTN_SM80, 1000, 0, false},
      {LUATTN_INDEX_OTHER | Q << 4 | KV << 8, LUATTN_SM90, 1000, 0, false},
      {0, LUATTN_SM90, 1000, 0, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    problem p;
    problem_open(&p, LUATTN_BACKWARD);
    p.info.deterministic = 1;
    p.info.family = cases[i].family;
    p.info.can_split = cases[i].family == LUATTN_SM90;
    p.info.input[3].pairs = cases[i].pairs;
    p.info.input[3].num_axes = 3;
    p.info.input[3].axis[0] = p.info.input[3].axis[1] = p.info.input[3].axis[2] = LUATTN_AXIS_FREE;
    p.info.entry[5] = (manifest_entry){.name = "luattn_round", .role = LUATTN_ROLE_ROUND, .threads = 128, .tile_m = 24};
    p.info.num_entries = 6;
    p.args.num_splits = cases[i].splits;
    problem_resize(&p, 3, 40, cases[i].kv_len);
    tensor_set(&p, &p.table, kDLFloat, 16, 3, HEADS, 40, cases[i].kv_len, 1);
    launch(&p, NULL);
    const LuattnParams *params = &fake_get_event(8)->params;
    assert_non_null(params->inputs.input[0].exact);
    if (params->schedule.batches_in_turn != cases[i].in_turn ||
        (params->inputs.input[3].exact == NULL) != cases[i].in_turn)
      fail_msg("case %zu: %d, %d splits", i, params->schedule.batches_in_turn, params->schedule.num_splits);
    problem_close(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_in_any_order),
      cmocka_unit_test(backward_alone),
      cmocka_unit_test(backward_deterministic_in_any_order),
      cmocka_unit_test(backward_deterministic_batches_in_turn),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
