/* check_growth.h: decays of linear attention above 0, which are growth. */
#ifndef LUATTN_ENGINE_CHECK_GROWTH_H
#define LUATTN_ENGINE_CHECK_GROWTH_H

#include "engine/engine.h"
#include "luattn/linear.h"

/* After a launch of forward with LUATTN_CHECK=1: waits for the stream, computes the decays of the arguments on the CPU, and refuses
 * those above 0. Does nothing while the stream is captured. Errors: LUATTN_INVALID, LUATTN_NO_MEMORY, LUATTN_CUDA. */
luattn_status engine_check_growth(const engine_place *at, const luattn_spec *spec, const luattn_linear_args *args,
                                  const char *function, void *stream, luattn_error *err);

#endif
