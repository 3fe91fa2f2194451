/* engine.h: shared by the files of the engine. */
#ifndef LUATTN_ENGINE_ENGINE_H
#define LUATTN_ENGINE_ENGINE_H

#include "engine/kernel_key.h"

/* The kernel of a key, loaded or compiled on first use. */
luattn_status engine_kernel(luattn_engine *engine, const kernel_key *key, const luattn_kernel **kernel,
                            luattn_error *err);

#endif
