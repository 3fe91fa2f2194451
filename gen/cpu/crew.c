#include "gen/cpu/crew.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/host.h"

typedef struct member {
  crew *c;
  int number;
  pthread_t thread;
} member;

struct crew {
  int cancel_state; /* the caller's state before */
  int num_members;
  pthread_mutex_t lock; /* guards the members below */
  pthread_cond_t begin, end;
  crew_job *job;
  void *user;
  int64_t next, count, left; /* units: the next one, all, and unfinished ones */
  bool closes;
  member member[]; /* all except the caller */
};

/* Called and returns with the lock held. */
static void take_units(crew *c, int worker) {
  while (c->next < c->count) {
    const int64_t unit = c->next++;
    crew_job *const job = c->job;
    void *const user = c->user;
    pthread_mutex_unlock(&c->lock);
    job(user, worker, unit);
    pthread_mutex_lock(&c->lock);
    if (--c->left == 0) pthread_cond_signal(&c->end);
  }
}

static void *serve(void *of_member) {
  const member *m = of_member;
  crew *c = m->c;
  HOST_SCOPE;
  pthread_mutex_lock(&c->lock);
  while (!c->closes) {
    take_units(c, m->number);
    if (!c->closes) pthread_cond_wait(&c->begin, &c->lock);
  }
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

static bool make_lock(crew *c) {
  if (pthread_mutex_init(&c->lock, NULL) != 0) return false;
  if (pthread_cond_init(&c->begin, NULL) == 0) {
    if (pthread_cond_init(&c->end, NULL) == 0) return true;
    pthread_cond_destroy(&c->begin);
  }
  pthread_mutex_destroy(&c->lock);
  return false;
}

crew *crew_open(int threads) {
  if (threads < 2) return NULL;
  crew *c = calloc(1, sizeof *c + ((size_t)threads - 1) * sizeof c->member[0]);
  if (c == NULL || !make_lock(c)) {
    free(c);
    return NULL;
  }
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &c->cancel_state); /* members work on data on this stack */
  for (int i = 0; i + 1 < threads; i++) {
    member *m = &c->member[i];
    m->c = c, m->number = i + 1;
    if (host_thread(&m->thread, serve, m) != 0) break;
    c->num_members++;
  }
  if (c->num_members > 0) return c;
  crew_close(c);
  return NULL;
}

void crew_close(crew *c) {
  if (c == NULL) return;
  const int before = c->cancel_state;
  pthread_mutex_lock(&c->lock);
  c->closes = true;
  pthread_cond_broadcast(&c->begin);
  pthread_mutex_unlock(&c->lock);
  for (int i = 0; i < c->num_members; i++) pthread_join(c->member[i].thread, NULL);
  pthread_cond_destroy(&c->end);
  pthread_cond_destroy(&c->begin);
  pthread_mutex_destroy(&c->lock);
  free(c);
  pthread_setcancelstate(before, NULL);
}

void crew_run(crew *c, crew_job *job, void *user, int64_t count) {
  if (c == NULL || count < 2) {
    for (int64_t i = 0; i < count; i++) job(user, 0, i);
    return;
  }
  pthread_mutex_lock(&c->lock);
  c->job = job, c->user = user;
  c->next = 0, c->count = c->left = count;
  pthread_cond_broadcast(&c->begin);
  take_units(c, 0);
  while (c->left > 0) pthread_cond_wait(&c->end, &c->lock);
  pthread_mutex_unlock(&c->lock);
}
