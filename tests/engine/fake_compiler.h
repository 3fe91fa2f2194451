/* fake_compiler.h: a fake compiler for tests of the engine, which makes images of the sample problem. */
#ifndef LUATTN_TESTS_FAKE_COMPILER_H
#define LUATTN_TESTS_FAKE_COMPILER_H

#include <stdatomic.h>

#include "luattn/engine.h"

/* The spec tells the fake compiler what to do. */
struct luattn_spec {
  atomic_int compilations, failures_left;
  int by_length; /* short lengths have other tiles */
};

extern luattn_target last_target; /* read after threads are joined */

luattn_engine *open_engine(void);        /* on device 0, with the cache "/cache" */
int everything_given_back(void **state); /* 0: everything was freed in the driver */

#endif
