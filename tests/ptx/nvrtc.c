/* nvrtc.c: an NVRTC whose cubins are followed by their PTX (image.h), for a driver that executes PTX. The
 * real NVRTC is LUATTN_PTX_NVRTC, or the one that gen/nvrtc finds without LUATTN_NVRTC, which names this
 * library. With LUATTN_PTX_SASS=0 it compiles to PTX alone, in half of the time: cubins are empty, and plans
 * take their first tiles, as if ptxas had found registers for all. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/nvrtc/nvrtc.h"
#include "tests/ptx/image.h"

#define API __attribute__((visibility("default"))) int
#define INTERNAL_ERROR 11 /* NVRTC_ERROR_INTERNAL_ERROR */
enum { MOST_OPTIONS = 128, EMPTY_ELF = 64 /* a header */ };

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

/* Whether ptxas runs, too. */
static bool has_sass(void) {
  const char *asked = getenv("LUATTN_PTX_SASS");
  return asked == NULL || strcmp(asked, "0") != 0;
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
FORWARD(nvrtcGetPTXSize, ptx_size, (void *prog, size_t *size), (prog, size))
FORWARD(nvrtcGetPTX, ptx, (void *prog, char *out), (prog, out))
FORWARD(nvrtcGetProgramLogSize, log_size, (void *prog, size_t *size), (prog, size))
FORWARD(nvrtcGetProgramLog, log, (void *prog, char *out), (prog, out))

API nvrtcCompileProgram(void *prog, int num, const char *const *options);
API nvrtcCompileProgram(void *prog, int num, const char *const *options) {
  static const char real_arch[] = "--gpu-architecture=sm_";
  const nvrtc_functions *f = real();
  const char *told[MOST_OPTIONS];
  char arch[64];
  if (f == NULL || num > MOST_OPTIONS) return INTERNAL_ERROR;
  for (int i = 0; i < num; i++) {
    told[i] = options[i];
    if (has_sass() || strncmp(options[i], real_arch, sizeof real_arch - 1) != 0) continue;
    snprintf(arch, sizeof arch, "--gpu-architecture=compute_%s", options[i] + sizeof real_arch - 1);
    told[i] = arch;
  }
  return f->compile(prog, num, told);
}

__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result);
__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result) {
  const nvrtc_functions *f = real();
  return f != NULL ? f->error_text(result) : "the real NVRTC is missing";
}

API nvrtcGetCUBINSize(void *prog, size_t *size);
API nvrtcGetCUBINSize(void *prog, size_t *size) {
  const nvrtc_functions *f = real();
  size_t ptx;
  if (f == NULL) return INTERNAL_ERROR;
  *size = EMPTY_ELF;
  int result = has_sass() ? f->cubin_size(prog, size) : 0;
  if (result != 0 || *size == 0) return result;
  if ((result = f->ptx_size(prog, &ptx)) != 0) return result;
  *size += sizeof PTX_MARK + ptx;
  return 0;
}

API nvrtcGetCUBIN(void *prog, char *out);
API nvrtcGetCUBIN(void *prog, char *out) {
  const nvrtc_functions *f = real();
  if (f == NULL) return INTERNAL_ERROR;
  memset(out, 0, EMPTY_ELF), memcpy(out, "\177ELF\2", 5);
  const int result = has_sass() ? f->cubin(prog, out) : 0;
  if (result != 0) return result;
  char *mark = out + elf_size((const unsigned char *)out);
  memcpy(mark, PTX_MARK, sizeof PTX_MARK);
  return f->ptx(prog, mark + sizeof PTX_MARK);
}
