/* xla_library.h: libluattn's functions, the engine of each device and the spec of each text, for handlers that XLA calls from any thread. XLA hands a
 * handler its attributes and nothing else, so these are kept for the process. */
#ifndef LUATTN_XLA_LIBRARY_H
#define LUATTN_XLA_LIBRARY_H

#include "luattn/engine.h"

/* One row a function: its name behind luattn_, what it returns, its parameters. */
#define LIBRARY_FUNCTIONS(X)                                                                                       \
  X(spec_load_text, luattn_status,                                                                                 \
    (const char *name, const char *text, size_t size, const luattn_allocator *allocator, luattn_spec **spec,       \
     luattn_error *err))                                                                                           \
  X(spec_get_info, void, (const luattn_spec *spec, luattn_spec_info *info))                                        \
  X(engine_open, luattn_status, (const luattn_engine_options *options, luattn_engine **engine, luattn_error *err)) \
  X(engine_workspace_size, luattn_status,                                                                          \
    (luattn_engine * engine, const luattn_spec *spec, luattn_pass pass, const luattn_args *args, size_t *size,     \
     luattn_error *err))                                                                                           \
  X(forward, luattn_status,                                                                                        \
    (luattn_engine * engine, const luattn_spec *spec, const luattn_args *args, void *stream, luattn_error *err))   \
  X(backward, luattn_status,                                                                                       \
    (luattn_engine * engine, const luattn_spec *spec, const luattn_args *args, void *stream, luattn_error *err))   \
  X(batch_open, luattn_status, (const luattn_batch_options *options, luattn_batch **batch, luattn_error *err))     \
  X(batch_close, void, (luattn_batch * batch))

typedef struct library_functions {
#define LIBRARY_MEMBER(name, type, params) type(*name) params;
  LIBRARY_FUNCTIONS(LIBRARY_MEMBER)
#undef LIBRARY_MEMBER
} library_functions;

/* A loaded spec, which stays as long as the process, as executables with its text may. */
typedef struct library_spec {
  luattn_spec *spec;
  luattn_spec_info info;
} library_spec;

/* Loads libluattn from `path`, unless that is done. nvrtc: as in luattn_engine_options, or NULL. The handlers fail before. */
LUATTN_API luattn_status luattn_jax_start(const char *path, const char *nvrtc, luattn_error *err);

/* NULL before luattn_jax_start. */
const library_functions *library_get(void);

/* Finds the spec of a text, or loads it. */
luattn_status library_find_spec(const char *text, size_t size, const library_spec **spec, luattn_error *err);

/* Finds the engine of a device (a GPU's number, or LUATTN_CPU), or opens it. */
luattn_status library_find_engine(int device, int deterministic, luattn_engine **engine, luattn_error *err);

#endif
