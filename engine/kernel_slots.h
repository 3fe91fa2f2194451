/* kernel_slots.h: the kernels of an engine, by key. Each is built once, outside the lock; other threads that ask for
 * the same key wait for it. */
#ifndef LUATTN_ENGINE_KERNEL_SLOTS_H
#define LUATTN_ENGINE_KERNEL_SLOTS_H

#include <pthread.h>

#include "engine/build_kernel.h"

typedef enum slot_state { SLOT_COMPILING, SLOT_READY, SLOT_FAILED } slot_state;

/* Never moves; freed with the engine or when its spec is forgotten. */
typedef struct slot {
  kernel_key key;
  slot_state state;
  unsigned attempt; /* lets waiting threads tell how their attempt ended */
  luattn_kernel *kernel;
  bool every_length; /* this kernel also serves the other key.lengths */
  bool is_fallback; /* it is not the decode kernel, though key.decode asks for that where the spec has it; and so serves
                       all rows */
  char plan[sizeof((luattn_compile_report *)NULL)->plan];
  luattn_error error;
} slot;

typedef struct kernel_slots {
  const engine_setup *how;
  pthread_mutex_t lock; /* guards the members below */
  pthread_cond_t ended; /* some attempt has ended */
  slot **slots;
  size_t count, capacity;
} kernel_slots;

/* Fills *k, which is all zeros; `how` must outlive it. False: there is no lock to be had. */
bool kernel_slots_open(kernel_slots *k, const engine_setup *how);
void kernel_slots_close(kernel_slots *k); /* unloads all kernels */

/* *out: the slot of the key, ready, which does not change any more. Errors: those of building it. */
luattn_status kernel_slots_ready(kernel_slots *k, const kernel_key *asked, const slot **out, luattn_error *err);

/* luattn_engine_forget. */
luattn_status kernel_slots_forget(kernel_slots *k, const luattn_spec *spec, luattn_error *err);

#endif
