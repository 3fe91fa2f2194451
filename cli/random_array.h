/* random_array.h: random numbers for arrays that no file gives: splitmix64 (Steele, Lea, Flood 2014), normal by Box and
 * Muller. */
#ifndef LUATTN_CLI_RANDOM_ARRAY_H
#define LUATTN_CLI_RANDOM_ARRAY_H

#include "cli/cli.h"

double random_uniform(uint64_t *state); /* in (0, 1) */
void random_normal(array *a, double scale, uint64_t *seed);
/* Advances the seed as if the array had been filled, so that later arrays get the same numbers. */
void random_skip_normal(const array *a, uint64_t *seed);
/* Integers that never fall along the last axis, in about four steps a row, like document ids. */
void random_ids(array *a, uint64_t *seed);

#endif
