/* args.h: checks the caller's luattn_args against an image's manifest, and fills LuattnParams. */
#ifndef LUATTN_RUNTIME_ARGS_H
#define LUATTN_RUNTIME_ARGS_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "common/fail.h"
#include "abi/params.h"

/* The state that the checks of one call share. */
typedef struct args_call {
  const image_manifest *info;
  const luattn_args *args; /* converted to this version by choices_take */
  int device;
  int multiprocessors; /* number of the device's multiprocessors */
  const void *zero;    /* 8 bytes of zeros on the device: an input without elements points there */
  bool shapes_only; /* a size query: data pointers, devices and alignments are not checked */
  const char *place; /* how messages begin; NULL: with the pass and the spec */
  luattn_error *err;
} args_call;

/* Fills *params, except for the workspace's fields. With shapes_only, reads q, k, v and the inputs only. */
luattn_status args_fill(const args_call *c, LuattnCallParams *params);

/* Checks that a launch can have `batch` batch entries; `name` is the tensor with this size. */
luattn_status args_batch(const args_call *c, const char *name, int64_t batch);

/* Called after args_fill: checks that outputs, and the workspace's first bytes, overlap nothing else. */
luattn_status args_apart(const args_call *c, size_t workspace_size);

/* LUATTN_INVALID, with "forward of 'spec': " before the message. */
luattn_status args_fail(const args_call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The requirements on one tensor. */
typedef struct tensor_rule {
  const char *name; /* as messages show it */
  const char *axes; /* "batch, heads, q_len" */
  int ndim;
  int64_t shape[4];
  DLDataType dtype;
  bool is_output;     /* elements must not share memory */
  bool is_contiguous; /* every axis; otherwise the strides are free */
  bool is_row;        /* the last axis is contiguous, and read in vectors where the family needs that */
} tensor_rule;

/* Checks a tensor; stride[i] is 0 on an axis of one element; *data includes byte_offset. */
luattn_status args_tensor(const args_call *c, const tensor_rule *rule, const DLTensor *t, long long stride[4],
                          void **data);

void args_dtype_text(DLDataType dtype, char *text, size_t size);
DLDataType args_real(const image_manifest *info); /* float64 in float64 kernels, else float32 */
size_t args_real_size(const image_manifest *info);

/* inputs.c */
luattn_status args_inputs(const args_call *c, LuattnParams *params);
luattn_status args_some_inputs(const args_call *c, unsigned which, LuattnParams *params); /* bit i: input i; others may be missing */
luattn_status args_scalars(const args_call *c, LuattnParams *params);

#endif
