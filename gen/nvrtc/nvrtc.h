/* nvrtc.h: CUDA text to a cubin, through NVRTC loaded at run time; and the embedded template files. */
#ifndef LUATTN_GEN_NVRTC_H
#define LUATTN_GEN_NVRTC_H

#include "gen/base/arena.h"
#include "common/fail.h"

typedef struct template_file { const char *name; const char *data; size_t size; } template_file;

/* The templates: embedded, or all read from LUATTN_TEMPLATE_DIR (a missing file is LUATTN_IO naming it; never mixed). */
luattn_status templates_get(arena *a, const template_file **files, int *count, luattn_error *err);

typedef struct nvrtc nvrtc; /* a loaded library; may be shared by threads */
/* path NULL: LUATTN_NVRTC, then the usual names and places; the message lists what was tried. One per process and path is kept
 * loaded for good (NVRTC does not survive dlclose). */
luattn_status nvrtc_open(const char *path, const nvrtc **lib, luattn_error *err);
void nvrtc_version(const nvrtc *lib, int *major, int *minor);
int nvrtc_supports(const nvrtc *lib, int arch);

typedef struct nvrtc_entry { char name[64]; int registers, spill_bytes, stack_bytes; } nvrtc_entry;
typedef struct nvrtc_result {
  const void *cubin; size_t cubin_size; /* in the arena */
  const char *log, *ptx;                /* ptx only if asked for */
  int num_entries; nvrtc_entry entry[16]; /* from ptxas -v */
} nvrtc_result;

/* Compiles `source` with in-memory headers (names without a path). arch "sm_90a". Errors: LUATTN_COMPILE with the first error line. */
luattn_status nvrtc_compile(const nvrtc *lib, arena *a, const char *name, const char *source, const template_file *headers,
                            int num_headers, const char *arch, const char *const *options, int num_options, int want_ptx,
                            nvrtc_result *out, luattn_error *err);

#endif
