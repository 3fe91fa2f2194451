/* mask_test.c: compares tile classes and counts with every element, using C versions of the Lua
 * predicates. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/support/cpu_call.h"

typedef struct place {
  int q_len, kv_len, heads;
  const tensor *ids;
} place;

typedef bool (*keep_function)(const place *p, int b, int h, int q, int kv);

static bool everything(const place *p, int b, int h, int q, int kv) {
  return (void)p, (void)b, (void)h, (void)q, (void)kv, true;
}
static bool nothing(const place *p, int b, int h, int q, int kv) {
  return (void)p, (void)b, (void)h, (void)q, (void)kv, false;
}
static bool causal(const place *p, int b, int h, int q, int kv) { return (void)p, (void)b, (void)h, kv <= q; }
static bool bottom_right(const place *p, int b, int h, int q, int kv) {
  return (void)b, (void)h, kv <= q + p->kv_len - p->q_len;
}
static bool window(const place *p, int b, int h, int q, int kv) {
  return (void)p, (void)b, (void)h, kv <= q && q - kv < 20;
}
static bool prefix(const place *p, int b, int h, int q, int kv) {
  return (void)p, (void)b, (void)h, kv <= q || kv < 37;
}
static bool dilated(const place *p, int b, int h, int q, int kv) {
  return (void)p, (void)b, (void)h, kv <= q && (q - kv) % 3 == 0;
}
static bool by_head(const place *p, int b, int h, int q, int kv) { return (void)p, kv <= q + 10 * h - 7 * b; }
static bool document(const place *p, int b, int h, int q, int kv) {
  (void)h;
  return tensor_get(p->ids, b * 200 + q) == tensor_get(p->ids, b * 200 + kv);
}

typedef struct mask_case {
  const char *text;
  keep_function keep;
  bool exact; /* no partial tile may be empty or full */
} mask_case;

#define HEAD "return attention { block_mask = function(b, h, q_idx, kv_idx) return "

static const mask_case cases[] = {
    {"return attention { }", everything, true},
    {HEAD "kv_idx > q_idx + 1000 end }", nothing, true},
    {"return attention { block_mask = causal() }", causal, true},
    {"return attention { block_mask = causal_bottom_right() }", bottom_right, true},
    {HEAD "kv_idx <= q_idx and q_idx - kv_idx < 20 end }", window, true},
    {"return attention { block_mask = prefix_lm(37) }", prefix, true},
    {HEAD "kv_idx <= q_idx and eq((q_idx - kv_idx) % 3, 0) end }", dilated, false},
    {HEAD "kv_idx <= q_idx + 10 * h - 7 * b end }", by_head, true},
    {"return attention { inputs = { ids = { axes = {'b', 'q'}, dtype = 'i32' } },\n"
     "  block_mask = function(b, h, q_idx, kv_idx) return eq(ids[{b, q_idx}], ids[{b, kv_idx}]) end }",
     document, true},
};
#define NUM_CASES ((int)(sizeof cases / sizeof *cases))

static const int lengths[][2] = {{200, 200}, {70, 200}, {200, 1}, {1, 130}, {64, 128}};
static const int tiles[][2] = {{64, 64}, {16, 128}, {1, 1}, {7, 33}, {1000, 1000}};

static int check_tile(const mask_case *m, const place *p, int b, int h, int i, int j, int tile_m, int tile_n,
                      int class) {
  const int q1 = (i + 1) * tile_m < p->q_len ? (i + 1) * tile_m : p->q_len,
            kv1 = (j + 1) * tile_n < p->kv_len ? (j + 1) * tile_n : p->kv_len;
  int kept = 0, all = 0;
  for (int q = i * tile_m; q < q1; q++) {
    for (int kv = j * tile_n; kv < kv1; kv++) kept += m->keep(p, b, h, q, kv), all++;
  }
  const int exact = kept == 0 ? 0 : kept == all ? 2 : 1;
  if ((class != exact && (m->exact || class != 1)) || class > 2) {
    fail_msg("%s\nb %d, h %d, tile %d, %d of %dx%d in %dx%d: class %d, keeps %d of %d", m->text, b, h, i, j, tile_m,
             tile_n, p->q_len, p->kv_len, class, kept, all);
  }
  return kept;
}

