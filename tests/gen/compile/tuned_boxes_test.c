/* tuned_boxes_test.c: tests the pairs of boxes that are listed for the extents of a call over a grid, and that one which was
 * measured is taken by calls of those extents and heads on that device alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiled.h"
#include "gen/compile/box_choice.h"

enum { MOST = 24 };

static const char WINDOW[] =
    "return attention { name = 'window', grid = {'y', 'x'}, block_mask = neighborhood { kernel_size = {13, 13} } }";
static luattn_spec *spec;
static folder dir;

static int open_all(void **state) {
  (void)state;
  spec = load(WINDOW);
  dir = folder_new();
  return 0;
}

static int close_all(void **state) {
  (void)state;
  luattn_spec_free(spec);
  folder_remove(&dir);
  return 0;
}

static luattn_target target_here(luattn_pass pass) {
  luattn_target t = target_new();
  t.pass = pass;
  t.dtype = LUATTN_BF16;
  t.arch = 90;
  t.head_dim = t.head_dim_v = 128;
  t.wants = 0;
  t.cache_dir = dir.path;
  t.device = "Fake 0";
  return t;
}

/* A call of B1, H heads and y x x places, of which it has no data. */
typedef struct call {
  int64_t q_shape[5], k_shape[5];
  DLTensor q, k;
  luattn_args args;
} call;

static const luattn_args *call_of(call *c, int64_t y, int64_t x, int64_t heads) {
  *c = (call){.q_shape = {1, heads, y, x, 128}, .k_shape = {1, heads, y, x, 128}};
  c->q = (DLTensor){.ndim = 5, .shape = c->q_shape};
  c->k = (DLTensor){.ndim = 5, .shape = c->k_shape};
  c->args = (luattn_args){.struct_size = sizeof c->args, .q = &c->q, .k = &c->k};
  return &c->args;
}

