/* need_attention.h: starts a public function of attention, which has no meaning for a spec of another form. */
#ifndef LUATTN_COMMON_CALL_NEED_ATTENTION_H
#define LUATTN_COMMON_CALL_NEED_ATTENTION_H

#include "common/fail.h"
#include "luattn/compiler.h"

/* "luattn_forward: spec 'gla': is of linear attention, ..". */
static inline luattn_status fail_form(const luattn_spec *spec, const char *function, luattn_error *err) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "%s: spec '%s': is of linear attention, and this function is of attention; call those of "
                     "luattn/linear.h",
                     function, info.name);
}

/* Fails a public function whose spec is NULL, or of linear attention. */
#define NEED_ATTENTION(spec)                                                                      \
  do {                                                                                            \
    NEED(spec);                                                                                   \
    if (luattn_spec_form(spec) != LUATTN_FORM_ATTENTION) return fail_form((spec), __func__, err); \
  } while (0)

#endif
