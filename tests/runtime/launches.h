/* launches.h: loads and launches kernels of the sample problem, and inspects what the driver received. */
#ifndef LUATTN_TESTS_LAUNCHES_H
#define LUATTN_TESTS_LAUNCHES_H

#include "tests/support/problem.h"

extern luattn_driver *driver;

luattn_kernel *load(const problem *p);                   /* fails the test on an error; forgets events */
void launch(problem *p, void *stream);                   /* loads, launches once and unloads */
luattn_status try_launch(problem *p, luattn_error *err); /* the same, and returns what luattn_launch did */
void assert_launch(size_t index, const char *name, unsigned x, unsigned y, unsigned z, unsigned threads,
                   unsigned shared);
void assert_fill(size_t index, const void *ptr, size_t bytes);

int open_all(void **state);  /* opens the driver */
int close_all(void **state); /* returns 0 if every resource was freed */

#endif
