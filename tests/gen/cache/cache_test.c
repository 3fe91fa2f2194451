/* cache_test.c: tests that stored images are found, damaged ones are not, and processes do not interfere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/gen/cache/cache_dir.h"

static void stores_and_finds(void **state) {
  (void)state;
  luattn_image *a = make_image(5000, 'a'), *b = make_image(100, 'b');
  assert_null(find(key));
  store(key, a);
  luattn_image *found = find(key);
  assert_true(same_bytes(a, found));
  luattn_image_free(found);
  store(key, b); /* replaces */
  found = find(key);
  assert_true(same_bytes(b, found));
  luattn_image_free(found);
  assert_null(find((hash128){1, 2}));
  assert_true(exists(KEY_PATH));
  assert_int_equal(count_temporaries(), 0);
  char path[512];
  struct stat st;
  path_of("fe", path);
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0700);
  path_of(KEY_PATH, path);
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  luattn_image_free(a);
  luattn_image_free(b);
}

static void makes_missing_directories(void **state) {
  (void)state;
  const size_t length = strlen(dir);
  strcat(dir, "/not/there/yet");
  luattn_image *a = make_image(10, 'a');
  store(key, a);
  luattn_image *found = find(key);
  assert_non_null(found);
  luattn_image_free(found);
  luattn_image_free(a);
  dir[length] = '\0';
}

static void no_directory_means_no_cache(void **state) {
  (void)state;
  luattn_image *a = make_image(10, 'a'), *found = a;
  char warning[64] = "x";
  assert_int_equal(cache_store("", key, a, warning, sizeof warning, NULL), LUATTN_OK);
  assert_string_equal(warning, "");
  assert_int_equal(cache_find("", key, &found, NULL), LUATTN_OK);
  assert_null(found);
  luattn_image_free(a);
}

static void misnamed_entry(void **state) {
  (void)state;
  luattn_image *other = make_image_for((hash128){1, 2}, 100, 'o');
  store(key, other);
  assert_true(exists(KEY_PATH));
  assert_null(find(key));
  assert_false(exists(KEY_PATH));
  luattn_image_free(other);
}

/* A damaged entry is a miss and is removed. A later store creates it again. */
static void damaged_entries(void **state) {
  (void)state;
  luattn_image *a = make_image(300, 'a');
  size_t size;
  const unsigned char *bytes = luattn_image_bytes(a, &size);
  unsigned char *copy = malloc(size);
  store(key, a);
  for (size_t cut = 0; cut < size; cut += 37) {
    set_file(KEY_PATH, bytes, cut);
    assert_null(find(key));
    assert_false(exists(KEY_PATH));
  }
  for (size_t bit = 0; bit < 8 * size; bit += 101) {
    memcpy(copy, bytes, size);
    copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
    set_file(KEY_PATH, copy, size);
    assert_null(find(key));
    assert_false(exists(KEY_PATH));
  }
  store(key, a);
  luattn_image *found = find(key);
  assert_true(same_bytes(a, found));
  luattn_image_free(found);
  luattn_image_free(a);
  free(copy);
}

static void strange_files(void **state) {
  (void)state;
  luattn_image *a = make_image(300, 'a');
  store(key, a);
  char path[512], target[512];
  path_of(KEY_PATH, path);
  path_of("elsewhere", target);
  /* A symbolic link is not followed, even to a valid image, and its target stays unchanged. */
  assert_int_equal(rename(path, target), 0);
  assert_int_equal(symlink(target, path), 0);
  assert_null(find(key));
  assert_false(exists(KEY_PATH));
  assert_true(exists("elsewhere"));
  assert_int_equal(symlink(target, path), 0);
  luattn_image *b = make_image(10, 'b');
  store(key, b);
  luattn_image *found = find(key);
  assert_true(same_bytes(b, found));
  luattn_image_free(found);
  struct stat st;
  size_t size;
  luattn_image_bytes(a, &size);
  assert_int_equal(stat(target, &st), 0);
  assert_int_equal(st.st_size, size); /* store replaced the link instead of writing through it */
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0); /* must not hang */
  assert_null(find(key));
  luattn_image_free(a);
  luattn_image_free(b);
}

