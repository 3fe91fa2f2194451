/* packed_problem.h: calls with packed sequences, for tests of their arguments. */
#ifndef LUATTN_TESTS_PACKED_PROBLEM_H
#define LUATTN_TESTS_PACKED_PROBLEM_H

#include "luattn/batch.h"
#include "runtime/call/args.h"
#include "tests/runtime/launches.h"

enum { TOTAL_Q = 150, TOTAL_K = 170, LONGEST_Q = 90, LONGEST_K = 100 };

/* The sample problem without features that packed sequences do not support, with a batch of BATCH
 * sequences. */
typedef struct packed_problem {
  problem p;
  tensor cu_q, cu_k;
  luattn_batch_options batch;
} packed_problem;

void packed_open(packed_problem *c, luattn_family family); /* close it by problem_close(&c->p) */
void packed_resize(packed_problem *c, int sequences, int total_q, int total_k);
luattn_status packed_open_batch(packed_problem *c, luattn_batch **batch,
                                luattn_error *err); /* and gives it to the call */
luattn_status launch_packed(packed_problem *c, luattn_error *err);
LuattnCallParams packed_filled(packed_problem *c); /* what a kernel gets; fails the test on an error */

/* A change of a call, and a part of the message that it makes. */
typedef void bend(packed_problem *c);
typedef struct bad_case {
  bend *bend;
  const char *message;
} bad_case;

#define BEND(name, statement) \
  static void name(packed_problem *c) { statement; }

#endif
