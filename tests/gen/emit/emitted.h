/* emitted.h: what luattn emits for a spec, as text, and what must be in it. For tests of gen/emit. */
#ifndef LUATTN_TESTS_EMITTED_H
#define LUATTN_TESTS_EMITTED_H

#include "luattn/compiler.h"

extern const luattn_target target; /* backward, bf16, head dim 128, sm_80 */
extern const luattn_target hopper; /* forward, bf16, head dim 64, sm_90 */

/* Fail where luattn does. luattn_text_free frees. */
char *emit_file(const char *path, const luattn_target *t, const char *stage);
char *emit_text(const char *source, const luattn_target *t, const char *stage);

/* Is all of `has` in the spec.cuh of a source, and nothing of `has_not`? NULL: nothing to look for. */
void check_for(const luattn_target *t, const char *source, const char *const *has,
               const char *const *has_not);
void check(const char *source, const char *const *has, const char *const *has_not); /* for `target` */
#define LIST(...) \
  (const char *const[]) { __VA_ARGS__, NULL }

#endif
