/* drawn.h: which parts of a long test a tree runs. LUATTN_TEST_SEED, the hash of the tree, draws one of `parts` for
 * each name; without a seed all parts run, as for ./bootstrap test --all. For whole tests: tests/drawn.sh, tests/draw.awk. */
#ifndef LUATTN_TESTS_DRAWN_H
#define LUATTN_TESTS_DRAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* FNV-1a (Fowler, Noll and Vo). */
static inline uint32_t drawn_hash(uint32_t hash, const char *word) {
  for (; *word != 0; word++) hash = (hash ^ (uint8_t)*word) * UINT32_C(16777619);
  return hash;
}

static inline bool drawn(const char *name, int part, int parts) {
  const char *seed = getenv("LUATTN_TEST_SEED");
  if (seed == NULL || *seed == 0) return true;
  const uint32_t hash = drawn_hash(drawn_hash(UINT32_C(2166136261), seed), name);
  return (int)((hash >> 16) % (uint32_t)parts) == part % parts;
}

/* Into how many parts `total` cases are drawn so that a tree runs about `most` of them; `least` where they are few. */
static inline int drawn_parts(long total, long most, int least) {
  const long parts = (total + most - 1) / most;
  return parts > least ? (int)parts : least;
}

#endif
