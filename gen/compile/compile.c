/* compile.c: luattn_compile: runs the pipeline with each NVRTC of the machine, until one works. */
#include <stdio.h>
#include <string.h>

#include "common/host.h"
#include "gen/compile/pipeline.h"

typedef struct version_call {
  const char *path;
  int *major, *minor;
} version_call;

static luattn_status version_within(void *arguments, luattn_error *err) {
  const version_call *v = arguments;
  nvrtc_search search;
  nvrtc_file file;
  nvrtc lib;
  nvrtc_search_start(&search, v->path, 0, false);
  TRY(nvrtc_open_first(&search, &file, &lib, err));
  *v->major = lib.major;
  *v->minor = lib.minor;
  return LUATTN_OK;
}

luattn_status luattn_nvrtc_version(const char *path, int *major, int *minor, luattn_error *err) {
  fail_clear(err);
  NEED(major);
  NEED(minor);
  return host_run(version_within, &(version_call){path, major, minor}, err);
}

typedef struct compile_call {
  const luattn_spec *spec;
  const luattn_target *target;
  luattn_image **image;
  luattn_compile_report *report;
} compile_call;

/* Compiles with the next NVRTC of `search`, which owns it. Sets *next if this NVRTC failed and another one
 * may exist. Not inlined, to keep the frame small. */
__attribute__((noinline)) static luattn_status compile_once(const compile_call *given, nvrtc_search *search,
                                                            bool *next, luattn_image **image,
                                                            luattn_compile_report *report,
                                                            luattn_error *err) {
  compilation *c;
  luattn_error said; /* the caller may have no error struct, and this one is needed here */
  fail_clear(&said);
  luattn_status status = compilation_open(given->spec, given->target, &c, &said);
  if (status == LUATTN_OK && *next) c->search = *search;
  if (status == LUATTN_OK) status = pipeline_run(c, image, report, &said);
  if (status == LUATTN_OK) status = compilation_memory(c, &said);
  *next = status != LUATTN_OK && c != NULL && c->nvrtc_is_useless && nvrtc_pass_over(&c->search, &said);
  if (*next) *search = c->search;
  if (err != NULL) *err = said;
  compilation_close(c);
  return status;
}

static luattn_status compile_within(void *arguments, luattn_error *err) {
  const compile_call *given = arguments;
  luattn_compile_report r;
  luattn_image *made = NULL;
  nvrtc_search search;
  bool next = false;
  luattn_status status;
  do {
    memset(&r, 0, sizeof r);
    r.trace_ms = given->spec->load_ms;
    status = compile_once(given, &search, &next, &made, &r, err);
  } while (next);
  if (status == LUATTN_OK) {
    if (given->report != NULL) *given->report = r;
    *given->image = made;
  } else {
    luattn_image_free(made);
  }
  return status;
}

luattn_status luattn_compile(const luattn_spec *spec, const luattn_target *target, luattn_image **image,
                             luattn_compile_report *report, luattn_error *err) {
  fail_clear(err);
  NEED(spec);
  NEED(target);
  NEED(image);
  return host_run(compile_within, &(compile_call){spec, target, image, report}, err);
}
