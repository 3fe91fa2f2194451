/* setup.h: creates a spec and arguments of both passes, on a fake device that computes nothing. */
#ifndef LUATTN_TESTS_API_SETUP_H
#define LUATTN_TESTS_API_SETUP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h> /* needs those above */

#include "luattn/engine.h"

enum { API_BATCH = 2, API_HEADS = 4, API_LEN = 8, API_DIM = 16, API_TENSORS = 12 };

typedef struct api_tensor {
  DLTensor t;
  int64_t shape[4];
} api_tensor;

/* One luattn_args that serves both passes: float32, on the CPU or the device. */
typedef struct api_call {
  luattn_spec *spec;
  api_tensor q, k, v, o, lse, dout, dq, dk, dv, slopes, slopes_grad, scalar_grads;
  luattn_input input;
  luattn_args args;
  unsigned char *memory;
} api_call;

void api_open(api_call *c, DLDeviceType device);
void api_close(api_call *c);

luattn_engine *api_engine(const luattn_engine_options *options); /* fails the test on an error */
luattn_target api_target(void);                                  /* float32 forward for sm_90, without a disk cache */

/* Fails the test unless status is LUATTN_OK. */
void api_ok(luattn_status status, const luattn_error *err);
/* Fails the test unless the call was refused as `status` with a message that has `text`. */
void api_refused(luattn_status got, luattn_status status, const luattn_error *err, const char *text);

#endif
