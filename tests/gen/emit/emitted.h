/* emitted.h: the text that luattn emits for a spec, and checks on it. For tests of gen/emit. */
#ifndef LUATTN_TESTS_EMITTED_H
#define LUATTN_TESTS_EMITTED_H

#include <stdbool.h>

#include "luattn/compiler.h"

extern const luattn_target target; /* backward, bf16, head dim 128, sm_80 */
extern const luattn_target hopper; /* forward, bf16, head dim 64, sm_90 */

/* These fail the test where luattn fails. luattn_text_free frees. */
char *emit_file(const char *path, const luattn_target *t, const char *stage);
char *emit_text(const char *source, const luattn_target *t, const char *stage);

/* The spec.cuh of a source, with the structs of contract/absent.cuh that it names, and each constant as `name
 * = value;`. both: for a backward target, then for forward. free frees. */
char *emit_facts(const char *source, const luattn_target *t, bool both);

/* Whether all of `has` is in the facts of a source, of both passes, and nothing of `has_not`; NULL: none.
 * `check_pass`: only of the target's pass. */
void check_pass(const luattn_target *t, const char *source, const char *const *has,
                const char *const *has_not);
void check_for(const luattn_target *t, const char *source, const char *const *has,
               const char *const *has_not);
void check(const char *source, const char *const *has, const char *const *has_not); /* for `target` */
#define LIST(...) \
  (const char *const[]) { __VA_ARGS__, NULL }

#endif
