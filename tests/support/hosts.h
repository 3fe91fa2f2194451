/* hosts.h: environments of a luattn call; each could change results or output. */
#ifndef LUATTN_TEST_HOSTS_H
#define LUATTN_TEST_HOSTS_H

#include <fenv.h>
#include <locale.h>
#include <stdbool.h>

typedef enum host_kind {
  HOST_PLAIN, /* the state at program start */
  HOST_COMMA, /* a locale with a decimal comma and other letter cases */
  HOST_UP,    /* rounds up */
  HOST_DOWN,  /* rounds down */
  HOST_ZERO,  /* rounds to zero */
  HOST_TRAPS, /* invalid operations, divisions by zero and overflows raise SIGFPE */
  HOST_FLUSH, /* flushes subnormal inputs and results to 0 */
  HOST_SMALL, /* a thread with a stack of 64 KiB, half of what musl gives */
  HOST_WORST, /* all of these at once, with one rounding mode */
  NUM_HOSTS
} host_kind;

const char *hosts_name(host_kind host);

/* Returns whether this machine supports that host; LOCPATH names the locale's folder. */
bool hosts_exist(host_kind host);

/* Runs `work` in that host, in a separate thread. Assertions must not fail in that thread. */
void hosts_run(host_kind host, void (*work)(void *data), void *data);

/* State that a call must leave unchanged: the floating-point control word, its flags, and the thread's
 * locale. */
typedef struct host_view {
  int rounding, traps, flags;
  unsigned long control;
  char point;
  locale_t locale;
} host_view;
void hosts_look(host_view *out);
bool hosts_same(const host_view *a, const host_view *b);

#endif
