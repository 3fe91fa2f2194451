/* paged_cache.c: decodes with a KV cache in pages. Continues two sequences of different lengths, one position at a
 * time: a step takes pages for the new rows from a pool where a sequence's last page is full, writes the rows
 * (luattn_args.append), and attends from one query of each sequence. The arrays that say where rows are lie on the
 * device (luattn/batch.h), so all steps make the same two calls. Runs on a GPU if there is one, otherwise on the CPU.
 *
 *   paged_cache           prints the difference from one call over the full sequences
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/engine.h"

/* The query is its sequence's last position, and keeps all of its keys. */
static const char source[] =
    "return attention { name = 'decode', score_mod = alibi(), block_mask = causal_bottom_right() }";

enum { BATCH = 2, HEADS = 8, HEADS_KV = 2, LONGEST = 128, HEAD_DIM = 64, STEPS = 20 };
enum {
  PAGE = 16,
  PAGES = 16,
  MOST = LONGEST / PAGE
}; /* rows of a page, pages of the pool, pages of a sequence at most */
static const int prompts[BATCH] = {40, 93};

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

/* A DLPack tensor on the device: [first, heads, length, HEAD_DIM]. */
typedef struct array {
  DLTensor tensor;
  int64_t shape[4];
} array;

static void new_array(array *a, int first, int heads, int length) {
  *a = (array){.shape = {first, heads, length, HEAD_DIM}};
  a->tensor = (DLTensor){
      .device = {driver == NULL ? kDLCPU : kDLCUDA, 0}, .ndim = 4, .dtype = {kDLFloat, 32, 1}, .shape = a->shape};
  a->tensor.data = device_alloc(sizeof(float) * (size_t)(first * heads * length * HEAD_DIM));
}

/* Stands in for a model: returns a pseudo-random number for each channel of each position. */
static float drawn(int tensor, int b, int h, int position, int d) {
  unsigned x = (unsigned)((((tensor * BATCH + b) * HEADS + h) * LONGEST + position) * HEAD_DIM + d) * 2654435761u;
  x = (x ^ x >> 15) * 2246822519u;
  return (float)(x >> 8) / (float)(1 << 23) - 1.0f;
}

/* Writes positions [first, first + count) of sequence b, at row `row` of entry `entry` of the array. */
static void write_rows(array *a, int tensor, int b, int first, int count, int entry, int row) {
  float buffer[LONGEST * HEAD_DIM];
  const int heads = (int)a->shape[1], length = (int)a->shape[2];
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < count * HEAD_DIM; ++i) buffer[i] = drawn(tensor, b, h, first + i / HEAD_DIM, i % HEAD_DIM);
    float *to = (float *)a->tensor.data +
                (((size_t)entry * (size_t)heads + (size_t)h) * (size_t)length + (size_t)row) * HEAD_DIM;
    to_device(to, buffer, sizeof(float) * (size_t)(count * HEAD_DIM));
  }
}

/* Which page has rows i * PAGE .. of each sequence, and how many rows there are. */
static int32_t table[BATCH][MOST], lengths[BATCH];
static int pages_left = PAGES;

/* Takes pages from the pool, so that sequence b has room for `rows` more. Numbers that no row needs are not read. */
static void reserve(int b, int rows) {
  for (int i = (lengths[b] + PAGE - 1) / PAGE; i * PAGE < lengths[b] + rows; ++i) table[b][i] = --pages_left;
}

static void forward(luattn_engine *engine, const luattn_spec *spec, luattn_args *args) {
  check(luattn_engine_workspace_size(engine, spec, LUATTN_FORWARD, args, &args->workspace_size, &err));
  args->workspace = args->workspace_size > 0 ? device_alloc(args->workspace_size) : NULL;
  check(luattn_forward(engine, spec, args, NULL, &err));
  if (driver != NULL) check(luattn_synchronize(driver, 0, NULL, &err));
  if (args->workspace != NULL) device_free(args->workspace);
}

/* The table and the lengths on the device, which kernels read. */
static DLTensor device_numbers(int ndim, int64_t *shape, size_t size) {
  return (DLTensor){.data = device_alloc(size),
                    .device = {driver == NULL ? kDLCPU : kDLCUDA, 0},
                    .ndim = ndim,
                    .dtype = {kDLInt, 32, 1},
                    .shape = shape};
}

/* The caches as they are before the new rows (0), and after (1). */
static luattn_batch *open_batch(const DLTensor *block_table, const DLTensor *seqused_k) {
  const luattn_batch_options options = {
      .struct_size = sizeof options, .block_table = block_table, .seqused_k = seqused_k};
  luattn_batch *batch;
  check(luattn_batch_open(&options, &batch, &err));
  return batch;
}

enum { Q, K, V };

/* The larger of two differences; NaN if one is. */
static float worse(float a, float b) { return isnan(a) || b <= a ? a : b; }

