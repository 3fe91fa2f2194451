/* log_line.h: says in one line how the engine came to a kernel. */
#ifndef LUATTN_ENGINE_LOG_LINE_H
#define LUATTN_ENGINE_LOG_LINE_H

#include <stddef.h>

#include "engine/kernel_key.h"

/* "gemma2: forward, bf16, head dim 128, short lengths: compiled in 1210 ms". ms: from the request to the loaded
 * kernel. */
void log_line(const kernel_key *key, const luattn_compile_report *report, double ms, char *out, size_t size);

#endif
