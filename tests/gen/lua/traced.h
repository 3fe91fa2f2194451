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
/* Expects a spec to be refused with this message. */
void expect_error(const char *source, const char *message);

/* Reads a file and appends a 0, which *size does not count. The caller frees the text. */
char *read_file(const char *path, size_t *size);
/* Lists the *.lua files of a folder, sorted, at most `max`. The caller frees each path. */
int list_lua(const char *folder, char **path, int max);

/* Prints an expression on one line, such as `(le kv_idx (add q_idx 3))`. The text belongs to t->a. */
const char *show(const traced_file *t, ir_ref r);

/* Draws `rounds` blocks of 64 random index tuples and compares every hook of the spec in plain Lua with its
 * trace: masks exactly, numbers to 1e-12. Fails the test at the first difference. */
void compare_with_oracle(const char *name, const char *source, size_t size, int rounds);
/* Same as above, for a mask that may keep everything or nothing. */
void compare_with_oracle_any(const char *name, const char *source, size_t size, int rounds);
/* Same as above, with where() as select nodes from the start. */
void compare_selects_with_oracle(const char *name, const char *source, size_t size, int rounds);

#endif