static int list(const luattn_target *t, int64_t y, int64_t x, luattn_box_pair out[MOST]) {
  luattn_error err;
  call c;
  int count = 0;
  if (luattn_plan_box_pairs(spec, t, call_of(&c, y, x, 2), out, MOST, &count, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  return count;
}

/* What an engine's call takes. */
static luattn_target choose(const luattn_spec *s, const luattn_target *of, int64_t y, int64_t x, int64_t heads,
                            char said[700]) {
  luattn_target t = *of;
  luattn_error err;
  box_choice choice;
  const box_call of_call = {{y, x}, {y, x}, heads, heads};
  if (box_choice_find(s, of, &of_call, &choice, &err) != LUATTN_OK) fail_msg("%s", err.message);
  box_choice_take(&choice, &t);
  box_choice_explain(s, &choice, said, 700);
  return t;
}

static bool takes(const luattn_target *t, const luattn_box_pair *pair) {
  return t->query_tile_size == pair->query_tile_size && t->key_tile_size == pair->key_tile_size;
}

/* Each is listed once and compiles; the first is what calls take, and counts are those of a mask of 13 x 13 over 128 x 128. */
static void test_list(void **state) {
  (void)state;
  for (int pass = 0; pass < 2; pass++) {
    luattn_target t = target_here((luattn_pass)pass);
    luattn_box_pair pair[MOST];
    const int count = list(&t, 128, 128, pair);
    char said[700];
    const luattn_target own = choose(spec, &t, 128, 128, 2, said);
    assert_int_equal(count, MOST);
    assert_int_equal(own.boxes > 1 ? own.boxes : 1, pair[0].boxes);
    assert_true(pair[0].predicted == 1);
    for (int i = 0; i < count; i++) {
      assert_true(pair[i].kept == 128.0 * 128 * 13 * 13);
      assert_true(pair[i].computed >= pair[i].kept && pair[i].full >= 0 && pair[i].full <= 1);
      for (int j = 0; j < i; j++)
        assert_false(pair[i].query_tile_size == pair[j].query_tile_size &&
                     pair[i].key_tile_size == pair[j].key_tile_size);
      luattn_target with = t;
      with.query_tile_size = pair[i].query_tile_size, with.key_tile_size = pair[i].key_tile_size;
      luattn_image_free(compile(spec, &with, NULL));
    }
    int few = 0;
    call c;
    luattn_error err;
    assert_int_equal(luattn_plan_box_pairs(spec, &t, call_of(&c, 128, 128, 2), pair, 2, &few, &err), LUATTN_OK);
    assert_int_equal(few, 2);
  }
}

static void store(const luattn_target *t, const luattn_box_pair *pair, int64_t y, int64_t x, int64_t heads,
                  char path[512]) {
  luattn_target with = *t;
  luattn_error err;
  call c;
  if (pair != NULL) with.query_tile_size = pair->query_tile_size, with.key_tile_size = pair->key_tile_size;
  if (luattn_tuned_boxes_store(spec, &with, call_of(&c, y, x, heads), 1.25, path, 512, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
}

static void test_taken_where_it_was_measured(void **state) {
  (void)state;
  luattn_box_pair pair[MOST];
  char path[512], said[700], want[700];
  for (int pass = 0; pass < 2; pass++) {
    luattn_target t = target_here((luattn_pass)pass);
    const int count = list(&t, 64, 48, pair);
    const luattn_box_pair *other = &pair[count - 1];
    assert_int_equal(other->boxes, 0);
    store(&t, other, 64, 48, 2, path);
    luattn_target found = choose(spec, &t, 64, 48, 2, said);
    assert_true(takes(&found, other));
    snprintf(want, sizeof want, "tuned: 1.25 times as fast as ");
    assert_non_null(strstr(said, want));
    assert_non_null(strstr(said, path));

    luattn_target elsewhere[7];
    for (int i = 0; i < 7; i++) elsewhere[i] = t;
    elsewhere[0].device = "Fake 1";
    elsewhere[1].device = NULL;
    elsewhere[2].dtype = LUATTN_F16;
    elsewhere[3].head_dim_v = 64;
    elsewhere[4].pass = (luattn_pass)!pass;
    elsewhere[5].cache_dir = "";
    elsewhere[6].boxes = 1; /* named */
    for (int i = 0; i < 7; i++) {
      found = choose(spec, &elsewhere[i], 64, 48, 2, said);
      if (takes(&found, other) || strstr(said, "tuned") != NULL) fail_msg("target %d has it too: %s", i, said);
    }
    const int64_t calls[][3] = {{64, 49, 2}, {63, 48, 2}, {48, 64, 2}, {64, 48, 3}};
    for (int i = 0; i < 4; i++) {
      found = choose(spec, &t, calls[i][0], calls[i][1], calls[i][2], said);
      if (takes(&found, other)) fail_msg("call %d has it too", i);
    }
    luattn_spec *twin = load(
        "return attention { name = 'window', grid = {'y', 'x'}, block_mask = neighborhood { "
        "kernel_size = {13, 11} } }");
    found = choose(twin, &t, 64, 48, 2, said);
    assert_false(takes(&found, other));
    luattn_spec_free(twin);

    store(&t, NULL, 64, 48, 2, path); /* forgets */
    found = choose(spec, &t, 64, 48, 2, said);
    assert_true(found.query_tile_size == 0 && strstr(said, "tuned") == NULL);
    store(&t, NULL, 64, 48, 2, path);
  }
}

/* One of the kernel's own pairs is known by its number, so that engines have one image of it. */
static void test_own_pairs(void **state) {
  (void)state;
  luattn_target t = target_here(LUATTN_FORWARD);
  luattn_box_pair pair[MOST];
  char path[512], said[700];
  list(&t, 64, 48, pair);
  for (int i = 0; i < 3; i++) {
    assert_in_range(pair[i].boxes, 1, 3);
    store(&t, &pair[i], 64, 48, 2, path);
    const luattn_target found = choose(spec, &t, 64, 48, 2, said);
    assert_int_equal(found.query_tile_size, 0);
    assert_int_equal(found.boxes, pair[i].boxes > 1 ? pair[i].boxes : 0);
  }
}

static void not_used(const luattn_target *t, const char *path, const char *why) {
  char said[700], want[700];
  const luattn_target found = choose(spec, t, 64, 48, 2, said);
  snprintf(want, sizeof want, "\ntuned: not used, run luattn tune again: %s %s\n", path, why);
  assert_int_equal(found.query_tile_size, 0);
  if (strstr(said, want) == NULL) fail_msg("'%s' is not in '%s'", want, said);
}

static void test_stale_and_damaged(void **state) {
  (void)state;
  luattn_target t = target_here(LUATTN_FORWARD);
  luattn_box_pair pair[MOST];
  char path[512], text[2048];
  const int count = list(&t, 64, 48, pair);
  store(&t, &pair[count - 1], 64, 48, 2, path);
  t.nvrtc = OTHER_NVRTC;
  not_used(&t, path, "was made with another luattn, NVRTC or set of templates");
  t.nvrtc = FAKE_NVRTC;
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  const size_t size = fread(text, 1, sizeof text, f);
  fclose(f);
  assert_in_range(size, 100, 1000);
  for (size_t i = 0; i < size; i += 5) {
    text[i] ^= 1;
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    text[i] ^= 1;
    not_used(&t, path, "is damaged");
  }
}

/* A text is cut where its room ends, of what was chosen, tuned, or was tuned by another luattn. */
static void test_short_texts(void **state) {
  (void)state;
  luattn_target t = target_here(LUATTN_FORWARD);
  luattn_box_pair pair[MOST];
  char path[512], said[700];
  const box_call of = {{64, 48}, {64, 48}, 2, 2};
  for (int i = 0; i < 3; i++) {
    box_choice choice;
    luattn_error err;
    if (i == 1) store(&t, &pair[list(&t, 64, 48, pair) - 1], 64, 48, 2, path);
    if (i == 2) t.nvrtc = OTHER_NVRTC;
    if (box_choice_find(spec, &t, &of, &choice, &err) != LUATTN_OK) fail_msg("%s", err.message);
    box_choice_explain(spec, &choice, said, sizeof said);
    for (size_t size = 1; size <= strlen(said); size++) {
      char *cut = malloc(size + 16);
      assert_non_null(cut);
      memset(cut, 'x', size + 16);
      box_choice_explain(spec, &choice, cut, size);
      assert_int_equal(strlen(cut), size - 1);
      assert_memory_equal(cut, said, size - 1);
      for (int after = 0; after < 16; after++) assert_int_equal(cut[size + (size_t)after], 'x');
      free(cut);
    }
  }
}

static void refused(const luattn_target *t, const luattn_args *args, double gain, const char *message) {
  luattn_error err;
  assert_int_not_equal(luattn_tuned_boxes_store(spec, t, args, gain, NULL, 0, &err), LUATTN_OK);
  if (strstr(err.message, message) == NULL) fail_msg("'%s' is not in '%s'", message, err.message);
}

static void test_refusals(void **state) {
  (void)state;
  luattn_target t = target_here(LUATTN_FORWARD);
  luattn_box_pair pair[MOST];
  luattn_error err;
  int count;
  call c, line;
  const luattn_args *args = call_of(&c, 64, 48, 2);
  t.query_tile_size = LUATTN_BOX(0, 0, 8, 16);
  refused(&t, args, 2, "tuned: key_tile_size: is 0, and the other one is given");
  t.key_tile_size = LUATTN_BOX(0, 0, 8, 15);
  refused(&t, args, 2, "key_tile_size");
  t.key_tile_size = LUATTN_BOX(0, 0, 8, 16);
  refused(&t, args, 0, "tuned: gain: is 0");
  t.device = NULL;
  refused(&t, args, 2, "tuned: device: is NULL");
  t.device = "Fake 0", t.cache_dir = "";
  refused(&t, args, 2, "tuned: there is no cache on disk");
  t = target_here(LUATTN_FORWARD);
  t.dtype = LUATTN_F32;
  assert_int_equal(luattn_plan_box_pairs(spec, &t, args, pair, MOST, &count, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "the simt family, which 'window' has for f32"));
  t.dtype = LUATTN_BF16;
  assert_int_equal(luattn_plan_box_pairs(spec, &t, args, pair, 0, &count, &err), LUATTN_INVALID);
  call_of(&line, 64, 48, 2);
  line.args.struct_size = 8; /* ends before q */
  refused(&t, &line.args, 2, "boxes: luattn_args: struct_size is 8");
  assert_int_equal(luattn_plan_box_pairs(spec, &t, &line.args, pair, MOST, &count, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "boxes: luattn_args: struct_size is 8"));
  call_of(&line, 64, 48, 2);
  line.q.ndim = 4;
  assert_int_equal(luattn_plan_box_pairs(spec, &t, &line.args, pair, MOST, &count, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "boxes: q: expected a tensor of 5 axes"));
  luattn_spec *plain = load("return attention { name = 'plain' }");
  assert_int_equal(luattn_plan_box_pairs(plain, &t, args, pair, MOST, &count, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "boxes: the spec 'plain' has no grid of several axes"));
  luattn_spec_free(plain);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)
  const struct CMUnitTest tests[] = {TEST(test_list),        TEST(test_taken_where_it_was_measured),
                                     TEST(test_own_pairs),   TEST(test_stale_and_damaged),
                                     TEST(test_short_texts), TEST(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
