/* use_pack.c: runs kernels compiled ahead of time, in a program without Lua, NVRTC or a compiler. It links
 * only luattn_runtime.
 *
 *   luattn pack -o causal.luapack --arch sm_80,sm_90a --dtype f32 --head-dim 64 examples/causal.lua
 *   use_pack causal.luapack [SPEC]      prints O of the last query row and the sums of dq, dk and dv */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "luattn/pack.h"

enum { BATCH = 2, HEADS = 8, HEADS_KV = 2, LENGTH = 300, HEAD_DIM = 64 };

static luattn_error err;
static void check(luattn_status status) {
  if (status == LUATTN_OK) return;
  fprintf(stderr, "%s: %s\n", luattn_status_text(status), err.message);
  exit(1);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* A tensor on the device. */
typedef struct array {
  DLTensor tensor;
  int64_t shape[4];
  size_t bytes;
} array;

static void new_array(luattn_driver *driver, array *a, int ndim, int64_t heads, int64_t last) {
  *a = (array){.shape = {BATCH, heads, LENGTH, last}};
  a->bytes = sizeof(float) * (size_t)(BATCH * heads * LENGTH * last);
  a->tensor = (DLTensor){.device = {kDLCUDA, 0}, .ndim = ndim, .dtype = {kDLFloat, 32, 1}, .shape = a->shape};
  check(luattn_device_alloc(driver, 0, a->bytes, &a->tensor.data, &err));
}

static void upload(luattn_driver *driver, const array *a, unsigned seed) {
  float *host = malloc(a->bytes);
  if (host == NULL) exit(1);
  for (size_t i = 0; i < a->bytes / sizeof *host; ++i) {
    seed = seed * 1664525u + 1013904223u;
    host[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
  }
  check(luattn_copy_to_device(driver, 0, a->tensor.data, host, a->bytes, &err));
  free(host);
}

static float *download(luattn_driver *driver, const array *a) {
  float *host = malloc(a->bytes);
  if (host == NULL) exit(1);
  check(luattn_copy_to_host(driver, 0, host, a->tensor.data, a->bytes, &err));
  return host;
}

/* Loads a kernel from the pack and launches it. After luattn_pack_kernel the calls are those for any other
 * kernel. */
static void run(luattn_driver *driver, const luattn_pack *pack, const char *spec, luattn_pass pass, luattn_args *args) {
  const luattn_pack_query query = {
      .struct_size = sizeof query, .spec_name = spec, .pass = pass, .dtype = LUATTN_F32, .head_dim = HEAD_DIM};
  luattn_kernel *kernel;
  check(luattn_pack_kernel(pack, driver, 0, &query, &kernel, NULL, &err));
  check(luattn_workspace_size(kernel, args, &args->workspace_size, &err));
  check(luattn_device_alloc(driver, 0, args->workspace_size, &args->workspace, &err));
  check(luattn_launch(kernel, args, NULL, &err));
  check(luattn_synchronize(driver, 0, NULL, &err));
  check(luattn_device_free(driver, 0, args->workspace, &err));
  luattn_kernel_unload(kernel);
}

int main(int argc, char **argv) {
  enum { Q, K, V, O, LSE, DOUT, DQ, DK, DV, COUNT };
  array a[COUNT];
  luattn_driver *driver;
  luattn_pack *pack;
  if (argc < 2) {
    fprintf(stderr, "usage: use_pack PACK [SPEC]\n");
    return 2;
  }
  const double start = now_ms();
  check(luattn_driver_open(&driver, &err));
  for (int i = 0; i < COUNT; ++i)
    new_array(driver, &a[i], i == LSE ? 3 : 4, i == K || i == V || i == DK || i == DV ? HEADS_KV : HEADS,
              i == LSE ? 1 : HEAD_DIM);
  for (int i = Q; i <= V; ++i) upload(driver, &a[i], (unsigned)i);
  upload(driver, &a[DOUT], 7);

  luattn_args args = {.struct_size = sizeof args,
                      .q = &a[Q].tensor,
                      .k = &a[K].tensor,
                      .v = &a[V].tensor,
                      .o = &a[O].tensor,
                      .lse = &a[LSE].tensor,
                      .dout = &a[DOUT].tensor,
                      .dq = &a[DQ].tensor,
                      .dk = &a[DK].tensor,
                      .dv = &a[DV].tensor};
  const char *spec = argc > 2 ? argv[2] : NULL; /* NULL: any spec of the pack */
  const double ready = now_ms();
  check(luattn_pack_open(argv[1], &pack, &err));
  run(driver, pack, spec, LUATTN_FORWARD, &args);
  const double launched = now_ms();
  run(driver, pack, spec, LUATTN_BACKWARD, &args);

  float *o = download(driver, &a[O]);
  const float *last = o + a[O].bytes / sizeof *o - HEAD_DIM;
  printf("O[-1, -1, -1, :4] = %.6f %.6f %.6f %.6f", (double)last[0], (double)last[1], (double)last[2], (double)last[3]);
  for (int i = DQ; i <= DV; ++i) {
    double sum = 0;
    float *x = download(driver, &a[i]);
    for (size_t j = 0; j < a[i].bytes / sizeof *x; ++j) sum += (double)x[j];
    printf("   sum of d%c = %.4f", "qkv"[i - DQ], sum);
    free(x);
  }
  printf("\nforward pass loaded and run %.1f ms after the driver and the data were ready, which took %.1f ms\n",
         launched - ready, ready - start);
  free(o);
  for (int i = 0; i < COUNT; ++i) check(luattn_device_free(driver, 0, a[i].tensor.data, &err));
  luattn_pack_close(pack);
  luattn_driver_close(driver);
  return 0;
}
