#include "cli/random_array.h"

#include <math.h>

#include "common/parallel.h"

#define SPLITMIX_STEP UINT64_C(0x9e3779b97f4a7c15)

static uint64_t next_u64(uint64_t *state) {
  uint64_t z = (*state += SPLITMIX_STEP);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

double random_uniform(uint64_t *state) { return ((double)(next_u64(state) >> 11) + 0.5) * 0x1p-53; }

static double normal(uint64_t *state) {
  const double r = sqrt(-2 * log(random_uniform(state)));
  return r * cos(6.283185307179586 * random_uniform(state));
}

/* Part of an array. The state before each number is known, so parts are filled in parallel. */
typedef struct normal_fill {
  array *a;
  double scale;
  uint64_t seed;
} normal_fill;

enum { FILLED_AT_ONCE = 1 << 18 };

static luattn_status fill_part(void *user, size_t part, luattn_error *err) {
  (void)err;
  const normal_fill *f = user;
  const int64_t first = (int64_t)part * FILLED_AT_ONCE, all = array_count(f->a);
  const int64_t last = all - first < FILLED_AT_ONCE ? all : first + FILLED_AT_ONCE;
  uint64_t state = f->seed + 2 * (uint64_t)first * SPLITMIX_STEP;
  for (int64_t i = first; i < last; i++) array_set(f->a, i, f->scale * normal(&state));
  return LUATTN_OK;
}

void random_skip_normal(const array *a, uint64_t *seed) { *seed += 2 * (uint64_t)array_count(a) * SPLITMIX_STEP; }

void random_normal(array *a, double scale, uint64_t *seed) {
  normal_fill f = {a, scale, *seed};
  const int64_t all = array_count(a);
  const size_t parts = (size_t)(all / FILLED_AT_ONCE + 1);
  const bool filled = parallel_run(parts, 0, fill_part, NULL, &f, NULL) == LUATTN_OK;
  for (size_t i = 0; !filled && i < parts; i++)
    (void)fill_part(&f, i, NULL); /* without a mutex, in this
                                   * thread */
  random_skip_normal(a, seed);
}

void random_ids(array *a, uint64_t *seed) {
  const int64_t last = a->t.ndim > 0 ? a->shape[a->t.ndim - 1] : 1;
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    const double before = i % last == 0 ? 0 : array_get(a, i - 1);
    array_set(a, i, before + (i % last != 0 && random_uniform(seed) < 4.0 / (double)last));
  }
}
