/* nvrtc.h: compiles CUDA text to a cubin, through NVRTC loaded at run time; and holds the embedded template
 * files. */
#ifndef LUATTN_GEN_NVRTC_H
#define LUATTN_GEN_NVRTC_H

#include <stdbool.h>

#include "common/fail.h"
#include "gen/base/arena.h"

typedef struct template_file {
  const char *name;
  const char *data;
  size_t size;
} template_file;

/* The templates: embedded, or all except those of abi/ read from LUATTN_TEMPLATE_DIR (a missing file is
 * LUATTN_IO naming it; never mixed). */
luattn_status templates_get(arena *a, const template_file **files, int *count, luattn_error *err);

/* The NVRTC that would be used. It is found without loading it if possible, because loading takes 10 to 200
 * ms, which a start from a warm cache should not pay. `identity` tells one build of NVRTC from another: it is
 * part of a cache key. */
typedef struct nvrtc_file {
  char path[512];
  char identity[80];
} nvrtc_file;

/* Walks over the NVRTCs of a machine, best first, because the first one found need not work: it may be a
 * broken file, of another architecture, or one whose code the driver cannot load. */
typedef struct nvrtc_search {
  const char *path;   /* an explicit path; NULL: the usual names and places */
  bool from_variable; /* path is LUATTN_NVRTC's */
  int driver_version; /* as luattn_target's; 0: any */
  bool is_ptx;        /* the driver compiles the code, so NVRTC must not be newer at all */
  int next;           /* candidate, counted from 0 */
  bool lacks_arch;    /* one was passed over because it lacks the architecture */
  char failed[640];   /* which ones were passed over and why, separated by "; " */
} nvrtc_search;

/* path NULL: LUATTN_NVRTC, then the usual names and places. An explicit path is the only candidate. */
void nvrtc_search_start(nvrtc_search *s, const char *path, int driver_version, bool is_ptx);
/* Finds the next candidate that exists and, as far as can be told without loading it, works. Errors:
 * LUATTN_COMPILE, or LUATTN_UNSUPPORTED if lacks_arch, with what was tried and how to get one. */
luattn_status nvrtc_next(nvrtc_search *s, nvrtc_file *out, luattn_error *err);
/* Reports that the last candidate does not work, for the reason *why. false: it was given explicitly, so
 * there is no other to try. */
bool nvrtc_pass_over(nvrtc_search *s, const luattn_error *why);

/* Finds the first candidate. */
luattn_status nvrtc_find(const char *path, nvrtc_file *out, luattn_error *err);

/* A loaded library: plain data, may be copied and shared by threads. It stays loaded for the life of the
 * process (NVRTC does not survive dlclose), and opening it again costs next to nothing. */
typedef struct nvrtc_functions nvrtc_functions;
struct nvrtc_functions {
  int (*version)(int *major, int *minor);
  int (*num_archs)(int *count);
  int (*archs)(int *archs);
  int (*create)(void **prog, const char *source, const char *name, int num_headers, const char *const *headers,
                const char *const *names);
  int (*destroy)(void **prog);
  int (*compile)(void *prog, int num_options, const char *const *options);
  int (*ptx_size)(void *prog, size_t *size);
  int (*ptx)(void *prog, char *out);
  int (*cubin_size)(void *prog, size_t *size);
  int (*cubin)(void *prog, char *out);
  int (*log_size)(void *prog, size_t *size);
  int (*log)(void *prog, char *out);
  const char *(*error_text)(int result);
  /* NULL where it is missing: 12.4 lacks it, 12.8 has it. */
  int (*set_flow_callback)(void *prog, int (*callback)(void *data, void *reserved), void *data);
};
typedef struct nvrtc {
  nvrtc_functions fn;
  int major, minor;
  char path[512];
} nvrtc;

luattn_status nvrtc_open(const nvrtc_file *file, nvrtc *lib, luattn_error *err);
/* Checks that the driver loads its code. Errors: LUATTN_COMPILE, with both versions. */
luattn_status nvrtc_check_driver(const nvrtc_search *s, const nvrtc *lib, luattn_error *err);
/* Tries candidates until one can be opened and the driver loads its code. */
luattn_status nvrtc_open_first(nvrtc_search *s, nvrtc_file *file, nvrtc *lib, luattn_error *err);
int nvrtc_supports(const nvrtc *lib, int arch);

typedef struct nvrtc_entry {
  char name[64];
  int registers, spill_bytes, stack_bytes;
} nvrtc_entry;
typedef struct nvrtc_result {
  const void *cubin; /* in the arena; NULL: ptxas ran out of registers, and `remark` says so */
  size_t cubin_size;
  const char *log, *ptx; /* ptx only if asked for */
  const char
      *lost_sign; /* a function of which ptxas makes wrong code (lost_sign.h), or NULL: the cubin must not be used */
  int num_entries;
  nvrtc_entry entry[16];  /* from ptxas -v */
  int called_spill_bytes; /* of the functions that entries call, together */
  const char *remark;     /* first line of the log that says setmaxnreg was ignored or wgmma serialised; NULL: none */
} nvrtc_result;

/* Called when the front end, which takes one program at a time, has finished with this one: repeatedly from
 * then on, by the compiling thread; or before compiling, if NVRTC does not report its progress. `tell` calls
 * no function of NVRTC. */
typedef struct nvrtc_watcher {
  void (*tell)(void *data);
  void *data;
} nvrtc_watcher;

/* The options. Not every NVRTC knows the last `optional` ones: one that refuses them compiles without. */
typedef struct nvrtc_options {
  const char *const *list;
  int count, optional;
  nvrtc_watcher *watcher; /* may be NULL */
} nvrtc_options;

/* Compiles `source` with in-memory headers (names without a path). arch "sm_90a". Errors: LUATTN_COMPILE with
 * the first error line. Running out of registers is no error: other tiles may need fewer. */
luattn_status nvrtc_compile(const nvrtc *lib, arena *a, const char *name, const char *source,
                            const template_file *headers, int num_headers, const char *arch, nvrtc_options options,
                            int want_ptx, nvrtc_result *out, luattn_error *err);

/* nvrtc_log.c: reads registers, spills and remarks from the log into *out. White box for tests. */
void nvrtc_read_log(const char *log, nvrtc_result *out);

#endif
