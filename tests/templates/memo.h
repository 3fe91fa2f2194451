/* memo.h: normal forms of NVRTC programs and of PTX texts that compile to the same machine code. */
#ifndef LUATTN_TESTS_MEMO_H
#define LUATTN_TESTS_MEMO_H

#include <stdbool.h>
#include <stddef.h>

#include "gen/base/hash.h"

typedef struct memo_file {
  const char *name, *text;
} memo_file;

/* CUDA text without comments, indentation, and runs of blanks. Allocated; NULL: out of memory. */
char *memo_strip(const char *text);
/* PTX without comments, blank lines, unused global variables, and function numbers in names, with its kernels
 * sorted by name, and with _Z0, _Z1, .. for its C++ names, in the order in which they occur. Allocated; NULL:
 * out of memory. */
char *memo_rename(const char *ptx);
/* Hashes `source` and those of `headers` that it includes, directly or not, each as memo_strip leaves it. An
 * #include that names none of them, or that is a macro, includes all of them. False: out of memory. */
bool memo_hash_source(const char *source, const memo_file *headers, int num_headers, hash128 *out);

#endif
