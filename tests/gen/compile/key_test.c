/* key_test.c: tests that the cache key changes with everything that can change the cubin, and with nothing
 * else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiled.h"
#include "gen/compile/cache_key.h"
#include "gen/compile/compilation.h"

static hash128 key_of(const luattn_spec *spec, const luattn_target *target) {
  luattn_image *image = compile(spec, target, NULL);
  const uint64_t *hash = image_get_manifest(image)->source_hash;
  const hash128 key = {hash[0], hash[1]};
  luattn_image_free(image);
  return key;
}

static bool same(hash128 a, hash128 b) { return a.lo == b.lo && a.hi == b.hi; }

static hash128 key_of_text(const char *source) {
  luattn_spec *spec = load(source);
  const luattn_target target = target_new();
  const hash128 key = key_of(spec, &target);
  luattn_spec_free(spec);
  return key;
}

/* ---- the target and the spec ---- */

static void test_targets(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  luattn_target t[14];
  hash128 key[14];
  for (int i = 0; i < 14; i++) t[i] = target_new();
  t[1].pass = LUATTN_FORWARD;
  t[2].dtype = LUATTN_F64;
  t[3].head_dim = 32;
  t[4].head_dim_v = 32;
  t[5].arch = 90;
  t[6].wants = LUATTN_WANT_DQ;
  t[7].wants = LUATTN_WANT_ALL & ~(unsigned)LUATTN_WANT_INPUTS;
  t[8].tile_m = 32, t[8].tile_n = 32;
  t[9].dtype = LUATTN_BF16;
  t[10].dtype = LUATTN_F16;
  t[11].nvrtc = OTHER_NVRTC;
  t[12].deterministic = 1;
  t[13].one_code = 1;
  for (int i = 0; i < 14; i++) {
    key[i] = key_of(spec, &t[i]);
    for (int j = 0; j < i; j++) {
      if (same(key[i], key[j])) fail_msg("targets %d and %d have one key", i, j);
    }
  }
  /* The key does not depend on the cache folder, nor on whether a default is explicit. */
  luattn_target same_again = target_new();
  folder dir = folder_new();
  same_again.cache_dir = dir.path, same_again.wants = LUATTN_WANT_ALL, same_again.head_dim_v = same_again.head_dim;
  assert_true(same(key_of(spec, &same_again), key[0]));
  t[1].deterministic = 1; /* forward is always deterministic */
  assert_true(same(key_of(spec, &t[1]), key[1]));
  folder_remove(&dir);
  assert_int_equal(setenv("LUATTN_LINEINFO", "1", 1), 0);
  assert_false(same(key_of(spec, &t[0]), key[0]));
  unsetenv("LUATTN_LINEINFO");
  luattn_spec_free(spec);
}

static void test_packed(void **state) {
  (void)state;
  luattn_spec *spec = load("return attention { block_mask = causal() }");
  luattn_target dense = target_new(), packed = target_new();
  dense.pass = packed.pass = LUATTN_FORWARD, packed.packed = 1;
  assert_false(same(key_of(spec, &dense), key_of(spec, &packed)));
  packed.packed = 0, packed.large_scores = 1;
  assert_false(same(key_of(spec, &dense), key_of(spec, &packed)));
  luattn_spec_free(spec);
}

static void test_keys_modified(void **state) {
  (void)state;
  luattn_spec *plain = load("return attention { block_mask = causal() }"),
              *mod = load("return attention { key_mod = function(x, b, h, pos, d) return x * (1 + pos) end }");
  luattn_target raw = target_new(), modified = target_new();
  raw.pass = modified.pass = LUATTN_FORWARD, modified.keys_modified = 1;
  assert_false(same(key_of(mod, &raw), key_of(mod, &modified)));
  assert_true(same(key_of(plain, &raw), key_of(plain, &modified))); /* there is nothing to leave out */
  luattn_spec_free(plain);
  luattn_spec_free(mod);
}

/* Returns SPEC with the first `from` replaced. */
static const char *with(const char *from, const char *to, char out[1024]) {
  const char *at = strstr(SPEC, from);
  assert_non_null(at);
  snprintf(out, 1024, "%.*s%s%s", (int)(at - SPEC), SPEC, to, at + strlen(from));
  return out;
}

static void test_specs(void **state) {
  (void)state;
  static const char *const changes[][2] = {{"W = 48", "W = 49"},
                                           {"kv_idx <= q_idx", "kv_idx < q_idx"},
                                           {"tanh", "sigmoid"},
                                           {"grad = true", "grad = false"},
                                           {"(kv_idx - q_idx)", "(q_idx - kv_idx)"},
                                           {"cap = 30.0", "cap = 31.0"},
                                           {"'pipeline'", "'pipelines'"},
                                           {"'i32'", "'f32'"}};
  char source[1024];
  hash128 key[9] = {key_of_text(SPEC)};
  for (int i = 1; i < 9; i++) {
    key[i] = key_of_text(with(changes[i - 1][0], changes[i - 1][1], source));
    for (int j = 0; j < i; j++) {
      if (same(key[i], key[j])) fail_msg("changes %d and %d give one key", i, j);
    }
  }
  /* The same kernel from a different spelling, with unchanged line numbers. */
  assert_true(same(key_of_text(with("local W = 48", "local W = 40 + 8 -- keys", source)), key[0]));
}

