/* stack.c: measures how much stack the calling thread has left. */
#if defined(__linux__)
#define _GNU_SOURCE /* pthread_getattr_np, which glibc and musl have */
#endif
#include "common/host.h"

#include <stdint.h>

#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The main thread's stack grows to its limit. pthread_getattr_np would read the list of the process's
 * mappings for it, which takes milliseconds in a large process. The kernel places the AT_RANDOM bytes near
 * the top of the stack. */
static size_t main_left(uintptr_t here) {
  const size_t most = (size_t)64 << 20; /* an address farther away is not on this stack */
  const uintptr_t top = (uintptr_t)getauxval(AT_RANDOM);
  struct rlimit limit;
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || here > top) return 0;
  const size_t size = limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > most ? most : (size_t)limit.rlim_cur;
  return size > top - here ? size - (top - here) : 0;
}

size_t host_stack_left(void) {
  const uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  if (syscall(SYS_gettid) == (long)getpid()) return main_left(here);
  pthread_attr_t attributes;
  void *low = NULL;
  size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  const int failed = pthread_attr_getstack(&attributes, &low, &size);
  pthread_attr_destroy(&attributes);
  const uintptr_t first = (uintptr_t)low;
  return failed == 0 && here >= first && here < first + size ? here - first : 0;
}
#else
size_t host_stack_left(void) { return 0; }
#endif
