/* memo_nvrtc.c: an NVRTC that caches machine code by source, and otherwise by PTX, from which ptxas always
 * makes the same code. Used by tests/templates/same_code.py, which compiles the same kernels from two trees.
 *
 * LUATTN_MEMO_DIR: the folder. LUATTN_MEMO_FIRST=1: most sources are new, so PTX is looked up only after a
 * miss that would have compiled anyway. LUATTN_MEMO_LOG: a file that gets a letter for each program:
 * s(ource), p(tx) or c(ompiled). The real NVRTC is LUATTN_PTX_NVRTC, or the one that gen/nvrtc finds without
 * LUATTN_NVRTC, which names this library. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/nvrtc/nvrtc.h"
#include "tests/templates/memo.h"

#define API __attribute__((visibility("default"))) int
enum { OUT_OF_MEMORY = 1, INTERNAL_ERROR = 11 }; /* nvrtcResult */

static nvrtc library;
static bool is_there;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void) {
  const char *path = getenv("LUATTN_PTX_NVRTC");
  nvrtc_file file;
  luattn_error err;
  is_there = getenv("LUATTN_MEMO_DIR") != NULL && nvrtc_find(path != NULL ? path : "", &file, &err) == LUATTN_OK &&
             nvrtc_open(&file, &library, &err) == LUATTN_OK;
  if (!is_there) fprintf(stderr, "memo_nvrtc: LUATTN_MEMO_DIR is missing, or NVRTC\n");
}
/* Returns the real NVRTC's functions, or NULL if there is none. */
static const nvrtc_functions *real(void) {
  pthread_once(&once, open_library);
  return is_there ? &library.fn : NULL;
}

/* Texts belong to the caller, which must keep them, as nvrtc_compile does. */
typedef struct program {
  const char *source, *name;
  const char *const *headers, *const *names;
  int num;
  int result;
  size_t log_size, size;
  char *log, *cubin;
} program;

API nvrtcVersion(int *major, int *minor);
API nvrtcVersion(int *major, int *minor) {
  const nvrtc_functions *f = real();
  return f != NULL ? f->version(major, minor) : INTERNAL_ERROR;
}
API nvrtcGetNumSupportedArchs(int *count);
API nvrtcGetNumSupportedArchs(int *count) {
  const nvrtc_functions *f = real();
  return f != NULL ? f->num_archs(count) : INTERNAL_ERROR;
}
API nvrtcGetSupportedArchs(int *archs);
API nvrtcGetSupportedArchs(int *archs) {
  const nvrtc_functions *f = real();
  return f != NULL ? f->archs(archs) : INTERNAL_ERROR;
}
__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result);
__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int result) {
  const nvrtc_functions *f = real();
  return f != NULL ? f->error_text(result) : "the real NVRTC is missing";
}

API nvrtcCreateProgram(void **prog, const char *source, const char *name, int num, const char *const *headers,
                       const char *const *names);
API nvrtcCreateProgram(void **prog, const char *source, const char *name, int num, const char *const *headers,
                       const char *const *names) {
  program *p = calloc(1, sizeof *p);
  if (p == NULL) return OUT_OF_MEMORY;
  *p = (program){.source = source, .name = name, .headers = headers, .names = names, .num = num};
  *prog = p;
  return 0;
}

static void forget(program *p) {
  free(p->log), free(p->cubin);
  p->log = p->cubin = NULL;
  p->log_size = p->size = 0;
}

API nvrtcDestroyProgram(void **prog);
API nvrtcDestroyProgram(void **prog) {
  forget(*prog);
  free(*prog);
  *prog = NULL;
  return 0;
}

/* ---- the folder: KEY.source holds the key of KEY.code, which holds a result ---- */

static void path_of(hash128 key, const char *suffix, char out[1024]) {
  char hex[33];
  hash_hex(key, hex);
  snprintf(out, 1024, "%.900s/%s.%s", getenv("LUATTN_MEMO_DIR"), hex, suffix);
}

static bool read_part(FILE *f, size_t size, char **out) {
  *out = malloc(size + 1);
  return *out != NULL && fread(*out, 1, size, f) == size;
}

static bool find_code(hash128 key, program *p) {
  char path[1024];
  size_t sizes[2];
  path_of(key, "code", path);
  FILE *f = fopen(path, "rb");
  if (f == NULL) return false;
  forget(p);
  const bool ok = fread(&p->result, sizeof p->result, 1, f) == 1 && fread(sizes, sizeof sizes, 1, f) == 1 &&
                  read_part(f, sizes[0], &p->log) && read_part(f, sizes[1], &p->cubin);
  fclose(f);
  if (!ok) return forget(p), false;
  p->log_size = sizes[0], p->size = sizes[1];
  return true;
}

