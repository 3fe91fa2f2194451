/* made_ahead.h: what the parts have in common that a luattn_batch holds for many launches: the check of the memory that
 * a caller gives for one, and, with LUATTN_CHECK=1, making it again in memory of its own to compare. */
#ifndef LUATTN_RUNTIME_MADE_AHEAD_H
#define LUATTN_RUNTIME_MADE_AHEAD_H

#include "runtime/parts/part.h"

/* Whether `memory` has the bytes that the part `what` needs, as `says_size` said. Errors: LUATTN_INVALID. */
luattn_status ahead_check_memory(const args_call *c, const char *what, const char *says_size, const void *memory,
                                 size_t size, size_t need);

/* A part that a launch takes from its batch. */
typedef struct ahead_part {
  const char *what; /* in messages */
  const void *have; /* on the device: what is compared */
  size_t compared;  /* its bytes, at `at` of the memory in which the part is made again, which has `size` */
  size_t at, size;

  /* Makes it in `memory`, changing p. The device's context is current. */
  luattn_status (*make)(const luattn_kernel *kernel, const args_call *c, prepared *p, uintptr_t memory,
                        cu_stream stream);
  /* Both copies are in the host's memory. Errors: LUATTN_INVALID. */
  luattn_status (*compare)(const args_call *c, const prepared *p, const char *have, const char *want);
} ahead_part;

/* Errors: as part_check. */
luattn_status ahead_check(const luattn_kernel *kernel, const args_call *c, const prepared *p, const ahead_part *part,
                          cu_stream stream);

#endif
