/* stored_test.c: images and packs in stored/, which luattn 0.1.0 wrote, stay readable: each image has one more section
 * than a plain one, and is written again with the same bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "luattn/pack.h"
#include "tests/support/problem.h"

/* What stored_images below say, in one line; members that are 0 are left out. */
static void describe(const luattn_kernel_description *d, char *out, size_t size) {
  const struct {
    const char *name;
    long long value;
  } all[] = {{"pass", d->pass},
             {"family", d->family},
             {"is_ptx", d->is_ptx},
             {"wants", d->wants},
             {"deterministic", d->deterministic},
             {"has_mask", d->has_mask},
             {"num_saved", d->num_saved},
             {"draws_tiles", d->draws_tiles},
             {"can_split", d->can_split},
             {"second_code", (long long)d->second_code},
             {"packed", d->packed},
             {"offsets", d->offsets},
             {"large_scores", d->large_scores},
             {"random", d->random},
             {"decode", d->decode},
             {"pages", d->pages},
             {"weights", d->weights},
             {"keys_modified", d->keys_modified}};
  size_t used = (size_t)snprintf(out, size, "%s:", d->spec_name);
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (all[i].value != 0) used += (size_t)snprintf(out + used, size - used, " %s %lld", all[i].name, all[i].value);
}

typedef struct stored_image {
  const char *name, *says;
  uint32_t params_bytes; /* tells them apart */
} stored_image;

static const stored_image stored_images[] = {
    {"forward", "demo: family 2 has_mask 1 num_saved 1 draws_tiles 1", 1000},
    {"backward", "demo: pass 1 family 1 wants 31 num_saved 1 can_split 1 second_code 192", 1001},
    {"packed", "demo: family 1 num_saved 1 packed 1", 1002},
    {"offsets", "demo: family 1 num_saved 1 offsets 2", 1003},
    {"large_scores", "demo: family 1 num_saved 3 large_scores 1", 1004},
    {"tile_bits", "demo: family 1 num_saved 1", 1005},
    {"random", "demo: family 1 num_saved 1 random 1", 1006},
    {"decode", "demo: family 1 deterministic 1 num_saved 1 can_split 1 decode 1", 1007},
    {"paged", "demo: family 1 num_saved 1 pages 8", 1008},
    {"weights", "demo: num_saved 1 weights 1", 1009},
    {"keys_modified", "demo: family 1 num_saved 1 pages 1 keys_modified 1", 1010},
    {"ptx", "demo: family 1 is_ptx 1 num_saved 1", 1011},
};
enum { NUM_STORED = sizeof stored_images / sizeof *stored_images };

