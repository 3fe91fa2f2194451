/* fuzz_npy.c: reads arbitrary bytes as a .npy file. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  array a;
  luattn_error err;
  FILE *f = fmemopen((void *)(uintptr_t)data, size, "rb");
  if (f == NULL) return 0; /* no bytes */
  const luattn_status status = npy_read_stream("fuzz.npy", f, &a, &err);
  fuzz_expect(status, LUATTN_INVALID, LUATTN_IO);
  fclose(f);
  if (status != LUATTN_OK) return 0;
  double sum = 0;
  for (int64_t i = 0, n = array_count(&a); i < n; ++i) sum += array_get(&a, i);
  (void)sum;
  array_free(&a);
  return 0;
}
