/* memo.h: normal forms of NVRTC programs and of PTX. Texts with equal normal forms compile to the same
 * machine code. */
#ifndef LUATTN_TESTS_MEMO_H
#define LUATTN_TESTS_MEMO_H

#include <stdbool.h>
#include <stddef.h>

#include "gen/base/hash.h"

typedef struct memo_file {
  const char *name, *text;
} memo_file;

/* Returns CUDA text without comments, indentation and runs of blanks. The caller frees it; NULL: out of
 * memory. */
char *memo_strip(const char *text);
/* Returns PTX without comments, blank lines, unused global variables, and function numbers in names. Kernels
 * are sorted by name, and C++ names become _Z0, _Z1, .. in the order of occurrence. The caller frees the
 * text; NULL: out of memory. */
char *memo_rename(const char *ptx);
/* Hashes `source` and the headers that it includes, directly or not, each after memo_strip. An #include of an
 * unknown name, or of a macro, includes all headers. Returns false if out of memory. */
bool memo_hash_source(const char *source, const memo_file *headers, int num_headers, hash128 *out);

#endif
