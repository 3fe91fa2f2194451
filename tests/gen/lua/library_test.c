/* library_test.c: compares every entry of the standard library with the oracle, and with its formula if that
 * is short. */
#include "traced.h"

#include <stdio.h>
#include <string.h>

static void test_against_oracle(void **state) {
  (void)state;
  static const char *const fields[] = {
      "online_func = online_softmax",
      "online_func = softmax_one",
      "online_func = attention_sink(0.5)",
      "inputs = { sinks = { axes = {'h'} } }, online_func = attention_sink('sinks')",
      "inputs = { sinks = { axes = {'b', 'h'} } }, online_func = attention_sink('sinks')",
      "scalars = { sink = 1.0 }, online_func = attention_sink('sink')",
      "online_func = attention_sink(function(b, h) return h * 0.1 end)",
      "online_func = online_retention",
      "online_func = online_retention_detached",
      "online_func = sigmoid_attention",
      "online_func = relu_attention",
      "online_func = square_relu",
      "online_func = identity",
      "block_mask = causal()",
      "block_mask = causal_bottom_right()",
      "block_mask = sliding_window(8, 0)",
      "block_mask = sliding_window(8, -1)",
      "block_mask = sliding_window(nil, 3)",
      "scalars = { w = 5 }, block_mask = sliding_window('w', 'w')",
      "block_mask = sliding_window_bottom_right(8, 2)",
      "block_mask = prefix_lm(5)",
      "inputs = { n = { axes = {'b'}, dtype = 'i32' } }, block_mask = prefix_lm(function(b, h) return n[b] "
      "end)",
      "scalars = { n = 7 }, block_mask = prefix_lm('n')",
      "inputs = { doc = { axes = {'tokens'}, dtype = 'i32' } }, block_mask = document('doc')",
      "inputs = { d = { axes = {'b', 'q'}, dtype = 'i32' }, e = { axes = {'b', 'kv'}, dtype = 'i32' } }, "
      "block_mask = mask_and(causal(), document('d', 'e'))",
      "block_mask = dilated_window(12, 3)",
      "block_mask = global_sliding(6, 4)",
      "inputs = { is_global = { axes = {'tokens'}, dtype = 'bool' } }, block_mask = global_sliding(6, "
      "'is_global')",
      "block_mask = block_diffusion(4)",
      "block_mask = block_diffusion(4, 100000)",
      "block_mask = neighborhood { kernel = {7} }",
      "block_mask = neighborhood { kernel = {4}, stride = {3}, dilation = {2}, causal = {true} }",
      "block_mask = neighborhood { size = {128, 128}, kernel = {3, 4}, stride = {2, 1}, dilation = {1, 3} }",
      "block_mask = neighborhood { size = {32, 32, 32}, kernel = {2, 3, 4}, causal = {true, false, false} }",
      "score_mod = alibi()",
      "inputs = { slopes = { axes = {'h'} } }, score_mod = alibi('slopes')",
      "score_mod = softcap(30)",
      "scalars = { cap = 20 }, score_mod = softcap('cap')",
      "inputs = { bias = { axes = {'h', 65} } }, score_mod = relative_position('bias', 32)",
      "score_mod = chain(softcap(5), alibi(), function(s, b, h, q_idx, kv_idx) return s * 2 end)",
      "block_mask = mask_or(mask_and(causal(), sliding_window(4, 4)), mask_not(prefix_lm(9)))",
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    char source[512];
    const int n = snprintf(source, sizeof source, "return attention { %s }", fields[i]);
    compare_with_oracle(fields[i], source, (size_t)n, 16);
  }
}

/* Computes NATTEN's windows by brute force, to check the closed form on small grids. */
static int wanted_1d(int i, int j, int length, int kernel, int stride, int dilation, int causal) {
  const int g = i % dilation, p = i / dilation, n = (length - g + dilation - 1) / dilation;
  if (j % dilation != g) return 0;
  int first, end;
  if (causal) {
    int leader = stride * (p / stride) + stride - 1;
    if (leader > n - 1) leader = n - 1;
    first = leader - kernel + 1 > 0 ? leader - kernel + 1 : 0;
    end = p + 1;
  } else {
    int leader = stride * (p / stride) + stride / 2;
    if (leader > n - 1) leader = n - 1;
    first = leader - kernel / 2;
    if (first < 0) first = 0;
    if (first > n - kernel) first = n - kernel;
    end = first + kernel;
  }
  return first <= j / dilation && j / dilation < end;
}

static double no_load(void *user, const char *input, int n, const long long *index) {
  (void)user, (void)input, (void)n, (void)index;
  return 0;
}

