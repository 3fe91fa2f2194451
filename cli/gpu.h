/* gpu.h: internals of gpu.c, for code that launches kernels of its own (tune.c). */
#ifndef LUATTN_CLI_GPU_H
#define LUATTN_CLI_GPU_H

#include "cli/cli.h"

#define GPU_MAX_BUFFERS 64

struct cli_gpu {
  luattn_engine *engine;
  luattn_driver *driver; /* the engine's */
  int device;
  luattn_device_info info;
  const char *plan[KERNEL_PASSES]; /* owned by the engine; of the last passes, by luattn_pass */
  char choice[KERNEL_PASSES][700]; /* luattn_engine_choice, likewise */
};

/* Device copies of host arrays, for one run. */
typedef struct gpu_buffers {
  cli_gpu *g;
  int count;
  void *base[GPU_MAX_BUFFERS]; /* including the guard before it */
  size_t size[GPU_MAX_BUFFERS];
} gpu_buffers;

/* Arguments whose tensors lie in buffers. */
typedef struct gpu_args {
  luattn_args args;
  DLTensor tensor[16], input[12], input_grad[12];
  cli_binding bind;
} gpu_args;

luattn_status gpu_buffer_new(gpu_buffers *b, size_t size, void **ptr, luattn_error *err);
void gpu_buffers_free(gpu_buffers *b);
/* Replaces *slot by a device copy of its array, with its numbers if `upload`. Does nothing if it is NULL. */
luattn_status gpu_twin(gpu_buffers *b, const DLTensor **slot, DLTensor *copy, bool upload, luattn_error *err);
/* Refuses buffers beside which a kernel has written. */
luattn_status gpu_guards_intact(const gpu_buffers *b, luattn_error *err);
luattn_status gpu_upload(gpu_buffers *b, const cli_problem *p, const cli_result *r, bool backward, gpu_args *d,
                         luattn_error *err);
/* Does nothing if either is NULL. */
luattn_status gpu_download(gpu_buffers *b, array *to, const DLTensor *from, luattn_error *err);
/* Forward's view of arguments for both passes. */
luattn_args gpu_forward_args(const cli_problem *p, const luattn_args *a);
/* The workspace that the engine's kernel of a pass needs, in a buffer. */
luattn_status gpu_workspace(gpu_buffers *b, const cli_problem *p, luattn_pass pass, luattn_args *a, luattn_error *err);

#endif
