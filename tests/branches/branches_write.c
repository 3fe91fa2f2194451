/* branches_write DIR FIRST COUNT: writes specs with random gentle functions (branches.h), one file per seed
 * and hook, for programs that run all specs of a folder. Leaves out specs that the compiler refuses, such as
 * an online function whose conditions need too many reductions. */
#include <luattn/compiler.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/branches/branches.h"

static int write_spec(const char *dir, unsigned long seed, branches_kind kind) {
  static const char *const names[] = {"score", "mods", "online"};
  static char text[1 << 16], path[4096];
  branches p;
  branches_random(&p, seed, true);
  const size_t used = branches_lua(&p, kind, text, sizeof text);
  luattn_spec *spec;
  if (luattn_spec_load_text("branches.lua", text, used < sizeof text ? used : 0, NULL, &spec, NULL) != LUATTN_OK)
    return 0;
  luattn_spec_free(spec);
  snprintf(path, sizeof path, "%s/%s_%lu.lua", dir, names[kind], seed);
  FILE *f = used < sizeof text ? fopen(path, "w") : NULL;
  if (f == NULL || fwrite(text, 1, used, f) != used || fclose(f) != 0) {
    perror(path);
    return 1;
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: branches_write DIR FIRST COUNT\n");
    return 2;
  }
  const unsigned long first = strtoul(argv[2], NULL, 10), count = strtoul(argv[3], NULL, 10);
  for (unsigned long seed = first; seed < first + count; seed++)
    for (int kind = 0; kind < BRANCHES_KINDS; kind++)
      if (write_spec(argv[1], seed, (branches_kind)kind) != 0) return 1;
  return 0;
}
