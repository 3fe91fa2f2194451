#include "common/host.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
enum { DEFAULT_CONTROL = 0x1f80 }; /* nothing trapped, no flag set, round to nearest, subnormals kept */

void host_floats_enter(host_floats *saved) {
  saved->control = _mm_getcsr();
  _mm_setcsr(DEFAULT_CONTROL);
}

void host_floats_leave(host_floats *saved) { _mm_setcsr(saved->control); }

#elif defined(__aarch64__)
static void set_registers(unsigned long control, unsigned long flags) {
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(control), "r"(flags) : "memory");
}

void host_floats_enter(host_floats *saved) {
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(saved->control), "=r"(saved->flags) : : "memory");
  set_registers(0, 0);
}

void host_floats_leave(host_floats *saved) { set_registers(saved->control, saved->flags); }

#else
void host_floats_enter(host_floats *saved) {
  fegetenv(&saved->all);
  fesetenv(FE_DFL_ENV);
}

void host_floats_leave(host_floats *saved) { fesetenv(&saved->all); }
#endif

void host_enter(host_state *saved) {
  host_floats unused;
  fegetenv(&saved->floats);
  fesetenv(FE_DFL_ENV);
  host_floats_enter(&unused); /* some C libraries leave flush-to-zero as it is */
  saved->plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (saved->plain != (locale_t)0) saved->locale = uselocale(saved->plain);
}

void host_leave(host_state *saved) {
  if (saved->plain != (locale_t)0) {
    uselocale(saved->locale);
    freelocale(saved->plain);
  }
  fesetenv(&saved->floats);
}

int host_vformat(char *out, size_t size, const char *fmt, va_list args) {
  HOST_SCOPE; /* printf rounds as the x87 unit does, which host_floats_enter does not set */
  return vsnprintf(out, size, fmt, args);
}

int host_format(char *out, size_t size, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int n = host_vformat(out, size, fmt, args);
  va_end(args);
  return n;
}

int host_thread(pthread_t *thread, void *(*start)(void *), void *data) {
  pthread_attr_t attributes;
  sigset_t all, before;
  int error = pthread_attr_init(&attributes);
  if (error != 0) return error;
  error = pthread_attr_setstacksize(&attributes, HOST_STACK);
  sigfillset(&all);
  if (error == 0) error = pthread_sigmask(SIG_SETMASK, &all, &before);
  if (error == 0) {
    error = pthread_create(thread, &attributes, start, data);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  pthread_attr_destroy(&attributes);
  return error;
}