/* Opens a temporary file, which is renamed once complete. */
static FILE *start_file(char temporary[1100]) {
  static int count;
  snprintf(temporary, 1100, "%.900s/%ld.%d", getenv("LUATTN_MEMO_DIR"), (long)getpid(),
           __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED));
  return fopen(temporary, "wb");
}
static void end_file(FILE *f, bool ok, const char *temporary, const char *path) {
  ok = fclose(f) == 0 && ok;
  if (!ok || rename(temporary, path) != 0) remove(temporary);
}

static void keep_code(hash128 key, const program *p) {
  char path[1024], temporary[1100];
  const size_t sizes[2] = {p->log_size, p->size};
  path_of(key, "code", path);
  FILE *f = start_file(temporary);
  if (f == NULL) return;
  const bool ok = fwrite(&p->result, sizeof p->result, 1, f) == 1 && fwrite(sizes, sizeof sizes, 1, f) == 1 &&
                  fwrite(p->log, 1, sizes[0], f) == sizes[0] && fwrite(p->cubin, 1, sizes[1], f) == sizes[1];
  end_file(f, ok, temporary, path);
}

static bool find_source(hash128 key, program *p) {
  char path[1024];
  hash128 code;
  path_of(key, "source", path);
  FILE *f = fopen(path, "rb");
  if (f == NULL) return false;
  const bool ok = fread(&code, sizeof code, 1, f) == 1;
  fclose(f);
  return ok && find_code(code, p);
}

static void keep_source(hash128 key, hash128 code) {
  char path[1024], temporary[1100];
  path_of(key, "source", path);
  FILE *f = start_file(temporary);
  if (f != NULL) end_file(f, fwrite(&code, sizeof code, 1, f) == 1, temporary, path);
}

static void tell(char letter) {
  const char *path = getenv("LUATTN_MEMO_LOG");
  const int fd = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
  if (fd < 0) return;
  if (write(fd, &letter, 1) != 1) fprintf(stderr, "memo_nvrtc: %s: cannot be written\n", path);
  close(fd);
}

/* ---- compiling ---- */

static void add_options(hasher *h, int num, const char *const *options) {
  int major = 0, minor = 0;
  real()->version(&major, &minor);
  hasher_add(h, "rules", "3", 1); /* the version of memo.h's normal forms */
  hasher_add(h, "nvrtc", library.path, strlen(library.path));
  hasher_add(h, "major", &major, sizeof major);
  hasher_add(h, "minor", &minor, sizeof minor);
  for (int i = 0; i < num; i++) hasher_add(h, "option", options[i], strlen(options[i]));
}

static bool key_of_source(const program *p, int num, const char *const *options, hash128 *out) {
  memo_file *files = calloc((size_t)p->num + 1, sizeof *files);
  hash128 text;
  hasher h;
  if (files == NULL) return false;
  for (int i = 0; i < p->num; i++) files[i] = (memo_file){p->names[i], p->headers[i]};
  bool ok = memo_hash_source(p->source, files, p->num, &text) && hasher_open(&h);
  free(files);
  if (!ok) return false;
  hasher_add(&h, "text", &text, sizeof text);
  add_options(&h, num, options);
  *out = hasher_close(&h);
  return true;
}

static bool key_of_ptx(const char *ptx, int num, const char *const *options, hash128 *out) {
  char *text = memo_rename(ptx);
  hasher h;
  if (text == NULL) return false;
  const bool ok = hasher_open(&h);
  if (ok) {
    hasher_add(&h, "ptx", text, strlen(text));
    add_options(&h, num, options);
    *out = hasher_close(&h);
  }
  free(text);
  return ok;
}

typedef int (*size_function)(void *prog, size_t *size);
typedef int (*text_function)(void *prog, char *out);

static char *fetch(void *prog, size_function size_of, text_function get, size_t *size) {
  *size = 0;
  if (size_of(prog, size) != 0) *size = 0;
  char *out = calloc(1, *size + 1);
  if (out != NULL && *size > 0 && get(prog, out) != 0) *size = 0;
  return out;
}

/* Compiles with the real NVRTC into *p. Allocates *ptx, which is empty if there is no PTX. */
static int compile_really(program *p, int num, const char *const *options, char **ptx) {
  const nvrtc_functions *f = real();
  void *prog;
  size_t size;
  p->result = f->create(&prog, p->source, p->name, p->num, p->headers, p->names);
  if (p->result != 0) return p->result;
  p->result = f->compile(prog, num, options);
  forget(p);
  p->log = fetch(prog, f->log_size, f->log, &p->log_size);
  p->cubin = fetch(prog, f->cubin_size, f->cubin, &p->size);
  *ptx = fetch(prog, f->ptx_size, f->ptx, &size);
  f->destroy(&prog);
  if (p->log == NULL || p->cubin == NULL || *ptx == NULL) p->result = OUT_OF_MEMORY;
  return p->result;
}

