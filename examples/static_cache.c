/* static_cache.c: decodes with a KV cache of fixed size. Continues two sequences of different lengths, one
 * position at a time: each step appends a key and a value, and attends from one query. An array on the device
 * holds the current position of each sequence (luattn/batch.h), so all steps make the same call, which a CUDA
 * graph could capture. Runs on a GPU if there is one, otherwise on the CPU.
 *
 *   static_cache          prints the difference from one call over the full sequences
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/engine.h"

/* Positions count in the sequence. A query keeps the keys up to its own position; later entries of the cache
 * are not read. */
static const char source[] = "return attention { name = 'decode', score_mod = alibi(), block_mask = causal() }";

enum { BATCH = 2, HEADS = 8, HEADS_KV = 2, CACHE = 256, HEAD_DIM = 64, PROMPT = 40, STEPS = 20 };

static luattn_error err;
static void check(luattn_status status) {
  if (status == LUATTN_OK) return;
  fprintf(stderr, "%s: %s\n", luattn_status_text(status), err.message);
  exit(1);
}

static luattn_driver *driver; /* NULL on the CPU, where device memory is host memory */

static void *device_alloc(size_t size) {
  void *made = driver == NULL ? calloc(1, size) : NULL;
  if (driver != NULL) check(luattn_device_alloc(driver, 0, size, &made, &err));
  if (made == NULL) exit(1);
  return made;
}
static void device_free(void *p) {
  if (driver == NULL)
    free(p);
  else
    check(luattn_device_free(driver, 0, p, &err));
}
static void to_device(void *to, const void *from, size_t size) {
  if (driver == NULL)
    memcpy(to, from, size);
  else
    check(luattn_copy_to_device(driver, 0, to, from, size, &err));
}
static void to_host(void *to, const void *from, size_t size) {
  if (driver == NULL)
    memcpy(to, from, size);
  else
    check(luattn_copy_to_host(driver, 0, to, from, size, &err));
}

/* A DLPack tensor on the device. */
typedef struct array {
  DLTensor tensor;
  int64_t shape[4];
} array;

static void new_array(array *a, int heads, int length) {
  *a = (array){.shape = {BATCH, heads, length, HEAD_DIM}};
  a->tensor = (DLTensor){
      .device = {driver == NULL ? kDLCPU : kDLCUDA, 0}, .ndim = 4, .dtype = {kDLFloat, 32, 1}, .shape = a->shape};
  a->tensor.data = device_alloc(sizeof(float) * (size_t)(BATCH * heads * length * HEAD_DIM));
}

/* Stands in for a model: returns a pseudo-random number for each channel of each position. */
static float drawn(int tensor, int b, int h, int position, int d) {
  unsigned x = (unsigned)((((tensor * BATCH + b) * HEADS + h) * CACHE + position) * HEAD_DIM + d) * 2654435761u;
  x = (x ^ x >> 15) * 2246822519u;
  return (float)(x >> 8) / (float)(1 << 23) - 1.0f;
}

/* Writes positions [first, first + count) of one sequence, at `row` of the array. */
static void write_rows(array *a, int tensor, int b, int first, int count, int row) {
  float buffer[CACHE * HEAD_DIM];
  const int heads = (int)a->shape[1], length = (int)a->shape[2];
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < count * HEAD_DIM; ++i) buffer[i] = drawn(tensor, b, h, first + i / HEAD_DIM, i % HEAD_DIM);
    float *to =
        (float *)a->tensor.data + (((size_t)b * (size_t)heads + (size_t)h) * (size_t)length + (size_t)row) * HEAD_DIM;
    to_device(to, buffer, sizeof(float) * (size_t)(count * HEAD_DIM));
  }
}

static void forward(luattn_engine *engine, const luattn_spec *spec, luattn_args *args) {
  check(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, args, &args->workspace_size, &err));
  args->workspace = args->workspace_size > 0 ? device_alloc(args->workspace_size) : NULL;
  check(luattn_forward(engine, spec, args, NULL, &err));
  if (driver != NULL) check(luattn_synchronize(driver, 0, NULL, &err));
  if (args->workspace != NULL) device_free(args->workspace);
}

enum { Q, K, V };

/* The larger of two differences; NaN if one is. */
static float worse(float a, float b) { return isnan(a) || b <= a ? a : b; }

