/* engine.h: the key that tells kernels of an engine apart. */
#ifndef LUATTN_ENGINE_ENGINE_H
#define LUATTN_ENGINE_ENGINE_H

#include <stdbool.h>

#include "luattn/engine.h"

typedef struct kernel_key {
  const luattn_spec *spec;
  luattn_pass pass;
  luattn_dtype dtype;
  int head_dim, head_dim_v;
  unsigned wants; /* 0 in forward */
  luattn_lengths lengths;
  bool packed;  /* luattn_args.cu_seqlens_q and _k are given */
  bool offsets; /* luattn_args.batch is given */
} kernel_key;

/* The kernel of a key, loaded or compiled on first use. */
luattn_status engine_kernel(luattn_engine *engine, const kernel_key *key, const luattn_kernel **kernel,
                            luattn_error *err);

#endif
