#include "tests/gen/emit/emitted.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

const luattn_target target = {.struct_size = sizeof target,
                              .pass = LUATTN_BACKWARD,
                              .dtype = LUATTN_BF16,
                              .head_dim = 128,
                              .arch = 80,
                              .cache_dir = ""};

const luattn_target hopper = {
    .struct_size = sizeof hopper, .dtype = LUATTN_BF16, .head_dim = 64, .arch = 90, .cache_dir = ""};

char *emit_file(const char *path, const luattn_target *t, const char *stage) {
  luattn_spec *spec;
  luattn_error err;
  char *text = NULL;
  luattn_status status = luattn_spec_load(path, NULL, &spec, &err);
  if (status == LUATTN_OK) {
    status = luattn_emit(spec, t, stage, &text, &err);
    luattn_spec_free(spec);
  }
  if (status != LUATTN_OK) fail_msg("%s: %s", path, err.message);
  return text;
}

char *emit_text(const char *source, const luattn_target *t, const char *stage) {
  luattn_spec *spec;
  luattn_error err;
  char *text = NULL;
  luattn_status status = luattn_spec_load_text("spec.lua", source, strlen(source), NULL, &spec, &err);
  if (status == LUATTN_OK) {
    status = luattn_emit(spec, t, stage, &text, &err);
    luattn_spec_free(spec);
  }
  if (status != LUATTN_OK) fail_msg("%s", err.message);
  return text;
}

void check_for(const luattn_target *t, const char *source, const char *const *has,
               const char *const *has_not) {
  char *text = emit_text(source, t, "spec");
  for (; has != NULL && *has != NULL; has++)
    if (strstr(text, *has) == NULL) fail_msg("'%s' is not in\n%s", *has, text);
  for (; has_not != NULL && *has_not != NULL; has_not++)
    if (strstr(text, *has_not) != NULL) fail_msg("'%s' is in\n%s", *has_not, text);
  luattn_text_free(text);
}

void check(const char *source, const char *const *has, const char *const *has_not) {
  check_for(&target, source, has, has_not);
}
