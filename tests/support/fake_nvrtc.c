/* fake_nvrtc.c: a libnvrtc that compiles nothing. Its cubin is 64 bytes with a hash of all inputs, so that
 * equal inputs give equal images and different inputs different ones.
 *
 * The environment variable LUATTN_FAKE_NVRTC selects a mode:
 *   fail      compilation fails with a log of three lines
 *   silent    compilation fails without a log
 *   refuse    a program cannot be created
 *   empty     compilation succeeds without a cubin
 *   spill     ptxas reports spills for luattn_fwd, or for luattn_prepare in programs without the main kernel
 *   spill N M X the same for luattn_dkdv: N bytes if a generated header contains X, else M; -1: compilation fails
 *   serialise ptxas remarks that it serialised wgmma
 *   exhaust X ptxas runs out of registers if a generated header contains X, and the log has only a remark
 *   memory    compilation fails because memory runs out, after the same remark
 *   lacks X   NVRTC refuses the option X, and fails without --no-cache
 *   old       the version is 11.8
 *   in turn   programs without the main kernel fail unless the front end has finished another program
 * "others MODE" applies fail, silent, empty, spill, serialise, exhaust X or memory only to programs with the
 * kernels other than the main one (LUATTN_PART=2).
 * LUATTN_FAKE_NVRTC_LOG: a file that gets a byte for each program with a main kernel. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef struct program {
  uint64_t source_hash, hash;
  int failed;
  bool has_text; /* the X of "exhaust X" or "spill N M X" */
  bool is_others;
  int (*callback)(void *data, void *reserved);
  void *data;
  char cubin[64];
  char log[512];
} program;

/* Values from NVRTC's header, which needs the CUDA Toolkit. */
enum { SUCCESS = 0, OUT_OF_MEMORY = 1, COMPILATION = 6 };
API int nvrtcVersion(int *major, int *minor);
API int nvrtcGetNumSupportedArchs(int *count);
API int nvrtcGetSupportedArchs(int *archs);
API int nvrtcCreateProgram(void **prog, const char *source, const char *name, int num_headers,
                           const char *const *headers, const char *const *names);
API int nvrtcDestroyProgram(void **prog);
API int nvrtcCompileProgram(void *prog, int num_options, const char *const *options);
API int nvrtcGetPTXSize(void *prog, size_t *size);
API int nvrtcGetPTX(void *prog, char *out);
API int nvrtcGetCUBINSize(void *prog, size_t *size);
API int nvrtcGetCUBIN(void *prog, char *out);
API int nvrtcGetProgramLogSize(void *prog, size_t *size);
API int nvrtcGetProgramLog(void *prog, char *out);
API const char *nvrtcGetErrorString(int result);
API int nvrtcSetFlowCallback(void *prog, int (*callback)(void *, void *), void *data);

/* Returns the mode that applies to p, or NULL. */
static const char *mode_of(const program *p) {
  const char *mode = getenv("LUATTN_FAKE_NVRTC");
  if (mode == NULL || strncmp(mode, "others ", 7) != 0) return mode;
  return p != NULL && p->is_others ? mode + 7 : NULL;
}

static int told(const program *p, const char *what) {
  const char *mode = mode_of(p);
  return mode != NULL && strcmp(mode, what) == 0;
}

/* Returns the X of "spill N M X", or NULL in other modes. */
static const char *spilling(int *with, int *without) {
  const char *mode = getenv("LUATTN_FAKE_NVRTC");
  int at = 0;
  return mode != NULL && sscanf(mode, "spill %d %d %n", with, without, &at) == 2 && at > 0 ? mode + at : NULL;
}

/* Returns whether a header is one of this program alone: others are of all kernels. */
static bool is_generated(const char *name) { return strcmp(name, "spec.cuh") == 0 || strcmp(name, "config.cuh") == 0; }

/* Returns whether `text` contains the X of "exhaust X" or "spill N M X". */
static bool has_text(const char *text) {
  int with, without;
  const char *mode = getenv("LUATTN_FAKE_NVRTC"), *x = mode == NULL ? NULL : strstr(mode, "exhaust ");
  x = x != NULL ? x + 8 : spilling(&with, &without);
  return x != NULL && strstr(text, x) != NULL;
}

/* Returns the X of "lacks X", or NULL if all options are known. */
static const char *lacking(void) {
  const char *mode = getenv("LUATTN_FAKE_NVRTC");
  return mode != NULL && strncmp(mode, "lacks ", 6) == 0 ? mode + 6 : NULL;
}

#ifndef FAKE_MAJOR
#define FAKE_MAJOR 13
#endif
#ifndef FAKE_MINOR
#define FAKE_MINOR 0
#endif

#if FAKE_MINOR == 0 /* the other build does not report its progress */
int nvrtcSetFlowCallback(void *prog, int (*callback)(void *, void *), void *data) {
  program *p = prog;
  p->callback = callback, p->data = data;
  return SUCCESS;
}
#endif

/* Marks p's front end as finished. Returns false if another one was running. */
static bool leave_front_end(const program *p) {
  static atomic_bool is_through;
  if (p->is_others) return atomic_exchange(&is_through, false) || !told(p, "in turn");
  atomic_store(&is_through, true);
  for (int i = 0; i < 2 && p->callback != NULL; i++) (void)p->callback(p->data, NULL);
  return true;
}

static const int supported[] = {75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121};

int nvrtcVersion(int *major, int *minor) {
  *major = told(NULL, "old") ? 11 : FAKE_MAJOR;
  *minor = told(NULL, "old") ? 8 : FAKE_MINOR;
  return SUCCESS;
}