static void test_neighborhood(void **state) {
  (void)state;
  for (int kernel = 2; kernel <= 5; kernel++) {
    for (int k = 0; k < kernel * 6; k++) {
      const int stride = k / 6 + 1, dilation = k % 3 + 1, causal = k / 3 % 2, length = 17;
      char source[256];
      luattn_error err;
      const int n = snprintf(source, sizeof source,
                             "return attention { block_mask = neighborhood { size = {%d}, kernel = {%d}, "
                             "stride = {%d}, dilation = {%d}, causal = {%s} } }",
                             length, kernel, stride, dilation, causal ? "true" : "false");
      front_oracle *o;
      if (front_oracle_open("n.lua", source, (size_t)n, no_load, NULL, &o, &err) != LUATTN_OK)
        fail_msg("%s", err.message);
      for (int i = 0; i < length; i++) {
        for (int j = 0; j < length; j++) {
          const double args[] = {0, 0, i, j};
          double kept;
          assert_int_equal(front_oracle_call(o, "block_mask", args, 4, &kept, &err), LUATTN_OK);
          if ((int)kept != wanted_1d(i, j, length, kernel, stride, dilation, causal)) {
            fail_msg("kernel %d stride %d dilation %d causal %d: query %d, key %d", kernel, stride, dilation, causal, i,
                     j);
          }
        }
      }
      front_oracle_close(o);
    }
  }
}

static void expect_mask(const char *mask, const char *expected) {
  char source[512];
  traced_file t;
  snprintf(source, sizeof source, "return attention { block_mask = %s }", mask);
  trace_text(&t, source);
  assert_string_equal(show(&t, t.spec.block_mask), expected);
  trace_close(&t);
}

/* A grid limits lengths where its neighbourhood is asked for any position. */
static void test_grid_ends(void **state) {
  (void)state;
  static const struct {
    const char *mask;
    long long most;
  } cases[] = {
      {"neighborhood { size = {4, 8}, kernel = {3, 3} }", 32},
      {"mask_and(causal(), neighborhood { size = {64}, kernel = {7} })", 64},
      {"mask_or(neighborhood { size = {64}, kernel = {7} }, neighborhood { size = {5, 5}, kernel = {2, 2} })", 25},
      {"neighborhood { kernel = {7} }", 0},
      {"function(b, h, q_idx, kv_idx) if q_idx >= 64 or kv_idx >= 64 then return true end return grid(b, h, q_idx, "
       "kv_idx) end",
       0},
      {"function(b, h, q_idx, kv_idx) if not (q_idx <= 63 and kv_idx < 60) then return true end return grid(b, h, "
       "q_idx, kv_idx) end",
       0},
      {"function(b, h, q_idx, kv_idx) if q_idx >= 70 or kv_idx >= 70 then return true end return grid(b, h, q_idx, "
       "kv_idx) end",
       64},
      {"function(b, h, q_idx, kv_idx) if q_idx < 5 or kv_idx < 5 then return true end return grid(b, h, q_idx - 5, "
       "kv_idx - 5) end",
       69},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char source[512];
    traced_file t;
    snprintf(source, sizeof source,
             "local grid = neighborhood { size = {64}, kernel = {7} }\nreturn attention { block_mask = %s }",
             cases[i].mask);
    trace_text(&t, source);
    if (t.spec.most_len != cases[i].most) fail_msg("%s: ends at %lld", cases[i].mask, (long long)t.spec.most_len);
    trace_close(&t);
  }
}

/* Masks of the library give the same expressions as hand-written ones. */
static void test_masks_are_plain(void **state) {
  (void)state;
  expect_mask("causal()", "(le kv_idx q_idx)");
  expect_mask("causal_bottom_right()", "(le kv_idx (sub (add q_idx kv_len) q_len))");
  expect_mask("sliding_window(7, 0)", "(and (le (sub q_idx 7) kv_idx) (le kv_idx q_idx))");
  expect_mask("sliding_window(-1, -1)", "none");
  expect_mask("prefix_lm(16)", "(or (lt kv_idx 16) (le kv_idx q_idx))");
  expect_mask("mask_not(causal())", "(lt q_idx kv_idx)");
  expect_mask("mask_and(causal(), causal())", "(le kv_idx q_idx)");
  expect_mask("mask_or(causal(), mask_not(causal()))", "none");
  expect_mask("neighborhood { size = {64}, kernel = {7} }",
              "(and (le (min (max (sub q_idx 3) 0) 57) kv_idx) (lt kv_idx (add (min (max (sub q_idx 3) 0) 57) 7)))");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_against_oracle),
      cmocka_unit_test(test_neighborhood),
      cmocka_unit_test(test_grid_ends),
      cmocka_unit_test(test_masks_are_plain),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