/* An empty directory in place of an entry is replaced, like a damaged file. One with files may belong to the
 * user, so it is kept and reported. */
static void directory_in_place(void **state) {
  (void)state;
  luattn_image *a = make_image(300, 'a');
  char path[512], warning[512];
  cache_stats stats;
  size_t removed = 9;
  luattn_error err;
  store(key, a);
  path_of(KEY_PATH, path);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkdir(path, 0700), 0);
  assert_null(find(key));
  store(key, a);
  luattn_image *found = find(key);
  assert_true(same_bytes(a, found));
  luattn_image_free(found);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkdir(path, 0700), 0);
  set_file(KEY_PATH "/notes.txt", "mine", 4);
  assert_null(find(key));
  assert_int_equal(cache_store(dir, key, a, warning, sizeof warning, NULL), LUATTN_OK);
  assert_non_null(strstr(warning, KEY_PATH ": cannot replace the directory of that name, which has to be "
                                           "removed: Is a directory; the kernel works but is not kept"));
  assert_int_equal(count_temporaries(), 0);
  assert_int_equal(cache_info(dir, &stats, &err), LUATTN_OK);
  assert_true(stats.entries == 1 && stats.damaged == 1 && stats.bytes == 0);
  assert_int_equal(cache_prune(dir, 0, &removed, &err), LUATTN_OK);
  assert_int_equal(cache_clear(dir, &removed, &err), LUATTN_OK);
  assert_int_equal(removed, 0);
  assert_true(exists(KEY_PATH "/notes.txt"));
  path_of(KEY_PATH "/notes.txt", warning);
  assert_int_equal(unlink(warning), 0);
  assert_int_equal(cache_clear(dir, &removed, &err), LUATTN_OK);
  assert_int_equal(removed, 1);
  assert_false(exists(KEY_PATH));
  luattn_image_free(a);
}

