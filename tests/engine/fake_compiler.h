/* fake_compiler.h: a fake compiler for tests of the engine; makes images of the sample problem. */
#ifndef LUATTN_TESTS_FAKE_COMPILER_H
#define LUATTN_TESTS_FAKE_COMPILER_H

#include <stdatomic.h>

#include "luattn/engine.h"

/* The spec tells the fake compiler what to do. */
struct luattn_spec {
  atomic_int compilations, failures_left;
  int by_length;  /* different tiles for short lengths */
  int has_decode; /* else target.decode 2 gives the kernel for all lengths */
  uint64_t hash;  /* 0: 7 */
};

extern luattn_target last_target; /* read after threads are joined */

luattn_engine *open_engine(void);        /* for device 0, with cache directory "/cache" */
int everything_given_back(void **state); /* returns 0 if everything was freed in the driver */

#endif
