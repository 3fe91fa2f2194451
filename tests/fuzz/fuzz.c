#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL /* header only, so that no library is linked */
#include <xxhash.h>

#include "luattn/status.h"

void fuzz_expect(int status, int allowed, int or_allowed) {
  if (status == LUATTN_OK || status == LUATTN_NO_MEMORY || status == allowed || status == or_allowed) return;
  fprintf(stderr, "unexpected: %s\n", luattn_status_text((luattn_status)status));
  abort();
}

void fuzz_mend(uint8_t *data, size_t size, size_t from, size_t to) {
  if (to > size || from >= to || to < 32) return;
  const XXH128_hash_t sum = XXH3_128bits(data + from, to - from);
  memcpy(data + 16, &sum.low64, 8);
  memcpy(data + 24, &sum.high64, 8);
}
