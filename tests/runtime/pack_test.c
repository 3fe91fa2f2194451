/* pack_test.c: tests packs of images that no GPU could run: images are read back as written, the best one is
 * found, and damage of every kind is reported. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#define XXH_INLINE_ALL /* header only, so that no library is linked */
#include <xxhash.h>

#include "runtime/pack/pack.h"
#include "tests/runtime/packs.h"
#include "tests/support/fake_cuda.h"

static void check_sample(const luattn_pack *pack) {
  luattn_pack_info info;
  luattn_error err;
  sample s;
  sample_open(&s);
  luattn_pack_get_info(pack, &info);
  assert_int_equal(info.num_entries, s.count);
  assert_string_equal(info.luattn_version, luattn_version());
  assert_string_equal(info.nvrtc_version, "13.0");
  assert_null(luattn_pack_get_entry(pack, s.count));
  void *bytes;
  size_t size, expected;
  assert_int_equal(luattn_pack_read(pack, 0, &bytes, &size, &err), LUATTN_OK);
  assert_int_equal(size, sizeof SPEC_TEXT - 1);
  assert_memory_equal(bytes, SPEC_TEXT, size);
  luattn_pack_free(bytes);
  for (size_t i = 1; i < s.count; ++i) {
    luattn_image *image;
    if (luattn_pack_image(pack, i, &image, &err) != LUATTN_OK) fail_msg("%s", err.message);
    const void *got = luattn_image_bytes(image, &size), *wanted = luattn_image_bytes(s.item[i].image, &expected);
    assert_int_equal(size, expected);
    assert_memory_equal(got, wanted, size);
    const luattn_pack_entry *e = luattn_pack_get_entry(pack, i);
    assert_true(e->stored_size < e->size / 4); /* mostly zeros */
    assert_int_equal(e->spec_hash[1], 8);
    luattn_image_free(image);
  }
  luattn_image *none = NULL;
  assert_int_equal(luattn_pack_image(pack, 0, &none, &err), LUATTN_INVALID);
  assert_int_equal(luattn_pack_image(pack, s.count, &none, &err), LUATTN_INVALID);
  sample_close(&s);
}

static void round_trip(void **state) {
  (void)state;
  write_sample();
  luattn_pack *pack = open_sample();
  check_sample(pack);
  luattn_pack_close(pack);
  size_t size, again_size;
  unsigned char *bytes = read_file(&size);
  luattn_error err;
  assert_int_equal(luattn_pack_open_bytes("memory", bytes, size, &pack, &err), LUATTN_OK);
  check_sample(pack);
  luattn_pack_close(pack);
  luattn_pack_close(NULL);
  write_sample();
  unsigned char *again = read_file(&again_size);
  assert_int_equal(size, again_size);
  assert_memory_equal(bytes, again, size); /* deterministic output */
  free(again);
  free(bytes);
  assert_int_equal(luattn_pack_write(path, NULL, NULL, 0, &err), LUATTN_OK);
  pack = open_sample();
  assert_null(luattn_pack_get_entry(pack, 0));
  luattn_pack_close(pack);
}

/* Queries never request such images, so none would find them. */
static void other_kinds_are_refused(void **state) {
  (void)state;
  luattn_error err;
  sample s;
  sample_open(&s);
  const luattn_image *const dense = s.item[2].image;
  static const char *const kinds[] = {
      "parts of a whole (luattn_target.offsets)", "large scores (luattn_target.large_scores)",
      "the weights of V (luattn_target.weights)", "keys that have been modified (luattn_target.keys_modified)"};
  for (int i = 0; i < 4; ++i) {
    char message[200];
    problem p;
    problem_open(&p, LUATTN_FORWARD);
    p.info.offsets = i == 0, p.info.large_scores = i == 1, p.info.weights = i == 2, p.info.keys_modified = i == 3;
    if (i == 2) p.info.family = LUATTN_SIMT;
    luattn_image *const other = problem_image(&p);
    s.item[2].image = other;
    assert_int_equal(luattn_pack_write(path, "13.0", s.item, s.count, &err), LUATTN_UNSUPPORTED);
    snprintf(message, sizeof message,
             "luattn_pack_write: item 2: its image is for %s, which packs do not hold yet; leave it "
             "out, and let an engine compile it",
             kinds[i]);
    assert_string_equal(err.message, message);
    luattn_image_free(other);
    problem_close(&p);
  }
  s.item[2].image = dense;
  sample_close(&s);
}

