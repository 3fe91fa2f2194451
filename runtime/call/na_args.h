/* na_args.h: the arguments of luattn_na_qk, luattn_na_av and their gradients (luattn/natten.h). */
#ifndef LUATTN_RUNTIME_NA_ARGS_H
#define LUATTN_RUNTIME_NA_ARGS_H

#include "abi/na_params.h"
#include "common/fail.h"
#include "luattn/natten.h"

enum { NA_MOST_STEPS = 3 };

/* The kernels of one call, in order; those without rows are left out. */
typedef struct na_call {
  luattn_dtype type, real; /* of the tensors, and of the bias's gradient */
  int count;
  LuattnNaParams step[NA_MOST_STEPS];
} na_call;

/* Refuses kernel sizes and dilations that a grid of these extents cannot have. */
luattn_status na_check_window(const char *place, const luattn_na_window *window, const int64_t *extent,
                              luattn_error *err);
/* Check the arguments for `device`, or LUATTN_CPU, and fill *out. */
luattn_status na_qk_fill(const luattn_na_qk_args *args, luattn_pass pass, int device, na_call *out, luattn_error *err);
luattn_status na_av_fill(const luattn_na_av_args *args, luattn_pass pass, int device, na_call *out, luattn_error *err);

#endif
