/* write_signal.h: keeps SIGXFSZ from a thread that writes files. A file that would outgrow the process's limit
 * (RLIMIT_FSIZE) raises it, and it ends a program that does not expect it; while it is held, write fails with EFBIG
 * instead. The host's handler and its other threads are not touched. */
#ifndef LUATTN_WRITE_SIGNAL_H
#define LUATTN_WRITE_SIGNAL_H

#include <signal.h>
#include <stdbool.h>

typedef struct write_signal {
  sigset_t before;
  bool pending; /* before: then it is the host's */
} write_signal;

/* Call them in pairs, in one thread. `release` keeps errno. */
void write_signal_hold(write_signal *saved);
void write_signal_release(write_signal *saved);
/* The first line of a function that writes: holds the signal until every return. */
#define WRITE_SIGNAL_SCOPE                                                   \
  write_signal write_signal_ __attribute__((cleanup(write_signal_release))); \
  write_signal_hold(&write_signal_)

#endif
