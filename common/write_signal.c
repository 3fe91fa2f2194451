#define _POSIX_C_SOURCE 200809L
#include "common/write_signal.h"

#include <errno.h>
#include <time.h>

static void only(sigset_t *set) {
  sigemptyset(set);
  sigaddset(set, SIGXFSZ);
}

void write_signal_hold(write_signal *saved) {
  sigset_t held, pending;
  only(&held);
  saved->pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &held, &saved->before);
}

/* The kernel sends the signal to the thread that wrote, so that taking it here takes it from nobody else. */
void write_signal_release(write_signal *saved) {
  static const struct timespec at_once = {0, 0};
  const int error = errno;
  sigset_t held;
  only(&held);
  while (!saved->pending && sigtimedwait(&held, NULL, &at_once) < 0 && errno == EINTR) continue;
  pthread_sigmask(SIG_SETMASK, &saved->before, NULL);
  errno = error;
}