static void check_case(const mask_case *m, luattn_spec *spec, const place *p, const luattn_args *args, int batch) {
  unsigned char *class = malloc(200 * 200);
  assert_non_null(class);
  int64_t kept = 0, counted = -1;
  for (int b = 0; b < batch; b++) {
    for (int h = 0; h < p->heads; h++) {
      for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        const int tile_m = tiles[t][0], tile_n = tiles[t][1], columns = (p->kv_len + tile_n - 1) / tile_n;
        luattn_error err;
        memset(class, 9, 200 * 200);
        if (luattn_mask_tiles(spec, args, b, h, tile_m, tile_n, class, &err) != LUATTN_OK) fail_msg("%s", err.message);
        for (int i = 0; i * tile_m < p->q_len; i++) {
          for (int j = 0; j < columns; j++) {
            const int n = check_tile(m, p, b, h, i, j, tile_m, tile_n, class[i * columns + j]);
            if (t == 0) kept += n;
          }
        }
      }
    }
  }
  assert_int_equal(luattn_mask_count(spec, args, &counted, NULL), LUATTN_OK);
  if (counted != kept) fail_msg("%s: counts %lld, keeps %lld", m->text, (long long)counted, (long long)kept);
  free(class);
}

static void test_classes(void **state) {
  (void)state;
  for (int i = 0; i < NUM_CASES; i++) {
    luattn_spec *spec = load_text(cases[i].text);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
      const bool reads_ids = cases[i].keep == document;
      if (reads_ids && lengths[l][0] != lengths[l][1]) continue; /* ids serve for both q and kv */
      const int size[] = {2, 2, 1, lengths[l][0], lengths[l][1], 4, 4};
      tensor ids;
      call c;
      tensor_new(&ids, I32, 2, (int64_t[]){2, lengths[l][0]}, DENSE);
      ids.t.shape = ids.shape, ids.t.strides = ids.stride;
      for (int64_t at = 0, n = tensor_count(&ids); at < n; at++)
        tensor_set(&ids, at, (double)(at % lengths[l][0] / (23 + 10 * (at / lengths[l][0]))));
      call_new(&c, spec, size, DENSE, F64, F64);
      const luattn_input input = {"ids", &ids.t, NULL};
      if (reads_ids) c.args.inputs = &input, c.args.num_inputs = 1;
      c.q.t.data = c.k.t.data = NULL; /* a mask needs only lengths */
      c.args.v = NULL;
      const place p = {lengths[l][0], lengths[l][1], 2, &ids};
      check_case(&cases[i], spec, &p, &c.args, 2);
      call_free(&c);
      tensor_free(&ids);
    }
    luattn_spec_free(spec);
  }
}

