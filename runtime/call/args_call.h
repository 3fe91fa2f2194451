/* args_call.h: what the checks of one call share, and how they refuse. */
#ifndef LUATTN_RUNTIME_ARGS_CALL_H
#define LUATTN_RUNTIME_ARGS_CALL_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "abi/params.h"
#include "common/fail.h"
#include "runtime/device/kernel.h"

/* Sizes of the axes of inputs of linear attention. */
typedef struct input_axes {
  int entries, tokens, heads_v;
  bool is_packed; /* tokens are those of all entries */
} input_axes;

typedef struct args_call {
  const image_manifest *info;
  const luattn_args *args; /* converted to this version by choices_take */
  int device;
  int multiprocessors;      /* number of the device's multiprocessors */
  const void *zero;         /* 8 bytes of zeros on the device: an input without elements points there */
  bool shapes_only;         /* a size query: data pointers, devices and alignments are not checked */
  const input_axes *linear; /* of linear attention, while inputs are checked; else NULL */
  const char *place;        /* how messages begin; NULL: with the pass and the spec */
  luattn_error *err;
} args_call;

/* LUATTN_INVALID, with "forward of 'spec': " before the message. */
luattn_status args_fail(const args_call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "forward" or "backward", as messages about a call begin. */
const char *args_place(const luattn_kernel *kernel);

/* A call to a kernel on a device; `used` as choices_take returned it. */
args_call args_call_of(const luattn_kernel *kernel, const luattn_args *used, bool shapes_only, luattn_error *err);

#endif