static void full_disk(void **state) {
  (void)state;
  luattn_image *big = make_image(200000, 'a');
  /* Runs in a child process, because the limit is permanent: a file may grow to 64 KB, and writing more fails
   * as on a full disk. SIGXFSZ keeps its default action, which would end the process. */
  const pid_t child = fork();
  if (child == 0) {
    char warning[512], path[512];
    luattn_image *found = NULL;
    const struct rlimit limit = {65536, 65536};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    if (cache_store(dir, key, big, warning, sizeof warning, NULL) != LUATTN_OK) _exit(3);
    if (strstr(warning, "cannot write it: File too large; the kernel works but is not kept") == NULL) _exit(4);
    if (strstr(warning, KEY_PATH) == NULL) _exit(5);
    if (cache_find(dir, key, &found, NULL) != LUATTN_OK || found != NULL) _exit(6);
    if (cache_store(dir, key, big, NULL, 0, NULL) != LUATTN_OK) _exit(7);
    char *text = calloc(100001, 1); /* a source that is too long, too */
    memset(text, 'x', 100000);
    cache_keep_source(dir, key, text, path, sizeof path);
    if (path[0] != 0) _exit(8);
    sigset_t pending;
    if (sigpending(&pending) != 0 || sigismember(&pending, SIGXFSZ)) _exit(9);
    free(text);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_int_equal(count_temporaries(), 0);
  assert_false(exists(KEY_PATH));
  luattn_image_free(big);
}

static void unusable_directories(void **state) {
  (void)state;
  luattn_image *a = make_image(10, 'a'), *found = NULL;
  char warning[512], path[512];
  luattn_error err;
  assert_int_equal(cache_store("/proc/nowhere", key, a, warning, sizeof warning, &err), LUATTN_OK);
  assert_non_null(strstr(warning, "cache: /proc/nowhere/fe/"));
  assert_non_null(strstr(warning, "cannot create its directory"));
  assert_int_equal(cache_find("/proc/nowhere", key, &found, &err), LUATTN_OK);
  assert_null(found);
  set_file("file", "x", 1);
  path_of("file", path);
  assert_int_equal(cache_store(path, key, a, warning, sizeof warning, &err), LUATTN_OK);
  assert_non_null(strstr(warning, "Not a directory"));
  assert_int_equal(cache_find(path, key, &found, &err), LUATTN_OK);
  assert_null(found);
  cache_stats stats;
  assert_int_equal(cache_info(path, &stats, &err), LUATTN_IO);
  assert_non_null(strstr(err.message, "cannot read it: Not a directory"));
  luattn_image_free(a);
}

/* Skipped for root, who may read everything. */
static void unreadable_entry(void **state) {
  (void)state;
  if (geteuid() == 0) {
    print_message("running as root: permissions do not bind\n");
    skip();
  }
  luattn_image *a = make_image(10, 'a');
  char path[512], warning[512];
  store(key, a);
  path_of(KEY_PATH, path);
  assert_int_equal(chmod(path, 0), 0);
  assert_null(find(key));
  assert_true(exists(KEY_PATH)); /* an unreadable entry is not treated as damaged */
  path_of("fe", path);
  assert_int_equal(chmod(path, 0500), 0);
  assert_int_equal(cache_store(dir, key, a, warning, sizeof warning, NULL), LUATTN_OK);
  assert_non_null(strstr(warning, "cannot create a file: Permission denied"));
  assert_int_equal(chmod(path, 0700), 0);
  luattn_image_free(a);
}

/* A child stores in a loop and is killed at a random moment. Afterwards the cache returns a complete image or
 * none. */
static void killed_in_the_middle(void **state) {
  (void)state;
  luattn_image *image[2] = {make_image(400000, 'a'), make_image(300000, 'b')};
  unsigned seed = 1;
  store(key, image[0]);
  for (int round = 0; round < 40; ++round) {
    const pid_t child = fork();
    if (child == 0)
      for (int i = 0;; ++i) cache_store(dir, key, image[i % 2], NULL, 0, NULL);
    seed = seed * 1103515245u + 12345u;
    const struct timespec pause = {.tv_nsec = (long)(seed >> 8) % 8000000};
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    luattn_image *found = find(key);
    assert_non_null(found);
    assert_true(same_bytes(found, image[0]) || same_bytes(found, image[1]));
    luattn_image_free(found);
  }
  luattn_image_free(image[0]);
  luattn_image_free(image[1]);
}

/* Two processes store and find the same key at once, while a third damages the entry from time to time. */
static int store_and_find(const luattn_image *mine, const luattn_image *theirs, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    char warning[256];
    luattn_image *found;
    if (cache_store(dir, key, mine, warning, sizeof warning, NULL) != LUATTN_OK || warning[0] != '\0') return 2;
    if (cache_find(dir, key, &found, NULL) != LUATTN_OK) return 3;
    if (found != NULL && !same_bytes(found, mine) && !same_bytes(found, theirs)) return 4;
    luattn_image_free(found);
  }
  return 0;
}

static int damage(int rounds) {
  char path[512];
  path_of(KEY_PATH, path);
  for (int i = 0; i < rounds; ++i) {
    const int fd = open(path, O_WRONLY);
    if (fd >= 0) {
      if (pwrite(fd, "damage", 6, 1000 + i) != 6) return 2;
      close(fd);
    }
    const struct timespec pause = {.tv_nsec = 300000};
    nanosleep(&pause, NULL);
  }
  return 0;
}