/* A pack is of the earliest version that can hold it: an earlier luattn reads packs without variants. */
static void versions(void **state) {
  (void)state;
  for (sample_version = 1; sample_version <= 3; ++sample_version) {
    size_t size;
    pack_header h;
    write_sample();
    unsigned char *bytes = read_file(&size);
    memcpy(&h, bytes, sizeof h);
    assert_int_equal(h.version, sample_version);
    luattn_pack *pack = open_sample();
    check_sample(pack);
    luattn_pack_close(pack);
    free(bytes);
  }
  sample_version = 1;
}

/* Opens bytes in a block of exactly `size`, so that a sanitizer detects any read past the end, and reads
 * every entry. */
static luattn_status open_and_read(const unsigned char *bytes, size_t size, bool *opened, luattn_error *err) {
  unsigned char *copy = malloc(size > 0 ? size : 1);
  memcpy(copy, bytes, size);
  luattn_pack *pack = NULL;
  luattn_status status = luattn_pack_open_bytes("p", copy, size, &pack, err);
  *opened = status == LUATTN_OK;
  const luattn_pack_entry *e;
  for (size_t i = 0; status == LUATTN_OK && (e = luattn_pack_get_entry(pack, i)) != NULL; ++i) {
    luattn_image *image = NULL;
    void *text = NULL;
    size_t text_size;
    status = e->kind == LUATTN_PACK_IMAGE ? luattn_pack_image(pack, i, &image, err)
                                          : luattn_pack_read(pack, i, &text, &text_size, err);
    luattn_image_free(image);
    luattn_pack_free(text);
  }
  luattn_pack_close(pack);
  free(copy);
  return status;
}

static void truncations_and_bit_flips(void) {
  write_sample();
  size_t size;
  luattn_error err;
  bool opened;
  unsigned char *bytes = read_file(&size);
  const size_t index_end = sizeof(pack_header) + 5 * pack_record_size((uint32_t)sample_version);
  assert_int_equal(open_and_read(bytes, size, &opened, &err), LUATTN_OK);
  for (size_t cut = 0; cut < size; ++cut) {
    assert_int_equal(open_and_read(bytes, cut, &opened, &err), LUATTN_IMAGE);
    assert_false(opened);
    assert_true(strncmp(err.message, "pack: p: ", 9) == 0);
  }
  for (size_t bit = 0; bit < 8 * size; ++bit) {
    bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    assert_int_equal(open_and_read(bytes, size, &opened, &err), LUATTN_IMAGE);
    assert_int_equal(opened, bit / 8 >= index_end); /* damage in the index is detected by open */
    bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
  }
  free(bytes);
}

static void every_truncation_and_bit_flip(void **state) {
  (void)state;
  for (sample_version = 1; sample_version <= 3; ++sample_version) truncations_and_bit_flips();
  sample_version = 1;
}

/* Fixes the header's checksum, as deliberate damage would. */
static void mend(unsigned char *bytes, size_t entries) {
  const XXH128_hash_t sum =
      XXH3_128bits(bytes + PACK_CHECKED_FROM,
                   sizeof(pack_header) + entries * pack_record_size((uint32_t)sample_version) - PACK_CHECKED_FROM);
  memcpy(bytes + 16, &sum.low64, 8);
  memcpy(bytes + 24, &sum.high64, 8);
}

