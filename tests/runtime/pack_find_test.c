/* pack_find_test.c: queries find the right image of a pack, report a missing one, and the image launches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/runtime/packs.h"
#include "tests/support/fake_cuda.h"

static luattn_pack_query query_for(int arch) {
  return (luattn_pack_query){.struct_size = sizeof(luattn_pack_query),
                             .spec_name = "demo",
                             .dtype = LUATTN_BF16,
                             .head_dim = HEAD_DIM,
                             .head_dim_v = HEAD_DIM_V,
                             .arch = arch};
}

static void finds_the_best(void **state) {
  (void)state;
  write_sample();
  luattn_pack *pack = open_sample();
  luattn_error err;
  const struct {
    int arch;
    size_t index;
  } expected[] = {{80, 1}, {86, 1}, {87, 1}, {90, 3}, {100, 2}, {121, 2}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    const luattn_pack_query q = query_for(expected[i].arch);
    size_t index;
    if (luattn_pack_find(pack, &q, &index, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_int_equal(index, expected[i].index);
  }
  luattn_pack_query q = query_for(90);
  size_t index = 99;
  q.spec_name = NULL;
  q.spec_hash[0] = 7, q.spec_hash[1] = 8;
  q.pass = LUATTN_BACKWARD;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
  assert_int_equal(index, 4);
  q.wants = LUATTN_WANT_DQ | LUATTN_WANT_DK | LUATTN_WANT_DV; /* gradients of parameters may be missing */
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
  q.wants = LUATTN_WANT_DQ | LUATTN_WANT_DK;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  luattn_pack_close(pack);
}

/* A query without gradients finds those of q, k and v, and the parameter gradients that exist. */
static void finds_all_gradients_there_are(void **state) {
  (void)state;
  const unsigned tensors = LUATTN_WANT_DQ | LUATTN_WANT_DK | LUATTN_WANT_DV;
  const unsigned of[] = {LUATTN_WANT_DQ, tensors, tensors | LUATTN_WANT_INPUTS};
  for (size_t count = 1; count <= 3; ++count) {
    sample s = {.count = 0};
    luattn_error err;
    for (size_t i = 0; i < count; ++i) add_image(&s, make_image(LUATTN_BACKWARD, 90, "a", 0, of[i]));
    if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
    luattn_pack *pack = open_sample();
    luattn_pack_query q = query_for(90);
    size_t index = 99;
    q.pass = LUATTN_BACKWARD;
    const luattn_status status = luattn_pack_find(pack, &q, &index, &err);
    assert_int_equal(status, count == 1 ? LUATTN_UNSUPPORTED : LUATTN_OK);
    if (status == LUATTN_OK) assert_int_equal(index, count - 1);
    luattn_pack_close(pack);
    sample_close(&s);
  }
}

/* The architecture takes precedence over the class of lengths, and any image supports any length. */
static void finds_tiles_for_lengths(void **state) {
  (void)state;
  sample s = {.count = 0};
  luattn_error err;
  add_image(&s, make_image(LUATTN_FORWARD, 90, "a", 0, 0));
  add_image(&s, make_image(LUATTN_FORWARD, 90, "a", 0, 0));
  add_image(&s, make_image(LUATTN_FORWARD, 80, "", 0, 0));
  add_image(&s, make_image(LUATTN_FORWARD, 86, "", 0, 0));
  s.item[0].lengths = 2;
  s.item[1].lengths = 1;
  s.item[3].lengths = 2;
  if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_pack *pack = open_sample();
  const struct {
    int arch, lengths;
    size_t index;
  } expected[] = {{90, 0, 1}, {90, 1, 1}, {90, 2, 0}, {80, 1, 2}, {80, 2, 2}, {86, 1, 3}, {86, 2, 3}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    luattn_pack_query q = query_for(expected[i].arch);
    size_t index = 99;
    q.lengths = expected[i].lengths;
    assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
    assert_int_equal(index, expected[i].index);
  }
  luattn_pack_close(pack);
  s.item[0].lengths = 3;
  assert_int_equal(luattn_pack_write(path, "13.0", s.item, s.count, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "item 0: lengths is 3, expected 0 to 2"));
  sample_close(&s);
}

