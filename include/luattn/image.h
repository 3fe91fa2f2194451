/* image.h: a compiled pass of one spec as data: what the compiler hands to the runtime, in memory, in the cache or in a pack.
 *
 * An image is one immutable block of bytes: a header with magic, version and checksum, the manifest below, and its code. It
 * holds no pointers and is the same on every machine of one byte order. Opening checks every offset, size and the checksum.
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

/* What an entry of an image does, which tells the runtime its grid. */
typedef enum luattn_role {
  LUATTN_ROLE_STATS,   /* block minima and maxima of an integer input; grid (blocks, rows, stat). Where PREPARE finds them there is none */
  LUATTN_ROLE_MOD,     /* writes q', k', v' into the workspace; grid (positions, heads, batch * 3) */
  LUATTN_ROLE_NORMS,   /* bounds of |k| into the workspace; grid (kv_len / tile_m, heads_kv, batch); in backward of |q| too, and of
                        * lse: (positions / tile_m, heads, batch * 2) */
  LUATTN_ROLE_REACH,   /* which tiles of FORWARD or DKDV have weights; grid (q tiles, heads, batch), in backward (32 q tiles of a kv
                        * tile for each of four warps, heads, batch); tile_m and tile_n are the main entry's */
  LUATTN_ROLE_FORWARD, /* grid (ceil(q_len / tile_m), heads, batch) */
  LUATTN_ROLE_PREPARE, /* backward rows; grid (ceil(q_len / tile_m), heads, batch) */
  LUATTN_ROLE_DKDV,    /* grid (ceil(kv_len / tile_n), heads_kv, batch), or as many blocks as stay; may add into dq_acc */
  LUATTN_ROLE_DQ,      /* grid (ceil(q_len / tile_m), heads, batch) */
  LUATTN_ROLE_FINISH,  /* accumulators and mods' derivatives to dq, dk, dv; grid (positions / tile_m, heads, batch * 3) */
  LUATTN_ROLE_ROUND,   /* exact sums to gradients of inputs and scalars; grid (elements / tile_m, inputs + 1, 1) */
  LUATTN_ROLE_COUNT
} luattn_role;

/* The one that takes longest to compile. All others together take less: DQ, of the simt family's backward, about as long. */
static inline int luattn_role_is_main(uint32_t role) { return role == LUATTN_ROLE_FORWARD || role == LUATTN_ROLE_DKDV; }

#define LUATTN_IMAGE_FORMAT 7 /* version of the bytes; of one luattn to the next it may change */
#define LUATTN_MAX_ENTRIES 8
#define LUATTN_NAME_SIZE 64

typedef struct luattn_entry_info {
  char name[LUATTN_NAME_SIZE]; /* symbol in its code */
  uint32_t role;               /* luattn_role */
  uint32_t threads, shared_bytes; /* dynamic shared memory */
  uint32_t tile_m, tile_n;     /* rows and columns a block covers, as its role's grid needs */
  uint32_t registers, local_bytes; /* as ptxas reported; local_bytes > 0 means spills or a stack */
} luattn_entry_info;

typedef struct luattn_input_info {
  char name[LUATTN_NAME_SIZE];
  uint32_t dtype;              /* luattn_input_dtype */
  uint32_t num_axes;
  int32_t axis[4];             /* > 0: fixed size; otherwise a luattn_axis */
  uint32_t grad;               /* marked grad in the spec */
  uint32_t pairs;              /* where each score adds to its gradient at one place alone: what stands at each axis, a luattn_index of
                                * four bits from axis 0 on, q and kv among them; 0: it does not */
} luattn_input_info;

typedef enum luattn_index { LUATTN_INDEX_OTHER, LUATTN_INDEX_B, LUATTN_INDEX_H, LUATTN_INDEX_Q, LUATTN_INDEX_KV } luattn_index;

