#include "compiled.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char SPEC[] =
    "local W = 48\n"
    "return attention {\n"
    "  name = 'pipeline',\n"
    "  scalars = { cap = 30.0 },\n"
    "  inputs = { slopes = { axes = {'h'}, grad = true }, ids = { axes = {'kv'}, dtype = 'i32' } },\n"
    "  score_mod = function(score, b, h, q_idx, kv_idx)\n"
    "    return cap * tanh(score / cap) + slopes[h] * (kv_idx - q_idx)\n"
    "  end,\n"
    "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and ids[kv_idx] < W end,\n"
    "}\n";

luattn_spec *load(const char *source) {
  luattn_spec *spec = NULL;
  luattn_error err;
  if (luattn_spec_load_text("test.lua", source, strlen(source), NULL, &spec, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  return spec;
}

luattn_target target_new(void) {
  return (luattn_target){.struct_size = sizeof(luattn_target),
                         .pass = LUATTN_BACKWARD,
                         .dtype = LUATTN_F32,
                         .head_dim = 64,
                         .arch = 80,
                         .cache_dir = "",
                         .nvrtc = FAKE_NVRTC};
}

luattn_image *compile(const luattn_spec *spec, const luattn_target *target, luattn_compile_report *report) {
  luattn_image *image = NULL;
  luattn_error err;
  if (luattn_compile(spec, target, &image, report, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(err.status, LUATTN_OK); /* no errors of earlier attempts; a cache warning may remain */
  if (strncmp(err.message, "cache: ", 7) != 0) assert_string_equal(err.message, "");
  return image;
}

bool same_image(const luattn_image *a, const luattn_image *b) {
  size_t size_a, size_b;
  const void *bytes_a = luattn_image_bytes(a, &size_a), *bytes_b = luattn_image_bytes(b, &size_b);
  return size_a == size_b && memcmp(bytes_a, bytes_b, size_a) == 0;
}

folder folder_new(void) {
  folder f = {"/tmp/luattn-compile-XXXXXX"};
  assert_non_null(mkdtemp(f.path));
  return f;
}

void folder_remove(const folder *f) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", f->path);
  assert_int_equal(system(command), 0);
}

int folder_count(const folder *f, const char *pattern) {
  char command[256];
  int count = -1;
  snprintf(command, sizeof command, "find '%s' -type f -name '%s' | wc -l", f->path, pattern);
  FILE *out = popen(command, "r");
  assert_non_null(out);
  assert_int_equal(fscanf(out, "%d", &count), 1);
  pclose(out);
  return count;
}

void fake_mode(const char *mode) {
  if (mode != NULL)
    assert_int_equal(setenv("LUATTN_FAKE_NVRTC", mode, 1), 0);
  else
    unsetenv("LUATTN_FAKE_NVRTC");
}
