/* nvrtc.c: NVRTC, whose cubins are followed by their PTX (image.h), for a driver that runs it. The real one
 * is LUATTN_PTX_NVRTC, or the machine's libnvrtc.so. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/ptx/image.h"

#define API __attribute__((visibility("default"))) int
#define NOT_FOUND 11 /* NVRTC_ERROR_INTERNAL_ERROR */

static void *real(const char *name) {
  static void *library;
  if (library == NULL) {
    const char *path = getenv("LUATTN_PTX_NVRTC");
    library = dlopen(path != NULL && *path != '\0' ? path : "libnvrtc.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  }
  return library != NULL ? dlsym(library, name) : NULL;
}

/* Passes a call on as it is. */
#define FORWARD(name, params, args)        \
  API name params;                         \
  API name params {                        \
    int(*f) params;                        \
    *(void **)&f = real(#name);            \
    return f != NULL ? f args : NOT_FOUND; \
  }
FORWARD(nvrtcVersion, (int *major, int *minor), (major, minor))
FORWARD(nvrtcGetNumSupportedArchs, (int *count), (count))
FORWARD(nvrtcGetSupportedArchs, (int *archs), (archs))
FORWARD(nvrtcCreateProgram,
        (void **prog, const char *source, const char *name, int num, const char *const *headers,
         const char *const *names),
        (prog, source, name, num, headers, names))
FORWARD(nvrtcDestroyProgram, (void **prog), (prog))
FORWARD(nvrtcCompileProgram, (void *prog, int num, const char *const *options), (prog, num, options))
FORWARD(nvrtcGetPTXSize, (void *prog, size_t *size), (prog, size))
FORWARD(nvrtcGetPTX, (void *prog, char *out), (prog, out))
FORWARD(nvrtcGetProgramLogSize, (void *prog, size_t *size), (prog, size))
FORWARD(nvrtcGetProgramLog, (void *prog, char *out), (prog, out))

__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result);
__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result) {
  const char *(*f)(int);
  *(void **)&f = real("nvrtcGetErrorString");
  return f != NULL ? f(result) : "the real NVRTC is missing";
}

static int call_size(const char *name, void *prog, size_t *size) {
  int (*f)(void *, size_t *);
  *(void **)&f = real(name);
  return f != NULL ? f(prog, size) : NOT_FOUND;
}
static int call_text(const char *name, void *prog, char *out) {
  int (*f)(void *, char *);
  *(void **)&f = real(name);
  return f != NULL ? f(prog, out) : NOT_FOUND;
}

API nvrtcGetCUBINSize(void *prog, size_t *size);
API nvrtcGetCUBINSize(void *prog, size_t *size) {
  size_t cubin, ptx;
  int result = call_size("nvrtcGetCUBINSize", prog, &cubin);
  if (result != 0 || cubin == 0) return *size = 0, result;
  if ((result = call_size("nvrtcGetPTXSize", prog, &ptx)) != 0) return result;
  *size = cubin + sizeof PTX_MARK + ptx;
  return 0;
}

API nvrtcGetCUBIN(void *prog, char *out);
API nvrtcGetCUBIN(void *prog, char *out) {
  const int result = call_text("nvrtcGetCUBIN", prog, out);
  if (result != 0) return result;
  char *mark = out + elf_size((const unsigned char *)out);
  memcpy(mark, PTX_MARK, sizeof PTX_MARK);
  return call_text("nvrtcGetPTX", prog, mark + sizeof PTX_MARK);
}
