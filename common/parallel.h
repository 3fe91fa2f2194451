/* parallel.h: runs independent tasks on several threads, with progress. */
#ifndef LUATTN_PARALLEL_H
#define LUATTN_PARALLEL_H

#include "common/fail.h"

/* One task of [0, count); several run at once. */
typedef luattn_status parallel_task(void *user, size_t index, luattn_error *err);
/* Called after each task, never by two threads at once. */
typedef void parallel_progress(void *user, size_t done, size_t count);

/* Runs all tasks on `threads` threads including the caller's; 0: as many as there are processors. After a
 * failure no further task starts, and the failure with the lowest index is returned; without one, the warning
 * of a task that succeeded, if there is one. progress may be NULL. */
luattn_status parallel_run(size_t count, int threads, parallel_task *task, parallel_progress *progress, void *user,
                           luattn_error *err);

#endif
