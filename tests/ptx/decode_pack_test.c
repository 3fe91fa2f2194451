/* decode_pack_test.c: decodes from a pack, by an engine that compiles nothing and by the runtime's own functions, keys
 * in one tensor and in pages. Kernels are executed by the PTX machine, and O is compared with the CPU
 * path's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/ptx/arrays.h"
#include "tests/support/worse.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, Q_LEN = 1, KV_LEN = 1100, PAGE = 44, PAGES = KV_LEN / PAGE, DIM = 64 };
static const char text[] = "return attention { block_mask = causal_bottom_right(), score_mod = softcap(20) }";
static const int used[BATCH] = {KV_LEN, 1031};

typedef struct cache {
  array q, k, v, o, used, table, paged_k, paged_v;
} cache;

static void random_array(array *a, int64_t heads, int64_t rows) {
  make(a, BF16, 4, (int64_t[]){BATCH, heads, rows, DIM});
  for (size_t i = 0; i < a->count; ++i) put(BF16, a->host, i, drawn());
  send(a);
}

/* Page j of entry b is page 7 (b * PAGES + j) + 3 of all, so that neighbours lie apart. */
static int page_of(int b, int j) { return ((b * PAGES + j) * 7 + 3) % (BATCH * PAGES); }

static void in_pages(const array *from, array *to) {
  make(to, BF16, 4, (int64_t[]){BATCH * PAGES, HEADS_KV, PAGE, DIM});
  for (int b = 0; b < BATCH; ++b)
    for (int h = 0; h < HEADS_KV; ++h)
      for (int row = 0; row < KV_LEN; ++row)
        memcpy((uint16_t *)to->host + ((page_of(b, row / PAGE) * HEADS_KV + h) * PAGE + row % PAGE) * DIM,
               (const uint16_t *)from->host + ((b * HEADS_KV + h) * KV_LEN + row) * DIM, DIM * sizeof(uint16_t));
  send(to);
}

static void cache_open(cache *c) {
  int table[BATCH * PAGES];
  random_array(&c->q, HEADS, Q_LEN), random_array(&c->k, HEADS_KV, KV_LEN), random_array(&c->v, HEADS_KV, KV_LEN);
  in_pages(&c->k, &c->paged_k), in_pages(&c->v, &c->paged_v);
  make(&c->o, BF16, 4, (int64_t[]){BATCH, HEADS, Q_LEN, DIM});
  make(&c->used, I32, 1, (int64_t[]){BATCH}), make(&c->table, I32, 2, (int64_t[]){BATCH, PAGES});
  for (int i = 0; i < BATCH * PAGES; ++i) table[i] = page_of(i / PAGES, i % PAGES);
  memcpy(c->used.host, used, sizeof used), memcpy(c->table.host, table, sizeof table);
  send(&c->used), send(&c->table);
}

static void cache_close(cache *c) {
  array *const all[] = {&c->q, &c->k, &c->v, &c->o, &c->used, &c->table, &c->paged_k, &c->paged_v};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(all[i]);
}

/* Beside the CPU path for an entry of kv_len keys. */
static bool compare(const luattn_spec *spec, cache *c, bool paged, const char *what) {
  double worst = 0;
  fetch(&c->o);
  for (int b = 0; b < BATCH; ++b) {
    const int rows = paged ? used[b] : KV_LEN;
    const array *const from[] = {&c->q, &c->k, &c->v};
    double o[HEADS * Q_LEN * DIM];
    int64_t shape[3][4], stride[4] = {HEADS_KV * KV_LEN * DIM, KV_LEN * DIM, DIM, 1},
                         to_shape[] = {1, HEADS, Q_LEN, DIM};
    DLTensor t[3], to = {.data = o, .device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 64, 1}, .shape = to_shape};
    for (int i = 0; i < 3; ++i) {
      memcpy(shape[i], (int64_t[]){1, i == 0 ? HEADS : HEADS_KV, i == 0 ? Q_LEN : rows, DIM}, sizeof shape[i]);
      t[i] = from[i]->t, t[i].device = (DLDevice){kDLCPU, 0}, t[i].shape = shape[i],
      t[i].strides = i == 0 ? NULL : stride;
      t[i].data = (uint16_t *)from[i]->host + from[i]->count / BATCH * (size_t)b;
    }
    const luattn_args args = {.struct_size = sizeof args, .q = &t[0], .k = &t[1], .v = &t[2], .o = &to};
    need(luattn_cpu_forward(spec, &args, &err) == LUATTN_OK, "cpu");
    for (int i = 0; i < HEADS * Q_LEN * DIM; ++i) {
      const double off = fabs(get(BF16, c->o.host, (size_t)(b * HEADS * Q_LEN * DIM + i)) - o[i]);
      worst = worse(worst, off);
    }
  }
  if (worst <= 2e-3) return true; /* O is about 0.05, and P and O are rounded to 2^-9 of themselves */
  fprintf(stderr, "FAILED: %s: off by %g\n", what, worst);
  return false;
}

static luattn_args args_of(cache *c, bool paged, const luattn_batch *batch) {
  return (luattn_args){.struct_size = sizeof(luattn_args),
                       .q = &c->q.t,
                       .k = paged ? &c->paged_k.t : &c->k.t,
                       .v = paged ? &c->paged_v.t : &c->v.t,
                       .o = &c->o.t,
                       .batch = batch};
}

