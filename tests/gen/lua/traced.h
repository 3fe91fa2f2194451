/* traced.h: traces a text in a test, prints its expressions, and compares traces with the oracle. */
#ifndef LUATTN_TESTS_TRACED_H
#define LUATTN_TESTS_TRACED_H

#include "gen/ir/passes.h"
#include "gen/lua/front.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h> /* needs those above */

typedef struct traced_file {
  arena *a;
  traced_spec spec;
} traced_file;

/* Traces a valid spec; its file is named "test.lua". */
void trace_text(traced_file *t, const char *source);
void trace_close(traced_file *t);
/* The error message of an invalid spec. */
void expect_error(const char *source, const char *message);

/* A whole file, with a terminating 0 that is not counted in *size; the caller frees. */
char *read_file(const char *path, size_t *size);
/* Sorted paths of the *.lua in a folder, at most `max`; the caller frees each. */
int list_lua(const char *folder, char **path, int max);

/* An expression on one line, as in `(le kv_idx (add q_idx 3))`. Lives in t->a. */
const char *show(const traced_file *t, ir_ref r);

/* Draws `rounds` blocks of 64 random index tuples and compares every hook of the spec in plain Lua with its
 * trace: masks exactly, numbers to 1e-12. Fails the test at the first difference. */
void compare_with_oracle(const char *name, const char *source, size_t size, int rounds);
/* The same for a mask that may keep everything or nothing. */
void compare_with_oracle_any(const char *name, const char *source, size_t size, int rounds);

#endif
