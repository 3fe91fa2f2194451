/* pack_test.c: compares kernels from a pack with the same kernels compiled here. Every bit of o, lse, saved,
 * dk and dv must agree (some families sum the rest with atomics). Also measures the time to load a kernel.
 *
 * usage: gpu_pack --examples DIR [--verbose]. Exit: 0, 1, or 77 without a GPU. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "luattn/pack.h"
#include "tests/gpu/memory.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define BLOCK_BYTES ((size_t)64 << 20)

static const char *const examples[] = {"full", "causal", "document", "gemma2", "t5_relative_bias", "xpos"};
static const char *const dtypes[] = {"bf16", "f16", "f32"};

typedef struct suite {
  luattn_engine *engine; /* compiles and keeps kernels by spec, so specs outlive the engine */
  luattn_spec *spec[18];
  luattn_driver *driver;
  int arch;
  memory memory;
  unsigned char *wrote, *compiled; /* outputs of the last kernels, and of the compiled ones */
  const char *examples;
  int passed, failed, loads;
  double load_ms, open_ms;
  bool verbose;
} suite;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Writes both passes of one spec, as luattn pack does. */
static luattn_status write_pack(const suite *s, const luattn_spec *spec, const cli_problem *p, const char *path,
                                luattn_error *err) {
  luattn_pack_item item[2] = {{.kind = LUATTN_PACK_IMAGE}, {.kind = LUATTN_PACK_IMAGE}};
  luattn_image *image[2] = {NULL, NULL};
  luattn_status status = LUATTN_OK;
  for (int pass = 0; pass < 2 && status == LUATTN_OK; pass++) {
    const luattn_target target = {.struct_size = sizeof target,
                                  .pass = (luattn_pass)pass,
                                  .dtype = p->dtype,
                                  .head_dim = p->dim,
                                  .head_dim_v = p->dim_v,
                                  .arch = s->arch};
    status = luattn_compile(spec, &target, &image[pass], NULL, err);
    item[pass].image = image[pass];
    memcpy(item[pass].spec_hash, p->info.hash, sizeof item[pass].spec_hash);
  }
  if (status == LUATTN_OK) status = luattn_pack_write(path, NULL, item, 2, err);
  luattn_image_free(image[0]);
  luattn_image_free(image[1]);
  return status;
}

static luattn_status run(suite *s, luattn_engine *engine, const luattn_spec *spec, const call *c,
                         const luattn_args args[2], luattn_error *err) {
  TRY(memory_upload(&s->memory, err));
  TRY(luattn_forward(engine, spec, &args[0], NULL, err));
  TRY(luattn_backward(engine, spec, &args[1], NULL, err));
  TRY(memory_download(&s->memory, err));
  memcpy(s->wrote, s->memory.after, s->memory.used);
  call_read(&s->memory, c);
  return memory_unchanged(&s->memory, err);
}

static luattn_status load(suite *s, const luattn_pack *pack, const cli_problem *p, luattn_error *err) {
  for (int pass = 0; pass < 2; pass++) {
    const luattn_pack_query query = {.struct_size = sizeof query,
                                     .spec_name = p->info.name,
                                     .pass = (luattn_pass)pass,
                                     .dtype = p->dtype,
                                     .head_dim = p->dim,
                                     .head_dim_v = p->dim_v};
    luattn_kernel *kernel;
    const double start = now_ms();
    TRY(luattn_pack_kernel(pack, s->driver, 0, &query, &kernel, NULL, err));
    s->load_ms += now_ms() - start;
    s->loads++;
    luattn_kernel_unload(kernel);
  }
  return LUATTN_OK;
}

static luattn_status run_packed(suite *s, const luattn_spec *spec, const cli_problem *p, const call *c,
                                const luattn_args args[2], const char *path, luattn_error *err) {
  luattn_pack *pack;
  luattn_engine *engine = NULL;
  const double start = now_ms();
  TRY(luattn_pack_open(path, &pack, err));
  s->open_ms += now_ms() - start;
  const luattn_pack *const packs[] = {pack};
  const luattn_engine_options options = {
      .struct_size = sizeof options, .packs = packs, .num_packs = 1, .never_compile = 1};
  luattn_status status = load(s, pack, p, err);
  if (status == LUATTN_OK) status = luattn_engine_open(&options, &engine, err);
  if (status == LUATTN_OK) status = run(s, engine, spec, c, args, err);
  luattn_engine_close(engine);
  luattn_pack_close(pack);
  return status;
}

static luattn_status compare(const suite *s, const call *c, luattn_error *err) {
  static const struct {
    int slot;
    const char *name;
  } exact[] = {{CALL_O, "o"}, {CALL_LSE, "lse"}, {CALL_SAVED, "saved"}, {CALL_DK, "dk"}, {CALL_DV, "dv"}};
  for (int i = 0; i < COUNT(exact); i++) {
    const placed *x = &c->slot[exact[i].slot];
    if (c->host[exact[i].slot] != NULL && memcmp(s->wrote + x->first, s->compiled + x->first, x->bytes) != 0)
      return luattn_fail(err, LUATTN_INTERNAL, "%s differs between the pack's kernel and the compiled one",
                         exact[i].name);
  }
  return LUATTN_OK;
}