static void refuse_lies(void) {
  write_sample();
  size_t size;
  unsigned char *bytes = read_file(&size), *copy = malloc(size);
#define IN_RECORD(i, member) \
  sizeof(pack_header) + (i) * pack_record_size((uint32_t)sample_version) + offsetof(pack_record, member)
#define IN_HEADER(member) offsetof(pack_header, member)
  const struct {
    size_t offset, width;
    uint64_t value;
    const char *message;
  } lie[] = {
      {IN_HEADER(magic), 1, 'X', "byte 0: magic is not LUATTNPK"},
      {IN_HEADER(version), 4, 9, "byte 8: format version is 9, this luattn ("},
      {IN_HEADER(byte_order), 4, 0x04030201, "byte 12: was written on a machine of another byte order"},
      {IN_HEADER(total_size), 8, UINT64_MAX, "byte 32: says 18446744073709551615 bytes"},
      {IN_HEADER(num_entries), 8, UINT64_MAX, "byte 40: says 18446744073709551615 entries"},
      {IN_HEADER(num_entries), 8, UINT64_MAX / sizeof(pack_record) + 2, "which do not fit"},
      {IN_HEADER(num_entries), 8, 4, "entry 0: has values"},
      {IN_HEADER(luattn_version), 32, UINT64_MAX, "byte 48: a version does not end"},
      {IN_RECORD(1, entry.kind), 4, 3, "entry 1: has values that no pack has"},
      {IN_RECORD(1, entry.dtype), 4, KERNEL_DTYPES, "entry 1: has values"},
      {IN_RECORD(1, entry.family), 4, KERNEL_FAMILIES, "entry 1: has values"},
      {IN_RECORD(1, entry.arch), 4, 1u << 31, "entry 1: has values"},
      {IN_RECORD(1, entry.arch_suffix), 4, UINT32_MAX, "entry 1: has values"},
      {IN_RECORD(1, entry.lengths), 4, 3, "entry 1: has values"},
      {IN_RECORD(1, entry.deterministic), 4, 2, "entry 1: has values"},
      {IN_RECORD(2, entry.size), 8, UINT64_MAX, "entry 2: has values"},
      {IN_RECORD(2, entry.size), 8, PACK_MAX_ENTRY_BYTES + 1, "entry 2: has values"},
      {IN_RECORD(2, entry.size), 8, PACK_MAX_ENTRY_BYTES, "entry 2: cannot be decompressed to its 268435456 bytes"},
      {IN_RECORD(2, entry.size), 8, 4096, "entry 2: cannot be decompressed to its 4096 bytes"},
      {IN_RECORD(2, entry.stored_size), 8, UINT64_MAX - 4096, "entry 2: has values"},
      {IN_RECORD(3, offset), 8, UINT64_MAX - 10, "entry 3: has values"},
      {IN_RECORD(3, offset), 8, 0, "entry 3: has values"},
      {IN_RECORD(4, entry.stored_size), 8, 1, "entries end at byte"},
      {IN_RECORD(3, checksum_low), 8, 1, "entry 3: checksum does not match its bytes"},
      {IN_RECORD(1, entry.head_dim), 4, 80, "entry 1: is not the image that the index says"},
      {IN_RECORD(1, entry.arch), 4, 86, "entry 1: is not the image that the index says"},
      {IN_RECORD(4, entry.wants), 4, 1, "entry 4: is not the image that the index says"},
      {IN_RECORD(0, entry.kind), 4, LUATTN_PACK_IMAGE, "image: byte 0: magic is not LUATTNIM"},
      /* Of versions 2 and 3: */
      {IN_RECORD(3, variant.packed), 4, 2, "entry 3: has values"},
      {IN_RECORD(3, variant.pages), 4, 4, "entry 3: has values"},
      {IN_RECORD(3, variant.decode), 4, 2, "entry 3: has values"},
      {IN_RECORD(3, variant.out_f32), 4, 2, "entry 3: has values"},
      {IN_RECORD(3, variant.out_f32), 4, 1, "entry 3: is not the image that the index says"},
      {IN_RECORD(3, variant.packed), 4, 1, "entry 3: is not the image that the index says"},
      {IN_RECORD(3, variant.pages), 4, 8, "entry 3: is not the image that the index says"},
      /* Of one of them: */
      {IN_RECORD(1, variant.decode), 4, sample_version == 3, "entry 1: is not the image that the index says"},
      {IN_RECORD(3, variant.grad_f32), 4, 2, "entry 3: has values"},
      {IN_RECORD(3, variant.unused), 4, 1, "entry 3: has values"},
      {IN_RECORD(3, variant.grad_f32), 4, 1, "entry 3: is not the image that the index says"},
      {IN_RECORD(1, variant.out_f32), 4, 0, "entry 1: is not the image that the index says"},
  };
  const size_t count = sizeof lie / sizeof *lie - (sample_version == 1 ? 12 : sample_version == 2 ? 4 : 0);
  for (size_t i = 0; i < count; ++i) {
    luattn_error err;
    bool opened;
    unsigned char value[32];
    memset(value, 0xff, sizeof value);
    memcpy(value, &lie[i].value, sizeof lie[i].value);
    memcpy(copy, bytes, size);
    memcpy(copy + lie[i].offset, value, lie[i].width);
    if (lie[i].value != UINT64_MAX / sizeof(pack_record) + 2 && lie[i].value != UINT64_MAX)
      mend(copy, lie[i].offset == IN_HEADER(num_entries) ? 4 : 5);
    else
      mend(copy, 5);
    if (open_and_read(copy, size, &opened, &err) != LUATTN_IMAGE) fail_msg("accepted: %s", lie[i].message);
    if (strstr(err.message, lie[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, lie[i].message);
  }
  free(copy);
  free(bytes);
}

static void lies_are_refused(void **state) {
  (void)state;
  for (sample_version = 1; sample_version <= 3; ++sample_version) refuse_lies();
  sample_version = 1;
}

static void replaced_while_open(void **state) {
  (void)state;
  write_sample();
  luattn_pack *pack = open_sample();
  luattn_error err;
  luattn_image *image = NULL;
  size_t size;
  unsigned char *bytes = read_file(&size);
  assert_int_equal(luattn_pack_write(path, NULL, NULL, 0, &err), LUATTN_OK); /* renamed over it */
  check_sample(pack);
  luattn_pack_close(pack);

  write_sample();
  pack = open_sample();
  memset(bytes + size - 64, 0, 64);
  write_file(bytes, size, "r+b"); /* the same file with a different end */
  assert_int_equal(luattn_pack_image(pack, 1, &image, &err), LUATTN_OK);
  luattn_image_free(image);
  assert_int_equal(luattn_pack_image(pack, 4, &image, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "entry 4: checksum does not match its bytes; it is damaged, or the file was"));
  write_file(bytes, size - 100, "wb");
  assert_int_equal(luattn_pack_image(pack, 4, &image, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "while it is open; it was cut"));
  luattn_pack_close(pack);
  free(bytes);
}

static void full_disk(void **state) {
  (void)state;
  write_sample();
  size_t size;
  unsigned char *before = read_file(&size);
  /* Runs in a child process, because the limit is permanent: a file may grow to 1 KB, and writing more fails
   * as on a full disk. SIGXFSZ keeps its default action, which would end the process. */
  const pid_t child = fork();
  if (child == 0) {
    sample s;
    luattn_error err;
    const struct rlimit limit = {1024, 1024};
    sample_open(&s);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    if (luattn_pack_write(path, "13.0", s.item, s.count, &err) != LUATTN_IO) _exit(3);
    if (strstr(err.message, "cannot write it: File too large; nothing was changed") == NULL) _exit(4);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  size_t size_after;
  unsigned char *after = read_file(&size_after);
  assert_int_equal(size, size_after);
  assert_memory_equal(before, after, size);
  free(before);
  free(after); /* remove_dir fails if a temporary file was left */
}

/* The linker redirects the library's calls of malloc and calloc here. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
/* Exported, because with some linkers linked shared libraries call them too. */
__attribute__((visibility("default"))) void *__wrap_malloc(size_t size);
__attribute__((visibility("default"))) void *__wrap_calloc(size_t count, size_t size);

static atomic_long until_refusal = -1; /* allocations; negative: none is refused */
static bool is_refused(void) { return atomic_load(&until_refusal) >= 0 && atomic_fetch_sub(&until_refusal, 1) == 0; }
void *__wrap_malloc(size_t size) { return is_refused() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return is_refused() ? NULL : __real_calloc(count, size); }

static luattn_status write_and_read(const sample *s, luattn_error *err) {
  luattn_pack *pack;
  luattn_image *image;
  void *text;
  size_t size;
  TRY(luattn_pack_write(path, "13.0", s->item, s->count, err));
  TRY(luattn_pack_open(path, &pack, err));
  luattn_status status = luattn_pack_read(pack, 0, &text, &size, err);
  if (status == LUATTN_OK) {
    luattn_pack_free(text);
    status = luattn_pack_image(pack, 4, &image, err);
  }
  if (status == LUATTN_OK) luattn_image_free(image);
  luattn_pack_close(pack);
  return status;
}

/* Refuses each allocation once. Only the allocation for further threads may fail without an error. Sanitizers
 * find leaks. */
static void every_allocation_refused(void **state) {
  (void)state;
  sample s;
  luattn_error err;
  long n = 0, refused = 0, in_zstd = 0;
  sample_open(&s);
  for (bool done = false; !done; ++n) {
    atomic_store(&until_refusal, n);
    const luattn_status status = write_and_read(&s, &err);
    done = atomic_exchange(&until_refusal, -1) >= 0;
    refused += status == LUATTN_NO_MEMORY;
    in_zstd += status == LUATTN_NO_MEMORY && strstr(err.message, ": no memory to decompress ") != NULL;
    assert_true(status == LUATTN_NO_MEMORY || status == LUATTN_OK);
    if (done) assert_int_equal(status, LUATTN_OK);
  }
  assert_in_range(refused, n - 3, n - 1);
  assert_true(n > 15);
  assert_true(in_zstd > 0 || !ZSTD_BUILT_IN); /* calls of a shared zstd are not redirected */
  sample_close(&s);
}

static void strange_files(void **state) {
  (void)state;
  luattn_pack *pack = NULL;
  luattn_error err;
  assert_int_equal(luattn_pack_open("/nonexistent/pack", &pack, &err), LUATTN_IO);
  assert_non_null(strstr(err.message, "pack: /nonexistent/pack: cannot open it: No such file"));
  assert_int_equal(luattn_pack_open(dir, &pack, &err), LUATTN_IO);
  assert_non_null(strstr(err.message, "is not a regular file"));
  (void)unlink(path);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(luattn_pack_open(path, &pack, &err), LUATTN_IO);
  assert_int_equal(unlink(path), 0);
  write_file("", 0, "wb");
  assert_int_equal(luattn_pack_open(path, &pack, &err), LUATTN_IMAGE);
  assert_non_null(strstr(err.message, "has 0 bytes, fewer than its header of 112"));
  assert_null(pack);
  assert_int_equal(luattn_pack_write("/nonexistent/pack", NULL, NULL, 0, &err), LUATTN_IO);
  assert_non_null(strstr(err.message, "cannot create /nonexistent/pack.tmp-"));
  assert_non_null(strstr(err.message, ": No such file or directory; nothing was changed"));
  const luattn_pack_item bad = {.kind = LUATTN_PACK_SOURCE, .text = "x", .text_size = 1};
  assert_int_equal(luattn_pack_write(path, NULL, &bad, 1, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "item 0: its image is missing"));
  for (int kind = -1; kind <= 3; kind += 4) { /* a pack with such an item could not be opened */
    const luattn_pack_item none = {.kind = (luattn_pack_kind)kind, .spec_name = "x", .text = "x", .text_size = 1};
    assert_int_equal(luattn_pack_write(path, NULL, &none, 1, &err), LUATTN_INVALID);
    assert_non_null(
        strstr(err.message, kind < 0 ? "item 0: kind is -1, expected 0 to 2" : "item 0: kind is 3, expected 0 to 2"));
  }
}

/* luattn_pack_write refuses to replace anything except files, and leaves it unchanged. */
static void written_over_nothing_but_files(void **state) {
  (void)state;
  luattn_error err;
  struct stat st;
  char target[48];
  snprintf(target, sizeof target, "%s/target", dir);
  assert_int_equal(luattn_pack_write(dir, NULL, NULL, 0, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "is a folder; name a file in it"));
  (void)unlink(path);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(luattn_pack_write(path, NULL, NULL, 0, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "is a device, a pipe or a socket; name a regular file or a new one"));
  assert_int_equal(lstat(path, &st), 0);
  assert_true(S_ISFIFO(st.st_mode));
  assert_int_equal(unlink(path), 0);
  for (int dangles = 1; dangles >= 0; --dangles) {
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(luattn_pack_write(path, NULL, NULL, 0, &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, "is a symbolic link; name the file that it points to"));
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(luattn_pack_write(target, NULL, NULL, 0, &err), LUATTN_OK);
  }
  assert_int_equal(unlink(target), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(other_kinds_are_refused),
      cmocka_unit_test(versions),
      cmocka_unit_test(round_trip),
      cmocka_unit_test(lies_are_refused),
      cmocka_unit_test(every_truncation_and_bit_flip),
      cmocka_unit_test(replaced_while_open),
      cmocka_unit_test(full_disk),
      cmocka_unit_test(every_allocation_refused),
      cmocka_unit_test(strange_files),
      cmocka_unit_test(written_over_nothing_but_files),
  };
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
