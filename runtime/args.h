/* args.h: the caller's luattn_args, checked against an image's manifest, as LuattnParams. */
#ifndef LUATTN_RUNTIME_ARGS_H
#define LUATTN_RUNTIME_ARGS_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "common/fail.h"
#include "abi/params.h"

/* What the checks of one call share. */
typedef struct args_call {
  const image_manifest *info;
  const luattn_args *args; /* of this version: choices_take */
  int device;
  int multiprocessors; /* of the device */
  const void *zero;    /* 8 bytes of the device, of value 0: what an input without elements points to */
  bool shapes_only; /* a size query: data pointers, devices and alignments do not matter yet */
  luattn_error *err;
} args_call;

/* Fills *params but for the workspace's fields. With shapes_only, looks at q, k, v and the inputs alone. */
luattn_status args_fill(const args_call *c, LuattnPackedParams *params);

/* Whether a batch of so many entries, which `name` says, can be launched. */
luattn_status args_batch(const args_call *c, const char *name, int64_t batch);

/* After that: what is written, the workspace's first bytes too, shares memory with nothing else. */
luattn_status args_apart(const args_call *c, size_t workspace_size);

/* LUATTN_INVALID, with "forward of 'spec': " before the message. */
luattn_status args_fail(const args_call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What one tensor must be. */
typedef struct tensor_rule {
  const char *name; /* as messages show it */
  const char *axes; /* "batch, heads, q_len" */
  int ndim;
  int64_t shape[4];
  DLDataType dtype;
  bool is_output;     /* elements must not share memory */
  bool is_contiguous; /* every axis; otherwise the strides are free */
  bool is_row;        /* the last axis is contiguous and read in vectors, where the family wants that */
} tensor_rule;

/* Checks a tensor; stride[i] is 0 on an axis of one element; *data has byte_offset in it. */
luattn_status args_tensor(const args_call *c, const tensor_rule *rule, const DLTensor *t, long long stride[4],
                          void **data);

void args_dtype_text(DLDataType dtype, char *text, size_t size);
DLDataType args_real(const image_manifest *info); /* float64 in float64 kernels, else float32 */
size_t args_real_size(const image_manifest *info);

/* inputs.c */
luattn_status args_inputs(const args_call *c, LuattnParams *params);
luattn_status args_scalars(const args_call *c, LuattnParams *params);

#endif
