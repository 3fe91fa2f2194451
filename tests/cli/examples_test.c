/* examples_test.c: compares the CPU path on every example with plain Lua, one score at a time, over shapes
 * that are odd, short, long, grouped and cross-length. Same as `luattn check SPEC --device cpu --shape ..`,
 * for all of them in one process.
 *
 * usage: examples_check [draw] SPEC.lua..   draw: each shape but the first in a third of the trees, and
 * of the last two in an eighth */
#include <string.h>

#include "cli/check.h"
#include "tests/support/drawn.h"

/* The last two shapes cover several 64 x 64 tiles; their gradients are compared along one direction. With q
 * longer than kv, causal_bottom_right has rows that keep nothing. */
static const char *const shapes[] = {"2,2,2,11,13,6,5", "1,4,1,13,7,4,3",   "1,2,2,1,17,5",
                                     "1,2,1,9,1,4",     "1,2,1,70,150,4,3", "1,2,1,140,66,3,4"};
#define NUM_SHAPES ((int)(sizeof shapes / sizeof *shapes))
/* Shapes for specs that pair channels, and so refuse an odd head dim. */
static const char *const even[NUM_SHAPES] = {"2,2,2,11,13,6,5", "1,4,1,13,7,4,3",   "1,2,2,1,17,6,5",
                                             "1,2,1,9,1,4",     "1,2,1,70,150,4,3", "1,2,1,140,66,8,4"};

/* Extents of grids with two and three axes, of which no axis is a multiple of a box, and places past a tile. */
static const char *const grids[][NUM_SHAPES] = {
    {"2,2,2,9x8,7x9,6,5", "1,4,1,7x11,8x7,4,3", "1,2,2,1x9,9x7,5", "1,2,1,8x7,7x7,4", "1,2,1,7x10,15x10,4,3",
     "1,2,1,20x7,8x8,3,4"},
    {"2,2,2,4x5x7,4x6x7,6,5", "1,4,1,5x5x7,4x5x8,4,3", "1,2,2,1x2x9,4x5x7,5", "1,2,1,5x5x7,5x5x7,4",
     "1,2,1,2x5x7,5x6x7,4,3", "1,2,1,6x5x7,4x5x7,3,4"}};

/* Returns 0 if all results are within tolerance. */
static int check_shape(const luattn_spec *spec, const char *path, int i, const char *const *of) {
  const cli_options o = {
      .spec = path, .dtype = "f64", .shape = of[i], .layout = i % 2 ? "bshd" : "bhsd", .seed = 1 + i};
  char title[512];
  cli_problem p;
  check_report r;
  luattn_error err;
  snprintf(title, sizeof title, "%s --shape %s --layout %s", path, o.shape, o.layout);
  bool has_backward = true;
  luattn_status status = problem_read(spec, &o, true, &p, &err);
  if (status == LUATTN_OK) {
    has_backward = p.info.has_backward != 0;
    status = check_plain(&o, &p, &r, &err);
    problem_free(&p);
  }
  if (status != LUATTN_OK && of == shapes && strstr(err.message, "head_dim is odd here") != NULL)
    return check_shape(spec, path, i, even);
  if (status != LUATTN_OK) {
    printf("%s\n  %s\n", title, err.message);
    return 1;
  }
  const int least = r.stops_gradient || !has_backward ? 1 : 2; /* the output, and at least one gradient */
  if (r.failed > 0 || r.count < least) check_print(title, &r);
  return r.failed > 0 || r.count < least;
}

/* A third of the specs runs for a tree. The last two shapes take most of the time. */
static bool is_drawn(const char *path, int shape) {
  const char *slash = strrchr(path, '/');
  return drawn(slash != NULL ? slash + 1 : path, shape, shape == 0 ? 3 : shape < NUM_SHAPES - 2 ? 12 : 31);
}

int main(int argc, char **argv) {
  const bool draws = argc > 1 && strcmp(argv[1], "draw") == 0;
  int failed = 0, checks = 0;
  for (int i = 1 + draws; i < argc; i++) {
    luattn_spec *spec;
    luattn_error err;
    if (luattn_spec_load(argv[i], NULL, &spec, &err) != LUATTN_OK) {
      printf("%s\n", err.message);
      failed++;
      continue;
    }
    const int axes = luattn_spec_grid(spec, NULL);
    const char *const *of = axes > 1 ? grids[axes - 2] : shapes;
    for (int j = 0; j < NUM_SHAPES; j++)
      if (!draws || is_drawn(argv[i], j)) checks++, failed += check_shape(spec, argv[i], j, of);
    luattn_spec_free(spec);
  }
  printf("%d specs, %d shapes of %d, %d failed\n", argc - 1 - draws, checks, (argc - 1 - draws) * NUM_SHAPES, failed);
  return failed > 0 || checks == 0;
}
