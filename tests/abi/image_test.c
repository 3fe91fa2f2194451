#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include "tests/abi/sections.h"
#include "tests/support/problem.h"

static const char cubin[] = "any bytes will do";

static image_manifest sample(luattn_pass pass) {
  problem p;
  problem_open(&p, pass);
  const image_manifest info = p.info;
  problem_close(&p);
  return info;
}

/* Creates an image of the sample problem, with one code or two. */
static luattn_image *sample_image(uint32_t second_code) {
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.info.second_code = second_code;
  luattn_image *image = problem_image(&p);
  problem_close(&p);
  return image;
}

static void round_trip(void **state) {
  (void)state;
  const image_manifest info = sample(LUATTN_BACKWARD);
  luattn_error err;
  luattn_image *made, *opened;
  assert_int_equal(image_create(&info, NULL, cubin, sizeof cubin, &made, &err), LUATTN_OK);
  size_t size, opened_size, cubin_size;
  const void *bytes = luattn_image_bytes(made, &size);
  /* An odd address: bytes from a pack or a mapped file need not be aligned. */
  unsigned char *shifted = malloc(size + 1);
  memcpy(shifted + 1, bytes, size);
  assert_int_equal(luattn_image_open(shifted + 1, size, &opened, &err), LUATTN_OK);
  free(shifted);
  assert_memory_equal(image_get_manifest(opened), &info, sizeof info);
  assert_memory_equal(luattn_image_cubin(opened, &cubin_size), cubin, sizeof cubin);
  assert_int_equal(cubin_size, sizeof cubin);
  assert_memory_equal(luattn_image_bytes(opened, &opened_size), bytes, size);
  assert_int_equal(opened_size, size);
  assert_int_equal((uintptr_t)luattn_image_cubin(opened, &cubin_size) % 16, 0);
  luattn_image_free(made);
  luattn_image_free(opened);
  luattn_image_free(NULL);
}

/* Images say by what they have always held how their kernels are launched. */
static void traits_follow(void **state) {
  (void)state;
  const image_manifest simt = {.family = LUATTN_SIMT}, sm80 = {.family = LUATTN_SM80}, sm90 = {.family = LUATTN_SM90},
                       decode = {.family = LUATTN_SM80, .decode = 1}, weights = {.family = LUATTN_SIMT, .weights = 1};
  assert_true(manifest_traits(&sm90)->takes_descriptors && manifest_traits(&sm90)->is_resident);
  assert_false(manifest_traits(&sm80)->takes_descriptors || manifest_traits(&sm80)->is_resident);
  assert_true(manifest_traits(&sm80)->numbers_tiles);
  assert_false(manifest_traits(&decode)->numbers_tiles || manifest_traits(&simt)->numbers_tiles);
  assert_int_equal(manifest_traits(&decode)->vector_bits, 64);
  assert_int_equal(manifest_traits(&simt)->vector_bits, 16);
  assert_int_equal(manifest_traits(&weights)->vector_bits, 16);
}

/* A member at `offset` of the manifest and a bad value for it. image_create must refuse the value with a
 * message that names the member. */
typedef struct bad_field {
  size_t offset, size;
  long long value;
  const char *message;
} bad_field;

#define FIELD(member) offsetof(image_manifest, member), sizeof(((image_manifest *)0)->member)

