/* compile.c: luattn_compile: runs the pipeline with each NVRTC of the machine, until one works. */
#include <stdio.h>
#include <string.h>

#include "common/host.h"
#include "gen/compile/linear_image.h"
#include "gen/compile/pass_spec.h"
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
__attribute__((noinline)) static luattn_status compile_once(const compile_call *given, nvrtc_search *search, bool *next,
                                                            luattn_image **image, luattn_compile_report *report,
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

/* Compiles with the first NVRTC that works. */
static luattn_status compile_image(const compile_call *given, luattn_image **image, luattn_compile_report *r,
                                   luattn_error *err) {
  nvrtc_search search;
  bool next = false;
  luattn_status status;
  do {
    memset(r, 0, sizeof *r);
    r->trace_ms = given->spec->load_ms;
    status = compile_once(given, &search, &next, image, r, err);
  } while (next);
  return status;
}

/* Adds what the compilation of a row pass took to the report of its backward. */
static void add_report(luattn_compile_report *to, int number, const luattn_compile_report *r) {
  const size_t used = strlen(to->plan);
  snprintf(to->plan + used, sizeof to->plan - used, "row pass %d, a forward kernel of its own:\n%s", number, r->plan);
  to->nvrtc_ms += r->nvrtc_ms;
  to->plan_ms += r->plan_ms;
  to->cache_ms += r->cache_ms;
  to->cache_hit = to->cache_hit && r->cache_hit;
  to->is_kept = to->is_kept && r->is_kept;
}

static luattn_status compile_pass(const compile_call *given, arena *a, int number, luattn_image **image,
                                  luattn_compile_report *report, luattn_error *err) {
  luattn_spec *spec = arena_new(a, sizeof *spec);
  luattn_compile_report *r = arena_new(a, sizeof *r);
  luattn_target target;
  if (spec == NULL || r == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  TRY(compilation_take_target(given->target, &target, err));
  TRY(pass_spec_make(a, given->spec, number, target.dtype, spec, err));
  target.pass = LUATTN_FORWARD;
  target.out_f32 = target.grad_f32 = 0; /* of the caller's tensors */
  target.tile_m = target.tile_n = 0;    /* those are backward's */
  target.tiles = NULL;
  target.device = NULL;
  TRY(compile_image(&(compile_call){.spec = spec, .target = &target}, image, r, err));
  add_report(report, number, r);
  return LUATTN_OK;
}

/* Compiles the row passes of a backward, and puts their images into it. */
static luattn_status join_passes(const compile_call *given, luattn_image **made, luattn_compile_report *report,
                                 luattn_error *err) {
  luattn_image *pass[MANIFEST_MAX_PASSES] = {NULL}, *whole = NULL;
  arena *a = arena_open(arena_allocator(given->spec->a));
  luattn_status status = a != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  for (int i = 0; i < given->spec->derived.num_passes && status == LUATTN_OK; i++)
    status = compile_pass(given, a, i, &pass[i], report, err);
  if (status == LUATTN_OK) status = image_join(*made, (const luattn_image *const *)pass, &whole, err);
  for (int i = 0; i < MANIFEST_MAX_PASSES; i++) luattn_image_free(pass[i]);
  arena_close(a);
  if (status != LUATTN_OK) return status;
  luattn_image_free(*made);
  *made = whole;
  return LUATTN_OK;
}

static luattn_status compile_within(void *arguments, luattn_error *err) {
  const compile_call *given = arguments;
  luattn_compile_report r;
  luattn_image *made = NULL;
  if (given->spec->traced.form == LUATTN_FORM_LINEAR)
    return linear_image_make(given->spec, given->target, given->image, given->report, err);
  luattn_status status = compile_image(given, &made, &r, err);
  if (status == LUATTN_OK && image_get_manifest(made)->row_passes) status = join_passes(given, &made, &r, err);
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
