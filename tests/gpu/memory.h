/* memory.h: places the tensors of a call in a block of device memory that is NaN between tensors.
 *
 * The block has a byte-for-byte copy on the host, filled with 0xff, a NaN in every float type. A test places
 * its tensors, uploads the copy, launches and downloads. Reads outside of the tensors' elements affect the
 * results; memory_unchanged finds writes outside of the outputs' elements.
 */
#ifndef LUATTN_TESTS_GPU_MEMORY_H
#define LUATTN_TESTS_GPU_MEMORY_H

#include "cli/cli.h"

typedef struct memory_region {
  char name[LUATTN_NAME_SIZE];
  size_t first, size;
} memory_region;

#define MEMORY_REGIONS 48
typedef struct memory {
  luattn_driver *driver;
  char *device;
  unsigned char *before, *after; /* host copies: uploaded, downloaded */
  size_t size, used;
  int count;
  memory_region region[MEMORY_REGIONS];
} memory;

luattn_status memory_open(luattn_driver *driver, size_t size, memory *m, luattn_error *err);
void memory_close(memory *m); /* also after a failed memory_open */
void memory_clear(memory *m); /* forgets all tensors */
luattn_status memory_reserve(memory *m, const char *name, size_t size, size_t *first, luattn_error *err);
luattn_status memory_upload(const memory *m, luattn_error *err);
luattn_status memory_download(const memory *m, luattn_error *err); /* waits for the default stream */
luattn_status memory_unchanged(const memory *m, luattn_error *err);

/* A tensor in the block, with the shape of `like` and these strides, which may be 0 or negative (NULL: the
 * strides of `like`). */
typedef struct placed {
  DLTensor t; /* on the device */
  int64_t shape[4], stride[4];
  size_t first, bytes, origin; /* the region, and the offset of element 0 */
} placed;

luattn_status memory_place(memory *m, const char *name, const DLTensor *like, const int64_t *stride, placed *out,
                           luattn_error *err);
void memory_scatter(memory *m, const placed *x, const DLTensor *from); /* writes into m->before */
/* Reads back the elements that memory_scatter wrote. Elements that share memory all get the last one's
 * value. */
void memory_settle(memory *m, const placed *x, const DLTensor *host);
/* Reads from m->after, and marks the elements as expected changes. */
void memory_take(memory *m, const placed *x, const DLTensor *to);

/* ---- a whole call ---- */

enum {
  CALL_Q,
  CALL_K,
  CALL_V,
  CALL_DOUT,
  CALL_DLSE,
  CALL_O,
  CALL_LSE,
  CALL_SAVED,
  CALL_DQ,
  CALL_DK,
  CALL_DV,
  CALL_SCALAR_GRADS,
  CALL_SLOTS
};

/* Returns the strides for a slot, or an extra input (CALL_INPUT), of this type and shape. Returns false for
 * the strides of the host's array. */
enum { CALL_INPUT = CALL_SLOTS };
typedef bool (*call_strides)(int layout, int slot, const DLTensor *like, int64_t *stride);

typedef struct call {
  luattn_args args; /* device tensors, without a workspace */
  cli_binding bind;
  const DLTensor *host[CALL_SLOTS], *host_input[12], *host_grad[12]; /* of problem and result */
  placed slot[CALL_SLOTS], input[12], grad[12];
} call;

/* `c` holds pointers into itself, and into *p and *r. */
luattn_status call_place(memory *m, const cli_problem *p, const cli_result *r, bool backward, call_strides strides,
                         int layout, call *c, luattn_error *err);
/* Writes the tensors that the passes read into m->before. Elements that share memory get the value that is
 * then in memory. */
void call_write(memory *m, const call *c);
void call_read(memory *m, const call *c); /* reads outputs from m->after */
/* Allocates the workspace of a pass, and enters it into *args. */
luattn_status call_workspace(memory *m, luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                             luattn_args *args, luattn_error *err);

#endif
