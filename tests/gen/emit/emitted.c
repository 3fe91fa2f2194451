#include "tests/gen/emit/emitted.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Returns whether `text` contains this word. */
static bool has_word(const char *text, const char *word, size_t n) {
  for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
    if (!isalnum((unsigned char)at[n]) && at[n] != '_' && (at == text || at[-1] == ' ')) return true;
  return false;
}

/* Appends the structs of contract/absent.cuh that `text` names, and their dependencies. */
static void append_absences(char *text, size_t capacity) {
  static char absent[1 << 14];
  FILE *f = fopen(TEMPLATES "/contract/absent.cuh", "rb");
  if (f == NULL) fail_msg("no contract/absent.cuh");
  absent[fread(absent, 1, sizeof absent - 1, f)] = 0;
  fclose(f);
  /* Backwards, because a struct comes after those that it uses. */
  for (size_t at = strlen(absent); at-- > 0;) {
    if (strncmp(absent + at, "\nstruct ", 8) != 0) continue;
    char name[64];
    const char *from = absent + at + 8, *end = strstr(from, "};");
    const size_t n = strcspn(from, " ");
    if (n >= sizeof name || end == NULL) fail_msg("a struct without a name or an end");
    snprintf(name, sizeof name, "%.*s", (int)n, from);
    if (!has_word(text, name, n)) continue;
    if (strlen(text) + (size_t)(end - from) + 2 > capacity) fail_msg("much text");
    strncat(text, from, (size_t)(end - from));
    strcat(text, "\n");
  }
}

/* Splits declarations: `a = 1, b = 2;` becomes `a = 1; b = 2;`. */
static void part_constants(char *text) {
  for (char *line = text; line != NULL; line = strchr(line + 1, '\n')) {
    char *end = strchr(line + 1, '\n'), *at = strstr(line, "static constexpr ");
    if (at == NULL || (end != NULL && at > end) || strstr(line, "__device__") == at + 17) continue;
    for (; *at != 0 && at != end; at++)
      if (at[0] == ',' && at[1] == ' ') at[0] = ';';
  }
}

char *emit_facts(const char *source, const luattn_target *t, bool both) {
  enum { CAPACITY = 1 << 20 };
  char *facts = calloc(1, CAPACITY);
  luattn_target each = *t;
  if (facts == NULL) fail_msg("out of memory");
  for (int i = 0; i < (both && t->pass == LUATTN_BACKWARD ? 2 : 1); i++) {
    if (i == 1) each.pass = LUATTN_FORWARD;
    char *text = emit_text(source, &each, "spec");
    if (strlen(facts) + strlen(text) + 1 > CAPACITY / 2) fail_msg("much text");
    strcat(facts, text);
    luattn_text_free(text);
  }
  append_absences(facts, CAPACITY);
  part_constants(facts);
  return facts;
}

static void check_in(char *text, const char *const *has, const char *const *has_not) {
  for (; has != NULL && *has != NULL; has++)
    if (strstr(text, *has) == NULL) fail_msg("'%s' is not in\n%s", *has, text);
  for (; has_not != NULL && *has_not != NULL; has_not++)
    if (strstr(text, *has_not) != NULL) fail_msg("'%s' is in\n%s", *has_not, text);
  free(text);
}

void check_for(const luattn_target *t, const char *source, const char *const *has, const char *const *has_not) {
  check_in(emit_facts(source, t, true), has, has_not);
}

void check_pass(const luattn_target *t, const char *source, const char *const *has, const char *const *has_not) {
  check_in(emit_facts(source, t, false), has, has_not);
}

void check(const char *source, const char *const *has, const char *const *has_not) {
  check_for(&target, source, has, has_not);
}
