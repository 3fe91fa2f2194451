/* sections_test.c: tests an image's sections: unknown sections of a later luattn, missing, duplicate or
 * truncated ones, and the recorded plan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/abi/sections.h"
#include "tests/support/problem.h"

static const char plan_text[] = "sm90: 128 x 128\nno backward\n";
static const image_plan planned = {plan_text, {128, 96, 384, 2, 4, 32}, true};

/* Creates an image with every section. */
static luattn_image *sample(const image_plan *plan) {
  static const char code[] = "any bytes will do";
  problem p;
  luattn_image *image = NULL;
  luattn_error err;
  problem_open(&p, LUATTN_BACKWARD);
  if (image_create(&p.info, plan, code, sizeof code, &image, &err) != LUATTN_OK) fail_msg("%s", err.message);
  problem_close(&p);
  return image;
}

static luattn_status open_sections(const sections *s, luattn_image **image, luattn_error *err) {
  size_t size;
  unsigned char *bytes = sections_write(s, &size);
  *image = NULL;
  const luattn_status status = luattn_image_open(bytes, size, image, err);
  free(bytes);
  return status;
}

static void opens(const sections *s) {
  luattn_image *image;
  luattn_error err;
  if (open_sections(s, &image, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_image_free(image);
}

static void refused(const sections *s, const char *message) {
  luattn_image *image;
  luattn_error err;
  if (open_sections(s, &image, &err) != LUATTN_IMAGE) fail_msg("accepted: %s", message);
  assert_null(image);
  if (strstr(err.message, message) == NULL) fail_msg("'%s' lacks '%s'", err.message, message);
}

static luattn_image *image;
static sections all;

static int open_image(void **state) {
  size_t size;
  (void)state;
  image = sample(&planned);
  sections_read(luattn_image_bytes(image, &size), &all);
  return 0;
}

static int free_image(void **state) {
  (void)state;
  luattn_image_free(image);
  return 0;
}

/* Checks the bytes against the format in abi/image.h. */
static void layout(void **state) {
  (void)state;
  static const char *const tags[] = {"FACT", "PARM", "HASH", "ENTR", "INPT", "SCAL",
                                     "STAT", "TILE", "LENS", "PLAN", "CODE"};
  const image_manifest *m = image_get_manifest(image);
  size_t size;
  assert_int_equal(all.count, sizeof tags / sizeof *tags);
  for (size_t i = 0; i < all.count; ++i) {
    const bool is_optional =
        strcmp(tags[i], "TILE") == 0 || strcmp(tags[i], "LENS") == 0 || strcmp(tags[i], "PLAN") == 0;
    assert_memory_equal(all.list[i].tag, tags[i], 4);
    assert_int_equal(all.list[i].flags, is_optional ? 0 : 1);
    assert_int_equal((uintptr_t)all.list[i].bytes % 16, 0);
  }
  assert_int_equal(sections_find(&all, "ENTR")->size, m->num_entries * sizeof *m->entry);
  assert_memory_equal(sections_find(&all, "PARM")->bytes, &m->params_version, 8);
  const unsigned char *bytes = luattn_image_bytes(image, &size);
  size_t again_size;
  unsigned char *again = sections_write(&all, &again_size);
  assert_int_equal(again_size, size);
  assert_memory_equal(again, bytes, size);
  free(again);
}

static void plans(void **state) {
  (void)state;
  image_plan got = {.text = "none"};
  luattn_image *opened;
  luattn_error err;
  assert_int_equal(open_sections(&all, &opened, &err), LUATTN_OK);
  assert_true(image_get_plan(opened, &got));
  assert_string_equal(got.text, plan_text);
  assert_memory_equal(&got.tiles, &planned.tiles, sizeof got.tiles);
  assert_true(got.every_length);
  luattn_image_free(opened);
  luattn_image *without = sample(NULL);
  got.text = "none";
  assert_false(image_get_plan(without, &got));
  assert_string_equal(got.text, "none");
  luattn_image_free(without);
  static const char *const parts[] = {"PLAN", "TILE", "LENS"}; /* sections that an image may lack */
  for (int i = 0; i < 3; ++i) {
    sections s = all;
    sections_remove(&s, (size_t)(sections_find(&s, parts[i]) - s.list));
    assert_int_equal(open_sections(&s, &opened, &err), LUATTN_OK);
    assert_false(image_get_plan(opened, &got));
    luattn_image_free(opened);
  }
}

static void later_versions(void **state) {
  (void)state;
  for (size_t at = 0; at < all.count; ++at) {
    sections s = all;
    sections_insert(&s, at, "PAGE", 0, "later", 5);
    opens(&s);
    sections_insert(&s, at, "NONE", 0, "", 0);
    opens(&s);
    s.list[at].flags = 1;
    refused(&s, "section 'NONE': its kernels need it, and luattn " /* .. does not know it */);
    s.list[at].flags = 2;
    refused(&s, "section 'NONE': has flags 2, which luattn ");
    s.list[at].flags = 1;
    memcpy(s.list[at].tag, "\n\033'x", 4);
    refused(&s, "section '???x': its kernels need it, and luattn ");
  }
  sections s = all;
  sections_insert(&s, s.count, "PAGE", 0, "behind the code", 16);
  refused(&s, "section 'CODE': ends at byte ");
}

static void missing_and_doubled(void **state) {
  (void)state;
  static const char *const needed[] = {"FACT", "PARM", "HASH", "ENTR", "CODE"};
  char message[64];
  for (size_t i = 0; i < sizeof needed / sizeof *needed; ++i) {
    sections s = all;
    sections_remove(&s, (size_t)(sections_find(&s, needed[i]) - s.list));
    snprintf(message, sizeof message, "section '%s': is missing", needed[i]);
    refused(&s, message);
  }
  for (size_t i = 0; i < all.count; ++i) {
    sections s = all;
    sections_insert(&s, 0, (char[5]){all.list[i].tag[0], all.list[i].tag[1], all.list[i].tag[2], all.list[i].tag[3], 0},
                    all.list[i].flags, all.list[i].bytes, all.list[i].size);
    snprintf(message, sizeof message, "section '%.4s': stands twice", all.list[i].tag);
    refused(&s, message);
  }
  sections s = all; /* including unknown sections */
  sections_insert(&s, 1, "PAGE", 0, "", 0);
  sections_insert(&s, 3, "PAGE", 0, "", 0);
  refused(&s, "section 'PAGE': stands twice");
  s = all;
  for (int i = 0; s.count <= IMAGE_MAX_SECTIONS; ++i) {
    char tag[12];
    snprintf(tag, sizeof tag, "X%03d", i);
    if (s.count == IMAGE_MAX_SECTIONS) opens(&s);
    sections_insert(&s, 0, tag, 0, "", 0);
  }
  refused(&s, "byte 40: says 65 sections, at most 64 fit");
}

/* Section SEQU: an image without this section is for batches of equal lengths. */
static void packed_sequences(void **state) {
  (void)state;
  static const char code[] = "any bytes will do";
  assert_null(sections_find(&all, "SEQU"));
  assert_int_equal(image_get_manifest(image)->packed, 0);
  problem p;
  luattn_image *packed, *opened;
  luattn_error err;
  problem_open(&p, LUATTN_FORWARD);
  p.info.packed = 1;
  assert_int_equal(image_create(&p.info, NULL, code, sizeof code, &packed, &err), LUATTN_OK);
  size_t size;
  sections s;
  sections_read(luattn_image_bytes(packed, &size), &s);
  one_section *const section = sections_find(&s, "SEQU");
  static const uint32_t layouts[2] = {0, 1};
  assert_non_null(section);
  assert_int_equal(section->flags, 1); /* required: older versions must refuse the image */
  assert_int_equal(section->size, sizeof *layouts);
  assert_memory_equal(section->bytes, &layouts[0], sizeof *layouts);
  if (open_sections(&s, &opened, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(image_get_manifest(opened)->packed, 1);
  luattn_image_free(opened);
  section->bytes = &layouts[1];
  refused(&s, "packed_layout");
  section->bytes = layouts;
  section->size = sizeof layouts;
  refused(&s, "section 'SEQU': has 8 bytes, expected ");
  sections_remove(&s, (size_t)(section - s.list));
  if (open_sections(&s, &opened, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(image_get_manifest(opened)->packed, 0);
  luattn_image_free(opened);
  luattn_image_free(packed);
  p.info.packed = 2;
  assert_int_equal(image_create(&p.info, NULL, code, sizeof code, &packed, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "packed: is 2, expected 0 to 1"));
  p.info.packed = p.info.packed_layout[0] = 1;
  assert_int_equal(image_create(&p.info, NULL, code, sizeof code, &packed, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "packed_layout: is 1"));
  problem_close(&p);
}

/* Makes every section one byte shorter, one byte longer, and empty. */
static void wrong_sizes(void **state) {
  (void)state;
  char message[64];
  for (size_t i = 0; i + 1 < all.count; ++i) {
    const size_t size = all.list[i].size;
    const size_t wrong[] = {0, size - 1, size + 1, 40 * size};
    char *copy = calloc(40, size);
    memcpy(copy, all.list[i].bytes, size);
    for (int w = 0; w < 4; ++w) {
      sections s = all;
      s.list[i].bytes = copy;
      s.list[i].size = wrong[w];
      snprintf(message, sizeof message, "section '%.4s': has %zu bytes, expected ", s.list[i].tag, wrong[w]);
      refused(&s, message);
    }
    free(copy);
  }
  sections s = all;
  sections_find(&s, "CODE")->size = 0;
  refused(&s, "section 'CODE': has 0 bytes, expected 1 to ");
  const uint32_t two = 2;
  s = all;
  sections_find(&s, "LENS")->bytes = &two;
  refused(&s, "section 'LENS': is 2, expected 0 to 1");
  const luattn_tiles tiles = {.threads = -1};
  s = all;
  sections_find(&s, "TILE")->bytes = &tiles;
  refused(&s, "section 'TILE': number 2 is -1");
}

/* Writes wrong sizes and counts into the container, with a matching checksum. */
static void lying_container(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = sections_write(&all, &size);
  const size_t first_size = SECTIONS_HEADER + 8, count_at = 40;
  const struct {
    size_t offset;
    uint64_t value;
    const char *message;
  } bad[] = {
      {count_at, all.count + 1, ": there is no section 11 of 12"},
      {count_at, all.count - 1, "section 'CODE': is missing"},
      {count_at, 0, "section 'CODE': is missing"},
      {count_at, UINT64_MAX, "byte 40: says 18446744073709551615 sections"},
      {first_size, UINT64_MAX, "section 'FACT': says 18446744073709551615 bytes, and "},
      {first_size, size - SECTIONS_HEADER - 15, "section 'FACT': says "},
      {first_size, UINT64_MAX - 63, "section 'FACT': says "},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    uint64_t old;
    luattn_image *opened = NULL;
    luattn_error err;
    memcpy(&old, bytes + bad[i].offset, sizeof old);
    memcpy(bytes + bad[i].offset, &bad[i].value, sizeof bad[i].value);
    sections_sign(bytes, size);
    assert_int_equal(luattn_image_open(bytes, size, &opened, &err), LUATTN_IMAGE);
    if (strstr(err.message, bad[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, bad[i].message);
    memcpy(bytes + bad[i].offset, &old, sizeof old);
  }
  free(bytes);
}

/* Truncates an image at every byte, with matching size and checksum: no read may go past the end. */
static void cut_anywhere(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = sections_write(&all, &size);
  for (size_t cut = SECTIONS_HEADER; cut < size; ++cut) {
    unsigned char *exact = malloc(cut); /* so that a sanitizer detects any read past the end */
    const uint64_t total = cut;
    luattn_image *opened = NULL;
    luattn_error err;
    memcpy(exact, bytes, cut);
    memcpy(exact + 32, &total, sizeof total);
    sections_sign(exact, cut);
    assert_int_equal(luattn_image_open(exact, cut, &opened, &err), LUATTN_IMAGE);
    if (strstr(err.message, "it was cut or extended") == NULL) fail_msg("%s", err.message);
    free(exact);
  }
  free(bytes);
}

/* Checks the public description with structs of this version, an earlier and a later version. */
static void descriptions(void **state) {
  (void)state;
  const image_manifest *m = image_get_manifest(image);
  luattn_kernel_description d;
  luattn_error err;
  memset(&d, 0xa5, sizeof d); /* luattn_image_describe reads only struct_size */
  d.struct_size = sizeof d;
  assert_int_equal(luattn_image_describe(image, &d, &err), LUATTN_OK);
  assert_int_equal(d.struct_size, sizeof d);
  assert_string_equal(d.spec_name, "demo");
  assert_int_equal(d.pass, LUATTN_BACKWARD);
  assert_int_equal(d.head_dim_v, HEAD_DIM_V);
  assert_int_equal(d.wants, LUATTN_WANT_ALL);
  assert_int_equal(d.num_saved, NUM_SAVED);
  assert_int_equal(d.max_len, 1 << 20);
  assert_int_equal(d.source_hash[1], 2);
  assert_int_equal(d.num_functions, m->num_entries);
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    assert_string_equal(d.functions[i].name, m->entry[i].name);
    assert_int_equal(d.functions[i].is_main, strcmp(m->entry[i].name, "luattn_dkdv") == 0);
    assert_int_equal(d.functions[i].shared_bytes, m->entry[i].shared_bytes);
  }
  assert_int_equal(d.num_inputs, 4);
  assert_string_equal(d.inputs[3].name, "table");
  assert_int_equal(d.num_scalars, 2);
  assert_string_equal(d.scalars[1].name, "temperature");
  assert_true(d.scalars[1].value == 2);
  struct {
    luattn_kernel_description d;
    uint64_t more[4];
  } later;
  const size_t sizes[] = {sizeof d, sizeof d + 24, offsetof(luattn_kernel_description, has_lse)};
  for (int i = 0; i < 3; ++i) {
    memset(&later, 0xa5, sizeof later);
    later.d.struct_size = sizes[i];
    assert_int_equal(luattn_image_describe(image, &later.d, &err), LUATTN_OK);
    assert_int_equal(later.d.struct_size, sizes[i]);
    const size_t same = sizes[i] < sizeof d ? sizes[i] : sizeof d;
    assert_memory_equal((char *)&later + 8, (char *)&d + 8, same - 8);
    for (size_t b = same; b < sizeof later; ++b)
      assert_int_equal(((unsigned char *)&later)[b], b < sizes[i] ? 0 : 0xa5);
  }
  const size_t wrong[] = {0, 8, sizeof d + 4, sizeof d + 4104, SIZE_MAX};
  for (int i = 0; i < 5; ++i) {
    d.struct_size = wrong[i];
    assert_int_equal(luattn_image_describe(image, &d, &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, "luattn_image_describe: luattn_kernel_description: struct_size is "));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layout),           cmocka_unit_test(plans),
      cmocka_unit_test(later_versions),   cmocka_unit_test(missing_and_doubled),
      cmocka_unit_test(wrong_sizes),      cmocka_unit_test(lying_container),
      cmocka_unit_test(cut_anywhere),     cmocka_unit_test(descriptions),
      cmocka_unit_test(packed_sequences),
  };
  return cmocka_run_group_tests(tests, open_image, free_image);
}