/* ---- every part of the IR, before anything is planned ---- */

static void must_count(const compilation *c, hash128 want, const char *what, int number) {
  hash128 key;
  assert_int_equal(cache_key(c, false, &key, NULL), LUATTN_OK);
  if (same(key, want)) fail_msg("%s %d does not count", what, number);
}

#define FLIP(place, what, number)      \
  do {                                 \
    (place) ^= 1;                      \
    must_count(c, want, what, number); \
    (place) ^= 1;                      \
  } while (0)

static void flip_nodes(compilation *c, hash128 want) {
  for (ir_ref r = 1; r < ir_count(c->loaded); r++) {
    ir_node *n = (ir_node *)(uintptr_t)ir_get(c->loaded, r);
    FLIP(n->op, "the op of node", (int)r);
    FLIP(n->type, "the type of node", (int)r);
    FLIP(n->imm.integer, "the number of node", (int)r);
    FLIP(n->line, "the line of node", (int)r);
    for (int i = 0; i < n->nargs; i++) FLIP(n->arg[i], "an argument of node", (int)r);
  }
}

static void flip_declarations(compilation *c, hash128 want) {
  traced_spec *t = (traced_spec *)(uintptr_t)c->given;
  ir_ref *const roots[] = {&t->score_mod,      &t->block_mask,     &t->query_mod,       &t->key_mod,
                           &t->value_mod,      &t->online.prob,    &t->online.rescale,  &t->online.out,
                           &t->online.init[0], &t->online.next[0], &t->online.final[0], &t->online.forward,
                           &t->online.backward};
  for (int i = 0; i < (int)(sizeof roots / sizeof *roots); i++) FLIP(*roots[i], "root", i);
  assert_true(t->num_reads > 0);
  for (int i = 0; i < t->num_reads; i++) FLIP(t->read[i], "the channel of x[..]", i);
  assert_true(t->num_inputs > 0 && t->num_scalars > 0);
  for (int i = 0; i < t->num_inputs; i++) {
    FLIP(t->input[i].name[0], "the name of input", i);
    FLIP(t->input[i].dtype, "the type of input", i);
    FLIP(t->input[i].grad, "the gradient of input", i);
    FLIP(t->input[i].axis[0], "an axis of input", i);
  }
  for (int i = 0; i < t->num_scalars; i++) {
    const char *name = t->scalar_name[i];
    t->scalar_default[i] += 1;
    must_count(c, want, "the default of scalar", i);
    t->scalar_default[i] -= 1;
    t->scalar_name[i] = "another";
    must_count(c, want, "the name of scalar", i);
    t->scalar_name[i] = name;
  }
  FLIP(t->online.lse, "lse", 0);
  FLIP(t->least_extent[0], "the least extent", 0);
  t->num_ranges++, t->scalar_range[0].by[0] ^= 1;
  must_count(c, want, "the range of a scalar", 0);
  t->num_ranges--, t->scalar_range[0].by[0] ^= 1;
  const char *file = t->file;
  t->file = "elsewhere/other.lua"; /* the emitted text names the file */
  must_count(c, want, "the file", 0);
  t->file = file;
}

/* An image names a grid's axes and has as many: positions alone do not say how many there are. */
static void test_grids(void **state) {
  (void)state;
  static const char *const axes[] = {"'y', 'x'", "'t', 'y', 'x'", "'y', 'z'", "'x'"};
  enum { GRIDS = sizeof axes / sizeof *axes };
  char source[256];
  hash128 key[GRIDS];
  for (int i = 0; i < GRIDS; i++) {
    snprintf(source, sizeof source, "return attention { grid = {%s} }", axes[i]);
    key[i] = key_of_text(source);
    for (int j = 0; j < i; j++)
      if (same(key[i], key[j])) fail_msg("grids {%s} and {%s} have one key", axes[i], axes[j]);
  }
}

/* The key includes the channel of x[..], which is not reachable from any root. */
static void test_channels(void **state) {
  (void)state;
  static const char *const by[] = {"d + 1", "d + 2", "d + 3"};
  char source[256];
  hash128 key[3];
  for (int i = 0; i < 3; i++) {
    snprintf(source, sizeof source,
             "return attention { query_mod = function(x, b, h, pos, d)\n"
             "  local here = {x[(d + 1) %% head_dim], x[(d + 2) %% head_dim], x[(d + 3) %% head_dim]}\n"
             "  return here[1] + x[(%s) %% head_dim] end }",
             by[i]);
    key[i] = key_of_text(source);
    for (int j = 0; j < i; j++) assert_false(same(key[i], key[j]));
  }
}

