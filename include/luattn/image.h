/* image.h: a compiled pass of one spec as data: what the compiler passes to the runtime, in memory, in the cache or in
 * a pack.
 *
 * An image is one immutable block of bytes: a header with magic, version and checksum, sections that say what it is,
 * and its code. It holds no pointers and is the same on every machine of one byte order. Opening checks every offset,
 * size and the checksum. luattn_image_describe reads its description.
 */
#ifndef LUATTN_IMAGE_H
#define LUATTN_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#include "luattn/status.h"
#include "luattn/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum luattn_pass { LUATTN_FORWARD, LUATTN_BACKWARD } luattn_pass;
typedef enum luattn_family { LUATTN_SIMT, LUATTN_SM80, LUATTN_SM90 } luattn_family;

#define LUATTN_NAME_SIZE 64

typedef struct luattn_input_info {
  char name[LUATTN_NAME_SIZE];
  uint32_t dtype;    /* luattn_input_dtype */
  uint32_t num_axes; /* 0: one number, a tensor of no dimensions */
  int32_t axis[4];   /* > 0: fixed size; otherwise a luattn_axis */
  uint32_t grad;     /* marked grad in the spec */
  uint32_t pairs;    /* nonzero if each score adds to one element of its gradient, with q and kv among the indices: the
                      * index of each axis, a luattn_index of four bits, axis 0 in the lowest; else 0 */
} luattn_input_info;

typedef enum luattn_index {
  LUATTN_INDEX_OTHER,
  LUATTN_INDEX_B,
  LUATTN_INDEX_H,
  LUATTN_INDEX_Q,
  LUATTN_INDEX_KV
} luattn_index;

typedef enum luattn_input_dtype {
  LUATTN_INPUT_F64,
  LUATTN_INPUT_F32,
  LUATTN_INPUT_BF16,
  LUATTN_INPUT_F16,
  LUATTN_INPUT_I32,
  LUATTN_INPUT_BOOL,
  /* Other integers; kernels clamp them to 32 bits. */
  LUATTN_INPUT_I64,
  LUATTN_INPUT_I16,
  LUATTN_INPUT_U8,
  /* Only in a spec: the tensor may be F64, F32, BF16 or F16. An image is compiled for one of them. */
  LUATTN_INPUT_ANY
} luattn_input_dtype;

/* Axes with a meaning. Size 1 broadcasts along LUATTN_AXIS_B and LUATTN_AXIS_H. */
typedef enum luattn_axis {
  LUATTN_AXIS_FREE = 0, /* any size */
  LUATTN_AXIS_B = -1,
  LUATTN_AXIS_H = -2,
  LUATTN_AXIS_HKV = -3,
  LUATTN_AXIS_Q = -4,
  LUATTN_AXIS_KV = -5,
  /* Of linear attention: tokens; value heads; channels of q and k; channels of v. Its LUATTN_AXIS_H has heads of q. Size 1
   * broadcasts along LUATTN_AXIS_HV as well. */
  LUATTN_AXIS_T = -16,
  LUATTN_AXIS_HV = -17,
  LUATTN_AXIS_D = -18,
  LUATTN_AXIS_DV = -19,
  /* Axis a of a grid's queries and keys, a from 0: LUATTN_AXIS_Q_GRID - a. A grid of one axis has the two above. */
  LUATTN_AXIS_Q_GRID = -8,
  LUATTN_AXIS_KV_GRID = -12
} luattn_axis;
#define LUATTN_MAX_AXES 4 /* of a grid */

/* A run-time scalar of a spec, and its default value. */
typedef struct luattn_scalar_info {
  char name[LUATTN_NAME_SIZE];
  double value;
} luattn_scalar_info;

/* One function of an image's code. */
typedef struct luattn_function_info {
  char name[LUATTN_NAME_SIZE];     /* its symbol */
  uint32_t is_main;                /* the attention kernel itself; the others prepare, finish or distribute its
                                    * work */
  uint32_t threads, shared_bytes;  /* of a block; dynamic shared memory */
  uint32_t tile_m, tile_n;         /* rows and columns of a block's tile; 0: no tile */
  uint32_t registers, local_bytes; /* of a thread, as ptxas reported; local_bytes > 0 means spills or a stack */
} luattn_function_info;

