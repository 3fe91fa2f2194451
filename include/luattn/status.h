/* status.h: what every luattn call returns, the caller-owned error message, and the replaceable allocator.
 *
 * A call returns a luattn_status. On anything but LUATTN_OK it fills *err (if err is not NULL) with a message that names the
 * tensor or the spec line, the value, and what to do; outputs are written only on LUATTN_OK. Look at *err after a failure
 * alone: a call that succeeds leaves in it what it held, or a message of something that it did without. Nothing here exits,
 * aborts or prints. There is no global state.
 *
 * The program around a call changes nothing of what it computes, writes or says, and finds its own state as it was:
 *   locale          Every call works in the "C" locale, which it sets for its own thread alone.
 *   floating point  Every call rounds to nearest, traps nothing and keeps subnormal numbers. On return rounding mode, traps,
 *                   exception flags and flush-to-zero are the caller's again.
 *   stack           Every call needs less than 64 KB of the caller's stack, and what the driver takes in calls that use a
 *                   device. Where a thread has less than 4 MB left, calls on a spec (compiler.h) run in a thread with a
 *                   stack of 8 MB that luattn starts, with all signals blocked, and waits for. There the allocator is
 *                   called, too. Where it cannot be started, LUATTN_NO_MEMORY says so.
 */
#ifndef LUATTN_STATUS_H
#define LUATTN_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define LUATTN_API
#else
#define LUATTN_API __attribute__((visibility("default")))
#endif

#define LUATTN_STATUS_MAP(X)                                            \
  X(OK, "success")                                                      \
  X(NO_MEMORY, "out of memory")                                         \
  X(INVALID, "invalid argument")                                        \
  X(SPEC, "error in the spec")                                          \
  X(UNSUPPORTED, "not supported by this device, plan or version")       \
  X(COMPILE, "NVRTC rejected the generated source, or is missing")      \
  X(CUDA, "CUDA driver error, or no usable device")                     \
  X(IO, "file error")                                                   \
  X(IMAGE, "malformed or mismatched kernel image")                      \
  X(INTERNAL, "internal error (please report)")

typedef enum luattn_status {
#define LUATTN_X(name, text) LUATTN_##name,
  LUATTN_STATUS_MAP(LUATTN_X)
#undef LUATTN_X
} luattn_status;

/* Caller-owned; need not be initialised. */
typedef struct luattn_error {
  luattn_status status;
  char message[1020];
} luattn_error;

/* "0.1.0": of the library that is linked. */
LUATTN_API const char *luattn_version(void);

/* "invalid argument" and so on; never NULL. */
LUATTN_API const char *luattn_status_text(luattn_status status);

/* Replaces malloc for the host memory of a compilation, but for that of the second run of NVRTC (luattn_compile). size 0 frees.
 * Must be thread safe if used by several threads. It is called in the locale and with the floating-point environment of a
 * call, and where the caller's stack is short in another thread, for which the caller waits. */
typedef struct luattn_allocator {
  void *(*realloc)(void *user, void *ptr, size_t old_size, size_t new_size);
  void *user;
} luattn_allocator;

#ifdef __cplusplus
}
#endif
#endif