/* Images for packed sequences, pages and few queries are found by those who ask for them, and by none else. */
static void finds_variants(void **state) {
  (void)state;
  static const int of[][3] = {{0, 0, 1}, {0, 1, 0}, {0, 8, 0},
                              {1, 0, 0}, {1, 1, 1}, {0, 0, 0}}; /* packed, pages, decode */
  static const struct {
    int packed, pages, decode;
    size_t index; /* 9: none */
  } asked[] = {{0, 0, 0, 5}, {0, 0, 1, 0}, {0, 1, 0, 1}, {0, 8, 0, 2}, {1, 0, 0, 3},
               {1, 1, 1, 4}, {1, 8, 1, 4}, {0, 1, 1, 9}, {1, 1, 0, 9}};
  sample s = {.count = 0};
  luattn_error err;
  for (size_t i = 0; i < sizeof of / sizeof *of; ++i)
    add_image(&s, make_variant(90, "a", of[i][0], of[i][1], of[i][2]));
  if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_pack *pack = open_sample();
  for (size_t i = 0; i < sizeof asked / sizeof *asked; ++i) {
    luattn_pack_query q = query_for(90);
    size_t index = 99;
    q.packed = asked[i].packed, q.pages = asked[i].pages, q.decode = asked[i].decode;
    const luattn_status status = luattn_pack_find(pack, &q, &index, &err);
    assert_int_equal(status, asked[i].index == 9 ? LUATTN_UNSUPPORTED : LUATTN_OK);
    if (status == LUATTN_OK) assert_int_equal(index, asked[i].index);
    if (asked[i].index != 9 || !asked[i].decode) continue;
    assert_non_null(strstr(
        err.message,
        "has no forward of 'demo', bf16, head dim 64x32, sm_90, pages of any size, few queries; it has forward of "));
    assert_non_null(strstr(err.message, "sm_90a, few queries; "));
    assert_non_null(strstr(err.message, "sm_90a, pages of multiples of 8; "));
  }
  luattn_pack_query q = query_for(90);
  size_t index;
  q.deterministic = 1; /* forward always is, but for decode among others in a batch */
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
  q.decode = 1;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(
      strstr(err.message, "has no deterministic forward of 'demo', bf16, head dim 64x32, sm_90, few queries; it has "));
  q.deterministic = q.decode = 0;
  q.pages = 4;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "luattn_pack_query: pages is 4, expected 0, 1 or 8, as in luattn_target");
  q.pages = 0, q.decode = 2;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "luattn_pack_query: decode is 2, expected 0 or 1");
  luattn_pack_close(pack);
  sample_close(&s);
}

/* Images whose results are float32 are found by those who ask for them, and by none else. */
static void finds_results_in_f32(void **state) {
  (void)state;
  sample s = {.count = 0};
  luattn_error err;
  size_t index;
  add_image(&s, make_out_f32(90, "a", 1)), add_image(&s, make_out_f32(90, "a", 0)),
      add_image(&s, make_grad_f32(90, "a"));
  if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_pack *pack = open_sample();
  luattn_pack_query q = query_for(90);
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
  assert_int_equal(index, 1);
  q.out_f32 = 1;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
  assert_int_equal(index, 0);
  q.pass = LUATTN_BACKWARD;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "has no backward of 'demo', bf16, head dim 64x32, sm_90, o in f32, gradients "));
  assert_non_null(strstr(err.message, "sm_90a, gradients in f32, gradients "));
  q.out_f32 = 0, q.grad_f32 = 1;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
  assert_int_equal(index, 2);
  q.grad_f32 = 2;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "luattn_pack_query: grad_f32 is 2, expected 0 or 1");
  luattn_pack_close(pack);
  sample_close(&s);
}

static luattn_image *make_deterministic(unsigned arch, const char *suffix, unsigned wants) {
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.arch = arch;
  snprintf(p.info.arch_suffix, sizeof p.info.arch_suffix, "%s", suffix);
  p.info.deterministic = 1;
  p.info.wants = wants;
  luattn_image *image = problem_image(&p);
  problem_close(&p);
  return image;
}

/* A deterministic query finds only deterministic images; other queries prefer images that are not. */
static void finds_deterministic_kernels(void **state) {
  (void)state;
  const unsigned tensors = LUATTN_WANT_DQ | LUATTN_WANT_DK | LUATTN_WANT_DV;
  sample s = {.count = 0};
  luattn_error err;
  add_image(&s, make_deterministic(80, "", tensors));
  add_image(&s, make_image(LUATTN_BACKWARD, 80, "", 0, tensors));
  add_image(&s, make_deterministic(90, "a", tensors));
  if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_pack *pack = open_sample();
  const struct {
    int arch, deterministic;
    size_t index;
  } expected[] = {{80, 0, 1}, {80, 1, 0}, {90, 0, 2}, {90, 1, 2}, {86, 0, 1}, {86, 1, 0}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    luattn_pack_query q = query_for(expected[i].arch);
    size_t index = 99;
    q.pass = LUATTN_BACKWARD;
    q.wants = tensors;
    q.deterministic = expected[i].deterministic;
    assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
    assert_int_equal(index, expected[i].index);
    assert_int_equal(luattn_pack_get_entry(pack, index)->deterministic, index != 1);
  }
  luattn_pack_query q = query_for(75);
  size_t index;
  q.pass = LUATTN_BACKWARD;
  q.deterministic = 1;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message,
                         "has no deterministic backward of 'demo', bf16, head dim 64x32, sm_75, "
                         "gradients dq+dk+dv; it has deterministic backward of 'demo', bf16"));
  luattn_pack_close(pack);
  sample_close(&s);
}