/* What an image or a kernel computes, and how. Pointers are valid as long as the image or kernel. */
typedef struct luattn_kernel_description {
  size_t struct_size;
  const char *spec_name;
  luattn_pass pass;
  luattn_family family;
  luattn_dtype dtype;
  int arch;            /* 80, 86, 90, .. */
  char arch_suffix[4]; /* "a" where the code runs on that architecture alone, else "" */
  int is_ptx;          /* PTX that the driver compiles, for this architecture and later ones; else a cubin */
  int head_dim, head_dim_v;
  unsigned wants;    /* backward: the gradients that it computes (luattn_wants) */
  int deterministic; /* backward gives the same bits in every run; decode, an entry the same among any others */
  int has_lse, has_mask;
  int num_saved;           /* rows of luattn_args.saved; 0: saved is not used */
  int draws_tiles;         /* forward has a tile scheduler with a work counter (luattn_workspace_size) */
  int can_split;           /* backward, decode: luattn_args.num_splits may be more than 1 */
  int can_skip;            /* the kernel can skip tiles in which P vanishes: luattn_args.skip */
  int64_t max_len;         /* longest q_len and kv_len for which 32-bit index arithmetic of the spec is exact */
  size_t second_code;      /* offset of a second cubin or PTX in the code (luattn_image_cubin); 0: there is only one */
  uint64_t source_hash[2]; /* of all compiled text, options and NVRTC's version; the key of a cache entry */
  size_t num_functions;
  const luattn_function_info *functions; /* in launch order */
  size_t num_inputs;
  const luattn_input_info *inputs;
  size_t num_scalars;
  const luattn_scalar_info *scalars; /* sorted by name */
  int on_cpu;  /* 1: a kernel of an engine on the CPU (LUATTN_CPU). It has no code: arch, functions and members about
                * tiles  are 0; arguments follow the rules of `family` */
  int packed;  /* 1: for packed sequences (luattn_args.batch has cu_seqlens) */
  int offsets; /* luattn_target.offsets: which offsets luattn_args.batch may have */
  int large_scores;  /* luattn_target.large_scores, and what luattn_args.large_scores has to be */
  int random;        /* 1: the kernel draws random numbers, and needs luattn_args.random */
  int decode;        /* luattn_target.decode */
  int pages;         /* luattn_target.pages: page sizes are multiples of it; 0: keys are not in pages */
  int weights;       /* luattn_target.weights */
  int keys_modified; /* luattn_target.keys_modified, and what luattn_args.keys_modified has to be; 0 for a spec without
                        key_mod and value_mod */
  int out_f32;       /* luattn_target.out_f32, and what luattn_args.out_f32 has to be: o is float32 */
  int grad_f32; /* luattn_target.grad_f32, and what backward's luattn_args.grad_f32 has to be: dq, dk, dv are float32 */
  int tangents; /* 1: the kernel computes tangents, along those of luattn_target.tangents */
} luattn_kernel_description;

typedef struct luattn_image luattn_image;

/* Checks and copies bytes from luattn_image_bytes. Errors: LUATTN_IMAGE (says what is wrong and where). */
LUATTN_API luattn_status luattn_image_open(const void *bytes, size_t size, luattn_image **image, luattn_error *err);
LUATTN_API void luattn_image_free(luattn_image *image); /* NULL is fine */
LUATTN_API const void *luattn_image_bytes(const luattn_image *image, size_t *size);
/* Describes an image. Set only description->struct_size before the call. Errors: LUATTN_INVALID. */
LUATTN_API luattn_status luattn_image_describe(const luattn_image *image, luattn_kernel_description *description,
                                               luattn_error *err);
/* Returns the code: a cubin, or PTX with a terminating 0. If luattn_kernel_description.second_code is set, a second one
 * follows at that offset. */
LUATTN_API const void *luattn_image_cubin(const luattn_image *image, size_t *size);

#ifdef __cplusplus
}
#endif
#endif
