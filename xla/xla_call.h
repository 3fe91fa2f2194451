/* xla_call.h: reads luattn_args out of XLA's buffers and attributes.
 *
 * Two attributes name the buffers, in their order: `operands` and `results`, names with one space between them: those of tensors in
 * luattn_args, "@name" for an input of the spec and, among results, its gradient, those of arrays in luattn_batch_options, "seed" for four
 * u32, which are seed and offset, low word first, and "initial" for what a result starts with, which XLA has put there. `spec` is the
 * spec's text, `scale` and `scalars` are f64 (in the spec's order), and every other attribute is an i64: see NUMBERS in xla_call.c. A name that
 * is not known is an error, so that a program of a later luattn never loses an option. */
#ifndef LUATTN_XLA_CALL_H
#define LUATTN_XLA_CALL_H

#include "xla/ffi_abi.h"
#include "xla/xla_library.h"

enum { CALL_TENSORS = 64, CALL_INPUTS = 16, CALL_SCALARS = 32 };

/* A call, which points into itself and into the frame. */
typedef struct xla_call {
  const library_spec *spec;
  luattn_args args;
  luattn_batch_options batch;
  int has_batch;
  luattn_random random;
  int device; /* of the tensors, or LUATTN_CPU */
  int64_t bshd, deterministic;
  size_t num_tensors;
  DLTensor tensors[CALL_TENSORS];
  int64_t sizes[CALL_TENSORS][8]; /* of tensors whose axes are swapped: shape and strides */
  luattn_input inputs[CALL_INPUTS];
  luattn_scalar scalars[CALL_SCALARS];
} xla_call;

/* Errors: LUATTN_INVALID (names the attribute or the buffer), and those of a spec. */
luattn_status xla_call_read(xla_call *call, const xla_frame *frame, int device, luattn_error *err);

#endif
