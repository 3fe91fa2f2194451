/* emitted.h: emits text for a spec and checks it, for tests of gen/emit. */
#ifndef LUATTN_TESTS_EMITTED_H
#define LUATTN_TESTS_EMITTED_H

#include <stdbool.h>

#include "luattn/compiler.h"

extern const luattn_target target; /* backward, bf16, head dim 128, sm_80 */
extern const luattn_target hopper; /* forward, bf16, head dim 64, sm_90 */

/* Emit a stage as text. Fail the test on an error. Free the text with luattn_text_free. */
char *emit_file(const char *path, const luattn_target *t, const char *stage);
char *emit_text(const char *source, const luattn_target *t, const char *stage);

/* Returns the spec.cuh of a source, with the structs of contract/absent.cuh that it names, and each constant
 * as `name = value;`. both: for a backward target followed by forward. Free the text with free. */
char *emit_facts(const char *source, const luattn_target *t, bool both);

/* Checks that the facts of a source contain all of `has` and none of `has_not`; NULL: no requirement.
 * check_for: for both passes. check_pass: only for the target's pass. */
void check_pass(const luattn_target *t, const char *source, const char *const *has, const char *const *has_not);
void check_for(const luattn_target *t, const char *source, const char *const *has, const char *const *has_not);
void check(const char *source, const char *const *has, const char *const *has_not); /* for `target` */
#define LIST(...) \
  (const char *const[]) { __VA_ARGS__, NULL }

#endif
