#include "common/parallel.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct crew {
  parallel_task *task;
  parallel_progress *progress;
  void *user;
  size_t count;
  pthread_mutex_t lock;      /* guards the members below */
  size_t next, done, failed; /* failed: index of the task whose error is kept; count: none */
  luattn_error error;
  size_t warned; /* likewise of the task whose warning is kept */
  luattn_error warning;
} crew;

static void *work(void *arg) {
  crew *c = arg;
  pthread_mutex_lock(&c->lock);
  while (c->next < c->count && c->failed == c->count) {
    const size_t index = c->next++;
    luattn_error error = {.status = LUATTN_OK};
    pthread_mutex_unlock(&c->lock);
    const luattn_status status = c->task(c->user, index, &error);
    pthread_mutex_lock(&c->lock);
    if (status != LUATTN_OK && index < c->failed) {
      c->failed = index;
      c->error = error;
      c->error.status = status;
    }
    if (status == LUATTN_OK && error.message[0] != 0 && index < c->warned) {
      c->warned = index;
      c->warning = error;
    }
    ++c->done;
    if (c->progress != NULL && status == LUATTN_OK) c->progress(c->user, c->done, c->count);
  }
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

static size_t thread_count(size_t count, int threads) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  const size_t wanted = threads > 0 ? (size_t)threads : online > 0 ? (size_t)online : 1;
  return wanted < count ? wanted : count;
}

luattn_status parallel_run(size_t count, int threads, parallel_task *task, parallel_progress *progress, void *user,
                           luattn_error *err) {
  crew c = {.task = task, .progress = progress, .user = user, .count = count, .failed = count, .warned = count};
  const size_t wanted = thread_count(count, threads);
  if (count == 0) return LUATTN_OK;
  if (pthread_mutex_init(&c.lock, NULL) != 0)
    return luattn_fail(err, LUATTN_NO_MEMORY, "threads: cannot create a lock");
  pthread_t *helper = wanted > 1 ? malloc((wanted - 1) * sizeof *helper) : NULL;
  size_t helpers = 0; /* may be fewer than wanted: the calling thread always works */
  while (helper != NULL && helpers + 1 < wanted && pthread_create(&helper[helpers], NULL, work, &c) == 0) ++helpers;
  work(&c);
  for (size_t i = 0; i < helpers; ++i) pthread_join(helper[i], NULL);
  free(helper);
  pthread_mutex_destroy(&c.lock);
  if (c.failed == count) {
    if (c.warned < count && err != NULL) *err = c.warning;
    return LUATTN_OK;
  }
  if (err != NULL) *err = c.error;
  return c.error.status;
}