static void processes_at_once(void **state) {
  (void)state;
  luattn_image *a = make_image(60000, 'a'), *b = make_image(70000, 'b');
  pid_t child[3];
  for (int i = 0; i < 3; ++i) {
    child[i] = fork();
    if (child[i] == 0) _exit(i == 0 ? store_and_find(a, b, 300) : i == 1 ? store_and_find(b, a, 300) : damage(200));
  }
  for (int i = 0; i < 3; ++i) {
    int status;
    assert_int_equal(waitpid(child[i], &status, 0), child[i]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
  assert_int_equal(count_temporaries(), 0);
  luattn_image_free(a);
  luattn_image_free(b);
}

/* Sixteen processes request the same 8 images from a cold cache. Each stores the images that it does not
 * find. */
static void sixteen_processes_on_a_cold_cache(void **state) {
  (void)state;
  enum { PROCESSES = 16, IMAGES = 8 };
  pid_t child[PROCESSES];
  for (int i = 0; i < PROCESSES; ++i) {
    child[i] = fork();
    if (child[i] != 0) continue;
    for (uint64_t j = 0; j < IMAGES; ++j) {
      const hash128 k = {j + 1, (uint64_t)7 << 60 | j % 2};
      luattn_image *mine = make_image_for(k, 20000, 'x'), *found = NULL;
      char warning[256] = "";
      if (cache_find(dir, k, &found, NULL) != LUATTN_OK) _exit(2);
      if (found == NULL && cache_store(dir, k, mine, warning, sizeof warning, NULL) != LUATTN_OK) _exit(3);
      if (warning[0] != '\0') _exit(4);
      luattn_image_free(found);
      if (cache_find(dir, k, &found, NULL) != LUATTN_OK || found == NULL || !same_bytes(found, mine)) _exit(5);
      luattn_image_free(found);
      luattn_image_free(mine);
    }
    _exit(0);
  }
  for (int i = 0; i < PROCESSES; ++i) {
    int status;
    assert_int_equal(waitpid(child[i], &status, 0), child[i]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
  cache_stats stats;
  assert_int_equal(cache_info(dir, &stats, NULL), LUATTN_OK);
  assert_int_equal(stats.entries, IMAGES);
  assert_int_equal(stats.damaged, 0);
  assert_int_equal(count_temporaries(), 0);
}

static void info_prune_clear(void **state) {
  (void)state;
  luattn_image *a = make_image(1000, 'a');
  luattn_error err;
  cache_stats stats = {9, 9, 9, 9, 9};
  size_t size, removed = 9;
  luattn_image_bytes(a, &size);
  assert_int_equal(cache_info(dir, &stats, &err), LUATTN_OK);
  assert_int_equal(stats.entries + stats.bytes + stats.damaged, 0);
  static const char *const name[] = {
      "00/00000000000000010000000000000000.lai", "00/00000000000000020000000000000000.lai",
      "00/00000000000000030000000000000000.lai", "00/00000000000000040000000000000000.lai"};
  for (uint64_t i = 0; i < 4; ++i) {
    const hash128 k = {0, i + 1};
    luattn_image *image = make_image_for(k, 1000, 'a');
    store(k, image);
    luattn_image_free(image);
    set_age(name[i], 1000 - 100 * (time_t)i);
  }
  set_file("00/notes.txt", "mine", 4);
  set_file("00/.tmp-young", "half", 4);
  set_file("00/.tmp-old", "half", 4);
  set_age("00/.tmp-old", 7200);
  assert_int_equal(cache_info(dir, &stats, &err), LUATTN_OK);
  assert_int_equal(stats.entries, 4);
  assert_int_equal(stats.bytes, 4 * size + 8);
  assert_int_equal(stats.damaged, 0);
  set_file(name[1], "damaged", 7);
  set_age(name[1], 900);
  assert_int_equal(cache_info(dir, &stats, &err), LUATTN_OK);
  assert_int_equal(stats.damaged, 1);
  assert_true(exists(name[1]));
  luattn_image_free(find((hash128){0, 1})); /* a hit makes the oldest entry the newest */
  assert_int_equal(cache_prune(dir, 2 * size, &removed, &err), LUATTN_OK);
  assert_int_equal(removed, 2);
  assert_true(exists(name[0]) && !exists(name[1]) && !exists(name[2]) && exists(name[3]));
  assert_true(exists("00/notes.txt") && exists("00/.tmp-young") && !exists("00/.tmp-old"));
  set_file("00/00000000000000050000000000000000.cu", "source", 6);
  assert_int_equal(cache_clear(dir, &removed, &err), LUATTN_OK);
  assert_int_equal(removed, 2);
  assert_false(exists(name[0]) || exists(name[3]) || exists("00/00000000000000050000000000000000.cu"));
  assert_true(exists("00/notes.txt"));
  luattn_image_free(a);
}

/* Tuning records are text files, which cache_prune keeps. */
static void records(void **state) {
  (void)state;
  char text[8], path[512], want[512], target[512];
  luattn_error err;
  cache_stats stats;
  size_t removed = 9;
  path_of("fe/fedcba98765432100123456789abcdef.tuned", want);
  assert_false(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
  assert_false(cache_find_record("", key, text, sizeof text, path, sizeof path));
  assert_int_equal(cache_store_record(dir, key, "first", path, sizeof path, &err), LUATTN_OK);
  assert_string_equal(path, want);
  assert_int_equal(cache_store_record(dir, key, "second one", path, sizeof path, &err), LUATTN_OK);
  assert_int_equal(count_temporaries(), 0);
  assert_true(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
  assert_string_equal(path, want);
  assert_string_equal(text, "second "); /* truncated to the buffer */
  assert_int_equal(cache_info(dir, &stats, &err), LUATTN_OK);
  assert_int_equal(stats.records, 1);
  assert_int_equal(stats.entries + stats.damaged, 0);
  assert_int_equal(cache_prune(dir, 1, &removed, &err), LUATTN_OK);
  assert_int_equal(removed, 0);
  assert_true(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
  assert_int_equal(cache_store_record(dir, key, NULL, path, sizeof path, &err), LUATTN_OK);
  assert_false(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
  assert_int_equal(cache_store_record(dir, key, NULL, path, sizeof path, &err), LUATTN_OK);
  path_of("aside", target);
  set_file("aside", "a link", 6); /* the link is not followed */
  assert_int_equal(symlink(target, want), 0);
  assert_true(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
  assert_string_equal(text, "");
  assert_int_equal(cache_clear(dir, &removed, &err), LUATTN_OK);
  assert_int_equal(removed, 0);
  assert_false(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
  assert_true(exists("aside"));
}

static void trimming(void **state) {
  (void)state;
  size_t size = 0, count = 0;
  for (uint64_t i = 0; i < 20; ++i) {
    const hash128 k = {0, i + 1};
    char name[64];
    luattn_image *image = make_image_for(k, 1000, 'a');
    luattn_image_bytes(image, &size);
    store(k, image);
    luattn_image_free(image);
    snprintf(name, sizeof name, "00/%016x%016x.lai", (unsigned)i + 1, 0u);
    if (i < 15) set_age(name, 1000 - (time_t)i);
    assert_int_equal(cache_trim(dir, 10 * size, NULL), LUATTN_OK);
  }
  for (uint64_t i = 0; i < 20; ++i) {
    luattn_image *found = find((hash128){0, i + 1});
    if (found != NULL) assert_true(i >= 9); /* recent entries stay */
    count += found != NULL;
    luattn_image_free(found);
  }
  assert_in_range(count, 9, 10);
  assert_int_equal(cache_trim(dir, 0, NULL), LUATTN_OK); /* no limit */
  assert_int_equal(cache_trim("/nonexistent", 1, NULL), LUATTN_OK);
  cache_stats stats;
  assert_int_equal(cache_info(dir, &stats, NULL), LUATTN_OK);
  assert_int_equal(stats.entries, count);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh_dir, remove_dir)
  const struct CMUnitTest tests[] = {
      TEST(stores_and_finds),
      TEST(makes_missing_directories),
      TEST(no_directory_means_no_cache),
      TEST(damaged_entries),
      TEST(strange_files),
      TEST(directory_in_place),
      TEST(misnamed_entry),
      TEST(full_disk),
      TEST(unusable_directories),
      TEST(unreadable_entry),
      TEST(killed_in_the_middle),
      TEST(processes_at_once),
      TEST(info_prune_clear),
      TEST(records),
      TEST(sixteen_processes_on_a_cold_cache),
      TEST(trimming),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
