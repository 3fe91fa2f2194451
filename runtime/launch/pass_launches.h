/* pass_launches.h: the row passes that a backward launches before its own kernels: forward passes with other weights
 * (gen/compile/pass_spec.h). */
#ifndef LUATTN_RUNTIME_PASS_LAUNCHES_H
#define LUATTN_RUNTIME_PASS_LAUNCHES_H

#include "runtime/parts/part.h"

/* The workspace that they share, one after another. */
typedef struct pass_room {
  void *memory;
  size_t size;
} pass_room;

/* Takes room for it, and for what they leave for prepare, which is entered into p->all.passes. After all parts are
 * taken. Errors: LUATTN_INVALID (arguments that a pass refuses; more than can be addressed). */
luattn_status pass_launches_take(const luattn_kernel *kernel, const args_call *c, prepared *p, pass_room *out);

/* Errors: as luattn_launch. */
luattn_status pass_launches_start(const luattn_kernel *kernel, const args_call *c, const prepared *p,
                                  const pass_room *shared, cu_stream stream);

#endif
