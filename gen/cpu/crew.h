/* crew.h: the threads of one call, started when it begins and joined before it returns. */
#ifndef LUATTN_GEN_CPU_CREW_H
#define LUATTN_GEN_CPU_CREW_H

#include <stdint.h>

typedef struct crew crew;

/* One unit of a job, by worker `worker`: the caller's thread is number 0. */
typedef void crew_job(void *user, int worker, int64_t unit);

/* Starts `threads` - 1 threads besides the caller's, or fewer if the system starts no more. NULL: none, which
 * is not an error. Until crew_close the calling thread cannot be cancelled. */
crew *crew_open(int threads);
void crew_close(crew *c); /* NULL is fine */

/* Runs units [0, count), each on any free thread; returns when all are done. c NULL: all on the caller's, in
 * order. */
void crew_run(crew *c, crew_job *job, void *user, int64_t count);

#endif
