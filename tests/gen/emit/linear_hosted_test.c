/* linear_hosted_test.c CXX HERE TEMPLATES: prints spec.cuh of linear_hooks.lua for dense and for packed tensors, compiles it
 * for the host in linear_hosted.cpp, and runs that. Also what a kernel lacks is said by its hook. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "luattn/compiler.h"

static int fail(const char *what, const char *detail) {
  printf("%s: %s\n", what, detail);
  return 1;
}

static int run(const luattn_spec *spec, int packed, const char *dir, char **argv) {
  const luattn_target target = {
      .struct_size = sizeof target, .dtype = LUATTN_BF16, .head_dim = 64, .head_dim_v = 32, .packed = packed};
  char path[512], command[2048], *text = NULL;
  luattn_error err;
  if (luattn_emit(spec, &target, "spec", &text, &err) != LUATTN_OK) return fail("emit", err.message);
  snprintf(path, sizeof path, "%s/spec.cuh", dir);
  FILE *f = fopen(path, "w");
  if (f == NULL) return fail("cannot write", path);
  fputs(text, f);
  fclose(f);
  luattn_text_free(text);
  snprintf(path, sizeof path, "%s/config.cuh", dir); /* linear_hosted.cpp has it */
  f = fopen(path, "w");
  if (f != NULL) fclose(f);
  snprintf(command, sizeof command,
           "%s -std=c++20 -O1 -w -DPACKED=%d -I%s -I%s -I%s/.. -o %s/run %s/linear_hosted.cpp && %s/run", argv[1],
           packed, dir, argv[3], argv[3], dir, argv[2], dir);
  return system(command) != 0 ? fail("failed", command) : 0;
}

/* A spec with one hook that the kernel of chunks does not take, and words of the plan about it. */
static int refused(const char *hook, const char *words) {
  const luattn_target target = {.struct_size = sizeof target, .arch = 90, .dtype = LUATTN_BF16, .head_dim = 64};
  char lua[512], *text = NULL;
  luattn_spec *spec;
  luattn_error err;
  snprintf(lua, sizeof lua, "return linear_attention { name = 'refused', %s }", hook);
  if (luattn_spec_load_text("refused.lua", lua, strlen(lua), NULL, &spec, &err) != LUATTN_OK)
    return fail(hook, err.message);
  const luattn_status status = luattn_emit(spec, &target, "plan", &text, &err);
  luattn_spec_free(spec);
  if (status != LUATTN_OK) return fail(hook, err.message);
  const int failed = strstr(text, words) == NULL ? fail(hook, text) : 0;
  luattn_text_free(text);
  return failed;
}

static int check_refusals(void) {
  return refused("skip = function(x) return x * reduce_sum(x) end", "refused.lua: skip: sums over a row's channels") |
         refused("update = { read = function(k) return tanh(k) end }", "update.read: is no number of the token times") |
         refused("update = { read = function(k) return k end, before = true }", "reads the state before its decay") |
         refused("update = { read = function(k) return k end, erase = function(k) return 2 * k end }",
                 "update.erase: erases along a vector of its own") |
         refused("update = { write = function(b, h, t, d) return d end }", "update.write: differs between channels") |
         refused("decay = function(b, h, t) return -1e-9 * (h * h * h * h) end",
                 "an integer '*' may reach 3.518115096e+13, and kernels compute in 32 bits") |
         refused("normalize = true", "normalize = true");
}

int main(int argc, char **argv) {
  char path[512], dir[] = "/tmp/luattn_linear_XXXXXX", command[600];
  luattn_spec *spec;
  luattn_error err;
  if (argc != 4 || mkdtemp(dir) == NULL) return fail("usage", "linear_hosted_test CXX HERE TEMPLATES");
  snprintf(path, sizeof path, "%s/linear_hooks.lua", argv[2]);
  if (luattn_spec_load(path, NULL, &spec, &err) != LUATTN_OK) return fail("load", err.message);
  const int failed = run(spec, 0, dir, argv) | run(spec, 1, dir, argv) | check_refusals();
  luattn_spec_free(spec);
  snprintf(command, sizeof command, "rm -rf '%s'", dir);
  return system(command) != 0 || failed;
}
