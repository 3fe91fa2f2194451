/* trust_test.c: tests ownership, permissions and size limit of the cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/gen/cache/cache_dir.h"

static void others_may_write(void **state) {
  (void)state;
  luattn_image *a = make_image(10, 'a'), *found = NULL;
  char warning[512], path[512];
  struct stat st;
  store(key, a);
  path_of(KEY_PATH, path);
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  path[strlen(path) - strlen(KEY_PATH) + 2] = '\0';
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0700);
  for (int group = 0; group <= 1; ++group) {
    assert_int_equal(chmod(dir, group ? 0770 : 0707), 0);
    assert_int_equal(cache_find(dir, key, &found, NULL), LUATTN_OK);
    assert_null(found);
    assert_int_equal(cache_store(dir, key, a, warning, sizeof warning, NULL), LUATTN_OK);
    assert_non_null(strstr(warning, ": others may write to it (chmod 700 helps); it is not used"));
    cache_keep_source(dir, key, "text", path, sizeof path);
    assert_string_equal(path, "");
  }
  assert_int_equal(chmod(dir, 0755), 0); /* others may read */
  assert_int_equal(cache_find(dir, key, &found, NULL), LUATTN_OK);
  assert_non_null(found);
  luattn_image_free(found);
  if (geteuid() == 0) { /* only root can give the folder to another user */
    assert_int_equal(chown(dir, 12345, 12345), 0);
    assert_string_equal(cache_distrust(dir), "it belongs to another user");
    assert_int_equal(chown(dir, 0, 0), 0);
  }
  assert_null(cache_distrust("/nonexistent"));
  luattn_image_free(a);
}

