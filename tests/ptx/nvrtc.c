/* nvrtc.c: an NVRTC whose cubins are followed by their PTX (image.h), for a driver that executes PTX. The
 * real NVRTC is LUATTN_PTX_NVRTC, or the one that gen/nvrtc finds without LUATTN_NVRTC, which names this
 * library. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "gen/nvrtc/nvrtc.h"
#include "tests/ptx/image.h"

#define API __attribute__((visibility("default"))) int
#define INTERNAL_ERROR 11 /* NVRTC_ERROR_INTERNAL_ERROR */

static nvrtc library;
static bool is_there;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void) {
  const char *path = getenv("LUATTN_PTX_NVRTC");
  nvrtc_file file;
  luattn_error err;
  is_there =
      nvrtc_find(path != NULL ? path : "", &file, &err) == LUATTN_OK && nvrtc_open(&file, &library, &err) == LUATTN_OK;
  if (!is_there) fprintf(stderr, "%s\n", err.message);
}
/* Returns the real NVRTC's functions, or NULL if there is none. */
static const nvrtc_functions *real(void) {
  pthread_once(&once, open_library);
  return is_there ? &library.fn : NULL;
}

/* Forwards a call to the real NVRTC. */
#define FORWARD(name, function, params, args)             \
  API name params;                                        \
  API name params {                                       \
    const nvrtc_functions *f = real();                    \
    return f != NULL ? f->function args : INTERNAL_ERROR; \
  }
FORWARD(nvrtcVersion, version, (int *major, int *minor), (major, minor))
FORWARD(nvrtcGetNumSupportedArchs, num_archs, (int *count), (count))
FORWARD(nvrtcGetSupportedArchs, archs, (int *archs), (archs))
FORWARD(nvrtcCreateProgram, create,
        (void **prog, const char *source, const char *name, int num, const char *const *headers,
         const char *const *names),
        (prog, source, name, num, headers, names))
FORWARD(nvrtcDestroyProgram, destroy, (void **prog), (prog))
FORWARD(nvrtcCompileProgram, compile, (void *prog, int num, const char *const *options), (prog, num, options))
FORWARD(nvrtcGetPTXSize, ptx_size, (void *prog, size_t *size), (prog, size))
FORWARD(nvrtcGetPTX, ptx, (void *prog, char *out), (prog, out))
FORWARD(nvrtcGetProgramLogSize, log_size, (void *prog, size_t *size), (prog, size))
FORWARD(nvrtcGetProgramLog, log, (void *prog, char *out), (prog, out))

__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result);
__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result) {
  const nvrtc_functions *f = real();
  return f != NULL ? f->error_text(result) : "the real NVRTC is missing";
}

API nvrtcGetCUBINSize(void *prog, size_t *size);
API nvrtcGetCUBINSize(void *prog, size_t *size) {
  const nvrtc_functions *f = real();
  size_t ptx;
  *size = 0;
  int result = f != NULL ? f->cubin_size(prog, size) : INTERNAL_ERROR;
  if (result != 0 || *size == 0) return result;
  if ((result = f->ptx_size(prog, &ptx)) != 0) return result;
  *size += sizeof PTX_MARK + ptx;
  return 0;
}

API nvrtcGetCUBIN(void *prog, char *out);
API nvrtcGetCUBIN(void *prog, char *out) {
  const nvrtc_functions *f = real();
  const int result = f != NULL ? f->cubin(prog, out) : INTERNAL_ERROR;
  if (result != 0) return result;
  char *mark = out + elf_size((const unsigned char *)out);
  memcpy(mark, PTX_MARK, sizeof PTX_MARK);
  return f->ptx(prog, mark + sizeof PTX_MARK);
}
