/* linear_gpu.h: a call of linear attention on a device, and its results beside those of the CPU. */
#ifndef LUATTN_CLI_LINEAR_GPU_H
#define LUATTN_CLI_LINEAR_GPU_H

#include "cli/check.h"
#include "cli/linear_tensors.h"

/* Runs forward, and backward, into t's results. no_backward: gets the message where no kernel has the gradients, which are
 * then left out; NULL: that is an error. */
luattn_status linear_gpu_run(cli_gpu *g, linear_tensors *t, bool backward, char *no_backward, size_t size,
                             luattn_error *err);

/* Compares results of t on the device with those of the CPU, in double precision, of the same tensors. */
luattn_status linear_gpu_check(cli_gpu *g, linear_tensors *t, check_report *r, luattn_error *err);

#endif
