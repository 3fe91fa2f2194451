/* status.h: the status and error message of every luattn call, and the replaceable allocator.
 *
 * A call returns a luattn_status. On anything but LUATTN_OK it fills *err with a message that names the tensor or the
 * spec line, the value, and what to do; outputs are written only on LUATTN_OK. Nothing here exits, aborts or prints.
 * There is no global state.
 *
 * Errors and warnings. `err` may be NULL everywhere. Every call that takes an error struct writes it, so it need not be
 * initialised: after LUATTN_OK its status is LUATTN_OK, and its message is empty or a warning, such as one of a cache
 * directory that cannot be written. Only the calls that waited for an engine to compile a kernel get the warning of
 * that compilation.
 *
 * NULL. A pointer must not be NULL unless its comment allows it; the error is LUATTN_INVALID and names the parameter.
 * Functions that return no status return NULL, 0 or zeros for NULL, and those that free or close accept it.
 *
 * Versions. Structs that a program hands in and that start with `struct_size` (luattn_args, luattn_target,
 * luattn_engine_options, luattn_pack_query) grow at their ends, and all follow one rule. Set struct_size to sizeof of
 * the struct, and unused members to zero.
 *   - a smaller size, from a program built for an earlier luattn, is accepted; the missing members are zero, which
 *     means the default;
 *   - a larger size, from a program built for a later luattn, is accepted if all bytes unknown to this library are
 *     zero; else an error names the byte that is set and this library's version;
 *   - an error: 0, a size too small for the members of the first version, or one that is not a multiple of 8.
 * A struct that luattn fills and that starts with `struct_size` (luattn_kernel_description) grows likewise. Set only
 * struct_size: a smaller struct gets the members that it has, and a larger one gets zeros in the members that this
 * library does not know. All other structs (luattn_input, luattn_scalar, luattn_request, luattn_pack_item,
 * luattn_problem, luattn_tiles, luattn_allocator, and the rest of those that luattn fills) keep their size from 0.1.0
 * on, in all versions with the soname libluattn.so.0. Additions of later versions come as new functions or structs with
 * struct_size.
 *
 * The calling program's state does not affect results, output or messages of a call, and is unchanged afterwards:
 *   locale          Every call works in the "C" locale, which it sets for its own thread alone.
 *   floating point  Every call rounds to nearest, traps nothing and keeps subnormal numbers. On return rounding mode,
 *                   traps, exception flags and flush-to-zero are the caller's again.
 *   stack           Every call needs less than 64 KB of the caller's stack, plus the driver's in calls that use a
 *                   device. Where a thread has less than 4 MB left, calls on a spec (compiler.h) run in a thread with a
 *                   stack of 8 MB that luattn starts, with all signals blocked, and waits for. The allocator is then
 *                   called in that thread, too. If the thread cannot be started, the call returns LUATTN_NO_MEMORY. */
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

#define LUATTN_STATUS_MAP(X)                                       \
  X(OK, "success")                                                 \
  X(NO_MEMORY, "out of memory")                                    \
  X(INVALID, "invalid argument")                                   \
  X(SPEC, "error in the spec")                                     \
  X(UNSUPPORTED, "not supported by this device, plan or version")  \
  X(COMPILE, "NVRTC rejected the generated source, or is missing") \
  X(CUDA, "CUDA driver error, or no usable device")                \
  X(IO, "file error")                                              \
  X(IMAGE, "malformed or mismatched kernel image")                 \
  X(INTERNAL, "internal error (please report)")

typedef enum luattn_status {
#define LUATTN_X(name, text) LUATTN_##name,
  LUATTN_STATUS_MAP(LUATTN_X)
#undef LUATTN_X
} luattn_status;

/* Owned by the caller, who need not initialise it. The file's head describes its contents after a call. */
typedef struct luattn_error {
  luattn_status status;
  char message[1020];
} luattn_error;

/* "0.1.0": the version of the linked library. */
LUATTN_API const char *luattn_version(void);

/* "invalid argument" and so on; never NULL. */
LUATTN_API const char *luattn_status_text(luattn_status status);

/* Replaces malloc for the host memory of a compilation, except in the second thread that runs NVRTC (luattn_compile).
 * size 0 frees. Must be thread safe if several threads use it. It is called with the locale and floating-point
 * environment of a luattn call, and in another thread if the caller's stack is short. */
typedef struct luattn_allocator {
  void *(*realloc)(void *user, void *ptr, size_t old_size, size_t new_size);
  void *user;
} luattn_allocator;

#ifdef __cplusplus
}
#endif
#endif
