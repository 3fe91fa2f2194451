/* choice_test.c: tests which of several NVRTCs compiles. Files that do not work, and NVRTCs whose code the
 * driver cannot load, are skipped and named. An explicit NVRTC is the only candidate. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiled.h"

/* Two folders that are searched first, in this order. */
typedef struct places {
  folder first, second;
  luattn_spec *spec;
  char *nvrtc, *library_path; /* the environment before the test */
} places;

static char *keep(const char *name) {
  const char *value = getenv(name);
  return value != NULL ? strdup(value) : NULL;
}

static void give_back(const char *name, char *value) {
  if (value != NULL)
    setenv(name, value, 1);
  else
    unsetenv(name);
  free(value);
}

static void places_open(places *p) {
  char both[160];
  *p = (places){folder_new(), folder_new(), load(SPEC), keep("LUATTN_NVRTC"), keep("LD_LIBRARY_PATH")};
  snprintf(both, sizeof both, "%s:%s", p->first.path, p->second.path);
  setenv("LD_LIBRARY_PATH", both, 1);
  unsetenv("LUATTN_NVRTC");
}

static void places_close(places *p) {
  give_back("LUATTN_NVRTC", p->nvrtc);
  give_back("LD_LIBRARY_PATH", p->library_path);
  luattn_spec_free(p->spec);
  folder_remove(&p->first);
  folder_remove(&p->second);
}

/* Writes the first `most` bytes of `from` as `name`, after `change` has edited the ELF header. */
static void put(const folder *f, const char *name, const char *from, size_t most, void (*change)(Elf64_Ehdr *)) {
  char path[160];
  static char bytes[1 << 20];
  snprintf(path, sizeof path, "%s/%s", f->path, name);
  remove(path); /* a new file, so that loaded ones stay intact */
  FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
  assert_true(in != NULL && out != NULL);
  size_t size = fread(bytes, 1, sizeof bytes, in);
  assert_true(size > sizeof(Elf64_Ehdr) && size < sizeof bytes);
  if (size > most) size = most;
  Elf64_Ehdr head;
  memcpy(&head, bytes, sizeof head);
  if (change != NULL) change(&head);
  memcpy(bytes, &head, sizeof head);
  assert_int_equal(fwrite(bytes, 1, size, out), size);
  fclose(in);
  assert_int_equal(fclose(out), 0);
}

static void of_another_machine(Elf64_Ehdr *head) { head->e_machine = EM_S390; }
static void no_library(Elf64_Ehdr *head) { head->e_ident[0] = '#'; }
static void no_table(Elf64_Ehdr *head) { head->e_phnum = 0; }

static luattn_target target_of(int driver_version, bool ptx) {
  luattn_target t = target_new();
  t.nvrtc = NULL;
  t.driver_version = driver_version;
  t.ptx = ptx;
  return t;
}