static const bad_field bad_fields[] = {
    {FIELD(pass), KERNEL_PASSES, "pass"},
    {FIELD(family), KERNEL_FAMILIES, "family"},
    {FIELD(dtype), KERNEL_DTYPES, "dtype"},
    {FIELD(arch), 8, "arch"},
    {FIELD(arch_suffix), 'f', "arch_suffix"},
    {FIELD(arch_suffix), 0x61616161, "arch_suffix: its name does not end"},
    {FIELD(head_dim), 0, "head_dim: is 0"},
    {FIELD(head_dim_v), 1u << 20, "head_dim_v"},
    {FIELD(num_entries), 0, "num_entries: is 0, expected 1 to 12"},
    {FIELD(num_entries), 13, "num_entries"},
    {FIELD(tile_bits), 2, "tile_bits: is 2, expected 0 to 1"},
    {FIELD(weights), 2, "weights: is 2, expected 0 to 1"},
    {FIELD(weights), 1, "weights: pass: is 1, expected 0 to 0"},
    {FIELD(keys_modified), 2, "keys_modified: is 2, expected 0 to 1"},
    {FIELD(row_passes), 2, "row_passes: is 2, expected 0 to 1"},
    {FIELD(row_passes), 1, "row_passes: count: is 0, expected 1 to 2"},
    {FIELD(num_inputs), 13, "num_inputs"},
    {FIELD(num_scalars), 33, "num_scalars"},
    {FIELD(num_stats), 9, "num_stats"},
    {FIELD(num_saved), 65, "num_saved"},
    {FIELD(num_bwd_rows), 4000000000, "num_bwd_rows"},
    {FIELD(has_lse), 2, "has_lse"},
    {FIELD(has_query_mod), 2, "has_query_mod"},
    {FIELD(has_key_mod), 2, "has_key_mod"},
    {FIELD(has_value_mod), 2, "has_value_mod"},
    {FIELD(accumulates_dq), 2, "accumulates_dq"},
    {FIELD(wants), 32, "wants"},
    {FIELD(draws_tiles), 2, "draws_tiles"},
    {FIELD(is_ptx), 2, "is_ptx"},
    {FIELD(can_split), 2, "can_split: is 2"},
    {FIELD(has_mask), 2, "has_mask: is 2"},
    {FIELD(deterministic), 2, "deterministic: is 2"},
    {FIELD(deterministic), 1, "deterministic: no entry rounds"},
    {FIELD(params_bytes), 0, "params_bytes: is 0, expected 1 to 4096"},
    {FIELD(params_bytes), 4097, "params_bytes: is 4097"},
    {FIELD(max_len), 0, "max_len: is 0"},
    {FIELD(max_len), (long long)1 << 31, "max_len"},
    {FIELD(entry[0].name[0]), 0, "entry: its name is empty"},
    {FIELD(entry[1].role), LUATTN_ROLE_COUNT, "entry: role"},
    {FIELD(entry[1].role), LUATTN_ROLE_FORWARD, "does not belong to a backward pass"},
    {FIELD(entry[1].threads), 31, "entry: threads: is 31, expected 32 to 1024"},
    {FIELD(entry[1].threads), 1025, "entry: threads: is 1025, expected 32 to 1024"},
    {FIELD(entry[1].shared_bytes), 1u << 21, "entry: shared_bytes"},
    {FIELD(entry[1].role), LUATTN_ROLE_NORMS, "one of the norms of q and k and of the tiles"},
    {FIELD(entry[1].role), LUATTN_ROLE_TILE_BITMAP, "one of the norms of q and k and of the tiles"},
    {FIELD(entry[2].tile_m), 0, "entry: tile_m"},
    {FIELD(entry[3].tile_m), 0, "entry: tile_m"},
    {FIELD(entry[3].tile_n), 0, "entry: tile_n"},
    {FIELD(entry[4].role), LUATTN_ROLE_DQ, "no entry turns the sums into dq"},
    {FIELD(input[0].dtype), 9, "input: dtype"},
    {FIELD(input[0].num_axes), 5, "input: num_axes"},
    {FIELD(input[0].axis[0]), -6, "input: axis: is -6"},
    {FIELD(input[0].grad), 2, "input: grad"},
    {FIELD(input[0].pairs), LUATTN_INDEX_KV + 1, "input: pairs: is 5"},
    {FIELD(input[0].pairs), 1u << 28, "input: pairs: is 1, expected 0 to 0"}, /* the axis does not exist */
    {FIELD(scalar[0].name[0]), 'z', "scalar 'temperature': names are not in order"},
    {FIELD(reads_ahead), 2, "reads_ahead: is 2"},
    {FIELD(stat[0].input), 4, "stat: input"},
    {FIELD(stat[0].input), 0, "stat: dtype of its input"},
    {FIELD(stat[0].axis), 0, "stat: axis"},
    {FIELD(stat[0].block), 0, "stat: block"},
};

