/* fuzz_image.c: opens arbitrary bytes as an image, as a cache entry could be. Images that open are loaded on
 * a fake libcuda that computes nothing, and launched: a manifest that passes its checks must be safe in all
 * code that reads it. */
#include <stdlib.h>
#include <string.h>

#include "luattn/runtime.h"
#include "tests/abi/sections.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/pages.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/problem.h"

enum { CHECKED_FROM = 32 };

/* Splits arbitrary bytes into sections. No section extends past the end. */
static bool take_apart(const uint8_t *data, size_t size, sections *out) {
  uint64_t count, bytes;
  size_t at = SECTIONS_HEADER;
  if (size < SECTIONS_HEADER) return false;
  memcpy(&count, data + 40, sizeof count);
  for (out->count = 0; out->count < count && out->count < SECTIONS_MOST; out->count++) {
    one_section *s = &out->list[out->count];
    at = (at + 15) / 16 * 16;
    if (at > size || size - at < 16) break;
    memcpy(s->tag, data + at, 4);
    memcpy(&s->flags, data + at + 4, 4);
    memcpy(&bytes, data + at + 8, 8);
    at += 16;
    s->size = bytes < size - at ? (size_t)bytes : size - at;
    s->bytes = data + at;
    at += s->size;
  }
  return out->count > 0;
}

/* Gives one section other bytes, another tag or flag, or the content of another section, or removes it. */
static size_t mutate_section(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  sections s;
  if (!take_apart(data, size, &s)) return LLVMFuzzerMutate(data, size, max_size);
  const size_t at = seed / 16 % s.count, other = seed / 1024 % s.count;
  one_section *one = &s.list[at];
  uint8_t *bytes = malloc(one->size + 64);
  if (bytes == NULL) return size;
  memcpy(bytes, one->bytes, one->size);
  const one_section copy = *one;
  switch (seed / 65536 % 16) {
    case 0:
      LLVMFuzzerMutate((uint8_t *)one->tag, 4, 4);
      break;
    case 1:
      one->flags ^= 1u << seed % 3;
      break;
    case 2:
      sections_remove(&s, at);
      break;
    case 3:
      if (s.count < SECTIONS_MOST)
        sections_insert(&s, other, (char[5]){copy.tag[0], copy.tag[1], copy.tag[2], copy.tag[3], 0}, copy.flags,
                        copy.bytes, copy.size);
      break;
    case 4:
      *one = s.list[other];
      s.list[other] = copy;
      break;
    default:
      one->size = LLVMFuzzerMutate(bytes, one->size, one->size + 64);
      one->bytes = bytes;
  }
  size_t made_size;
  unsigned char *made = sections_write(&s, &made_size);
  if (made_size <= max_size) {
    memcpy(data, made, made_size);
    size = made_size;
  }
  free(made);
  free(bytes);
  return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  if (seed % 4 > 0) return mutate_section(data, size, max_size, seed);
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 16 == 0 || size < SECTIONS_HEADER) return size;
  const uint64_t total = size;
  memcpy(data + 32, &total, sizeof total);
  fuzz_mend(data, size, CHECKED_FROM, size);
  return size;
}

/* Reads everything that an image describes. */
static void look(const luattn_image *image) {
  image_plan plan;
  luattn_kernel_description d = {.struct_size = sizeof d};
  luattn_error err;
  size_t sum = 0;
  if (image_get_plan(image, &plan)) sum += strlen(plan.text) + (size_t)plan.tiles.threads;
  fuzz_expect(luattn_image_describe(image, &d, &err), LUATTN_OK, LUATTN_OK);
  sum += strlen(d.spec_name) + strlen(d.arch_suffix);
  for (size_t i = 0; i < d.num_functions; ++i) sum += strlen(d.functions[i].name);
  for (size_t i = 0; i < d.num_inputs; ++i) sum += strlen(d.inputs[i].name);
  for (size_t i = 0; i < d.num_scalars; ++i) sum += strlen(d.scalars[i].name);
  if (sum == SIZE_MAX) abort(); /* keeps the reads from being optimised away */
}

static luattn_driver *driver;
static problem passes[3]; /* forward, backward, and forward over keys in pages */
static tensor weights;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  luattn_error err;
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) abort();
  problem_open(&passes[0], LUATTN_FORWARD);
  static const luattn_random random = {.struct_size = sizeof random, .seed = 1};
  luattn_batch *batch;
  problem_open(&passes[1], LUATTN_BACKWARD);
  pages_open(&passes[2], &batch);
  for (int i = 0; i < 3; ++i) passes[i].args.random = &random;
  tensor_set(&passes[0], &weights, kDLFloat, 32, 4, BATCH, HEADS, Q_LEN, KV_LEN);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  luattn_image *image;
  luattn_kernel *kernel;
  luattn_error err;
  luattn_status status = luattn_image_open(data, size, &image, &err);
  fuzz_expect(status, LUATTN_IMAGE, LUATTN_IMAGE);
  if (status != LUATTN_OK) return 0;
  look(image);
  const image_manifest *m = image_get_manifest(image);
  const bool writes_weights = m->weights != 0;
  const unsigned pass = m->paged && m->pass == LUATTN_FORWARD ? 2 : m->pass;
  luattn_append_args rows;
  if (pass == 2) pages_append(&passes[2], m, &rows);
  status = luattn_kernel_load(driver, 0, image, &kernel, &err);
  if (status != LUATTN_CUDA)
    fuzz_expect(status, LUATTN_IMAGE, LUATTN_UNSUPPORTED); /* UNSUPPORTED: the code lacks a function */
  luattn_image_free(image);
  if (status != LUATTN_OK) return 0;
  for (int extras = 0; extras < 2; ++extras) {
    luattn_args args = passes[pass].args;
    if (extras) args.skip = LUATTN_SKIP_ALWAYS, args.num_splits = 3; /* if the image supports them */
    if (luattn_workspace_size(kernel, &args, &args.workspace_size, &err) != LUATTN_OK ||
        args.workspace_size > passes[pass].args.workspace_size)
      continue;
    status = writes_weights ? luattn_launch_weights(kernel, &args, &weights.t, NULL, &err)
                            : luattn_launch(kernel, &args, NULL, &err);
    fuzz_expect(status, LUATTN_INVALID, LUATTN_CUDA);
  }
  luattn_kernel_unload(kernel);
  fake_reset();
  return 0;
}