static void is_not_used(const char *warns) {
  char path[512], text[16], warning[512];
  luattn_image *a = make_image(10, 'a'), *found = NULL;
  luattn_error err;
  assert_int_equal(cache_find(dir, key, &found, NULL), LUATTN_OK);
  assert_null(found);
  assert_false(cache_has(dir, key));
  if (warns != NULL) {
    assert_int_equal(cache_store(dir, key, a, warning, sizeof warning, NULL), LUATTN_OK);
    if (strstr(warning, warns) == NULL || strstr(warning, "/fe: ") == NULL) fail_msg("'%s' lacks '%s'", warning, warns);
    cache_keep_source(dir, key, "text", path, sizeof path);
    assert_string_equal(path, "");
    assert_false(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
    assert_int_equal(cache_store_record(dir, key, "1", path, sizeof path, &err), LUATTN_IO);
    assert_non_null(strstr(err.message, warns));
  }
  luattn_image_free(a);
}

/* Whoever may write to the folder of an entry, or to the entry, chooses what runs. */
static void each_level_is_checked(void **state) {
  (void)state;
  char folder[512], path[512], elsewhere[512];
  luattn_image *a = make_image(10, 'a');
  store(key, a);
  path_of("fe", folder);
  path_of(KEY_PATH, path);
  assert_int_equal(chmod(folder, 0770), 0);
  is_not_used("others may write to it (chmod 700 helps)");
  assert_int_equal(chmod(folder, 0755), 0);
  assert_true(cache_has(dir, key));
  path_of("moved", elsewhere);
  assert_int_equal(rename(folder, elsewhere), 0);
  assert_int_equal(symlink("moved", folder), 0);
  is_not_used("it is a symbolic link");
  assert_int_equal(unlink(folder), 0);
  assert_int_equal(rename(elsewhere, folder), 0);
  if (geteuid() == 0) { /* only root can give it to another user */
    assert_int_equal(chown(folder, 12345, 12345), 0);
    is_not_used("it belongs to another user");
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(chown(path, 12345, 12345), 0);
    is_not_used(NULL);
    assert_false(exists(KEY_PATH));
    store(key, a);
  }
  assert_int_equal(chmod(path, 0622), 0);
  is_not_used(NULL);
  assert_false(exists(KEY_PATH)); /* as a damaged one: it is compiled again */
  store(key, a);
  luattn_image *found = find(key);
  assert_non_null(found);
  luattn_image_free(found);
  luattn_image_free(a);
}

/* A record that others may write says nothing. */
static void records_are_checked(void **state) {
  (void)state;
  char path[512], text[16];
  luattn_error err;
  assert_int_equal(cache_store_record(dir, key, "128", path, sizeof path, &err), LUATTN_OK);
  assert_true(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
  assert_string_equal(text, "128");
  assert_int_equal(chmod(path, 0602), 0);
  assert_true(cache_find_record(dir, key, text, sizeof text, path, sizeof path));
  assert_string_equal(text, "");
}

static void links_are_not_followed(void **state) {
  (void)state;
  char target[512], link[512], path[512];
  luattn_image *a = make_image(10, 'a'), *found = NULL;
  store(key, a);
  set_file("elsewhere", "mine", 4);
  path_of("elsewhere", target);
  path_of("fe/fedcba98765432100123456789abcdef.cu", link);
  assert_int_equal(symlink(target, link), 0);
  cache_keep_source(dir, key, "source", path, sizeof path);
  assert_string_equal(path, "");
  path_of(KEY_PATH, link);
  assert_int_equal(unlink(link), 0);
  assert_int_equal(symlink(target, link), 0);
  assert_int_equal(cache_find(dir, key, &found, NULL), LUATTN_OK);
  assert_null(found); /* the link is removed, not its target */
  store(key, a);
  FILE *f = fopen(target, "r");
  char text[16] = "";
  assert_non_null(fgets(text, sizeof text, f));
  fclose(f);
  assert_string_equal(text, "mine");
  luattn_image_free(a);
}

/* Another version's image is not used, not removed, and not counted as damaged. */
static void versions_side_by_side(void **state) {
  (void)state;
  luattn_image *a = make_image(10, 'a'), *found = NULL;
  size_t size;
  const unsigned char *bytes = luattn_image_bytes(a, &size);
  unsigned char *other = malloc(size);
  memcpy(other, bytes, size);
  ++other[8];
  store(key, a);
  set_file(KEY_PATH, other, size);
  assert_int_equal(cache_find(dir, key, &found, NULL), LUATTN_OK);
  assert_null(found);
  assert_true(exists(KEY_PATH));
  cache_stats stats;
  assert_int_equal(cache_info(dir, &stats, NULL), LUATTN_OK);
  assert_int_equal(stats.foreign, 1);
  assert_int_equal(stats.damaged, 0);
  free(other);
  luattn_image_free(a);
}

static void limits(void **state) {
  (void)state;
  size_t bytes;
  luattn_error err;
  const struct {
    const char *text;
    size_t bytes;
  } good[] = {{"", (size_t)1 << 30}, {"0", 0}, {"500", 500}, {"3k", 3072}, {"20M", 20u << 20}, {"2G", (size_t)2 << 30}};
  for (size_t i = 0; i < sizeof good / sizeof *good; ++i) {
    setenv("LUATTN_CACHE_SIZE", good[i].text, 1);
    assert_int_equal(cache_limit(&bytes, &err), LUATTN_OK);
    assert_int_equal(bytes, good[i].bytes);
  }
  const char *const bad[] = {"much", "-1", " 1", "1GB", "1.5G", "99999999999999999999", "99999999999T", "G"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    setenv("LUATTN_CACHE_SIZE", bad[i], 1);
    assert_int_equal(cache_limit(&bytes, &err), LUATTN_INVALID);
  }
  assert_non_null(strstr(err.message, "LUATTN_CACHE_SIZE: 'G' is not a size"));
  unsetenv("LUATTN_CACHE_SIZE");
  assert_int_equal(cache_limit(&bytes, &err), LUATTN_OK);
  assert_int_equal(bytes, (size_t)1 << 30);
}

static void resolving(void **state) {
  (void)state;
  char path[64];
  luattn_error err;
  const struct {
    const char *given, *luattn, *xdg, *home, *want;
  } cases[] = {
      {"/given", "/env", "/xdg", "/home/me", "/given"},
      {"", "/env", "/xdg", "/home/me", ""},
      {NULL, "/env", "/xdg", "/home/me", "/env"},
      {NULL, "", "/xdg", "/home/me", ""},
      {NULL, NULL, "/xdg", "/home/me", "/xdg/luattn"},
      {NULL, NULL, "relative", "/home/me", "/home/me/.cache/luattn"},
      {NULL, NULL, NULL, "/home/me", "/home/me/.cache/luattn"},
      {NULL, NULL, NULL, NULL, ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const char *const names[] = {"LUATTN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};
    const char *const values[] = {cases[i].luattn, cases[i].xdg, cases[i].home};
    for (int n = 0; n < 3; ++n) {
      if (values[n] != NULL)
        setenv(names[n], values[n], 1);
      else
        unsetenv(names[n]);
    }
    assert_int_equal(cache_resolve(cases[i].given, path, sizeof path, &err), LUATTN_OK);
    assert_string_equal(path, cases[i].want);
  }
  assert_int_equal(cache_resolve("/12345678", path, 9, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "longer than 8 bytes"));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh_dir, remove_dir)
  const struct CMUnitTest tests[] = {
      TEST(others_may_write),
      TEST(each_level_is_checked),
      TEST(records_are_checked),
      TEST(links_are_not_followed),
      TEST(versions_side_by_side),
      TEST(limits),
      TEST(resolving),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