/* The largest difference of the steps from the same queries in one call over all positions, the last of which were
 * `position`. */
static float compare(luattn_engine *engine, const luattn_spec *spec, array *k, array *v, const int32_t *position,
                     float (*steps)[BATCH * HEADS * HEAD_DIM]) {
  static float all[BATCH * HEADS * CACHE * HEAD_DIM];
  array q, o;
  float off = 0;
  new_array(&q, HEADS, CACHE), new_array(&o, HEADS, CACHE);
  luattn_args whole = {.struct_size = sizeof whole, .q = &q.tensor, .k = &k->tensor, .v = &v->tensor, .o = &o.tensor};
  for (int b = 0; b < BATCH; ++b) write_rows(&q, Q, b, 0, CACHE, 0);
  forward(engine, spec, &whole);
  to_host(all, o.tensor.data, sizeof all);
  for (int i = 0; i < STEPS; ++i)
    for (int row = 0; row < BATCH * HEADS; ++row)
      for (int d = 0; d < HEAD_DIM; ++d) {
        const int at = position[row / HEADS] - STEPS + i;
        off = worse(off, fabsf(steps[i][row * HEAD_DIM + d] - all[(row * CACHE + at) * HEAD_DIM + d]));
      }
  device_free(q.tensor.data), device_free(o.tensor.data);
  return off;
}

/* An engine of the GPU, or without one of the CPU. */
static luattn_engine *open_engine(void) {
  luattn_engine *engine;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  if (luattn_engine_open(NULL, &engine, &err) == LUATTN_OK)
    driver = luattn_engine_driver(engine);
  else
    check(luattn_engine_open(&options, &engine, &err));
  return engine;
}

int main(void) {
  luattn_spec *spec;
  check(luattn_spec_load_text("static_cache.c", source, sizeof source - 1, NULL, &spec, &err));
  luattn_engine *engine = open_engine();

  array q, k, v, o;
  new_array(&q, HEADS, 1), new_array(&o, HEADS, 1);
  new_array(&k, HEADS_KV, CACHE), new_array(&v, HEADS_KV, CACHE);

  /* The position of each sequence's next query. */
  int32_t position[BATCH] = {PROMPT, PROMPT + 100};
  int64_t batch_size = BATCH;
  const DLTensor positions = {.data = device_alloc(sizeof position),
                              .device = q.tensor.device,
                              .ndim = 1,
                              .dtype = {kDLInt, 32, 1},
                              .shape = &batch_size};
  const luattn_batch_options options = {.struct_size = sizeof options, .q_offsets = &positions, .q_len = CACHE};
  luattn_batch *batch;
  check(luattn_batch_open(&options, &batch, &err));

  luattn_args step = {
      .struct_size = sizeof step, .q = &q.tensor, .k = &k.tensor, .v = &v.tensor, .o = &o.tensor, .batch = batch};
  static float steps[STEPS][BATCH * HEADS * HEAD_DIM];
  for (int b = 0; b < BATCH; ++b)
    for (int t = K; t <= V; ++t) write_rows(t == K ? &k : &v, t, b, 0, position[b], 0); /* the prompt */
  for (int i = 0; i < STEPS; ++i) {
    for (int b = 0; b < BATCH; ++b) {
      write_rows(&q, Q, b, position[b], 1, 0);
      for (int t = K; t <= V; ++t) write_rows(t == K ? &k : &v, t, b, position[b], 1, position[b]);
    }
    to_device(positions.data, position, sizeof position);
    forward(engine, spec, &step);
    to_host(steps[i], o.tensor.data, sizeof steps[i]);
    for (int b = 0; b < BATCH; ++b) ++position[b];
  }

  const float off = compare(engine, spec, &k, &v, position, steps);
  printf("%s: %d steps of %d sequences, at most %.1e from one call; O[0, 0, 0, :2] = %.4f %.4f\n",
         driver != NULL ? "GPU" : "CPU", STEPS, BATCH, (double)off, (double)steps[0][0], (double)steps[0][1]);

  array *arrays[] = {&q, &k, &v, &o};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) device_free(arrays[i]->tensor.data);
  device_free(positions.data);
  luattn_batch_close(batch);
  luattn_engine_close(engine);
  luattn_spec_free(spec);
  return off < 1e-5f ? 0 : 1;
}
