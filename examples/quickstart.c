/* quickstart.c: computes output and gradients of an attention variant written in Lua. Runs on a GPU if there
 * is one, else on the CPU.
 *
 *   quickstart            prints O of the last query row, and d loss / d cap for loss = sum(O)
 */
#include <stdio.h>
#include <stdlib.h>

#include "luattn/engine.h"

/* Gemma 2's tanh soft cap over a causal window of 64 keys. `cap` is a run-time value with a
 * gradient. */
static const char source[] =
    "return attention {\n"
    "  name        = 'window',\n"
    "  scalars     = { cap = 20.0 },\n"
    "  score_mod   = function(score, b, h, q_idx, kv_idx) return cap * tanh(score / cap) end,\n"
    "  block_mask  = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and q_idx - kv_idx < 64 end,\n"
    "  online_func = online_softmax,\n"
    "}\n";

enum { BATCH = 2, HEADS = 8, HEADS_KV = 2, LENGTH = 300, HEAD_DIM = 64 }; /* four query heads share a kv head */

static luattn_error err; /* receives the error message of a failed call */
static void check(luattn_status status) {
  if (status == LUATTN_OK) return;
  fprintf(stderr, "%s: %s\n", luattn_status_text(status), err.message);
  exit(1);
}

/* A DLPack tensor (pointer, shape, dtype, device) and its shape. luattn never takes ownership of tensors. */
typedef struct array {
  DLTensor tensor;
  int64_t shape[4];
  size_t bytes;
} array;

static void new_array(array *a, int ndim, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
  *a = (array){.shape = {d0, d1, d2, d3}, .bytes = sizeof(float) * (size_t)(d0 * d1 * d2 * d3)};
  a->tensor = (DLTensor){.device = {kDLCPU, 0}, .ndim = ndim, .dtype = {kDLFloat, 32, 1}, .shape = a->shape};
  a->tensor.data = calloc(1, a->bytes);
  if (a->tensor.data == NULL) exit(1);
}

static void fill(array *a, unsigned seed) {
  for (size_t i = 0; i < a->bytes / sizeof(float); ++i) {
    seed = seed * 1664525u + 1013904223u;
    ((float *)a->tensor.data)[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
  }
}

/* A CPU engine takes the host arrays directly and needs no workspace. */
static void on_cpu(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args) {
  check(luattn_forward(engine, spec, args, NULL, &err));
  check(luattn_backward(engine, spec, args, NULL, &err));
}

/* Makes the same calls with a copy of every array on the device. */
static void on_gpu(luattn_engine *engine, const luattn_spec *spec, luattn_args *args, array *all, int count) {
  luattn_driver *driver = luattn_engine_driver(engine);
  void *host[16];
  for (int i = 0; i < count; ++i) {
    host[i] = all[i].tensor.data;
    check(luattn_device_alloc(driver, 0, all[i].bytes, &all[i].tensor.data, &err));
    check(luattn_copy_to_device(driver, 0, all[i].tensor.data, host[i], all[i].bytes, &err));
    all[i].tensor.device = (DLDevice){kDLCUDA, 0};
  }
  for (int pass = LUATTN_FORWARD; pass <= LUATTN_BACKWARD; ++pass) {
    /* Launching allocates nothing: the caller provides the workspace. */
    check(luattn_engine_workspace_size(engine, spec, (luattn_pass)pass, args, &args->workspace_size, &err));
    check(luattn_device_alloc(driver, 0, args->workspace_size, &args->workspace, &err));
    check((pass == LUATTN_FORWARD ? luattn_forward : luattn_backward)(engine, spec, args, NULL, &err));
    check(luattn_synchronize(driver, 0, NULL, &err));
    check(luattn_device_free(driver, 0, args->workspace, &err));
  }
  for (int i = 0; i < count; ++i) {
    check(luattn_copy_to_host(driver, 0, host[i], all[i].tensor.data, all[i].bytes, &err));
    check(luattn_device_free(driver, 0, all[i].tensor.data, &err));
    all[i].tensor.data = host[i];
  }
}

int main(void) {
  luattn_spec *spec;
  check(luattn_spec_load_text("quickstart.c", source, sizeof source - 1, NULL, &spec, &err));

  enum { Q, K, V, O, LSE, DOUT, DQ, DK, DV, DCAP, COUNT };
  array a[COUNT];
  for (int i = 0; i < COUNT; ++i)
    if (i == LSE)
      new_array(&a[i], 3, BATCH, HEADS, LENGTH, 1);
    else if (i == DCAP)
      new_array(&a[i], 1, 1, 1, 1, 1);
    else
      new_array(&a[i], 4, BATCH, i == K || i == V || i == DK || i == DV ? HEADS_KV : HEADS, LENGTH, HEAD_DIM);
  for (int i = Q; i <= V; ++i) fill(&a[i], (unsigned)i);
  for (size_t i = 0; i < a[DOUT].bytes / sizeof(float); ++i) ((float *)a[DOUT].tensor.data)[i] = 1.0f;

  luattn_args args = {.struct_size = sizeof args,
                      .q = &a[Q].tensor,
                      .k = &a[K].tensor,
                      .v = &a[V].tensor,
                      .o = &a[O].tensor,
                      .lse = &a[LSE].tensor,
                      .dout = &a[DOUT].tensor,
                      .dq = &a[DQ].tensor,
                      .dk = &a[DK].tensor,
                      .dv = &a[DV].tensor,
                      .scalar_grads = &a[DCAP].tensor};

  luattn_engine *engine = NULL;
  const int has_gpu = luattn_engine_open(NULL, &engine, &err) == LUATTN_OK;
  if (has_gpu) {
    on_gpu(engine, spec, &args, a, COUNT);
  } else {
    const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
    check(luattn_engine_open(&options, &engine, &err));
    on_cpu(engine, spec, &args);
  }

  const float *o = (const float *)a[O].tensor.data + a[O].bytes / sizeof(float) - HEAD_DIM;
  printf("%s: O[-1, -1, -1, :4] = %.6f %.6f %.6f %.6f   dcap = %.6f\n", has_gpu ? "GPU" : "CPU", (double)o[0],
         (double)o[1], (double)o[2], (double)o[3], (double)*(const float *)a[DCAP].tensor.data);
  for (int i = 0; i < COUNT; ++i) free(a[i].tensor.data);
  luattn_engine_close(engine);
  luattn_spec_free(spec);
  return 0;
}
