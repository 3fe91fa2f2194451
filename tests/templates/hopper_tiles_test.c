/* hopper_tiles_test.c: tests that backward stays in the sm90 family, in one of two compilations, for masks with lists
 * of chosen blocks of any length, for terms that read memory for each score, and for periodic tables; and that an MLP
 * of 16 hidden units with learned numbers compiles for sm_80 too. A tree draws some of the cells. Exits with 77
 * (skipped) without NVRTC. */
#include <stdio.h>
#include <string.h>

#include "gen/nvrtc/nvrtc.h"
#include "luattn/compiler.h"
#include "tests/support/drawn.h"

#define LISTS(n)                                                                          \
  "return attention { name = 'lists', inputs = { chosen = { axes = {'b', 'hkv', 'q', " #n \
  "}, dtype = 'i32' } },\n"                                                               \
  "  mask_mod = function(b, h, q, kv)\n"                                                  \
  "    local on = eq(kv // 64, 0) or eq(kv // 64, q // 64)\n"                             \
  "    for i = 0, " #n                                                                    \
  " - 1 do on = on or eq(chosen[{b, h // (heads // heads_kv), q, i}], kv // 64) end\n"    \
  "    return kv <= q and on end }"
#define LEVELS                                                                                                      \
  "return attention { name = 'levels', block_mask = causal(), inputs = { t = { axes = {'b', 'h', 'q', 20}, grad = " \
  "true } },\n"                                                                                                     \
  "  score_mod = function(x, b, h, q, kv)\n"                                                                        \
  "    local level = 0\n"                                                                                           \
  "    for i = 0, 18 do level = where(q ~ kv >= (1 << i), i + 1, level) end\n"                                      \
  "    return x + t[{b, h, q, level}] end }"
#define PERIODIC                                                                                                       \
  "return attention { name = 'periodic', block_mask = causal(), inputs = { t = { axes = {'h', 64, 64}, grad = true } " \
  "},\n"                                                                                                               \
  "  score_mod = function(x, b, h, q, kv) return x + t[{h, q % 64, kv % 64}] end }"
#define MLP                                                                                                          \
  "local N = 16\n"                                                                                                   \
  "return attention { name = 'mlp', block_mask = causal(),\n"                                                        \
  "  inputs = { w = { axes = {N, 'h'}, grad = true }, u = { axes = {'h', N}, grad = true }, v = { axes = {N, 'h'}, " \
  "grad = true },\n"                                                                                                 \
  "             c = { axes = {N, 'h'}, grad = true }, bias = { axes = {'h', 4096}, grad = true } },\n"               \
  "  score_mod = function(x, b, h, q, kv)\n"                                                                         \
  "    local t = bias[{h, clamp(q - kv, 0, 4095)}]\n"                                                                \
  "    local y = x + t\n"                                                                                            \
  "    for i = 0, N - 1 do y = y + u[{h, i}] * relu(w[{i, h}] * x + v[{i, h}] * t + c[{i, h}]) end\n"                \
  "    return y end }"

static const struct cell {
  const char *name, *source, *expected; /* in the plan */
  int arch, head_dim;
} cells[] = {{"8", LISTS(8), "family sm90", 90, 64},
             {"8", LISTS(8), "family sm90", 90, 128},
             {"16", LISTS(16), "family sm90", 90, 64},
             {"16", LISTS(16), "tiles 64 x 128, 384 threads", 90, 128},
             {"32", LISTS(32), "family sm90", 90, 128},
             {"64", LISTS(64), "tiles 64 x 128, 384 threads", 90, 128},
             {"200", LISTS(200), "family sm90", 90, 64},
             {"32", LISTS(32), "tiles 64 x 128, 256 threads", 80, 128},
             {"levels", LEVELS, "family sm90", 90, 64},
             {"levels", LEVELS, "tiles 64 x 64, 512 threads", 90, 128},
             {"periodic", PERIODIC, "family sm90", 90, 128},
             {"mlp", MLP, "family sm80", 80, 64},
             {"mlp", MLP, "family sm80", 80, 128}};
enum { CELLS = sizeof cells / sizeof *cells, ALWAYS = 3 };

static int check(const struct cell *c) {
  luattn_error err;
  luattn_spec *spec = NULL;
  luattn_image *image = NULL;
  luattn_compile_report r = {.plan = ""};
  const luattn_target t = {.struct_size = sizeof t,
                           .pass = LUATTN_BACKWARD,
                           .dtype = LUATTN_BF16,
                           .head_dim = c->head_dim,
                           .arch = c->arch,
                           .cache_dir = ""};
  luattn_status status = luattn_spec_load_text("cell.lua", c->source, strlen(c->source), NULL, &spec, &err);
  if (status == LUATTN_OK) status = luattn_compile(spec, &t, &image, &r, &err);
  const int failed = status != LUATTN_OK || strstr(r.plan, c->expected) == NULL;
  printf("%s %s, sm_%d, D %d: %s\n", failed ? "FAILED" : "ok", c->name, c->arch, c->head_dim,
         status != LUATTN_OK ? err.message
         : failed            ? r.plan
                             : c->expected);
  luattn_image_free(image);
  luattn_spec_free(spec);
  return failed;
}

int main(void) {
  nvrtc_file file;
  luattn_error err;
  int failed = 0;
  if (nvrtc_find(NULL, &file, &err) != LUATTN_OK) return printf("skipped: %s\n", err.message), 77;
  for (int i = 0; i < CELLS; i++)
    if (i == ALWAYS || drawn(cells[i].name, i, 9)) failed += check(&cells[i]);
  return failed > 0;
}
