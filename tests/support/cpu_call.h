/* cpu_call.h: tensors with any type, strides and offset, and one attention call on them. */
#ifndef LUATTN_TESTS_CPU_CALL_H
#define LUATTN_TESTS_CPU_CALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h> /* needs those above */

#include "gen/cpu/cpu.h"
#include "luattn/compiler.h"

/* The memory layout of a tensor. PADDED has gaps between rows and a byte_offset, and ends exactly at the end
 * of its memory. */
typedef enum layout { DENSE_NULL, DENSE, HEADS_LAST, PADDED, NUM_LAYOUTS } layout;

typedef struct tensor {
  DLTensor t;
  int64_t shape[8], stride[8];
  void *memory;
} tensor;

extern const DLDataType F64, F32, F16, BF16, I32, BOOL;

/* Creates a tensor filled with NaN bytes, to reveal unwritten elements. */
void tensor_new(tensor *t, DLDataType type, int ndim, const int64_t *shape, layout l);
void tensor_free(tensor *t);
int64_t tensor_count(const tensor *t);
double tensor_get(const tensor *t, int64_t flat); /* logical row-major order */
void tensor_set(tensor *t, int64_t flat, double x);
void tensor_fill(tensor *t, uint64_t seed); /* approximately standard normal */

double uniform(uint64_t *state); /* [0, 1) */

/* A call with random q, k, v, dout (and dlse), and outputs filled with NaN. call_new sets the types. */
typedef struct call {
  int batch, heads, heads_kv, q_len, kv_len, dim, dim_v;
  layout layout;
  DLDataType in, out;
  tensor q, k, v, o, lse, saved, dout, dlse, dq, dk, dv;
  luattn_args args;
} call;

/* Creates a call with the outputs that the spec needs. */
void call_new(call *c, const luattn_spec *spec, const int size[7], layout l, DLDataType in, DLDataType out);
void call_free(call *c);

luattn_spec *load_text(const char *source); /* fails the test on an error */

/* Checks that |got - want| <= tolerance * max |want|, and that infinities and NaN agree. */
void assert_close(const char *what, const tensor *got, const double *want, double tolerance);

/* Checks some elements of x's gradient of the sum of o * dout and lse * dlse: 1e-7 beside central differences. */
void assert_differences(const luattn_spec *spec, const call *c, tensor *x, const tensor *gradient);

/* Philox 4x32-10, written from the published algorithm (Salmon et al. 2011, section 3.3). */
void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

#endif
