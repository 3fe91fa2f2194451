/* fuzz_pack.c: opens arbitrary bytes as a pack. A pack that opens is listed, searched and read to the end. */
#include <string.h>

#include "runtime/pack/pack.h"
#include "tests/fuzz/fuzz.h"

/* In three of four mutations, hashes of header and index are fixed and record sizes add up, so that
 * later code is reached. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  pack_header h;
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size < sizeof h || seed % 4 == 0) return size;
  memcpy(&h, data, sizeof h);
  const size_t each = pack_record_size(h.version), fit = (size - sizeof h) / each;
  if (seed % 4 > 1 || h.num_entries > fit) {
    h.num_entries = h.num_entries % (fit + 1);
    h.total_size = size;
    memcpy(data, &h, sizeof h);
  }
  const size_t index_end = sizeof h + (size_t)h.num_entries * each;
  uint64_t offset = index_end;
  for (size_t i = 0; i < h.num_entries && seed % 4 > 1; ++i) {
    pack_record r;
    memcpy(&r, data + sizeof h + i * each, each);
    r.offset = offset;
    if (i + 1 == h.num_entries || r.entry.stored_size > size - offset) r.entry.stored_size = size - offset;
    if (r.entry.size < r.entry.stored_size) r.entry.size = r.entry.stored_size;
    offset += r.entry.stored_size;
    memcpy(data + sizeof h + i * each, &r, each);
  }
  fuzz_mend(data, size, PACK_CHECKED_FROM, index_end);
  return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  luattn_pack *pack;
  luattn_error err;
  const luattn_status status = luattn_pack_open_bytes("fuzz", data, size, &pack, &err);
  fuzz_expect(status, LUATTN_IMAGE, LUATTN_IMAGE);
  if (status != LUATTN_OK) return 0;
  const luattn_pack_entry *e;
  for (size_t i = 0; i < 8 && (e = luattn_pack_get_entry(pack, i)) != NULL; ++i) {
    luattn_image *image = NULL;
    void *bytes = NULL;
    size_t bytes_size, index;
    if (e->size > (1u << 24)) continue; /* skips large records, which are slow */
    fuzz_expect(luattn_pack_read(pack, i, &bytes, &bytes_size, &err), LUATTN_IMAGE, LUATTN_IMAGE);
    luattn_pack_free(bytes);
    fuzz_expect(luattn_pack_image(pack, i, &image, &err), LUATTN_IMAGE, LUATTN_INVALID);
    luattn_image_free(image);
    luattn_pack_query q = {.struct_size = sizeof q, .spec_name = e->spec_name, .pass = (luattn_pass)e->pass};
    q.dtype = (luattn_dtype)e->dtype;
    q.arch = 90;
    q.packed = (int)(i & 1), q.pages = i & 4 ? 8 : (int)(i >> 1 & 1), q.decode = (int)(i >> 1 & 1);
    fuzz_expect(luattn_pack_find(pack, &q, &index, &err), LUATTN_UNSUPPORTED, LUATTN_UNSUPPORTED);
  }
  luattn_pack_close(pack);
  return 0;
}