int nvrtcGetNumSupportedArchs(int *count) {
  *count = (int)(sizeof supported / sizeof *supported);
  return SUCCESS;
}

int nvrtcGetSupportedArchs(int *archs) {
  memcpy(archs, supported, sizeof supported);
  return SUCCESS;
}

/* Adds to the FNV-1a hash, including the terminating zero, which separates texts. */
static void add(program *p, const char *s) {
  do p->hash = (p->hash ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
  while (*s++ != 0);
}

int nvrtcCreateProgram(void **prog, const char *source, const char *name, int num_headers, const char *const *headers,
                       const char *const *names) {
  if (told(NULL, "refuse")) return OUT_OF_MEMORY;
  program *p = calloc(1, sizeof *p);
  if (p == NULL) return OUT_OF_MEMORY;
  p->hash = UINT64_C(0xcbf29ce484222325);
  add(p, source);
  add(p, name);
  for (int i = 0; i < num_headers; i++) {
    add(p, headers[i]), add(p, names[i]);
    p->has_text |= is_generated(names[i]) && has_text(headers[i]);
  }
  p->source_hash = p->hash;
  *prog = p;
  return SUCCESS;
}

int nvrtcDestroyProgram(void **prog) {
  free(*prog);
  *prog = NULL;
  return SUCCESS;
}

static void count_compilation(void) {
  const char *path = getenv("LUATTN_FAKE_NVRTC_LOG");
  FILE *f = path != NULL ? fopen(path, "a") : NULL;
  if (f == NULL) return;
  fputc('c', f);
  fclose(f);
}

static void report_spills(program *p, const char *entry, int bytes) {
  snprintf(p->log, sizeof p->log,
           "ptxas info    : Compiling entry function '%s' for 'sm_80'\n"
           "ptxas info    : Function properties for %s\n"
           "    8 bytes stack frame, %d bytes spill stores, %d bytes spill loads\n"
           "ptxas info    : Used 255 registers, used 1 barriers\n",
           entry, entry, bytes - 4, bytes);
}

int nvrtcCompileProgram(void *prog, int num_options, const char *const *options) {
  program *p = prog;
  const char *const lacks = lacking();
  bool no_cache = false;
  p->log[0] = 0, p->hash = p->source_hash;
  for (int i = 0; i < num_options; i++) {
    if (lacks != NULL && strcmp(options[i], lacks) == 0) {
      snprintf(p->log, sizeof p->log, "libnvvm : error: %s is an unsupported option\n", lacks);
      return COMPILATION;
    }
    add(p, options[i]);
    p->is_others |= strcmp(options[i], "-DLUATTN_PART=2") == 0;
    no_cache |= strcmp(options[i], "--no-cache") == 0;
  }
  if (lacks != NULL && !no_cache) return COMPILATION;
  const char *const mode = mode_of(p), *const entry = p->is_others ? "luattn_prepare" : "luattn_fwd";
  const bool exhausted = mode != NULL && strncmp(mode, "exhaust ", 8) == 0 && p->has_text;
  int with, without;
  bool fails = false;
  if (told(p, "spill")) report_spills(p, entry, 904);
  if (spilling(&with, &without) != NULL && !p->is_others)
    report_spills(p, "luattn_dkdv", p->has_text ? with : without), fails = !p->has_text && without < 0;
  if (told(p, "serialise") || told(p, "memory") || exhausted)
    snprintf(p->log, sizeof p->log,
             "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
             "serialized due to a reason in function '%s'\n",
             entry);
  if (!p->is_others) count_compilation();
  if (told(p, "fail"))
    snprintf(p->log, sizeof p->log,
             "In file included from entry/fwd_simt.cu(3):\nspec.cuh(12): error: identifier \"slopes\" is "
             "undefined\n1 error detected\n");
  p->failed = told(p, "fail") || told(p, "silent") || exhausted || fails;
  if (!told(p, "fail") && !told(p, "silent") && !leave_front_end(p)) p->failed = true;
  if (told(p, "memory")) return OUT_OF_MEMORY;
  if (p->failed) return COMPILATION;
  snprintf(p->cubin, sizeof p->cubin, "fake cubin %016llx", (unsigned long long)p->hash);
  return SUCCESS;
}

int nvrtcGetPTXSize(void *prog, size_t *size) {
  (void)prog;
  *size = sizeof "// fake ptx\n";
  return SUCCESS;
}

int nvrtcGetPTX(void *prog, char *out) {
  (void)prog;
  memcpy(out, "// fake ptx\n", sizeof "// fake ptx\n");
  return SUCCESS;
}

int nvrtcGetCUBINSize(void *prog, size_t *size) {
  *size = told(prog, "empty") ? 0 : sizeof((program *)prog)->cubin;
  return SUCCESS;
}

int nvrtcGetCUBIN(void *prog, char *out) {
  memcpy(out, ((program *)prog)->cubin, sizeof((program *)prog)->cubin);
  return SUCCESS;
}

int nvrtcGetProgramLogSize(void *prog, size_t *size) {
  *size = strlen(((program *)prog)->log) + 1;
  return SUCCESS;
}

int nvrtcGetProgramLog(void *prog, char *out) {
  const program *p = prog;
  memcpy(out, p->log, strlen(p->log) + 1);
  return SUCCESS;
}

const char *nvrtcGetErrorString(int result) {
  return result == COMPILATION     ? "NVRTC_ERROR_COMPILATION"
         : result == OUT_OF_MEMORY ? "NVRTC_ERROR_OUT_OF_MEMORY"
                                   : "NVRTC_ERROR";
}