/* Compiles to PTX: for compute_90a in place of sm_90a. Returns NULL on errors of the front end, or out of
 * memory. The caller frees the text. */
static char *compile_to_ptx(const program *given, int num, const char *const *options) {
  static const char sm[] = "--gpu-architecture=sm_";
  program p = *given;
  const char **changed = calloc((size_t)num + 1, sizeof *changed);
  char arch[64], *ptx = NULL;
  p.log = p.cubin = NULL;
  if (changed == NULL) return NULL;
  for (int i = 0; i < num; i++) {
    changed[i] = options[i];
    if (strncmp(options[i], sm, sizeof sm - 1) != 0) continue;
    snprintf(arch, sizeof arch, "--gpu-architecture=compute_%.20s", options[i] + sizeof sm - 1);
    changed[i] = arch;
  }
  const int result = compile_really(&p, num, changed, &ptx);
  forget(&p);
  free(changed);
  if (result == 0 && ptx != NULL && ptx[0] != 0) return ptx;
  free(ptx);
  return NULL;
}

/* Checks that both ways give the same PTX. Otherwise the cached result belongs to another PTX. */
static void check_ptx(const char *first, const char *then, const program *p) {
  if (first == NULL || then[0] == 0) return;
  char *a = memo_rename(first), *b = memo_rename(then);
  if (a != NULL && b != NULL && strcmp(a, b) != 0) {
    fprintf(stderr, "memo_nvrtc: %s: PTX for compute_XX is other PTX than for sm_XX; compare with --cubin\n", p->name);
    abort();
  }
  free(a), free(b);
}

API nvrtcCompileProgram(void *prog, int num, const char *const *options);
API nvrtcCompileProgram(void *prog, int num, const char *const *options) {
  program *p = prog;
  hash128 source, code = {0};
  const char *first = getenv("LUATTN_MEMO_FIRST");
  char *ptx = NULL, *later = NULL;
  if (real() == NULL) return INTERNAL_ERROR;
  if (!key_of_source(p, num, options, &source)) return OUT_OF_MEMORY;
  if (find_source(source, p)) return tell('s'), p->result;
  if (first == NULL || strcmp(first, "1") != 0) ptx = compile_to_ptx(p, num, options);
  bool has_key = ptx != NULL && key_of_ptx(ptx, num, options, &code);
  if (has_key && find_code(code, p)) {
    tell('p');
  } else {
    compile_really(p, num, options, &later);
    tell('c');
    if (later != NULL) check_ptx(ptx, later, p);
    if (!has_key && ptx == NULL && later != NULL && later[0] == 0) ptx = compile_to_ptx(p, num, options);
    const char *text = ptx != NULL ? ptx : later;
    if (!has_key && text != NULL && text[0] != 0) has_key = key_of_ptx(text, num, options, &code);
    if (has_key && p->result != OUT_OF_MEMORY) keep_code(code, p);
  }
  if (has_key) keep_source(source, code);
  free(ptx), free(later);
  return p->result;
}

static int give(const char *bytes, size_t size, char *out) {
  if (size > 0) memcpy(out, bytes, size);
  return 0;
}
API nvrtcGetProgramLogSize(void *prog, size_t *size);
API nvrtcGetProgramLogSize(void *prog, size_t *size) { return *size = ((program *)prog)->log_size, 0; }
API nvrtcGetProgramLog(void *prog, char *out);
API nvrtcGetProgramLog(void *prog, char *out) { return give(((program *)prog)->log, ((program *)prog)->log_size, out); }
API nvrtcGetCUBINSize(void *prog, size_t *size);
API nvrtcGetCUBINSize(void *prog, size_t *size) { return *size = ((program *)prog)->size, 0; }
API nvrtcGetCUBIN(void *prog, char *out);
API nvrtcGetCUBIN(void *prog, char *out) { return give(((program *)prog)->cubin, ((program *)prog)->size, out); }
/* Reports no PTX. `emit --stage ptx` uses the real NVRTC. */
API nvrtcGetPTXSize(void *prog, size_t *size);
API nvrtcGetPTXSize(void *prog, size_t *size) { return (void)prog, *size = 0, 0; }
API nvrtcGetPTX(void *prog, char *out);
API nvrtcGetPTX(void *prog, char *out) { return (void)prog, (void)out, INTERNAL_ERROR; }