/* If only the gradients do not match, the message names those requested and those available. */
static void says_which_gradients(void **state) {
  (void)state;
  const unsigned tensors = LUATTN_WANT_DQ | LUATTN_WANT_DK | LUATTN_WANT_DV;
  sample s = {.count = 0};
  luattn_error err;
  size_t index;
  add_image(&s, make_image(LUATTN_FORWARD, 90, "a", 0, 0));
  add_image(&s, make_image(LUATTN_BACKWARD, 80, "", 0, tensors));
  add_image(&s, make_image(LUATTN_BACKWARD, 90, "a", 0, tensors));
  if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_pack *pack = open_sample();
  luattn_pack_query q = query_for(90);
  q.pass = LUATTN_BACKWARD;
  q.wants = LUATTN_WANT_ALL;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message,
                         "has no backward of 'demo', bf16, head dim 64x32, sm_90, gradients dq+dk+dv+inputs+scalars; "
                         "it has backward of 'demo', bf16, head dim 64x32, sm_90a, gradients dq+dk+dv; "
                         "backward of 'demo', bf16, head dim 64x32, sm_80, gradients dq+dk+dv; "
                         "forward of 'demo', bf16, head dim 64x32, sm_90a; "
                         "ask for gradients that it has"));
  q.wants = LUATTN_WANT_DQ | LUATTN_WANT_SCALARS;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "sm_90, gradients dq+scalars; it has"));
  q.arch = 75; /* not only the gradients mismatch */
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "; add it with luattn pack"));
  luattn_pack_close(pack);
  sample_close(&s);
}

/* The message lists the nearest images first: ordered by pass, then type, then head dims. */
static void says_what_is_nearest(void **state) {
  (void)state;
  sample s = {.count = 0};
  luattn_error err;
  size_t index;
  for (int i = 0; i < 5; ++i) add_image(&s, make_image(LUATTN_BACKWARD, 80, "", 0, LUATTN_WANT_ALL));
  add_image(&s, make_image(LUATTN_FORWARD, 90, "a", 0, 0));
  if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_pack *pack = open_sample();
  luattn_pack_query q = query_for(90);
  q.head_dim = 96;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message,
                         "has no forward of 'demo', bf16, head dim 96x32, sm_90; it has forward "
                         "of 'demo', bf16, head dim 64x32, sm_90a; backward of 'demo'"));
  assert_non_null(strstr(err.message, "; and 2 more; add it with luattn pack"));
  luattn_pack_close(pack);
  sample_close(&s);
}

static void says_what_there_is(void **state) {
  (void)state;
  write_sample();
  luattn_pack *pack = open_sample();
  luattn_error err;
  size_t index;
  luattn_pack_query q = query_for(75);
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message,
                         "has no forward of 'demo', bf16, head dim 64x32, sm_75; it has forward of "
                         "'demo', bf16, head dim 64x32, sm_80; "));
  assert_non_null(strstr(err.message, "compute_86; "));
  assert_non_null(strstr(err.message, "backward of 'demo', bf16, head dim 64x32, sm_90a; add it with luattn pack"));
  q = query_for(90);
  q.spec_name = "gemma2";
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "has no forward of 'gemma2'"));
  assert_non_null(strstr(err.message, "it has specs 'demo'; add"));
  q = query_for(90);
  q.spec_hash[0] = 1;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "it has specs 'demo' (of another text); add"));
  q = query_for(90);
  q.family = 1 + LUATTN_SIMT;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message,
                         "has no forward of 'demo', bf16, head dim 64x32, sm_90, simt; it has forward of "
                         "'demo', bf16, head dim 64x32, compute_86, sm80; "));
  q.family = 1 + KERNEL_FAMILIES;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_INVALID);
  char wrong[100];
  snprintf(wrong, sizeof wrong, "family is %d, expected 1 + luattn_family, 1 to %d, or 0 for any", 1 + KERNEL_FAMILIES,
           KERNEL_FAMILIES);
  assert_non_null(strstr(err.message, wrong));
  q.family = 0;
  q.pass = (luattn_pass)99;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "pass is 99, expected a luattn_pass, 0 to 1"));
  q.pass = LUATTN_FORWARD;
  q.struct_size = 3;
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_INVALID);
  luattn_pack_close(pack);
}

