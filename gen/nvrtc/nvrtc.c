/* nvrtc.c: loads NVRTC by dlopen, and runs one compilation. */
#include "gen/nvrtc/nvrtc.h"
#include "gen/nvrtc/lost_sign.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct symbol {
  const char *name;
  void *slot;
} symbol;

static bool load_symbols(void *handle, const symbol *symbols, int n, const char **missing) {
  for (int i = 0; i < n; i++) {
    void *address = dlsym(handle, symbols[i].name);
    if (address == NULL) {
      *missing = symbols[i].name;
      return false;
    }
    memcpy(symbols[i].slot, &address, sizeof address); /* C has no cast from object to function pointer */
  }
  return true;
}

/* NVRTC opens its built-ins library by name only, which fails outside the loader's paths, as for one from a
 * wheel. Loaded beforehand by path, it is found by that name. If there is none next to it, NVRTC has to find
 * it itself. */
static void load_builtins_beside(const char *path) {
  static const char stem[] = "libnvrtc-builtins.so";
  char folder[512];
  const char *slash = strrchr(path, '/');
  const int n = slash != NULL ? snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path) : 0;
  DIR *dir = n > 0 && (size_t)n < sizeof folder ? opendir(folder) : NULL;
  if (dir == NULL) return;
  for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
    char file[1024];
    if (strncmp(e->d_name, stem, sizeof stem - 1) != 0) continue;
    snprintf(file, sizeof file, "%s/%s", folder, e->d_name);
    dlopen(file, RTLD_NOW | RTLD_GLOBAL);
  }
  closedir(dir);
}

luattn_status nvrtc_open(const nvrtc_file *file, nvrtc *lib, luattn_error *err) {
  nvrtc out;
  memset(&out, 0, sizeof out);
  const symbol symbols[] = {{"nvrtcVersion", &out.fn.version},
                            {"nvrtcGetNumSupportedArchs", &out.fn.num_archs},
                            {"nvrtcGetSupportedArchs", &out.fn.archs},
                            {"nvrtcCreateProgram", &out.fn.create},
                            {"nvrtcDestroyProgram", &out.fn.destroy},
                            {"nvrtcCompileProgram", &out.fn.compile},
                            {"nvrtcGetPTXSize", &out.fn.ptx_size},
                            {"nvrtcGetPTX", &out.fn.ptx},
                            {"nvrtcGetCUBINSize", &out.fn.cubin_size},
                            {"nvrtcGetCUBIN", &out.fn.cubin},
                            {"nvrtcGetProgramLogSize", &out.fn.log_size},
                            {"nvrtcGetProgramLog", &out.fn.log},
                            {"nvrtcGetErrorString", &out.fn.error_text}};
  const char *missing = NULL;
  load_builtins_beside(file->path);
  void *handle = dlopen(file->path, RTLD_NOW | RTLD_LOCAL); /* never closed: see nvrtc.h */
  if (handle == NULL) {
    const char *why = dlerror();
    return luattn_fail(err, LUATTN_COMPILE, "nvrtc: '%s': cannot be loaded (%s); name another with LUATTN_NVRTC",
                       file->path, why != NULL ? why : "no reason given");
  }
  if (!load_symbols(handle, symbols, (int)(sizeof symbols / sizeof symbols[0]), &missing))
    return luattn_fail(err, LUATTN_COMPILE,
                       "nvrtc: '%s': has no function %s; use NVRTC 12 or newer (LUATTN_NVRTC names it)", file->path,
                       missing);
  const symbol optional = {"nvrtcSetFlowCallback", &out.fn.set_flow_callback};
  (void)load_symbols(handle, &optional, 1, &missing);
  snprintf(out.path, sizeof out.path, "%s", file->path);
  if (out.fn.version(&out.major, &out.minor) != 0 || out.major < 12)
    return luattn_fail(
        err, LUATTN_COMPILE,
        "nvrtc: '%s': is version %d.%d, too old for C++20; use NVRTC 12 or newer (LUATTN_NVRTC names it)", file->path,
        out.major, out.minor);
  *lib = out;
  return LUATTN_OK;
}

int nvrtc_supports(const nvrtc *lib, int arch) {
  int n = 0, list[64];
  if (lib->fn.num_archs(&n) != 0 || n <= 0 || n > 64 || lib->fn.archs(list) != 0) return 0;
  for (int i = 0; i < n; i++)
    if (list[i] == arch) return 1;
  return 0;
}

/* Fetches one of the program's outputs into the arena, 0-terminated. */
static luattn_status fetch(arena *a, void *prog, int (*get_size)(void *, size_t *), int (*get)(void *, char *),
                           char **out, size_t *size, luattn_error *err) {
  *size = 0;
  if (get_size(prog, size) != 0) *size = 0;
  *out = arena_new(a, *size + 1);
  if (*out == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "nvrtc: output of %zu bytes: out of memory", *size);
  if (*size > 0 && get(prog, *out) != 0) *size = 0;
  return LUATTN_OK;
}

/* The first line of the log that reports an error; the whole log if there is none. */
static const char *first_error(arena *a, const char *log) {
  const char *at = strstr(log, ": error");
  if (at == NULL) at = strstr(log, "error");
  if (at == NULL) return log[0] != 0 ? log : "no log";
  while (at > log && at[-1] != '\n') at--;
  const char *line = arena_copy(a, at, strcspn(at, "\n"));
  return line != NULL ? line : "out of memory";
}

