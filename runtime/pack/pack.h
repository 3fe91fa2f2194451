/* pack.h: the format of a pack, with offsets from its start and numbers in the machine's byte order:
 *
 *    0  magic "LUATTNPK"
 *    8  format version, byte-order mark      u32 each. Version 3 if some entry has grad_f32 or out_f32, else 2 if some
 *                                            entry has another pack_variant than all zeros; records of version 1 have
 *                                            none, and those of version 2 the first 16 bytes of it
 *   16  XXH3-128 of everything from byte 32 to the end of the index   u64 low, high
 *   32  total size, number of entries        u64 each
 *   48  versions of luattn and NVRTC         32 bytes each, ending in 0
 * 112  index: one pack_record for each entry
 *       the entries' bytes, one after another, in the index's order, without gaps */
#ifndef LUATTN_RUNTIME_PACK_H
#define LUATTN_RUNTIME_PACK_H

#include <stddef.h>

#include "abi/image.h"
#include "common/fail.h"
#include "luattn/pack.h"
#include "runtime/device/arch.h"

#define PACK_MAGIC "LUATTNPK"
#define PACK_FORMAT_VERSION 3u
#define PACK_BYTE_ORDER 0x01020304u
#define PACK_CHECKED_FROM 32u
#define PACK_MAX_ENTRIES 65536u
#define PACK_MAX_ENTRY_BYTES ((uint64_t)1 << 28)

typedef struct pack_header {
  char magic[8];
  uint32_t version, byte_order;
  uint64_t checksum_low, checksum_high;
  uint64_t total_size, num_entries;
  char luattn_version[32], nvrtc_version[32];
} pack_header;

/* What an image is compiled for besides what luattn_pack_entry, which does not grow, says; of a source, its image. */
typedef struct pack_variant {
  uint32_t packed, pages, decode; /* as in luattn_kernel_description */
  uint32_t out_f32;               /* 0 in version 2 */
  uint32_t grad_f32, unused;      /* not in version 2 */
} pack_variant;

/* Size and hash of the stored bytes: compressed by zstd if and only if stored_size < size. */
typedef struct pack_record {
  luattn_pack_entry entry;
  uint64_t offset;
  uint64_t checksum_low, checksum_high; /* XXH3-128 of the stored bytes */
  pack_variant variant;                 /* not in version 1 */
} pack_record;

_Static_assert(sizeof(pack_header) == 112 && sizeof(luattn_pack_entry) == 144 && sizeof(pack_record) == 192 &&
                   offsetof(pack_record, variant) == 168,
               "none has holes");

/* Bytes of a record in a file. */
static inline size_t pack_record_size(uint32_t version) {
  return version == 1   ? offsetof(pack_record, variant)
         : version == 2 ? offsetof(pack_record, variant.grad_f32)
                        : sizeof(pack_record);
}

struct luattn_pack {
  char *name; /* as messages show it */
  int fd;     /* -1: in memory */
  const unsigned char *bytes;
  pack_header header;
  pack_record *record;
  size_t count;
};

static inline arch_code pack_arch(const luattn_pack_entry *e) {
  return (arch_code){e->arch, e->arch_suffix, e->is_ptx != 0};
}

/* The index record of an image. */
void pack_describe(const image_manifest *m, pack_record *r);

#endif