static void manifest_is_checked(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bad_fields / sizeof *bad_fields; ++i) {
    image_manifest info = sample(LUATTN_BACKWARD);
    luattn_error err;
    luattn_image *image = NULL;
    memcpy((char *)&info + bad_fields[i].offset, &bad_fields[i].value, bad_fields[i].size);
    if (image_create(&info, NULL, cubin, sizeof cubin, &image, &err) != LUATTN_IMAGE)
      fail_msg("accepted: %s", bad_fields[i].message);
    if (strstr(err.message, bad_fields[i].message) == NULL)
      fail_msg("'%s' lacks '%s'", err.message, bad_fields[i].message);
    assert_null(image);
  }
}

static void must_refuse(const image_manifest *info, const char *message) {
  luattn_error err;
  luattn_image *image = NULL;
  assert_int_equal(image_create(info, NULL, cubin, sizeof cubin, &image, &err), LUATTN_IMAGE);
  if (strstr(err.message, message) == NULL) fail_msg("'%s' lacks '%s'", err.message, message);
  assert_null(image);
}

static void names_and_tiles_are_checked(void **state) {
  (void)state;
  image_manifest info = sample(LUATTN_FORWARD);
  memset(info.spec_name, 'x', sizeof info.spec_name);
  must_refuse(&info, "spec: its name does not end");
  info = sample(LUATTN_FORWARD);
  memcpy(info.input[2].name, "slopes", sizeof "slopes");
  must_refuse(&info, "input 'slopes': stands twice");
  info = sample(LUATTN_FORWARD);
  info.entry[2].tile_n = 0;
  must_refuse(&info, "entry: tile_n: is 0");
  info = sample(LUATTN_FORWARD);
  info.entry[0].role = LUATTN_ROLE_TILE_ORDER, info.entry[0].tile_m = 64;
  must_refuse(&info, "entries: an order of tiles, and no bits");
  info = sample(LUATTN_FORWARD);
  info.decode = 1;
  for (uint32_t i = 0; i < info.num_entries; ++i)
    if (info.entry[i].role == LUATTN_ROLE_FORWARD) info.entry[i].role = LUATTN_ROLE_MERGE;
  must_refuse(&info, "entries: no decode kernel");
}

/* A call takes shared memory of the entry's less what its tokens leave, so that the entry must have that of a whole step. */
static void rings_are_checked(void **state) {
  (void)state;
  image_manifest info = sample(LUATTN_FORWARD);
  info.linear = 1;
  info.num_entries = 1;
  info.entry[0].role = LUATTN_ROLE_LINEAR;
  info.head_dim = 64;
  info.entry[0].shared_bytes = 1024;
  info.linear_facts[0] = (manifest_linear){
      .v_block = 64, .v_warp = 16, .ring = 32, .step = 16, .ring_width = 1, .ring_erases = 1, .numbers_kept = 256};
  must_refuse(&info, "linear: shared_bytes of a ring: is 1024, expected ");
  info.linear_facts[0].early = 2;
  must_refuse(&info, "linear: early: is 2, expected 0 to 1");
}

