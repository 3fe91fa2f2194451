/* pack.h: reads and writes packs, files of many images compiled ahead of time. Writing and reading need
 * neither Lua nor NVRTC; `luattn pack` makes packs from specs.
 *
 * A pack is an index, then the images, each compressed separately (zstd) if that makes it smaller. Opening
 * and reading check sizes, offsets and hashes first, so a damaged image is reported and never used. The
 * hashes detect damage, not tampering: a pack holds code for the GPU, so trust it like a shared library
 * (SECURITY.md).
 *
 * Thread safety: an open pack is immutable and may be used from several threads at once.
 */
#ifndef LUATTN_PACK_H
#define LUATTN_PACK_H

#include "luattn/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_pack luattn_pack;

/* Opens a pack; reads only its index. The file stays open, so that renaming another one over it changes nothing;
 * overwriting it in place is detected when an image is read. A single image, such as an entry of the
 * cache, is a pack of one. Errors: LUATTN_IO, LUATTN_IMAGE (says what is wrong and where). */
LUATTN_API luattn_status luattn_pack_open(const char *path, luattn_pack **pack, luattn_error *err);
/* The same for bytes in memory, which must outlive the pack. `name` replaces the path in messages. */
LUATTN_API luattn_status luattn_pack_open_bytes(const char *name, const void *bytes, size_t size, luattn_pack **pack,
                                                luattn_error *err);
LUATTN_API void luattn_pack_close(luattn_pack *pack); /* NULL is fine; images and kernels stay valid */

typedef struct luattn_pack_info {
  char luattn_version[32], nvrtc_version[32]; /* versions that made the pack; empty for a single image */
  size_t num_entries, bytes;
} luattn_pack_info;
LUATTN_API void luattn_pack_get_info(const luattn_pack *pack, luattn_pack_info *info);

/* Specs and sources are included for people to read. */
typedef enum luattn_pack_kind { LUATTN_PACK_IMAGE, LUATTN_PACK_SPEC, LUATTN_PACK_SOURCE } luattn_pack_kind;

/* One entry of the index. A spec has only name and hash. What else an image is for, packed sequences, pages or few
 * queries, its description says (luattn_pack_image, luattn_image_describe). */
typedef struct luattn_pack_entry {
  char spec_name[LUATTN_NAME_SIZE];
  uint64_t spec_hash[2];        /* luattn_spec_info.hash; 0: not known */
  uint32_t kind;                /* luattn_pack_kind */
  uint32_t pass, family, dtype; /* these and the next members as in luattn_kernel_description */
  uint32_t arch;
  char arch_suffix[4];
  uint32_t is_ptx;
  uint32_t head_dim, head_dim_v, wants;
  uint32_t lengths; /* 0: tiles for every length; 1: for long ones, 2: for short ones (1 + luattn_lengths, up
                       to 2048) */
  uint32_t deterministic;
  uint64_t size, stored_size; /* bytes, before and after compression */
} luattn_pack_entry;
/* Entry `index` of luattn_pack_info.num_entries; NULL beyond. Lives as long as the pack. */
LUATTN_API const luattn_pack_entry *luattn_pack_get_entry(const luattn_pack *pack, size_t index);

/* Reads one image and checks it. Caller frees with luattn_image_free. */
LUATTN_API luattn_status luattn_pack_image(const luattn_pack *pack, size_t index, luattn_image **image,
                                           luattn_error *err);
/* Reads any entry. Caller frees *bytes with luattn_pack_free. */
LUATTN_API luattn_status luattn_pack_read(const luattn_pack *pack, size_t index, void **bytes, size_t *size,
                                          luattn_error *err);
LUATTN_API void luattn_pack_free(void *bytes);

/* A program's query. Zero means any, except for pass and dtype. */
typedef struct luattn_pack_query {
  size_t struct_size;
  const char *spec_name; /* or NULL */
  uint64_t spec_hash[2]; /* or 0. If given, it decides, and the name is only for messages */
  luattn_pass pass;
  luattn_dtype dtype;
  int head_dim, head_dim_v; /* head_dim_v 0: as head_dim */
  unsigned wants; /* gradients, as in luattn_target; an image may compute more gradients of inputs and scalars. 0: dq,
                   * dk, dv, and those gradients of inputs and scalars that exist */
  int arch;       /* of the device: 80, 90, .. */
  int family;     /* 0, or 1 + luattn_family */
  int lengths;    /* 0, or 1 + luattn_lengths: prefers tiles of this class; any image runs at every length */
  int deterministic; /* 1: in backward and decode, only deterministic images; 0: prefers other images */
  /* As in luattn_target; 0: no such images. */
  int packed;   /* 1: for packed sequences */
  int pages;    /* 1: for pages of any size; 8: for page sizes that are multiples of 8, or for any */
  int decode;   /* 1: for few queries */
  int out_f32;  /* 1: o is float32, and q, k, v are bf16 or f16 */
  int grad_f32; /* 1: dq, dk and dv are, likewise; of backward */
} luattn_pack_query;

/* Finds the best image: one for exactly this architecture, else for an earlier one whose code runs there, else
 * PTX. Other requirements on the device are not checked. Errors: LUATTN_UNSUPPORTED, with what the pack has
 * instead, the nearest first; LUATTN_INVALID, where pass or family is none. */
LUATTN_API luattn_status luattn_pack_find(const luattn_pack *pack, const luattn_pack_query *query, size_t *index,
                                          luattn_error *err);
/* luattn_pack_find for the device's architecture (query->arch is not read), luattn_pack_image,
 * luattn_kernel_load. Where the device lacks something that the best image needs, the next best one is taken:
 * bf16 and f16 kernels for sm_80 may need more shared memory than 8.6, 8.9 and 12.0 have, so pack sm_86 or
 * compute_86 for those. *index: the entry that was taken; `index` may be NULL. Errors: LUATTN_UNSUPPORTED (what
 * the pack has instead, or what the device lacks for the best image), LUATTN_IMAGE (damaged). */
LUATTN_API luattn_status luattn_pack_kernel(const luattn_pack *pack, luattn_driver *driver, int device,
                                            const luattn_pack_query *query, luattn_kernel **kernel, size_t *index,
                                            luattn_error *err);

/* An item to pack: an image, or a text. */
typedef struct luattn_pack_item {
  luattn_pack_kind kind;
  const luattn_image *image; /* of a source: the image that was made of it; NULL for a spec */
  uint64_t spec_hash[2];
  int lengths;           /* of an image: as in luattn_pack_entry */
  const char *spec_name; /* of a spec; otherwise the image's is used */
  const void *text;      /* of a spec or a source */
  size_t text_size;
} luattn_pack_item;

/* Writes a pack: the same items give the same bytes, whatever the machine or the time. The file appears whole
 * or not at all; an existing file is replaced, and a folder, a link or a device is refused. Errors:
 * LUATTN_INVALID, LUATTN_IO (message says what failed, such as a full disk). */
LUATTN_API luattn_status luattn_pack_write(const char *path, const char *nvrtc_version, const luattn_pack_item *items,
                                           size_t num_items, luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