static void launches_as_any_kernel(void **state) {
  (void)state;
  write_sample();
  luattn_pack *pack = open_sample();
  luattn_driver *driver;
  luattn_error err;
  assert_int_equal(luattn_driver_open(&driver, &err), LUATTN_OK);
  for (int pass = LUATTN_FORWARD; pass <= LUATTN_BACKWARD; ++pass) {
    problem p;
    problem_open(&p, (luattn_pass)pass);
    luattn_pack_query q = query_for(0);
    q.pass = (luattn_pass)pass;
    luattn_kernel *kernel;
    if (luattn_pack_kernel(pack, driver, 0, &q, &kernel, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
    fake_reset();
    if (luattn_launch(kernel, &p.args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
    bool launched = false;
    for (size_t i = 0; i < fake_num_events(); ++i)
      launched |= strcmp(fake_get_event(i)->name, pass == LUATTN_FORWARD ? "luattn_fwd" : "luattn_dkdv") == 0;
    assert_true(launched);
    luattn_kernel_unload(kernel);
    problem_close(&p);
  }
  luattn_pack_close(pack);
  luattn_driver_close(driver);
}

/* If a device lacks something that an image for sm_80 needs, the next best image is taken. */
static void takes_what_fits(void **state) {
  (void)state;
  static const struct {
    unsigned arch, shared;
    int ptx;
  } image[] = {{90, FAKE_SHARED_BYTES + 4, 0}, {86, FAKE_SHARED_BYTES + 8, 1}, {80, FAKE_SHARED_BYTES, 1}};
  luattn_driver *driver;
  luattn_pack *pack;
  luattn_error err;
  assert_int_equal(luattn_driver_open(&driver, &err), LUATTN_OK);
  for (size_t count = 3; count > 0; --count) {
    sample s = {.count = 0};
    for (size_t i = 0; i < count; ++i) {
      problem p;
      problem_open(&p, LUATTN_FORWARD);
      p.info.arch = image[i].arch;
      p.info.arch_suffix[0] = 0;
      p.info.is_ptx = (uint32_t)image[i].ptx;
      p.info.entry[2].shared_bytes = image[i].shared;
      add_image(&s, problem_image(&p));
      problem_close(&p);
    }
    if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_OK) fail_msg("%s", err.message);
    pack = open_sample();
    luattn_pack_query q = query_for(0);
    luattn_kernel *kernel = NULL;
    size_t index = 99;
    const luattn_status status = luattn_pack_kernel(pack, driver, 0, &q, &kernel, &index, &err);
    assert_int_equal(status, count == 3 ? LUATTN_OK : LUATTN_UNSUPPORTED);
    assert_int_equal(index, count == 3 ? 2 : 99);
    if (count < 3) /* the message concerns the best image */
      assert_non_null(strstr(err.message, "luattn_fwd needs 232452 bytes of shared memory, device 0, Fake"));
    luattn_kernel_unload(kernel);
    luattn_pack_close(pack);
    sample_close(&s);
  }
  luattn_driver_close(driver);
}

static void image_is_a_pack(void **state) {
  (void)state;
  luattn_image *image = make_image(LUATTN_FORWARD, 80, "", 0, 0), *read = NULL;
  luattn_error err;
  size_t size, index, read_size;
  const void *bytes = luattn_image_bytes(image, &size);
  write_file(bytes, size, "wb");
  luattn_pack *pack = open_sample();
  const luattn_pack_query q = query_for(86);
  assert_int_equal(luattn_pack_find(pack, &q, &index, &err), LUATTN_OK);
  assert_int_equal(luattn_pack_image(pack, index, &read, &err), LUATTN_OK);
  assert_memory_equal(luattn_image_bytes(read, &read_size), bytes, size);
  luattn_image_free(read);
  luattn_pack_close(pack);
  write_file(bytes, size - 1, "wb");
  assert_int_equal(luattn_pack_open(path, &pack, &err), LUATTN_IMAGE);
  luattn_image_free(image);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finds_the_best),          cmocka_unit_test(finds_all_gradients_there_are),
      cmocka_unit_test(finds_tiles_for_lengths), cmocka_unit_test(finds_variants),
      cmocka_unit_test(finds_results_in_f32),    cmocka_unit_test(finds_deterministic_kernels),
      cmocka_unit_test(says_which_gradients),    cmocka_unit_test(says_what_is_nearest),
      cmocka_unit_test(says_what_there_is),      cmocka_unit_test(launches_as_any_kernel),
      cmocka_unit_test(takes_what_fits),         cmocka_unit_test(image_is_a_pack),
  };
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