/* The same queries in one call for each sequence, over all of its keys side by side: returns the largest difference. */
static float compare(luattn_engine *engine, const luattn_spec *spec, float steps[STEPS][BATCH * HEADS * HEAD_DIM]) {
  float off = 0;
  static float all[HEADS * STEPS * HEAD_DIM];
  for (int b = 0; b < BATCH; ++b) {
    array q, k, v, o, *arrays[] = {&q, &k, &v, &o};
    new_array(&q, 1, HEADS, STEPS), new_array(&o, 1, HEADS, STEPS);
    new_array(&k, 1, HEADS_KV, lengths[b]), new_array(&v, 1, HEADS_KV, lengths[b]);
    write_rows(&q, Q, b, prompts[b], STEPS, 0, 0);
    for (int t = K; t <= V; ++t) write_rows(t == K ? &k : &v, t, b, 0, lengths[b], 0, 0);
    luattn_args whole = {.struct_size = sizeof whole, .q = &q.tensor, .k = &k.tensor, .v = &v.tensor, .o = &o.tensor};
    forward(engine, spec, &whole);
    to_host(all, o.tensor.data, sizeof all);
    for (int i = 0; i < STEPS; ++i)
      for (int h = 0; h < HEADS; ++h)
        for (int d = 0; d < HEAD_DIM; ++d)
          off = worse(off, fabsf(steps[i][(b * HEADS + h) * HEAD_DIM + d] - all[(h * STEPS + i) * HEAD_DIM + d]));
    for (int i = 0; i < 4; ++i) device_free(arrays[i]->tensor.data);
  }
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
  check(luattn_spec_load_text("paged_cache.c", source, sizeof source - 1, NULL, &spec, &err));
  luattn_engine *engine = open_engine();

  array q, o, k, v, new_k, new_v;
  new_array(&q, BATCH, HEADS, 1), new_array(&o, BATCH, HEADS, 1);
  new_array(&new_k, BATCH, HEADS_KV, 1), new_array(&new_v, BATCH, HEADS_KV, 1);
  new_array(&k, PAGES, HEADS_KV, PAGE), new_array(&v, PAGES, HEADS_KV, PAGE);
  int64_t of_table[] = {BATCH, MOST}, of_lengths[] = {BATCH};
  DLTensor pages = device_numbers(2, of_table, sizeof table), before = device_numbers(1, of_lengths, sizeof lengths),
           after = device_numbers(1, of_lengths, sizeof lengths);
  for (int b = 0; b < BATCH; ++b) {
    reserve(b, prompts[b]);
    for (; lengths[b] < prompts[b]; ++lengths[b])
      for (int t = K; t <= V; ++t)
        write_rows(t == K ? &k : &v, t, b, lengths[b], 1, table[b][lengths[b] / PAGE], lengths[b] % PAGE);
  }
  to_device(before.data, lengths, sizeof lengths), to_device(after.data, lengths, sizeof lengths);
  to_device(pages.data, table, sizeof table);

  luattn_batch *batch[] = {open_batch(&pages, &before), open_batch(&pages, &after)};
  const luattn_append_args rows = {
      .struct_size = sizeof rows, .new_k = &new_k.tensor, .new_v = &new_v.tensor, .batch = batch[0]};
  luattn_args step = {.struct_size = sizeof step,
                      .q = &q.tensor,
                      .k = &k.tensor,
                      .v = &v.tensor,
                      .o = &o.tensor,
                      .batch = batch[1],
                      .append = &rows};
  static float steps[STEPS][BATCH * HEADS * HEAD_DIM];
  for (int i = 0; i < STEPS; ++i) {
    to_device(before.data, lengths, sizeof lengths);
    for (int b = 0; b < BATCH; ++b) {
      reserve(b, 1);
      write_rows(&q, Q, b, lengths[b], 1, b, 0);
      for (int t = K; t <= V; ++t) write_rows(t == K ? &new_k : &new_v, t, b, lengths[b], 1, b, 0);
      ++lengths[b];
    }
    to_device(pages.data, table, sizeof table), to_device(after.data, lengths, sizeof lengths);
    forward(engine, spec, &step);
    to_host(steps[i], o.tensor.data, sizeof steps[i]);
  }
  const float off = compare(engine, spec, steps);
  printf("%s: %d steps of %d sequences in %d pages, at most %.1e from one call; O[0, 0, 0, :2] = %.4f %.4f\n",
         driver != NULL ? "GPU" : "CPU", STEPS, BATCH, PAGES - pages_left, (double)off, (double)steps[0][0],
         (double)steps[0][1]);

  void *memory[] = {q.tensor.data,     o.tensor.data, k.tensor.data, v.tensor.data, new_k.tensor.data,
                    new_v.tensor.data, pages.data,    before.data,   after.data};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i) device_free(memory[i]);
  for (int i = 0; i < 2; ++i) luattn_batch_close(batch[i]);
  luattn_engine_close(engine);
  luattn_spec_free(spec);
  return off < 1e-5f ? 0 : 1;
}
