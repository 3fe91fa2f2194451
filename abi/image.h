/* image.h: writes and reads images. Host only.
 *
 * An image as bytes, all offsets from its start, numbers in the machine's byte order:
 *
 *    0  magic "LUATTNIM"
 *    8  format version, byte-order mark                        u32 each
 *   16  XXH3-128 of everything from byte 32                    u64 low, high
 *   32  total size, number of sections                         u64 each
 *   48  sections, each from a multiple of 16 on, zeros between:
 *         tag (four letters), flags                            u32 each
 *         size of what follows                                 u64
 *         its bytes
 *
 *   tag   flags     bytes
 *   FACT  required  the fixed part of image_manifest (abi/manifest.h)
 *   PARM  required  params_version, params_bytes               u32 each
 *   HASH  required  source_hash                                u64 each
 *   ENTR  required  manifest_entry each
 *   INPT  required  luattn_input_info each; left out where there are none, as are the next two
 *   SCAL  required  luattn_scalar_info each
 *   STAT  required  manifest_stat each
 *   ELSE  required  manifest_elsewhere each                    only where kernels take offsets, of inputs that they
 *                                                              read elsewhere
 *   ..              those of IMAGE_SECTION in abi/kernel_facts.def, each only where its fact holds
 *   PAS0  required  the image of the first row pass, whole; PAS1: of the second
 *   PLAN            the plan's text, ending in 0
 *   TILE            luattn_tiles
 *   LENS            every_length                               u32
 *   CODE  required  the code, which ends the image
 *
 * The format of a section never changes: a later version adds data in a section with a new tag. A reader
 * skips a section that it does not know, but refuses the image if that section is required, because kernels
 * could not be launched correctly without it.
 */
#ifndef LUATTN_ABI_IMAGE_H
#define LUATTN_ABI_IMAGE_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "luattn/compiler.h"

#define IMAGE_FORMAT_VERSION 8u
#define IMAGE_MAX_SECTIONS 64u

/* How an image was planned, for reports. Present where luattn_image was created with it. */
typedef struct image_plan {
  const char *text; /* family, tiles, shared memory and the reason for each, one fact a line */
  luattn_tiles tiles;
  bool every_length; /* both classes of lengths get the same tiles */
} image_plan;

/* Copies all of it into a new image; `plan` may be NULL. Caller frees it with luattn_image_free. Errors: LUATTN_IMAGE,
 * LUATTN_NO_MEMORY. */
luattn_status image_create(const image_manifest *manifest, const image_plan *plan, const void *code, size_t code_size,
                           luattn_image **image, luattn_error *err);

/* A copy of a backward's image that also holds the images of its row passes; NULL where there is none. */
luattn_status image_join(const luattn_image *image, const luattn_image *const passes[MANIFEST_MAX_PASSES],
                         luattn_image **whole, luattn_error *err);

/* Opens the image of row pass `number` of manifest.passes, which the caller frees. Errors: LUATTN_IMAGE (it is not
 * there, or is of something else). */
luattn_status image_open_pass(const luattn_image *image, int number, luattn_image **pass, luattn_error *err);

/* Valid as long as the image; NULL for NULL. */
const image_manifest *image_get_manifest(const luattn_image *image);

/* Returns false and leaves *plan unchanged if the image records no plan. The text is valid as long as the
 * image. */
bool image_get_plan(const luattn_image *image, image_plan *plan);

#endif