static void sections_are_checked(void **state) {
  (void)state;
  image_manifest info;
  const struct {
    size_t at;
    uint32_t value;
    const char *message;
  } of_weights[] = {{offsetof(image_manifest, weights_layout), 1, "weights_layout: is 1"},
                    {offsetof(image_manifest, family), LUATTN_SM80, "weights: family: is 1, expected 0 to 0"},
                    {offsetof(image_manifest, decode), 1, "weights: decode: is 1"},
                    {offsetof(image_manifest, paged), 1, "weights: paged: is 1"}};
  for (size_t i = 0; i < sizeof of_weights / sizeof *of_weights; ++i) {
    info = sample(LUATTN_FORWARD);
    info.weights = 1, info.family = LUATTN_SIMT, info.paged_layout[0] = 1;
    memcpy((char *)&info + of_weights[i].at, &of_weights[i].value, sizeof of_weights[i].value);
    must_refuse(&info, of_weights[i].message);
  }
  static const struct {
    uint32_t offsets;
    manifest_elsewhere at;
    const char *message;
  } of_elsewhere[] = {{0, {0, 0}, "num_elsewhere: is 1, expected 0 to 0"},
                      {1, {11, 0}, "elsewhere: input: is 11, expected the number of an input"},
                      {1, {0, 4}, "elsewhere: axis: is 4, expected an axis q, kv, h or hkv of its input"}};
  for (size_t i = 0; i < sizeof of_elsewhere / sizeof *of_elsewhere; ++i) {
    info = sample(LUATTN_FORWARD);
    info.offsets = of_elsewhere[i].offsets, info.num_elsewhere = 1, info.elsewhere[0] = of_elsewhere[i].at;
    must_refuse(&info, of_elsewhere[i].message);
  }
  static const struct {
    bool paged;
    manifest_append_mods mods;
    const char *message;
  } of_append[] = {{false, {.key_mod = 1}, "append_mods: key_mod: is 1, expected 0 to 0"},
                   {true, {.key_mod = 2}, "append_mods: key_mod: is 2, expected 0 to 1"},
                   {true, {.value_mod = 2}, "append_mods: value_mod: is 2, expected 0 to 1"},
                   {true, {.inputs = 1}, "append_mods: inputs: is 1, expected 0 to 0"},
                   {true,
                    {.value_mod = 1, .inputs = 1u << 11},
                    "append_mods: inputs: is 2048, expected bits of inputs that there are"}};
  for (size_t i = 0; i < sizeof of_append / sizeof *of_append; ++i) {
    info = sample(LUATTN_FORWARD);
    info.keys_modified = 1, info.paged = of_append[i].paged, info.paged_layout[0] = 1,
    info.append_mods[0] = of_append[i].mods;
    must_refuse(&info, of_append[i].message);
  }
}

static void code_is_checked(void **state) {
  (void)state;
  luattn_error err;
  luattn_image *image = NULL;
  image_manifest info = sample(LUATTN_FORWARD);
  info.is_ptx = 1;
  assert_int_equal(image_create(&info, NULL, "PTX", 3, &image, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "PTX of 3 bytes: does not end in a 0"));
  info.is_ptx = 0;
  assert_int_equal(image_create(&info, NULL, cubin, 0, &image, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "code: has 0 bytes"));
  assert_null(image);
}

static void put(unsigned char *at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = (unsigned char)(value >> (8 * i));
}

/* The driver does not get a cubin's size, so everything that the headers refer to must lie within the
 * cubin. */