typedef enum luattn_input_dtype {
  LUATTN_INPUT_F64, LUATTN_INPUT_F32, LUATTN_INPUT_BF16, LUATTN_INPUT_F16, LUATTN_INPUT_I32, LUATTN_INPUT_BOOL
} luattn_input_dtype;

/* Axes with a meaning. Size 1 broadcasts along LUATTN_AXIS_B and LUATTN_AXIS_H. */
typedef enum luattn_axis {
  LUATTN_AXIS_FREE = 0,  /* any size */
  LUATTN_AXIS_B = -1, LUATTN_AXIS_H = -2, LUATTN_AXIS_HKV = -3, LUATTN_AXIS_Q = -4, LUATTN_AXIS_KV = -5
} luattn_axis;

typedef struct luattn_stat_info { uint32_t input, axis, block; } luattn_stat_info;

/* The manifest. Plain data, stored as is. */
typedef struct luattn_image_info {
  char spec_name[LUATTN_NAME_SIZE];
  uint32_t pass, family, dtype;       /* luattn_pass, luattn_family, luattn_dtype */
  uint32_t arch;                      /* 80, 86, 90, ..; arch_suffix 'a' where the code runs on that architecture alone */
  char arch_suffix[4];
  uint32_t head_dim, head_dim_v;
  uint32_t params_version, params_size; /* of templates/params.h */
  uint32_t num_entries, num_inputs, num_scalars, num_stats;
  uint32_t num_saved, num_bwd_rows;
  uint32_t has_lse;
  uint32_t has_query_mod, has_key_mod, has_value_mod;
  uint32_t accumulates_dq;            /* DKDV adds into dq_acc and FINISH writes dq */
  uint32_t wants;                     /* gradients compiled in: luattn_wants */
  uint32_t draws_tiles;               /* FORWARD takes its tiles from a counter (luattn_workspace_size) */
  uint32_t is_ptx;                    /* PTX that the driver compiles, for this architecture and later ones; else a cubin */
  uint32_t deterministic;             /* backward gives the same bits in every run */
  uint32_t can_split;                 /* blocks of DKDV may share the queries of a kv tile: luattn_args.num_splits */
  uint32_t has_mask;                  /* there is one: some kv tiles have more to do than others */
  uint32_t second_code;               /* where in the code a second cubin (PTX) begins, with all kernels but the main one; a
                                       * multiple of 64, and 64 zeros before it; 0: there is one alone */
  uint32_t reads_ahead;               /* scores find lines of an input, along the keys, that were read ahead of them */
  int64_t max_len;                    /* longest q_len and kv_len for which 32-bit index arithmetic of the spec is exact */
  luattn_entry_info entry[LUATTN_MAX_ENTRIES]; /* in launch order */
  luattn_input_info input[12];
  char scalar_name[32][LUATTN_NAME_SIZE];
  double scalar_default[32];
  luattn_stat_info stat[8];
  uint64_t source_hash[2];            /* of everything that was compiled, with options and NVRTC's version */
} luattn_image_info;

typedef struct luattn_image luattn_image;

/* Copies manifest and code into a new image. Caller frees with luattn_image_free. */
LUATTN_API luattn_status luattn_image_create(const luattn_image_info *info, const void *code, size_t code_size,
                                             luattn_image **image, luattn_error *err);
/* Checks and copies bytes that luattn_image_bytes once gave. Errors: LUATTN_IMAGE (says what is wrong and where). */
LUATTN_API luattn_status luattn_image_open(const void *bytes, size_t size, luattn_image **image, luattn_error *err);
LUATTN_API void luattn_image_free(luattn_image *image); /* NULL is fine */
LUATTN_API const void *luattn_image_bytes(const luattn_image *image, size_t *size);
LUATTN_API const luattn_image_info *luattn_image_get_info(const luattn_image *image);
/* The code: a cubin, or PTX with a terminating 0, and at info->second_code, where that is set, another one. */
LUATTN_API const void *luattn_image_cubin(const luattn_image *image, size_t *size);

#ifdef __cplusplus
}
#endif
#endif