static void test_every_part(void **state) {
  (void)state;
  char source[1024];
  luattn_spec *spec =
      load(with("return attention {",
                "return attention { query_mod = function(x, b, h, pos, d) return x[head_dim - 1 - d] end,", source));
  const luattn_target target = target_new();
  compilation *c;
  luattn_error err;
  hash128 want = {0, 0}, key;
  if (compilation_open(spec, &target, &c, &err) != LUATTN_OK ||
      plan_start(&c->spec, &c->target, &c->at.plan, &err) != LUATTN_OK ||
      nvrtc_find(FAKE_NVRTC, &c->nvrtc, &err) != LUATTN_OK || cache_key(c, false, &want, &err) != LUATTN_OK) {
    fail_msg("%s", err.message);
  }
  assert_true(same(key_of(spec, &target), want));
  flip_nodes(c, want);
  flip_declarations(c, want);
  assert_int_equal(cache_key(c, false, &key, NULL), LUATTN_OK);
  assert_true(same(key, want));
  compilation_close(c);
  luattn_spec_free(spec);
}

/* Each fact of the table counts, in both keys; not input_types, in whose place the types of the inputs do. */
static void test_every_fact(void **state) {
  (void)state;
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  target.device = "a GPU";
  compilation *c;
  luattn_error err;
  hash128 want, tuned[2], other[2];
  if (compilation_open(spec, &target, &c, &err) != LUATTN_OK ||
      plan_start(&c->spec, &c->target, &c->at.plan, &err) != LUATTN_OK ||
      cache_key(c, false, &want, &err) != LUATTN_OK || cache_key_tuned(c, tuned, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  plan *p = &c->at.plan;
#define COUNTS(name, type, member)                                                                       \
  do {                                                                                                   \
    const type was = member;                                                                             \
    const bool is_apart =                                                                                \
        strcmp(#name, "lengths") == 0 || strcmp(#name, "wants") == 0 || strcmp(#name, "many_rows") == 0; \
    member = (type)(was ^ 1);                                                                            \
    if (strcmp(#name, "input_types") != 0) must_count(c, want, "the fact " #name, 0);                    \
    assert_int_equal(cache_key_tuned(c, other, NULL), LUATTN_OK);                                        \
    if (!is_apart && strcmp(#name, "input_types") != 0 && same(other[0], tuned[0]))                      \
      fail_msg("%s does not count for tiles", #name);                                                    \
    member = was;                                                                                        \
  } while (0);
#define TARGET_FACT(name, type, range, expected, key) \
  OF_PLAN(key, COUNTS(name, type, p->name))           \
  OF_FAMILY(key, COUNTS(name, type, c->target.name))
#include "abi/kernel_facts.def"
  compilation_close(c);
  luattn_spec_free(spec);
}

/* ---- templates ---- */

static void append(const folder *dir, const char *name, const char *what) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", dir->path, name);
  FILE *f = fopen(path, "a");
  assert_non_null(f);
  assert_true(fputs(what, f) >= 0);
  fclose(f);
}

/* A copy of the templates gives the key of the embedded ones. One more byte in any file gives another key,
 * because the key is computed before it is known which files are compiled. The error for a missing file names
 * the file. */
static void test_templates(void **state) {
  (void)state;
  static const char *const edited[] = {"arch/types.cuh", "simt/tile_products.cuh", "entry/bwd_simt.cu",
                                       "entry/bwd_sm80.cu"};
  folder dir = folder_new();
  luattn_spec *spec = load(SPEC);
  luattn_target target = target_new();
  luattn_image *image = NULL;
  luattn_error err;
  char command[512], message[512];
  const hash128 embedded = key_of(spec, &target);
  snprintf(command, sizeof command, "cp -r " TEMPLATES "/. '%s'", dir.path);
  assert_int_equal(system(command), 0);
  assert_int_equal(setenv("LUATTN_TEMPLATE_DIR", dir.path, 1), 0);
  assert_true(same(key_of(spec, &target), embedded));
  hash128 before = embedded;
  for (int i = 0; i < 4; i++) {
    append(&dir, edited[i], "\n");
    const hash128 key = key_of(spec, &target);
    if (same(key, before)) fail_msg("%s: a change does not count", edited[i]);
    before = key;
  }
  snprintf(command, sizeof command, "mkdir -p '%s/abi'", dir.path); /* abi/ comes from the library */
  assert_int_equal(system(command), 0);
  append(&dir, "abi/params.h", "not read");
  assert_true(same(key_of(spec, &target), before));
  snprintf(command, sizeof command, "%s/score/online_rows.cuh", dir.path);
  assert_int_equal(remove(command), 0);
  assert_int_equal(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_IO);
  snprintf(message, sizeof message,
           "templates: '%s/score/online_rows.cuh': cannot be read (No such file or directory); "
           "LUATTN_TEMPLATE_DIR must "
           "hold every template, or "
           "be unset to use the embedded ones",
           dir.path);
  assert_string_equal(err.message, message);
  unsetenv("LUATTN_TEMPLATE_DIR");
  luattn_spec_free(spec);
  folder_remove(&dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_targets),  cmocka_unit_test(test_packed),     cmocka_unit_test(test_keys_modified),
      cmocka_unit_test(test_specs),    cmocka_unit_test(test_every_part), cmocka_unit_test(test_every_fact),
      cmocka_unit_test(test_channels), cmocka_unit_test(test_templates),  cmocka_unit_test(test_grids)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
