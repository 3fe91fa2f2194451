/* parallel.h: independent tasks on several threads, with progress. */
#ifndef LUATTN_PARALLEL_H
#define LUATTN_PARALLEL_H

#include "common/fail.h"

/* One task of [0, count); several run at once. */
typedef luattn_status parallel_task(void *user, size_t index, luattn_error *err);
/* After each task, by one thread at a time. */
typedef void parallel_progress(void *user, size_t done, size_t count);

/* Runs them all on `threads` threads, the caller's among them; 0: as many as there are processors. After a
 * failure no further task starts, and the failure of the lowest index is returned; else its warning, if a
 * task that succeeded left a message. progress may be NULL. */
luattn_status parallel_run(size_t count, int threads, parallel_task *task, parallel_progress *progress,
                           void *user, luattn_error *err);

#endif