static luattn_image *open_stored(const char *name) {
  char path[512], bytes[4096];
  luattn_image *image;
  luattn_error err;
  snprintf(path, sizeof path, "%s/%s.image", STORED, name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  const size_t size = fread(bytes, 1, sizeof bytes, f);
  fclose(f);
  if (luattn_image_open(bytes, size, &image, &err) != LUATTN_OK) fail_msg("%s: %s", name, err.message);
  return image;
}

static void check(const stored_image *s, const luattn_image *image) {
  luattn_kernel_description d = {.struct_size = sizeof d};
  char said[512];
  assert_int_equal(luattn_image_describe(image, &d, NULL), LUATTN_OK);
  describe(&d, said, sizeof said);
  assert_string_equal(said, s->says);
  assert_int_equal(image_get_manifest(image)->params_bytes, s->params_bytes);
  assert_int_equal(d.num_inputs, 4);
  assert_int_equal(d.num_scalars, 2);
}

static void images_say_what_they_said(void **state) {
  (void)state;
  for (int i = 0; i < NUM_STORED; ++i) {
    luattn_image *image = open_stored(stored_images[i].name);
    check(&stored_images[i], image);
    luattn_image_free(image);
  }
}

static void sections_hold_what_they_held(void **state) {
  (void)state;
  luattn_image *image = open_stored("tile_bits");
  const manifest_tile_bits *bits = &image_get_manifest(image)->bits[0];
  const manifest_tile_bits want = {.layout = 1,
                                   .by_batch = 1,
                                   .rows = 64,
                                   .columns = 32,
                                   .cost = 100,
                                   .inputs = 2,
                                   .scalars = 1,
                                   .reads_heads = 1,
                                   .has_reals = 1,
                                   .spec = {1, 2, 3, 4}};
  assert_int_equal(image_get_manifest(image)->tile_bits, 1);
  assert_memory_equal(bits, &want, sizeof want);
  luattn_image_free(image);
  image = open_stored("keys_modified");
  assert_memory_equal(&image_get_manifest(image)->append_mods[0], (&(manifest_append_mods){1, 1, 2}),
                      sizeof(manifest_append_mods));
  luattn_image_free(image);
  image = open_stored("offsets");
  assert_int_equal(image_get_manifest(image)->num_elsewhere, 1);
  luattn_image_free(image);
  image = open_stored("decode");
  assert_int_equal(image_get_manifest(image)->num_state[0], 2);
  luattn_image_free(image);
  image = open_stored("packed");
  assert_int_equal(image_get_manifest(image)->writes_padding, 1);
  luattn_image_free(image);
}

static void images_are_written_as_before(void **state) {
  (void)state;
  for (int i = 0; i < NUM_STORED; ++i) {
    luattn_image *was = open_stored(stored_images[i].name), *is;
    image_plan plan;
    size_t size, was_size, is_size;
    const void *code = luattn_image_cubin(was, &size);
    const bool planned = image_get_plan(was, &plan);
    assert_int_equal(planned, i == 0);
    assert_int_equal(image_create(image_get_manifest(was), planned ? &plan : NULL, code, size, &is, NULL), LUATTN_OK);
    const void *was_bytes = luattn_image_bytes(was, &was_size), *is_bytes = luattn_image_bytes(is, &is_size);
    assert_int_equal(is_size, was_size);
    assert_memory_equal(is_bytes, was_bytes, was_size);
    luattn_image_free(was);
    luattn_image_free(is);
  }
}

/* `of`: which of stored_images. */
static void check_pack(int version, const int *of, size_t count) {
  char path[512];
  luattn_pack *pack;
  luattn_error err;
  snprintf(path, sizeof path, "%s/version_%d.pack", STORED, version);
  if (luattn_pack_open(path, &pack, &err) != LUATTN_OK) fail_msg("%s: %s", path, err.message);
  for (size_t i = 0; i < count; ++i) {
    luattn_image *image;
    if (luattn_pack_image(pack, i, &image, &err) != LUATTN_OK) fail_msg("%s", err.message);
    check(&stored_images[of[i]], image);
    luattn_image_free(image);
    const luattn_pack_entry *e = luattn_pack_get_entry(pack, i);
    assert_int_equal(e->spec_hash[0], 7);
    assert_int_equal(e->lengths, of[i] == 0);
    assert_int_equal(e->head_dim, HEAD_DIM);
    assert_int_equal(e->head_dim_v, HEAD_DIM_V);
  }
  assert_null(luattn_pack_get_entry(pack, count));
  size_t index;
  const luattn_pack_query query = {.struct_size = sizeof query,
                                   .dtype = LUATTN_BF16,
                                   .head_dim = HEAD_DIM,
                                   .head_dim_v = HEAD_DIM_V,
                                   .arch = 90,
                                   .packed = version == 2};
  if (luattn_pack_find(pack, &query, &index, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(index, 0);
  luattn_pack_close(pack);
}

static void packs_are_read(void **state) {
  (void)state;
  check_pack(1, (const int[]){0, 1, 11}, 3);
  check_pack(2, (const int[]){2, 7, 8}, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(images_say_what_they_said),
                                     cmocka_unit_test(sections_hold_what_they_held),
                                     cmocka_unit_test(images_are_written_as_before), cmocka_unit_test(packs_are_read)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