/* Compiles, and checks that the plan lists the NVRTCs that were skipped and the one that is used. */
static void compiles(const places *p, const luattn_target *t, const char *passed_over, const folder *used,
                     const char *name) {
  luattn_compile_report report;
  luattn_error err;
  luattn_image *image;
  char line[200];
  if (luattn_compile(p->spec, t, &image, &report, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_string_equal(err.message, ""); /* a skipped NVRTC gives no warning */
  const char *fact = strstr(report.plan, "nvrtc: '");
  if (passed_over == NULL) {
    assert_null(fact);
  } else {
    snprintf(line, sizeof line, "; so '%s/%s' is used\n", used->path, name);
    if (fact == NULL || strstr(fact, passed_over) == NULL || strstr(fact, line) == NULL)
      fail_msg("'%s' lacks '%s' or '%s'", report.plan, passed_over, line);
  }
  luattn_image_free(image);
}

static void broken_files(void **state) {
  (void)state;
  static const struct {
    const char *from;
    size_t most;
    void (*change)(Elf64_Ehdr *);
    const char *why;
  } cases[] = {{FAKE_NVRTC, SIZE_MAX, no_library, "is no shared library"},
               {FAKE_NVRTC, SIZE_MAX, of_another_machine, "is for another architecture"},
               {FAKE_NVRTC, 4096, NULL, "is cut short"},
               {FAKE_NVRTC, SIZE_MAX, no_table, "cannot be loaded ("},
               {NO_NVRTC, SIZE_MAX, NULL, "has no function nvrtcVersion"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    places p;
    char why[200];
    places_open(&p);
    const luattn_target t = target_of(0, false);
    put(&p.first, "libnvrtc.so.13", cases[i].from, cases[i].most, cases[i].change);
    put(&p.second, "libnvrtc.so.12", NVRTC_12, SIZE_MAX, NULL);
    snprintf(why, sizeof why, "'%s/libnvrtc.so.13': %s", p.first.path, cases[i].why);
    compiles(&p, &t, why, &p.second, "libnvrtc.so.12");
    places_close(&p);
  }
}

/* The cache key depends on the NVRTC that compiles, not on those skipped before it. */
static void cache_of_the_one_used(void **state) {
  (void)state;
  places p;
  luattn_compile_report report;
  places_open(&p);
  const folder cache = folder_new();
  luattn_target t = target_of(0, false);
  t.cache_dir = cache.path;
  put(&p.second, "libnvrtc.so.12", NVRTC_12, SIZE_MAX, NULL);
  luattn_image_free(compile(p.spec, &t, &report));
  assert_int_equal(report.cache_hit, 0);
  put(&p.first, "libnvrtc.so.13", NO_NVRTC, SIZE_MAX, NULL); /* fails when loaded */
  luattn_image_free(compile(p.spec, &t, &report));
  assert_int_equal(report.cache_hit, 1);
  assert_non_null(strstr(report.plan, "has no function nvrtcVersion"));
  put(&p.first, "libnvrtc.so.12", FAKE_NVRTC, SIZE_MAX, NULL); /* the loader identifies files by name */
  luattn_image_free(compile(p.spec, &t, &report));
  assert_int_equal(report.cache_hit, 0);
  assert_int_equal(folder_count(&cache, "*"), 2);
  folder_remove(&cache);
  places_close(&p);
}

static void drivers(void **state) {
  (void)state;
  places p;
  char why[300];
  places_open(&p);
  put(&p.first, "libnvrtc.so.13", FAKE_NVRTC, SIZE_MAX, NULL);
  put(&p.first, "libnvrtc.so.12", NVRTC_12, SIZE_MAX, NULL);
  luattn_target any = target_of(0, false), new = target_of(13000, false), old = target_of(12020, false);
  compiles(&p, &any, NULL, NULL, "");
  compiles(&p, &new, NULL, NULL, "");
  snprintf(why, sizeof why,
           "nvrtc: '%s/libnvrtc.so.13': is NVRTC 13, whose code needs a driver of CUDA 13, and this one is "
           "of CUDA 12.2",
           p.first.path);
  compiles(&p, &old, why, &p.first, "libnvrtc.so.12"); /* newer than 12.2, and of the same major version */
  /* The file name has no version, so the version is queried after loading. */
  put(&p.first, "libnvrtc.so", FAKE_NVRTC, SIZE_MAX, NULL);
  char path[160];
  snprintf(path, sizeof path, "%s/libnvrtc.so.13", p.first.path);
  remove(path);
  snprintf(path, sizeof path, "%s/libnvrtc.so.12", p.first.path);
  remove(path);
  put(&p.second, "libnvrtc.so.12", NVRTC_12, SIZE_MAX, NULL);
  compiles(&p, &new, NULL, NULL, "");
  snprintf(why, sizeof why,
           "nvrtc: '%s/libnvrtc.so': is NVRTC 13.0, whose code needs a driver of CUDA 13, and this one is of "
           "CUDA 12.2",
           p.first.path);
  compiles(&p, &old, why, &p.second, "libnvrtc.so.12");
  places_close(&p);
}

/* The driver compiles PTX, so the PTX version must not be newer than the driver. */
static void ptx(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  luattn_error err;
  luattn_image *image;
  luattn_target t = target_of(12040, true);
  t.nvrtc = NVRTC_12;
  luattn_image_free(compile(spec, &t, NULL));
  t.driver_version = 12020;
  assert_int_equal(luattn_compile(spec, &t, &image, NULL, &err), LUATTN_COMPILE);
  assert_non_null(strstr(err.message,
                         "': is NVRTC 12.4, whose PTX needs a driver of CUDA 12.4, and this one is of CUDA 12.2; name "
                         "an NVRTC 12 with LUATTN_NVRTC, or update NVIDIA's driver"));
  luattn_spec_free(spec);
}

/* Only the named NVRTC is tried, even if others work. */
static void named(void **state) {
  (void)state;
  places p;
  luattn_error err;
  luattn_image *image;
  char broken[160], old[160];
  int major, minor;
  places_open(&p);
  put(&p.first, "broken.so", NO_NVRTC, SIZE_MAX, NULL);
  put(&p.first, "libnvrtc.so.13.0.1", FAKE_NVRTC, SIZE_MAX, NULL);
  put(&p.second, "libnvrtc.so.12", NVRTC_12, SIZE_MAX, NULL);
  snprintf(broken, sizeof broken, "%s/broken.so", p.first.path);
  snprintf(old, sizeof old, "%s/libnvrtc.so.13.0.1", p.first.path);
  for (int i = 0; i < 2; i++) {
    luattn_target t = target_of(12080, false);
    if (i == 0)
      t.nvrtc = broken;
    else
      setenv("LUATTN_NVRTC", broken, 1);
    assert_int_equal(luattn_compile(p.spec, &t, &image, NULL, &err), LUATTN_COMPILE);
    assert_non_null(strstr(err.message, "broken.so': has no function nvrtcVersion"));
    if (i == 0)
      t.nvrtc = old;
    else
      setenv("LUATTN_NVRTC", old, 1);
    assert_int_equal(luattn_compile(p.spec, &t, &image, NULL, &err), LUATTN_COMPILE);
    assert_non_null(
        strstr(err.message, i == 0 ? "(from the target): is NVRTC 13, " : "(from LUATTN_NVRTC): is NVRTC 13, "));
    assert_non_null(strstr(err.message, "this one is of CUDA 12.8; name an NVRTC 12, or update NVIDIA's driver"));
  }
  unsetenv("LUATTN_NVRTC");
  assert_int_equal(luattn_nvrtc_version(broken, &major, &minor, &err), LUATTN_COMPILE);
  assert_int_equal(luattn_nvrtc_version(NULL, &major, &minor, &err), LUATTN_OK);
  assert_int_equal(major, 12);
  places_close(&p);
}

/* The message lists all candidates with the reasons of failure. Ends early if an NVRTC of this machine
 * works. */
static void all_of_no_use(void **state) {
  (void)state;
  places p;
  luattn_error err;
  luattn_image *image = NULL;
  luattn_compile_report report = {.is_kept = 0};
  char first[200], second[200];
  places_open(&p);
  const luattn_target t = target_of(12080, false);
  put(&p.first, "libnvrtc.so.13", FAKE_NVRTC, SIZE_MAX, NULL);
  put(&p.second, "libnvrtc.so.12", NO_NVRTC, SIZE_MAX, NULL);
  snprintf(first, sizeof first, "'%s/libnvrtc.so.13': is NVRTC 13, whose code", p.first.path);
  snprintf(second, sizeof second, "; '%s/libnvrtc.so.12': has no function nvrtcVersion", p.second.path);
  const luattn_status status = luattn_compile(p.spec, &t, &image, &report, &err);
  const char *said = status == LUATTN_OK ? report.plan : err.message;
  if (strstr(said, first) == NULL || strstr(said, second) == NULL)
    fail_msg("'%s' lacks '%s' or '%s'", said, first, second);
  if (status != LUATTN_OK) {
    assert_int_equal(status, LUATTN_COMPILE);
    assert_int_equal(strncmp(err.message, "nvrtc: none that is here is of use: ", 36), 0);
    assert_non_null(strstr(err.message, "or name another with LUATTN_NVRTC"));
  }
  luattn_image_free(image);
  places_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(broken_files), cmocka_unit_test(cache_of_the_one_used),
                                     cmocka_unit_test(drivers),      cmocka_unit_test(ptx),
                                     cmocka_unit_test(named),        cmocka_unit_test(all_of_no_use)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
