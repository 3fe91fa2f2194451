/* tensor_rule.h: the requirements on one tensor of a call. */
#ifndef LUATTN_RUNTIME_TENSOR_RULE_H
#define LUATTN_RUNTIME_TENSOR_RULE_H

#include "runtime/call/args_call.h"

typedef struct tensor_rule {
  const char *name; /* as messages show it */
  const char *axes; /* "batch, heads, q_len" */
  int ndim;
  int64_t shape[LUATTN_MAX_AXES + 3];
  DLDataType dtype;
  bool is_output;     /* elements must not share memory */
  bool is_contiguous; /* every axis; otherwise the strides are free */
  bool is_row;        /* the last axis is contiguous, and read in vectors where the family needs that */
  bool is_single;     /* such a row, read number by number in every family */
  bool is_wide;       /* float32 beside q, k and v of half types: in vectors, too */
} tensor_rule;

/* Checks a tensor; stride[i], of each axis, is 0 on an axis of one element; *data includes byte_offset. */
luattn_status args_tensor(const args_call *c, const tensor_rule *rule, const DLTensor *t, long long *stride,
                          void **data);

DLDataType args_elem(const image_manifest *info); /* of q, k, v and o */
DLDataType args_real(const image_manifest *info); /* float64 in float64 kernels, else float32 */
size_t args_real_size(const image_manifest *info);

#endif