static void cubins_end_where_they_say(void **state) {
  (void)state;
  enum { SIZE = 64 + 56 + 2 * 64 + 16 };
  unsigned char elf[SIZE] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
  put(elf + 32, 64, 8), put(elf + 54, 56, 2), put(elf + 56, 1, 2);  /* one segment */
  put(elf + 40, 120, 8), put(elf + 58, 64, 2), put(elf + 60, 2, 2); /* two sections */
  put(elf + 64 + 8, 248, 8), put(elf + 64 + 32, 16, 8);             /* the segment has the last 16 bytes */
  put(elf + 184 + 4, 1, 4), put(elf + 184 + 24, 248, 8), put(elf + 184 + 32, 16, 8); /* likewise the second section's */
  const image_manifest info = sample(LUATTN_FORWARD);
  luattn_image *image = NULL;
  luattn_error err;
  if (image_create(&info, NULL, elf, SIZE, &image, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_image_free(image);
  static const struct {
    int offset, bytes;
    uint64_t value;
  } bad[] = {{4, 1, 1},          {32, 8, 209},      {32, 8, UINT64_MAX},      {54, 2, 57},
             {56, 2, 65535},     {40, 8, 137},      {40, 8, UINT64_MAX},      {58, 2, 0},
             {60, 2, 65535},     {64 + 8, 8, 249},  {64 + 32, 8, 17},         {64 + 32, 8, UINT64_MAX - 200},
             {184 + 24, 8, 249}, {184 + 32, 8, 17}, {184 + 24, 8, UINT64_MAX}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    unsigned char copy[SIZE];
    memcpy(copy, elf, SIZE);
    put(copy + bad[i].offset, bad[i].value, bad[i].bytes);
    assert_int_equal(image_create(&info, NULL, copy, SIZE, &image, &err), LUATTN_IMAGE);
    assert_non_null(strstr(err.message, "says that parts of it lie outside of it"));
  }
  const unsigned char fatbin[SIZE] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
  assert_int_equal(image_create(&info, NULL, fatbin, SIZE, &image, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "is a fatbin"));
  put(elf + 184 + 4, 8, 4), put(elf + 184 + 32, 1 << 20, 8); /* a section without bytes may be of any size */
  assert_int_equal(image_create(&info, NULL, elf, SIZE, &image, &err), LUATTN_OK);
  luattn_image_free(image);
  for (size_t cut = 4; cut < SIZE; ++cut) {
    unsigned char *exact = malloc(cut); /* so that a sanitizer detects any read past the end */
    memcpy(exact, elf, cut);
    assert_int_equal(image_create(&info, NULL, exact, cut, &image, &err), LUATTN_IMAGE);
    free(exact);
  }
}

/* Zeros, at which a driver stops reading, separate a second code from the first. Both get the same checks. */
static void two_codes(void **state) {
  (void)state;
  enum { SIZE = 128 + 64 };
  image_manifest info = sample(LUATTN_FORWARD);
  luattn_image *image = NULL;
  luattn_error err;
  unsigned char code[SIZE] = "first";
  memcpy(code + 128, "second", 7);
  info.second_code = 128;
  assert_int_equal(image_create(&info, NULL, code, SIZE, &image, &err), LUATTN_OK);
  size_t size;
  assert_memory_equal((const char *)luattn_image_cubin(image, &size) + 128, "second", 7);
  assert_int_equal((uintptr_t)luattn_image_cubin(image, &size) % 16, 0);
  luattn_image_free(image);
  static const uint32_t bad[] = {1, 64, 120, 192, 256, UINT32_MAX - 63};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    info.second_code = bad[i];
    assert_int_equal(image_create(&info, NULL, code, SIZE, &image, &err), LUATTN_IMAGE);
    assert_non_null(strstr(err.message, "second_code: is "));
  }
  info.second_code = 128;
  code[64] = 1;
  assert_int_equal(image_create(&info, NULL, code, SIZE, &image, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "behind 64 zeros"));
  code[64] = 0;
  const unsigned char elf[] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
  memcpy(code + 128, elf, sizeof elf);
  put(code + 128 + 32, 64, 8), put(code + 128 + 54, 56, 2), put(code + 128 + 56, 1, 2); /* past the end */
  assert_int_equal(image_create(&info, NULL, code, SIZE, &image, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "cubin of 64 bytes: says that parts of it lie outside of it"));
  info.is_ptx = 1;
  code[SIZE - 1] = 'x';
  assert_int_equal(image_create(&info, NULL, code, SIZE, &image, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "PTX of 64 bytes: does not end in a 0"));
}

/* Sets `offset` of an image's bytes to `value` and fixes the checksum, so that later checks are reached. */
static luattn_status open_with(const unsigned char *bytes, size_t size, size_t offset, uint64_t value, size_t width,
                               luattn_error *err) {
  unsigned char *copy = malloc(size);
  memcpy(copy, bytes, size);
  memcpy(copy + offset, &value, width);
  if (offset < 16 || offset >= 32) sections_sign(copy, size);
  luattn_image *image = NULL;
  const luattn_status status = luattn_image_open(copy, size, &image, err);
  luattn_image_free(image);
  free(copy);
  return status;
}

static void header_is_checked(void **state) {
  (void)state;
  const image_manifest info = sample(LUATTN_FORWARD);
  luattn_image *image;
  assert_int_equal(image_create(&info, NULL, cubin, sizeof cubin, &image, NULL), LUATTN_OK);
  size_t size;
  const unsigned char *bytes = luattn_image_bytes(image, &size);
  sections all;
  sections_read(bytes, &all);
  const size_t facts = (size_t)((const unsigned char *)sections_find(&all, "FACT")->bytes - bytes);
  const struct {
    size_t offset, width;
    uint64_t value;
    const char *message;
  } bad[] = {
      {0, 1, 'X', "magic"},
      {8, 4, 5, "format version is 5, this luattn reads 8"},
      {12, 4, 0x04030201, "another byte order"},
      {16, 1, (uint64_t)bytes[16] ^ 1, "checksum"},
      {32, 8, size + 1, "cut or extended"},
      {32, 8, UINT64_MAX, "cut or extended"},
      {facts + offsetof(image_manifest, num_bwd_rows), 4, 4000000000, "num_bwd_rows: is 4000000000"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    luattn_error err;
    if (open_with(bytes, size, bad[i].offset, bad[i].value, bad[i].width, &err) != LUATTN_IMAGE)
      fail_msg("accepted: %s", bad[i].message);
    if (strstr(err.message, bad[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, bad[i].message);
  }
  luattn_image_free(image);
}

/* Opens a copy in a block of exactly `size` bytes, so that a sanitizer detects any read past the end. */
static luattn_status open_exact(const unsigned char *bytes, size_t size) {
  unsigned char *copy = malloc(size > 0 ? size : 1);
  memcpy(copy, bytes, size);
  luattn_image *image = NULL;
  luattn_error err;
  const luattn_status status = luattn_image_open(copy, size, &image, &err);
  luattn_image_free(image);
  free(copy);
  return status;
}

static void truncate_and_flip(uint32_t second_code) {
  luattn_image *image = sample_image(second_code);
  size_t size;
  const unsigned char *bytes = luattn_image_bytes(image, &size);
  assert_int_equal(open_exact(bytes, size), LUATTN_OK);
  for (size_t cut = 0; cut < size; ++cut) assert_int_equal(open_exact(bytes, cut), LUATTN_IMAGE);
  unsigned char *copy = malloc(size);
  memcpy(copy, bytes, size);
  for (size_t bit = 0; bit < 8 * size; ++bit) {
    copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
    assert_int_equal(open_exact(copy, size), LUATTN_IMAGE);
    copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
  }
  free(copy);
  luattn_image_free(image);
}

static void every_truncation_and_bit_flip(void **state) {
  (void)state;
  truncate_and_flip(0);
  truncate_and_flip(256);
}

static uint64_t next_random(uint64_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 7;
  *x ^= *x << 17;
  return *x;
}

/* Writes random numbers at random offsets and fixes the checksum. Every image that then opens must pass its
 * own check again and be safe to read. */
static void mutate(uint32_t second_code) {
  luattn_image *image = sample_image(second_code);
  size_t size, accepted = 0;
  const unsigned char *bytes = luattn_image_bytes(image, &size);
  unsigned char *copy = malloc(size);
  uint64_t seed = 0x9e3779b97f4a7c15u;
  for (int round = 0; round < 100000; ++round) {
    memcpy(copy, bytes, size);
    const int edits = 1 + (int)(next_random(&seed) % 3);
    for (int e = 0; e < edits; ++e) {
      const size_t at = next_random(&seed) % (size / 4) * 4;
      const uint64_t kind = next_random(&seed) % 4;
      const uint32_t word = kind == 0   ? (uint32_t)next_random(&seed)
                            : kind == 1 ? UINT32_MAX
                                        : (uint32_t)(next_random(&seed) % 70);
      memcpy(copy + at, &word, 4);
    }
    sections_sign(copy, size);
    luattn_image *opened = NULL;
    luattn_error err;
    const luattn_status status = luattn_image_open(copy, size, &opened, &err);
    if (status == LUATTN_OK) {
      luattn_image *again = NULL;
      size_t code_size;
      const void *code = luattn_image_cubin(opened, &code_size);
      assert_int_equal(image_create(image_get_manifest(opened), NULL, code, code_size, &again, &err), LUATTN_OK);
      luattn_image_free(again);
      luattn_image_free(opened);
      ++accepted;
    } else {
      assert_int_equal(status, LUATTN_IMAGE);
      assert_true(strncmp(err.message, "image: ", 7) == 0);
    }
  }
  assert_in_range(accepted, 1000, 99000); /* both outcomes occurred */
  free(copy);
  luattn_image_free(image);
}

static void random_mutations(void **state) {
  (void)state;
  mutate(0);
  mutate(256);
}

/* A backward's image of one row pass that reads row `row`. */
static luattn_image *with_pass(int32_t row) {
  image_manifest info = sample(LUATTN_BACKWARD);
  luattn_image *image = NULL;
  luattn_error err;
  info.row_passes = 1;
  info.passes[0] = (manifest_row_passes){.count = 1, .num_rows = {1}, .row = {{row}}};
  if (image_create(&info, NULL, cubin, sizeof cubin, &image, &err) != LUATTN_OK)
    assert_non_null(strstr(err.message, "row_passes: row: is"));
  return image;
}

/* The sample as a row pass, which reads one number of a row. */
static luattn_image *as_pass(luattn_pass pass, uint32_t head_dim) {
  image_manifest info = sample(pass);
  luattn_image *image;
  snprintf(info.input[info.num_inputs].name, LUATTN_NAME_SIZE, "a row");
  info.input[info.num_inputs++].num_axes = 0;
  info.has_lse = info.num_saved = 0;
  info.head_dim = head_dim;
  assert_int_equal(image_create(&info, NULL, cubin, sizeof cubin, &image, NULL), LUATTN_OK);
  return image;
}

static void row_passes(void **state) {
  (void)state;
  const uint32_t head_dim = sample(LUATTN_BACKWARD).head_dim;
  luattn_image *alone = with_pass(-1), *good = as_pass(LUATTN_FORWARD, head_dim), *whole, *found = NULL, *again;
  luattn_error err;
  size_t size, found_size;
  assert_null(with_pass(1000));
  assert_int_equal(image_open_pass(alone, 0, &found, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "section 'PAS0': is missing"));
  assert_int_equal(image_join(alone, (const luattn_image *[]){good, NULL}, &whole, &err), LUATTN_OK);
  const void *bytes = luattn_image_bytes(whole, &size);
  assert_int_equal(luattn_image_open(bytes, size, &again, &err), LUATTN_OK);
  assert_int_equal(image_open_pass(again, 0, &found, &err), LUATTN_OK);
  bytes = luattn_image_bytes(good, &size);
  assert_memory_equal(luattn_image_bytes(found, &found_size), bytes, size);
  assert_int_equal(found_size, size);
  luattn_image_free(found);
  luattn_image_free(again);
  luattn_image_free(whole);
  luattn_image *const wrong[] = {as_pass(LUATTN_BACKWARD, head_dim), as_pass(LUATTN_FORWARD, head_dim / 2)};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(image_join(alone, (const luattn_image *[]){wrong[i], NULL}, &whole, &err), LUATTN_OK);
    assert_int_equal(image_open_pass(whole, 0, &found, &err), LUATTN_IMAGE);
    assert_non_null(strstr(err.message, "section 'PAS0': is no row pass of this backward"));
    luattn_image_free(whole);
    luattn_image_free(wrong[i]);
  }
  luattn_image_free(alone);
  luattn_image_free(good);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(round_trip),
      cmocka_unit_test(row_passes),
      cmocka_unit_test(manifest_is_checked),
      cmocka_unit_test(names_and_tiles_are_checked),
      cmocka_unit_test(rings_are_checked),
      cmocka_unit_test(sections_are_checked),
      cmocka_unit_test(code_is_checked),
      cmocka_unit_test(cubins_end_where_they_say),
      cmocka_unit_test(two_codes),
      cmocka_unit_test(header_is_checked),
      cmocka_unit_test(every_truncation_and_bit_flip),
      cmocka_unit_test(random_mutations),
      cmocka_unit_test(traits_follow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