static luattn_status run_case(suite *s, const luattn_spec *spec, const cli_problem *p, const cli_result *r,
                              const char *path, luattn_error *err) {
  memory *m = &s->memory;
  call c;
  memory_clear(m);
  TRY(write_pack(s, spec, p, path, err));
  TRY(call_place(m, p, r, true, NULL, 0, &c, err));
  call_write(m, &c);
  luattn_args args[2] = {c.args, c.args};
  TRY(call_workspace(m, s->engine, spec, LUATTN_FORWARD, &args[0], err));
  TRY(call_workspace(m, s->engine, spec, LUATTN_BACKWARD, &args[1], err));
  TRY(run(s, s->engine, spec, &c, args, err));
  memcpy(s->compiled, s->wrote, m->used);
  TRY(run_packed(s, spec, p, &c, args, path, err));
  return compare(s, &c, err);
}

static luattn_status run_spec(suite *s, const luattn_spec *spec, const cli_options *o, const char *path,
                              luattn_error *err) {
  cli_problem p;
  cli_result r;
  TRY(problem_read(spec, o, true, &p, err));
  luattn_status status = result_new(&p, dtype_dl(p.dtype), dtype_dl(LUATTN_F32), true, &r, err);
  if (status == LUATTN_OK) {
    status = run_case(s, spec, &p, &r, path, err);
    result_free(&r);
  }
  problem_free(&p);
  return status;
}

static void run_all(suite *s, const char *path) {
  _Static_assert(
      sizeof s->spec / sizeof *s->spec == sizeof examples / sizeof *examples * (sizeof dtypes / sizeof *dtypes),
      "one for each case");
  for (int i = 0; i < COUNT(examples) * COUNT(dtypes); i++) {
    char file[4096];
    luattn_error err;
    const cli_options o = {.dtype = dtypes[i % COUNT(dtypes)], .shape = "2,4,2,300,300,128", .seed = 1 + i};
    snprintf(file, sizeof file, "%s/%s.lua", s->examples, examples[i / COUNT(dtypes)]);
    luattn_status status = luattn_spec_load(file, NULL, &s->spec[i], &err);
    if (status == LUATTN_OK) status = run_spec(s, s->spec[i], &o, path, &err);
    s->failed += status != LUATTN_OK, s->passed += status == LUATTN_OK;
    if (status != LUATTN_OK || s->verbose)
      printf("%s %s: %s\n", file, o.dtype, status == LUATTN_OK ? "same bits" : err.message);
    if (status == LUATTN_CUDA) return; /* no later call survives a device fault */
  }
}

int main(int argc, char **argv) {
  suite s = {.examples = "examples"};
  luattn_error err;
  luattn_device_info info;
  char path[] = "/tmp/luattn-gpu-pack-XXXXXX";
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--verbose") == 0)
      s.verbose = true;
    else if (i + 1 < argc && strcmp(argv[i], "--examples") == 0)
      s.examples = argv[++i];
    else
      return 2;
  }
  /* Both sides use the same tiles, not those tuned on this device. */
  const luattn_engine_options compiling = {.struct_size = sizeof compiling, .no_tuned = 1, .lengths = 1 + LUATTN_LONG};
  if (luattn_engine_open(&compiling, &s.engine, &err) != LUATTN_OK) {
    printf("skipped: %s\n", err.message);
    return 77;
  }
  s.driver = luattn_engine_driver(s.engine);
  s.compiled = malloc(BLOCK_BYTES);
  s.wrote = malloc(BLOCK_BYTES);
  const int fd = mkstemp(path);
  if (s.compiled == NULL || s.wrote == NULL || fd < 0 || close(fd) != 0 ||
      luattn_device_get_info(s.driver, 0, &info, &err) != LUATTN_OK ||
      memory_open(s.driver, BLOCK_BYTES, &s.memory, &err) != LUATTN_OK)
    return 1;
  s.arch = info.arch;
  run_all(&s, path);
  (void)unlink(path);
  const int cases = s.passed + s.failed;
  printf("%d passed, %d failed; a pack is opened in %.2f ms, a kernel loaded from it in %.2f ms\n", s.passed, s.failed,
         s.open_ms / cases, s.loads > 0 ? s.load_ms / s.loads : 0.0);
  memory_close(&s.memory);
  free(s.compiled);
  free(s.wrote);
  luattn_engine_close(s.engine);
  for (int i = 0; i < COUNT(s.spec); i++) luattn_spec_free(s.spec[i]);
  return s.failed > 0 || s.passed == 0;
}