enum { NVRTC_ERROR_INVALID_OPTION = 5, NVRTC_ERROR_COMPILATION = 6 };

/* Whether NVRTC does not know an option, or NVVM one that NVRTC passed on, which is reported after the front
 * end. */
static bool refuses_option(int result, const char *log) {
  return result == NVRTC_ERROR_INVALID_OPTION ||
         (result == NVRTC_ERROR_COMPILATION && strstr(log, "is an unsupported option") != NULL);
}

/* Whether ptxas ran out of registers. Its last message (C7600: "Register allocation failed") is not in the
 * log, but an earlier remark is. The front end's errors are in the log, and other failures have other
 * codes. */
static bool ran_out(int result, const nvrtc_result *r) {
  return result == NVRTC_ERROR_COMPILATION && r->remark != NULL && strstr(r->log, "error") == NULL;
}

static luattn_status outputs(const nvrtc *lib, arena *a, void *prog, int want_ptx, nvrtc_result *out,
                             luattn_error *err) {
  char *bytes = NULL;
  size_t size = 0;
  TRY(fetch(a, prog, lib->fn.cubin_size, lib->fn.cubin, &bytes, &size, err));
  if (size == 0)
    return luattn_fail(err, LUATTN_COMPILE, "nvrtc: cubin: NVRTC gave none; the architecture must be sm_XX");
  out->cubin = bytes;
  out->cubin_size = size;
  TRY(fetch(a, prog, lib->fn.ptx_size, lib->fn.ptx, &bytes, &size, err));
  if (size == 0 && want_ptx)
    return luattn_fail(err, LUATTN_COMPILE, "nvrtc: ptx: NVRTC gave none; use another version of it");
  if (want_ptx) out->ptx = bytes;
  return ptx_find_lost_sign(a, bytes, &out->lost_sign, err);
}

/* Compiles with the first num_options of `options`, and returns NVRTC's result and its log. */
static luattn_status compile(const nvrtc *lib, arena *a, void *prog, const char *const *options, int num_options,
                             int *result, char **log, luattn_error *err) {
  size_t size = 0;
  *result = lib->fn.compile(prog, num_options, options);
  return fetch(a, prog, lib->fn.log_size, lib->fn.log, log, &size, err);
}

/* The flow callback: NVRTC calls this function between compilation stages, first after the front end. A return value of
 * 0 continues the compilation. */
static int pass_on(void *watcher, void *reserved) {
  const nvrtc_watcher *w = watcher;
  (void)reserved;
  w->tell(w->data);
  return 0;
}

static void watch(const nvrtc *lib, void *prog, nvrtc_watcher *w) {
  if (w == NULL) return;
  if (lib->fn.set_flow_callback == NULL || lib->fn.set_flow_callback(prog, pass_on, w) != 0) w->tell(w->data);
}

luattn_status nvrtc_compile(const nvrtc *lib, arena *a, const char *name, const char *source,
                            const template_file *headers, int num_headers, const char *arch, nvrtc_options options,
                            int want_ptx, nvrtc_result *out, luattn_error *err) {
  const char **texts = arena_array(a, (size_t)num_headers + 1, sizeof *texts);
  const char **names = arena_array(a, (size_t)num_headers + 1, sizeof *names);
  const char **opts = arena_array(a, (size_t)options.count + 1, sizeof *opts);
  char *arch_option = arena_printf(a, "--gpu-architecture=%s", arch);
  if (texts == NULL || names == NULL || opts == NULL || arch_option == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "nvrtc: %s: out of memory", name);
  for (int i = 0; i < num_headers; i++) {
    texts[i] = headers[i].data;
    names[i] = headers[i].name;
  }
  opts[0] = arch_option;
  for (int i = 0; i < options.count; i++) opts[i + 1] = options.list[i];

  void *prog = NULL;
  int result = lib->fn.create(&prog, source, name, num_headers, texts, names);
  if (result != 0) return luattn_fail(err, LUATTN_COMPILE, "nvrtc: %s: %s", name, lib->fn.error_text(result));
  watch(lib, prog, options.watcher);

  nvrtc_result r;
  memset(&r, 0, sizeof r);
  char *log = NULL;
  luattn_status status = compile(lib, a, prog, opts, options.count + 1, &result, &log, err);
  if (status == LUATTN_OK && options.optional > 0 && refuses_option(result, log))
    status = compile(lib, a, prog, opts, options.count + 1 - options.optional, &result, &log, err);
  r.log = log;
  if (status == LUATTN_OK) nvrtc_read_log(log, &r);
  if (status == LUATTN_OK && result != 0 && !ran_out(result, &r))
    status = luattn_fail(err, LUATTN_COMPILE, "nvrtc: %s for %s: %s: %s", name, arch, lib->fn.error_text(result),
                         first_error(a, log));
  if (status == LUATTN_OK && result == 0) status = outputs(lib, a, prog, want_ptx, &r, err);
  lib->fn.destroy(&prog);
  if (status == LUATTN_OK) *out = r;
  return status;
}