/* Compiles kernels of both kinds of keys, and packs them. */
static void write_pack(const luattn_spec *spec, const char *path) {
  luattn_spec_info info;
  luattn_image *image[2];
  luattn_pack_item item[2];
  luattn_spec_get_info(spec, &info);
  for (int i = 0; i < 2; ++i) {
    const luattn_target target = {.struct_size = sizeof target,
                                  .dtype = LUATTN_BF16,
                                  .head_dim = DIM,
                                  .arch = 90,
                                  .decode = 1,
                                  .pages = i,
                                  .lengths = LUATTN_SHORT,
                                  .one_code = 1};
    need(luattn_compile(spec, &target, &image[i], NULL, &err) == LUATTN_OK, "compile");
    item[i] =
        (luattn_pack_item){.kind = LUATTN_PACK_IMAGE, .image = image[i], .spec_hash = {info.hash[0], info.hash[1]}};
  }
  need(luattn_pack_write(path, NULL, item, 2, &err) == LUATTN_OK, "write");
  for (int i = 0; i < 2; ++i) luattn_image_free(image[i]);
}

static void *workspace_of(size_t size, array *memory) {
  make(memory, F32, 1, (int64_t[]){(int64_t)(size / 4 + 64)});
  return memory->device;
}

static bool by_engine(const luattn_pack *pack, const luattn_spec *spec, cache *c, bool paged,
                      const luattn_batch *batch) {
  const luattn_engine_options options = {
      .struct_size = sizeof options, .packs = &pack, .num_packs = 1, .never_compile = 1};
  luattn_engine *engine;
  luattn_args args = args_of(c, paged, batch);
  array memory;
  const char *plan,
      *from = paged ? "from pack number 0 of the engine's, entry 1\n" : "from pack number 0 of the engine's, entry 0\n";
  fill(&c->o, NAN);
  need(luattn_engine_open(&options, &engine, &err) == LUATTN_OK, "engine");
  need(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, &args, &args.workspace_size, &err) == LUATTN_OK,
       "workspace");
  args.workspace = workspace_of(args.workspace_size, &memory);
  need(luattn_engine_plan(engine, spec, LUATTN_FORWARD, &args, &plan, &err) == LUATTN_OK, "plan");
  const bool ok = strcmp(plan, from) == 0;
  if (!ok) fprintf(stderr, "FAILED: the engine's plan is '%s'\n", plan);
  need(luattn_forward(engine, spec, &args, NULL, &err) == LUATTN_OK, "forward");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&memory);
  luattn_engine_close(engine);
  return compare(spec, c, paged, paged ? "engine, pages" : "engine") && ok;
}

static bool by_runtime(const luattn_pack *pack, const luattn_spec *spec, cache *c, bool paged,
                       const luattn_batch *batch) {
  const luattn_pack_query query = {
      .struct_size = sizeof query, .dtype = LUATTN_BF16, .head_dim = DIM, .decode = 1, .pages = paged ? 8 : 0};
  luattn_kernel_description d = {.struct_size = sizeof d};
  luattn_args args = args_of(c, paged, batch);
  luattn_kernel *kernel;
  array memory;
  fill(&c->o, NAN);
  args.num_splits = 3;
  need(luattn_pack_kernel(pack, driver, 0, &query, &kernel, NULL, &err) == LUATTN_OK, "kernel");
  need(luattn_kernel_describe(kernel, &d, &err) == LUATTN_OK && d.decode == 1 && d.pages == paged, "description");
  need(luattn_workspace_size(kernel, &args, &args.workspace_size, &err) == LUATTN_OK, "workspace");
  args.workspace = workspace_of(args.workspace_size, &memory);
  need(luattn_launch(kernel, &args, NULL, &err) == LUATTN_OK, "launch");
  need(luattn_synchronize(driver, 0, NULL, &err) == LUATTN_OK, "synchronize");
  drop(&memory);
  luattn_kernel_unload(kernel);
  return compare(spec, c, paged, paged ? "runtime, pages" : "runtime");
}

int main(void) {
  char path[] = "/tmp/luattn-decode-XXXXXX";
  luattn_spec *spec;
  luattn_pack *pack;
  luattn_batch *batch;
  cache c;
  bool ok = true;
  close(mkstemp(path));
  need(luattn_driver_open(&driver, &err) == LUATTN_OK, "driver");
  need(luattn_spec_load_text("decode", text, strlen(text), NULL, &spec, &err) == LUATTN_OK, "spec");
  write_pack(spec, path);
  setenv("LUATTN_NVRTC", "/nonexistent", 1); /* nothing is compiled from here on */
  need(luattn_pack_open(path, &pack, &err) == LUATTN_OK, "pack");
  cache_open(&c);
  const luattn_batch_options options = {
      .struct_size = sizeof options, .seqused_k = &c.used.t, .block_table = &c.table.t};
  need(luattn_batch_open(&options, &batch, &err) == LUATTN_OK, "batch");
  for (int paged = 0; paged < 2; ++paged) {
    ok &= by_engine(pack, spec, &c, paged != 0, paged ? batch : NULL);
    ok &= by_runtime(pack, spec, &c, paged != 0, paged ? batch : NULL);
  }
  luattn_batch_close(batch);
  cache_close(&c);
  luattn_pack_close(pack);
  luattn_spec_free(spec);
  luattn_driver_close(driver);
  unlink(path);
  return !ok;
}
