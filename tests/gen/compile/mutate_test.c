/* mutate_test.c: compiles 2000 spec texts with random damage, of which a tree draws a quarter. Each gives an error with a
 * location, or a kernel, but never a crash. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiled.h"
#include "tests/support/drawn.h"

static uint64_t next(uint64_t *state) {
  uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

#define MOST_BYTES 4096

typedef struct source {
  size_t size;
  char text[MOST_BYTES];
} source;

static source read_source(const char *path) {
  source s = {0};
  FILE *f = fopen(path, "rb");
  if (f == NULL) fail_msg("%s cannot be opened", path);
  s.size = fread(s.text, 1, MOST_BYTES / 2, f);
  fclose(f);
  return s;
}

static size_t word_at(const source *s, size_t at, size_t *length) {
  while (at > 0 && s->text[at - 1] > ' ') at--;
  for (*length = 0; at + *length < s->size && s->text[at + *length] > ' ' && *length < 32;) ++*length;
  return at;
}

/* Replaces `gone` bytes at `at` with `n` others. */
static void splice(source *s, size_t at, size_t gone, const char *put, size_t n) {
  char copy[64];
  if (n > sizeof copy || gone > s->size - at || s->size - gone + n > MOST_BYTES) return;
  memcpy(copy, put, n); /* `put` may lie in the text itself */
  memmove(s->text + at + n, s->text + at + gone, s->size - at - gone);
  memcpy(s->text + at, copy, n);
  s->size = s->size - gone + n;
}

static void damage(source *s, uint64_t *seed) {
  static const char *const bits[] = {"nil",
                                     "0",
                                     "-1",
                                     "1e308",
                                     "1/0",
                                     "0/0",
                                     "{}",
                                     "''",
                                     "function() end",
                                     "q_idx",
                                     "kv_len",
                                     "score",
                                     "not ",
                                     " and ",
                                     " or ",
                                     "(",
                                     ")",
                                     "}",
                                     ",",
                                     "//",
                                     "%",
                                     "[h]",
                                     "[{b, h}]",
                                     "..",
                                     "#",
                                     "select(2",
                                     "tanh(",
                                     "exp(",
                                     "stop_gradient(",
                                     "reduce_sum(",
                                     "==",
                                     "~=",
                                     "<",
                                     "9007199254740993",
                                     "\0",
                                     "\xff",
                                     "--[[",
                                     "while true do end "};
  for (uint64_t n = 1 + next(seed) % 3; n > 0; n--) {
    size_t length, other_length;
    const char *bit = bits[next(seed) % (sizeof bits / sizeof *bits)];
    const size_t at = next(seed) % s->size, word = word_at(s, at, &length),
                 other = word_at(s, next(seed) % s->size, &other_length);
    switch (next(seed) % 5) {
      case 0:
        splice(s, at, 1, (const char[]){(char)next(seed)}, 1);
        break;
      case 1:
        splice(s, word, length, "", 0);
        break;
      case 2:
        splice(s, word, length, s->text + other, other_length);
        break;
      case 3:
        splice(s, word, length, bit, strlen(bit));
        break;
      default:
        splice(s, at, 0, bit, strlen(bit));
        break;
    }
  }
}

static void test_damaged_specs(void **state) {
  (void)state;
  static const char *const names[] = {"gemma2", "t5_relative_bias", "attention_sink", "retention",
                                      "xpos",   "longformer",       "document",       "cosine"};
  const int kinds = (int)(sizeof names / sizeof *names);
  uint64_t seed = 3;
  enum { PARTS = 4 };
  int tried = 0, loaded = 0, compiled = 0;
  for (int i = 0; i < 2000; i++) {
    char path[512];
    snprintf(path, sizeof path, EXAMPLES "/%s.lua", names[i % kinds]);
    source s = read_source(path);
    luattn_spec *spec = NULL;
    luattn_image *image = NULL;
    luattn_error err;
    damage(&s, &seed);
    if (!drawn("mutate", i / kinds % PARTS, PARTS)) continue;
    tried++;
    const luattn_status status = luattn_spec_load_text("m.lua", s.text, s.size, NULL, &spec, &err);
    if (status != LUATTN_OK) {
      if (status != LUATTN_SPEC || strncmp(err.message, "m.lua:", 6) != 0) {
        fail_msg("case %d: status %d: %s\n%.*s", i, status, err.message, (int)s.size, s.text);
      }
      continue;
    }
    luattn_target target = target_new();
    target.pass = i % 2 ? LUATTN_BACKWARD : LUATTN_FORWARD;
    target.dtype = i % 4 < 2 ? LUATTN_F32 : LUATTN_BF16;
    const luattn_status made = luattn_compile(spec, &target, &image, NULL, &err);
    if (made != LUATTN_OK && made != LUATTN_UNSUPPORTED) {
      fail_msg("case %d: status %d: %s\n%.*s", i, made, err.message, (int)s.size, s.text);
    }
    loaded++, compiled += made == LUATTN_OK;
    luattn_image_free(image);
    luattn_spec_free(spec);
  }
  print_message("%d of %d are specs, %d of them kernels\n", loaded, tried, compiled);
  assert_true(20 * loaded > tried && 20 * loaded < 19 * tried &&
              20 * compiled > tried); /* damage in comments has no effect */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_damaged_specs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
