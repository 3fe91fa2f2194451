/* crew.h: the threads of one call. They are made when it begins and joined before it returns. */
#ifndef LUATTN_GEN_CPU_CREW_H
#define LUATTN_GEN_CPU_CREW_H

#include <stdint.h>

typedef struct crew crew;

/* One unit of a job, by worker `worker`: the caller's thread is number 0. */
typedef void crew_job(void *user, int worker, int64_t unit);

/* Starts `threads` - 1 threads beside the caller's, and fewer where the system starts no more. NULL: none,
 * and nothing is wrong. Until crew_close the calling thread cannot be cancelled. */
crew *crew_open(int threads);
void crew_close(crew *c); /* NULL is fine */

/* Units [0, count), each by whoever is free; returns when all are done. c NULL: all by the caller, in
 * order. */
void crew_run(crew *c, crew_job *job, void *user, int64_t count);

#endif
