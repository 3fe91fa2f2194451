/* fuzz_image.c: any bytes as an image, which is what an entry of the cache is. Whatever opens is loaded on a
 * libcuda that computes nothing, and launched: a manifest that passes its checks must be safe in all that
 * reads it. */
#include <stdlib.h>
#include <string.h>

#include "luattn/runtime.h"
#include "tests/fuzz/fuzz.h"
#include "tests/runtime/fake_cuda.h"
#include "tests/runtime/problem.h"

enum { CHECKED_FROM = 32 };

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 8 == 0 || size < 64) return size;
  const uint64_t total = size;
  memcpy(data + 32, &total, sizeof total);
  if (seed % 8 > 1) { /* the cubin's size follows from its offset */
    uint64_t offset;
    memcpy(&offset, data + 48, sizeof offset);
    const uint64_t rest = offset < total ? total - offset : 0;
    memcpy(data + 56, &rest, sizeof rest);
  }
  fuzz_mend(data, size, CHECKED_FROM, size);
  return size;
}

static luattn_driver *driver;
static problem passes[2];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  luattn_error err;
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) abort();
  problem_open(&passes[0], LUATTN_FORWARD);
  problem_open(&passes[1], LUATTN_BACKWARD);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  luattn_image *image;
  luattn_kernel *kernel;
  luattn_error err;
  luattn_status status = luattn_image_open(data, size, &image, &err);
  fuzz_expect(status, LUATTN_IMAGE, LUATTN_IMAGE);
  if (status != LUATTN_OK) return 0;
  const unsigned pass = luattn_image_get_info(image)->pass;
  status = luattn_kernel_load(driver, 0, image, &kernel, &err);
  if (status != LUATTN_CUDA)
    fuzz_expect(status, LUATTN_IMAGE, LUATTN_UNSUPPORTED); /* or it lacks a function */
  luattn_image_free(image);
  if (status != LUATTN_OK) return 0;
  for (int extras = 0; extras < 2; ++extras) {
    luattn_args args = passes[pass].args;
    if (extras) args.skip = LUATTN_SKIP_ALWAYS, args.num_splits = 3; /* where the image can do that */
    if (luattn_workspace_size(kernel, &args, &args.workspace_size, &err) != LUATTN_OK ||
        args.workspace_size > passes[pass].args.workspace_size)
      continue;
    status = luattn_launch(kernel, &args, NULL, &err);
    fuzz_expect(status, LUATTN_INVALID, LUATTN_CUDA);
  }
  luattn_kernel_unload(kernel);
  fake_reset();
  return 0;
}
