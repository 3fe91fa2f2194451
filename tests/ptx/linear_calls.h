/* linear_calls.h: for linear_test.c and linear_backward_test.c: calls of linear attention with random numbers, whose results
 * are compared with the recurrence in double (gen/cpu/linear_recurrence.h). */
#ifndef LUATTN_TESTS_LINEAR_CALLS_H
#define LUATTN_TESTS_LINEAR_CALLS_H

#include "linear_kernels.h"

enum { MOST_ENTRIES = 8 };

typedef enum keys { RANDOM_KEYS, ALIKE } keys;
/* EVEN: two segments of 100 tokens leave 2^-58 of a state, and one 2^-29. TURNS: of updates that erase, decays of channels: keys turn
 * what channel 1 has into channel 0 before channel 1 decays, and back, so that each channel decays to nothing in 64 tokens, and a state
 * does not. */
typedef enum gates { NONE, WEAK, PRODUCTION, STRONG, MIXED, GONE, RARE, EVEN, TURNS } gates;

typedef struct call {
  linear_kernel kernel;
  gates gates;
  keys keys;
  double most_write;                                 /* 0: 1.2 */
  int heads, heads_v, entries, tokens[MOST_ENTRIES]; /* not packed: all the same */
  int state_type;                                    /* of LuattnStates */
  bool has_first, has_last, k_first;                 /* k_first: states are [K, V] */
  bool wide_rows;                                    /* rows have numbers between them that are nobody's */
  bool in_place;
  int pool[MOST_ENTRIES]; /* 1 more than the pool's row of each entry; negative: none; 0: there are no state_rows */
  bool poisoned[MOST_ENTRIES];
  int segments;
} call;

/* Runs a call, and compares o and last states. */
void linear_run(const call *c);
/* The same of updates that erase by the one kernel that makes all of a call whose entries are not cut. */
void linear_run_whole(const call *c);
/* Runs the passes of gradients of q, k and v of a call, whose last states have gradients if it has first states, and compares
 * these. */
void linear_run_gradients(const call *c);
/* The same of a call whose updates erase: all gradients, those of numbers of tokens as well. */
void linear_run_erasing(const call *c);

#endif
