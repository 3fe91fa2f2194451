/* grid_pack_test.c: forward and backward over a grid from a pack, by an engine that compiles nothing. Kernels are executed
 * by the PTX machine, and O and dq are compared with the CPU path's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { HEADS = 2, Y = 9, X = 11, PLACES = Y * X, DIM = 16, TENSORS = 9 };
static const char text[] =
    "return attention { grid = {\"y\", \"x\"}, block_mask = neighborhood { kernel_size = {3, 5} } }";
enum { Q, K, V, O, DOUT, LSE, DQ, DK, DV };

/* On the device, and as float64 on the host. */
typedef struct call {
  array on_device[TENSORS];
  double on_host[TENSORS][HEADS * PLACES * DIM];
  DLTensor device[TENSORS], host[TENSORS];
} call;

static int64_t shape[] = {1, HEADS, Y, X, DIM};

static void call_open(call *c) {
  for (int i = 0; i < TENSORS; ++i) {
    array *a = &c->on_device[i];
    const int ndim = i == LSE ? 4 : 5;
    make(a, F32, 1, (int64_t[]){HEADS * PLACES * (ndim == 5 ? DIM : 1)});
    for (size_t j = 0; j < a->count; ++j) {
      put(F32, a->host, j, i < O || i == DOUT ? drawn() : NAN);
      c->on_host[i][j] = get(F32, a->host, j);
    }
    send(a);
    c->device[i] = a->t, c->device[i].ndim = ndim, c->device[i].shape = shape;
    c->host[i] = (DLTensor){
        .data = c->on_host[i], .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 64, 1}, .shape = shape};
  }
}

static luattn_args args_of(const DLTensor *t, bool backward) {
  luattn_args a = {.struct_size = sizeof a, .q = &t[Q], .k = &t[K], .v = &t[V], .o = &t[O], .lse = &t[LSE]};
  if (backward) a.dout = &t[DOUT], a.dq = &t[DQ], a.dk = &t[DK], a.dv = &t[DV];
  return a;
}

static void write_pack(const luattn_spec *spec, const char *path) {
  luattn_spec_info info;
  luattn_image *image[2];
  luattn_pack_item item[2];
  luattn_spec_get_info(spec, &info);
  for (int i = 0; i < 2; ++i) {
    const luattn_target target = {.struct_size = sizeof target,
                                  .pass = i == 0 ? LUATTN_FORWARD : LUATTN_BACKWARD,
                                  .dtype = LUATTN_F32,
                                  .head_dim = DIM,
                                  .arch = 90,
                                  .lengths = LUATTN_SHORT,
                                  .one_code = 1};
    need(luattn_compile(spec, &target, &image[i], NULL, &err) == LUATTN_OK, "compile");
    item[i] =
        (luattn_pack_item){.kind = LUATTN_PACK_IMAGE, .image = image[i], .spec_hash = {info.hash[0], info.hash[1]}};
  }
  need(luattn_pack_write(path, NULL, item, 2, &err) == LUATTN_OK, "write");
  for (int i = 0; i < 2; ++i) luattn_image_free(image[i]);
}

static bool launch(luattn_engine *engine, const luattn_spec *spec, call *c, bool backward) {
  const luattn_pass pass = backward ? LUATTN_BACKWARD : LUATTN_FORWARD;
  luattn_args args = args_of(c->device, backward);
  array memory;
  const char *plan;
  need(luattn_engine_plan(engine, spec, pass, &args, &plan, &err) == LUATTN_OK, "plan");
  const bool ok = strncmp(plan, "from pack number 0 of the engine's", 34) == 0;
  if (!ok) fprintf(stderr, "FAILED: the engine's plan is '%s'\n", plan);
  need(luattn_engine_workspace_size(engine, spec, pass, &args, &args.workspace_size, &err) == LUATTN_OK, "workspace");
  make(&memory, F32, 1, (int64_t[]){(int64_t)(args.workspace_size / 4 + 64)});
  args.workspace = memory.device;
  need((backward ? luattn_backward : luattn_forward)(engine, spec, &args, NULL, &err) == LUATTN_OK, "launch");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&memory);
  return ok;
}

static bool compare(call *c, int tensor, const char *name) {
  array *a = &c->on_device[tensor];
  double worst = 0;
  fetch(a);
  for (size_t i = 0; i < a->count; ++i) {
    const double off = fabs(get(F32, a->host, i) - c->on_host[tensor][i]);
    worst = worse(worst, off);
  }
  if (worst <= 1e-5) return true;
  fprintf(stderr, "FAILED: %s: off by %g\n", name, worst);
  return false;
}

int main(void) {
  char path[] = "/tmp/luattn-grid-XXXXXX";
  luattn_spec *spec;
  luattn_pack *pack;
  luattn_engine *engine;
  call *c = calloc(1, sizeof *c);
  close(mkstemp(path));
  need(c != NULL, "memory");
  need(luattn_spec_load_text("grid", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  write_pack(spec, path);
  setenv("LUATTN_NVRTC", "/nonexistent", 1); /* nothing is compiled from here on */
  need(luattn_pack_open(path, &pack, &err) == LUATTN_OK, "pack");
  const luattn_pack *const packs[] = {pack};
  const luattn_engine_options options = {
      .struct_size = sizeof options, .packs = packs, .num_packs = 1, .never_compile = 1};
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  driver = luattn_engine_driver(engine);
  call_open(c);
  bool ok = launch(engine, spec, c, false) && launch(engine, spec, c, true);
  luattn_args args = args_of(c->host, false);
  need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "cpu");
  args = args_of(c->host, true);
  need(luattn_cpu_backward(spec, &args, &err) == LUATTN_OK, "cpu");
  ok = compare(c, O, "o") && compare(c, LSE, "lse") && compare(c, DQ, "dq") && compare(c, DK, "dk") &&
       compare(c, DV, "dv") && ok;
  for (int i = 0; i < TENSORS; ++i) drop(&c->on_device[i]);
  luattn_engine_close(engine);
  luattn_pack_close(pack);
  luattn_spec_free(spec);
  free(c);
  unlink(path);
  return !ok;
}
