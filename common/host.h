/* host.h: isolates a call of luattn from the program around it: from its locale, its floating-point
 * environment and, if it is short, its stack.
 *
 * The locale is set for the calling thread alone, by uselocale. It covers everything that runs in the call:
 * printf and strtod, <ctype.h>, strerror, the number formats of Lua (which asks localeconv for the decimal
 * point) and NVRTC. Replacing these functions would not affect Lua and NVRTC; setlocale would change the
 * locale of the host's other threads. The "C" locale object is a constant in glibc and musl, so newlocale
 * neither allocates nor fails.
 *
 * The floating-point environment is C's default one during a call: it rounds to nearest, traps nothing, and
 * keeps subnormal numbers. On return the host has its own again: rounding mode, traps, flags, flush-to-zero.
 *
 * A callback (luattn_allocator) runs in the environment of the call. */
#ifndef LUATTN_HOST_H
#define LUATTN_HOST_H

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>

#include "luattn/status.h"

typedef struct host_state {
  fenv_t floats;
  locale_t locale, plain; /* the thread's before, and "C" */
} host_state;

/* Call them in pairs, in one thread; pairs may nest. */
void host_enter(host_state *saved);
void host_leave(host_state *saved);
/* The first line of a function: enters the scope, and leaves it on every return. */
#define HOST_SCOPE                                             \
  host_state host_scope_ __attribute__((cleanup(host_leave))); \
  host_enter(&host_scope_)

/* The same for code that computes only in vector registers and neither formats nor calls libraries: it takes
 * nanoseconds where host_enter takes hundreds. For launches. */
typedef struct host_floats {
#if defined(__x86_64__)
  unsigned control; /* MXCSR, with the flags */
#elif defined(__aarch64__)
  unsigned long control, flags; /* FPCR, FPSR */
#else
  fenv_t all;
#endif
} host_floats;

void host_floats_enter(host_floats *saved);
void host_floats_leave(host_floats *saved);
#define HOST_FLOATS_SCOPE                                               \
  host_floats host_floats_ __attribute__((cleanup(host_floats_leave))); \
  host_floats_enter(&host_floats_)

/* vsnprintf in a scope, for messages of calls that have none. */
int host_vformat(char *out, size_t size, const char *fmt, va_list args) __attribute__((format(printf, 3, 0)));
int host_format(char *out, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* errand.c: runs `call` with enough stack: recursion is as deep as the spec's expressions, and how much stack NVRTC
 * needs is unknown. `call` runs in the calling thread where HOST_STACK_LEAST bytes of stack are left, else in
 * a thread with a stack of HOST_STACK, for which the caller waits. Either way it runs in a scope as above.
 * Takes less than 2 KB of the caller's stack. Errors: those of `call`, and LUATTN_NO_MEMORY where the thread
 * cannot be started. */
#define HOST_STACK ((size_t)8 << 20)
#define HOST_STACK_LEAST ((size_t)4 << 20)
typedef luattn_status host_call(void *arguments, luattn_error *err);
luattn_status host_run(host_call *call, void *arguments, luattn_error *err);

/* Starts a thread with a stack of HOST_STACK that takes no signals, so that the host's handlers run in the
 * host's threads. Its function must enter a scope. Returns 0 or an errno. */
int host_thread(pthread_t *thread, void *(*start)(void *), void *data);

/* stack.c: bytes of stack left in the calling thread; 0: unknown, as on a stack that is not the thread's
 * own. */
size_t host_stack_left(void);

#endif
