/* compilation.h: the state of one compilation: the caller's spec and target, and the current attempt. */
#ifndef LUATTN_GEN_COMPILATION_H
#define LUATTN_GEN_COMPILATION_H

#include <stdbool.h>

#include "abi/image.h"
#include "gen/lower/lowered.h"
#include "gen/nvrtc/nvrtc.h"
#include "gen/plan/plan.h"
#include "gen/spec.h"

/* One choice of tiles and its stages so far: planned, lowered, printed. */
typedef struct attempt {
  plan plan;
  const lowered *lowered;         /* lowered for the plan; NULL: not yet */
  const char *spec_text, *config; /* spec.cuh, config.cuh */
  const char *why;                /* one fact a line: the plan's reasons, and those of later stages */
  image_manifest info;            /* the manifest, complete except for registers and the hash */
} attempt;

typedef struct compilation {
  arena *a;
  arena *second;            /* for the second thread that runs NVRTC, which must not call the caller's allocator;
                             * NULL: none */
  const traced_spec *given; /* the caller's, as loaded */
  const ir *loaded;         /* its IR */
  luattn_spec spec;         /* the caller's, with a clone of the IR to build in */
  luattn_target target;     /* converted to this version's size */
  mask_info mask;
  const template_file *templates;
  int num_templates;
  nvrtc_search search;
  nvrtc_file nvrtc;      /* its last candidate, after compilation_find_nvrtc */
  bool nvrtc_is_useless; /* the library could not be loaded, or does not suit the target */
  attempt at;
  const char *note;   /* lines about this run, which are not stored in the image, or "" */
  image_plan planned; /* how the image was planned, without the note */
} compilation;

/* Converts a target of any version to this one's size. */
luattn_status compilation_take_target(const luattn_target *target, luattn_target *taken, luattn_error *err);

/* Opens an arena with a compilation in it, clones the IR, analyses the mask. Call compilation_close in any
 * case. */
luattn_status compilation_open(const luattn_spec *spec, const luattn_target *target, compilation **out,
                               luattn_error *err);
void compilation_close(compilation *c); /* NULL is fine */
/* Fills c->nvrtc, unless it is filled already. */
luattn_status compilation_find_nvrtc(compilation *c, luattn_error *err);
/* LUATTN_NO_MEMORY if any allocation failed so far: a stage may have continued without the memory, and its
 * output would then not match the spec. */
luattn_status compilation_memory(const compilation *c, luattn_error *err);
/* Adds a line to c->note. NULL: out of memory, which the return value reports. */
luattn_status compilation_note(compilation *c, const char *line, luattn_error *err);
/* The reasons of the current attempt, and the note. */
const char *compilation_why(const compilation *c);
/* text and a line after it; if out of memory: text. */
const char *compilation_add_line(arena *a, const char *text, const char *line);
/* Gives each input of any type the luattn_input_dtype that luattn_target.input_types says, or else `other`; -1: it must
 * say one. Errors: LUATTN_INVALID. */
luattn_status compilation_resolve_types(traced_spec *t, uint64_t input_types, int other, luattn_error *err);
enum { COMPILATION_NVRTC_OPTIONS = 7 };
/* Options of every kernel; returns how many. No fast-math flag: ops/math.cuh decides that for each function. `recent`:
 * options that not every NVRTC 12 knows. Minimal: leaves out the declarations of textures and of the CUDA runtime, which
 * take a tenth of the front end's time. No cache: NVRTC would start CUDA to search the driver's kernel cache, and luattn
 * has its own. `apart`: templates compare integers so that ptxas loses no sign (gen/nvrtc/lost_sign.h). */
int compilation_nvrtc_options(bool recent, bool apart, const char *out[COMPILATION_NVRTC_OPTIONS]);
/* LUATTN_LINEINFO=1: kernels carry line information for profilers. */
bool compilation_has_line_info(void);
/* "sm_90a"; NULL: out of memory. */
const char *compilation_arch(const compilation *c, arena *a);

#endif