/* Inputs that only score_mod reads may be missing; the mask's inputs may not. */
static void test_inputs(void **state) {
  (void)state;
  const int size[] = {1, 1, 1, 20, 20, 4, 4};
  luattn_spec *spec = load_text(
      "return attention { inputs = { bias = { axes = {'h'} }, cut = { axes = {'b'}, dtype = 'i32' } },\n"
      "  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[h] end,\n"
      "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx < cut[b] end }");
  tensor cut;
  luattn_error err;
  call c;
  int64_t kept = 0;
  unsigned char class[1];
  tensor_new(&cut, I32, 1, (int64_t[]){1}, DENSE_NULL);
  cut.t.shape = cut.shape;
  tensor_set(&cut, 0, 5);
  call_new(&c, spec, size, DENSE, F64, F64);
  const luattn_input input = {"cut", &cut.t, NULL};
  c.args.inputs = &input, c.args.num_inputs = 1;
  assert_int_equal(luattn_mask_count(spec, &c.args, &kept, &err), LUATTN_OK);
  assert_int_equal(kept, 20 * 5);
  assert_int_equal(luattn_mask_tiles(spec, &c.args, 0, 0, 64, 64, class, &err), LUATTN_OK);
  c.args.num_inputs = 0;
  assert_int_equal(luattn_mask_count(spec, &c.args, &kept, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "cpu: input 'cut': is missing, and the spec 'test' reads it; add it to args.inputs");
  c.args.num_inputs = 1;
  const int64_t as_it_was[] = {c.q.shape[0], c.q.shape[2]};
  c.q.shape[0] = c.k.shape[0] = 1 << 20, c.q.shape[2] = c.k.shape[2] = 1 << 30;
  cut.shape[0] = 1 << 20, cut.stride[0] = 0, cut.t.strides = cut.stride;
  assert_int_equal(luattn_mask_count(spec, &c.args, &kept, &err), LUATTN_INVALID);
  assert_string_equal(err.message,
                      "mask: has 1048576 x 1 x 1073741824 x 1073741824 scores, more than 64 bits count; give "
                      "fewer batches or heads");
  c.q.shape[0] = c.k.shape[0] = as_it_was[0], c.q.shape[2] = c.k.shape[2] = as_it_was[1];
  cut.shape[0] = 1;
  assert_int_equal(luattn_mask_tiles(spec, &c.args, 0, 1, 64, 64, class, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "mask: batch 0, head 1: does not exist; there are 1 and 1");
  assert_int_equal(luattn_mask_tiles(spec, &c.args, 0, 0, 0, 64, class, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "mask: tile: is 0x64, expected sizes of at least 1");
  static int32_t cu[] = {0, 3};
  int64_t two = 2;
  const DLTensor cu_seqlens = {.data = cu, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &two};
  const luattn_batch_options options = {
      .struct_size = sizeof options, .cu_seqlens_q = &cu_seqlens, .cu_seqlens_k = &cu_seqlens};
  luattn_batch *batch;
  assert_int_equal(luattn_batch_open(&options, &batch, &err), LUATTN_OK);
  c.args.batch = batch;
  static const char packed[] =
      "mask: batch: has cu_seqlens_q, and luattn_forward and luattn_launch alone take packed sequences yet; call it "
      "for each sequence, with a batch that has none";
  assert_int_equal(luattn_mask_count(spec, &c.args, &kept, &err), LUATTN_UNSUPPORTED);
  assert_string_equal(err.message, packed);
  assert_int_equal(luattn_mask_tiles(spec, &c.args, 0, 0, 64, 64, class, &err), LUATTN_UNSUPPORTED);
  assert_string_equal(err.message, packed);
  luattn_batch_close(batch);
  call_free(&c);
  tensor_free(&cut);
  luattn_spec_free(spec);
}

/* A comparison with NaN is false, so its negation keeps the pair. Interval bounds must account for that. */
static void test_nan(void **state) {
  (void)state;
  static const char *const masks[] = {"bias[kv_idx] <= 3", "not (bias[kv_idx] > 3)", "kv_idx < cut",
                                      "not (kv_idx >= cut)", "not (bias[kv_idx] * 0 > 3)"};
  const int size[] = {1, 1, 1, 5, 40, 4, 4};
  for (int m = 0; m < 5; m++) {
    for (int pattern = 0; pattern < 4; pattern++) {
      char source[512];
      snprintf(source, sizeof source,
               "return attention { scalars = { cut = 7.0 }, inputs = { bias = { axes = {'kv'} } },\n"
               "  block_mask = function(b, h, q_idx, kv_idx) return %s end }",
               masks[m]);
      luattn_spec *spec = load_text(source);
      tensor bias;
      call c;
      unsigned char class[16];
      const double cut = pattern == 3 ? INFINITY : 20;
      const luattn_scalar scalar = {"cut", cut};
      int64_t kept = 0, counted = -1;
      tensor_new(&bias, F32, 1, (int64_t[]){40}, DENSE_NULL);
      bias.t.shape = bias.shape;
      for (int64_t i = 0; i < 40; i++) { /* patterns: no NaN, one per two tiles, tiles of only NaN, all NaN */
        const bool nan = pattern == 1 ? i % 16 == 5 : pattern == 2 ? i / 8 % 2 == 0 : pattern == 3;
        tensor_set(&bias, i, nan ? NAN : (double)(i % 8));
      }
      call_new(&c, spec, size, DENSE, F64, F64);
      const luattn_input input = {"bias", &bias.t, NULL};
      c.args.inputs = &input, c.args.num_inputs = 1, c.args.scalars = &scalar, c.args.num_scalars = 1;
      assert_int_equal(luattn_mask_tiles(spec, &c.args, 0, 0, 5, 8, class, NULL), LUATTN_OK);
      for (int tile = 0; tile < 5; tile++) {
        int in_tile = 0;
        for (int kv = 8 * tile; kv < 8 * tile + 8; kv++) {
          const double x = tensor_get(&bias, kv);
          const bool keep[] = {x <= 3, !(x > 3), kv < cut, !(kv >= cut), !(x * 0 > 3)};
          in_tile += 5 * keep[m];
        }
        kept += in_tile;
        const int exact = in_tile == 0 ? 0 : in_tile == 40 ? 2 : 1;
        if (class[tile] != 1 && class[tile] != exact) {
          fail_msg("%s, pattern %d, tile %d: class %d, keeps %d of 40", masks[m], pattern, tile, class[tile], in_tile);
        }
      }
      assert_int_equal(luattn_mask_count(spec, &c.args, &counted, NULL), LUATTN_OK);
      assert_int_equal(counted, kept);
      call_free(&c);
      tensor_free(&bias);
      luattn_spec_free(spec);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_classes), cmocka_unit_test(test_inputs),
                                     cmocka_unit_test(test_nan)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
